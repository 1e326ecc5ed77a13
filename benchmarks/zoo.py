"""Moments of networks that people bring, against thousands of sampled passes.

Needs timm and transformers (`pip install timm transformers`); without them their part is left out,
and said.
"""

from __future__ import annotations

import time
import warnings
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from benchmarks._zoo_models import HAND, HUGGING, ROWS, SHARED, TIMM, built
from benchmarks.harness import Table
from overt.nn import predictive_moments

SAMPLES = 2000
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


def samples(name: str, n: int = SAMPLES, copies: int = COPIES, seed: int = 1) -> torch.Tensor:
    """Return n sampled outputs (n, rows, outputs) of a network, in double precision."""
    model, inputs, output = built(name)
    copies = 1 if name in SHARED else copies
    found = []
    torch.manual_seed(seed)
    with torch.no_grad():
        given = repeated(inputs, copies)
        noisy(model)
        for _ in range(-(-n // copies)):
            y = call(model, given)
            y = y if output is None else output(y)
            found.append(y.double().reshape(ROWS, copies, -1).transpose(0, 1))
    return torch.cat(found)[:n]


def cpu(call: Any, repeat: int = 3) -> float:
    """Return the least CPU time of a call after a first one."""
    call()
    best = float("inf")
    for _ in range(repeat):
        start = time.process_time()
        call()
        best = min(best, time.process_time() - start)
    return best


def costs(name: str) -> tuple[float, float, float]:
    """Return the time of the moments, of one sampled pass, and of a sample among many in a pass."""
    model, inputs, output = built(name)
    with torch.no_grad():
        ours = cpu(lambda: predictive_moments(model, inputs, output=output))
        noisy(model)
        one = cpu(lambda: call(model, inputs), 9)
        copies = 1 if name in SHARED else COPIES
        many = repeated(inputs, copies)
        return ours, one, cpu(lambda: call(model, many)) / copies


def measured(name: str) -> dict[str, Any]:
    """Compare mean, standard deviation and stated errors with samples."""
    drawn = samples(name)
    n, mean, sd = len(drawn), drawn.mean(0), drawn.std(0)
    kurtosis = (((drawn - mean) / sd) ** 4).mean(0)
    model, inputs, output = built(name)
    with torch.no_grad():
        found = predictive_moments(model, inputs, output=output)
    m, s, em, es = (
        t.double().reshape(sd.shape)
        for t in (found.mean, found.std, found.mean_error, found.std_error)
    )
    # What is compared with has errors too: two standard errors are added in squares.
    near_m = (m - mean).abs() <= (em**2 + 4 * sd**2 / n).sqrt()
    near_s = (s - sd).abs() <= (es**2 + sd**2 * (kurtosis - 1) / n).sqrt()
    ratio, off = float((s / sd).median()), float(((m - mean).abs() / sd).median())
    doubt = (kurtosis - 1) / (4 * n)
    error = ((s / sd - 1).square() - doubt).mean().clamp(min=0).sqrt()
    ours, one, each = costs(name)
    count = max(2.0, ours / each)
    return {
        "ratio": ratio, "off": off, "right": abs(ratio - 1) <= 0.05 and off <= 0.1,
        "covered": float(torch.stack([near_m, near_s]).double().mean()),
        "method": found.method, "named": bool(found.drawn or found.linearized),
        "passes": ours / one, "samples": count, "error": float(error),
        "peer": float(((kurtosis - 1) / (4 * count)).mean().sqrt()),
    }  # fmt: skip


def run() -> list[Table]:
    names, notes = available()
    accuracy = Table(
        f"A zoo: predictive_moments against {SAMPLES:,} samples or more, {ROWS} rows, 5 outputs",
        ("network", "sd / sampled", "mean off, sd", "errors cover", "how", "status"),
    )
    price = Table(
        "The zoo: what moments cost, and the error of as dear samples in one batch",
        ("network", "cost, passes", "samples for it", "their sd error", "ours"),
    )
    found = {}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            try:
                one = found[name] = measured(name)
            except Exception as error:  # the table shows what a user would see
                accuracy.rows.append((name, *[""] * 4, f"{type(error).__name__}: {error}"[:80]))
                continue
            status = "right" if one["right"] else "named" if one["named"] else "stated"
            cells = (one[key] for key in ("ratio", "off", "covered", "method"))
            accuracy.rows.append((name, *cells, status))
            price.rows.append((name, *(one[k] for k in ("passes", "samples", "peer", "error"))))
    torch.set_num_threads(threads)
    accuracy.notes = [*summary(found), *notes]
    ahead = [sum(one["error"] <= part * one["peer"] for one in found.values()) for part in (1, 0.5)]
    price.notes = [
        f"Of {len(found)} networks (one thread, CPU time) the error is at most that of as dear "
        f"samples on {ahead[0]}, at most half of it on {ahead[1]}; the median cost is "
        f"{sorted(one['passes'] for one in found.values())[len(found) // 2]:.0f} passes."
    ] if found else []  # fmt: skip
    return [accuracy, price]


def summary(found: dict[str, Any]) -> list[str]:
    groups = {"all": found, "timm and transformers": {n: found[n] for n in found if n not in HAND}}
    notes = []
    for label, group in groups.items():
        if group:
            right = sum(one["right"] for one in group.values())
            covered = sum(one["covered"] for one in group.values()) / len(group)
            notes.append(
                f"{label}: {right} of {len(group)} right (sd within 5 per cent, mean within .1 sd "
                f"in the median over outputs); stated errors cover {covered:.2f} of outputs.\n"
            )
    return notes
