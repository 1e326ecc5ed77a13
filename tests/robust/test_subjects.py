"""What attacks see of a model and of arrays, against the definitions."""

import math
import struct

import numpy as np
import pytest
import torch
from robust_cases import points
from torch import Tensor

from overt import InputError
from overt.robust import (
    L0,
    L2,
    PGD,
    Constant,
    Deviates,
    Linf,
    Misclassified,
    closest,
)
from overt.robust.attacks.inputs import classes, floating, pair
from overt.robust.attacks.models import Subject
from overt.robust.attacks.points import StraightThrough
from overt.robust.attacks.staged import begin
from overt.robust.keyed_random import keys_of, normal, uniform
from overt.robust.threats import compiles, tensor


@pytest.mark.parametrize("size", [1.0, 1e4])
def test_randomness_is_a_thousandth_of_the_largest_logit(size):
    calls = []

    def model(x, wobble=(0.5, 0.5, 2.0)):
        calls.append(len(x))
        moved = torch.tensor(wobble).double()[: len(x), None] * 1e-3 * (len(calls) % 2)
        return size * torch.cat([0 * x, x + moved], 1)

    x = torch.ones(3, 1).double()
    assert Subject(model, x, {}).random().tolist() == [False, False, True]
    assert calls == [3] * 4  # 2 + 8 // 3
    many = Subject(lambda v: calls.append(len(v)) or v.expand(-1, 2), torch.ones(99, 1), {})
    assert not bool(many.random().any())
    assert calls[4:] == [64] * 2


def test_arrays_become_tensors_of_the_same_numbers():
    values = np.array([[1.0, 2.0], [3.0, 4.0]])
    frozen = values.copy()
    frozen.flags.writeable = False
    same = [
        values, values.tolist(), values[::-1].copy()[::-1], values.astype(">f8"), frozen,
        values.astype(np.longdouble), torch.tensor(values), torch.tensor(values).to_sparse(),
        torch.tensor(values, requires_grad=True),
    ]  # fmt: skip
    for given in same:
        found = tensor("x", given)
        assert found.dtype == torch.float64
        assert not found.requires_grad
        assert found.layout is torch.strided
        assert found.tolist() == values.tolist()
    assert tensor("x", np.array([3, 2**63 - 1], np.uint64)).tolist() == [3, 2**63 - 1]
    assert tensor("x", np.array([], np.uint64)).dtype == torch.int64
    for kind in (np.float32, np.float16, np.int32, np.uint8, np.bool_, np.complex64):
        given = np.ones(2, kind)
        assert str(tensor("x", given).dtype).split(".")[1] == given.dtype.name
    own = np.zeros(3)
    tensor("x", own)[0] = 5.0
    assert own[0] == 5.0  # no copy where none is needed
    for bad, message in (
        (np.array([2**63], np.uint64), "below 2\\^63, got 9223372036854775808"),
        (np.array(["a"]), "of numbers, got ndarray of"), (torch.ones(2, device="meta"), "plain"),
        (torch.ones(2).to(torch.float8_e4m3fn), "plain"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            tensor("x", bad)


def test_operations_that_hide_a_gradient_pass_it_straight_through():
    x = torch.tensor([[-1.6, 0.4, 2.7]], dtype=torch.float64, requires_grad=True)
    hiding = {
        "round": torch.round, "floor": Tensor.floor, "sign": torch.sign, "long": Tensor.long,
        "detach": torch.detach, "data": lambda v: v.data,
    }  # fmt: skip
    for name, operation in hiding.items():
        with StraightThrough() as mode:
            value = operation(x)
        expected = x.detach() if name in ("detach", "data") else operation(x.detach()).double()
        assert torch.equal(value.detach(), expected), name
        assert mode.seen
        (slope,) = torch.autograd.grad((3 * value).sum(), x)
        assert slope.tolist() == [[3.0] * 3], name
    with StraightThrough() as mode:
        y = 2 * x
        y.register_hook(lambda g: 0 * g)
    assert mode.seen
    assert torch.autograd.grad(y.sum(), x)[0].tolist() == [[2.0] * 3]
    certain = x.detach()
    with StraightThrough() as mode:
        torch.exp(torch.round(certain) + x)
    assert not mode.seen


EDGES = [L2(100 * 2.0**-40), L2(2.0**-41)]  # at numbers of 2^12, whose spacing is 2^-40


@pytest.mark.parametrize(
    "threat", [L2(0.5), Linf(1e-3), L0(2, (-1e20, 1e20)), L2(0.0), *EDGES], ids=str
)
def test_what_cannot_be_trusted_is_noted_point_by_point(threat):
    rng, n, eps = np.random.default_rng(0), 60, torch.finfo(torch.float64).eps
    x = torch.from_numpy(rng.normal(size=(n, 3))) * 10.0 ** torch.arange(n)[:, None].remainder(19)
    y, x[:8] = torch.zeros(n, dtype=torch.int64), torch.tensor([2.0**12, 0.0, 1.0]).double()
    for case in range(16):
        search = begin(lambda v: v.tanh(), x, y, threat, Misclassified(), 64, {})
        flat, broken, fooled, same, success, sign = torch.from_numpy(rng.random((6, n)) < 0.4)
        probable, lying, search.random, search._several = (bool(case >> k & 1) for k in range(4))
        search.best.flat, search.best.broken, search.best.fooled = flat, broken, fooled
        search.best.delta = torch.where(same[:, None], 0.0, torch.tensor([0.0, 1.0, 0.0]).double())
        search.signs["probabilities"] = sign if probable else torch.zeros_like(sign)
        if lying:
            search.signs |= {"lying": sign.flip(0), "saturated": sign.roll(1)}
        search.doubt(success)
        found = {name: some.tolist() for name, some in search.signs.items()}
        for i in range(n):
            spacing = eps * float(x[i].abs().max())
            coarse = spacing / 2 > threat.radius and threat.radius > 0 and threat.order > 0
            told = bool(broken[i]) or search.random or coarse or (probable and bool(sign[i]))
            told |= lying and bool(sign.roll(1)[i])
            stays = bool(same[i]) and threat.radius > 100 * spacing
            wrong = bool(success[i])
            hidden = bool(sign.flip(0)[i]) if lying else told
            assert found["flat"][i] == (bool(flat[i]) and not told
                                        and not (wrong and search._several))  # fmt: skip
            assert found["broken"][i] == (bool(broken[i]) and not wrong)
            assert found["stuck"][i] == (stays and not (told or wrong or bool(flat[i]) or hidden))
            assert found["coarse"][i] == (coarse and not wrong)
            assert found["lost"][i] == (bool(fooled[i]) and not wrong and not search.random)


def test_what_an_attack_is_made_of_is_checked():
    for given, message in (
        ({"larger": (2.0,) * 4}, "at most three factors above 1"), ({"larger": (0.5,)}, "above 1"),
        ({"larger": 3.0}, "a list of factors"), ({"momentum": 1e6 + 0.5}, "at most 1e6"),
        ({"steps": 0}, "steps must be"), ({"restarts": 0}, "restarts must be"),
        ({"batch_size": 0}, "batch_size must be"), ({"seed": -1}, "seed must be"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            PGD(L2(1.0), **given)
    assert PGD(L2(1.0), larger=(1.0, 2.0, 3.0), momentum=1e6).length == 50
    for given, message in (
        ({"steps": 0}, "steps must be"), ({"rivals": -1}, "rivals must be"),
        ({"criterion": Deviates(1.0)}, "criterion must be of classes"),
        ({"criterion": 3}, "criterion must be a Criterion"), ({"batch_size": 0}, "batch_size"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            closest(lambda v: v, points(3, 2), [0, 1, 0], L2(1.0), **given)


def test_plain_steps_leave_out_slopes_that_are_not_finite():
    """Slopes of (inf, nan, -inf, -3), as training follows them: a step goes along the last."""

    def model(x):
        odd = x[:, 0].sqrt() + x[:, 1].abs().sqrt() - x[:, 2].sqrt()
        return torch.stack([3 * x[:, 3], 0 * x[:, 3] + 1e-9 * odd], 1)

    x = torch.tensor([[0.0, 0.0, 0.0, 5.0]]).double()
    walk = PGD(Linf(9.0), steps=1, schedule=Constant(0.01), normalize=False)
    search = begin(model, x, [0], walk.threat, Misclassified(), 1, {}, loss="margin")
    moved = walk.follow(search.points(torch.arange(1)), torch.zeros_like(x))
    assert moved[0].tolist() == [0.0, 0.0, 0.0, pytest.approx(-0.03)]


def mixed(z):
    """The output function of SplitMix64, on numbers of 64 bits."""
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return z ^ z >> 31


def test_random_numbers_of_points_are_splitmix():
    golden, x = 0x9E3779B97F4A7C15, points(3, 2)
    for seed in (0, 7, 2**63 + 5):
        keys = []
        for row in x.tolist():
            bits = [int.from_bytes(struct.pack("<d", v), "little") for v in row]
            total = sum(mixed(b ^ (k + 1) * golden % 2**64) for k, b in enumerate(bits))
            keys.append(mixed((total + mixed(seed % 2**63)) % 2**64))
        found = keys_of(x, seed)
        assert [k % 2**64 for k in found.tolist()] == keys
        for stream in (0, 3):
            drawn = uniform(found, 5, x, stream=stream).tolist()
            for key, row in zip(keys, drawn, strict=True):
                for k, value in enumerate(row):
                    z = mixed((key + (k + 1 + (stream << 40)) * golden) % 2**64)
                    assert value == ((z >> 11) + 0.5) * 2.0**-53
    single = uniform(keys_of(x, 0), 2000, torch.zeros((), dtype=torch.float32))
    assert float(single.max()) < 1
    assert float(single.min()) > 0
    flat = normal(keys_of(x, 0), 5, x)
    u, v = uniform(keys_of(x, 0), 3, x), uniform(keys_of(x, 0), 3, x, stream=1)
    length, angle = (-2 * u.log()).sqrt(), 2 * math.pi * v
    expected = torch.cat([length * angle.cos(), length * angle.sin()], 1)[:, :5]
    torch.testing.assert_close(flat, expected)


def test_compiled_functions_take_numbers_of_the_processor():
    for dtype, expected in ((torch.float32, True), (torch.float64, True), (torch.float16, False)):
        assert compiles(torch.zeros(2, dtype=dtype)) == expected
    assert not compiles(torch.zeros(2, device="meta"))


@pytest.mark.parametrize("shape", [(1, 3), (2, 3), (1, 3, 2), (3, 3, 2, 2), (2, 3, 3)])
def test_inputs_are_scaled_as_one_of_them_is(shape):
    x, free = points(shape[0], math.prod(shape[1:])).view(shape), (1,) * (len(shape) - 2)
    channels = torch.tensor([0.2, 0.5, 3.0]).double()
    for given, plain in ((0.25, 0.25), (channels, channels.view(3, *free)), (x[0] ** 2, x[0] ** 2)):
        for door, expected in (
            ({"mean": given, "std": given}, (x - plain) / plain),
            ({"mean": given}, x - plain),
            ({"std": given}, x / plain),
        ):
            subject = Subject(lambda v: v.flatten(1), x, door)
            torch.testing.assert_close(subject.logits(x, None), expected.flatten(1))
    for wrong in (torch.ones(5), channels.view(1, 3, *free)):
        with pytest.raises(InputError, match="must be a number or fit one input"):
            Subject(lambda v: v, x, {"mean": wrong})


@pytest.mark.parametrize("odd", [math.inf, -math.inf, math.nan])
def test_inputs_are_finite_on_both_sides(odd):
    x = points(3, 2)
    x[1, 0] = odd
    with pytest.raises(InputError, match="x must be finite, got 1 NaN or infinite"):
        Subject(lambda v: v, x, {})


def test_classes_are_numbers_of_points():
    x = points(3, 2)
    for y, count, expected in (
        ([-1, 1, -1], 2, [0, 1, 0]), ([-1, -1, -1], 2, [0, 0, 0]), ([1, 1, 1], 2, [1, 1, 1]),
        ([[0], [1], [2]], 3, [0, 1, 2]), ([0.0, 1.0, 2.0], 3, [0, 1, 2]),
        ([True, False, True], 2, [1, 0, 1]), (np.array([2, 0, 1], "u1"), 3, [2, 0, 1]),
    ):  # fmt: skip
        found = classes(y, x, count)
        assert (found.tolist(), found.dtype) == (expected, torch.int64)
    for y, count, message in (
        ([-1, 0, 1], 2, "y must lie in 0..1 for a model of 2 classes, got -1..1"),
        ([-1, 1, 1], 3, "got -1..1"), ([0, 1, 3], 3, "got 0..3"), ([0, 1], 3, "each of the 3"),
        ([[0, 1]] * 3, 3, "got shape"), ([[[0]]] * 3, 3, "got shape"), ([0, 1, 0.5], 3, "got 0.5"),
        ([0, 1, 1j], 3, "got torch.complex"), ([-2, 1, 1], 2, "got -2..1"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            classes(y, x, count)


def test_inputs_are_points_of_numbers_with_a_fraction():
    assert floating("x", [[1, 2], [3, 4]]).dtype == torch.float64
    assert floating("x", ([1.0, 2.0],)).dtype == torch.float64
    assert floating("x", np.ones((2, 1), np.float32)).dtype == torch.float32
    for x, message in (
        (np.ones((2, 2), int), "convert it first"), ([[1j, 2.0]], "floating-point numbers"),
        (np.ones(3), r"must be \(points, ...\)"), (np.ones((2, 0)), "not empty"),
        (np.ones((0, 2)), "not empty"), (np.float64(3.0), r"must be \(points, ...\)"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            floating("x", x)


def test_batches_are_pairs_or_have_a_usual_name():
    for name in ("labels", "label", "targets", "target", "y"):
        assert pair({"a": 1, name: 2}) == (1, 2)
        assert pair({"a": 1, "b": 3, name: 2}) == ({"a": 1, "b": 3}, 2)
    assert pair({"y": 2, "label": 3}) == (2, 3)
    assert (pair((1, 2)), pair([1, 2, 3])) == ((1, 2), (1, 2))
    for wrong, message in (({"a": 1}, "under one of labels"), ((1,), "batches"), (7, "batches")):
        with pytest.raises(InputError, match=message):
            pair(wrong)
