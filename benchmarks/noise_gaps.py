"""Gaps of bounds for noises over correlated units: before and after the theorem of sets of units.

    python -m benchmarks.noise_gaps [NAME ...]

"before" is the bound of single units and of all units together; "printed" the gap that the theorem
was reported with, for the spectra flat, linear and geometric (.8).
"""

from __future__ import annotations

import sys
import time

import numpy as np

import overt
from overt.linear.bounds import pairs_below


def ring(d: int, b: int, arcs: int = 1) -> np.ndarray:
    """Return Gamma where `arcs` independent arcs of b of d units on a ring are dropped."""
    kept = [
        np.mean([t >= b and (t + k) % d >= b for t in range(d)]) ** arcs
        for k in range(d)
    ]
    shift = (np.arange(d)[:, None] - np.arange(d)) % d
    return np.array(kept)[shift] / kept[0] ** 2 - 1


def sliding(d: int, b: int, p: float) -> tuple[int, overt.noise.Noise]:
    return d, overt.DropBlock(p, b, "sliding")


def grid(shape: tuple[int, int], b: int, p: float) -> np.ndarray:
    """Return Gamma of sliding blocks on a grid of units, which networks do not have."""
    return overt.DropBlock(p, b, "sliding").characteristic(shape)


def groups(*sizes: int) -> np.ndarray:
    """Return Gamma of units that are exchangeable in groups; strengths are not printed."""
    names = np.repeat(np.arange(len(sizes)), sizes)
    return np.eye(len(names)) * 0.5 + 0.5 * (names[:, None] == names)


def nested(d: int) -> np.ndarray:
    """Return Gamma of noise shared by units alone, in pairs and in fours."""
    place = np.arange(d)
    shared = [place[:, None] // size == place // size for size in (1, 2, 4)]
    return 0.5 * np.sum(shared, axis=0)


def random(d: int) -> np.ndarray:
    """Return a random Gamma of full rank; which ones were used is not printed."""
    A = np.random.default_rng(0).standard_normal((d, d + 1))
    return A @ A.T / d


def decaying(d: int, ratio: float) -> np.ndarray:
    return ratio ** np.abs(np.subtract.outer(np.arange(d), np.arange(d)))


CASES = {  # name: Gamma or (width, noise), printed gaps (flat, linear, geometric)
    "ring 6, arc of 2": (ring(6, 2), (0, 0, 0)),
    "ring 8, arc of 2": (ring(8, 2), (0, 0, 0)),
    "ring 8, arc of 3": (ring(8, 3), (0, 0.0145, 0.042)),
    "ring 12, arc of 3": (ring(12, 3), (0, 0, 0)),
    "ring 16, arc of 3": (ring(16, 3), (0, 2e-6, 0)),
    "ring 32, arc of 2": (ring(32, 2), (0, 0, 0)),
    "ring 8, 2 arcs of 2": (ring(8, 2, 2), (0, 0, 0)),
    "ring 16, 3 arcs of 4": (ring(16, 4, 3), (0, 0, 0.0058)),
    "sliding 9, blocks of 2": (sliding(9, 2, 0.5), (0, 0.035, 0.034)),
    "sliding 9, blocks of 3": (sliding(9, 3, 0.3), (0, 0.094, 0.113)),
    "sliding 16, blocks of 2": (sliding(16, 2, 0.5), (0, 0.024, 0.026)),
    "sliding 16, blocks of 3": (sliding(16, 3, 0.3), (0, 0.107, 0.111)),
    "sliding 25, blocks of 3": (sliding(25, 3, 0.3), (0.0003, 0.093, 0.092)),
    "sliding 32, blocks of 4": (sliding(32, 4, 0.3), (0.0013, 0.132, 0.114)),
    "sliding 3 x 3, blocks of 2": (grid((3, 3), 2, 0.3), (0, 0.35, 0.49)),
    "sliding 4 x 4, blocks of 2": (grid((4, 4), 2, 0.3), (0, 0.171, 0.267)),
    "sliding 5 x 5, blocks of 2": (grid((5, 5), 2, 0.3), (0.0032, 0.456, 0.665)),
    "groups of 4, 4, 4": (groups(4, 4, 4), (0, 0.0004, 0.0005)),
    "groups of 2, 4, 6": (groups(2, 4, 6), (0, 0.0006, 0.002)),
    "nested groups, 8 units": (nested(8), (0, 0.0002, 0.0008)),
    "random, 8 units": (random(8), (0.003, 0.025, 0.034)),
    "autoregressive .6, 12 units": (decaying(12, 0.6), (0.007, 0.013, 0.011)),
}
SLACK = 1e-4
"""Printed gaps have four digits at most."""


def main(names: list[str]) -> None:
    print("| noise | spectrum | before | after | printed | seconds | holds |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in names or CASES:
        given, printed = CASES[name]
        if isinstance(given, np.ndarray):
            given = len(given), overt.CovarianceNoise(np.ones(len(given)), given)
        d, noise = given
        Gamma = noise.characteristic(d)
        spectra = {
            "flat": np.ones(d),
            "linear": np.arange(d, 0, -1) / d,
            "geometric": 0.8 ** np.arange(d),
        }
        for (spectrum, s), bar in zip(spectra.items(), printed, strict=True):
            network = overt.LinearNetwork(np.diag(s), d, noise)
            start = time.process_time()
            bound = network.bound()
            took = time.process_time() - start
            least = network.solve().objective
            simple = max(costs.bound(s) for costs in pairs_below(Gamma))
            before = least / simple - 1 if simple > 0 else np.inf
            after = least / bound - 1 if bound > 0 else np.inf
            holds = "yes" if after <= 1.1 * bar + SLACK and took < 20 else "no"
            row = f"{before:.3g} | {after:.2g} | {bar:g} | {took:.1f} | {holds}"
            print(f"| {name} | {spectrum} | {row} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
