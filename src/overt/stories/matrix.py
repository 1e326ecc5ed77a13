"""
Ratings and tables: fill a half-empty matrix
============================================

A survey of 250 people and 60 questions, in which most answers are missing. Estimate them, say how
sure each estimate is, and check whether that can be trusted.
"""

# %%
# **The data** are triplets of person, question and answer. A tenth of them is held out.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_wine

from overt.completion import DropoutCompletion, DropoutImputer
from overt.datasets import generate_ratings

answers, _ = generate_ratings(250, 60, 6000, rank=3, noise=0.5, scale=(1, 5), seed=0)
train, holdout = answers.split(0.1, seed=0)
print(answers)

# %%
# **Fit.** There is nothing to tune: the amount of dropout on each factor is estimated from the
# data.

model = DropoutCompletion().fit(train)
rmse = -model.score(holdout)
mean = train.values.mean()
deviation = holdout.values - mean
baseline = np.sqrt(np.mean(deviation**2))
print(f"held-out error {rmse:.3f}; predicting the mean gives {baseline:.3f}")
assert rmse < baseline

# %%
# **How sure?** Every prediction has a standard deviation. About 90 % of the held-out answers
# should be inside their 90 % intervals.

mean, std = model.predict(holdout.rows, holdout.cols, return_std=True)
inside = np.mean(np.abs(holdout.values - mean) <= 1.645 * std)
print(f"{inside:.1%} of {len(holdout)} held-out answers are inside their 90 % interval")

figure, axes = plt.subplots(figsize=(6.5, 3.6), layout="constrained")
order = np.argsort(mean)[::6]
places = np.arange(len(order))
half = 1.645 * std[order]
axes.errorbar(places, mean[order], half, fmt=".", lw=0.8, label="90 %")
axes.plot(places, holdout.values[order], "x", ms=4, label="held-out answer")
axes.set_xlabel("held-out answers, sorted by prediction")
axes.set_ylabel("value")
axes.legend(loc="lower right")

# %%
# **Use it.** Questions that suit person 7, the answers behind the first one, and a new person of
# whom three answers are known.

best = model.recommend(7, n=3, by="value")
print(best)
first = int(best.cols[0])
print(model.explain(7, first))
newcomer = model.fold_in({0: 5.0, 3: 1.0, 8: 4.0})
value, uncertainty = newcomer.predict([1, 2], return_std=True)
print("new person, questions 1 and 2:", value.round(2), "+-", uncertainty.round(2))

# %%
# **A table of measurements** has columns in different units. For those there is an imputer that
# fits into scikit-learn's pipelines: here a fifth of scikit-learn's wine data is removed.

table = load_wine().data
rng = np.random.default_rng(0)
removed = rng.random(table.shape) < 0.2
incomplete = np.where(removed, np.nan, table)
filled = DropoutImputer().fit_transform(incomplete)
error = (filled - table) / table.std(axis=0)
error = error[removed]
print(
    f"error of {removed.sum()} filled cells: {np.sqrt(np.mean(error**2)):.2f} standard deviations"
)

headline = f"{inside:.1%} of held-out answers are inside their 90 % interval, with nothing tuned"
