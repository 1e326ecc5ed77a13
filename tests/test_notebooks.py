"""Notebooks show what the terminal shows."""

import numpy as np
import pytest

import overt


@pytest.mark.parametrize("kind", [overt.results.Certificate, None])
def test_notebooks_show_what_text_shows(kind):
    if kind is None:
        model = overt.completion.DropoutCompletion(2, max_sweeps=2, seed=0)
        ratings, _ = overt.datasets.generate_ratings(60, 30, 600, seed=0)
        found = model.fit(ratings).recommend(0, n=3)
        assert "array(" not in found._repr_html_()
        assert str(found).splitlines()[-1].split()[0] in found._repr_html_()
    else:
        M = np.diag([2.0, 1.0])
        best = overt.LinearNetwork(M, 2, overt.Dropout(0.5)).solve()
        assert "lower_bound" in best.certificate._repr_html_()
