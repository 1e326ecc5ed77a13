"""What a sweep takes on so many machines: measured work and bytes, and a network between them.

Work is what `scale` measured for each rating; bytes are what travels for each row and column, which
a run of two workers in a network namespace of their own confirms (5,500 measured, 5,336 counted).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.harness import Table

FACTORS, WIDTH, ITEM = 32, 34, 4
PER_RATING = {"full": 0.31e-6, "diagonal": 0.29e-6}
"""CPU seconds of a sweep for each rating: full at 1e7 ratings, diagonal at 1e6."""
READING = (2.2e-6, 4.5e-6)
"""CPU seconds for each rating: by one process (at 1e8), and by workers, who shuffle it (at 1e6)."""
MOVED = 32
"""Bytes of a rating that go to those who keep its row and its column, once."""
FULL_BYTES = 2 << 30
CORES, LINK = 16, 1.25e9
"""Of each machine: cores, and bytes a second (10 Gbit/s)."""
MACHINES, SIZES = (1, 8, 64), (1e9, 1e10)
MEASURED = ((967_410, 0.339), (9_877_333, 3.04), (99_560_056, 37.7))
"""Ratings and CPU seconds of a sweep in one thread."""
PICTURE = Path(__file__).parents[1] / "docs" / "_static" / "capacity.png"


def rows_of(ratings: float) -> float:
    """Return rows and columns together, at 150 ratings a row, as `scale` generates them."""
    return ratings / 150 + 6 * ratings**0.5


def covariances(ratings: float) -> str:
    full = rows_of(ratings) * WIDTH * (WIDTH + 1) // 2 * ITEM
    return "full" if full <= FULL_BYTES else "diagonal"


def row_bytes(kind: str) -> tuple[int, int]:
    """Return what comes back of a row (factors, covariances, two sums), and what is sent for it."""
    spread = WIDTH * (WIDTH + 1) // 2 if kind == "full" else WIDTH
    return ITEM * (WIDTH + spread) + 16, 8 * (WIDTH - 1) + 8


def seconds(ratings: float, machines: int) -> tuple[float, float]:
    """Return computing and network time of a sweep.

    Every worker gets the other side's rows, and the client gets and sends all of them, one after
    the other; nothing overlaps, which is the worst case.
    """
    kind = covariances(ratings)
    back, sent = row_bytes(kind)
    link = rows_of(ratings) * (2 * back + sent) / LINK if machines > 1 else 0.0
    return ratings * PER_RATING[kind] / (CORES * machines), link


def predicted() -> Table:
    table = Table(
        f"A sweep predicted, not measured: machines of {CORES} cores and 10 Gbit/s, "
        f"{FACTORS} factors",
        ("ratings", "machines", "computing, s", "network, s", "a sweep, s",
         "network, GB a sweep", "reading once, s"),
    )  # fmt: skip
    for ratings in SIZES:
        back, sent = row_bytes(covariances(ratings))
        for machines in MACHINES:
            work, link = seconds(ratings, machines)
            moved = rows_of(ratings) * (back * machines + sent) / 1e9 if machines > 1 else 0.0
            once = ratings * READING[machines > 1] / (CORES if machines > 1 else 1) / machines
            once += ratings * MOVED / LINK / machines if machines > 1 else 0.0
            cells = (work, link, work + link, moved, once)
            table.rows.append((f"{ratings:.0e}", machines, *cells))
    table.notes.append(
        "Covariances are diagonal at both sizes. More machines shorten the computing alone: what "
        "passes through the client's link stays, and bounds a sweep from below. One machine reads "
        "in one process, a cluster with every core."
    )
    draw()
    return table


def draw() -> None:
    """Draw a sweep over the number of ratings, for each number of machines."""
    from overt._figures import BLUE, COLORS, subplots

    figure, axes = subplots(1, 1, (6.0, 3.8))
    axis, sizes = axes[0][0], np.geomspace(1e6, 1e10, 200)
    for machines, color in zip(MACHINES, COLORS, strict=False):
        both = np.array([seconds(n, machines) for n in sizes])
        name = f"{machines} machine{'s' * (machines > 1)}"
        axis.plot(sizes, both.sum(1), color=color, label=f"{name}, predicted")
    link = [seconds(n, 2)[1] for n in sizes]
    axis.plot(sizes, link, color="0.5", ls=":", label="network alone")
    alone = [n * PER_RATING[covariances(n)] for n in sizes]
    axis.plot(sizes, alone, color="0.2", ls="--", lw=1, label="one core, predicted")
    axis.plot(*zip(*MEASURED, strict=True), "o", color=BLUE, mec="0.2", label="one core, measured")
    axis.set(xscale="log", yscale="log", xlabel="ratings", ylabel="seconds a sweep")
    axis.legend(fontsize=7)
    figure.savefig(PICTURE, dpi=110)
