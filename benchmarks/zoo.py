"""Moments of networks that people bring, against thousands of sampled passes.

Needs timm and transformers (`pip install timm transformers`); without them their part is left out,
and said. `python -m benchmarks.zoo FILE [I/K]` measures networks that FILE does not have yet (of K
parts the I-th) and adds each to it; ZOO=FILE `python -m benchmarks zoo` makes tables of it.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks._zoo_models import HAND, HUGGING, ROWS, SHARED, TIMM, built
from benchmarks.harness import Table
from overt.nn import predictive_moments

SAMPLES, MOST, LONG = (
    2000,
    64_000,
    5.0,
)  # up to so many samples where they take so many seconds
COPIES = 16


def available() -> tuple[list[str], list[str]]:
    """Return the names of the networks that can be built here, and reasons for the others."""
    names, notes = list(HAND), []
    for package, group in (("timm", TIMM), ("transformers", HUGGING)):
        if find_spec(package) is None:
            notes.append(
                f"{len(group)} networks of {package}, which is not installed, are left out."
            )
        else:
            names += group
    return names, notes


def call(model: Any, inputs: Any) -> Any:
    return model(**inputs) if isinstance(inputs, dict) else model(inputs)


def repeated(inputs: Any, n: int) -> Any:
    """Return inputs with each row n times."""
    if isinstance(inputs, dict):
        return {key: value.repeat_interleave(n, 0) for key, value in inputs.items()}
    return inputs.repeat_interleave(n, 0)


def noisy(model: Any) -> Any:
    """Return the model with all that is random on; normalization keeps its statistics."""
    model.train()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase):
            module.eval()
    return model


def samples(
    name: str, n: int = SAMPLES, copies: int = COPIES, seed: int = 1
) -> torch.Tensor:
    """Return n sampled outputs (n, rows, outputs) of a network, in double precision."""
    model, inputs, output = built(name)
    copies = 1 if name in SHARED else copies
    found, start = list[torch.Tensor](), time.process_time()
    torch.manual_seed(seed)
    with torch.no_grad():
        given = repeated(inputs, copies)
        noisy(model)
        while (done := len(found) * copies) < n or (
            done < MOST and time.process_time() - start < LONG
        ):
            y = call(model, given)
            y = y if output is None else output(y)
            found.append(y.double().reshape(ROWS, copies, -1).transpose(0, 1))
    return torch.cat(found)


def cpu(call: Any, repeat: int = 3) -> float:
    """Return the least CPU time of a call after a first one."""
    call()
    best = float("inf")
    for _ in range(repeat):
        start = time.process_time()
        call()
        best = min(best, time.process_time() - start)
    return best


class Prices:
    """What samples in one batch buy, and what overt's calls cost, in CPU time of one thread.

    Samples cost what repeating the rows, the pass and the two moments do.
    """

    def __init__(self, name: str) -> None:
        self.model, self.inputs, self.output = built(name)
        start = time.process_time()
        self.moments()
        self.first = time.process_time() - start
        self._shared = name in SHARED
        noisy(self.model)
        self.one = cpu(lambda: call(self.model, self.inputs), 9)
        if (
            self._shared
        ):  # passes that skip layers take less: their mean counts, not the least
            self.one = (
                cpu(lambda: [call(self.model, self.inputs) for _ in range(64)]) / 64
            )
        sizes = (2, 4, 16, 64)
        self._points = [(n, cpu(lambda n=n: self._sampled(n), 5)) for n in sizes]

    def _sampled(self, n: int) -> Any:
        y = call(self.model, repeated(self.inputs, n))
        y = (y if self.output is None else self.output(y)).unflatten(0, (-1, n))
        return y.mean(1), y.std(1)

    def bought(self, seconds: float) -> float:
        """How many samples in one batch cost as much; in single passes where rows share draws."""
        if self._shared:
            return max(1.0, seconds / self.one)
        (few, low), (many, high) = self._points[:2]
        for more in self._points[2:]:
            if seconds > high:
                few, low, many, high = many, high, *more
        return max(1.0, few + (seconds - low) * (many - few) / max(high - low, 1e-9))

    def moments(self, **options: Any) -> Any:
        return predictive_moments(
            self.model, self.inputs, output=self.output, **options
        )


class Reference:
    """Thousands of samples, what is off them, and the error of as many samples as are bought."""

    def __init__(self, name: str) -> None:
        drawn = samples(name)
        self.n, self.mean, self.sd = len(drawn), drawn.mean(0), drawn.std(0)
        self.kurtosis = (((drawn - self.mean) / self.sd) ** 4).mean(0)

    def of_samples(self, n: float) -> float:
        """Root mean square of both errors, in standard deviations, of n samples."""
        return float(((1 + (self.kurtosis - 1) / 4) / n).mean().sqrt())

    def of(self, found: Any) -> float:
        """The same for moments, less what the reference's own error adds."""
        m, s = (t.double().reshape(self.sd.shape) for t in (found.mean, found.std))
        off = (s / self.sd - 1) ** 2 + ((m - self.mean) / self.sd) ** 2
        both = off.mean() - self.of_samples(self.n) ** 2
        return float(both.clamp(min=0).sqrt())


def measured(name: str) -> dict[str, Any]:
    """Compare mean, standard deviation and error estimates with samples, and errors at a cost."""
    with torch.no_grad():
        known, prices = Reference(name), Prices(name)
        found = prices.moments()
        default = cpu(prices.moments, 2)
    n, mean, sd, kurtosis = known.n, known.mean, known.sd, known.kurtosis
    m, s, em, es = (
        t.double().reshape(sd.shape)
        for t in (found.mean, found.std, found.mean_error, found.std_error)
    )
    # What is compared with has errors too: two standard errors are added in squares.
    near_m = (m - mean).abs() <= (em**2 + 4 * sd**2 / n).sqrt()
    near_s = (s - sd).abs() <= (es**2 + sd**2 * (kurtosis - 1) / n).sqrt()
    ratio, off = float((s / sd).median()), float(((m - mean).abs() / sd).median())
    return {
        "ratio": ratio,
        "off": off,
        "right": abs(ratio - 1) <= 0.05 and off <= 0.1,
        "covered": float(torch.stack([near_m, near_s]).double().mean()),
        "method": found.method,
        "named": bool(found.drawn),
        "first": prices.first / prices.one,
        "passes": default / prices.one,
        "against": known.of(found) / known.of_samples(prices.bought(default)),
    }


def tried(name: str) -> Any:
    """Return what is measured, or what a user would see."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return measured(name)
        except Exception as error:
            return f"{type(error).__name__}: {error}"[:80]
        finally:
            torch.set_num_threads(threads)


def run() -> list[Table]:
    names, notes = available()
    found = dict.fromkeys(names) | kept(Path(os.environ.get("ZOO", "")))
    if not any(found.values()):
        found = {name: tried(name) for name in names}
    missing = [name for name in names if found[name] is None]
    if missing:
        notes.append(f"Not run: {', '.join(missing)}.")
    return tables({name: one for name, one in found.items() if one is not None}, notes)


def kept(file: Path) -> dict[str, Any]:
    """Return what a file of results holds."""
    lines = file.read_text().splitlines() if file.is_file() else []
    return dict(map(json.loads, lines))


def main(path: str, part: str = "1/1") -> None:
    file, (i, k) = Path(path), map(int, part.split("/"))
    for name in available()[0][i - 1 :: k]:
        if name not in kept(file):
            found = tried(name)
            with file.open("a") as out:
                out.write(json.dumps([name, found]) + "\n")
            print(name, found, flush=True)


def tables(found: dict[str, Any], notes: list[str]) -> list[Table]:
    accuracy = Table(
        f"A zoo: predictive_moments against {SAMPLES:,} samples or more, {ROWS} rows, 5 outputs",
        ("network", "sd / sampled", "mean off, sd", "errors cover", "how", "status"),
    )
    price = Table(
        "The zoo: cost in passes, and error over that of samples in one batch that cost as much",
        ("network", "first call", "later calls", "error / samples'"),
    )
    for name, one in found.items():
        if isinstance(one, str):
            accuracy.rows.append((name, *[""] * 4, one))
            continue
        status = "right" if one["right"] else "named" if one["named"] else "estimated"
        cells = tuple(one[key] for key in ("ratio", "off", "covered", "method"))
        accuracy.rows.append((name, *cells, status))
        price.rows.append((name, one["first"], one["passes"], one["against"]))
    ran = {name: one for name, one in found.items() if not isinstance(one, str)}
    accuracy.notes = [*summary(ran), *notes]
    price.notes = [
        "A pass is one of the model on the same rows, noise on; the first two columns count them. "
        "The error is the root mean square of the errors of means and standard deviations, in "
        "standard deviations. Samples cost what repeating rows, a pass and both moments do, and "
        "are charged their expected error. One thread, CPU time.\n",
        *cost_summary(ran),
    ]
    return [accuracy, price]


def cost_summary(found: dict[str, Any]) -> list[str]:
    if not found:
        return []
    middle = len(found) // 2
    first, later, against = (
        sorted(one[key] for one in found.values())[middle]
        for key in ("first", "passes", "against")
    )
    return [
        f"Medians: first call {first:.1f} passes, later calls {later:.1f}, error {against:.2f} of "
        "samples'.\n"
    ]


def summary(found: dict[str, Any]) -> list[str]:
    groups = {
        "all": found,
        "timm and transformers": {n: found[n] for n in found if n not in HAND},
    }
    notes = []
    for label, group in groups.items():
        if group:
            right = sum(one["right"] for one in group.values())
            covered = sum(one["covered"] for one in group.values()) / len(group)
            notes.append(
                f"{label}: {right} of {len(group)} right (sd within 5 per cent, mean within .1 sd "
                f"in the median over outputs); error estimates cover {covered:.2f} of outputs.\n"
            )
    return notes


if __name__ == "__main__":
    main(*sys.argv[1:])
