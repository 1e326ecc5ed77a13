"""Every public function with a good value, and the kind, of each argument.

`COVERED` and `EXCLUDED` together name all that the public modules export; a test keeps it so.
"""

# ruff: noqa: E501
from __future__ import annotations

from functools import partial

import numpy as np
import torch
from fuzz.hostile import Row
from fuzz.values import Frame
from torch import nn

import overt
from overt import decay, equalize, penalty, relu, robust, spectral
from overt import nn as noisy
from overt.completion import DropoutCompletion, DropoutImputer, evaluate, read_ratings
from overt.datasets import generate_ratings, movielens
from overt.linear import (
    DeepLinearNetwork,
    LinearNetwork,
    TiedAutoencoder,
    inverse_decay,
    rank_jump,
)
from overt.papers import find, verify

RNG = np.random.default_rng(0)


def grid(*shape):
    """Numbers that half precision holds exactly."""
    return RNG.integers(-16, 17, shape) / 8 + (RNG.integers(0, 2, shape) + 0.5) / 16


A, U, V = grid(4, 3), grid(4, 2), grid(3, 2)
X, Y, W1, W2 = grid(6, 3), grid(6, 2), grid(3, 4), grid(2, 3)
S, T = np.array([3.0, 2.0, 0.5]), np.array([2.5, 1.5, 1.5])
P = np.array([0.25, 0.5, 0.125])
C = np.array([[2.0, 0.5, 0.0], [0.5, 1.0, 0.25], [0.0, 0.25, 1.0]])
D2 = np.array([[1.0, 0.25], [0.25, 0.5]])
DROP, BLOCK, OTHER = (
    overt.Dropout(0.5),
    overt.DropBlock(0.5, 2),
    overt.CovarianceNoise([1, 1], D2),
)
ROWS, COLS = np.array([0, 1, 2, 3, 0]), np.array([0, 1, 2, 0, 2])
VALUES = np.array([1.0, 2.0, 3.0, 2.5, 1.5])
ENTRIES = overt.Entries(ROWS, COLS, VALUES, shape=(4, 3))
SMALL = decay.two_by_two(0.25)
UNIT = np.array([[0.6, 0.8], [1.0, 0.0], [0.0, 1.0], [-0.6, 0.8]])
SIGNS = np.array([1.0, 1.0, -1.0, -1.0])
TABLE = np.where(grid(8, 3) > 1.5, np.nan, grid(8, 3))

a, n, w, p, s, i = "array", "number", "size", "prob", "seed", "index"
c, t, f = "count", "thing", "flag"


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 2))


NET, BATCH, LABELS = net(), torch.tensor(X).float(), torch.tensor([0, 1, 1, 0, 1, 0])
IMAGES = torch.tensor(grid(2, 2, 6, 6)).float()


def entries(rows, cols, values, shape):
    return overt.Entries(rows, cols, values, shape=shape)


def fitted(**given):
    return DropoutCompletion(**{"n_factors": 2, "max_sweeps": 3, "seed": 0} | given)


def fit(values, n_factors, drop_prob, ridge, max_sweeps, tol, average, seed, biases):
    model = fitted(
        n_factors=n_factors,
        drop_prob=drop_prob,
        ridge=ridge,
        max_sweeps=max_sweeps,
        tol=tol,
        average=average,
        seed=seed,
        biases=biases,
    )
    return model.fit_triplets(ROWS, COLS, values).predict(ROWS, COLS)


MODEL = fitted(average=0).fit(ENTRIES)
IMPUTER = DropoutImputer().fit(TABLE)
DEEP = decay.DeepLinearCompletion(depth=3, width=2).fit(ENTRIES)
RUNS = decay.simulate(
    SMALL,
    3,
    4,
    decay.Schedule.constant(20, 0.1, 0.01),
    2,
    records=5,
    n_jobs=1,
    progress=False,
)
LAYERS = decay.balanced(np.array([[1.0, 0.5], [0.5, 0.25]]), 3, 2)
WIDE = relu.TwoLayer(W2[:1], grid(3, 3))


def methods(make, shown, warns="$.", **kinds):
    """A row for each method of one object."""
    return {
        f"{shown}.{k}": Row(getattr(make, k), v, warns=warns) for k, v in kinds.items()
    }


def noise_rows(shown, noise, width=2):
    calls = {
        k: {"width": (w, width)}
        for k in ("mean", "characteristic", "covariance", "relative_variance")
    }
    drawn = {"width": (w, width), "size": (c, 3), "seed": (s, 1)}
    return methods(noise, shown, **calls, sample=drawn, multipliers=drawn)


NOISE = {
    "overt.Dropout": Row(
        lambda drop_prob: overt.Dropout(drop_prob).strength, {"drop_prob": (a, P)}
    ),
    "overt.Dropout of one": Row(
        lambda drop_prob: overt.Dropout(drop_prob).characteristic(2),
        {"drop_prob": (p, 0.5)},
    ),
    "overt.Dropout of strength": Row(
        lambda strength: overt.Dropout(strength=strength).mean(2),
        {"strength": (n, 0.5)},
    ),
    "overt.DropBlock": Row(
        lambda drop_prob, block_size, placement: overt.DropBlock(
            drop_prob, block_size, placement
        ).characteristic(4),
        {"drop_prob": (p, 0.5), "block_size": (w, 2), "placement": ("word", "sliding")},
    ),
    "overt.DropConnect": Row(
        lambda drop_prob: overt.DropConnect(drop_prob).mean(2), {"drop_prob": (p, 0.5)}
    ),
    "overt.KeepExactly": Row(
        lambda count: overt.KeepExactly(count).characteristic(3), {"count": (w, 2)}
    ),
    "overt.CovarianceNoise": Row(
        lambda mean, covariance: overt.CovarianceNoise(mean, covariance).characteristic(
            3
        ),
        {"mean": (a, P), "covariance": (a, C)},
    ),
    **noise_rows("overt.Dropout", DROP),
    **noise_rows("overt.DropBlock", BLOCK),
    **noise_rows("sliding DropBlock", overt.DropBlock(0.5, 2, "sliding"), 3),
    **noise_rows("overt.KeepExactly", overt.KeepExactly(1)),
    **noise_rows("overt.CovarianceNoise", OTHER),
    **noise_rows("overt.DropConnect", overt.DropConnect(0.5)),
    "overt.Dropout.at_width": Row(
        lambda width: DROP.at_width(width).drop_prob, {"width": (w, 4)}
    ),
    "overt.DropBlock.at_width": Row(
        lambda width: BLOCK.at_width(width).drop_prob, {"width": (w, 4)}
    ),
    "overt.DropBlock.seed_probability": Row(BLOCK.seed_probability, {"width": (w, 4)}),
}

PENALTY = {
    "penalty.shallow": Row(
        penalty.shallow,
        {"U": (a, U), "V": (a, V), "noise": (t, DROP), "second_moment": (a, C)},
    ),
    "penalty.shallow of blocks": Row(
        penalty.shallow, {"U": (a, U), "V": (a, V), "noise": (t, BLOCK)}
    ),
    "penalty.tied": Row(
        penalty.tied, {"U": (a, V), "noise": (t, DROP), "second_moment": (a, C)}
    ),
    "penalty.hidden": Row(
        penalty.hidden, {"U": (a, U), "activations": (a, V), "noise": (t, OTHER)}
    ),
    "penalty.predictive_variance": Row(
        penalty.predictive_variance,
        {"U": (a, U), "activations": (a, V), "noise": (t, BLOCK)},
    ),
    "penalty.dropconnect": Row(
        penalty.dropconnect,
        {"U": (a, U), "V": (a, V), "drop_prob": (p, 0.5), "second_moment": (a, C)},
    ),
    "penalty.deep": Row(
        penalty.deep,
        {
            "weights": ("weights", [W1.T, W1, W2]),
            "drop_prob": (p, 0.5),
            "second_moment": (a, C),
        },
    ),
    "penalty.deep_terms": Row(
        penalty.deep_terms,
        {"weights": ("weights", [W1.T, W1, W2]), "second_moment": (a, C)},
    ),
    "penalty.completion": Row(
        penalty.completion,
        {
            "U": (a, U),
            "V": (a, V),
            "rows": (i, ROWS),
            "cols": (i, COLS),
            "drop_prob": (p, 0.5),
        },
    ),
    "penalty.sensing": Row(
        penalty.sensing,
        {
            "U": (a, U),
            "V": (a, V),
            "measurements": (a, grid(2, 4, 3)),
            "drop_prob": (p, 0.5),
        },
    ),
    "penalty.path_norm": Row(
        penalty.path_norm, {"weights": ("weights", [W1.T, W1, W2]), "order": (n, 2.0)}
    ),
}


def norm_rows(shown, norm, prox=True):
    pair = {"s": (a, S), "weight": (n, 0.5)}
    rows = methods(
        norm,
        shown,
        value={"s": (a, S)},
        dual={"s": (a, S)},
        matrix_value={"A": (a, A)},
        matrix_dual={"A": (a, A)},
        optimality={"s": (a, S), "a": (a, T), "weight": (n, 0.5)},
    )
    if prox:
        rows |= methods(
            norm,
            shown,
            prox=pair,
            shrinkage=pair,
            matrix_prox={"A": (a, A), "weight": (n, 0.5)},
        )
    return rows


SPECTRAL = {
    **norm_rows("spectral.SquaredNuclear", spectral.SquaredNuclear()),
    **norm_rows("spectral.KSupport", spectral.KSupport(2)),
    **norm_rows("spectral.Schatten", spectral.Schatten(2.0)),
    **norm_rows("spectral.Schatten of 3/2", spectral.Schatten(1.5), False),
    **norm_rows("largest", spectral.Schatten(np.inf)),
    "spectral.SquaredNuclear": Row(
        spectral.SquaredNuclear().prox, {"s": (a, S), "weight": (n, 0.5)}
    ),
    "spectral.KSupport": Row(
        lambda k: spectral.KSupport(k).prox(S, 0.5), {"k": (w, 2)}
    ),
    "spectral.KSupport.occupancy": Row(spectral.KSupport(2).occupancy, {"s": (a, S)}),
    "spectral.Schatten": Row(lambda p: spectral.Schatten(p).value(S), {"p": (n, 1.5)}),
    "spectral.nu": Row(spectral.nu, {"widths": (w, 3), "drop_prob": (p, 0.5)}),
    "spectral.factorization_cost": Row(
        spectral.factorization_cost, {"s": (a, S), "depth": (w, 3)}
    ),
    "spectral.induced": Row(
        lambda noise, width: spectral.induced(noise, width)[0],
        {"noise": (t, BLOCK), "width": (w, 4)},
    ),
}

EQUALIZE = {
    "equalize.equalizer": Row(equalize.equalizer, {"U": (a, A)}, unique=False),
    "equalize.equalize_product": Row(
        lambda A, width: np.linalg.norm(
            np.asarray(
                equalize.equalize_product(A, width)[0].detach()
                if hasattr(A, "detach")
                else equalize.equalize_product(A, width)[0]
            ),
            axis=0,
        ),
        {"A": (a, A), "width": (w, 4)},
    ),
    "equalize.balanced_factors": Row(
        equalize.balanced_factors,
        {"left": (a, np.eye(3)), "s": (a, S), "right": (a, np.eye(3)), "width": (w, 4)},
    ),
    "equalize.schur_horn": Row(
        equalize.schur_horn, {"eigenvalues": (a, S), "diagonal": (a, T)}
    ),
    "equalize.majorization_excess": Row(
        equalize.majorization_excess, {"eigenvalues": (a, S), "diagonal": (a, T)}
    ),
    "equalize.importance": Row(
        equalize.importance, {"U": (a, U), "V": (a, V), "second_moment": (a, C)}
    ),
    "equalize.imbalance": Row(
        equalize.imbalance, {"U": (a, U), "V": (a, V), "second_moment": (a, C)}
    ),
    "equalize.block_imbalance": Row(
        equalize.block_imbalance, {"U": (a, U), "V": (a, V), "block_size": (w, 2)}
    ),
    "equalize.equalization_gaps": Row(
        equalize.equalization_gaps,
        {"weights": ("weights", [W1.T, W1, W2]), "second_moment": (a, C)},
    ),
}


def solved(target, width, second_moment):
    net = LinearNetwork(target, width, DROP, second_moment=second_moment)
    return net.solve().objective


def of_rank(net, name, rank):
    return getattr(getattr(net, name)(rank), "objective", None)


def by_position(net, name, **weights):
    return getattr(net, name)(*weights.values())


def of_weights(net, **weights):
    """A row for each method of a network that takes weights, by position."""
    return {
        f"overt.{type(net).__name__}.{name}": Row(
            partial(by_position, net, name), weights
        )
        for name in ("penalty", "objective", "certify")
    }


TASK, TIED = LinearNetwork(A, 2, DROP), TiedAutoencoder(C, 2, DROP)
LAYERED = DeepLinearNetwork(A, (3, 2), 0.5)
RUN = {"steps": (c, 4), "learning_rate": (n, 0.01), "seeds": (c, 2), "records": (c, 2)}
LINEAR = {
    "overt.LinearNetwork": Row(
        solved,
        {
            "target": (a, A),
            "width": (w, 2),
            "second_moment": (a, C),
        },
    ),
    "overt.LinearNetwork of data": Row(
        lambda X, Y, width: (
            LinearNetwork(None, width, DROP, X=X, Y=Y).solve().objective
        ),
        {"X": (a, X), "Y": (a, Y), "width": (w, 2)},
    ),
    "overt.LinearNetwork with noise": Row(
        lambda target, noise, input_noise: (
            LinearNetwork(target, 2, noise, input_noise=input_noise).solve().objective
        ),
        {"target": (a, A), "noise": (t, BLOCK), "input_noise": (t, DROP)},
    ),
    **of_weights(TASK, U=(a, U), V=(a, V)),
    **{
        f"overt.{type(net).__name__}.{name}": Row(
            partial(of_rank, net, name), {"rank": (c, 1)}, unique=False
        )
        for net in (TASK, TIED, LAYERED)
        for name in ("solve", "bound")
    },
    "linear.rank_jump": Row(rank_jump, {"widths": (t, (3, 3)), "drop_prob": (p, 0.5)}),
    "overt.LinearNetwork.train": Row(TASK.train, RUN, infinite=True),
    "overt.TiedAutoencoder": Row(
        lambda target, width, noise: (
            TiedAutoencoder(target, width, noise).solve().objective
        ),
        {"target": (a, C), "width": (w, 2), "noise": (t, DROP)},
    ),
    **of_weights(TIED, U=(a, V)),
    **methods(TIED, "overt.TiedAutoencoder", landscape={"max_points": (c, 3)}),
    "overt.TiedAutoencoder.train": Row(TIED.train, RUN, infinite=True),
    "overt.DeepLinearNetwork": Row(
        lambda target, widths, drop_prob: (
            DeepLinearNetwork(target, widths, drop_prob).solve().objective
        ),
        {"target": (a, A[:, :1]), "widths": (t, (3,)), "drop_prob": (p, 0.5)},
    ),
    **of_weights(LAYERED, weights=("weights", [grid(3, 3), grid(2, 3), grid(4, 2)])),
    "overt.DeepLinearNetwork.train": Row(LAYERED.train, RUN, infinite=True),
    "overt.drop_prob_for_rank": Row(
        overt.drop_prob_for_rank, {"target": (a, A), "width": (w, 3), "rank": (w, 1)}
    ),
    "overt.path": Row(
        lambda target, width, drop_probs: overt.path(target, width, drop_probs),
        {"target": (a, A), "width": (w, 3), "drop_probs": (a, P)},
        unique=False,
    ),
    "linear.inverse_decay": Row(
        lambda rate, halving: inverse_decay(rate, halving)(np.arange(3)),
        {"rate": (n, 0.5), "halving": (n, 10.0)},
    ),
}

ENTRY = {
    "overt.Entries": Row(
        lambda rows, cols, values: overt.Entries(rows, cols, values).values,
        {"rows": (i, ROWS), "cols": (i, COLS), "values": (a, VALUES)},
    ),
    "overt.Entries with more": Row(
        lambda shape, row_ids, times, truth: overt.Entries(
            ROWS, COLS, VALUES, shape, row_ids, None, times, truth
        ).to_sparse(),
        {
            "shape": (t, (4, 3)),
            "row_ids": (a, np.arange(4.0)),
            "times": (a, VALUES),
            "truth": (a, A),
        },
        unique=False,
    ),
    "overt.Entries.from_matrix": Row(
        lambda A: overt.Entries.from_matrix(A).values,
        {"A": (a, np.where(A > 1, np.nan, A))},
        unique=False,
    ),
    "overt.Entries.from_ids": Row(
        lambda rows, cols, values, times: (
            overt.Entries.from_ids(rows, cols, values, times).values
        ),
        {
            "rows": (i, ROWS),
            "cols": (i, COLS),
            "values": (a, VALUES),
            "times": (a, VALUES),
        },
        unique=False,
    ),
    "overt.Entries.from_frame": Row(
        lambda frame: overt.Entries.from_frame(frame).values,
        {"frame": (t, Frame({"r": ROWS, "c": COLS, "v": VALUES}))},
        unique=False,
    ),
    "overt.Entries.sample": Row(
        lambda truth, count, seed: overt.Entries.sample(truth, count, seed).values,
        {"truth": (a, A), "count": (w, 4), "seed": (s, 0)},
    ),
    "overt.Entries.split": Row(
        lambda holdout, seed: ENTRIES.split(holdout, seed)[0].values,
        {"holdout": (n, 0.25), "seed": (s, 0)},
    ),
    "overt.Entries.take": Row(
        lambda chosen: ENTRIES.take(chosen).values,
        {"chosen": (i, np.array([0, 2]))},
        unique=False,
    ),
}

KEPT = "all .* values|did not converge|.*were never seen|.*lies outside of|nothing to predict|interrupted"
COMPLETION = {
    "completion.DropoutCompletion": Row(
        fit,
        {
            "values": (a, VALUES),
            "n_factors": (w, 2),
            "drop_prob": (p, 0.5),
            "ridge": (n, 0.01),
            "max_sweeps": (c, 3),
            "tol": (n, 0.01),
            "average": (c, 0),
            "seed": (s, 0),
            "biases": (f, True),
        },
        warns=KEPT,
    ),
    "learned DropoutCompletion": Row(
        lambda values, average: (
            fitted(average=average).fit_triplets(ROWS, COLS, values).predict(ROWS, COLS)
        ),
        {"values": (a, VALUES), "average": (c, 2)},
        warns=KEPT,
    ),
    "completion.DropoutCompletion.fit": Row(
        lambda X: fitted(drop_prob=0.5).fit(X).predict([0, 1], [0, 1]),
        {"X": (a, np.where(A > 1, np.nan, A))},
        warns=KEPT,
        unique=False,
    ),
    "completion.DropoutCompletion of words": Row(
        lambda engine, missing, signals, clip: (
            fitted(
                engine=engine,
                missing=missing,
                signals=signals,
                clip=clip,
                drop_prob="learn",
            )
            .fit(ENTRIES)
            .predict([0], [0])
        ),
        {
            "engine": ("word", "local"),
            "missing": ("word", "unknown"),
            "signals": (t, False),
            "clip": (t, "auto"),
        },
        warns=KEPT,
    ),
    **methods(
        MODEL,
        "completion.DropoutCompletion",
        KEPT,
        predict={"rows": (i, ROWS), "cols": (i, COLS)},
        complete={"rows": (i, ROWS)},
        explain={"row": (w, 1), "col": (w, 1)},
        recommend={"row": (w, 1), "n": (w, 2)},
        score={"X": (a, np.where(A > 1, np.nan, A))},
    ),
    "completion.DropoutCompletion.fold_in": Row(
        lambda cols, values: MODEL.fold_in((cols, values)).predict([0, 1]),
        {"cols": (i, COLS[:3]), "values": (a, VALUES[:3])},
        warns=KEPT,
    ),
    "completion.DropoutCompletion.partial_fit": Row(
        lambda X, sweeps: (
            fitted(average=0)
            .fit(ENTRIES)
            .partial_fit(X, sweeps=sweeps)
            .predict([0], [0])
        ),
        {"X": (t, ENTRIES), "sweeps": (c, 1)},
        warns=KEPT,
    ),
    "completion.DropoutImputer": Row(
        lambda X, max_sweeps, tol: DropoutImputer(
            max_sweeps=max_sweeps, tol=tol
        ).fit_transform(X),
        {"X": (a, TABLE), "max_sweeps": (c, 3), "tol": (n, 0.01)},
        unique=False,
        warns="have no entry|not converged",
    ),
    "completion.DropoutImputer.transform": Row(
        IMPUTER.transform, {"X": (a, TABLE)}, unique=False
    ),
    "completion.DropoutImputer.impute": Row(
        IMPUTER.impute, {"X": (a, TABLE), "n": (c, 2), "seed": (s, 1)}, unique=False
    ),
    "completion.evaluate": Row(
        lambda data, split, holdout, seed: evaluate(
            fitted(drop_prob=0.5), data, split=split, holdout=holdout, seed=seed
        ),
        {
            "data": (t, ENTRIES),
            "split": ("word", "random"),
            "holdout": (n, 0.25),
            "seed": (s, 0),
        },
        infinite=True,
        warns=KEPT,
    ),
    "completion.read_ratings": Row(read_ratings, {"path": (t, "nowhere.csv")}),
    "datasets.generate_ratings": Row(
        lambda n_rows, n_cols, n_ratings, rank, noise, popularity, seed: (
            generate_ratings(
                n_rows,
                n_cols,
                n_ratings,
                rank=rank,
                noise=noise,
                popularity=popularity,
                seed=seed,
            )[0].values
        ),
        {
            "n_rows": (w, 6),
            "n_cols": (w, 5),
            "n_ratings": (w, 12),
            "rank": (w, 2),
            "noise": (n, 0.5),
            "popularity": (n, 1.0),
            "seed": (s, 0),
        },
    ),
    "datasets.movielens": Row(
        movielens, {"size": ("word", "none"), "folder": (t, "nowhere")}
    ),
}

SMALLEST = {"problem": (t, SMALL), "depth": (w, 3)}
WHOLE = overt.Entries.from_matrix(np.diag([2.0, 1.0]))
DECAY = {
    "decay.minima": Row(
        lambda problem, depth, weight_decay, starts, seed: [
            m.loss
            for m in decay.minima(
                problem, depth, weight_decay, starts=starts, seed=seed
            )
        ],
        SMALLEST | {"weight_decay": (n, 0.01), "starts": (c, 1), "seed": (s, 0)},
        unique=False,
    ),
    "decay.existence": Row(
        decay.existence, {"problem": (t, WHOLE), "depth": (w, 3), "rank": (w, 1)}
    ),
    "decay.rank_thresholds": Row(
        lambda problem, depth: decay.rank_thresholds(problem, depth).exists,
        {"problem": (t, WHOLE), "depth": (w, 3)},
    ),
    "decay.smallest_fitting_rank": Row(
        decay.smallest_fitting_rank,
        {"problem": (t, SMALL), "starts": (c, 1), "seed": (s, 0)},
    ),
    "decay.simulate": Row(
        lambda problem, depth, width, seeds, init, records, seed: (
            decay.simulate(
                problem,
                depth,
                width,
                decay.Schedule.constant(9, 0.1, 0.01),
                seeds,
                init,
                records,
                seed=seed,
                n_jobs=1,
                progress=False,
            ).singular_values
        ),
        infinite=True,
        args=SMALLEST
        | {
            "width": (w, 3),
            "seeds": (c, 2),
            "init": (n, 1.0),
            "records": (c, 3),
            "seed": (s, 0),
        },
    ),
    "decay.jumps": Row(
        lambda problem, rank, threshold, confidence: (
            decay.jumps(
                problem,
                3,
                3,
                decay.Schedule.constant(9, 0.1, 0.01),
                2,
                rank=rank,
                threshold=threshold,
                confidence=confidence,
                n_jobs=1,
            ).surviving
        ),
        {
            "problem": (t, SMALL),
            "rank": (w, 1),
            "threshold": (n, 0.05),
            "confidence": (p, 0.9),
        },
    ),
    "decay.find_jumps": Row(
        lambda runs, rank, threshold, floor, confidence: (
            decay.find_jumps(
                runs, rank=rank, threshold=threshold, floor=floor, confidence=confidence
            ).surviving
        ),
        {
            "runs": (t, RUNS),
            "rank": (w, 1),
            "threshold": (n, 0.05),
            "floor": (n, 0.02),
            "confidence": (p, 0.9),
        },
    ),
    "decay.balanced": Row(
        decay.balanced, {"A": (a, D2), "depth": (w, 3), "width": (w, 3)}
    ),
    "decay.effective": Row(
        decay.effective,
        {
            "learning_rate": (n, 0.1),
            "weight_decay": (n, 0.01),
            "convention": ("word", "loss"),
        },
    ),
    "decay.initial_weights": Row(
        decay.initial_weights,
        SMALLEST | {"width": (w, 3), "init": (n, 1.0), "seed": (s, 0), "run": (c, 0)},
    ),
    "decay.test_error": Row(
        decay.test_error, {"entries": (t, SMALL), "A": (a, D2)}, infinite=True
    ),
    "decay.train_error": Row(
        decay.train_error, {"entries": (t, SMALL), "A": (a, D2)}, infinite=True
    ),
    "decay.two_by_two": Row(
        lambda epsilon: decay.two_by_two(epsilon).values, {"epsilon": (n, 0.25)}
    ),
    "decay.Phase": Row(
        lambda steps, learning_rate, weight_decay: vars(
            decay.Phase(steps, learning_rate, weight_decay)
        ),
        {"steps": (w, 5), "learning_rate": (n, 0.1), "weight_decay": (n, 0.01)},
    ),
    "decay.Schedule": Row(
        lambda phases: decay.Schedule(phases).steps,
        {"phases": (t, (decay.Phase(5, 0.1, 0.1),))},
    ),
    "decay.Schedule.constant": Row(
        lambda steps, learning_rate, weight_decay: (
            decay.Schedule.constant(steps, learning_rate, weight_decay).steps
        ),
        {"steps": (w, 5), "learning_rate": (n, 0.1), "weight_decay": (n, 0.01)},
    ),
    "decay.DeepLinearCompletion": Row(
        lambda depth, width, holdout, tol, seed: (
            decay.DeepLinearCompletion(depth, width, holdout, tol, seed)
            .fit(ENTRIES)
            .predict([0], [0])
        ),
        {
            "depth": (w, 3),
            "width": (w, 2),
            "holdout": (n, 0.25),
            "tol": (n, 0.1),
            "seed": (s, 0),
        },
    ),
    **methods(
        DEEP,
        "decay.DeepLinearCompletion",
        predict={"rows": (i, ROWS), "cols": (i, COLS)},
    ),
}

BOUND = {"alpha": (n, 1.0), "norm": (n, 2.0), "n": (w, 10)}
RELU = {
    "relu.capacity": Row(relu.capacity, {"psi": (a, S)}),
    "relu.coadaptation": Row(relu.coadaptation, {"psi": (a, S)}),
    "relu.flows": Row(relu.flows, {"U": (a, W2), "activations": (a, X)}),
    "relu.positive_norm": Row(
        relu.positive_norm, {"X": (a, X), "second_moment": (a, C)}, infinite=True
    ),
    "relu.rademacher_upper": Row(
        relu.rademacher_upper, BOUND | {"retentivity": (n, 0.25)}, infinite=True
    ),
    "relu.rademacher_lower": Row(relu.rademacher_lower, BOUND, infinite=True),
    "relu.risk_bound": Row(
        relu.risk_bound,
        BOUND | {"empirical": (n, 0.5), "retentivity": (n, 0.25), "delta": (n, 0.05)},
        infinite=True,
    ),
    "relu.symmetrized_bound": Row(
        relu.symmetrized_bound,
        BOUND | {"empirical": (n, 0.5), "delta": (n, 0.05)},
        infinite=True,
    ),
    "relu.one_output_optimum": Row(
        lambda y, width, drop_prob: (
            relu.one_output_optimum(y, width, drop_prob).objective
        ),
        {"y": (a, S), "width": (w, 3), "drop_prob": (p, 0.5)},
    ),
    "relu.escaping_weights": Row(
        lambda size: relu.escaping_weights(size)[1:], {"size": (n, 1.0)}
    ),
    "relu.train_lazy": Row(
        relu.train_lazy,
        {
            "X": (a, UNIT),
            "y": (a, SIGNS),
            "width": (w, 4),
            "drop_prob": (p, 0.5),
            "steps": (c, 4),
            "learning_rate": (n, 0.5),
            "max_norm": (n, 2.0),
            "masks": (c, 2),
            "records": (c, 2),
            "seed": (s, 0),
        },
        unique=False,
        infinite=True,
    ),
    "relu.TwoLayer": Row(
        lambda U, V: relu.TwoLayer(U, V).predict(X),
        {"U": (a, W2[:, :2]), "V": (a, grid(3, 2))},
    ),
    **methods(
        WIDE,
        "relu.TwoLayer",
        predict={"X": (a, X)},
        activations={"X": (a, X)},
        penalty={"X": (a, X), "noise": (t, DROP)},
        flows={"X": (a, X)},
        objective={"X": (a, X), "Y": (a, Y[:, :1]), "noise": (t, DROP)},
        capacity={"X": (a, X)},
        coadaptation={"X": (a, X)},
        clipped_error={"X": (a, X), "y": (a, SIGNS[[0, 1, 2, 3, 0, 1]])},
    ),
}


def layer(kind, **kinds):
    def call(**given):
        shape = {"DropBlock1d": (2, 2, 6), "DropBlock3d": (1, 2, 4, 4, 4)}.get(
            kind, (2, 2, 6, 6)
        )
        return getattr(noisy, kind)(**given)(torch.ones(shape))

    return {f"nn.{kind}": Row(call, kinds)}


x, b = ("batch", BATCH), ("batch", IMAGES)
PROB = {"drop_prob": (p, 0.5), "seed": (s, 1)}
CONV = nn.Sequential(
    noisy.DropBlock2d(0.3, 2), nn.Conv2d(2, 2, 3), nn.Flatten(), nn.Linear(32, 2)
)
PREDICTIVE = noisy.Predictive(net())
NETWORKS = {
    **layer("Dropout", **PROB),
    **layer("DropBlock1d", **PROB, block_size=(w, 2)),
    **layer("DropBlock2d", **PROB, block_size=(w, 2), placement=("word", "sliding")),
    **layer("DropBlock3d", **PROB, block_size=(w, 2)),
    "nn.DropConnectLinear": Row(
        lambda in_features, out_features, drop_prob, seed: (
            noisy.DropConnectLinear(
                in_features, out_features, drop_prob=drop_prob, seed=seed
            )(torch.ones(2, in_features)).shape
        ),
        {"in_features": (c, 3), "out_features": (c, 2), **PROB},
    ),
    "nn.CovarianceDropout": Row(
        lambda mean, covariance, seed: noisy.CovarianceDropout(
            mean, covariance, seed=seed
        )(torch.ones(2, 2)),
        {
            "mean": (a, np.array([1.0, 0.5])),
            "covariance": (a, D2),
            "seed": (s, 1),
        },
        unique=False,
    ),
    "nn.explicit_penalty": Row(
        lambda model, x, y, loss: noisy.explicit_penalty(model, x, y, loss=loss),
        {
            "model": (t, NET),
            "x": x,
            "y": ("batch", torch.zeros(6, 2)),
            "loss": ("word", "mse"),
        },
    ),
    "nn.explicit_penalty of images": Row(
        lambda model, x: noisy.explicit_penalty(model, x), {"model": (t, CONV), "x": b}
    ),
    "nn.predictive_moments": Row(
        lambda model, x, tol, draws: noisy.predictive_moments(
            model, x, tol=tol, draws=draws
        ),
        {"model": (t, NET), "x": x, "tol": (n, 0.5), "draws": (c, 4)},
        unique=False,
    ),
    "nn.mc_moments": Row(
        lambda model, x, n, seed: noisy.mc_moments(model, x, n, seed=seed),
        {"model": (t, NET), "x": x, "n": (c, 4), "seed": (s, 0)},
    ),
    "nn.without_noise": Row(
        lambda model, x, loss: noisy.without_noise(model, loss=loss)(x),
        {"model": (t, NET), "x": x, "loss": ("word", "mse")},
    ),
    "nn.Predictive": Row(
        lambda model, loss, x: noisy.Predictive(model, loss=loss)(x),
        {"model": (t, NET), "x": x, "loss": ("word", "mse")},
        unique=False,
    ),
    **{
        f"nn.Predictive.{k}": Row(
            getattr(PREDICTIVE, k), {"x": x}, network=NET, unique=False
        )
        for k in ("mean", "std", "moments")
    },
    "nn.Predictive.interval": Row(
        PREDICTIVE.interval, {"x": x, "level": (p, 0.5)}, network=NET
    ),
    "nn.audit": Row(
        lambda model, x, y, loss, passes, seed: noisy.audit(
            model, (x, y), loss, passes=passes, seed=seed
        ).to_dict(),
        {
            "model": (t, NET),
            "x": x,
            "y": ("batch", torch.zeros(6, 2)),
            "loss": ("word", "mse"),
            "passes": (n, 1.0),
            "seed": (s, 0),
        },
        infinite=True,
        unique=False,
    ),
    "nn.compress": Row(
        lambda model, keep, example, by: noisy.compress(model, keep, example, by=by)[0](
            BATCH
        ),
        {"model": (t, NET), "keep": (n, 0.5), "example": x, "by": ("word", "flow")},
        unique=False,
    ),
}

GOOD = {"model": (t, net().eval()), "x": x, "y": (t, LABELS)}
HARD = "."
BALL = robust.L2(0.5)
EXACT = nn.Linear(X.shape[1], 3, dtype=torch.float64)


def attacked(attack):
    return lambda model, x, y: attack(model, x, y).x


ROBUST = {
    **{
        f"robust.{kind}": Row(
            lambda radius, kind=kind: (
                getattr(robust, kind)(radius, bounds=(-3, 3)).with_radius(0.25).radius
            ),
            {"radius": (n, 0.5)},
        )
        for kind in ("L1", "L2", "Linf")
    },
    "robust.bounds": Row(
        lambda bounds: robust.L2(0.5, bounds).radius, {"bounds": (t, (-1.0, 1.0))}
    ),
    "robust.FGSM": Row(
        attacked(robust.FGSM(robust.Linf(0.25))), GOOD, warns=HARD, unique=False
    ),
    "robust.BIM": Row(
        attacked(robust.BIM(BALL, steps=2)), GOOD, warns=HARD, unique=False
    ),
    "robust.PGD": Row(
        lambda model, x, y, steps, restarts, loss, seed: (
            robust.PGD(BALL, steps=steps, restarts=restarts, loss=loss, seed=seed)(
                model, x, y
            ).x
        ),
        GOOD
        | {
            "steps": (c, 2),
            "restarts": (c, 1),
            "loss": ("word", "reflected"),
            "seed": (s, 0),
        },
        warns=HARD,
        unique=False,
    ),
    "robust.PGD of a threat": Row(
        lambda threat, batch_size: (
            robust.PGD(threat, steps=2, batch_size=batch_size)(NET, BATCH, LABELS).x
        ),
        {"threat": (t, BALL), "batch_size": (c, 3)},
        warns=".",
        unique=False,
    ),
    "robust.Square": Row(
        attacked(robust.Square(BALL, queries=5)), GOOD, warns=HARD, unique=False
    ),
    "robust.robust_error": Row(
        lambda model, x, y, threat, budget, confidence: (
            robust.robust_error(
                model, x, y, threat, budget=budget, queries=5, confidence=confidence
            ).value
        ),
        GOOD | {"threat": (t, BALL), "budget": (c, 24), "confidence": (p, 0.5)},
        warns=".",
        unique=False,
    ),
    "robust.strongest": Row(
        lambda model, x, y, budget: (
            robust.strongest(model, x, y, BALL, budget=budget, queries=5).x
        ),
        GOOD | {"budget": (c, 24)},
        warns=".",
        unique=False,
    ),
    "robust.minimum_distance": Row(
        lambda model, x, y, steps: (
            robust.minimum_distance(model, x, y, BALL, steps=steps).distance
        ),
        GOOD | {"steps": (c, 3)},
        warns=".",
        unique=False,
        infinite=True,
    ),
    "robust.adversarial_train": Row(
        lambda model, x, y, batch_size, epochs, seed: (
            robust.adversarial_train(
                net() if isinstance(model, nn.Module) else model,
                (x, y),
                robust.FGSM(BALL),
                batch_size=batch_size,
                epochs=epochs,
                seed=seed,
            ).status
        ),
        GOOD | {"batch_size": (c, 3), "epochs": (c, 1), "seed": (s, 0)},
        warns=".",
        unique=False,
    ),
    "robust.HopSkipJump": Row(
        attacked(robust.HopSkipJump(BALL, queries=40)), GOOD, warns=".", unique=False
    ),
    "robust.smoothed": Row(
        lambda model, x, noise, draws, confidence, seed: robust.smoothed(
            model, x, noise, draws=draws, guesses=5, confidence=confidence, seed=seed
        ),
        {
            "model": GOOD["model"],
            "x": x,
            "noise": (n, 0.25),
            "draws": (c, 10),
            "confidence": (p, 0.5),
            "seed": (s, 0),
        },
        warns=".",
        unique=False,
        infinite=True,
    ),
    "robust.PGD of a target": Row(
        lambda target: robust.FGSM(BALL, target=target)(NET, BATCH, LABELS).x,
        {"target": (t, 1)},
        warns=".",
        unique=False,
    ),
    "robust.ReflectedAll": Row(
        lambda top: (
            robust.FGSM(BALL, loss=robust.ReflectedAll(top=top))(NET, BATCH, LABELS).x
        ),
        {"top": (c, 1)},
        warns=".",
        unique=False,
    ),
    "robust.exact_error": Row(
        lambda x, y: robust.exact_error(EXACT, x, y, BALL).value,
        {"x": (a, X), "y": (i, LABELS.numpy())},
    ),
}


GUESTS = {
    "papers.verify": Row(
        lambda ids, seed: [v.residual for v in verify(ids, seed=seed)],
        {"ids": (t, ("none",)), "seed": (s, 0)},
    ),
    "papers.find": Row(lambda item_id: find(item_id).id, {"item_id": ("word", "none")}),
}

ROOMS = {
    "noise": NOISE,
    "penalty": PENALTY,
    "spectral": SPECTRAL,
    "equalize": EQUALIZE,
    "linear": LINEAR,
    "entries": ENTRY,
    "completion": COMPLETION,
    "decay": DECAY,
    "relu": RELU,
    "nn": NETWORKS,
    "robust": ROBUST,
    "papers": GUESTS,
}

EXCLUDED = {
    "overt.InputError": "an error",
    "overt.MissingExtraError": "an error",
    "overt.Status": "words",
    "overt.equalize": "a module",
    "overt.noise": "a module",
    "overt.penalty": "a module",
    "overt.results": "a module",
    "overt.spectral": "a module",
    "completion.NewRow": "made by fold_in",
    "completion.RatingsFile": "made by read_ratings",
    "decay.Minima": "made by minima",
    "nn.WithoutNoise": "made by without_noise",
    "nn.load_compressed": "a reader of files",
    "nn.save_compressed": "a writer of files",
    "noise.Noise": "abstract",
    "spectral.SpectralNorm": "abstract",
    "robust.Attack": "abstract",
    "robust.Loss": "abstract",
    "robust.Threat": "abstract",
    "robust.LOSSES": "a table",
    "robust.RobustnessWarning": "a warning",
    "papers.PAPERS": "a table",
    "papers.Evidence": "made by checks",
    "papers.Item": "made by statement",
    "papers.Verdict": "made by verify",
    "papers.items": "takes no argument",
    "papers.bibtex": "of the list of papers",
    "papers.statement": "a decorator for who writes statements",
    "papers.figure": "for who writes figures",
    "papers.Figure": "made by figure",
    "papers.Finding": "made by checks",
    "papers.report": "of rows that run made",
    "papers.run": "what it reads back is damaged in readers.py",
    "datasets.data_folder": "of an environment variable",
    "explorer.explore": "serves until it is stopped",
    "explorer.PAGES": "a table",
    "explorer.render": "takes one of two names; tests/explorer has both and a wrong one",
    "explorer.write_pages": "writes files into any folder it is given",
    "noise.check": "returns nothing; tests/test_noise_check.py has the wrong noises",
    "overt.InternalError": "an exception",
}
"""What the public modules export and no row calls, and why."""
