"""The polynomial identities in symbols, each at one small size: `make proofs`.

An identity is written out over all masks and must reduce to 0 for all values of its symbols. That
is no proof for other sizes. SymPy is needed here only; the records name their identity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, product
from typing import Any

Zeros = Iterator[Any]

Law = dict[tuple[int, ...], Any]
"""The probability of each mask."""


def _symbols(name: str, *shape: int) -> Any:
    import sympy

    return sympy.Matrix(*shape, lambda i, j: sympy.Symbol(f"{name}{i}{j}"))


def _independent(count: int, q: Any) -> Law:
    masks = product((0, 1), repeat=count)
    return {z: q ** (count - sum(z)) * (1 - q) ** sum(z) for z in masks}


def _mean(law: Law, value: Callable[..., Any]) -> Any:
    return sum((chance * value(z) for z, chance in law.items()), start=0)


def _added(law: Law, y: Any, parts: Sequence[Any]) -> Any:
    """E|y - sum_i z_i / mu_i part_i|^2 - |y - sum_i part_i|^2, all of them columns."""
    zero = 0 * y
    mu = [_mean(law, lambda z, i=i: z[i]) for i in range(len(parts))]

    def loss(scales: Sequence[Any]) -> Any:
        flows = [scale * part for scale, part in zip(scales, parts, strict=True)]
        return (y - sum(flows, start=zero)).dot(y - sum(flows, start=zero))

    noisy = _mean(law, lambda z: loss([v / m for v, m in zip(z, mu, strict=True)]))
    return noisy - loss([1] * len(parts))


def _dropped(y: Any, parts: Sequence[Any]) -> Any:
    """Return what dropping the parts independently adds, less lam sum_i |part_i|^2."""
    import sympy

    q = sympy.Symbol("q")
    penalty = q / (1 - q) * sum(part.dot(part) for part in parts)
    return _added(_independent(len(parts), q), y, parts) - penalty


def _units(b: int) -> Zeros:
    """Two blocks of b units: the parts are U_i a_i."""
    U, a, y = _symbols("u", 2, 2 * b), _symbols("a", 2 * b, 1), _symbols("y", 2, 1)
    yield _dropped(y, [U[:, i : i + b] * a[i : i + b, :] for i in (0, b)])


def _any_law() -> Zeros:
    """Do the same for any law of the mask, through its characteristic matrix."""
    import sympy

    p = sympy.symbols("p0:3")
    law = dict(zip(product((0, 1), repeat=2), [*p, 1 - sum(p)], strict=True))
    y, flow = _symbols("y", 1, 1), _symbols("f", 2, 1)
    mu = [_mean(law, lambda z, i=i: z[i]) for i in range(2)]
    form = 0
    for i, j in product(range(2), repeat=2):
        K = _mean(law, lambda z, i=i, j=j: z[i] * z[j]) - mu[i] * mu[j]
        form += K / (mu[i] * mu[j]) * flow[i] * flow[j]
    yield _added(law, y, [flow[:1, :], flow[1:, :]]) - form


def _weights() -> Zeros:
    """DropConnect: every weight of V, or of the last layer, has a part of its own."""
    U, V, x = _symbols("u", 2, 2), _symbols("v", 2, 2), _symbols("x", 2, 1)
    y = _symbols("y", 2, 1)
    yield _dropped(y, [U[:, k] * V[j, k] * x[j] for j in range(2) for k in range(2)])
    yield _dropped(y[:1, :], [U[:1, i] * x[i] for i in range(2)])


def _sensing() -> Zeros:
    import sympy

    U, V, A = (_symbols(name, 2, 2) for name in "uva")
    parts = [U[:, i].T * A * V[:, i] for i in range(2)]
    yield _dropped(_symbols("y", 1, 1), parts)
    flow = (parts[0] + parts[1])[0]
    yield ((U * V.T).T * A).trace() - flow
    layer = sympy.kronecker_product(sympy.eye(2), V.T) * A.reshape(4, 1)
    yield U.reshape(4, 1).dot(layer) - flow


def _deep() -> Zeros:
    """Two hidden layers of two: all masks against propagated second moments; rescaling; nu."""
    import sympy

    q, s, t = sympy.symbols("q s t")
    W1, W2, W3 = _symbols("a", 2, 1), _symbols("b", 2, 2), _symbols("c", 1, 2)
    lam = q / (1 - q)

    def penalty(W1: Any, W2: Any, W3: Any) -> Any:
        S = W1 * W1.T
        for W in (W2, W3):
            S = W * (S + lam * sympy.diag(*S.diagonal())) * W.T
        return S[0] - (W3 * W2 * W1)[0] ** 2

    def output(z: Sequence[Any]) -> Any:
        return (W3 * sympy.diag(*z[2:]) * W2 * sympy.diag(*z[:2]) * W1)[0]

    law = _independent(4, q)
    exact = _mean(law, lambda z: output([v / (1 - q) for v in z]) ** 2)
    yield exact - (W3 * W2 * W1)[0] ** 2 - penalty(W1, W2, W3)
    yield penalty(s * W1, t * W2, W3 / (s * t)) - penalty(W1, W2, W3)
    x = sympy.symbols("x0:3")
    chosen = [c for size in (1, 2, 3) for c in combinations(x, size)]
    yield sympy.prod([1 + v for v in x]) - 1 - sum(sympy.prod(c) for c in chosen)


def _algebra() -> Zeros:
    """Width-adjusted probability; copies of units; the monotone objective; sub-networks."""
    import sympy

    tb, b, d, h, a, r, lam, rho = sympy.symbols("tb b d h a r lam rho", positive=True)
    theta = tb * b / (tb * b + (1 - tb) * d)
    yield (1 - theta) / theta - (1 - tb) / tb * d / b
    yield (rho * h) ** 2 * (a / rho) ** 2 - h**2 * a**2
    yield 2 * (h**2 / 2) * (a**2 / 2) - h**2 * a**2 / 2
    count = r + lam * rho
    gain = (lam * h - count * a) ** 2 / (count * (count + lam))
    before, after = lam * h**2 / count, lam * (h + a) ** 2 / (count + lam)
    yield before + a**2 - after - gain
    f = sympy.symbols("f0:3")
    cut = [(3 * (v + w) / 2 - sum(f)) ** 2 for v, w in combinations(f, 2)]
    yield sum(cut) / 3 - (3 * sum(v**2 for v in f) - sum(f) ** 2) / 4


def _sliding() -> Zeros:
    """Three units, blocks of two, two seeds: mean and Gamma from how many blocks cover."""
    import sympy

    g = sympy.Symbol("g")
    seeds = _independent(2, 1 - g)
    cover = [{0}, {0, 1}, {1}]

    def kept(i: int) -> Callable[..., int]:
        return lambda z: int(not any(z[k] for k in cover[i]))

    mu = [_mean(seeds, kept(i)) for i in range(3)]
    yield from (mu[i] - (1 - g) ** len(cover[i]) for i in range(3))
    for i, j in product(range(3), repeat=2):
        both = _mean(seeds, lambda z, i=i, j=j: kept(i)(z) * kept(j)(z))
        yield both / (mu[i] * mu[j]) - (1 - g) ** -len(cover[i] & cover[j])


def _balance() -> Zeros:
    """d/dt (W_1 W_1' - W_2'W_2) = -4 lam (W_1 W_1' - W_2'W_2) under gradient flow, any C."""
    import sympy

    lam = sympy.Symbol("lam")
    W1, W2, G = (
        _symbols(name, 2, 2) for name in "vwg"
    )  # G the gradient of C at the product
    D1, D2 = -(W2.T * G) - 2 * lam * W1, -(G * W1.T) - 2 * lam * W2
    change = D1 * W1.T + W1 * D1.T - D2.T * W2 - W2.T * D2
    yield from change + 4 * lam * (W1 * W1.T - W2.T * W2)


def _rows() -> Zeros:
    """Differentiate the expected loss of completion in a row of U."""
    import sympy

    q, y = sympy.Symbol("q"), _symbols("y", 1, 1)
    u, v = _symbols("u", 2, 1), _symbols("v", 2, 1)
    parts = [u[i : i + 1, :] * v[i] for i in range(2)]
    loss = _added(_independent(2, q), y, parts) + (y[0] - u.dot(v)) ** 2
    for i in range(2):
        stated = v[i] * u.dot(v) + q / (1 - q) * v[i] ** 2 * u[i] - y[0] * v[i]
        yield sympy.diff(loss, u[i]) / 2 - stated


def _enclosed_constant() -> Zeros:
    """2 x 2, three uniform entries: K lies in a ball above 1.5578, radius below 1e-20."""
    from flint import arb, ctx

    ctx.prec = 128
    total = arb(0)
    for places in product(range(8), repeat=3):
        S = [0, 0, 0, 0]
        for place in places:
            S[place % 4] += 1 if place < 4 else -1
        square, det = sum(v * v for v in S), S[0] * S[3] - S[1] * S[2]
        total += ((square + arb(square * square - 4 * det * det).sqrt()) / 2).sqrt()
    K = 2 * total / 512 / (3 * 2 * arb(2).log()).sqrt()  # 1/sqrt(p q) = 2
    yield 0 if arb("1.5578") < K and K.rad() < arb("1e-20") else K


IDENTITIES: dict[str, tuple[str, Callable[[], Zeros]]] = {
    "units": ("two units, two outputs", lambda: _units(1)),
    "blocks": ("two blocks of two units, two outputs", lambda: _units(2)),
    "any law": ("two units, any distribution of the mask", _any_law),
    "weights": ("DropConnect, a 2 x 2 layer", _weights),
    "sensing": ("factored maps, 2 x 2", _sensing),
    "deep": ("two hidden layers of two units", _deep),
    "algebra": ("scalars", _algebra),
    "sliding": ("three units, blocks of two", _sliding),
    "balance": ("two 2 x 2 layers under gradient flow", _balance),
    "rows": ("one row, two factors", _rows),
    "constant": ("one instance, enclosed in ball arithmetic", _enclosed_constant),
}
"""For each identity its size and a function that yields what must be zero."""


def check_identity(name: str) -> bool:
    """Return whether everything that must be 0 is, for all values of the symbols."""
    import sympy

    return all(sympy.simplify(zero) == 0 for zero in IDENTITIES[name][1]())


def main() -> None:
    """Check all identities; end with an error that names the first that fails."""
    from overt.papers.records import items

    for name, (size, _) in IDENTITIES.items():
        ids = ", ".join(
            found.id for found in items().values() if found.identity == name
        )
        if not check_identity(name):
            raise SystemExit(f"{name} ({size}) does not hold: {ids}")
        print(f"{name}: holds in symbols, {size}: {ids}")


if __name__ == "__main__":
    main()
