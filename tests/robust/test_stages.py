"""What the stages of `strongest` spend, and what is refused at the doors of attacks."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from robust_cases import points, small_mlp
from torch.utils.data import DataLoader

from overt import InputError
from overt.results import Status
from overt.robust import (
    BIM,
    FGSM,
    L2,
    PGD,
    Closest,
    Decay,
    Deviates,
    Effective,
    Linf,
    Misclassified,
    Smoothed,
    Square,
    smoothed,
    strongest,
)
from overt.robust.attacks import staged
from overt.robust.attacks.points import Guide
from overt.robust.attacks.staged import begin, guides, run_stages, unaided
from overt.robust.training.losses import Target, TrainingLoss


def searching(n=200, honest=True, raw=False, **more):
    """A search that keeps a list of the attacks it is asked to run."""
    ran = []
    search = SimpleNamespace(
        threat=L2(0.5), batch_size=9, clean=torch.zeros(n, 4), left=torch.arange(n), ran=ran,
        best=SimpleNamespace(fooled=torch.zeros(n, dtype=torch.bool)), x=torch.zeros(n, 2),
        criterion=Deviates(1.0) if raw else Misclassified(), diagnose=lambda: honest,
        status=Status.FINISHED, random=False, loss="margin", signs={},
        stage=lambda attack, **given: ran.append((attack, given)),
    )  # fmt: skip
    search.note = lambda sign, some: search.signs.update({sign: some})
    return SimpleNamespace(**(vars(search) | more))


@pytest.mark.parametrize(("honest", "budget", "given"), [
    (True, 1000, 999), (True, 24, 23), (False, 1000, 250), (False, 60, 24), (False, 4000, 1000),
])  # fmt: skip
def test_the_budget_goes_to_gradients_that_tell_the_truth(monkeypatch, honest, budget, given):
    asked, rest = [], []
    monkeypatch.setattr(
        staged, "stages", lambda *args, **more: asked.append((args, more)) or ("a",)
    )
    monkeypatch.setattr(staged, "unaided", lambda *args: rest.append(args))
    helpers = [SimpleNamespace(draws=n) for n in (1, 4, 9)]
    monkeypatch.setattr(staged, "guides", lambda *_: helpers)
    search = searching(honest=honest)
    run_stages(search, budget, 300, 7, None, 5, "start")
    assert asked == [((search.threat, 4, given, 7), {"seed": 5, "batch_size": 9})]
    assert search.ran[0] == ("a", {"start": "start"})
    steps = [min(max(budget // (3 * draws), 2), 100) for draws in (1, 4, 9)]
    for (attack, more), helper, count in zip(search.ran[1:], helpers, steps, strict=True):
        assert attack == PGD(search.threat, steps=count, momentum=0.75, seed=5, batch_size=9)
        assert more == {"guide": helper}
    left = budget - given - steps[0] - 4 * steps[1] - 9 * steps[2]
    assert rest == [(search, honest, 300 + max(left, 0), {"seed": 5, "batch_size": 9})]
    run_stages(search, budget, 0, 7, None, 5, None)
    assert rest[1][2] == 0
    ran = len(search.ran)
    run_stages(searching(left=[]), budget, 300, 7, None, 5, None)
    still = searching(threat=L2(0.0))
    run_stages(still, budget, 300, 7, None, 5, None)
    assert (len(search.ran), still.ran) == (ran, [])


def test_numbers_are_attacked_from_random_starts(monkeypatch):
    monkeypatch.setattr(staged, "unaided", lambda *_: None)
    search = searching(raw=True)
    run_stages(search, 101, 0, 9, None, 5, None)
    wanted = PGD(L2(0.5), steps=25, restarts=4, random_start=True, seed=5, batch_size=9)
    assert [attack for attack, _ in search.ran] == [wanted]


@pytest.mark.parametrize(("honest", "queries", "fooled", "parts"), [
    (True, 300, 0, [30]), (True, 300, 1, [30, 270]), (True, 300, 2, [30, 270]), (True, 19, 9, []),
    (True, 20, 9, [2, 18]), (False, 300, 0, [300]), (False, 1, 0, []), (False, 2, 0, [2]),
])  # fmt: skip
def test_search_without_gradients_goes_on_where_it_gains(honest, queries, fooled, parts):
    for random in (False, True):
        search = searching(random=random)
        before = search.best.fooled
        before[-1] = True

        def stage(attack, search=search):
            search.ran.append(attack)
            search.best.fooled = search.best.fooled.clone()
            search.best.fooled[:fooled] = True

        search.stage = stage
        unaided(search, honest, queries, {"seed": 5, "batch_size": 9, "steps": 3})
        assert search.ran == [
            Square(L2(0.5), queries=part, loss="margin", seed=5 + k, batch_size=9)
            for k, part in enumerate(parts)
        ]
        found = search.signs.get("unaided")
        told = not random and bool(parts) and fooled >= 2  # a hundredth of the points
        assert (found is not None) == told
        assert not told or found.tolist() == [i < fooled for i in range(200)]
    stopped = searching(status=Status.INTERRUPTED)
    unaided(stopped, honest, queries, {"seed": 5, "batch_size": 9})
    assert stopped.ran == []


def test_guides_are_a_surrogate_then_what_sees_through_masks():
    model, x = small_mlp(), points(5, 6)
    y = model(x).argmax(1)
    other = small_mlp(seed=1)
    for hides in (False, True):
        masked = (lambda v: model(v.round())) if hides else model
        with begin(masked, x, y, L2(0.5), Misclassified(), 2, {}) as search:
            (first,) = guides(search, other, True)
            assert torch.equal(first.subject.logits(x, torch.arange(5)), other(x))
            assert guides(search, None, True) == []
            found = guides(search, other, False)[1:]
        smooth = [Guide(search.subject, size, 4, straight=True) for size in (0.25, 0.05)]
        expected = [Guide(search.subject, straight=True), *smooth] if hides else smooth
        assert [vars(g) for g in found] == [vars(g) for g in expected]
        with begin(masked, x, y, L2(0.5), Misclassified(), 2, {}) as search:
            found = guides(search, None, False)
        assert found[-1].straight == hides
        assert len(found) == 2 + hides


MLP = small_mlp()
X, Y = points(4, 6), [0, 1, 2, 0]
RUN = {"model": MLP, "x": X, "y": Y, "threat": L2(0.5), "budget": 24, "queries": 0}
WRONG = [
    (lambda: strongest(**(RUN | {"budget": 23})), "budget must be at least 24"),
    (lambda: strongest(**(RUN | {"queries": -1})), "queries must be"),
    (lambda: strongest(**(RUN | {"rivals": 0})), "rivals must be"),
    (lambda: strongest(**(RUN | {"criterion": 3})), "criterion must be a Criterion"),
    (lambda: strongest(**(RUN | {"batch_size": 0})), "batch_size must be"),
    (lambda: strongest(**(RUN | {"depth": 3})), "unexpected argument depth"),
    (lambda: strongest(**(RUN | {"mean": [1.0, 2.0]})), "mean must be a number or fit"),
    (lambda: strongest(**(RUN | {"std": 0.0})), "std positive"),
    (lambda: strongest(**(RUN | {"start": X[:2]})), "start must be shaped like x"),
    (lambda: strongest(**(RUN | {"y": [0, 1, 2, 3]})), r"y must lie in 0\.\.2"),
    (lambda: strongest(**(RUN | {"y": [0, 1, 2, -1]})), r"got -1\.\.2"),
    (lambda: strongest(**(RUN | {"y": [0, 1, 2, 0.5]})), "class numbers, got 0.5"),
    (lambda: strongest(**(RUN | {"y": np.ones(4, complex)})), "numbers, got torch.complex128"),
    (lambda: strongest(**(RUN | {"x": X.long()})), "floating-point numbers"),
    (lambda: strongest(**(RUN | {"x": X[0]})), r"x must be \(points, ...\) and not empty"),
    (lambda: strongest(**(RUN | {"x": X[:0]})), "not empty"),
    (lambda: strongest(**(RUN | {"x": X / 0})), "x must be finite, got 24"),
    (lambda: strongest(**(RUN | {"x": (X, X[:2])})), "one row for each point"),
    (lambda: strongest(**(RUN | {"model": lambda v: v[0]})), "logits"),
    (lambda: strongest(**(RUN | {"model": lambda v: v * torch.nan})), "finite logits, got NaN"),
    (lambda: strongest(**(RUN | {"model": lambda v: v[:, None]})), r"\(points, classes\), got"),
    (lambda: strongest(**(RUN | {"model": []})), "model must be a torch module"),
    (lambda: PGD(L2(0.5))(MLP, 3.0), "without y, x must give batches"),
    (lambda: PGD(L2(0.5))(MLP, DataLoader([])), "at least one batch"),
    (lambda: PGD(L2(0.5))(MLP, [X]), r"batches \(inputs, classes\)"),
    (lambda: PGD(L2(0.5), loss=lambda f, y: f)(MLP, X, Y), "one number for each of the 4 points"),
    (lambda: PGD(L2(0.5), loss=3), "loss must be a name, a Loss or a function, got int"),
    (lambda: PGD(L2(0.5), schedule=3), "schedule must be"),
    (lambda: PGD(L2(0.5), schedule=Decay(every=0))(MLP, X, Y), "every must be"),
    (lambda: BIM(L2(0.5), steps=0), "steps must be"),
    (lambda: BIM(L2(0.5), step_size=-1.0), "step_size must be"),
    (lambda: BIM(L2(0.5), restarts=0), "restarts must be"),
    (lambda: Square(L2(0.5), queries=0), "queries must be"),
    (lambda: Square(L2(0.5), restarts=0), "restarts must be"),
    (lambda: Effective("a"), "beta must be"),
    (lambda: Deviates("a"), "by must be"),
    (lambda: PGD(L2(0.5), criterion=Deviates(1.0))(MLP, X, X), r"3 number\(s\) for each of the 4"),
    (lambda: smoothed(MLP, X, 0.1, seed=-1), "seed must be"),
    (lambda: smoothed(MLP, X, 0.1, confidence=0.4), "confidence must lie"),
    (lambda: smoothed(MLP, X, 0.1, batch_size=0), "batch_size must be"),
    (lambda: smoothed(MLP, X, 0.1, guesses=0), "guesses must be"),
    (lambda: smoothed(MLP, X, True), "noise must be a positive number"),
    (lambda: smoothed(lambda v: v * torch.nan, X, 0.1), "finite logits"),
    (lambda: TrainingLoss.of(3, 1.0), "loss must be a name or a function, got 3"),
    (lambda: TrainingLoss.of("hinge", 1.0), "loss must be one of"),
    (lambda: TrainingLoss.of("mart", -1.0), "beta must be"),
    (lambda: TrainingLoss(lambda f, y: f).plain(X, Target(torch.tensor(Y), None)), "return a mean"),
    (lambda: Linf(0.1, "box"), 'bounds must be None, "data" or a pair'),
    (lambda: Linf(0.1, 3.0), 'bounds must be None, "data" or a pair'),
    (lambda: Linf(0.1, (0.0, 1.0, 2.0)), "got 3 values"),
    (lambda: Linf(0.1, (1.0, 1.0)), "low below high"),
    (lambda: Linf(0.1, ([0.0, 2.0], [1.0, 1.0])), "low below high"),
    (lambda: Linf("a"), "radius must be"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), WRONG)
def test_mistakes_are_named(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_shares_of_errors_are_asked_for_sensibly():
    found = Closest(X, torch.tensor([0.0, 0.5, 1.0, torch.inf]), torch.ones(4).bool(), "l2", 0, 0,
                    (), Status.FINISHED)  # fmt: skip
    values, intervals = found.errors([0.5, 0.2, 2.0])
    assert values.tolist() == [0.5, 0.25, 0.75]
    assert bool((intervals[:, 0] <= values).all() and (values <= intervals[:, 1]).all())
    assert found.errors(0.5, confidence=0.5)[1][0, 0] > found.errors(0.5, confidence=0.99)[1][0, 0]
    for confidence in (0.0, 1.0):
        with pytest.raises(InputError, match="confidence must lie between 0 and 1"):
            found.errors(0.5, confidence=confidence)
    votes = Smoothed(np.array([1, 0]), np.array([0.5, 1.0]), np.ones(2), "l2", 10, 0.9, False, 2,
                     Status.FINISHED)  # fmt: skip
    assert votes.errors([1, 0], [0.5, 0.6, 1.0]).tolist() == [0.0, 0.5, 0.5]
    with pytest.raises(InputError, match="y must hold one class for each of the 2 points"):
        votes.errors([1, 0, 0], 0.5)


@pytest.mark.parametrize("loss", ["cross_entropy", "margin", "reflected_all"])
def test_stages_are_compared_by_the_loss_of_their_search(loss):
    model, x = small_mlp(classes=4), points(6, 6)
    y = model(x).argmax(1)
    with begin(model, x, y, L2(1e-3), Misclassified(), 4, {}, loss="margin") as search:
        search.stage(PGD(L2(1e-3), steps=3, loss=loss))
        best = search.best
        f = model(x + best.delta).detach()
        own = f.gather(1, y[:, None])
        margin = f.scatter(1, y[:, None], -torch.inf).amax(1) - own[:, 0]
        torch.testing.assert_close(best.value, margin)
        runs = {"cross_entropy": 1, "margin": 0, "reflected_all": 3}[loss]
        assert best.queries == 6 * runs
        assert search._several == (loss != "margin")


def test_what_training_follows_is_the_walk_of_its_attack():
    """A slope of 1 in the first coordinate, from -.9 in a ball of radius 1."""

    def model(v):
        return torch.stack([-v[:, 0], 0 * v[:, 0]], 1)

    x, start = torch.tensor([[-5.0, 0.0]]).double(), torch.tensor([[-0.9, 0.0]]).double()
    search = begin(model, x, [0], L2(1.0), Misclassified(), 1, {}, loss="margin")
    at = search.points(torch.arange(1))
    for attack, ends in (
        (FGSM(L2(1.0)), -0.9 + 1.25), (FGSM(L2(1.0), random_start=True), -0.9 + 1.25),
        (FGSM(L2(1.0), random_start=False), -0.9 + 1.0), (BIM(L2(1.0), steps=10), 1.0),
        (BIM(L2(1.0), steps=3, step_size=0.2), -0.9 + 0.6), (BIM(L2(1.0), steps=5), 1.0),
        (PGD(L2(1.0), steps=2, schedule=Decay(0.4, 0.5, 1)), -0.9 + 0.6),
    ):  # fmt: skip
        moved = attack.follow(at, start.clone())
        assert moved[0].tolist() == [pytest.approx(ends), 0.0], attack
        assert attack.length == {FGSM: 1}.get(type(attack), getattr(attack, "steps", None))


def test_every_draw_of_a_guide_counts_as_a_gradient():
    model, x = small_mlp(), points(4, 6)
    with begin(model, x, model(x).argmax(1), L2(1e-6), Misclassified(), 4, {}) as search:
        search.stage(PGD(L2(1e-6), steps=5), guide=Guide(search.subject, 1e-7, 3))
        assert search.best.gradients == 5 * 4 * 3
        search.stage(PGD(L2(1e-6), steps=5, loss="margin"))
        assert search.best.gradients == 5 * 4 * 4
