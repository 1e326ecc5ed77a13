"""Functions called with hostile values, and how the calls are judged."""

from __future__ import annotations

import resource
import signal
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from fuzz.values import hostile
from scipy import sparse

import overt

SECONDS = 20
"""Of the processor, after which a call is said to hang."""

MEMORY = 3 * 2**30
"""Bytes of address space that a call on a few numbers may add."""


FUNCTIONS = {
    "output",
    "learning_rate",
    "loss",
    "schedule",
    "on_epoch",
    "optimizer",
    "scheduler",
}
"""Arguments that may be functions of the user's, who sees what they raise."""


@dataclass(frozen=True)
class Row:
    """A function, with a good value and the kind of each argument."""

    call: Any
    args: dict[str, tuple[str, Any]]
    infinite: bool = False
    """Whether infinity, or nothing (None or NaN), is among its honest answers."""
    unique: bool = True
    """Whether the same numbers in another form must give the same numbers."""
    warns: str = "$."
    """What its own warnings say, as a regular expression."""
    network: Any = None
    """Whose own errors are its users' business; `model` among the arguments otherwise."""


class Hang(BaseException):
    """Not caught by what catches exceptions."""


@contextmanager
def limits():
    """Bound the time and the memory of a call."""

    def stop(*_):
        raise Hang

    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, hard))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def numbers(found: Any) -> list[np.ndarray]:
    """Return all numbers in a result."""
    if isinstance(found, dict):
        return [a for value in found.values() for a in numbers(value)]
    if isinstance(found, (list, tuple)):
        return [a for value in found for a in numbers(value)]
    if hasattr(found, "to_dict"):
        return numbers({k: v for k, v in vars(found).items() if not k.startswith("_")})
    if hasattr(found, "detach"):
        if found.is_meta:
            return []
        found = (
            found.detach().double().numpy() if not found.is_complex() else found.numpy()
        )
    if sparse.issparse(found):
        found = found.toarray()
    if isinstance(found, (int, float, complex, np.ndarray, np.number)):
        found = np.asarray(found)
        return [np.atleast_1d(found)] if found.dtype.kind in "fciub" else []
    return []


def frozen(value: Any) -> Any:
    """Return what an argument holds, to see whether it was changed."""
    if isinstance(value, (list, tuple)):
        return [frozen(v) for v in value if v is not value]
    if isinstance(value, np.ndarray):
        return None if value.dtype == object else np.asarray(value).tobytes()
    if (
        isinstance(value, torch.Tensor)
        and value.layout == torch.strided
        and not value.is_meta
    ):
        return None if value.is_nested else repr(value.detach().flatten().tolist())
    if sparse.issparse(value):
        return value.toarray().tobytes()
    return None


def assault(row: Row, rng) -> str:
    """Call once with one or two hostile arguments; return how the rule is broken, or nothing."""
    names = list(row.args)
    if len(names) > 1 and rng.random() < 0.04:
        return _swapped(row, rng)
    chosen = rng.permutation(len(names))[: 1 + (rng.random() < 0.15)]
    given = {name: good for name, (_, good) in row.args.items()}
    plain, told = dict(given), []
    for at in chosen:
        name = names[at]
        kind, good = row.args[name]
        how, given[name], same = hostile(kind, good, rng)
        told.append(f"{name}: {how}")
        plain[name] = same
    before = {name: frozen(value) for name, value in given.items()}
    told_so = ", ".join(told)
    kind, found = outcome(row, given)
    if kind == "refused":
        return ""
    if kind != "value":
        return "" if _own(row, given) else f"{told_so}: {kind} {found}"
    if {name: frozen(value) for name, value in given.items()} != before:
        return f"{told_so}: changed its argument"
    here = numbers(found)
    if _own(row, given):
        return ""
    if (
        any(np.isnan(a).any() if a.dtype.kind in "fc" else False for a in here)
        and not row.infinite
    ):
        return f"{told_so}: NaN"
    if (
        any(np.isinf(a).any() if a.dtype.kind in "fc" else False for a in here)
        and not row.infinite
    ):
        return f"{told_so}: infinite"
    if row.unique and all(plain[names[at]] is not None for at in chosen):
        kind, wanted = outcome(row, plain)
        if kind == "value" and not alike(here, numbers(wanted), told_so):
            return f"{told_so}: {_brief(here)} instead of {_brief(numbers(wanted))}"
    return ""


def _swapped(row, rng) -> str:
    """Call with two arguments in each other's place."""
    given = {name: good for name, (_, good) in row.args.items()}
    one, other = (list(given)[at] for at in rng.permutation(len(given))[:2])
    given[one], given[other] = given[other], given[one]
    kind, found = outcome(row, given)
    right = kind in ("refused", "value") or _own(row, given)
    return "" if right else f"{one} and {other} swapped: {kind} {found}"


def _own(row, given) -> bool:
    """Whether the user's network, or function, fails or gives no numbers on what it is given."""
    if any(callable(given.get(name)) for name in FUNCTIONS & row.args.keys()):
        return True
    model, x = row.network or given.get("model"), given.get("x", given.get("example"))
    if not isinstance(model, torch.nn.Module):
        return False
    training = model.training
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out = model.eval()(x)  # no masks, which may hide how large it is
            return (
                not bool((out.abs() < 1e15).all()) or not out.numel()
            )  # squares overflow
    except Exception:
        return True
    finally:
        model.train(training)


def alike(here, there, told) -> bool:
    rough = any(word in told for word in ("half", "single", "bfloat16", "float32"))
    rtol = 2e-2 if rough else 1e-6
    if len(here) != len(there):
        return False
    for a, b in zip(here, there, strict=True):
        if a.size != b.size:
            return False
        scale = (
            np.abs(b[np.isfinite(b)]).max(initial=1e-300) if b.dtype.kind in "fc" else 1
        )
        if not np.allclose(
            a.ravel(), b.ravel(), rtol=rtol, atol=rtol * scale, equal_nan=True
        ):
            return False
    return True


def _brief(found):
    return " ".join(f"{a.ravel()[:4]}" for a in found)[:120]


def outcome(row: Row, given: dict[str, Any]) -> tuple[str, Any]:
    """Return ("value", found), ("refused", message) or (the fault, what it says)."""
    try:
        with warnings.catch_warnings(), limits():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", row.warns, UserWarning)
            found = row.call(**given)
    except overt.InputError as error:
        return (
            ("refused", str(error))
            if len(str(error)) > 20
            else ("a short message", error)
        )
    except Hang:
        return ("hang", "")
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return (type(error).__name__, f"{error!s:.150}")
    return ("value", found)
