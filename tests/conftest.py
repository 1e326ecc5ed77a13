import hypothesis
import pytest
import torch

torch.set_num_threads(1)
# Warnings that torch gives once per process would otherwise hit whichever test comes first.
torch.set_warn_always(True)

hypothesis.settings.register_profile(
    "overt", derandomize=True, deadline=None, database=None, max_examples=25
)
hypothesis.settings.load_profile("overt")


# What is drawn from torch's own generator must not depend on the tests that ran before.
@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup():
    torch.manual_seed(0)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call():
    torch.manual_seed(0)
