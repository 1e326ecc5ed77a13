"""
Jumps that go one way
=====================

With a large learning rate SGD is noisy enough to leave the minimum of rank 2 for that of rank 1,
and it does not come back. Runs that use every entry once per pass, in shuffled order, do not jump.
"""

import matplotlib.pyplot as plt

from overt.decay import Schedule, simulate, two_by_two

schedule = Schedule.of([(500, 0.03, 0.1), (8000, 0.2, 0.1)], convention="pytorch")
runs = simulate(
    two_by_two(0.25), depth=3, width=50, schedule=schedule, seeds=12, records=171
)

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
for values in runs.singular_values:
    left.plot(runs.steps, values[:, 1] / values[:, 0], lw=0.8)
left.axhline(0.05, ls="--", color="0.5")
left.set(xlabel="step", ylabel="second singular value / first")
for sampling in ("replacement", "shuffled"):
    runs = simulate(
        two_by_two(0.25), 3, 50, schedule, seeds=12, records=171, sampling=sampling
    )
    never = runs.jump_step < 0
    share = [(never | (runs.jump_step > step)).mean() for step in runs.steps]
    right.step(runs.steps, share, where="post", label=sampling)
right.legend(title="sampling")
right.set(xlabel="step", ylabel="share that has not jumped", ylim=(0, 1.02))
