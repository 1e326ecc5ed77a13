"""`audit`: what noise does to a network, and what theory promises."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from overt import _check
from overt._check import InputError, InputTypeError
from overt._progress import meter
from overt.nn.auditing.examination import Examination
from overt.nn.auditing.findings import report_of
from overt.nn.auditing.losses import loss_name
from overt.nn.auditing.report import AuditReport
from overt.nn.auditing.stream import patience
from overt.nn.recording.modes import slow_attention
from overt.nn.sources import modes
from overt.results import Status


def audit(
    model: nn.Module,
    loader: Iterable[Any],
    loss: Any,
    *,
    held_out: Iterable[Any] | None = None,
    seed: int = 0,
) -> AuditReport:
    """Say what a network's noise does on some data, and what theory promises.

    One pass over the loader; memory does not depend on the number of rows. Ctrl-C ends the pass,
    and the report is on the rows seen so far. The model, its mode, its gradients and torch's random
    state are left as they were.

    Per noise layer: the drop probability that masks drawn from it realize, what it adds to the
    loss, the flow through each unit and their co-adaptation. For the last layer: the spectrum of
    the outputs beside that of the optimum under its noise, and a proved lower bound on the training
    objective (`overt.nn.auditing.lower` has the proofs). For the whole network: norms, complexity
    measures and bounds with their assumptions, dead units. And a drop probability for the last
    layer with the held-out error and rank that speak for it.

    Parameters
    ----------
    model
        A network with or without noise layers of torch.nn or overt.nn. What is not understood is
        named in `skipped`.
    loader
        Batches (inputs, targets): a DataLoader, a list, or anything that can be looped over.
        Give it the training data: the bounds are on the objective that training descends.
    loss
        "squared" (summed over outputs), "mse" (their mean), "cross_entropy" (on logits or on
        log_softmax) or "logistic" (summed over outputs); or a plain torch.nn.MSELoss or
        CrossEntropyLoss. Whole class numbers become one-hot targets of a squared loss; targets of
        cross-entropy are class numbers or rows of probabilities.
    held_out
        Batches that the network was not trained on, to choose the drop probability with. Without
        them a fifth of the loader's rows is held out from the last layer, which is not the same:
        the features before it have seen those rows.
    seed
        Seed of the sampled masks.

    Examples
    --------
    >>> import torch
    >>> from overt.nn import audit
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Sequential(
    ...     torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(32, 3)
    ... )
    >>> x = torch.randn(200, 8)
    >>> report = audit(model, [(x, x[:, :3])], "squared")
    >>> report.objective > report.head.lower_bound > 0
    True
    >>> report.noises[0].exact, report.skipped
    (True, ())
    """
    if not isinstance(model, nn.Module):
        raise InputTypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    name = loss_name(loss)
    seed = _check.whole("seed", seed, minimum=0)
    start = time.perf_counter()
    first = next(iter([*model.parameters(), *model.buffers()]), None)
    device = torch.device("cpu") if first is None else first.device
    examined: Examination | None = None
    status = Status.FINISHED
    with (
        torch.inference_mode(False),
        torch.random.fork_rng(),
        modes(model, noise=False, others=False),
        slow_attention(),
    ):
        torch.manual_seed(seed)
        with patience() as stopped, meter("audit", _length(loader) + _length(held_out)) as bar:
            try:
                for where, x, y in _batches(loader, "loader", device):
                    if examined is None:
                        examined = Examination(model, x, name, _length(loader))
                    examined.add(x, y, where, hold=held_out is None)
                    bar.advance()
                    if stopped():
                        raise KeyboardInterrupt
                for where, x, y in (
                    [] if held_out is None else _batches(held_out, "held_out", device)
                ):
                    if examined is not None:
                        examined.add_held_out(x, y, where)
                    bar.advance()
                    if stopped():
                        raise KeyboardInterrupt
            except KeyboardInterrupt:
                if examined is None or examined.samples == 0:
                    raise
                status = Status.INTERRUPTED
        if examined is None:
            raise InputError("loader must hold at least one batch, it is empty")
        return report_of(examined, status, start, own_data=held_out is None)


def _batches(
    loader: Iterable[Any], name: str, device: torch.device
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield for each batch how to call it in an error, its inputs and its targets."""
    if not isinstance(loader, Iterable):
        raise InputTypeError(
            f"{name} must give batches (inputs, targets), got {type(loader).__name__}; a data set "
            "needs a torch.utils.data.DataLoader"
        )
    for number, pair in enumerate(loader, 1):
        if (
            not isinstance(pair, (tuple, list))
            or len(pair) != 2
            or not all(isinstance(t, Tensor) for t in pair)
        ):
            raise InputTypeError(
                f"{name} must give pairs of tensors (inputs, targets), batch {number} is "
                f"{_described(pair)}"
            )
        x, y = pair
        where = f"batch {number} of {'the loader' if name == 'loader' else name}"
        if x.ndim < 1 or y.ndim < 1 or len(x) == 0:
            raise InputError(
                f"{where} must hold at least one row, got shapes {tuple(x.shape)} and "
                f"{tuple(y.shape)}"
            )
        yield where, x.to(device), y.to(device)


def _described(batch: Any) -> str:
    """Return in words what a loader gave instead of a pair of tensors."""
    kind = type(batch).__name__
    if isinstance(batch, (tuple, list)):
        return f"a {kind} of {', '.join(type(part).__name__ for part in batch) or 'nothing'}"
    if isinstance(batch, Mapping):
        keys = ", ".join(map(repr, batch))
        return f"a {kind} with {keys}; give ((b[inputs], b[targets]) for b in loader)"
    return f"a {kind}; put one batch into a list, [(inputs, targets)]"


def _length(loader: Any) -> int:
    try:
        return len(loader)
    except TypeError:
        return 0
