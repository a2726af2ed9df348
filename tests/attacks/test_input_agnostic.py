"""Perturbations and patches for all images: closed forms of linear models, constraints, rates on other images."""

from __future__ import annotations

import pytest
import torch
from support.attack_models import NORMS, Recording, halfspace, images, inside, random, small_net
from torch import Tensor

from pyrobust.attacks import AdversarialPatch, Patch, UniversalPerturbation
from pyrobust.attacks.engine.queries import Queries
from pyrobust.metrics import estimate_rate

WEIGHT = torch.tensor([3.0, -1.0, 0.5, 2.0])
DISC = torch.tensor([[False, True, False], [True, True, True], [False, True, False]])


@pytest.mark.parametrize("norm", NORMS)
def test_linear_models_have_one_best_direction(norm: str) -> None:
    """-epsilon times sign w, w/‖w‖₂, or the largest coordinate."""
    x = random(20, 4, seed=1) * 0.5 + 0.25
    model = halfspace(WEIGHT, 10.0)
    result = UniversalPerturbation(model, 0.125, norm).fit(x, torch.zeros(20, dtype=torch.int64))
    best = {"linf": WEIGHT.sign(), "l2": WEIGHT / WEIGHT.norm(), "l1": torch.eye(4)[0]}[norm]
    assert float(-WEIGHT @ result.delta) >= 0.95 * 0.125 * float(WEIGHT @ best)
    assert result.fooling_rate.successes == 0


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_every_point_of_a_perturbation_is_in_the_ball(norm: str, dtype: torch.dtype) -> None:
    net, (x, y) = small_net(dtype), images(24, dtype)
    epsilon = {"linf": 0.3, "l2": 1.5, "l1": 6.0}[norm]
    attack = UniversalPerturbation(net, epsilon, norm, epochs=10, batch_size=7)
    result = attack.fit(x[:16], y[:16])
    assert result.delta.dtype == dtype
    assert inside(result.delta[None], torch.zeros_like(x[:1]), norm, epsilon, -9, 9)
    x_adv = result.apply(x)
    assert inside(x_adv, x, norm, epsilon)
    assert not torch.equal(x_adv, x)


def test_a_perturbation_fools_more_than_random_signs() -> None:
    net, (x, _) = small_net(torch.float32), images(200, torch.float32)
    y = net(x).argmax(1)
    attack = UniversalPerturbation(net, 0.2, epochs=30)
    result = attack.fit(x[:100], y[:100])
    after = net(result.apply(x[:100])).argmax(1)
    assert result.fooling_rate == estimate_rate(int((after != y[:100]).sum()), 100)
    rates = attack.evaluate(x[100:], y[100:], result)
    signs = torch.randn(20, 1, 1, 6, 6, generator=torch.Generator().manual_seed(0)).sign()
    chance = max(float((net((x[100:] + 0.2 * s).clamp(0, 1)).argmax(1) != y[100:]).float().mean()) for s in signs)
    assert rates["fooling_rate"].lower > chance
    assert rates["clean_accuracy"].value == 1
    assert rates["attack_success_rate"].value == 1 - rates["robust_accuracy"].value
    again = UniversalPerturbation(net, 0.2, epochs=30).fit(x[:100], y[:100])
    assert torch.equal(again.delta, result.delta)


def test_beta_keeps_outliers_from_deciding() -> None:
    """One example of huge loss pulls up, nine pull down; with the limit the nine decide."""
    x = torch.full((10, 2), 0.5)
    x[0] = 0.9

    def model(z: Tensor) -> Tensor:  # class 0 loses by 40·(z - 0.7) for the first, by a little near 0.5 for the others
        value = torch.where(z[:, 0] > 0.7, -1000 * (z[:, 0] - 0.7), 1 - 2 * (0.5 - z[:, 0]))
        return torch.stack([value, -value], 1)

    for beta, expected in ((9.0, -0.025), (1e9, 0.025)):
        attack = UniversalPerturbation(model, 0.1, batch_size=10, epochs=5, loss="margin", beta=beta)
        assert float(attack.fit(x, torch.zeros(10, dtype=torch.int64)).delta[0]) == pytest.approx(expected)


def test_clipped_coordinates_do_not_count() -> None:
    """Nine images are 0 in the first coordinate, where lowering it does nothing: the tenth decides."""
    x = torch.zeros(10, 2)
    x[0, 0] = 0.5
    x[:, 1] = 0.5

    def model(z: Tensor) -> Tensor:  # clipped ones would be moved down, the tenth up
        value = torch.where(z[:, 0] > 0.2, -z[:, 0], 4 * z[:, 0]) + 3
        return torch.stack([value, -value], 1)

    attack = UniversalPerturbation(model, 0.1, loss="margin", epochs=3, batch_size=10, step_size=0.05)
    y = torch.zeros(10, dtype=torch.int64)
    assert float(attack.fit(x, y).delta[0]) < 0  # at δ = 0 the nine count, then they are clipped
    gradient = attack._gradient(Queries(attack.runner), x, y, torch.tensor([[-0.05, 0.0]]))
    assert float(gradient[0, 0]) > 0
    for bound in (0.0, 1.0):  # at a clip bound, but not beyond it
        gradient = attack._gradient(Queries(attack.runner), torch.tensor([[bound, 0.5]]), y[:1], torch.zeros(1, 2))
        assert float(gradient[0, 0]) != 0


def test_forward_passes_are_counted() -> None:
    net, (x, y) = Recording(small_net(torch.float32)), images(10, torch.float32)
    result = UniversalPerturbation(net, 0.1, epochs=2).fit(x, y)
    assert all(parameter.grad is None for parameter in net.parameters())
    assert net.rows >= result.forwards >= 10 + 2 * 20


# --- patches


def test_apply_replaces_the_masked_pixels_bit_by_bit() -> None:
    x, pixels = random(5, 2, 6, 7, seed=1), random(2, 3, 3, seed=2)
    patch = Patch(pixels, DISC, torch.zeros(1, 2), torch.zeros(1, 2), 0)
    places = torch.tensor([[0, 0], [3, 4], [1, 2], [3, 0], [0, 4]])
    for layout in (torch.contiguous_format, torch.channels_last):
        patched = patch.apply(x.contiguous(memory_format=layout), places)
        expected = x.clone()
        for image, (top, left) in enumerate(places.tolist()):
            for row in range(3):
                for column in range(3):
                    if DISC[row, column]:
                        expected[image, :, top + row, left + column] = pixels[:, row, column]
        assert torch.equal(patched, expected)
    assert torch.equal(patch.apply(x, places[1])[0], patch.apply(x[:1], places[1:2])[0])


@pytest.mark.parametrize("target", [None, 1, 0])
def test_linear_models_have_one_best_patch(target: int | None) -> None:
    """At a fixed position each pixel goes to the end of the clip range that its weight says; masked ones stay."""
    weight = random(1, 5, 5, seed=3, dtype=torch.float64) * 2 - 1
    x = random(12, 1, 5, 5, seed=4, dtype=torch.float64) * 2 - 1

    def model(z: Tensor) -> Tensor:
        value = (z * weight).sum((1, 2, 3))
        value = value - 100 if target == 0 else value + 100  # out of reach, so that every image counts
        return torch.stack([value, -value], 1)

    y = torch.full((12,), 1 if target == 0 else 0)
    attack = AdversarialPatch(
        model, 3, clip=(-1, 1), target=target, mask=DISC, position=(1, 2), epochs=60, dtype=torch.float64
    )
    patch = attack.fit(x, y)
    side = 1 if target == 0 else -1
    best = side * weight[:, 1:4, 2:5].sign()
    assert torch.equal(patch.pixels[:, DISC], best[:, DISC])
    assert torch.equal(patch.pixels[:, ~DISC], torch.zeros_like(patch.pixels[:, ~DISC]))
    assert patch.held_out.tolist() == patch.positions.tolist() == [[1, 2]]


def test_positions_are_held_out() -> None:
    net, (x, _) = small_net(torch.float32), images(60, torch.float32)
    y = net(x).argmax(1)
    attack = AdversarialPatch(net, (3, 2), epochs=10)
    patch = attack.fit(x, y)
    used, held = ({tuple(position) for position in places.tolist()} for places in (patch.positions, patch.held_out))
    assert not used & held
    assert used | held == {(row, column) for row in range(4) for column in range(5)}
    assert len(held) == 5
    seen: list[Tensor] = []
    original = Patch.apply

    def spy(self: Patch, images_: Tensor, positions: Tensor) -> Tensor:
        seen.append(positions)
        return original(self, images_, positions)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Patch, "apply", spy)
        attack.evaluate(x, y, patch)
        assert {tuple(position) for position in torch.cat(seen).tolist()} == held
        attack.evaluate(x[10:], y[10:], patch, indices=range(10, 60))
        assert torch.equal(seen[1], seen[0][10:])
        seen.clear()
        attack.fit(x, y)
        assert {tuple(position) for position in torch.cat(seen).tolist()} <= used


def test_a_patch_fools_more_than_random_ones() -> None:
    """On other images, at the positions that it was optimised for: the net is random, and has no others like them."""
    net, (x, _) = small_net(torch.float32), images(160, torch.float32)
    y = net(x).argmax(1)
    attack = AdversarialPatch(net, 4, epochs=40, target=2, batch_size=20, step_size=0.1)
    patch = attack.fit(x[:80], y[:80])

    def rate(pixels: Tensor) -> float:
        put = Patch(pixels, patch.mask, patch.positions, patch.held_out, 0)
        classes = [net(put.apply(x[80:], position)).argmax(1) for position in patch.positions]
        return float((torch.stack(classes) == 2).float().mean())

    assert rate(patch.pixels) > max(rate(random(1, 4, 4, seed=seed).round()) for seed in range(5)) + 0.1
    again = AdversarialPatch(net, 4, epochs=40, target=2, batch_size=20, step_size=0.1).fit(x[:80], y[:80])
    assert torch.equal(again.pixels, patch.pixels)
    rates = attack.evaluate(x[80:], y[80:], patch)
    assert rates["clean_accuracy"].value == 1
    assert rates["target_rate"].n == int((y[80:] != 2).sum())
    assert rates["attack_success_rate"].value == pytest.approx(1 - rates["robust_accuracy"].value)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_pixels_stay_in_the_clip_range(dtype: torch.dtype) -> None:
    """0.1 and 0.7 are no numbers of either dtype that lie inside: the pixels stop at the last ones that do."""
    net, (x, y) = small_net(dtype), images(8, dtype)
    x = x.clamp(0.2, 0.6)
    patch = AdversarialPatch(net, 2, clip=(0.1, 0.7), epochs=40).fit(x, y)
    assert patch.pixels.dtype == dtype
    assert float(patch.pixels.double().min()) >= 0.1
    assert float(patch.pixels.double().max()) <= 0.7
