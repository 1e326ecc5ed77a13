"""Calls on processes and clusters: all answered, lost ones repeated elsewhere, errors told."""

import pytest

from overt import InputError
from overt._mapping import mapped

seen = []


def half(x):
    return x / 2


def unlucky(x):
    seen.append(x)
    if seen.count(x) == 1 and x == 2:
        raise OSError("the disk of this machine is full")
    return half(x)


def wrong(x):
    raise InputError(f"{x} is wrong")


@pytest.fixture
def client():
    distributed = pytest.importorskip("distributed", reason="needs the dask extra")
    with distributed.Client(
        processes=False, n_workers=2, threads_per_worker=1, dashboard_address=None
    ) as client:
        yield client


def test_calls_are_made_here_in_order():
    assert list(mapped(half, [(1,), (4,)])) == [(0, 0.5), (1, 2.0)]


def test_a_failed_call_is_repeated_elsewhere_and_told(client):
    seen.clear()
    with pytest.warns(UserWarning, match="task 1 failed on inproc.*disk of this machine"):
        found = dict(mapped(unlucky, [(1,), (2,), (3,)], "dask"))
    assert found == {0: 0.5, 1: 1.0, 2: 1.5}
    assert seen.count(2) == 2


def test_wrong_input_is_not_repeated(client):
    with pytest.raises(InputError, match="3 is wrong"):
        list(mapped(wrong, [(3,)], "dask"))


def test_a_call_that_fails_everywhere_is_raised(client):
    def broken():
        raise OSError("always")

    with pytest.warns(UserWarning, match="repeated"), pytest.raises(OSError, match="always"):
        list(mapped(broken, [()], "dask"))
