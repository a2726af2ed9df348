"""AdversarialPatch: closed forms of linear models, pixels bit by bit, positions that were held out."""

from __future__ import annotations

import pytest
import torch
from attack_models import images, random, small_net
from torch import Tensor

from pyrobust.attacks import AdversarialPatch, Patch

DISC = torch.tensor([[False, True, False], [True, True, True], [False, True, False]])


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
    used, held = ({tuple(place) for place in places.tolist()} for places in (patch.positions, patch.held_out))
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
        assert {tuple(place) for place in torch.cat(seen).tolist()} == held
        attack.evaluate(x[10:], y[10:], patch, indices=range(10, 60))
        assert torch.equal(seen[1], seen[0][10:])
        seen.clear()
        attack.fit(x, y)
        assert {tuple(place) for place in torch.cat(seen).tolist()} <= used


def test_it_fools_more_than_random_patches() -> None:
    """On other images, at the positions that it was optimised for: the net is random, and has no others like them."""
    net, (x, _) = small_net(torch.float32), images(160, torch.float32)
    y = net(x).argmax(1)
    attack = AdversarialPatch(net, 4, epochs=40, target=2, batch_size=20, step_size=0.1)
    patch = attack.fit(x[:80], y[:80])

    def rate(pixels: Tensor) -> float:
        put = Patch(pixels, patch.mask, patch.positions, patch.held_out, 0)
        classes = [net(put.apply(x[80:], place)).argmax(1) for place in patch.positions]
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
