"""Every reader of files: how to make a good file, how to read it, and what the reading means.

A `sealed` file was written by overt for itself: it gives back what it meant, or an InputError. The
others may hold anything that their format can say.
"""

from __future__ import annotations

import gzip
import json
import pickle
import tracemalloc
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fuzz.hostile import limits
from fuzz.mutations import mutate

import overt
from overt.cli.matrix_file import read_matrix
from overt.cli.models import build_model, read_examples

RNG = np.random.default_rng(0)
M = RNG.standard_normal((5, 4))
MEMORY = 200 * 2**20
"""Bytes that reading a file of a few kilobytes may take."""


@dataclass(frozen=True)
class Reader:
    write: Any
    """Writes a good file into a folder and returns its path."""
    read: Any
    """Returns what a file means, as something to compare with ==."""
    sealed: bool = False


class Victim:
    """A file that is damaged again and again."""

    def __init__(self, reader: Reader, folder: Path) -> None:
        self.reader, self.path = reader, reader.write(folder)
        self.good, self.meant = self.path.read_bytes(), reader.read(self.path)

    def once(self, rng: np.random.Generator) -> str:
        """Damage the file and read it; return how the rule is broken, or nothing."""
        bad = mutate(self.good, rng)
        if bad == self.good:
            return ""
        self.path.write_bytes(bad)
        fault = judge(self.reader, self.path, self.meant)
        return fault and f"{fault} (of {len(bad)} bytes, {bad[:40]!r})"


def attack(reader: Reader, folder: Path, count: int, seed: int) -> list[str]:
    """Damage a file `count` times; return what broke the rule."""
    victim, rng = Victim(reader, folder), np.random.default_rng(seed)
    return [fault for _ in range(count) if (fault := victim.once(rng))]


def judge(reader: Reader, path: Path, meant: Any) -> str:
    """Return how the reading of a damaged file breaks the rule, or nothing."""
    try:
        with warnings.catch_warnings(), limits():
            warnings.simplefilter("error")
            found = reader.read(path)
    except overt.InputError as error:
        return "" if len(str(error)) > 20 else f"a short message: {error}"
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return f"{type(error).__name__}: {error}"
    if reader.sealed and found != meant:
        return "believed, with another meaning"
    return ""


def peak(call) -> int:
    """Return the bytes that a call takes at most, whether it succeeds or not."""
    tracemalloc.start()
    try:
        call()
    except overt.InputError:
        pass
    finally:
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return found


def _npy(folder):
    np.save(folder / "M.npy", M)
    return folder / "M.npy"


def _npz(folder):
    np.savez_compressed(folder / "M.npz", target=M, other=M)
    return folder / "M.npz"


def _text(name, **options):
    def write(folder):
        np.savetxt(folder / name, M, **options)
        return folder / name

    return write


def _sparse(folder):
    from scipy import sparse

    sparse.save_npz(folder / "M.npz", sparse.csr_array(np.where(M > 0, M, 0)))
    return folder / "M.npz"


def _matrix(path):
    found = read_matrix(path)
    return (found.toarray() if hasattr(found, "toarray") else found).tobytes()


def _examples(folder):
    np.savez(folder / "data.npz", x=M, y=np.arange(5))
    return folder / "data.npz"


RATINGS = "user,item,rating\n" + "".join(
    f"u{i % 7},{i % 5},{i % 4 + 0.5}\n" for i in range(40)
)


def _ratings(name, pack=lambda text: text.encode()):
    def write(folder):
        (folder / name).write_bytes(pack(RATINGS))
        return folder / name

    return write


def _parquet(folder):
    import duckdb

    path = folder / "r.parquet"
    rows = "select i % 7 a, i % 5 b, i / 2 v from range(40) t(i)"
    with duckdb.connect() as db:
        db.execute(f"copy ({rows}) to '{path}'")
    return path


def _table(path):
    from overt.completion import read_ratings

    found = read_ratings(path)
    assert np.isfinite(found.values).all()
    return found.values.tobytes()


NET = "import torch\ndef build():\n    return torch.nn.Linear(4, 3)\n"


def _weights(name):
    def write(folder):
        import torch
        from safetensors.torch import save_file

        (folder / "net.py").write_text(NET)
        state = torch.nn.Linear(4, 3).state_dict()
        save = torch.save if name.endswith(".pt") else save_file
        save(state, folder / name)
        return folder / name

    return write


def _state(path):
    state = build_model(f"{path.parent / 'net.py'}:build", path).state_dict()
    return pickle.dumps([value.numpy() for value in state.values()])


SOLUTION = overt.LinearNetwork(target=M, width=3, noise=overt.Dropout(0.3)).solve()


def _result(name):
    return lambda folder: SOLUTION.save(folder / name)


def _model(name):
    def write(folder):
        if not (folder / name).exists():
            _fitted().save(folder)
        return folder / name

    return write


def _entries():
    rows, cols = np.divmod(np.random.default_rng(3).permutation(48)[:40], 6)
    return overt.Entries(rows, cols, np.sin(rows) + cols / 6, shape=(8, 6))


def _completion(**settings):
    from overt.completion import DropoutCompletion

    given = {"n_factors": 2, "drop_prob": 0.3, "max_sweeps": 3, "seed": 0}
    return DropoutCompletion(**given | settings)


def _fitted():
    return _completion().fit(_entries())


def _predictions(path):
    from overt.completion import DropoutCompletion

    model = DropoutCompletion.load(path.parent)
    rows, cols = np.divmod(np.arange(48), 6)
    return pickle.dumps(
        [model.get_params(), model.predict(rows, cols), model.recommend(0, 3).cols]
    )


def _checkpoint(folder):
    from overt.completion.storage import SweepCheckpoint

    if not (folder / "fixed.safetensors").exists():
        model = _completion()
        kept = SweepCheckpoint(folder, _entries(), model.get_params(), resume=False)
        model.fit_entries(_entries(), checkpoint=kept)
    return folder / "fixed.safetensors"


def _resumed(path):
    from overt.completion.storage import SweepCheckpoint

    model = _completion()
    kept = SweepCheckpoint(path.parent, _entries(), model.get_params(), resume=True)
    good = path.read_bytes()
    model.fit_entries(_entries(), checkpoint=kept)
    path.write_bytes(good)
    return pickle.dumps([model.U_, model.V_])


def _train(path):
    import torch

    from overt.robust import adversarial_train

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3)
    x, y = torch.tensor(M).float(), torch.arange(5) % 3
    result = adversarial_train(model, (x, y), None, epochs=1, checkpoint=path, seed=1)
    state = [value.numpy() for value in model.state_dict().values()]
    return pickle.dumps([state, result.epochs])


def _training(folder):
    _train(folder / "training.safetensors")
    return folder / "training.safetensors"


def _figure():
    from overt.papers import Figure

    return Figure(
        id="fuzz",
        title="t",
        claim="c",
        sizes={"toy": {"n": [1, 2, 3]}},
        run=lambda p, seed: {"v": p["n"] / 3},
        check=lambda rows: [],
        plot=lambda rows: None,
    )


def _rows(folder):
    from overt.papers import run

    run(_figure(), out=folder)
    return folder / "fuzz.jsonl"


def _reproduced(path):
    from overt.papers import run

    data = path.read_bytes()
    rows = run(_figure(), out=path.parent)
    path.write_bytes(data)
    return [[row["n"], row["v"]] for row in rows]


def _proof(folder):
    net = overt.LinearNetwork(target=M[:2, :2], width=2, noise=overt.Dropout(0.3))
    best = net.solve()
    return net.certify(best.U, best.V, rigorous=True).save(folder / "proof.json")


def _proved(path):
    from contextlib import redirect_stdout
    from io import StringIO

    from overt.proofs.checker import main

    said = StringIO()
    with redirect_stdout(said):
        code = main([str(path)])
    if code:
        raise overt.InputError(said.getvalue())
    return said.getvalue()


def _compressed(folder):
    from overt.nn import compress, save_compressed

    save_compressed(
        compress(_net(), 0.5, torch.ones(2, 3), by="flow")[0], folder / "s.safetensors"
    )
    return folder / "s.safetensors"


def _loaded(path):
    from overt.nn import load_compressed

    return repr(load_compressed(path, _net()).state_dict())


def _net():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(3, 6), torch.nn.ReLU(), torch.nn.Linear(6, 2)
    )


READERS = {
    "npy": Reader(_npy, _matrix),
    "npz": Reader(_npz, _matrix),
    "csv": Reader(_text("M.csv", delimiter=","), _matrix),
    "txt": Reader(_text("M.txt"), _matrix),
    "sparse npz": Reader(_sparse, _matrix),
    "examples": Reader(_examples, lambda path: pickle.dumps(read_examples(path))),
    "ratings": Reader(_ratings("r.csv"), _table),
    "ratings in gzip": Reader(
        _ratings("r.csv.gz", lambda t: gzip.compress(t.encode())), _table
    ),
    "Parquet": Reader(_parquet, _table),
    "torch state": Reader(_weights("w.pt"), _state),
    "weights in safetensors": Reader(_weights("w.safetensors"), _state),
    "result in JSON": Reader(
        _result("r.json"), lambda p: _plain(overt.Solution.load(p)), True
    ),
    "result in npz": Reader(
        _result("r.npz"), lambda p: _plain(overt.Solution.load(p)), True
    ),
    "model.safetensors": Reader(_model("model.safetensors"), _predictions, True),
    "completion checkpoint": Reader(_checkpoint, _resumed, True),
    "training checkpoint": Reader(_training, _train, True),
    "rows of figures": Reader(_rows, _reproduced, True),
    "proof": Reader(_proof, _proved, True),
    "compressed network": Reader(_compressed, _loaded, True),
}


def _plain(result):
    return json.dumps(result.to_dict())
