"""The polynomial identities in symbols, each at one small size: `make proofs`.

The oracles, which enumerate masks, are run on symbols, and what must vanish reduces to 0 for all
values of them. That is no proof for other sizes. SymPy is needed here only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from overt.papers import oracles

Zeros = Iterator[Any]


def _symbols(name: str, *shape: int) -> Any:
    import sympy

    found = sympy.symbols(f"{name}:{np.prod(shape)}")
    return np.array(found).reshape(shape)


def _strength(q: Any) -> Any:
    return q / (1 - q)


def _units(block: int) -> Zeros:
    """Two blocks of units, two outputs."""
    U = _symbols("u", 2, 2 * block)
    a = _symbols("a", 1, 2 * block)
    y = _symbols("y", 1, 2)
    (q,) = _symbols("q", 1)
    z, p = oracles.multipliers(2 * block, q, block)
    added = oracles.added_loss(y, U, a, z, p)
    flows = U * a
    flows = flows.reshape(2, 2, block)
    flows = flows.sum(2)
    penalty = (flows**2).sum()
    yield added - _strength(q) * penalty


def _any_law() -> Zeros:
    """Two units, any distribution of the mask."""
    z, _ = oracles.masks(np.ones(2))
    p = _symbols("p", 4)
    p[3] = 1 - p[:3].sum()
    mu, Gamma = oracles.moments(z, p)
    flow = _symbols("f", 1, 2)
    y = _symbols("y", 1, 1)
    U = np.ones((1, 2))
    z = z / mu
    added = oracles.added_loss(y, U, flow, z, p)
    penalty = flow @ Gamma @ flow.T
    yield added - penalty.sum()


def _weights() -> Zeros:
    """DropConnect, a 2 x 2 layer."""
    U = _symbols("u", 2, 2)
    V = _symbols("v", 2, 2)
    x = _symbols("x", 1, 2)
    y = _symbols("y", 1, 2)
    (q,) = _symbols("q", 1)
    Z, p = oracles.multipliers(4, q)
    masked = Z.reshape(-1, 2, 2) * V
    noisy = (y - x @ masked @ U.T) ** 2
    plain = (y - x @ V @ U.T) ** 2
    added = p @ noisy.sum((1, 2))
    added -= plain.sum()
    outgoing = (U**2).sum(0)
    penalty = x**2 @ V**2 @ outgoing
    yield added - _strength(q) * penalty.sum()


def _sensing() -> Zeros:
    """Factored maps, 2 x 2."""
    U = _symbols("u", 2, 2)
    V = _symbols("v", 2, 2)
    A = _symbols("a", 2, 2)
    y = _symbols("y", 1)
    (q,) = _symbols("q", 1)
    added = oracles.sensing_added_loss(y, U, V, A[None], q)
    flows = U * (A @ V)
    flows = flows.sum(0)
    penalty = (flows**2).sum()
    yield added - _strength(q) * penalty


def _deep() -> Zeros:
    """Two hidden layers of two units: all masks against all pivots, and rescaling."""
    first = _symbols("a", 2, 1)
    second = _symbols("b", 2, 2)
    third = _symbols("c", 1, 2)
    weights = [first, second, third]
    q, s, t = _symbols("q", 3)
    C = np.ones((1, 1))
    terms = oracles.pivot_terms(weights, C)
    one, two = terms
    lam = _strength(q)
    added = oracles.deep_added_loss(weights, [q, q], C)
    yield added - lam * one - lam**2 * two
    moved = [s * first, t * second, third / (s * t)]
    rescaled = oracles.pivot_terms(moved, C)
    yield from np.subtract(rescaled, terms)


def _sliding() -> Zeros:
    """Three units, blocks of two."""
    (g,) = _symbols("g", 1)
    z, p = oracles.sliding_masks((3,), 2, g)
    mu, Gamma = oracles.moments(z, p)
    both = np.array([[1, 1, 0], [1, 2, 1], [0, 1, 1]])
    kept = 1 - g
    yield from mu - kept ** both.diagonal()
    stated = kept**-both - 1
    yield from (Gamma - stated).ravel()


def _balance() -> Zeros:
    """Two 2 x 2 layers under gradient flow of C + lam |W|^2, any C."""
    W1 = _symbols("v", 2, 2)
    W2 = _symbols("w", 2, 2)
    G = _symbols("g", 2, 2)  # the gradient of C
    (lam,) = _symbols("l", 1)
    D1 = -W2.T @ G - 2 * lam * W1
    D2 = -G @ W1.T - 2 * lam * W2
    imbalance = W1 @ W1.T - W2.T @ W2
    change = D1 @ W1.T + W1 @ D1.T
    change -= D2.T @ W2 + W2.T @ D2
    zero = change + 4 * lam * imbalance
    yield from zero.ravel()


IDENTITIES: dict[str, Callable[[], Zeros]] = {
    "units": lambda: _units(1),
    "blocks": lambda: _units(2),
    "any law": _any_law,
    "weights": _weights,
    "sensing": _sensing,
    "deep": _deep,
    "sliding": _sliding,
    "balance": _balance,
}
"""Functions that yield what must be zero."""


def check_identity(name: str) -> bool:
    """Return whether everything that must be 0 is, for all values of the symbols."""
    import sympy

    for zero in IDENTITIES[name]():
        exact = sympy.nsimplify(zero, rational=True)
        if sympy.simplify(exact) != 0:
            return False
    return True


def main() -> None:
    """Check all identities; end with an error that names the first that fails."""
    from overt.papers.records import items

    for name in IDENTITIES:
        ids = [found.id for found in items().values() if found.identity == name]
        if not check_identity(name):
            raise SystemExit(f"{name} does not hold: {', '.join(ids)}")
        print(f"{name}: holds in symbols: {', '.join(ids)}")


if __name__ == "__main__":
    main()
