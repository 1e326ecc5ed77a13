"""The nearest failures, against closed forms and attacks."""

import pytest
import torch
from robust_cases import linear_model, points, small_mlp

from overt import InputError
from overt.robust import L1, L2, Linf, minimum_distance, strongest

KINDS = [L1, L2, Linf]


@pytest.mark.parametrize("kind", KINDS)
def test_the_nearest_point_of_a_linear_model_is_its_closed_form(kind):
    model, x = linear_model(3, 8), points(40, 8)
    f, y = model(x).detach(), model(x).argmax(1)
    distances = []
    for j in range(3):
        gap = f.gather(1, y[:, None]).squeeze(1) - f[:, j]
        steep = kind(1.0).dual(model.weight.detach()[j] - model.weight.detach()[y])
        distances.append(torch.where(y == j, torch.inf, gap / steep))
    truth = torch.stack(distances).amin(0)
    found = minimum_distance(model, x, y, kind(50.0), steps=60)
    assert bool(found.success.all())
    assert torch.equal(model(found.x).argmax(1) != y, found.success)  # the proof
    size = kind(1.0).size(found.x - x)
    assert torch.allclose(size.double(), found.distance)
    assert bool((found.distance >= truth * (1 - 1e-9)).all())
    assert bool((found.distance <= truth * (1 + 1e-3)).all())


@pytest.mark.parametrize("kind", KINDS)
def test_the_nearest_points_agree_with_the_curve_of_attacks(kind):
    model, x = (
        small_mlp(dtype=torch.float32),
        points(40, 6, dtype=torch.float32).clamp(-3, 3),
    )
    y = model(x).argmax(1)
    y[:3] = (y[:3] + 1) % 3
    radius = {L1: 1.5, L2: 0.8, Linf: 0.3}[kind]
    threat = kind(radius, (-3.0, 3.0))
    found = minimum_distance(model, x, y, threat)
    assert found.distance[:3].tolist() == [0, 0, 0]
    assert torch.equal(found.distance.isinf(), ~found.success)
    assert float(found.distance[found.success].max()) <= radius
    curve = strongest(model, x, y, threat, budget=200)
    assert abs(int(curve.success.sum()) - int(found.success.sum())) <= 1


def test_random_models_have_no_nearest_failure():
    model, x = linear_model(3, 8), points(5, 8)

    def noisy(v):
        return model(v + torch.randn_like(v))

    with pytest.raises(InputError, match="must not be random"):
        minimum_distance(noisy, x, [0, 1, 2, 0, 1], L2(1.0))
    with pytest.raises(InputError, match="steps must be"):
        minimum_distance(model, x, [0, 1, 2, 0, 1], L2(1.0), steps=0)
