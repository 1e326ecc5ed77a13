"""What fuzzing found, each root cause once: a sentence, or the right value."""

import os
import warnings

import numpy as np
import pytest
import scipy.sparse
from sklearn.base import clone

import overt
from overt import decay, penalty, relu
from overt._io import reading, write_whole
from overt.cli.matrix_file import read_matrix
from overt.completion import DropoutCompletion, DropoutImputer, evaluate, read_ratings

torch = pytest.importorskip("torch")
pytest.importorskip("duckdb")
from overt import nn, robust  # noqa: E402

A = np.arange(12.0).reshape(4, 3)
ROWS, COLS = np.array([0, 1, 2, 3, 0]), np.array([0, 1, 2, 0, 2])
ENTRIES = overt.Entries(ROWS, COLS, np.array([1.0, 2.0, 3.0, 2.5, 1.5]), shape=(4, 3))
MODEL = DropoutCompletion(n_factors=2, average=0, max_sweeps=2).fit(ENTRIES)
TASK = overt.LinearNetwork(A, 2, overt.Dropout(0.5))
X, LABELS = torch.ones(4, 3), torch.tensor([0, 1, 1, 0])
SMALL, RULE = decay.two_by_two(0.25), decay.Schedule.constant(9, 0.1, 0.01)
RUNS = decay.simulate(SMALL, 3, 3, RULE, 1, records=3, n_jobs=1, progress=False)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    NESTED = torch.nested.nested_tensor([X[0], X[1]])
HUGE = np.array([np.longdouble("1e4000")])


def network(dtype=torch.float32):
    return torch.nn.Sequential(
        torch.nn.Dropout(0.5), torch.nn.Linear(3, 2, dtype=dtype)
    )


class Frame(dict):
    columns = ("a", "a", "b")


COMPLEX = scipy.sparse.csr_array(np.full((4, 1), 1j))

REFUSED = {
    "a length of time": lambda: overt.Dropout(0.5).mean(np.timedelta64(3, "s")),
    "a nested tensor": lambda: penalty.tied(NESTED, overt.Dropout(0.5)),
    "eight bits": lambda: penalty.tied(X.to(torch.float8_e4m3fn), overt.Dropout(0.5)),
    "beyond doubles": lambda: overt.Dropout(HUGE),
    "values beyond doubles": lambda: overt.Entries([0], [0], HUGE),
    "squares that vanish": lambda: overt.LinearNetwork(
        A * 1e-320, 2, overt.DropBlock(0.5, 2)
    ),
    "complex features": lambda: DropoutCompletion().fit(ENTRIES, row_features=COMPLEX),
    "endless weight decay": lambda: decay.minima(SMALL, 3, 1e300),
    "no pair to start from": lambda: TASK.train(4, init=-1),
    "huge weights in a proof": lambda: TASK.certify(
        np.full((4, 2), 1e300), np.ones((3, 2)), True
    ),
    "ragged table": lambda: MODEL.score([[1.0, 2.0], [3.0]]),
    "huge entries of a newcomer": lambda: MODEL.fold_in({0: 1e300}),
    "a ragged row": lambda: MODEL.recommend([[1, 2], [3]]),
    "no entries": lambda: DropoutCompletion().fit_entries([1.0]),
    "no folder": lambda: DropoutCompletion().fit(ENTRIES, checkpoint=3.5),
    "huge features": lambda: DropoutCompletion().fit(
        ENTRIES, row_features=np.full((4, 1), 1e300)
    ),
    "a class for a model": lambda: evaluate(DropoutCompletion, ENTRIES),
    "endless memory": lambda: DropoutCompletion(memory_limit="1e999").fit(ENTRIES),
    "too deep a list": lambda: DropoutImputer().fit_transform([[[[1.0]]]]),
    "two columns of one name": lambda: overt.Entries.from_frame(Frame(a=[1], b=[2])),
    "no start": lambda: decay.simulate(
        SMALL, 3, 3, RULE, init=1e300, n_jobs=1, progress=False
    ),
    "no rank": lambda: RUNS.jumps_to("1"),
    "no phase": lambda: decay.Schedule.annealing(noisy=3.5),
    "endless width": lambda: relu.train_lazy(np.eye(2), [1, -1], width=10**12),
    "huge covariance": lambda: nn.CovarianceDropout([1.0, 0.5], np.eye(2) * 1e154),
    "tiny mean": lambda: nn.CovarianceDropout([1e-300, 0.5], np.eye(2)),
    "nothing survives": lambda: nn.DropBlock2d(1 - 2**-53, 2)(torch.ones(2, 2, 6, 6)),
    "complex weights": lambda: nn.predictive_moments(network(torch.complex64), X + 0j),
    "an output that is no function": lambda: nn.predictive_moments(
        network(), X, output="logits"
    ),
    "one target": lambda: nn.audit(network(), (X, torch.tensor(1.0)), "mse", passes=1),
    "no shape": lambda: nn.Dropout(0.5).mask_covariance(3),
    "unsigned classes": lambda: robust.FGSM(robust.L2(0.1))(network(), X, [2**63] * 4),
    "no radii": lambda: robust.smoothed(network(), X, 0.1, draws=9, guesses=3).errors(
        LABELS, "a"
    ),
    "data that is one tensor": lambda: robust.adversarial_train(network(), X, None),
    "sparse classes": lambda: robust.adversarial_train(
        network(), (X, scipy.sparse.csr_array(X)), None
    ),
    "a width beyond memory": lambda: overt.equalize.equalize_product(
        torch.eye(3), 10**12
    ),
    "no path": lambda: TASK.solve().save(3.5),
    "a path with NUL": lambda: TASK.solve().save("a\0.npz"),
    "a folder that is missing": lambda: TASK.solve().save("none/below/a.npz"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_was_found_is_refused_with_a_sentence(name):
    warnings.simplefilter("error")  # pytest restores them
    with pytest.raises(overt.InputError) as error:
        REFUSED[name]()
    assert len(str(error.value)) > 20


def test_small_unsigned_indices_are_not_wrapped():
    asked = np.array([1, 200], np.uint8)
    given, known = MODEL.predict(asked, asked, return_known=True)
    assert known.tolist() == [True, False]
    assert np.array_equal(
        given, MODEL.predict([1, 200], [1, 200], return_known=True)[0]
    )
    assert np.array_equal(MODEL.complete(np.array([1], np.uint8)), MODEL.complete([1]))


def test_extremes_that_have_a_value_get_it():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        path = overt.path(A, 3, np.array([1e-320, 0.5]))
        assert path.objective[0] == pytest.approx(0, abs=1e-20)
        y = torch.zeros(4, 2, requires_grad=True)
        assert nn.audit(network(), (X, y), "mse", passes=1).samples == 4
        half = torch.tensor(np.eye(2), dtype=torch.bfloat16)
        assert relu.train_lazy(half, [1, -1], width=3, steps=4, records=2).predict(
            half
        ).shape == (2,)


def test_points_that_are_wrong_already_are_at_distance_zero():
    model = torch.nn.Linear(3, 2).eval()
    wrong = 1 - model(X).argmax(1)
    assert (
        robust.minimum_distance(
            model, X, wrong, robust.L2(0.5), steps=2
        ).distance.tolist()
        == [0.0] * 4
    )


def test_devices_and_pipes_are_refused_and_links_followed(tmp_path):
    (tmp_path / "file").write_text("before")
    (tmp_path / "link").symlink_to("file")
    write_whole(tmp_path / "link", b"after")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "after"
    os.mkfifo(tmp_path / "pipe")
    for place in (os.devnull, "/dev/full", tmp_path / "pipe"):
        with pytest.raises(overt.InputError, match="no ordinary file"):
            write_whole(place, b"x")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(overt.InputError, match="loop"):
        write_whole(tmp_path / "loop", b"x")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes")
def test_pipes_and_devices_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "a.npy")
    os.mkfifo(tmp_path / "r.json")
    (tmp_path / "zero.csv").symlink_to("/dev/zero")
    calls = (read_matrix, overt.Solution.load, read_ratings)
    for call, name in zip(calls, ("a.npy", "r.json", "zero.csv"), strict=True):
        with pytest.raises(overt.InputError, match=r"no file|ordinary"):
            call(tmp_path / name)


def test_an_interrupt_while_a_file_is_read_stays_one(tmp_path):
    import duckdb

    with pytest.raises(KeyboardInterrupt), reading(tmp_path, "cannot be read"):
        raise duckdb.InterruptException("INTERRUPT Error: Query interrupted")


def test_layers_of_two_precisions_have_one_in_common():
    U, drop = torch.arange(6.0).reshape(2, 3), overt.Dropout(0.5)
    found = penalty.predictive_variance(U.bfloat16(), X, drop)
    assert torch.equal(found, penalty.predictive_variance(U, X, drop))


def test_whole_numbers_without_sign_and_labels_in_reverse_are_taken():
    unsigned = clone(MODEL).set_params(n_factors=np.uint64(2)).fit(ENTRIES)
    assert np.array_equal(unsigned.U_, MODEL.U_)
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 2), torch.nn.Dropout(0.5), torch.nn.Linear(2, 2)
    )
    y = LABELS.numpy()[::-1]
    found, expected = (
        nn.audit(model, (X, labels), "cross_entropy") for labels in (y, y.copy())
    )
    assert found.objective == expected.objective


def test_radii_beyond_the_format_of_inputs_are_refused():
    torch = pytest.importorskip("torch", reason="robustness needs torch")
    from overt.robust import L2, robust_error

    net, x, y = (
        torch.nn.Linear(3, 2),
        torch.ones(2, 3),
        torch.zeros(2, dtype=torch.long),
    )
    for threat, radii in ((L2(1e300), None), (L2(0.1), [1e39])):
        with pytest.raises(overt.InputError, match="must fit"):
            robust_error(net, x, y, threat, radii=radii)
