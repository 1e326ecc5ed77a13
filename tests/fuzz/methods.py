"""Methods, and functions with every argument of theirs, those by name included.

`whole` reads a signature: what has no good value here starts from its default.
"""

# ruff: noqa: E501
from __future__ import annotations

import inspect
from functools import partial

import numpy as np
import torch
from fuzz import functions as by
from fuzz.hostile import Row
from torch import nn

import overt
from overt import decay, relu, robust
from overt import nn as noisy
from overt.completion import DropoutCompletion, DropoutImputer, evaluate, read_ratings

QUIET = {"progress", "n_jobs", "engine", "warn", "device", "door"}
"""Arguments that are checked by rows of their own, or start processes and displays."""


def kind(name, value):
    if name in ("seed", "random_state"):
        return "seed" if isinstance(value, int) else "thing"
    if isinstance(value, np.ndarray):
        return "index" if value.dtype.kind in "iu" else "array"
    kinds = {
        bool: "flag",
        int: "count",
        float: "number",
        str: "word",
        torch.Tensor: "batch",
    }
    return kinds.get(type(value), "thing")


def whole(call, fixed=None, shown=lambda found: found, **good):
    """A row with all arguments of a callable; `fixed` ones are given and never changed."""
    fixed, args = fixed or {}, {}
    for name, one in inspect.signature(call).parameters.items():
        if (
            name in fixed
            or (name in QUIET and name not in good)
            or one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
        ):
            continue
        value = good.get(name, one.default)
        args[name] = (kind(name, value), None if value is one.empty else value)
    return Row(
        lambda **given: shown(call(**given, **fixed)),
        args,
        infinite=True,
        unique=False,
        warns=".",
        network=good.get("network"),
    )


def conformal(loss="mse"):
    """Return a predictor with scores of six rows."""
    y = torch.zeros(6, 2) if loss == "mse" else torch.zeros(6, dtype=torch.long)
    return noisy.Predictive(by.net(), loss=loss).conformalize((by.BATCH, y))


def fitted(call, **good):
    """A row for settings of an estimator, which are looked at when it is fitted."""
    return whole(
        call, shown=lambda model: model.fit(by.ENTRIES).predict([0, 1], [0, 1]), **good
    )


NEWCOMER = by.MODEL.fold_in({0: 2.0, 1: 1.0})
RANKED = by.fitted(missing="negative").fit(
    overt.Entries(by.ROWS, by.COLS, np.ones(5), shape=(4, 3))
)
NAMED = by.fitted(average=0).fit(
    overt.Entries.from_ids(["a", "b", "c"], ["x", "y", "x"], [1.0, 2.0, 3.0])
)
RULE = decay.Schedule.constant(9, 0.1, 0.01)
DEEP = decay.DeepLinearCompletion(3, 2).fit(by.ENTRIES)
FEW = {"width": 3, "seeds": 1, "records": 3, "schedule": RULE}
LAZY = relu.train_lazy(by.UNIT, by.SIGNS, width=4, steps=4, records=2)
MODEL, X, Y = by.GOOD["model"][1], by.BATCH, by.LABELS
NEAR = robust.minimum_distance(MODEL, X, Y, by.BALL, steps=2, warn=False)
SMOOTH = robust.smoothed(MODEL, X, 0.25, draws=10, guesses=5)

SMALL = {"problem": by.SMALL, "depth": 3, "width": 2, "weight_decay": 0.01}

MORE = {
    "linear": {
        "overt.LinearNetwork whole": whole(
            overt.LinearNetwork,
            shown=lambda net: net.solve().objective,
            target=by.A,
            width=2,
            noise=by.DROP,
        ),
        "overt.LinearNetwork.train whole": whole(
            by.TASK.train, {"n_jobs": 1}, steps=4, seeds=2, records=2
        ),
        "overt.LinearNetwork.certify whole": whole(by.TASK.certify, U=by.U, V=by.V),
        "overt.TiedAutoencoder whole": whole(
            overt.TiedAutoencoder,
            shown=lambda net: net.solve().objective,
            target=by.C,
            width=2,
            noise=by.DROP,
        ),
        "overt.TiedAutoencoder.train whole": whole(
            by.TIED.train, {"n_jobs": 1}, steps=4, records=2
        ),
        "overt.DeepLinearNetwork whole": whole(
            overt.DeepLinearNetwork,
            shown=lambda net: net.solve().objective,
            target=by.A[:, :1],
            widths=(3,),
            drop_prob=0.5,
        ),
        "overt.DeepLinearNetwork.train whole": whole(
            by.LAYERED.train, {"n_jobs": 1}, steps=4, records=2, batch_size=2
        ),
        "overt.path whole": whole(overt.path, target=by.A, width=3, drop_probs=by.P),
        "overt.drop_prob_for_rank whole": whole(
            overt.drop_prob_for_rank, target=by.A, width=3
        ),
        **{
            f"{shown}.n_jobs": whole(
                partial(net.train, 4, 0.01, 1),
                {
                    "records": 2,
                    "batch_size": 1,
                    "gradient": "sampled",
                    "init": None,
                    "init_scale": None,
                },
                n_jobs=1,
                engine="local",
            )
            for shown, net in (
                ("overt.LinearNetwork", by.TASK),
                ("overt.DeepLinearNetwork", by.LAYERED),
            )
        },
        "overt.Solution.save": whole(by.TASK.solve().save, path="x.npz"),
        "overt.Solution.load": whole(overt.Solution.load, path="none.npz"),
    },
    "entries": {
        "overt.Entries whole": whole(
            overt.Entries,
            shown=lambda e: e.values,
            rows=by.ROWS,
            cols=by.COLS,
            values=by.VALUES,
            shape=(4, 3),
            row_ids=np.arange(4),
            col_ids=np.arange(3),
            times=by.VALUES,
            truth=by.A,
        ),
        "overt.Entries.from_frame whole": whole(
            overt.Entries.from_frame,
            shown=lambda e: e.values,
            frame=by.Frame({"user": by.ROWS, "item": by.COLS, "rating": by.VALUES}),
            row="user",
            col="item",
            value="rating",
        ),
        "overt.Entries.split whole": whole(
            by.ENTRIES.split, shown=lambda pair: pair[0].values, holdout=0.25
        ),
    },
    "completion": {
        "completion.DropoutCompletion whole": fitted(
            DropoutCompletion,
            n_factors=2,
            drop_prob=0.5,
            max_sweeps=2,
            tol=0.1,
            average=0,
        ),
        "completion.DropoutCompletion.fit whole": whole(
            lambda X, y, row_features, col_features, checkpoint, resume: (
                by.fitted(average=0)
                .fit(
                    X,
                    y,
                    row_features,
                    col_features,
                    checkpoint=checkpoint,
                    resume=resume,
                )
                .predict([0], [0])
            ),
            X=np.stack([by.ROWS, by.COLS], 1),
            y=by.VALUES,
            resume=False,
            checkpoint=None,
            row_features=None,
            col_features=None,
        ),
        "completion.DropoutCompletion with features": whole(
            lambda row_features, col_features: (
                by.fitted(average=0)
                .fit(by.ENTRIES, row_features=row_features, col_features=col_features)
                .predict([0], [0])
            ),
            row_features=by.U,
            col_features=by.V,
        ),
        "completion.DropoutCompletion.fit_triplets": whole(
            lambda rows, cols, values, shape: (
                by.fitted(average=0)
                .fit_triplets(rows, cols, values, shape=shape)
                .predict([0], [0])
            ),
            rows=by.ROWS,
            cols=by.COLS,
            values=by.VALUES,
            shape=(4, 3),
        ),
        "completion.DropoutCompletion.fit_entries": whole(
            lambda entries: by.fitted(average=0).fit_entries(entries).predict([0], [0]),
            entries=by.ENTRIES,
        ),
        "completion.DropoutCompletion.predict whole": whole(
            by.MODEL.predict, rows=by.ROWS, cols=by.COLS
        ),
        "completion.DropoutCompletion.predict of names": whole(
            NAMED.predict, rows=["a"], cols=["x"]
        ),
        "completion.DropoutCompletion.complete whole": whole(
            by.MODEL.complete, rows=by.ROWS, cols=by.COLS
        ),
        "completion.DropoutCompletion.score whole": whole(
            by.MODEL.score,
            X=np.stack([by.ROWS, by.COLS], 1),
            y=by.VALUES,
        ),
        "completion.DropoutCompletion.fold_in whole": whole(
            lambda entries, features: by.MODEL.fold_in(entries, features).predict([0]),
            entries={0: 1.0},
            features=None,
        ),
        "completion.DropoutCompletion.save": whole(by.MODEL.save, path="model"),
        "completion.DropoutCompletion.load": whole(DropoutCompletion.load, path="none"),
        "completion.DropoutCompletion.partial_fit whole": whole(
            lambda X, y, sweeps: (
                by.fitted(average=0)
                .fit(by.ENTRIES)
                .partial_fit(X, y, sweeps)
                .predict([0], [0])
            ),
            X=np.array([[0, 1], [2, 2]]),
            y=np.array([1.0, 2.0]),
            sweeps=1,
        ),
        **{
            f"completion.DropoutCompletion.{shown}": whole(call, **good)
            for shown, call, good in (
                ("recommend whole", by.MODEL.recommend, {"row": 1, "n": 2}),
                ("recommend of clicks", RANKED.recommend, {"row": 1, "n": 2}),
                ("recommend_all", by.MODEL.recommend_all, {"n": 2}),
                ("recommend_all of clicks", RANKED.recommend_all, {"n": 2}),
                ("explain of clicks", RANKED.explain, {"row": 1, "col": 1}),
            )
        },
        "completion.NewRow.predict": whole(NEWCOMER.predict, cols=by.COLS),
        "completion.NewRow.recommend": whole(NEWCOMER.recommend, n=2),
        "completion.DropoutImputer whole": whole(
            DropoutImputer, shown=lambda one: one.fit_transform(by.TABLE), max_sweeps=3
        ),
        "completion.DropoutImputer.fit": whole(
            lambda X, y: DropoutImputer(max_sweeps=3).fit(X, y).transform(by.TABLE),
            X=by.TABLE,
            y=None,
        ),
        "completion.DropoutImputer.transform whole": whole(
            by.IMPUTER.transform, X=by.TABLE
        ),
        "completion.evaluate whole": whole(
            evaluate, model=by.fitted(average=0), data=by.ENTRIES, holdout=0.25
        ),
        "completion.read_ratings whole": whole(read_ratings, path="nowhere.csv"),
    },
    "decay": {
        "decay.simulate whole": whole(
            decay.simulate, {"n_jobs": 1, "progress": False}, problem=by.SMALL, **FEW
        ),
        "decay.minima whole": whole(
            decay.minima, problem=by.SMALL, weight_decay=0.01, starts=1, shown=list
        ),
        "decay.jumps whole": whole(
            decay.jumps,
            {"n_jobs": 1, "progress": False},
            problem=by.SMALL,
            width=3,
            seeds=1,
            schedule=RULE,
        ),
        "decay.DeepLinearCompletion whole": fitted(decay.DeepLinearCompletion, width=2),
        "decay.DeepLinearCompletion.fit": whole(
            lambda X, y: decay.DeepLinearCompletion(3, 2).fit(X, y).predict([0], [0]),
            X=by.ENTRIES,
            y=None,
        ),
        "decay.DeepLinearCompletion.score": whole(
            DEEP.score, X=np.stack([by.ROWS, by.COLS], 1), y=by.VALUES
        ),
        "decay.Runs.jumps_to": whole(by.RUNS.jumps_to, rank=1),
        **{
            f"decay.Schedule.{name}": whole(
                getattr(decay.Schedule, name), shown=lambda s: s.steps, **good
            )
            for name, good in (
                ("annealing", {}),
                ("of", {"phases": [(5, 0.1, 0.01)]}),
            )
        },
    },
    "relu": {
        "relu.LazyRun.predict": whole(LAZY.predict, X=by.UNIT),
        "relu.train_lazy whole": whole(
            relu.train_lazy, X=by.UNIT, y=by.SIGNS, width=4, steps=4, masks=2, records=2
        ),
    },
    "nn": {
        **{
            f"nn.{kind}.{method}": whole(getattr(layer, method), **good)
            for kind, layer, method, good in (
                ("Dropout", noisy.Dropout(0.5), "mask_covariance", {"shape": (2, 3)}),
                (
                    "DropBlock2d",
                    noisy.DropBlock2d(0.5, 2),
                    "mask_covariance",
                    {"shape": (2, 2, 4, 4)},
                ),
                (
                    "CovarianceDropout",
                    noisy.CovarianceDropout(by.P[:2], by.D2),
                    "mask_covariance",
                    {"shape": (3, 2)},
                ),
            )
        },
        **{
            f"nn.{kind}.forward": Row(
                layer, {"x": ("batch", x)}, network=plain, unique=False, infinite=True
            )
            for kind, layer, x, plain in (
                ("Dropout", noisy.Dropout(0.5), X, nn.Dropout(0.5)),
                ("DropBlock2d", noisy.DropBlock2d(0.5, 2), by.IMAGES, nn.Dropout(0.5)),
                (
                    "DropConnectLinear",
                    noisy.DropConnectLinear(3, 2),
                    X,
                    nn.Linear(3, 2),
                ),
                (
                    "CovarianceDropout",
                    noisy.CovarianceDropout(by.P, by.C),
                    X,
                    nn.Dropout(0.5),
                ),
            )
        },
        "nn.Predictive whole": whole(
            noisy.Predictive, shown=lambda one: one.mean(X), model=by.NET
        ),
        "nn.Predictive.forward": whole(by.PREDICTIVE.forward, x=X, network=by.NET),
        "nn.Predictive.probabilities": whole(
            by.PREDICTIVE.probabilities, x=X, network=by.NET
        ),
        "nn.Predictive.conformalize": whole(
            lambda data: noisy.Predictive(by.net()).conformalize(data).scores,
            data=(X, torch.zeros(6, 2)),
        ),
        "nn.Predictive.conformal_interval": whole(
            conformal().conformal_interval, x=X, level=0.5, network=by.NET
        ),
        "nn.Predictive.conformal_set": whole(
            conformal("cross_entropy").conformal_set, x=X, level=0.5, network=by.NET
        ),
        "nn.Predictive.recalibrate": whole(
            lambda data: noisy.Predictive(by.net()).recalibrate(data),
            data=(X, torch.zeros(6, 2)),
        ),
        "nn.explicit_penalty whole": whole(
            noisy.explicit_penalty, model=by.NET, x=X, y=torch.zeros(6, 2), loss="mse"
        ),
        "nn.explicit_penalty of classes": whole(
            noisy.explicit_penalty, model=by.NET, x=X, y=Y, loss="cross_entropy"
        ),
        "nn.predictive_moments whole": whole(
            noisy.predictive_moments, model=by.NET, x=X
        ),
        "nn.mc_moments whole": whole(noisy.mc_moments, model=by.NET, x=X, n=4),
        "nn.without_noise whole": whole(
            noisy.without_noise, shown=lambda net: net(X), model=by.NET, loss="mse"
        ),
        "nn.audit whole": whole(
            noisy.audit, model=by.NET, data=(X, torch.zeros(6, 2)), loss="mse", passes=1
        ),
        "nn.compress whole": whole(
            noisy.compress, model=by.NET, keep=0.5, example=X, by="flow"
        ),
        "nn.compress with data": whole(
            noisy.compress,
            {"by": "flow"},
            model=by.NET,
            keep=0.5,
            example=X,
            data=(X, Y),
            holdout=(X, Y),
        ),
        "nn.DropConnectLinear whole": whole(
            noisy.DropConnectLinear,
            {"dtype": None},
            lambda one: one.weight.shape,
            in_features=3,
            out_features=2,
        ),
    },
    "robust": {
        **{
            f"robust.{kind} whole": whole(
                getattr(robust, kind),
                shown=lambda one: one.with_radius(0.25).radius,
                radius=0.5,
                bounds=(-3.0, 3.0),
            )
            for kind in ("L1", "L2", "Linf")
        },
        **{
            f"robust.{kind} whole": whole(
                getattr(robust, kind),
                shown=lambda attack: attack(MODEL, X, Y).x,
                threat=by.BALL,
                **good,
            )
            for kind, good in (
                ("PGD", {"steps": 2}),
                ("BIM", {"steps": 2}),
                ("FGSM", {"random_start": True}),
                ("Square", {"queries": 3}),
                ("HopSkipJump", {"queries": 30}),
            )
        },
        "robust.robust_error whole": whole(
            robust.robust_error,
            {"budget": 24, "warn": False},
            model=MODEL,
            x=X,
            y=Y,
            threat=by.BALL,
            queries=5,
        ),
        "robust.strongest whole": whole(
            robust.strongest,
            {"budget": 24, "warn": False},
            model=MODEL,
            x=X,
            y=Y,
            threat=by.BALL,
            queries=5,
        ),
        "robust.minimum_distance whole": whole(
            robust.minimum_distance,
            {"warn": False},
            model=MODEL,
            x=X,
            y=Y,
            threat=by.BALL,
            steps=3,
        ),
        "robust.adversarial_train whole": whole(
            lambda data: robust.adversarial_train(
                by.net(), data, robust.FGSM(by.BALL), epochs=1
            ),
            data=(X, Y),
        ),
        "robust.adversarial_train of settings": whole(
            lambda attack, batch_size, epochs, optimizer, scheduler, loss, holdout, checkpoint, seed, config: (
                robust.adversarial_train(
                    by.net(),
                    (X, Y),
                    attack,
                    batch_size=batch_size,
                    epochs=epochs,
                    optimizer=optimizer,
                    scheduler=scheduler,
                    loss=loss,
                    holdout=holdout,
                    checkpoint=checkpoint,
                    seed=seed,
                    config=config,
                ).status
            ),
            attack=robust.FGSM(by.BALL),
            batch_size=3,
            epochs=1,
            optimizer=None,
            scheduler=None,
            loss="cross_entropy",
            holdout=(X, Y),
            checkpoint=None,
            seed=0,
            config=None,
        ),
        "robust.TrainingConfig": whole(
            robust.TrainingConfig,
            shown=lambda c: c.beta,
            beta=6.0,
            step_scheduler_each="epoch",
        ),
        "robust.smoothed whole": whole(
            robust.smoothed, model=MODEL, x=X, noise=0.25, draws=10, guesses=5
        ),
        "robust.Smoothed.errors": whole(SMOOTH.errors, y=Y.numpy(), radii=[0.1, 0.5]),
        "robust.exact_error whole": whole(
            robust.exact_error, model=MODEL, x=X, y=Y, threat=by.BALL, level=0.0
        ),
    },
}

ROOMS = {room: {**rows, **MORE.get(room, {})} for room, rows in by.ROOMS.items()}
