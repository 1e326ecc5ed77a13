"""Evaluation: splits, figures against definitions, baselines in the same table."""

import numpy as np
import pytest

import overt
from overt import datasets
from overt.completion import DropoutCompletion, evaluate
from overt.completion.evaluation import divide, list_figures


@pytest.fixture(scope="module")
def ratings():
    found = datasets.generate_ratings(60, 40, 1200, seed=0)[0]
    times = np.random.default_rng(0).permutation(len(found))
    return overt.Entries(found.rows, found.cols, found.values, found.shape, times=times)


@pytest.mark.parametrize("split", ["random", "time", "last"])
def test_splits_divide(ratings, split):
    train, held = divide(ratings, split, 0.1, 0)
    assert len(train) + len(held) == len(ratings)
    if split == "time":
        assert train.times.max() < held.times.min()
    if split == "last":
        for row in range(60):
            mine = held.times[held.rows == row]
            assert len(mine) == max(1, np.count_nonzero(ratings.rows == row) // 10)
            assert train.times[train.rows == row].max() < mine.min()


def test_figures_are_their_definitions():
    """Two rows worked out by hand."""
    entries = overt.Entries([0, 0, 1, 1, 0], [1, 2, 0, 3, 0], np.ones(5), (2, 30))
    train, held = entries.take(np.array([4])), entries.take(np.arange(4))
    lists = np.array([[1, 5, 2, *range(6, 23)], [4, 0, *range(5, 23)]])
    found = list_figures(lists, np.array([0, 1]), train, held)
    ideal = 1 + 1 / np.log2(3)
    first, second = (1 + 1 / 2) / ideal, (1 / np.log2(3)) / ideal
    assert found["ndcg@10"][0] == pytest.approx((first + second) / 2)
    assert found["recall@20"][0] == pytest.approx((1 + 0.5) / 2)
    assert found["mrr"][0] == pytest.approx((1 + 0.5) / 2)
    assert found["map"][0] == pytest.approx(((1 + 2 / 3) / 2 + 0.5 / 2) / 2)
    assert found["ndcg@10"][1] == pytest.approx(
        np.std([first, second], ddof=1) / np.sqrt(2)
    )


@pytest.mark.parametrize("missing", ["unknown", "negative"])
def test_the_model_stands_beside_baselines(ratings, missing):
    model = DropoutCompletion(3, max_sweeps=8, missing=missing)
    found = evaluate(model, ratings, holdout=0.2)
    assert not hasattr(model, "model_")
    assert {"model", "popularity"} <= found.figures.keys()
    if missing == "unknown":
        assert found.figures["model"]["rmse"][0] < found.figures["mean"]["rmse"][0]
        assert (
            found.figures["model"]["rmse"][0]
            < found.figures["biases"]["rmse"][0] + 0.05
        )
    else:
        assert "rmse" not in found.figures["model"]
    assert "ndcg@10" in repr(found)
    assert "popularity" in repr(found)


def test_what_cannot_be_divided_is_refused(ratings):
    with pytest.raises(overt.InputError, match="split must be one of"):
        evaluate(DropoutCompletion(), ratings, split="magic")
    with pytest.raises(overt.InputError, match="both sides"):
        divide(ratings.take(np.arange(3)), "random", 0.1, 0)


def test_what_counts_as_relevant_is_said(ratings):
    """Only 4 of 5 stars and more counted, and nothing said so."""
    model = DropoutCompletion(3, max_sweeps=4, missing="negative")
    found = evaluate(model, ratings)
    assert found.relevant == 4
    assert "values of at least 4" in repr(found)
    every = evaluate(model, ratings, relevant=0)
    assert (
        every.figures["popularity"]["recall@20"]
        != found.figures["popularity"]["recall@20"]
    )
    clicks = overt.Entries(
        ratings.rows, ratings.cols, np.ones(len(ratings)), ratings.shape
    )
    assert "every entry" in repr(evaluate(model, clicks))
