"""A module never hides behind a function or class of the same name."""

import importlib
import pkgutil

import pytest

ROOMS = ("overt.cli", "overt.decay", "overt.papers", "overt.relu")


@pytest.mark.parametrize("room", ROOMS)
def test_no_module_is_named_like_what_its_package_exports(room):
    package = importlib.import_module(room)
    modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    assert not modules & set(getattr(package, "__all__", ()))
