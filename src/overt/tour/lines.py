"""Lines to copy, one piece for each chapter: the shortest program that shows what it shows."""

from __future__ import annotations

LINES = {
    "one_matrix": """
import numpy as np
import overt

M = np.random.default_rng(0).standard_normal((6, 4)) @ np.diag([3.0, 2.0, 1.0, 0.5])
best = overt.LinearNetwork(M, width=4, noise=overt.Dropout(0.5)).solve()
print(best.status, best.objective, best.spectrum)
""",
    "landscape": """
import numpy as np
import overt

land = overt.TiedAutoencoder(np.array([[2.0]]), width=2, noise=overt.Dropout(0.5)).landscape()
print([(point.kind, point.objective) for point in land.points])
""",
    "networks": """
import numpy as np
import overt

rng = np.random.default_rng(0)
M = rng.standard_normal((30, 5)) @ rng.standard_normal((5, 20))
net = overt.LinearNetwork(M / 5, width=10, noise=overt.Dropout(0.5))
run = net.train(steps=5000, learning_rate=1e-3, seeds=4)
print(net.certify(run.U[0], run.V[0]).relative_gap)
""",
    "completion": """
from overt.completion import DropoutCompletion
from overt.datasets import generate_ratings

ratings, _ = generate_ratings(200, 100, 4000, rank=3, seed=0)
train, holdout = ratings.split(0.1, seed=0)
model = DropoutCompletion().fit(train)
mean, std = model.predict(holdout.rows, holdout.cols, return_std=True)
""",
    "decay": """
from overt.decay import minima, two_by_two

for m in minima(two_by_two(0.25), depth=3, weight_decay=0.00025):
    print(m.rank, m.matrix[0, 1], m.loss)
""",
    "nn": """
import torch
from overt.nn import explicit_penalty, predictive_moments

net = torch.nn.Sequential(
    torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(256, 10)
)
x = torch.randn(32, 64)
mean, variance = predictive_moments(net, x)
print(explicit_penalty(net, x).value)
""",
    "audit": """
import torch
from overt.nn import audit

net = torch.nn.Sequential(
    torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(32, 3)
)
print(audit(net, (torch.randn(200, 8), torch.randn(200, 3)), loss="mse"))
""",
    "compress": """
import torch
from overt.nn import compress

net = torch.nn.Sequential(
    torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(64, 3)
)
x, y = torch.randn(200, 8), torch.randint(3, (200,))
small, report = compress(net, 0.5, x[:16], (x, y))
""",
    "relu": """
import numpy as np
from overt import relu

X = np.random.default_rng(0).standard_normal((40, 2))
print(relu.retentivity(X), relu.rademacher(X, alpha=1.0, draws=50))
""",
    "robust": """
import torch
from overt.robust import L2, robust_error

net = torch.nn.Linear(2, 3)
x = torch.randn(20, 2)
print(robust_error(net, x, net(x).argmax(1), L2(0.5)))
""",
    "statements": """
from overt import papers

print(list(papers.verify(["path-norm"])))
""",
}
"""By the name of a chapter's function, or of its module where that is called `chapter`."""
