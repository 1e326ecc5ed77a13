"""The papers' open questions: each question with its source, its answer here, and what remains.

The proofs are on the page of open questions and on the theory pages; every one was followed step by
step before it was entered as proved.
"""

from __future__ import annotations

from overt.papers.records import question

question(
    1,
    "Implicit bias of dropout, 4.2; Thesis, 2.3",
    "Is the bound on lam in Theorem 4.3 necessary?",
    "proved",
    "No: no spurious minima at any rate, nor are tied weights or equal rates needed",
    by=("tied-landscape", "shallow-landscape"),
)
question(
    2,
    "Thesis, 2.7 and 7.3",
    "Do benign landscapes extend beyond shallow autoencoders?",
    "proved",
    "To all shallow linear networks; two noisy layers have spurious minima",
    by=("shallow-landscape", "deep-spurious-minimum"),
    remains="shallow networks with correlated noise or DropBlock: none was observed",
)
question(
    3,
    "Implicit bias of dropout, 4",
    "Are tied weights needed, or a simplification?",
    "proved",
    "A simplification: untied weights have no spurious minima either",
    by="shallow-landscape",
)
question(
    4,
    "Implicit bias of dropout, 2; Thesis, 4.2.1",
    "Are isotropic inputs needed?",
    "proved",
    "No: optimum and landscape hold for any second moment, singular ones included",
    by=("anisotropic-optimum", "shallow-landscape"),
)
question(
    5,
    "Implicit bias of dropout, 7; Thesis, 2.7",
    "What does dropout induce in ReLU networks?",
    "part",
    "The exact optimum for dropout on the last layer with one output",
    by="relu-one-output",
    remains="several outputs, and dropout before a ReLU",
)
question(
    6,
    "Implicit bias of dropout, 7; Thesis, 3.2 and 3.3",
    "Deeper linear networks: can every map be equalized, and what without the gap condition?",
    "proved",
    "Not every map can; the optimum is exact without the gap condition",
    by=("deep-exact-optimum", "deep-without-gap"),
)
question(
    7,
    "Implicit bias of dropout, 6",
    "Do the importance scores' variances decrease monotonically?",
    "counterexample",
    "No: the mean curves of Figure 3 rise first",
    by="dropout-fig3",
)
question(
    8,
    "One-way jumps, 2.2 and 3.1",
    "What are all local minima, by rank?",
    "part",
    "A closed form, one per rank, where every entry is observed",
    by="observed-minima",
    remains="some entries observed",
)
question(
    9,
    "One-way jumps, 3.1",
    "How small must lam be for rank r* to be found?",
    "part",
    "Rank q exists iff mu < (L/(2L-4)) (s_q (L-2)/(2L-2))^((2L-2)/L), every entry observed",
    by="observed-minima",
    remains="some entries observed",
)
question(
    10,
    "One-way jumps, 3.1",
    "Are there minima of too high a rank, and is it hard to find the right one?",
    "open",
    "There are none where every entry of a matrix of rank r* is observed",
)
question(
    11,
    "One-way jumps, 3.2",
    "Can the bounds be made tighter, above all in the depth L?",
    "open",
    "Thresholds rise and barriers fall with L where every entry is observed",
)
question(
    12,
    "One-way jumps, 3.2",
    "Are samples with replacement needed for jumps?",
    "proved",
    "Yes: at small rates shuffled passes never jump, in any problem",
    by="shuffled-passes",
    remains="the largest such rate in numbers",
)
question(
    13,
    "One-way jumps, 3.2",
    "Does the theory hold for other costs?",
    "open",
    "Shuffled passes do not jump for any cost with two derivatives; whether B_r is closed is open",
)
question(
    14,
    "One-way jumps, 3.2",
    "How long do jumps take?",
    "open",
    "log(time) = c + S/eta with the least action S agrees with simulations; this is not a proof",
)
question(
    15,
    "One-way jumps, 3.2.1",
    "Do nonlinear networks jump, in the bottleneck rank?",
    "open",
)
question(
    16,
    "One-way jumps, 4",
    "Why does SGD diverge at first at rates that are fine later?",
    "open",
)
question(
    17,
    "One-way jumps, 2.1 and A",
    "Which notion of least rank counts when an infimum is not attained?",
    "open",
)
question(
    18,
    "One-way jumps, 3.2",
    "Does another function f_alpha in the soft rank change anything?",
    "open",
)
question(
    19,
    "Structured dropout, 2.3",
    "Is Lambda(A) convex?",
    "proved",
    "Yes: the infimum over the width makes it a squared gauge",
    by="dropblock-tight",
)
question(
    20,
    "Structured dropout, 2.3",
    "Must X have full column rank?",
    "proved",
    "No: optima hold for singular second moments",
    by="anisotropic-optimum",
)
question(
    21,
    "Structured dropout, 2.3",
    "How tight is the bound at a fixed number of blocks?",
    "part",
    "Below the rank divided by the block size there is a gap",
    by="dropblock-few-blocks",
    remains="the exact value in general",
)
question(
    22,
    "Structured dropout, 3",
    "Arbitrary masks, beyond the penalty: bound and optimum?",
    "part",
    "A lower bound for every noise",
    by="any-noise-bound",
    remains="the exact optimum of sliding blocks",
)
question(
    23,
    "Structured dropout, 3.3",
    "Does a ReLU before the last layer span all features, as is assumed?",
    "counterexample",
    "No: features are nonnegative, so balanced labels pay about twice the stated penalty",
    by="relu-one-output",
    remains="several outputs: between once and twice lam |A|_*^2",
)
question(
    24,
    "Structured dropout, 4",
    "Is DropConnect the same as Dropout?",
    "counterexample",
    "For uncorrelated inputs only; its landscape is benign at enough width all the same",
    by=("dropconnect", "dropconnect-optimum", "convex-landscape"),
)
question(
    25,
    "Structured dropout, 2.3",
    "Does the k-support norm explain why DropBlock works better?",
    "open",
)
question(
    26,
    "Thesis, 3.4",
    "Training stays near equalized networks: what does this say of its dynamics?",
    "open",
)
question(
    27,
    "Thesis, 4.2 and 4.7",
    "Completion when entries are not observed by a product law",
    "open",
    "A product law below the true one gives a norm; where P_ij = 0 nothing bounds the entry",
)
question(
    28,
    "Thesis, 4.3",
    "Can retentivity be estimated?",
    "proved",
    "To decide whether it is below 1/4 is NP-hard; in fixed dimensions it is polynomial",
    by="retentivity-hard",
)
question(
    29,
    "Thesis, 4.7",
    "Can retentivity be avoided, or is it required?",
    "proved",
    "Some condition is required; a convex quantity replaces it and is never worse",
    by=("retentivity-required", "polar-complexity"),
    remains="a quantity that is finite for nonnegative inputs",
)
question(
    30,
    "Thesis, 4.3",
    "More outputs than one, and odd widths",
    "open",
)
question(
    31,
    "Thesis, 4.7",
    "Other losses than squares",
    "part",
    "The landscape is benign for every convex loss with the same penalty, at enough width",
    by="convex-landscape",
    remains="the penalty that other losses induce, and deep nonlinear networks",
)
question(
    32,
    "Thesis, 4.2",
    "What is the constant K of Theorem 11?",
    "proved",
    "Matrix Bernstein gives one; at least 1.558 is needed",
    by="completion-bound",
)
question(
    33,
    "Thesis, 5.6",
    "Do typical sub-networks generalize, not only those that were visited?",
    "proved",
    "Yes, on average over the steps: visited masks are sampled after the weights",
    by="typical-subnetworks",
    remains="the last iterate alone",
)
question(
    34,
    "Thesis, 5.6 and 7.3",
    "Training beyond the lazy regime, at moderate widths",
    "open",
)
question(
    35,
    "Thesis, 5.2",
    "Which factors 1/q does training without rescaling introduce?",
    "open",
)
question(
    36,
    "Thesis, 6.6",
    "Several classes: what to maximize?",
    "counterexample",
    "Aiming at the likeliest class can fail; every class in turn does not",
    by="greedy-reflection",
)
question(
    37,
    "Thesis, 6.6",
    "Does beta = 0 suffice?",
    "counterexample",
    "Not in general: gradient ascent can miss an attack for ever; it does where y f is convex",
    by=("attack-misses", "one-sided-drift"),
)
question(
    38,
    "Thesis, 6.3",
    "The constant in beta >= 2 nu (1 - alpha) kappa sqrt(m)",
    "part",
    "4 sqrt(m_y) |W_y|/|W| for 4 sqrt(m) suffices, over the units with y a_r < 0",
    by=("one-sided-drift", "attack-misses"),
    remains="the best constant, between 1 and 4",
)
question(
    39,
    "Thesis, 6.6",
    "Other geometries, such as L-infinity",
    "part",
    "Any convex set for projected gradients, with its Euclidean radius for nu",
    by="one-sided-drift",
    remains="signed steps (BIM)",
)
question(
    40,
    "Thesis, 6.3",
    "Is nu < gamma necessary?",
    "open",
    "For alpha = 1 it is; for alpha < 1 it is only known to suffice",
)
question(
    41,
    "Thesis, 4.7 and 7.3",
    "Other data-dependent regularizers; the landscape of practical networks",
    "open",
)
question(
    42,
    "overt",
    "DropConnect on three hidden layers, tied deep networks, caps on the rank for unequal layers",
    "open",
)
