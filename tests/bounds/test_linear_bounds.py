"""Linear bounds and the bounds of layers: the functions enclose the network in exact arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.bounds import nets as bound_nets
from support.bounds.exact import Exact, exact_of
from support.bounds.sets import KINDS, Sets, extreme_points, random_sets, values_at, violated
from torch import Tensor, nn

from pyrobust.bounds import BoundedModel, LinearBounds
from pyrobust.errors import InputError

METHODS = ("crown-ibp", "crown")


def remainders(net: nn.Module, sets: Sets, rows: Tensor, a: Tensor, rng: np.random.Generator) -> Exact:
    """Return exact values of C·f(x) − a·x, a [B, S, n], at extreme and random points of the sets: [P, B, S]."""
    x = extreme_points(net, sets, rows, rng)
    products = x.map(lambda v: v.reshape(-1, len(rows), 1, a.shape[2])) * exact_of(a[None])
    return values_at(x, net, rows) + -products.map(lambda v: v.sum(3))


def outside(net: nn.Module, sets: Sets, rows: Tensor, linear: LinearBounds, rng: np.random.Generator) -> int:
    """Count the linear bounds that some value of a set certainly violates."""
    lower_a, upper_a = linear.lower_A.flatten(2), linear.upper_A.flatten(2)
    none = torch.full_like(linear.lower_b, torch.inf)
    below = violated(remainders(net, sets, rows, lower_a, rng), linear.lower_b, none)
    return below + violated(remainders(net, sets, rows, upper_a, rng), -none, linear.upper_b)


def linear_of(model: BoundedModel, sets: Sets, rows: Tensor, method: str, sound: bool) -> LinearBounds:
    options = {"C": rows, "method": method, "sound": sound}
    if sets.kind == "box":
        return model.linear_bounds(x_lower=sets.x, x_upper=sets.x_upper, **options)
    return model.linear_bounds(sets.x, sets.epsilon, norm=sets.kind, clip=sets.clip, **options)


@pytest.mark.parametrize("method", METHODS)
def test_linear_bounds_enclose_the_network_exactly(method: str) -> None:
    rng = np.random.default_rng(11)
    broken = checked = 0
    for case in range(5):
        style = bound_nets.STYLES[case % 4]
        if case == 4:
            net, shape = bound_nets.convolutional(rng, "normal", torch.float32)
        else:
            net = bound_nets.dense(rng, style, torch.float32)
            shape = (next(m.in_features for m in net.modules() if isinstance(m, nn.Linear)),)
        model = BoundedModel(net, torch.zeros(1, *shape))
        for kind in KINDS:
            sets = random_sets(kind, 8, shape, torch.float32, rng)
            rows = torch.from_numpy(rng.standard_normal((8, 2, model.outputs)))
            linear = linear_of(model, sets, rows, method, True)
            assert outside(net, sets, rows, linear, rng) == 0
            assert linear.lower_b.isfinite().float().mean() > 0.8
            checked += linear.lower_b.numel()
            broken += outside(net, sets, rows, linear_of(model, sets, rows, method, False), rng)
    assert checked == 5 * 4 * 16
    assert broken > 0  # otherwise the test could not fail


def net_of_images() -> tuple[nn.Module, Tensor]:
    rng = np.random.default_rng(5)
    body = bound_nets.Residual(nn.Conv2d(3, 3, 3, padding=1), 1)
    layers = [nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), body, nn.ReLU(), nn.AvgPool2d(2), nn.Flatten()]
    net = nn.Sequential(*layers, nn.Linear(12, 5), nn.Tanh(), nn.Linear(5, 3))
    return bound_nets.fill(net, "normal", rng), torch.rand(6, 2, 4, 4, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def images() -> tuple[BoundedModel, Tensor]:
    net, x = net_of_images()
    return BoundedModel(net, x), x


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rows", [None, torch.randn(2, 3, generator=torch.Generator().manual_seed(1)).double()])
def test_their_minimum_over_a_box_is_the_bound(
    images: tuple[BoundedModel, Tensor], method: str, rows: Tensor | None
) -> None:
    model, x = images
    linear = model.linear_bounds(x, 0.03125, C=rows, method=method, sound=False)
    assert linear.lower_A.shape == linear.upper_A.shape == (6, 3 if rows is None else 2, 2, 4, 4)
    bounds = model.bounds(x, 0.03125, C=rows, method=method, sound=False)
    reach = 0.03125 * linear.lower_A.abs().flatten(2).sum(2)
    least = (linear.lower_A * x[:, None]).flatten(2).sum(2) - reach + linear.lower_b
    torch.testing.assert_close(least, bounds.lower, rtol=1e-4, atol=1e-3)
    most = (linear.upper_A * x[:, None] + 0.03125 * linear.upper_A.abs()).flatten(2).sum(2) + linear.upper_b
    torch.testing.assert_close(most, bounds.upper, rtol=1e-4, atol=1e-3)
    # Sound bounds are those of intervals where these are better.
    sound, linear = (f(x, 0.03125, C=rows, method=method) for f in (model.bounds, model.linear_bounds))
    assert (sound.lower >= bounds.lower - 1e-3).all()
    assert (sound.upper <= bounds.upper + 1e-3).all()
    again = model.linear_bounds(x, 0.03125, C=rows, method=method, memory_limit=200_000)  # in chunks
    torch.testing.assert_close(again.lower_A, linear.lower_A)
    torch.testing.assert_close(again.upper_b, linear.upper_b)


def test_linear_bounds_of_the_deployed_forward_pass(images: tuple[BoundedModel, Tensor]) -> None:
    model, x = images
    linear = model.linear_bounds(x, 0.03125, semantics="float32")
    noise = torch.rand(20, *x.shape, generator=torch.Generator().manual_seed(2)) * 0.0624 - 0.0312
    inputs = x + noise
    values = torch.stack([model.model(batch) for batch in inputs]).double()
    products = exact_of(linear.lower_A.flatten(2)[None]) * exact_of(inputs.flatten(2)[:, :, None])
    offsets = exact_of(values) + -products.map(lambda v: v.sum(3))
    assert violated(offsets, linear.lower_b, torch.full_like(linear.lower_b, torch.inf)) == 0


def test_sets_of_every_kind_and_bad_input(images: tuple[BoundedModel, Tensor]) -> None:
    model, x = images
    by_channel = model.linear_bounds(x, torch.full((2, 1, 1), 0.03125), clip=(torch.zeros(2, 1, 1), 1))
    same = model.linear_bounds(x, 0.03125, clip=(0, 1))
    assert torch.equal(by_channel.lower_A, same.lower_A)
    assert repr(same).startswith("LinearBounds(sets=6, rows=3, input=(2, 4, 4), method='crown', norm='linf'")
    assert same.to_dict()["lower_b"] == same.lower_b.tolist()
    unbounded = model.linear_bounds(x_lower=x - torch.inf, x_upper=x)
    assert not unbounded.lower_A.isnan().any()
    assert model.linear_bounds(x[:0], 0.1).lower_A.shape == (0, 3, 2, 4, 4)
    for method in ("ibp", "lipschitz", "cascade"):
        with pytest.raises(InputError, match=r"^method: expected"):
            model.linear_bounds(x, 0.1, method=method)
    with pytest.raises(InputError, match='method: expected one of ibp, crown-ibp, crown, alpha-crown, got "lipschitz"'):
        model.intermediate_bounds(x, 0.1, method="lipschitz")
    with pytest.raises(InputError, match="x, epsilon: expected both"):
        model.intermediate_bounds(x)
    wide = BoundedModel(model.model, x, engine="torch")
    assert torch.equal(wide.linear_bounds(x, 0.03125).lower_A, model.linear_bounds(x, 0.03125).lower_A)


@pytest.mark.parametrize("method", ["ibp", *METHODS])
def test_bounds_of_layers_hold_at_every_layer(images: tuple[BoundedModel, Tensor], method: str) -> None:
    model, x = images
    layers = model.intermediate_bounds(x, 0.03125, method=method)
    for path, operator in (("0", "aten.conv2d"), ("1", "aten.relu"), ("2.body", "aten.conv2d"), ("7", "aten.tanh")):
        bounds = layers[f"{path} ({operator})"]
        kept: list[Tensor] = []
        module = model.model.get_submodule(path)
        handle = module.register_forward_hook(lambda module, inputs, output, kept=kept: kept.append(output))
        for scale in (-1, -0.5, 0, 0.5, 1):
            model.model(x + scale * 0.031)
        handle.remove()
        for values in kept:
            assert values.shape == bounds.lower.shape
            assert (values.double() >= bounds.lower - 1e-5).all()
            assert (values.double() <= bounds.upper + 1e-5).all()
    *_, (name, last) = layers.items()
    assert name == "8 (aten.linear)"
    whole = BoundedModel(model.model, x, engine="torch").bounds(x, 0.03125, method=method)
    assert torch.equal(last.lower, whole.lower)
    assert torch.equal(last.upper, whole.upper)
    assert model.intermediate_bounds(x[:0], 0.1)[name].lower.shape == (0, 3)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.linear(x).relu())


def test_names_of_layers_are_unique() -> None:
    layers = BoundedModel(Twice().eval(), torch.zeros(1, 2)).intermediate_bounds(torch.zeros(1, 2), 0.1)
    names = list(layers)
    assert names[0] == "linear (aten.linear)"
    assert names[2] == "linear (aten.linear) #2"
    assert layers[names[1]].positive().shape == (1,)
