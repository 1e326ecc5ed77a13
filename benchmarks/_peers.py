"""Runs one peer on a split kept in an npz file and prints a line of JSON; needs no overt.

python _peers.py NAME split.npz
"""

import json
import os
import sys
import time

import numpy as np


def cornac(split):
    import cornac

    rows, cols, values = split["rows"], split["cols"], split["values"]
    data = cornac.data.Dataset.build(
        list(zip(rows.tolist(), cols.tolist(), values.tolist(), strict=True))
    )
    model = cornac.models.MF(
        k=100, max_iter=50, learning_rate=0.01, lambda_reg=0.06, use_bias=True, seed=0
    )
    start = time.perf_counter()
    model.fit(data)
    seconds = time.perf_counter() - start
    users = np.array([data.uid_map.get(i, -1) for i in range(int(split["shape"][0]))])
    items = np.array([data.iid_map.get(i, -1) for i in range(int(split["shape"][1]))])
    a, b = users[split["test_rows"]], items[split["test_cols"]]
    predicted = model.global_mean + np.where(a >= 0, model.u_biases[a], 0)
    predicted = predicted + np.where(b >= 0, model.i_biases[b], 0)
    known = (a >= 0) & (b >= 0)
    predicted[known] += np.sum(
        model.u_factors[a[known]] * model.i_factors[b[known]], axis=1
    )
    return predicted, seconds, "100 factors, 50 epochs, lr .01, reg .06"


def myfm(split):
    import myfm
    import scipy.sparse as sps

    m, n = map(int, split["shape"])

    def one_hot(rows, cols):
        at = np.arange(len(rows))
        index = (np.concatenate([at, at]), np.concatenate([rows, cols + m]))
        return sps.csr_matrix((np.ones(2 * len(rows)), index), shape=(len(rows), m + n))

    X, T = (
        one_hot(split["rows"], split["cols"]),
        one_hot(split["test_rows"], split["test_cols"]),
    )
    model = myfm.MyFMRegressor(rank=16, random_seed=0)
    start = time.perf_counter()
    model.fit(X, split["values"], n_iter=200, n_kept_samples=200, group_shapes=[m, n])
    seconds = time.perf_counter() - start
    return model.predict(T), seconds, "rank 16, 200 iterations"


def cmfrec(split):
    import scipy.sparse as sps
    from cmfrec import CMF

    X = sps.coo_matrix(
        (split["values"], (split["rows"], split["cols"])), shape=split["shape"]
    )
    model = CMF(
        k=50, lambda_=0.07, scale_lam=True, add_implicit_features=True, nthreads=2
    )
    start = time.perf_counter()
    model.fit(X)
    seconds = time.perf_counter() - start
    predicted = model.predict(split["test_rows"], split["test_cols"])
    return predicted, seconds, "k 50, scale_lam .07, implicit features"


def surprise(split):
    import pandas
    from surprise import SVD, Dataset, Reader

    frame = pandas.DataFrame({n: split[n] for n in ("rows", "cols", "values")})
    data = Dataset.load_from_df(
        frame, Reader(rating_scale=(1, 5))
    ).build_full_trainset()
    model = SVD(n_factors=50, n_epochs=60, lr_all=0.005, reg_all=0.05, random_state=0)
    start = time.perf_counter()
    model.fit(data)
    seconds = time.perf_counter() - start
    pairs = zip(split["test_rows"].tolist(), split["test_cols"].tolist(), strict=True)
    return (
        np.array([model.predict(a, b).est for a, b in pairs]),
        seconds,
        "50 factors, 60 epochs",
    )


def libmf(split):
    from libmf import mf

    train = np.column_stack([split["rows"], split["cols"], split["values"]])
    model = mf.MF(
        k=64, nr_iters=60, lambda_p2=0.05, lambda_q2=0.05, eta=0.05, nr_threads=2
    )
    start = time.perf_counter()
    model.fit(train)
    seconds = time.perf_counter() - start
    # Its own predict() mixes up indices; the factors are right.
    P, Q = np.array(model.p_factors()), np.array(model.q_factors())
    a = np.minimum(split["test_rows"], len(P) - 1)
    b = np.minimum(split["test_cols"], len(Q) - 1)
    product = np.sum(P[a] * Q[b], axis=1)  # NaN where an index was never seen
    predicted = np.where(np.isnan(product), split["values"].mean(), product)
    return predicted, seconds, "k 64, 60 iterations, reg .05"


def lenskit(split):
    import pandas
    from lenskit.als import BiasedMFScorer
    from lenskit.data import ItemList, from_interactions_df

    frame = pandas.DataFrame(
        {"user_id": split["rows"], "item_id": split["cols"], "rating": split["values"]}
    )
    data = from_interactions_df(frame)
    model = BiasedMFScorer(embedding_size=50, epochs=15)
    start = time.perf_counter()
    model.train(data)
    seconds = time.perf_counter() - start
    predicted = np.full(len(split["test_rows"]), split["values"].mean())
    order = np.argsort(split["test_rows"], kind="stable")
    users, starts = np.unique(split["test_rows"][order], return_index=True)
    for user, at in zip(users.tolist(), np.split(order, starts[1:]), strict=True):
        scores = model(user, ItemList(item_ids=split["test_cols"][at])).scores()
        predicted[at] = np.where(np.isnan(scores), predicted[at], scores)
    return predicted, seconds, "50 factors, 15 epochs"


PEERS = {f.__name__: f for f in (cornac, myfm, cmfrec, libmf, surprise, lenskit)}


def main(name, path):
    with np.load(path) as data:
        split = {key: data[key] for key in data.files}
    cpu = time.process_time()
    try:
        predicted, seconds, setting = PEERS[name](split)
    except ModuleNotFoundError as error:
        print(json.dumps({"missing": str(error)}))
        return
    cpu = time.process_time() - cpu
    values = split["values"]
    error = np.clip(predicted, values.min(), values.max()) - split["test_values"]
    with open("/proc/self/status") as file:
        peak = next(
            int(line.split()[1]) / 1024 for line in file if line.startswith("VmHWM")
        )
    print(
        json.dumps(
            {
                "rmse": float(np.sqrt(np.mean(error**2))),
                "seconds": seconds,
                "cpu": cpu,
                "megabytes": peak,
                "setting": setting,
            }
        )
    )


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    main(sys.argv[1], sys.argv[2])
