"""What `compress` did, in numbers and words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from overt.results import Result


@dataclass(frozen=True, repr=False, eq=False)
class Change(Result):
    """What became of one layer, or of the layers whose outputs are added together.

    Attributes
    ----------
    layers
        Their names.
    kind
        "units": fewer outputs; "rank": two layers in place of one.
    before, after
        Number of units; for a rank the largest rank of the layer, and the new one.
    operator_error
        From one input to another, x to z, the error y' - y changes by at most operator_error times
        |x - z|. It is 0 at the mean input of a linear layer, at 0 without data. The spectral norm
        of the difference between the old and the new map W, for a convolution times the root of
        the patches that an entry can be in (None where it does not pad with zeros).
    data_error
        Root of the mean squared difference |y' - y| of the layer's outputs on the batches given,
        when its inputs are unchanged; of a convolution the mean over positions.
    relative_error
        data_error / the outputs' standard deviation, or |W' - W|_F / |W|_F without data.
    """

    layers: tuple[str, ...]
    kind: str
    before: int
    after: int
    operator_error: float | None = None
    data_error: float | None = None
    relative_error: float | None = None


@dataclass(frozen=True, repr=False, eq=False)
class Size(Result):
    """A network in numbers.

    Attributes
    ----------
    parameters
        Number of parameters, shared ones once.
    multiply_adds
        For one example, as torch.utils.flop_counter counts them (half of its operations):
        convolutions and products of matrices, attention included; recurrent layers are not.
    loss, accuracy
        On the batches given; None without them (or without classes).
    """

    parameters: int
    multiply_adds: int
    loss: float | None
    accuracy: float | None


@dataclass(frozen=True, repr=False, eq=False)
class Compression(Result):
    """What `compress` did, and what it cost.

    Attributes
    ----------
    by, keep, of
        The method, and the share that was to stay.
    reached, met, shortfall
        The share that is left (None where `keep` is of units), whether that is at most 5 %
        above `keep`, and if not, why.
    loss, loss_guessed
        What `before.loss` and `after.loss` are, None without targets; and whether it was guessed
        from the targets (loss="auto").
    before, after
        Both networks in numbers.
    changes
        What became smaller.
    skipped
        What did not: (layer, reason).
    tried
        With by="auto", the methods compared: (method, loss on the data), or without targets
        (method, relative change of the outputs).
    output_change
        Relative root mean square change of the outputs on the example (inf from zero).
    """

    by: str
    keep: Any
    of: str
    reached: float | None
    met: bool
    shortfall: str | None
    loss: str | None
    loss_guessed: bool
    before: Size
    after: Size
    changes: tuple[Change, ...]
    skipped: tuple[tuple[str, str], ...]
    tried: tuple[tuple[str, float], ...]
    output_change: float

    def __str__(self) -> str:
        lines = [f"compressed by {self.by}"]
        rows: list[tuple[str, Any, Any]] = [
            ("parameters", self.before.parameters, self.after.parameters),
            ("multiply-adds", self.before.multiply_adds, self.after.multiply_adds),
            ("loss", self.before.loss, self.after.loss),
            ("accuracy", self.before.accuracy, self.after.accuracy),
        ]
        lines += [
            f"  {name:<14}{_number(a):>14} -> {_number(b):>14}"
            for name, a, b in rows
            if a is not None and b is not None
        ]
        if self.loss is not None:
            guess = (
                ", guessed from the targets; loss= chooses another"
                if self.loss_guessed
                else ""
            )
            lines.append(f"  the loss is {self.loss}{guess}")
        for change in self.changes:
            line = f"{' + '.join(change.layers)}: {change.kind} {change.before} -> {change.after}"
            if change.relative_error is not None:
                line += f", relative error {change.relative_error:.3g}"
            lines.append(f"  {line}")
        if not self.changes:
            lines.append("  nothing could be made smaller")
        if self.tried:
            lines.append(
                "  compared: " + ", ".join(f"{way} {v:.4g}" for way, v in self.tried)
            )
        if self.shortfall is not None:
            lines.append(f"  not met: {self.shortfall}")
        lines += [f"  left whole: {name}: {reason}" for name, reason in self.skipped]
        return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
