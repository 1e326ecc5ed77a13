"""
What dropout does to a landscape
================================

One input, one output, and two hidden units with tied weights: the smallest network with something
to see. Without noise its minima form a circle. Dropout leaves four of them, at which the two
units share the work equally, and every other critical point has a way down.
"""

import matplotlib.pyplot as plt
import numpy as np

import overt

TARGET = np.array([[2.0]])
axis = np.linspace(-1.7, 1.7, 201)
u1, u2 = np.meshgrid(axis, axis, indexing="ij")

figure, panels = plt.subplots(1, 3, figsize=(10, 3.6), layout="constrained")
for panel, drop_prob in zip(panels, (0.0, 0.4, 0.7), strict=True):
    lam = overt.Dropout(drop_prob).strength
    objective = (2.0 - u1**2 - u2**2) ** 2 + lam * (u1**4 + u2**4)
    panel.contourf(u1, u2, np.sqrt(objective), levels=24, cmap="viridis")
    panel.set(title=f"drop_prob = {drop_prob}", xlabel="$u_1$", aspect="equal")
    if drop_prob == 0:
        angle = np.linspace(0, 2 * np.pi, 200)
        panel.plot(np.sqrt(2) * np.cos(angle), np.sqrt(2) * np.sin(angle), "w--")
        continue
    net = overt.TiedAutoencoder(TARGET, width=2, noise=overt.Dropout(drop_prob))
    best = np.abs(net.solve().U[0])
    signs = np.array([(1, 1), (1, -1), (-1, 1), (-1, -1)])
    panel.scatter(*(signs * best).T, c="white", edgecolors="black", zorder=3)
panels[0].set_ylabel("$u_2$")

# %%
# The minima (white) are where theory puts them. A larger network has many more critical points;
# ``landscape`` lists the balanced ones, lowest first, with the curvature that lets descent escape.

net = overt.TiedAutoencoder(np.diag([3.0, 2.0, 1.0]), width=3, noise=overt.Dropout(0.3))
for point in net.landscape().points:
    curvature = round(point.curvature, 3) + 0.0
    print(
        f"{point.directions!s:10} {point.objective:7.3f}  {point.kind:13} {curvature:8.3f}"
    )

# sphinx_gallery_thumbnail_number = 1
