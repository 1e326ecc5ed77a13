"""Peers that rank, in a process of their own: python _rankers.py SPLIT.npz LISTS.npz.

SPLIT has rows, cols, values (strengths) of what is fitted, `slice` (which of them are the
validation slice), and `good` (which are relevant); settings are chosen on the slice.
"""

import json
import sys
import time

import numpy as np
from scipy import sparse

REACH = 20
RIDGES = (25, 50, 100, 200, 400, 800, 1600, 3200)
ALS = [(f, a, r) for f in (32, 64) for a in (1, 2, 4) for r in (1, 3, 10, 30, 100)]

LENSKIT = [(f, w, r) for f in (32, 64) for w in (1, 4) for r in (1, 10)]


def lists(scores, known):
    scores = np.array(scores)
    scores[known.nonzero()] = -np.inf
    top = np.argpartition(-scores, REACH, axis=1)[:, :REACH]
    order = np.take_along_axis(-scores, top, 1).argsort(axis=1, kind="stable")
    return np.take_along_axis(top, order, 1)


def ndcg(top, relevant):
    counts = np.asarray(relevant.sum(axis=1)).ravel()
    hits = np.take_along_axis(relevant.toarray() > 0, top, 1)[:, :10]
    discount = 1 / np.log2(np.arange(2, 12))
    ideal = np.cumsum(discount)[np.minimum(counts, 10).astype(int) - 1]
    return float(np.mean((hits @ discount)[counts > 0] / ideal[counts > 0]))


def ease(X, ridge):
    G = (X.T @ X).toarray()
    P = np.linalg.inv(G + ridge * np.eye(len(G)))
    B = -P / np.diag(P)
    np.fill_diagonal(B, 0)
    return X @ B


def als(X, setting):
    from implicit.als import AlternatingLeastSquares

    factors, alpha, regularization = setting
    model = AlternatingLeastSquares(
        factors=factors,
        regularization=regularization,
        alpha=alpha,
        iterations=15,
        num_threads=1,
        random_state=0,
    )
    model.fit(X.astype(np.float32), show_progress=False)
    return np.asarray(model.user_factors) @ np.asarray(model.item_factors).T


def lenskit(X, setting):
    import pandas
    from lenskit.als import ImplicitMFScorer
    from lenskit.data import from_interactions_df

    factors, weight, regularization = setting
    entries = X.tocoo()
    frame = {"user_id": entries.row, "item_id": entries.col, "rating": entries.data}
    model = ImplicitMFScorer(
        embedding_size=factors,
        epochs=15,
        weight=weight,
        regularization=regularization,
        use_ratings=True,
    )
    model.train(from_interactions_df(pandas.DataFrame(frame)))
    scores = np.zeros(X.shape)
    found = np.asarray(model.user_embeddings) @ np.asarray(model.item_embeddings).T
    scores[np.ix_(model.users.ids(), model.items.ids())] = found
    return scores


def main(path, out):
    data = np.load(path)
    shape, aside = tuple(data["shape"]), data["slice"]

    def matrix(chosen, values):
        return sparse.csr_matrix(
            (values, (data["rows"][chosen], data["cols"][chosen])), shape
        )

    full, inner = (
        matrix(c, data["values"][c]) for c in (np.ones(len(aside), bool), ~aside)
    )
    wanted = matrix(
        aside & data["good"], np.ones(np.count_nonzero(aside & data["good"]))
    )
    found, told = {}, {}
    peers = (
        ("EASE", ease, RIDGES),
        ("implicit ALS", als, ALS),
        ("LensKit ALS", lenskit, LENSKIT),
    )
    for name, fit, grid in peers:
        try:
            judged = {
                setting: ndcg(lists(fit(inner, setting), inner), wanted)
                for setting in grid
            }
        except ImportError as error:
            told[name] = {"missing": str(error)}
            continue
        best = max(judged, key=judged.__getitem__)
        start = time.process_time()
        scores = fit(full, best)
        told[name] = {"setting": str(best), "cpu": time.process_time() - start}
        found[name] = lists(scores, full)
        if name == "implicit ALS":
            for factors in (32, 64):
                start = time.process_time()
                als(full, (factors, *best[1:]))
                told[f"ALS {factors}"] = {"cpu": time.process_time() - start}
    np.savez(out, **found)
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
