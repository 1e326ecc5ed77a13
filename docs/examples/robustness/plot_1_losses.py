"""
Why an attack goes blind
========================

An attack climbs a loss of the margin. Where the network is sure, cross-entropy is flat and there
is nothing to climb; the reflected loss is steep just there.
"""

import matplotlib.pyplot as plt
import numpy as np

z = np.linspace(-6, 10, 400)
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
left.plot(z, z <= 0, color="0.6", label="error")
left.plot(z, np.logaddexp(0, -z) / np.log(2), label="cross-entropy")
left.plot(z, -np.logaddexp(0, z), label="reflected")
left.set(xlabel="margin z of the true class", ylabel="loss", ylim=(-10, 6))
left.legend()
right.semilogy(z, 1 / (1 + np.exp(z)), label="cross-entropy")
right.semilogy(z, 1 / (1 + np.exp(-z)), label="reflected")
right.set(xlabel="margin z of the true class", ylabel="slope, absolute")
right.legend()
