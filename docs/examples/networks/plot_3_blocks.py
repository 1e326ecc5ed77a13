"""
A DropBlock that drops what it says
===================================

Blocks that may start anywhere cover the middle of a map more often than its border. Dividing
every position by its own keep probability makes the expected output the input, everywhere.
"""

import matplotlib.pyplot as plt
import torch

from overt.nn import DropBlock2d

torch.manual_seed(0)
ones = torch.ones(4000, 1, 14, 14)
figure, axes = plt.subplots(1, 3, figsize=(10, 3.2), layout="constrained")
for axis, (name, layer) in zip(
    axes,
    {
        "one mask": None,
        "sliding: share dropped": DropBlock2d(0.3, 5),
        "uniform: share dropped": DropBlock2d(0.3, 5, uniform=True),
    }.items(),
    strict=True,
):
    if layer is None:
        drawn = axis.imshow(
            (DropBlock2d(0.3, 5)(ones[:1])[0, 0] == 0).float(), cmap="Greys"
        )
    else:
        dropped = layer(ones) == 0
        print(f"{name}: {dropped.float().mean():.3f} in all")
        drawn = axis.imshow(
            dropped.float().mean((0, 1)), vmin=0, vmax=0.5, cmap="cividis"
        )
    figure.colorbar(drawn, ax=axis, shrink=0.8)
    axis.set(title=name, xticks=[], yticks=[])
