"""`compress`: a physically smaller network, and a report of what it cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from overt import _check
from overt._check import InputError, InputTypeError
from overt._types import Floats, Seed
from overt.nn.compression.batches import Batches, Loss, Score, checked_loss, example_inputs, score
from overt.nn.compression.by_spectrum import by_spectrum
from overt.nn.compression.by_units import by_units
from overt.nn.compression.measure import latencies, multiply_adds, parameters
from overt.nn.compression.outcome import Keep, Outcome
from overt.nn.compression.recipe import recipe
from overt.nn.compression.recover import recover as recover_training
from overt.nn.compression.report import Compression, Size
from overt.nn.compression.shrink import duplicate
from overt.nn.compression.tracing import Inputs
from overt.results import Status

WAYS = ("mask", "flow", "spectrum")


def compress(
    model: nn.Module,
    keep: Keep,
    example: Any,
    loader: Iterable[Any] | None = None,
    by: str = "mask",
    *,
    draws: int = 32,
    loss: Loss = "auto",
    test: Iterable[Any] | None = None,
    recover: int = 0,
    train: Iterable[Any] | None = None,
    learning_rate: float = 1e-3,
    seed: Seed = 0,
) -> tuple[nn.Module, Compression]:
    """Return a smaller copy of a network, and what became of it; the model itself is not touched.

    by="mask"
        The best of `draws` sub-networks that dropout draws (thesis, Theorem 15 and section 5.5):
        units on which a dropout layer acts are removed at random, survivors are scaled by
        all / kept, as in training, and the sub-network with the least loss on `loader` stays.
    by="flow"
        Units with the greatest flow psi_i = |u_i| sqrt(E a_i^2) stay, u_i the weights that read
        unit i and a_i its activation; what the others contribute is predicted from them by least
        squares and added to the weights and biases that read them.
    by="spectrum"
        Linear and convolutional layers become products of two of low rank wherever that saves
        multiply-adds; the report states the error of each.

    Removing units follows the forward pass with torch.fx: channels that are added together are
    removed together, flattened and concatenated ones are followed, batch, layer and group
    normalization shrink along. What cannot be removed stays whole and is named in the report with
    the reason. The smaller network is checked against the large one with the same units masked.

    Parameters
    ----------
    model
        Any module; its mode does not matter, and the result has the same.
    keep
        In (0, 1]: the share of units that stays in each layer, or of the multiply-adds of all
        rewritten layers for "spectrum". Or {layer: share}, for these layers only.
    example
        A batch of inputs (a tensor, or a tuple of them) on which the model runs.
    loader
        Batches (inputs, targets), not an iterator. Required for "mask", where it must hold examples
        that training has not seen; the other ways measure activations on it (the inputs alone are
        enough), and do without: "flow" with the example, "spectrum" with weights alone.
    by
        "mask", "flow" or "spectrum".
    draws
        Sub-networks tried by "mask".
    loss
        "auto" (cross-entropy or logistic for classes, else mean square), "cross_entropy",
        "logistic", "mse", "squared", or a function (output, target) -> mean loss.
    test
        Batches for loss and accuracy in the report; `loader` by default, on which "mask" has
        chosen.
    recover, train, learning_rate
        Steps of Adam after the cut, the batches for them (`loader` by default) and the rate; the
        best state on `loader` is kept.
    seed
        Int or numpy Generator.

    Returns
    -------
    The smaller module, a copy of the same class made of plain torch layers, and the report.
    Ctrl-C during the search or recovery returns the best so far.

    Examples
    --------
    >>> import torch
    >>> from overt.nn.compression import compress
    >>> model = torch.nn.Sequential(
    ...     torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(64, 3)
    ... )
    >>> held_out = [(torch.randn(50, 8), torch.randint(3, (50,)))]
    >>> small, report = compress(model, 0.5, torch.randn(1, 8), held_out)
    >>> small[0], report.before.parameters, report.after.parameters
    (Linear(in_features=8, out_features=32, bias=True), 771, 387)
    """
    if not isinstance(model, nn.Module):
        raise InputTypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    _check.choice("by", by, WAYS)
    keep = _checked_keep(model, keep)
    draws = _check.whole("draws", draws)
    steps = _check.whole("recover", recover, minimum=0)
    rate = _check.number("learning_rate", learning_rate, exclusive=True)
    loss, rng = checked_loss(loss), _check.generator(seed)
    base = duplicate(model).eval()
    inputs = example_inputs(base, example)
    if by == "mask" and loader is None:
        raise InputError(
            "by='mask' judges sub-networks by their loss on held-out examples: pass loader=, "
            "batches (inputs, targets) that training has not seen; by='flow' does without"
        )
    judge = None if loader is None else Batches("loader", loader, base, len(inputs))
    report_on = judge if test is None else Batches("test", test, base, len(inputs))
    train_on = judge if train is None else Batches("train", train, base, len(inputs))
    if steps and (train_on is None or judge is None):
        raise InputError("recover needs loader=, batches (inputs, targets), and maybe train=")
    with torch.random.fork_rng():
        torch.manual_seed(int(rng.integers(2**31)))
        if by == "spectrum":
            done = by_spectrum(base, keep, inputs, judge)
        else:
            done = by_units(base, keep, inputs, judge, by, loss, draws, rng)
        losses = np.zeros(0)
        if steps and not done.interrupted:
            assert train_on is not None  # noqa: S101 (checked above)
            assert judge is not None  # noqa: S101 (checked above)
            losses, done.interrupted = recover_training(
                done.model, train_on, judge, loss, steps=steps, learning_rate=rate
            )
        report = _report(base, done, inputs, report_on, loss, by, keep, losses)
    _same_modes(model, done.model)
    return done.model, report


def _report(
    base: nn.Module,
    done: Outcome,
    inputs: Inputs,
    judge: Batches | None,
    loss: Loss,
    by: str,
    keep: Keep,
    recovery: Floats,
) -> Compression:
    models = (base, done.model)
    times = latencies(*models, inputs=inputs)
    scores = [None if judge is None else score(m, judge, loss) for m in models]
    before, after = (
        Size(
            parameters(m), sum(multiply_adds(m, inputs).values()), t,
            *((s.loss, s.accuracy) if isinstance(s, Score) else (None, None)),
        )
        for m, t, s in zip(models, times, scores, strict=True)
    )  # fmt: skip
    with torch.no_grad():
        old, new = base(*inputs), done.model(*inputs)
    return Compression(
        by=by,
        keep=dict(keep) if isinstance(keep, Mapping) else keep,
        before=before,
        after=after,
        changes=tuple(done.changes),
        skipped=tuple(done.skipped.items()),
        output_change=_relative_change(old, new),
        losses=done.losses,
        recovery=recovery,
        recipe=recipe(base, done.model),
        status=Status.INTERRUPTED if done.interrupted else Status.FINISHED,
    )


def _relative_change(old: Any, new: Any) -> float:
    if not isinstance(old, Tensor) or not old.is_floating_point():
        return float("nan")
    size = float(old.norm())
    return float((new - old).norm()) / size if size else float("nan")


def _checked_keep(model: nn.Module, keep: Any) -> Keep:
    if not isinstance(keep, Mapping):
        return _share("keep", keep)
    names = {name for name, _ in model.named_modules() if name}
    unknown = [str(name) for name in keep if name not in names]
    if unknown:
        layers = sorted(
            n for n, m in model.named_modules() if getattr(m, "weight", None) is not None
        )
        raise InputError(
            f"keep must name layers of the model, got {', '.join(unknown)}; there are "
            f"{', '.join(layers)}"
        )
    return {str(name): _share(f"keep[{name!r}]", share) for name, share in keep.items()}


def _share(name: str, value: Any) -> float:
    share = _check.number(name, value, exclusive=True) if not isinstance(value, bool) else None
    if share is None or share > 1:
        raise InputError(f"{name} must be a number in (0, 1], got {value!r}")
    return share


def _same_modes(model: nn.Module, small: nn.Module) -> None:
    """Give every module of the result the mode that it has in the model."""
    modes = {name: module.training for name, module in model.named_modules()}
    for name, module in small.named_modules():
        home = name
        while home not in modes:
            home = home.rpartition(".")[0]
        module.training = modes[home]
