"""`overt impute` as a user meets it: files in, files out, and one sentence for each mistake."""

import csv
import gzip
import json

import numpy as np
import pytest
from sklearn.datasets import load_wine
from typer.testing import CliRunner

import overt
from overt.cli import app
from overt.completion import DropoutImputer

NAMES = load_wine().feature_names
TABLE = load_wine().data
REMOVED = np.random.default_rng(0).random(TABLE.shape) < 0.15


def command(*arguments):
    return CliRunner().invoke(app, ["impute", *map(str, arguments)])


def write(path, delimiter=",", decimal=".", change=None):
    """Write the wine table with an identifier, a column of text, and empty cells."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", newline="") as stream:
        writer = csv.writer(stream, delimiter=delimiter)
        writer.writerow(["id", *NAMES, "cellar"])
        for i, row in enumerate(TABLE):
            cells = [repr(float(x)).replace(".", decimal) for x in row]
            cells = [
                "" if gone else cell
                for gone, cell in zip(REMOVED[i], cells, strict=True)
            ]
            if change is not None and i == 3:
                cells[2] = change
            writer.writerow([i, *cells, f"cellar {i % 7}"])
    return path


def read(path):
    with path.open(newline="") as stream:
        lines = list(csv.reader(stream))
    return lines[0], lines[1:]


@pytest.mark.parametrize("kind", ["plain", "tabs", "decimal commas", "compressed"])
def test_a_table_is_filled_as_the_imputer_fills_it(kind, tmp_path):
    name = "table.csv.gz" if kind == "compressed" else "table.csv"
    delimiter = {"tabs": "\t", "decimal commas": ";"}.get(kind, ",")
    table = write(tmp_path / name, delimiter, "," if kind == "decimal commas" else ".")
    out = tmp_path / "out.csv"
    result = command(table, "--ignore", "id", "--out", out, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["cells_filled"] == REMOVED.sum()
    assert found["columns_copied"] == ["id", "cellar"]
    header, lines = read(out)
    assert header == ["id", *NAMES, "cellar"]
    assert [line[-1] for line in lines] == [
        f"cellar {i % 7}" for i in range(len(TABLE))
    ]
    filled = np.array([line[1:-1] for line in lines], dtype=float)
    np.testing.assert_array_equal(filled[~REMOVED], TABLE[~REMOVED])
    expected = DropoutImputer().fit_transform(np.where(REMOVED, np.nan, TABLE))
    np.testing.assert_allclose(filled, expected, rtol=1e-5)


def test_deviations_and_imputations_are_written(tmp_path):
    table = write(tmp_path / "table.csv")
    out, std = tmp_path / "out.csv", tmp_path / "std.csv"
    result = command(
        table, "--ignore", "id", "--out", out, "--std", std, "--imputations", 2
    )
    assert result.exit_code == 0, result.output
    header, lines = read(std)
    assert header == NAMES
    deviations = np.array([[float(x or "nan") for x in line] for line in lines])
    np.testing.assert_array_equal(np.isfinite(deviations), REMOVED)
    first, second = (read(tmp_path / f"out-{i}.csv")[1] for i in (1, 2))
    differs = np.array(
        [
            [a != b for a, b in zip(*pair, strict=True)]
            for pair in zip(first, second, strict=True)
        ]
    )
    assert not differs[:, 1:-1][~REMOVED].any()
    # Columns with few repeated values keep to their range, so that some samples may agree.
    assert differs[:, 1:-1][REMOVED].mean() > 0.9


def test_measured_coverage_is_that_of_hidden_cells(tmp_path):
    result = command(
        write(tmp_path / "t.csv"),
        "--ignore",
        "id",
        "--out",
        tmp_path / "o.csv",
        "--json",
    )
    found = json.loads(result.stdout)
    count = found["hidden_cells"]
    assert count == int(0.1 * (~REMOVED).sum())
    # Five standard errors of a share of `count` cells around the nominal 90 %.
    assert abs(found["interval_90_coverage"] - 0.9) < 5 * np.sqrt(0.9 * 0.1 / count)


def test_other_words_for_missing(tmp_path):
    table = write(tmp_path / "table.csv", change="not measured")
    refused = command(table, "--out", tmp_path / "out.csv")
    assert isinstance(refused.exception, overt.InputError)
    assert "row 5: 'not measured' is not a number" in str(refused.exception)
    assert not (tmp_path / "out.csv").exists()
    taken = command(
        table, "--missing", "Not measured", "--out", tmp_path / "out.csv", "--json"
    )
    expected = REMOVED.sum() + (not REMOVED[3, 2])
    assert json.loads(taken.stdout)["cells_filled"] == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must have a header line"),
        ("a,b\n", "must have a header line"),
        ("a,b\n1\n", "row 2: 1 cells, but the header has 2"),
        ("a,a\n1,2\n", "two columns 'a'"),
        ("a,b\nx,y\nz,w\n", "no column of numbers"),
        ("a,b\n1,2\ninf,3\n", "row 3: infinite"),
        ('a,b\n"1,234",2\n5,6\n7,8\n', "row 2: '1,234' is not a number"),
    ],
)
def test_mistakes_end_with_one_sentence(text, message, tmp_path):
    table = tmp_path / "table.csv"
    table.write_text(text)
    result = command(table, "--out", tmp_path / "out.csv")
    assert isinstance(result.exception, overt.InputError)
    assert message in str(result.exception)
    assert not (tmp_path / "out.csv").exists()


def test_files_and_columns_that_are_not_there(tmp_path):
    assert "there is no file" in str(command(tmp_path / "no.csv").exception)
    table = write(tmp_path / "table.csv")
    assert "has no column 'ids'" in str(command(table, "--ignore", "ids").exception)


def test_numbers_far_from_zero_are_written_to_the_last_digit_that_counts(tmp_path):
    """Coordinates such as 2000002.5 were written as 2e+06."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(60)
    table = np.column_stack([x + 1e6, 2 * x + 2e6 + 0.01 * rng.standard_normal(60)])
    lines = [
        f"{a!r},{b!r}" if i % 5 else f"{a!r},"
        for i, (a, b) in enumerate(table.tolist())
    ]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(["east,north", *lines]))
    assert command(path, "--out", tmp_path / "out.csv").exit_code == 0
    filled = np.array(read(tmp_path / "out.csv")[1], dtype=float)
    assert np.abs(filled[::5, 1] - table[::5, 1]).max() < 0.1


def test_a_table_without_a_header_line_is_pointed_out(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("1,2,3\n2,,4\n3,5,6\n4,6,7\n")
    with pytest.warns(UserWarning, match="first line holds only numbers"):
        command(path, "--out", tmp_path / "out.csv")
