"""`audit`: what noise does to a network, and what theory promises."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from overt import _check
from overt._progress import meter
from overt.nn.auditing.examination import Examination
from overt.nn.auditing.report import AuditReport
from overt.nn.data.batches import Batches
from overt.nn.data.losses import Loss, check_loss, loss_name
from overt.nn.data.models import check_model, modes
from overt.nn.data.rng import seeded
from overt.results import Status

TORCH_LOSSES = (nn.MSELoss, nn.CrossEntropyLoss)


def audit(
    model: nn.Module, data: Any, loss: Loss, *, holdout: Any = None,
    output: Callable[[Any], Any] | None = None, passes: float = 30, seed: int = 0,
) -> AuditReport:  # fmt: skip
    """Say what a network's noise does on some data, and what theory promises.

    One pass over the data; memory does not depend on the number of rows. Ctrl-C ends the pass,
    and the report is on the rows seen so far. The model, its mode, its gradients and torch's random
    state are left as they were.

    Per noise layer: the drop probability that masks drawn from it realize, what it adds to the
    loss, the flow through each unit and their co-adaptation; whatever else draws in training mode
    (functional dropout, stochastic depth, dropout inside attention, noise of one's own) is found
    by a pass in that mode, and what it adds is sampled. For the last layer: the spectrum of
    the outputs beside that of the optimum under its noise, and a proved lower bound on the training
    objective (the guide on auditing has the proofs). For the whole network: norms, complexity
    measures and bounds with their assumptions, dead units. And a drop probability for the last
    layer with the held-out error and rank that speak for it.

    Parameters
    ----------
    model
        A network with or without noise. What is not understood is named in `skipped`.
    data
        A pair of arrays or tensors (inputs, targets), a DataLoader, or anything that gives batches
        (inputs, targets); inputs are one tensor, a tuple of them, or a dict by name. Give the
        training data: the bounds are on the objective that training descends.
    loss
        "squared" (summed over outputs), "mse" (their mean), "cross_entropy" (on logits or on
        log_softmax) or "logistic" (summed over outputs); or a plain torch.nn.MSELoss or
        CrossEntropyLoss. Whole class numbers become one-hot targets of a squared loss; targets of
        cross-entropy are class numbers or rows of probabilities. Any other function (output,
        target) -> mean loss is sampled, and has no bounds.
    holdout
        Data that the network was not trained on, to choose the drop probability with. Without it a
        fifth of the rows is held out from the last layer, which is not the same: the features
        before it have seen those rows.
    output
        Which of the model's outputs counts, such as `lambda o: o.logits`.
    passes
        About how many forward passes over the data the audit may cost on data of some size. What
        noise adds is exact before the last layer of a squared loss; elsewhere it is sampled, on
        fewer rows where there are many layers, and stands beside its standard error.
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
    >>> report = audit(model, (x, x[:, :3]), "squared")
    >>> report.objective > report.head.lower_bound > 0
    True
    >>> report.noises[0].exact, report.skipped
    (True, ())
    """
    model = check_model(model)
    # Rows are weighed alike here: a torch loss with weights of its own would not be.
    wanted = loss_name(loss) if isinstance(loss, TORCH_LOSSES) else check_loss(loss)
    seed = _check.whole("seed", seed, minimum=0)
    start = time.perf_counter()
    passes = _check.number("passes", passes, exclusive=True)
    batches = Batches(data, model, output=output)
    others = None if holdout is None else Batches(holdout, model, name="holdout", output=output)
    count = batches.count + (0 if others is None else others.count)
    examined: Examination | None = None
    status = Status.FINISHED
    with (
        torch.inference_mode(False), seeded(seed), modes(model, noise=False),
        ExitStack() as stack,
    ):  # fmt: skip
        with patience() as stopped, meter("audit", count) as bar:
            try:
                for whole, batch in ((part, b) for part in (batches, others or ()) for b in part):
                    if examined is None:
                        examined = Examination(model, batch, wanted, batches.count, passes, stack)
                    if whole is batches:
                        examined.add(batch, hold=others is None)
                    else:
                        examined.add_holdout(batch)
                    bar.advance()
                    if stopped():
                        raise KeyboardInterrupt
            except KeyboardInterrupt:
                if examined is None or examined.samples == 0:
                    raise
                status = Status.INTERRUPTED
        assert examined is not None  # noqa: S101 (for the type checker: batches are never empty)
        return examined.report(status, start, own_data=others is None)


@contextmanager
def patience() -> Iterator[Any]:
    """Hold Ctrl-C back until the batch is done: yields a function that tells whether it came."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    came: list[int] = []

    def note(number: int, frame: Any) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(came)
    finally:
        signal.signal(signal.SIGINT, before)
