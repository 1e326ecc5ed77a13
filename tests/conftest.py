import hypothesis
import torch

torch.set_num_threads(1)
# Warnings that torch gives once per process would otherwise hit whichever test comes first.
torch.set_warn_always(True)

hypothesis.settings.register_profile(
    "overt", derandomize=True, deadline=None, database=None, max_examples=25
)
hypothesis.settings.load_profile("overt")
