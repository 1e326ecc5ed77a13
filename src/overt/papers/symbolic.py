"""The polynomial identities in symbols, each at one small size: `make proofs`.

An identity is written out over all masks and must reduce to 0 for all values of its symbols. That
is no proof for other sizes. SymPy is needed here only; the records name their identity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, product
from typing import Any

Zeros = Iterator[Any]


def _symbols(name: str, *shape: int) -> Any:
    import sympy

    return sympy.Matrix(*shape, lambda i, j: sympy.Symbol(f"{name}{i}{j}"))


def _expected(value: Callable[[Sequence[Any]], Any], count: int, q: Any) -> Any:
    """E value(z / (1 - q)) over all masks of `count` units dropped with probability q."""
    total = 0
    for z in product((0, 1), repeat=count):
        chance = q ** (count - sum(z)) * (1 - q) ** sum(z)
        total += chance * value([v / (1 - q) for v in z])
    return total


def _square(vector: Any) -> Any:
    return sum(v**2 for v in vector)


def _units(blocks: int, b: int) -> Zeros:
    """E|y - U diag(z) a|^2 - |y - U a|^2 - lam sum over blocks |U_i a_i|^2, and the variance."""
    import sympy

    d, q = blocks * b, sympy.Symbol("q")
    U, a, y = _symbols("u", 2, d), _symbols("a", d, 1), _symbols("y", 2, 1)

    def noisy(z: Sequence[Any]) -> Any:
        return U * sympy.Matrix(d, 1, lambda i, _: z[i // b] * a[i])

    parts = [U[:, i : i + b] * a[i : i + b, :] for i in range(0, d, b)]
    penalty = q / (1 - q) * sum(_square(part) for part in parts)
    added = _expected(lambda z: _square(y - noisy(z)), blocks, q) - _square(y - U * a)
    yield added - penalty
    spread = _expected(lambda z: (noisy(z)[0] - (U * a)[0]) ** 2, blocks, q)
    yield spread - q / (1 - q) * sum(part[0] ** 2 for part in parts)


def _any_law() -> Zeros:
    """Do the same for any law of the mask, through its characteristic matrix."""
    import sympy

    U, a = _symbols("u", 1, 2), _symbols("a", 2, 1)
    p = [sympy.Symbol(f"p{i}") for i in range(3)]
    laws = dict(zip(product((0, 1), repeat=2), [*p, 1 - sum(p)], strict=True))
    mu = [sum(c * z[i] for z, c in laws.items()) for i in range(2)]
    flow = [U[i] * a[i] for i in range(2)]
    exact = sum(
        c * sum((z[i] / mu[i] - 1) * flow[i] for i in range(2)) ** 2
        for z, c in laws.items()
    )
    K = [
        [
            sum(c * z[i] * z[j] for z, c in laws.items()) - mu[i] * mu[j]
            for j in range(2)
        ]
        for i in range(2)
    ]
    yield exact - sum(
        K[i][j] / (mu[i] * mu[j]) * flow[i] * flow[j]
        for i in range(2)
        for j in range(2)
    )


def _weights() -> Zeros:
    """DropConnect on V, and on the last layer."""
    import sympy

    q = sympy.Symbol("q")
    U, V, x = _symbols("u", 1, 2), _symbols("v", 2, 2), _symbols("x", 2, 1)

    def masked(z: Sequence[Any]) -> Any:
        return (U * sympy.Matrix(2, 2, lambda k, j: z[2 * k + j] * V[j, k]) * x)[0]

    added = _expected(lambda z: (masked(z) - (U * V.T * x)[0]) ** 2, 4, q)
    yield added - q / (1 - q) * sum(
        U[k] ** 2 * V[j, k] ** 2 * x[j] ** 2 for k in range(2) for j in range(2)
    )
    last = _expected(
        lambda z: sum((z[i] - 1) * U[i] * x[i] for i in range(2)) ** 2, 2, q
    )
    yield last - q / (1 - q) * sum(U[i] ** 2 * x[i] ** 2 for i in range(2))


def _sensing() -> Zeros:
    import sympy

    q, y = sympy.symbols("q y")
    U, V, A = (_symbols(name, 2, 2) for name in "uva")
    flow = [(U[:, i].T * A * V[:, i])[0] for i in range(2)]
    added = _expected(lambda z: (y - z[0] * flow[0] - z[1] * flow[1]) ** 2, 2, q)
    yield added - (y - sum(flow)) ** 2 - q / (1 - q) * sum(f**2 for f in flow)
    whole = (U * V.T).T * A
    yield whole.trace() - sum(flow)
    rows = sympy.Matrix(4, 1, lambda i, _: A[i // 2, i % 2])
    layer = sympy.kronecker_product(sympy.eye(2), V.T) * rows
    yield sum(U[i // 2, i % 2] * layer[i] for i in range(4)) - sum(flow)


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

    exact = _expected(lambda z: output(z) ** 2, 4, q) - (W3 * W2 * W1)[0] ** 2
    yield exact - penalty(W1, W2, W3)
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
    yield 2 * (h / sympy.sqrt(2)) ** 2 * (a / sympy.sqrt(2)) ** 2 - h**2 * a**2 / 2

    def g(total: Any, count: Any) -> Any:
        return lam * total**2 / (r + lam * count)

    gain = (lam * h - (r + lam * rho) * a) ** 2 / (
        (r + lam * rho) * (r + lam * rho + lam)
    )
    yield g(h, rho) + a**2 - g(h + a, rho + 1) - gain
    f = sympy.symbols("f0:3")
    cut = [
        (sympy.Rational(3, 2) * (f[i] + f[j]) - sum(f)) ** 2
        for i, j in combinations(range(3), 2)
    ]
    yield sum(cut) / 3 - sympy.Rational(1, 4) * (3 * sum(v**2 for v in f) - sum(f) ** 2)


def _sliding() -> Zeros:
    """Three units, blocks of two, two seeds: mean and Gamma from how many blocks cover."""
    import sympy

    g = sympy.Symbol("g")
    cover: list[list[int]] = [[0], [0, 1], [1]]
    laws: dict[tuple[int, ...], Any] = {}
    for seeds in product((0, 1), repeat=2):
        z = tuple(int(not any(seeds[k] for k in blocks)) for blocks in cover)
        laws[z] = laws.get(z, 0) + g ** sum(seeds) * (1 - g) ** (2 - sum(seeds))
    mu = [sum(c * z[i] for z, c in laws.items()) for i in range(3)]
    for i, j in product(range(3), repeat=2):
        both = sum(c * z[i] * z[j] for z, c in laws.items())
        shared = len(set(cover[i]) & set(cover[j]))
        yield both / (mu[i] * mu[j]) - (1 - g) ** -shared
    yield from (mu[i] - (1 - g) ** len(cover[i]) for i in range(3))


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

    q, y = sympy.symbols("q y")
    u, v = sympy.symbols("u0:2"), sympy.symbols("v0:2")
    loss = _expected(lambda z: (y - z[0] * u[0] * v[0] - z[1] * u[1] * v[1]) ** 2, 2, q)
    for i in range(2):
        stated = (
            v[i] * sum(a * b for a, b in zip(u, v, strict=True))
            + q / (1 - q) * v[i] ** 2 * u[i]
        )
        yield sympy.diff(loss, u[i]) / 2 - stated + y * v[i]


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
    "units": ("two units, two outputs", lambda: _units(2, 1)),
    "blocks": ("two blocks of two units, two outputs", lambda: _units(2, 2)),
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
