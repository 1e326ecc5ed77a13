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

    return np.array(sympy.symbols(f"{name}:{np.prod(shape)}")).reshape(shape)


def _strength(q: Any) -> Any:
    return q / (1 - q)


def _units(block: int) -> Zeros:
    """Two blocks of units, two outputs."""
    U = _symbols("u", 2, 2 * block)
    a = _symbols("a", 1, 2 * block)
    (q,) = _symbols("q", 1)
    masks = oracles.multipliers(2 * block, q, block)
    added = oracles.added_loss(_symbols("y", 1, 2), U, a, *masks)
    flows = (U * a).reshape(2, 2, block).sum(2)
    yield added - _strength(q) * (flows**2).sum()


def _any_law() -> Zeros:
    """Two units, any distribution of the mask."""
    z, _ = oracles.masks(np.ones(2))
    p = _symbols("p", 4)
    p[3] = 1 - p[:3].sum()
    mu, Gamma = oracles.moments(z, p)
    flow = _symbols("f", 1, 2)
    added = oracles.added_loss(_symbols("y", 1, 1), np.ones((1, 2)), flow, z / mu, p)
    yield added - (Gamma * flow.T * flow).sum()


def _weights() -> Zeros:
    """DropConnect, a 2 x 2 layer."""
    U, V = _symbols("u", 2, 2), _symbols("v", 2, 2)
    x = _symbols("x", 1, 2)
    y = _symbols("y", 1, 2)
    (q,) = _symbols("q", 1)
    Z, p = oracles.multipliers(4, q)
    noisy = ((y - x @ (Z.reshape(-1, 2, 2) * V) @ U.T) ** 2).sum((1, 2))
    plain = ((y - x @ V @ U.T) ** 2).sum()
    penalty = ((x**2) @ (V**2) @ (U**2).sum(0)).sum()
    yield p @ noisy - plain - _strength(q) * penalty


def _sensing() -> Zeros:
    """Factored maps, 2 x 2."""
    U, V, A = (_symbols(name, 2, 2) for name in "uva")
    (q,) = _symbols("q", 1)
    added = oracles.sensing_added_loss(_symbols("y", 1), U, V, A[None], q)
    flows = (U * (A @ V)).sum(0)
    yield added - _strength(q) * (flows**2).sum()


def _deep() -> Zeros:
    """Two hidden layers of two units: all masks against all pivots, and rescaling."""
    weights = [_symbols("a", 2, 1), _symbols("b", 2, 2), _symbols("c", 1, 2)]
    q, s, t = _symbols("q", 3)
    C = np.ones((1, 1))
    terms = oracles.pivot_terms(weights, C)
    powers = [_strength(q), _strength(q) ** 2]
    yield oracles.deep_added_loss(weights, [q, q], C) - np.dot(powers, terms)
    moved = [W * scale for W, scale in zip(weights, (s, t, 1 / (s * t)), strict=True)]
    yield from np.subtract(oracles.pivot_terms(moved, C), terms)


def _sliding() -> Zeros:
    """Three units, blocks of two."""
    (g,) = _symbols("g", 1)
    mu, Gamma = oracles.moments(*oracles.sliding_masks((3,), 2, g))
    both = np.array([[1, 1, 0], [1, 2, 1], [0, 1, 1]])
    yield from mu - (1 - g) ** both.diagonal()
    yield from (Gamma + 1 - (1 - g) ** -both).ravel()


def _balance() -> Zeros:
    """Two 2 x 2 layers under gradient flow of C + lam |W|^2, any C."""
    W1, W2, G = (_symbols(name, 2, 2) for name in "vwg")  # G: the gradient of C
    (lam,) = _symbols("l", 1)
    D1 = -W2.T @ G - 2 * lam * W1
    D2 = -G @ W1.T - 2 * lam * W2
    change = D1 @ W1.T + W1 @ D1.T - D2.T @ W2 - W2.T @ D2
    yield from (change + 4 * lam * (W1 @ W1.T - W2.T @ W2)).ravel()


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

    exact = (sympy.nsimplify(zero, rational=True) for zero in IDENTITIES[name]())
    return all(sympy.simplify(zero) == 0 for zero in exact)


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
