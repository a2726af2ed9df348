"""Scripts for torchattacks run with only the import changed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchattacks_nets import CLASSES, images, net

import pyrobust.compat.torchattacks as torchattacks
from pyrobust.errors import InputError, InputTypeError


class Normalized(nn.Module):
    """A model of images in [0, 1] as a model of normalized images."""

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.net, self.mean, self.std = net(), mean.view(1, -1, 1, 1), std.view(1, -1, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x * self.std + self.mean)
        return out


ATTACKS: list[tuple[Any, dict[str, Any]]] = [
    (torchattacks.FGSM, {}),
    (torchattacks.PGD, {"alpha": 2 / 255, "steps": 4}),
    (torchattacks.BIM, {"alpha": 2 / 255, "steps": 4}),
]


def test_readme_script() -> None:
    """Attack a loader's batches, count robust examples, and switch to targeted mode and back."""
    model = net()
    x, y = images(24)
    atk = torchattacks.PGD(model, eps=8 / 255, alpha=2 / 255, steps=4)
    correct = 0
    for batch, label in zip(x.split(8), y.split(8), strict=True):
        adv = atk(batch, label)
        assert adv.shape == batch.shape
        correct += int((model(adv).argmax(1) == label).sum())
    assert correct < 24
    atk.set_mode_targeted_by_function(target_map_function=lambda images, labels: (labels + 1) % CLASSES, quiet=True)
    adv = atk(x, y)
    reached = model(adv).argmax(1) == (y + 1) % CLASSES
    assert reached.any()
    atk.set_mode_targeted_by_label(quiet=True)
    assert torch.equal(model(atk(x, (y + 1) % CLASSES)).argmax(1) == (y + 1) % CLASSES, reached)
    atk.set_mode_default()
    assert atk.get_mode() == "default"
    assert (model(atk(x, y)).argmax(1) != y).any()


@pytest.mark.parametrize(("attack", "options"), ATTACKS)
def test_normalized_images(attack: Any, options: dict[str, Any]) -> None:
    """An attack on normalized images equals the attack on the images in [0, 1]."""
    mean, std = torch.tensor([0.5, 0.25]), torch.tensor([0.25, 0.5])
    x, y = images(12)
    plain = attack(net(), eps=8 / 255, **options)(x, y)
    atk = attack(Normalized(mean, std), eps=8 / 255, **options)
    normalized = (x - mean.view(1, -1, 1, 1)) / std.view(1, -1, 1, 1)
    with pytest.raises(InputError, match="x: expected values in"):
        atk(normalized, y)
    atk.set_normalization_used(mean=mean.tolist(), std=std.tolist())
    adv = atk(normalized, y)
    back = adv * std.view(1, -1, 1, 1) + mean.view(1, -1, 1, 1)
    torch.testing.assert_close(back, plain, rtol=0, atol=3 / 255)
    assert float((back - x).abs().max()) <= 8 / 255 + 1e-6
    assert float((net()(back).argmax(1) == net()(plain).argmax(1)).float().mean()) >= 0.9


@pytest.mark.parametrize(("attack", "options"), ATTACKS)
def test_success_matches_running_all_steps(attack: Any, options: dict[str, Any]) -> None:
    """Explicit signed gradient steps: whatever they fool after the last step is fooled here, too."""
    model = net()
    x, y = images(24)
    epsilon = 3 / 255
    settings = dict(options, random_start=False) if attack is torchattacks.PGD else options
    adv = attack(model, eps=epsilon, **settings)(x, y)
    expected_adv = x.clone()
    for _ in range(options.get("steps", 1)):
        expected_adv.requires_grad_()
        (slope,) = torch.autograd.grad(nn.functional.cross_entropy(model(expected_adv), y), expected_adv)
        moved = expected_adv.detach() + options.get("alpha", epsilon) * slope.sign()
        expected_adv = (x + (moved - x).clamp(-epsilon, epsilon)).clamp(0, 1)
    fooled = model(adv).argmax(1) != y
    expected = model(expected_adv).argmax(1) != y
    assert expected.any()
    assert not expected.all()
    assert bool(fooled[expected].all())
    torch.testing.assert_close(adv[~fooled], expected_adv[~fooled], rtol=0, atol=2 * epsilon)


def test_least_likely_and_random_targets() -> None:
    model = net()
    x, y = images(24)
    order = model(x).argsort(1)
    seen: list[Tensor] = []
    atk = torchattacks.PGD(model, eps=0.5, alpha=0.1, steps=20)
    for kth in (1, 2):
        atk.set_mode_targeted_least_likely(kth, quiet=True)
        adv = atk(x, y)
        assert (model(adv).argmax(1) == order[:, kth - 1]).float().mean() > 0.8
    atk.set_mode_targeted_random(quiet=True)
    for _ in range(2):
        adv = atk(x, y)
        got = model(adv).argmax(1)
        assert (got != y).float().mean() > 0.8
        assert len(got.unique()) >= 3
        seen.append(got)
    assert not torch.equal(*seen)
    with pytest.raises(InputError, match="kth_min: expected at least 1"):
        atk.set_mode_targeted_least_likely(0)


def test_calls_are_reproducible_and_distinct() -> None:
    x, y = images(8)
    first, second = (torchattacks.PGD(net(), eps=1e-3, alpha=1e-4, steps=1) for _ in range(2))
    torch.manual_seed(0)
    state = torch.get_rng_state()
    adv = first(x, y)
    assert torch.equal(adv, second(x, y))
    assert not torch.equal(adv, first(x, y))
    assert torch.equal(state, torch.get_rng_state())


def test_integers_keep_epsilon() -> None:
    x, y = images(16, levels=True)
    atk = torchattacks.PGD(net(), eps=8 / 255, alpha=3 / 255, steps=4)
    atk.set_return_type("int")
    adv = atk(x, y)
    assert adv.dtype == torch.uint8
    levels = (x * 255).round().int()
    assert int((adv.int() - levels).abs().max()) <= 8
    assert bool((adv.int() != levels).any())
    with pytest.raises(InputError, match="type: expected float or int"):
        atk.set_return_type("half")


def test_defaults_and_settings(capsys: pytest.CaptureFixture[str]) -> None:
    model = net()
    pgd, bim = torchattacks.PGD(model), torchattacks.BIM(model, steps=0)
    assert bim.steps == 10
    assert "steps=10" in repr(pgd)
    pgd.set_device("cpu")
    x, y = images(4)
    pgd.steps, pgd.eps = 1, 0.0
    assert torch.equal(pgd(x, y), x)
    pgd.set_mode_targeted_by_label()
    assert "targeted(label)" in capsys.readouterr().out
    with pytest.raises(InputTypeError, match=r"model: expected a torch\.nn\.Module"):
        torchattacks.PGD(lambda x: x)
    with pytest.raises(InputError, match="std: expected"):
        pgd.set_normalization_used([0.5], [0.0])
