"""What is said about clusters: names of engines, and files for deployment that agree with us."""

import ast
import inspect
from pathlib import Path

import pytest
import typer

from overt import InputError
from overt._running import checked_engine
from overt.completion import DropoutCompletion

DEPLOY = Path(__file__).parents[1] / "deploy"


@pytest.mark.parametrize(
    ("given", "engine"),
    [
        ("local", "local"),
        ("threads", "local"),
        ("dask", "dask"),
        ("tcp://a:1", "tcp://a:1"),
    ],
)
def test_engines_are_known_by_name_or_address(given, engine):
    assert checked_engine(given) == engine


@pytest.mark.parametrize("given", ["ray", "tcp:/a", None, 1])
def test_other_engines_are_refused(given):
    with pytest.raises(InputError, match="engine must be"):
        checked_engine(given)


@pytest.fixture
def documents():
    yaml = pytest.importorskip("yaml", reason="needs the dask extra")
    return {
        d["kind"]: d
        for d in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    }


def options(command):
    from overt.cli import app

    found = typer.main.get_command(app).commands[command]
    return {name for parameter in found.params for name in parameter.opts}


def test_the_job_asks_what_the_command_line_knows(documents):
    (client,) = documents["Job"]["spec"]["template"]["spec"]["containers"]
    program, command, _, *rest = client["command"]
    assert program == "overt"
    assert {word for word in rest if word.startswith("--")} <= options(command)


def test_the_job_finds_the_scheduler_of_the_cluster(documents):
    cluster, (client,) = (
        documents["DaskCluster"],
        documents["Job"]["spec"]["template"]["spec"]["containers"],
    )
    (port,) = (
        p["port"]
        for p in cluster["spec"]["scheduler"]["service"]["ports"]
        if p["name"] == "tcp-comm"
    )
    address = f"tcp://{cluster['metadata']['name']}-scheduler:{port}"
    assert client["command"][client["command"].index("--engine") + 1] == address
    assert checked_engine(address) == address


def test_all_run_the_same_image(documents):
    spec = documents["DaskCluster"]["spec"]
    pods = (
        spec["worker"]["spec"],
        spec["scheduler"]["spec"],
        documents["Job"]["spec"]["template"]["spec"],
    )
    assert (
        len({container["image"] for pod in pods for container in pod["containers"]})
        == 1
    )
    for pod in (
        pods[0],
        pods[2],
    ):  # workers read the ratings where the client finds them
        (mount,) = pod["containers"][0]["volumeMounts"]
        assert mount["mountPath"] == "/data"
        assert mount["name"] in {volume["name"] for volume in pod["volumes"]}


def test_the_script_for_slurm_calls_what_there_is():
    tree = ast.parse((DEPLOY / "slurm.py").read_text())
    calls = {
        (node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id): {
            keyword.arg for keyword in node.keywords if keyword.arg
        }
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, (ast.Attribute, ast.Name))
    }
    assert calls["fit"] <= set(inspect.signature(DropoutCompletion.fit).parameters)
    assert calls["DropoutCompletion"] <= set(
        inspect.signature(DropoutCompletion).parameters
    )
    compile(tree, "slurm.py", "exec")


def test_the_image_has_the_extras():
    text = (DEPLOY / "Dockerfile").read_text()
    declared = (DEPLOY.parent / "pyproject.toml").read_text()
    for extra in ("dask", "files"):
        assert extra in text
        assert f"\n{extra} = " in declared
