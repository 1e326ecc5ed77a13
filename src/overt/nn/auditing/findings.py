"""From sums over the data to findings."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from overt._types import Floats
from overt.nn.auditing.capacity import Facts, capacity_bounds
from overt.nn.auditing.examination import LAYERS, Examination
from overt.nn.auditing.head_findings import head_findings, head_flows, suggestion_for
from overt.nn.auditing.losses import is_squared, unit
from overt.nn.auditing.measures import (
    NoPath,
    chain_weights,
    norm_measures,
    path_measures,
    path_norm,
)
from overt.nn.auditing.noises import drop_prob, realized
from overt.nn.auditing.report import (
    AuditReport,
    LayerFindings,
    Measure,
    NoiseFindings,
)
from overt.nn.auditing.trace import HOMOGENEOUS, RESHAPE
from overt.relu.bounds import coadaptation
from overt.results import Status


def report_of(e: Examination, status: Status, start: float, *, own_data: bool) -> AuditReport:
    """Return the report on what has been examined."""
    plain = e.plain.value
    objective, error = _objective(e)
    R = e.triangle.value() if e.triangle is not None else None
    head = suggestion = None
    if e.head is not None and R is not None:
        head = head_findings(e, e.head, R, objective)
        suggestion = suggestion_for(e, e.head, R, own_data=own_data)
    if e.sampled.no_flows is not None:
        e.skipped.append(("flows", f"there is no gradient: {e.sampled.no_flows}"))
    measures, weights = _measures(e)
    accuracy = e.right.value if e.right.count == e.samples else None
    return AuditReport(
        model=type(e.model).__name__,
        loss=e.loss,
        samples=e.samples,
        outputs=e.outputs,
        parameters=sum(p.numel() for p in e.model.parameters()),
        plain_loss=plain,
        objective=objective,
        objective_error=error,
        accuracy=accuracy,
        held_out_loss=e.held_out.value if e.held_out.count else None,
        noises=tuple(_noise(e, i, objective) for i in range(len(e.names))),
        layers=tuple(_layers(e)),
        head=head,
        measures=tuple(measures),
        bounds=tuple(capacity_bounds(_facts(e, weights, R))),
        suggestion=suggestion,
        skipped=tuple(e.skipped),
        status=status,
        seconds=time.perf_counter() - start,
    )


def _objective(e: Examination) -> tuple[float, float]:
    """Return the training objective and its standard error."""
    if not e.names:
        return e.plain.value, 0.0
    if not e.exact:
        return e.plain.value + e.sampled.total.value, e.sampled.total.error
    others = e.sampled.before_last  # zero where nothing was sampled
    value = e.plain.value + _exact_penalty(e) + others.value
    return value, others.error if len(e.names) > 1 else 0.0


def _exact_penalty(e: Examination) -> float:
    return e.head_penalty.value * unit(e.loss, e.outputs)


def _noise(e: Examination, i: int, objective: float) -> NoiseFindings:
    name, module = e.names[i], e.modules[i]
    average = e.squares[name]
    squares = None if average is None else average.value
    exact = e.exact and i == len(e.names) - 1
    if exact:
        penalty, error = _exact_penalty(e), 0.0
    else:
        penalty, error = e.sampled.added[i].value, e.sampled.added[i].error
    exact_flows = exact and e.head is not None and squares is not None and not e.head.law_shares
    if exact_flows and e.head is not None and squares is not None:
        flows = head_flows(e.head, squares)
    else:
        flows = e.sampled.flows(i)
    op = next(op for op in e.trace.operations if op.noise == name)
    share, share_error = realized(module, tuple(op.inputs[0].shape[1:]), op.inputs[0])
    return NoiseFindings(
        name=name,
        kind=str(module),
        units=None if squares is None else int(squares.size),
        drop_prob=drop_prob(module),
        realized=share,
        realized_error=share_error,
        penalty=penalty,
        penalty_error=error,
        exact=exact,
        share=penalty / objective if objective else 0.0,
        flows=flows,
        exact_flows=exact_flows,
        coadaptation=None if flows is None else coadaptation(flows),
        dead=None if squares is None else int(np.sum(squares == 0)),
    )


def _measures(e: Examination) -> tuple[list[Measure], list[Floats] | None]:
    weights = chain_weights(e.trace)
    norms = {}
    for p in (1, 2):
        try:
            norms[p] = path_norm(e.model, e.trace.x, p)
        except (NoPath, RuntimeError, TypeError) as error:
            reason = f"not defined through {error}" if isinstance(error, NoPath) else str(error)
            e.skipped.append(("path norm", reason))
            break
    found = path_measures(norms, weights, e.samples)
    if weights is None:
        e.skipped.append(
            ("norm measures", "equations 1.2 to 1.4 are for chains of linear layers; see the norms "
             "of each layer")
        )  # fmt: skip
        return found, None
    return found + norm_measures(weights, e.samples), weights


def _layers(e: Examination) -> list[LayerFindings]:
    found, silent = [], []
    for name, module in e.model.named_modules():
        own = next(module.parameters(recurse=False), None)
        if isinstance(module, LAYERS):
            if name in e.largest:
                found.append(_layer(e, name, module))
        elif own is not None and not isinstance(module, torch.nn.modules.batchnorm._NormBase):
            silent.append((name or type(e.model).__name__, type(module).__name__))
    for kind in dict.fromkeys(kind for _, kind in silent):
        names = ", ".join(name for name, other in silent if other == kind)
        e.skipped.append((names, f"{kind}: its weights are not among the layers' norms"))
    return found


def _layer(e: Examination, name: str, module: Any) -> LayerFindings:
    W = module.weight.detach().double().cpu().flatten(1).numpy()
    spectral, frobenius = float(np.linalg.norm(W, 2)), float(np.linalg.norm(W))
    return LayerFindings(
        name=name,
        shape=tuple(module.weight.shape),
        spectral=spectral,
        frobenius=frobenius,
        stable_rank=(frobenius / spectral) ** 2 if spectral else 0.0,
        inputs=len(e.largest[name]),
        dead=int((e.largest[name] == 0).sum()),
        from_data=name in e.from_data,
    )


def _facts(e: Examination, weights: list[Floats] | None, R: Floats | None) -> Facts:
    chain = e.trace.chain() or []
    linear = [op for op in chain if op.name == "linear"]
    biases = [
        op.args[2].detach().double().cpu().numpy() if op.shifts else np.zeros(len(op.args[1]))
        for op in linear
    ]
    acted = {op.name for op in chain} - RESHAPE - {"linear", "noise", "dropout", "log_softmax"}
    rank = None
    if e.activations.value is not None and R is not None and e.inputs:
        X = R[:, : 1 + e.inputs] if any(b.any() for b in biases) else R[:, e.input_slice]
        rank = int(np.linalg.matrix_rank(X))
    usable = e.within_one and is_squared(e.loss)
    return Facts(
        n=e.samples,
        outputs=e.outputs,
        weights=weights,
        homogeneous=acted <= HOMOGENEOUS,
        biases=biases,
        input_rank=rank,
        input_square=e.input_square.value,
        activations=e.activations.value,
        preactivations=e.preactivations.value,
        clipped=e.clipped.value if usable else None,
        clipped_symmetrized=(
            e.clipped_symmetrized.value if usable and e.clipped_symmetrized.count else None
        ),
    )
