"""
Nothing to tune: noise that is learned
======================================

Fixed dropout has a best drop probability, which one has to find. The learned form finds the noise
of every factor from the data and is as good as the best of them, or better.
"""

import matplotlib.pyplot as plt
import numpy as np

from overt.completion import DropoutCompletion
from overt.datasets import generate_ratings

entries, _ = generate_ratings(300, 200, 9000, rank=4, noise=0.6, scale=(1, 5), seed=0)
train, holdout = entries.split(0.2, seed=0)

learned = DropoutCompletion(n_factors=12).fit(train)
probs = np.linspace(0.05, 0.9, 10)
errors = [
    -DropoutCompletion(12, drop_prob=p, max_sweeps=30).fit(train).score(holdout)
    for p in probs
]

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
left.plot(probs, errors, "o-", label="fixed drop probability")
left.axhline(-learned.score(holdout), ls="--", color="C1", label="learned")
left.set(xlabel="drop_prob", ylabel="held-out RMSE")
left.legend()
right.bar(range(1, 13), np.sort(learned.learned_drop_prob_))
right.set(xlabel="factor", ylabel="drop probability that was learned", ylim=(0, 1.02))
