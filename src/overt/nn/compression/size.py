"""A network in numbers, those that take time measured when they are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from overt.results import Result


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
    latency
        Least seconds of a pass of the example, measured in turns with the other network.
    loss, accuracy
        On the batches given; None without them (or without classes).

    Multiply-adds and latency that `compress` does not need are measured when they are first read
    (printing, `to_dict` and `save` do), of both networks as they are then; until that the report
    refers to the networks.
    """

    parameters: int
    multiply_adds: int
    latency: float
    loss: float | None
    accuracy: float | None

    def __getattr__(self, name: str) -> Any:  # only for what is not there
        if name.startswith("_") or name not in vars(self).get("_later", ()):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        vars(self)["_later"][name]()
        return vars(self)[name]

    def __getstate__(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


def measured_when_read(
    sizes: Sequence[Size], name: str, measure: Callable[[], Sequence[float]]
) -> None:
    """Take a field of all sizes away until one of them is read: then `measure` gives all."""

    def now() -> None:
        for size, value in zip(sizes, measure(), strict=True):
            vars(size)[name] = value
            vars(size)["_later"].pop(name)

    for size in sizes:
        vars(size).pop(name)
        vars(size).setdefault("_later", {})[name] = now
