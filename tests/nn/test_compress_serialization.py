"""A compressed network is saved to one file, and loaded into the model as it was built."""

import pytest
import torch
from compress_zoo import ZOO, build
from safetensors.torch import save_file
from torch import nn

from overt import InputError
from overt.nn import (
    DropConnectLinear,
    compress,
    load_compressed,
    save_compressed,
)


def batches(inputs, classes):
    generator = torch.Generator().manual_seed(0)
    y = [
        torch.randint(classes, (len(inputs[0]),), generator=generator) for _ in range(2)
    ]
    return [(inputs, part) for part in y]


@pytest.mark.parametrize("by", ["flow", "spectrum"])
@pytest.mark.parametrize("name", ZOO)
def test_every_network_of_the_zoo_is_loaded_as_it_was_saved(name, by, tmp_path):
    model, inputs = build(name)
    example = inputs if len(inputs) > 1 else inputs[0]
    data, loss = batches(inputs, 11 if name == "tied" else 3), "auto"
    if name == "autoencoder":
        data, loss = [(*inputs, *inputs)], "mse"
    small, _ = compress(model, 0.4, example, data, by, loss=loss)
    save_compressed(small, tmp_path / "small.safetensors")
    loaded = load_compressed(tmp_path / "small.safetensors", build(name, seed=1)[0])
    torch.testing.assert_close(loaded(*inputs), small(*inputs), rtol=0, atol=0)
    shared = [len({id(p) for p in net.parameters()}) for net in (loaded, small)]
    assert shared[0] == shared[1]
    assert str(loaded) == str(small)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_layers_of_low_rank_are_loaded_in_the_number_format_of_the_model(
    dtype, tmp_path
):
    """A network in double precision was loaded with parts in single precision, and failed."""

    def model():
        torch.manual_seed(0)
        layers = (nn.Conv2d(2, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.Flatten())
        return nn.Sequential(*layers, nn.Linear(64, 16)).to(dtype)

    x = torch.ones(4, 2, 6, 6, dtype=dtype)
    small, _ = compress(model(), 0.5, x, by="spectrum")
    save_compressed(small, tmp_path / "small.safetensors")
    loaded = load_compressed(tmp_path / "small.safetensors", model())
    torch.testing.assert_close(loaded(x), small(x), rtol=0, atol=0)


class OwnNorm(nn.BatchNorm2d):
    """Adds an activation, as timm's do."""

    def forward(self, x):
        return torch.relu(super().forward(x))


def unusual():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        OwnNorm(8),
        nn.Conv2d(8, 8, 3, padding="same", padding_mode="circular", bias=False),
        nn.Flatten(),
        DropConnectLinear(8 * 36, 16),
        nn.ReLU(),
        nn.Linear(16, 3),
    )


@pytest.mark.parametrize("by", ["flow", "spectrum"])
def test_classes_and_settings_of_layers_stay_what_they_are(by, tmp_path):
    x = torch.randn(4, 1, 6, 6)
    small, report = compress(unusual().eval(), 0.5, x, by=by)
    assert report.changes
    save_compressed(small, tmp_path / "small.safetensors")
    loaded = load_compressed(tmp_path / "small.safetensors", unusual())
    torch.testing.assert_close(loaded(x), small(x), rtol=0, atol=0)


def test_another_model_or_another_file_is_refused_in_words(tmp_path):
    model, inputs = build("mlp")
    small, _ = compress(model, 0.5, *inputs, by="flow")
    path = tmp_path / "small.safetensors"
    save_compressed(small, path)
    with pytest.raises(InputError, match="pass model="):
        load_compressed(path)
    with pytest.raises(InputError, match="must be a Sequential, got Linear"):
        load_compressed(path, nn.Linear(3, 2))
    save_file({"weight": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(InputError, match="was not written by save_compressed"):
        load_compressed(tmp_path / "other.safetensors", model)
