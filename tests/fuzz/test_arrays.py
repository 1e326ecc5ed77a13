"""Arrays that people have, and numbers at the edge: the right value, or a sentence."""

import warnings

import numpy as np
import pytest
import torch
from scipy import sparse

import overt
from overt import InputError, equalize, penalty, spectral

RNG = np.random.default_rng(0)
A, U, V = (
    RNG.standard_normal((4, 3)),
    RNG.standard_normal((4, 3)),
    RNG.standard_normal((3, 3)),
)
S, NOISE = np.array([3.0, 2.0, 1.0]), overt.Dropout(0.3)

FORMS = {
    "requires gradient": lambda X: torch.tensor(X, requires_grad=True),
    "bfloat16": lambda X: torch.tensor(X).bfloat16(),
    "masked": lambda X: np.ma.masked_less(X, np.max(X)),
    "big-endian": lambda X: X.astype(">f8"),
    "long": lambda X: X.astype(np.longdouble),
    "half": lambda X: X.astype(np.float16),
    "complex": lambda X: X + 0j,
    "text": lambda X: np.full(X.shape, "a"),
    "objects": lambda X: X.astype(object),
    "dates": lambda X: np.zeros(X.shape, "M8[s]"),
    "NaN": lambda X: X * np.nan,
    "ragged": lambda X: [[1, 2], [3]],
    "nothing": lambda X: None,
    **{
        kind: lambda X, kind=kind: getattr(sparse, f"{kind}_array")(np.atleast_2d(X))
        for kind in ("csr", "csc", "coo", "lil", "dok", "bsr", "dia")
    },
}

CALLS = {
    "target": (
        A,
        lambda X: overt.LinearNetwork(target=X, width=3, noise=NOISE).objective(U, V),
    ),
    "X": (
        A,
        lambda X: (
            overt.LinearNetwork(X=X, Y=A, width=3, noise=NOISE).effect.regression.scale
        ),
    ),
    "second_moment": (
        np.eye(3),
        lambda C: (
            overt.LinearNetwork(
                target=A, second_moment=C, width=3, noise=NOISE
            ).effect.regression.scale
        ),
    ),
    "certify": (
        U,
        lambda X: overt.LinearNetwork(target=A, width=3, noise=NOISE).objective(
            X, type(X)(V) if type(X) is list else V
        ),
    ),
    "shallow": (U, lambda X: penalty.shallow(X, X, NOISE)),
    "deep": (V, lambda X: penalty.deep([X, X], 0.3)),
    "value": (S, lambda s: spectral.KSupport(2).value(s)),
    "prox": (S, lambda s: spectral.KSupport(2).prox(s, 0.3)),
    "matrix_value": (A, lambda X: spectral.SquaredNuclear().matrix_value(X)),
    "importance": (U, lambda X: equalize.importance(X, X)),
    "balanced_factors": (
        np.eye(3),
        lambda X: equalize.balanced_factors(X, S, np.eye(3), 3),
    ),
    "majorization_excess": (S, lambda s: equalize.majorization_excess(s, S)),
    "CovarianceNoise": (
        np.eye(3),
        lambda K: overt.CovarianceNoise(np.ones(3), K).covariance(3),
    ),
    "drop_prob": (S / 10, lambda p: np.asarray(overt.Dropout(p).strength)),
    "Entries": (S, lambda v: overt.Entries([0, 1, 2], [0, 1, 2], v).values),
    "rows": (S, lambda r: overt.Entries(r, [0, 1, 2], S).rows.astype(float)),
}


def flat(found):
    parts = found if isinstance(found, tuple) else (found,)
    parts = [p.detach().double().numpy() if hasattr(p, "detach") else p for p in parts]
    return np.concatenate([np.ravel(np.asarray(p, dtype=float)) for p in parts])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CALLS)
def test_arrays_that_people_have(name, form):
    given, call = CALLS[name]
    shown = FORMS[form](given)
    try:
        found = flat(call(shown))
    except InputError as error:
        refused = str(error)
        assert len(refused) > 20
        assert form != "big-endian"
    else:
        if shown is None:
            return  # what an argument is by default
        rough = form in ("half", "bfloat16")
        assert np.allclose(
            found, flat(call(given)), rtol=0.1 if rough else 1e-9, atol=rough / 10
        )


HUGE = {
    "target": lambda s: (
        overt.LinearNetwork(target=A * s, width=3, noise=NOISE).solve().U
    ),
    "X": lambda s: overt.LinearNetwork(X=A * s, Y=A, width=3, noise=NOISE).solve().U,
    "certify": lambda s: (
        overt.LinearNetwork(target=A, width=3, noise=NOISE).certify(U * s, V).objective
    ),
    "deep target": lambda s: (
        overt.DeepLinearNetwork(target=A * s, widths=(3,), drop_prob=0.3)
        .solve()
        .objective
    ),
    "shallow": lambda s: penalty.shallow(U * s, V * s, NOISE),
    "shallow of tensors": lambda s: penalty.shallow(
        torch.tensor(U * s), torch.tensor(V), NOISE
    ),
    "dropconnect": lambda s: penalty.dropconnect(U * s, V, 0.3),
    "deep": lambda s: penalty.deep([V * s, V * s], 0.3),
    "completion": lambda s: penalty.completion(U * s, V * s, [0], [0], 0.3),
    "KSupport": lambda s: spectral.KSupport(2).value(S * s),
    "SquaredNuclear": lambda s: spectral.SquaredNuclear().dual(S * s),
    "Schatten": lambda s: spectral.Schatten(1.5).value(S * s),
    "equalizer": lambda s: equalize.equalizer(A * s),
    "imbalance": lambda s: equalize.imbalance(U * s, V * s),
    "gaps": lambda s: equalize.equalization_gaps([V * s, V * s])[0],
    "values": lambda s: overt.Entries([0, 1], [0, 1], S[:2] * s).values,
}


@pytest.mark.parametrize("scale", [1e154, 1e300])
@pytest.mark.parametrize("name", HUGE)
def test_huge_numbers_give_a_finite_value_or_a_sentence(name, scale):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            assert np.isfinite(HUGE[name](scale)).all()
        except InputError as error:
            refused = str(error)
            assert "so large" in refused or "at most" in refused


@pytest.mark.parametrize(
    "given",
    [
        (np.eye(3), -S, np.eye(3), 3),
        (np.eye(3), S, np.eye(3), 2),
        (np.eye(3)[:, :2], S, np.eye(3), 3),
        (np.eye(3), np.full(3, np.nan), np.eye(3), 3),
    ],
    ids=["negative", "narrow", "shapes", "NaN"],
)
def test_what_is_no_decomposition_is_refused(given):
    with pytest.raises(InputError):
        equalize.balanced_factors(*given)
