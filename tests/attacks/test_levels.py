"""Attacks on a grid: all points that the model sees, and those that leave, are levels in balls of integers."""

from __future__ import annotations

import logging
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.attack_models import CASES, Recording, fooled_alone, images, random, shortened, small_net
from torch import Tensor

from pyrobust.attacks import (
    APGD,
    FGSM,
    FMN,
    PGD,
    AdversarialAttack,
    AutoAttack,
    BatchAttack,
    Square,
    TransferAttack,
)
from pyrobust.attacks.engine.levels import Levels, budgets, grid_argument, level_distance

BYTE = Fraction(1, 255)
BYTES = np.arange(256, dtype=np.float32) / np.float32(255)
# Balls in levels: 4; 38.25² = 1463.0625; 178.5; 2 coordinates.
RADII = {"linf": "4/255", "l2": 0.15, "l1": 0.7, "l0": 2.0}
# Attacks that ask the model only about points in the ball of an image; APGD in l1 has phases outside it.
INNER = (FGSM, PGD, APGD, Square)


def levels_of(x: Tensor) -> np.ndarray:
    """Levels of float32 images, by looking each value up among the bytes over 255; fails for any other value."""
    values = x.detach().double().numpy().ravel()
    levels = np.searchsorted(BYTES.astype(np.float64), values)
    assert (BYTES.astype(np.float64)[np.minimum(levels, 255)] == values).all(), "a value that no byte gives"
    return levels.reshape(len(x), -1)


def length(a: list[int], b: list[int], norm: str) -> int:
    """Distance of an image's levels in a norm, squared in l2."""
    delta = [abs(p - q) for p, q in zip(a, b, strict=True)]
    if norm == "l2":
        return sum(d * d for d in delta)
    return {"linf": max(delta), "l1": sum(delta), "l0": sum(d > 0 for d in delta)}[norm]


def limit(norm: str, epsilon: float | str | Fraction) -> Fraction:
    """The radius in levels, squared in l2."""
    radius = Fraction(str(epsilon)) / (1 if norm == "l0" else BYTE)
    return radius * radius if norm == "l2" else radius


def in_ball(x_adv: Tensor, x: Tensor, norm: str, epsilon: float | str | Fraction) -> bool:
    """Whether images lie in their balls, in Python's integers and fractions."""
    pairs = zip(levels_of(x_adv).tolist(), levels_of(x).tolist(), strict=True)
    return all(length(a, b, norm) <= limit(norm, epsilon) for a, b in pairs)


def byte_images(count: int = 9) -> tuple[Tensor, Tensor]:
    """Byte images in float32, with their labels; every eighth is misclassified."""
    x, y = images(count, torch.float32)
    return (x * 255).round() / 255, y


@pytest.mark.parametrize(("attack", "options", "norm"), [case for case in CASES if case[0] is not TransferAttack])
def test_every_query_and_every_result_is_on_the_grid_and_in_the_ball(
    attack: Any, options: dict[str, Any], norm: str
) -> None:
    x, y = byte_images()
    model = Recording(small_net(torch.float32))
    epsilon = RADII[norm]
    outcomes: dict[int, tuple[bool, Tensor]] = {}
    attacker = attack(
        model,
        epsilon,
        norm,
        grid="1/255",
        batch_size=7,
        **options,
        callback=lambda row, success, point: outcomes.update({row: (success, point.clone())}),
    )
    x_adv = attacker.generate(x, y)
    for batch in model.seen:
        levels_of(batch)
    assert in_ball(x_adv, x, norm, epsilon)
    assert len(outcomes) == len(x)
    assert torch.equal(torch.stack([outcomes[row][1] for row in range(len(x))]), x_adv)
    loaded = torch.from_numpy(BYTES[levels_of(x_adv)].reshape(tuple(x.shape)))  # the levels, loaded again
    wrong = fooled_alone(small_net(torch.float32), loaded, y)
    assert [outcomes[row][0] for row in range(len(x))] == wrong
    assert any(wrong)
    assert bool((x_adv != x).any())
    if issubclass(attack, INNER) and "multi_epsilon" not in options:  # every query is in the ball of one of the images
        delta = np.abs(levels_of(torch.cat(model.seen))[:, None].astype(np.int64) - levels_of(x)[None])
        sums = {"linf": delta.max(2), "l2": (delta**2).sum(2), "l1": delta.sum(2), "l0": (delta != 0).sum(2)}[norm]
        assert bool((sums.min(1) <= math.floor(limit(norm, epsilon))).all())


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_autoattack(norm: str) -> None:
    x, y = byte_images()
    attack = shortened(AutoAttack(small_net(torch.float32), RADII[norm], norm, grid=1 / 255), 10)
    x_adv = attack(x, y)
    assert in_ball(x_adv, x, norm, RADII[norm])
    assert attack.result is not None
    broken = fooled_alone(small_net(torch.float32), x_adv, y)
    assert [by is not None for by in attack.result.broken_by] == broken
    assert attack.evaluate(x, y, x_adv)["robust_accuracy"] == attack.result.robust_accuracy


def test_transfer_attack_and_targeted_attack() -> None:
    x, y = byte_images()
    net = small_net(torch.float32)
    for attack in (TransferAttack(net, "16/255", surrogate=net, grid="1/255"), PGD(net, "16/255", grid="1/255")):
        x_adv = attack(x, y, targeted=True, target_labels=(y + 1) % 5)
        assert in_ball(x_adv, x, "linf", "16/255")
        assert bool((net(x_adv).argmax(1) == (y + 1) % 5).any())


@pytest.mark.parametrize("norm", ["linf", "l2", "l1", "l0"])
def test_nearest_examples_have_exact_distances_of_levels(norm: str) -> None:
    x, y = byte_images()
    result = FMN(small_net(torch.float32), norm=norm, grid="1/255", steps=40).minimum(x, y)
    assert bool(result.success[1:8].all())
    for moved, clean, distance in zip(levels_of(result.x_adv), levels_of(x), result.distance.tolist(), strict=True):
        if math.isinf(distance):
            continue
        exact = length(moved.tolist(), clean.tolist(), norm)
        if norm == "l0":
            assert distance == exact
        else:
            rounded_up_once(distance, exact, BYTE, norm)


def rounded_up_once(distance: float, total: int, step: Fraction, norm: str) -> None:
    """Check that the distance is the smallest float that is at least a length of levels, squared in l2."""
    power = 2 if norm == "l2" else 1
    assert Fraction(distance) ** power >= total * step**power
    assert total == 0 or Fraction(math.nextafter(distance, 0.0)) ** power < total * step**power


def test_steps_of_less_than_half_a_level_add_up() -> None:
    """Three levels decide; each step is a tenth of one."""
    x = torch.from_numpy(BYTES[np.full((1, 4), 100)])
    limit = float(BYTES[102]) + 1e-4

    def model(batch: Tensor) -> Tensor:
        gap = (batch - limit).sum(1)
        return torch.stack([-gap, gap], 1)

    attack = PGD(model, "3/255", steps=40, step_size=0.1 / 255, random_start=False, grid="1/255")
    assert levels_of(attack(x, torch.tensor([0]))).tolist() == [[103] * 4]


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_each_example_has_its_own_ball(norm: str) -> None:
    x, y = byte_images()
    epsilon = torch.tensor([k / 255 for k in range(len(x))])  # float32: each is read as k/255
    x_adv = PGD(small_net(torch.float32), epsilon, norm, steps=5, grid="1/255", restarts=2)(x, y)
    for k in range(len(x)):
        assert in_ball(x_adv[k : k + 1], x[k : k + 1], norm, Fraction(k, 255))


def test_images_off_the_grid_move_first_and_it_is_said(caplog: pytest.LogCaptureFixture) -> None:
    x, y = byte_images()
    off = x.clone()
    off[0, 0, 0, 0] = (off[0, 0, 0, 0] + 0.3 / 255).clamp(max=1.0) if off[0, 0, 0, 0] < 1 else 1 - 0.3 / 255
    attack = PGD(small_net(torch.float32), "4/255", grid="1/255", steps=3)
    with caplog.at_level(logging.WARNING):
        x_adv = attack(off, y)
        attack(off, y)
    assert len(caplog.messages) == 1
    assert "moved 0.31 % of the pixels to the nearest multiple of 1/255, by at most 0.3 steps" in caplog.messages[0]
    assert torch.equal(attack.snap(off), x)
    assert in_ball(x_adv, x, "linf", "4/255")


@pytest.mark.parametrize(
    ("clip", "allowed"), [((0.0, 1.0), (0, 255)), ((0.1, 0.9), (26, 229)), ((-1.0, 2.0), (-255, 510))]
)
def test_levels_stay_in_the_clip_range(clip: tuple[float, float], allowed: tuple[int, int]) -> None:
    levels = Levels(BYTE, *clip)
    assert (levels.low, levels.high) == allowed
    low, high = (float(value) for value in levels.images(torch.tensor([[-9.0, 9.0]]))[0])
    assert clip[0] <= low < high <= clip[1]


def test_models_of_other_forms() -> None:
    x, y = byte_images()
    for norm in ("linf", "l2", "l1"):
        for attack, steps in ((PGD, {"steps": 5}), (Square, {"n_queries": 20})):
            for form in ({"dtype": torch.bfloat16}, {"memory_format": torch.channels_last}):
                attacker: Any = attack(small_net(torch.float32), RADII[norm], norm, grid="1/255", **steps, **form)
                assert in_ball(attacker(x, y), x, norm, RADII[norm])


def test_float64_images_keep_the_dtype_that_their_loader_rounded_to() -> None:
    x, y = byte_images()
    single, double = x.double(), (x * 255).round().double() / 255
    for images_of in (single, double):
        x_adv = PGD(small_net(), "4/255", grid="1/255", steps=4)(images_of, y)
        levels = (x_adv * 255).round()
        assert x_adv.dtype == torch.float64
        assert torch.equal(x_adv, levels / 255 if images_of is double else (levels.float() / 255).double())
        assert bool(((levels - (x * 255).round()).abs() <= 4).all())


def test_auto_finds_the_grid_of_all_examples() -> None:
    x = (random(16, 1, 6, 6) * 16).floor() / 16
    x[:4] = x[:4].round()  # alone they are on the grid of bytes, too
    y = small_net(torch.float32)(x).argmax(1)
    for attack in (
        PGD(small_net(torch.float32), 1 / 4, grid="auto", steps=3, batch_size=4),
        AutoAttack(small_net(torch.float32), 1 / 4, grid="auto", attacks_to_run=["apgd-ce"]),
    ):
        assert torch.equal((attack(x, y) * 16).round() / 16, attack(x, y))


class Careless(AdversarialAttack):
    """A user's attack that leaves the ball, the grid and the clip range."""

    def generate(self, x: Tensor, y: Tensor, targeted: bool = False, target_labels: Tensor | None = None) -> Tensor:
        return x + 0.3


class Stray(BatchAttack):
    """A user's attack that claims success outside the ball."""

    def _run(self, state: Any) -> None:
        x_adv = state.x + 0.5
        state.finish(*state.retire(torch.full((len(x_adv),), 1, dtype=torch.uint8), x_adv))


@pytest.mark.parametrize("norm", ["linf", "l2", "l1", "l0"])
def test_attacks_of_users_are_put_on_the_grid_and_judged_there(norm: str) -> None:
    x, y = byte_images()
    net = small_net(torch.float32)
    assert in_ball(Careless(net, RADII[norm], norm, grid="1/255").generate(y=y, x=x), x, norm, RADII[norm])
    success: dict[int, bool] = {}
    stray = Stray(
        net, RADII[norm], norm, grid="1/255", callback=lambda row, fooled, point: success.update({row: fooled})
    )
    x_adv = stray(x, y)
    assert in_ball(x_adv, x, norm, RADII[norm])
    with torch.no_grad():
        assert [success[i] for i in range(len(x))] == (net(x_adv).argmax(1) != y).tolist()


@given(
    st.sampled_from(["linf", "l2", "l1", "l0"]),
    st.sampled_from([BYTE, Fraction(1, 16), Fraction(2, 255), Fraction(1, 65535), Fraction(1, 10)]),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.0, 0.01, 0.1, 0.5, 3.0, 40.0]),
    st.sampled_from(["normal", "same", "sparse"]),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_snapped_points_are_fixed_in_the_ball_and_do_not_depend_on_the_batch(
    norm: Any, step: Fraction, seed: int, size: float, kind: str, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(seed)
    levels = Levels(step, 0.0, 1.0, dtype)
    x = levels.images(torch.rand(3, 40, generator=generator, dtype=torch.float64)).to(dtype)
    z = torch.randn(3, 40, generator=generator, dtype=torch.float64)
    z = {"normal": z, "same": torch.full_like(z, 0.7), "sparse": z * (z > 1.2)}[kind]
    epsilon = torch.full((3,), size * (1 if norm == "l0" else float(step)), dtype=torch.float64)
    budget = budgets(norm, epsilon, step)
    x_adv = (x + z * size * float(step) / 3).clamp(0, 1).to(dtype)
    for final in (False, True):
        points = levels.snap(norm, x_adv, x, budget, final=final)
        assert torch.equal(levels.images(points), points)
        one = torch.cat(
            [levels.snap(norm, x_adv[i : i + 1], x[i : i + 1], budget[i : i + 1], final=final) for i in range(3)]
        )
        assert torch.equal(one, points)
        if final:
            assert torch.equal(levels.snap(norm, points, x, budget), points)
            exact = [[round(Fraction(v) / step) for v in row] for row in points.tolist()]
            clean = [[round(Fraction(v) / step) for v in row] for row in x.tolist()]
            for a, b, bound in zip(exact, clean, budget.tolist(), strict=True):
                assert length(a, b, norm) <= bound


@given(st.integers(1, 400), st.integers(1, 300), st.sampled_from(["linf", "l2", "l1"]))
def test_budgets_are_floors_of_fractions(numerator: int, denominator: int, norm: Any) -> None:
    epsilon = Fraction(numerator, denominator)
    radii = torch.tensor([numerator / denominator], dtype=torch.float64)
    assert budgets(norm, radii, BYTE).tolist() == [math.floor(limit(norm, epsilon))]


@given(st.integers(0, 10**9), st.fractions(Fraction(1, 70000), 5), st.sampled_from(["linf", "l2", "l1"]))
def test_level_distances_are_rounded_up_once(total: int, step: Fraction, norm: Any) -> None:
    rounded_up_once(level_distance(total, step, norm), total, step, norm)


def test_every_level_is_the_nearest_float() -> None:
    for step in (BYTE, Fraction(1, 16), Fraction(3, 700), Fraction(1, 65535)):
        levels = Levels(step, 0.0, 1.0)
        k = torch.arange(levels.high + 1).double()
        values = levels.values(k.clone(), torch.zeros(1)).double().tolist()
        for level, value in list(enumerate(values))[:: max(1, len(values) // 700)]:
            exact = step * level
            below, above = (float(np.nextafter(np.float32(value), np.float32(direction))) for direction in (-9, 9))
            assert abs(Fraction(value) - exact) <= min(abs(Fraction(near) - exact) for near in (below, above))


def test_arguments_in_their_forms() -> None:
    assert grid_argument(Fraction(1, 255)) == grid_argument("1/255") == grid_argument(1 / 255) == BYTE
    assert grid_argument(np.float32(1 / 255)) == BYTE
    assert (grid_argument(1), grid_argument(None)) == (Fraction(1), None)
    attack = PGD(small_net(torch.float32), Fraction(8, 255), grid="1/255")
    assert attack.epsilon == 8 / 255
    assert "grid='1/255'" in repr(attack)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        attack.generate(y=torch.zeros(1, dtype=torch.int64))
