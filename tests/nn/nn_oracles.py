"""Every mask of a small network, one forward pass each."""

import copy

import numpy as np
import torch
from helpers import bernoulli_patterns, enumerate_masks
from torch import nn
from torch.nn import functional

from overt import DropBlock
from overt import nn as onn


class DropConnectConv2d(nn.Conv2d):
    """Drops weights of a kernel, as users write it: one mask for all positions of a batch."""

    def __init__(self, *sizes, drop_prob, **options):
        super().__init__(*sizes, **options)
        self.drop_prob = drop_prob

    def forward(self, x):
        weight = functional.dropout(self.weight, self.drop_prob, self.training)
        return self._conv_forward(x, weight, self.bias)


class Multiplied(nn.Module):
    """Stands in for a noise layer: multiplies by given numbers, in any mode."""

    def __init__(self, multipliers):
        super().__init__()
        self.multipliers = multipliers

    def forward(self, x):
        return x * self.multipliers


def all_multipliers(layer, shape):
    """All multipliers (n, *shape) of a noise layer on one sample's shape, with probabilities."""
    match layer:
        case onn.Dropout() | nn.Dropout() | nn.Dropout2d():
            p = (
                layer.p
                if isinstance(layer, nn.Module) and hasattr(layer, "p")
                else layer.drop_prob
            )
            shared = getattr(layer, "shared_axes", ())
            if isinstance(layer, nn.Dropout2d):
                shared = (2, 3)
            small = [1 if i + 1 in shared else n for i, n in enumerate(shape)]
            z, prob = bernoulli_patterns(np.full(int(np.prod(small)), 1 - p))
            full = np.broadcast_to(z.reshape(-1, *small), (len(z), *shape))
            return full / (1 - p), prob
        case onn.DropBlock2d() | onn.DropBlock1d():
            noise = DropBlock(layer.drop_prob, layer.block_size[0], layer.placement)
            z, prob = enumerate_masks(noise, tuple(shape[1:]))
            z = z / noise.mean(tuple(shape[1:]))
            return _channels(z, prob, shape)
        case onn.CovarianceDropout():
            from helpers import sigma_points

            mu, K = layer.mean.double().numpy(), layer.covariance.double().numpy()
            z, prob = sigma_points(mu, K)
            return z / mu, prob
    raise NotImplementedError(layer)


def _channels(z, prob, shape):
    """Combine independent masks of the channels."""
    rows, probabilities = np.zeros((1, 0)), np.ones(1)
    for _ in range(shape[0]):
        rows = np.concatenate(
            [np.repeat(rows, len(z), 0), np.tile(z, (len(rows), 1))], 1
        )
        probabilities = np.repeat(probabilities, len(z)) * np.tile(
            prob, len(probabilities)
        )
    return rows.reshape(-1, *shape), probabilities


def outputs_under_masks(model, name, x):
    """Outputs (masks, *output) under every mask of the noise layer `name`, and probabilities."""
    layer = model.get_submodule(name)
    seen = []
    handle = layer.register_forward_hook(
        lambda m, args, out: seen.append(args[0].shape[1:])
    )
    with torch.no_grad():
        model.eval()(x)
    handle.remove()
    if isinstance(layer, (onn.DropConnectLinear, DropConnectConv2d)):
        return _under_weight_masks(model, name, x)
    multipliers, prob = all_multipliers(layer, tuple(seen[0]))
    outs = []
    for m in multipliers:
        fixed = copy.deepcopy(model)
        fixed.set_submodule(name, Multiplied(torch.as_tensor(m, dtype=x.dtype)))
        with torch.no_grad():
            outs.append(fixed.eval()(x))
    return torch.stack(outs), torch.as_tensor(prob, dtype=x.dtype)


def _under_weight_masks(model, name, x):
    W = model.get_submodule(name).weight
    p = model.get_submodule(name).drop_prob
    z, prob = bernoulli_patterns(np.full(W.numel(), 1 - p))
    outs = []
    for mask in z:
        fixed = copy.deepcopy(model).eval()
        with torch.no_grad():
            scale = torch.as_tensor(mask / (1 - p), dtype=x.dtype).reshape(W.shape)
            fixed.get_submodule(name).weight.mul_(scale)
            outs.append(fixed(x))
    return torch.stack(outs), torch.as_tensor(prob, dtype=x.dtype)


def exact_moments(outputs, prob):
    """Mean (batch, ...) and covariance (batch, outputs, outputs) of a discrete law."""
    mean = torch.tensordot(prob, outputs, 1)
    centered = (outputs - mean).flatten(2)
    return mean, torch.einsum("m,mbi,mbj->bij", prob, centered, centered)
