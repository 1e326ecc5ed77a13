"""The SGD step of deep linear completion in plain NumPy: the oracle of the compiled kernel."""

from __future__ import annotations

import numpy as np

from overt._check import Floats, Ints


def descend(
    F: Floats,
    M: Floats,
    G: Floats,
    scale: Floats,
    rows: Ints,
    cols: Ints,
    values: Floats,
    draws: Ints,
    learning_rate: float,
    weight_decay: float,
) -> int:
    """Step theta <- (1 - 2 eta lam) theta - (eta/2) grad (A_ij - y)^2 for each entry, in place.

    A_ij = G[i] M[-1] ... M[0] F[j]': F (inputs x width) is the first layer transposed, M (layers x
    width x width) the middle layers, G (outputs x width) the last one; F and G are stored divided
    by scale[0], so that weight decay need not touch all their rows (here it does, and leaves 1).
    The gradient of each layer is the outer product of what comes back to it and what goes into
    it. Returns the number of steps taken before |A_ij - y| exceeded 1e8.
    """
    F *= scale[0]
    G *= scale[0]
    scale[0] = 1.0
    decay = 1 - 2 * learning_rate * weight_decay
    for taken, n in enumerate(draws):
        i, j = rows[n], cols[n]
        forward = [F[j].copy()]
        for W in M:
            forward.append(W @ forward[-1])
        backward = [G[i].copy()]
        for W in M[::-1]:
            backward.append(backward[-1] @ W)
        backward.reverse()
        error = backward[-1] @ forward[-1] - values[n]
        if not abs(error) < 1e8:
            return taken
        for layer in (F, M, G):
            layer *= decay
        F[j] -= learning_rate * error * backward[0]
        for W, h, g in zip(M, forward, backward[1:], strict=False):
            W -= learning_rate * error * np.outer(g, h)
        G[i] -= learning_rate * error * forward[-1]
    return len(draws)
