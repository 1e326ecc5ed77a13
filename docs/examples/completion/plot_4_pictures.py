"""
Half of a picture
=================

A handwritten digit data set as a matrix, images by pixels, with 60 % of the entries
removed. The images come back with a map of how sure each pixel is.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from overt import Entries
from overt.completion import DropoutCompletion

images = load_digits().data[:600]
rng = np.random.default_rng(0)
seen = np.where(rng.random(images.shape) < 0.4, images, np.nan)
model = DropoutCompletion(n_factors=20).fit(Entries.from_matrix(seen))

figure, axes = plt.subplots(4, 6, figsize=(8.4, 5.8), layout="constrained")
cells = np.indices((6, 64)).reshape(2, -1)
mean, std = model.predict(*cells, return_std=True)
shown = seen[:6], mean.reshape(6, 64), images[:6], std.reshape(6, 64)
for row, values in enumerate(shown):
    spread = {"vmin": 0, "vmax": 16} if row < 3 else {"vmin": 0, "vmax": std.max()}
    for axis, image in zip(axes[row], values, strict=True):
        drawn = axis.imshow(
            image.reshape(8, 8), cmap="Greys" if row < 3 else "cividis", **spread
        )
        axis.set(xticks=[], yticks=[])
    figure.colorbar(drawn, ax=axes[row], shrink=0.8)
for axis, name in zip(axes[:, 0], ("seen", "completed", "truth", "std"), strict=True):
    axis.set_ylabel(name)
