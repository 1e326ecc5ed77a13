"""
The data scientist: a half-empty matrix
=======================================

A survey of 250 people and 60 questions, in which most answers are missing. Fill it, say how sure
each answer is, and find out whether that can be trusted.
"""

# %%
# **The data** are lines of person, question, answer, as they come from a file
# (``overt.completion.read_ratings``). A tenth is set aside to judge by.

import matplotlib.pyplot as plt
import numpy as np

from overt.completion import DropoutCompletion
from overt.datasets import generate_ratings

answers, _ = generate_ratings(250, 60, 6000, rank=3, noise=0.5, scale=(1, 5), seed=0)
train, holdout = answers.split(0.1, seed=0)
print(answers)

# %%
# **Fit.** There is nothing to choose: the noise of every factor is learned from the data.

model = DropoutCompletion().fit(train)
rmse = -model.score(holdout)
plain = np.sqrt(np.mean((holdout.values - train.values.mean()) ** 2))
print(f"held-out error {rmse:.3f}; the mean of all answers has {plain:.3f}")

# %%
# **How sure?** Each prediction has a standard deviation. Nine of ten held-out answers should lie
# within
# 1.64 of them.

mean, std = model.predict(holdout.rows, holdout.cols, return_std=True)
inside = np.abs(holdout.values - mean) <= 1.645 * std
print(f"{inside.mean():.1%} of {len(holdout)} held-out answers are inside the 90% intervals")

figure, axes = plt.subplots(figsize=(6.5, 3.6), layout="constrained")
order = np.argsort(mean)[::6]
axes.errorbar(range(len(order)), mean[order], 1.645 * std[order], fmt=".", lw=0.8, label="90%")
axes.plot(range(len(order)), holdout.values[order], "x", ms=4, label="held-out answer")
axes.set(xlabel="held-out answers, by prediction", ylabel="value")
axes.legend()

# %%
# **Use it.** What would this person answer, why, and what about someone new?

print(model.recommend(7, n=3))
print(model.explain(7, int(model.recommend(7, n=1).cols[0])))
newcomer = model.fold_in({0: 5.0, 3: 1.0, 8: 4.0})
value, spread = newcomer.predict([1, 2], return_std=True)
print("newcomer:", value.round(2), "+-", spread.round(2))

# %%
# From here: :doc:`/howto/completion` reads files, saves models and goes to several machines; on
# the command line the whole story is ``overt complete answers.csv --out model``.
