import dataclasses
import json

import numpy as np
import pytest
from helpers import chain_product

import overt
from overt import Certificate, DeepSolution, InputError, Solution, Status, Trace

CERTIFICATE = Certificate(
    objective=1.5,
    lower_bound=1.25,
    gap=0.25,
    relative_gap=0.2,
    imbalance=0.0,
    distance=None,
)
RNG = np.random.default_rng(0)

RESULTS = {
    "certificate": CERTIFICATE,
    "solution": Solution(
        U=RNG.standard_normal((3, 2)),
        V=RNG.standard_normal((4, 2)),
        objective=np.float64(1.5),
        rank=np.int64(2),
        status=Status.OPTIMAL,
        certificate=CERTIFICATE,
    ),
    "deep-solution": DeepSolution(
        weights=(RNG.standard_normal((2, 3)), RNG.standard_normal((4, 2)), np.eye(4)),
        objective=0.5,
        rank=1,
        status=Status.LOWER_BOUND,
        certificate=CERTIFICATE,
    ),
    "trace": Trace(
        steps=np.array([0, 10, 100]),
        objective=RNG.random((2, 3)),
        imbalance=RNG.random((2, 3)),
        rank=np.array([[2, 2, 1], [2, 1, 1]]),
        weights=(RNG.standard_normal((2, 3, 2)), RNG.standard_normal((2, 4, 2))),
        optimum=0.25,
        diverged=np.array([False, False]),
        status=Status.FINISHED,
    ),
    "deep-trace": Trace(
        steps=np.array([0, 10]),
        objective=RNG.random((1, 2)),
        imbalance=RNG.random((1, 2)),
        rank=np.array([[2, -1]]),
        weights=tuple(RNG.standard_normal((1, 2, 2)) for _ in range(3)),
        optimum=0.25,
        diverged=np.array([True]),
        status=Status.DIVERGED,
    ),
}
TRACE = RESULTS["trace"]
every_result = pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS.keys())


@every_result
def test_results_are_frozen(result):
    for field in dataclasses.fields(result):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(result, field.name, 0)


@every_result
def test_to_dict_is_plain_json(result):
    plain = result.to_dict()
    assert list(plain) == [field.name for field in dataclasses.fields(result)]
    assert json.loads(json.dumps(plain)) == plain


@every_result
def test_to_dict_keeps_every_number(result):
    for name, value in result.to_dict().items():
        original = getattr(result, name)
        if isinstance(original, np.ndarray):
            np.testing.assert_array_equal(np.array(value), original)
        elif isinstance(original, Certificate):
            assert value == original.to_dict()
        elif isinstance(original, tuple):
            for found, expected in zip(value, original, strict=True):
                np.testing.assert_array_equal(np.array(found), expected)
        else:
            assert value == original


@every_result
def test_json_round_trip(result, tmp_path):
    path = result.save(tmp_path / "result.json")
    assert path == tmp_path / "result.json"
    told = json.loads(path.read_text())
    assert len(told.pop("checksum")) == 64
    assert told == result.to_dict()


@every_result
def test_npz_round_trip_without_pickle(result, tmp_path):
    path = result.save(str(tmp_path / "result.npz"))
    with np.load(path, allow_pickle=False) as stored:
        found = dict(stored)
    header = json.loads(str(found.pop("header")))
    assert len(header.pop("checksum")) == 64
    assert result.to_dict() | header == result.to_dict()
    expected = {}
    for field in dataclasses.fields(result):
        value = getattr(result, field.name)
        if isinstance(value, np.ndarray):
            expected[field.name] = value
        elif isinstance(value, tuple):
            expected |= {f"{field.name}_{i}": W for i, W in enumerate(value, start=1)}
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype


@every_result
@pytest.mark.parametrize("suffix", ["json", "npz"])
def test_what_was_saved_is_loaded(result, suffix, tmp_path):
    found = type(result).load(result.save(tmp_path / f"result.{suffix}"))
    assert type(found) is type(result)
    assert found == result
    assert found.status is result.status if hasattr(result, "status") else True


def test_results_are_equal_by_value():
    again = dataclasses.replace(TRACE, objective=TRACE.objective.copy())
    assert again == TRACE
    assert again != dataclasses.replace(TRACE, objective=TRACE.objective + 1)
    assert TRACE != CERTIFICATE
    broken = dataclasses.replace(CERTIFICATE, gap=float("nan"))
    assert broken == dataclasses.replace(CERTIFICATE, gap=float("nan"))
    assert broken != CERTIFICATE


@pytest.mark.parametrize("content", [b"", b"not json", b"[1, 2]", b'{"objective": 1}'])
def test_other_files_hold_no_result(content, tmp_path):
    for name in ("r.json", "r.npz"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match="holds no Certificate"):
            Certificate.load(tmp_path / name)


@every_result
def test_npz_holds_every_field(result, tmp_path):
    with np.load(result.save(tmp_path / "result.npz"), allow_pickle=False) as stored:
        header = json.loads(str(stored["header"]))
        arrays = {
            name.rsplit("_", 1)[0] if name[-1].isdigit() else name for name in stored
        }
    stored_fields = arrays | header.keys()
    expected = {f.name for f in dataclasses.fields(result)}
    assert stored_fields == expected | {"header", "checksum"}


def test_diverged_traces_are_stored_as_standard_json(tmp_path):
    lost = dataclasses.replace(
        TRACE, objective=np.full((2, 3), np.nan), status=Status.DIVERGED
    )

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    text = lost.save(tmp_path / "trace.json").read_text()
    json.loads(text, parse_constant=refuse)


@every_result
def test_saving_replaces_the_file_and_leaves_nothing_else(result, tmp_path):
    for name in ("result.npz", "result.json"):
        (tmp_path / name).write_text("old")
        result.save(tmp_path / name)
    assert {path.name for path in tmp_path.iterdir()} == {"result.npz", "result.json"}
    assert (tmp_path / "result.json").read_text() != "old"


@pytest.mark.parametrize("name", ["result.pkl", "result", "result.npy"])
def test_other_formats_are_refused(name, tmp_path):
    with pytest.raises(
        InputError, match=rf"path must end in .npz or .json, got .*{name}"
    ):
        CERTIFICATE.save(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@every_result
def test_repr_is_short_and_names_every_field(result):
    text = repr(result)
    assert text.startswith(type(result).__name__ + "(")
    assert all(f"{field.name}=" in text for field in dataclasses.fields(result))
    assert len(text) < 600


def test_repr_shows_shapes_and_numbers():
    text = repr(RESULTS["solution"])
    assert "U=array(3 x 2)" in text
    assert "status='optimal'" in text
    assert "gap=0.25" in text
    assert "weights=(array(2 x 3), array(4 x 2), array(4 x 4))" in repr(
        RESULTS["deep-solution"]
    )


@pytest.mark.parametrize("status", list(Status), ids=str)
def test_status_equals_its_short_name_and_explains_itself(status):
    assert status == status.name.lower()
    assert f"{status}" == status.name.lower()
    assert Status(status.name.lower()) is status
    assert len(status.explanation) > 40
    assert status.explanation.endswith(".")


def test_explanations_differ():
    assert len({status.explanation for status in Status}) == len(Status)


def test_product_is_the_map_of_the_factors():
    shallow, deep = RESULTS["solution"], RESULTS["deep-solution"]
    np.testing.assert_array_equal(shallow.product, shallow.U @ shallow.V.T)
    np.testing.assert_allclose(deep.product, chain_product(deep.weights), rtol=1e-15)


def test_factors_of_a_two_layer_trace_are_its_weights():
    assert TRACE.U is TRACE.weights[0]
    assert TRACE.V is TRACE.weights[1]


@pytest.mark.parametrize("name", ["U", "V"])
def test_deep_trace_has_no_factors(name):
    with pytest.raises(AttributeError, match="3 layers has weights, not U and V"):
        getattr(RESULTS["deep-trace"], name)


@pytest.mark.parametrize("name", RESULTS)
def test_notebooks_show_every_field_with_text_escaped(name):
    shown = RESULTS[name]._repr_html_()
    assert all(
        f'<th style="text-align: left">{field}</th>' in shown
        for field in RESULTS[name].to_dict()
    )
    assert (
        "<script>"
        not in dataclasses.replace(RESULTS["solution"], rank="<script>")._repr_html_()
    )


def test_pictures_draw_the_numbers():
    pytest.importorskip("matplotlib")
    solution = RESULTS["solution"]
    assert solution.plot()._repr_png_().startswith(b"\x89PNG")  # what a notebook shows
    (spectrum, shares) = solution.plot().axes
    np.testing.assert_allclose(
        [bar.get_height() for bar in spectrum.patches], solution.spectrum
    )
    norms = np.linalg.norm(solution.U, axis=0) * np.linalg.norm(solution.V, axis=0)
    np.testing.assert_allclose([bar.get_height() for bar in shares.patches], norms)
    top, bottom = TRACE.plot().axes
    # Axes are logarithmic: the record before the first step is not drawn.
    np.testing.assert_allclose(
        top.lines[0].get_ydata(), np.nanmean(TRACE.objective, 0)[1:]
    )
    np.testing.assert_allclose(
        bottom.lines[0].get_ydata(), np.nanmean(TRACE.imbalance, 0)[1:]
    )


def test_paths_draw_themselves():
    pytest.importorskip("matplotlib")
    M = np.diag([3.0, 2.0, 1.0])
    path = overt.path(M, width=3, drop_probs=[0.0, 0.5, 0.9])
    spectrum, rank = path.plot().axes
    np.testing.assert_allclose(
        [line.get_ydata() for line in spectrum.lines], path.spectrum.T
    )
    np.testing.assert_array_equal(rank.lines[0].get_ydata(), path.rank)
    assert [line.get_marker() for line in spectrum.lines] == ["."] * 3
    assert rank.yaxis.get_major_locator()._integer
    long = overt.path(M, width=3, drop_probs=np.linspace(0, 0.9, 30))
    assert long.plot().axes[0].lines[0].get_marker() == "None"
    widths = overt.path(M, width=[1, 2, 3], drop_probs=0.5)
    assert widths.plot().axes[0].get_xlabel() == "width"


def test_networks_print_what_they_are():
    M = np.ones((2, 3))
    assert repr(overt.LinearNetwork(M, 4, overt.Dropout(0.5))) == (
        "LinearNetwork(3 -> 4 -> 2, Dropout(drop_prob=0.5))"
    )
    assert repr(overt.TiedAutoencoder(np.eye(3), 2, overt.Dropout(0.5))) == (
        "TiedAutoencoder(3 -> 2 -> 3, Dropout(drop_prob=0.5))"
    )
    assert repr(overt.DeepLinearNetwork(M, [4, 5], 0.5)) == (
        "DeepLinearNetwork(3 -> 4 -> 5 -> 2, [Dropout(drop_prob=0.5), Dropout(drop_prob=0.5)])"
    )
