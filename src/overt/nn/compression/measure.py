"""Size and speed of a network: parameters, multiply-adds, latency."""

from __future__ import annotations

import time
from collections import Counter
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from overt.nn.compression.layers import TRANSPOSED, WEIGHTED
from overt.nn.compression.tracing import Inputs, observing
from overt.nn.recording.modes import slow_attention


def parameters(model: nn.Module) -> int:
    """Return the number of parameters, shared ones counted once."""
    return sum(p.numel() for p in model.parameters())


def multiply_adds(model: nn.Module, inputs: Inputs) -> Counter[str]:
    """Return the multiply-adds of each linear and convolutional layer, for one example."""
    spent: Counter[str] = Counter()
    size = len(inputs[0])

    def hook(name: str) -> Any:
        def count(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            # Each output (input, if transposed) meets one slice of the weight.
            meets = args[0] if isinstance(module, TRANSPOSED) else output
            spent[name] += meets.numel() * module.weight[0].numel() // size

        return count

    handles = [
        module.register_forward_hook(hook(name))
        for name, module in model.named_modules()
        if isinstance(module, WEIGHTED)
    ]
    with observing(handles), slow_attention():
        model(*inputs)
    return spent


def latencies(*models: nn.Module, inputs: Inputs, seconds: float = 0.1) -> list[float]:
    """Return the median time of a pass of each model; they take turns, so that noise hits all."""
    times: list[list[float]] = [[] for _ in models]
    with torch.no_grad():
        for model in models:
            model(*inputs)
        start = time.perf_counter()
        while len(times[0]) < 5 or time.perf_counter() - start < seconds:
            for model, taken in zip(models, times, strict=True):
                before = time.perf_counter()
                model(*inputs)
                if inputs[0].is_cuda:
                    torch.cuda.synchronize()
                taken.append(time.perf_counter() - before)
            if len(times[0]) >= 1000:
                break
    return [median(taken) for taken in times]
