"""TransferAttack: published rules, transforms against torch's own, and judgement on the attacked model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.attack_models import Recording, fooled_alone, images, inside, random, small_net
from torch import Tensor, nn
from torch.nn import functional

from pyrobust.attacks import EOT, TransferAttack
from pyrobust.attacks.engine.state import AttackState
from pyrobust.attacks.transfer import gaussian, resized, smoothed
from pyrobust.evaluation import attack_dataset

EPSILON = {"linf": 0.1, "l2": 0.5, "l1": 2.0}


def right(x: Tensor) -> Tensor:
    """A model that is right for every image of class 0, and has no gradient."""
    return torch.tensor([[1.0, 0.0, 0.0, 0.0, 0.0]]).repeat(len(x), 1)


VARIANTS: dict[str, dict[str, Any]] = {
    "MI": {},
    "TI": {"kernel": 3},
    "NI": {"nesterov": True},
    "SI-NI": {"nesterov": True, "scales": 3},
    "VMI": {"neighbors": 3, "neighborhood": 1.5},
    "VNI with scales": {"nesterov": True, "neighbors": 2, "neighborhood": 0.5, "scales": 2},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_variants_follow_the_published_rules(variant: str, norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Iterates in plain torch, on the same random neighbors."""
    net, epsilon, steps, decay = small_net(), EPSILON[norm], 4, 0.9
    x, _ = images(6)
    y, size = net(x).argmax(1), x[0].numel()
    options = VARIANTS[variant]
    neighbors, scales = options.get("neighbors", 0), options.get("scales", 1)
    drawn: list[Tensor] = []
    noise = AttackState.noise

    def recorded(self: AttackState, *arguments: Any, **keywords: Any) -> Tensor:
        drawn.append(noise(self, *arguments, **keywords))
        return drawn[-1]

    def model(batch: Tensor) -> Tensor:  # right wherever it is asked, so that every example takes all steps
        return functional.one_hot(y[: len(batch)], 5).double()

    monkeypatch.setattr(AttackState, "noise", recorded)
    attack = TransferAttack(model, epsilon, norm, surrogate=net, steps=steps, momentum=decay, batch_size=6, **options)
    x_adv = attack(x, y)
    assert [r.shape for r in drawn] == [(6, neighbors, *x.shape[1:])] * (steps if neighbors else 0)
    assert all(r.abs().max() <= 3**0.5 and r.std() > 0.8 for r in drawn)
    assert len({float(r.sum()) for r in drawn}) == len(drawn)

    def gradient(z: Tensor) -> Tensor:
        z = z.detach().requires_grad_()
        losses = [functional.cross_entropy(net(z / 2**i), y, reduction="sum") for i in range(scales)]
        (slope,) = torch.autograd.grad(sum(losses) / scales, z)
        return functional.conv2d(slope, gaussian(3, x), padding=1) if "kernel" in options else slope

    def length(z: Tensor, p: int) -> Tensor:
        return torch.linalg.vector_norm(z, p, dim=(1, 2, 3), keepdim=True)

    z, g, variance, alpha = x, torch.zeros_like(x), torch.zeros_like(x), epsilon / steps
    for t in range(steps):
        here = gradient(z + alpha * decay * size * g if options.get("nesterov") else z)
        tuned = here + variance
        if neighbors:
            width = options["neighborhood"] * epsilon / (1 if norm == "linf" else size**0.5)
            around = [gradient(z + width * drawn[t][:, i] / 3**0.5) for i in range(neighbors)]
            variance = sum(around) / neighbors - here
        g = decay * g + tuned / length(tuned, 1)
        if norm == "linf":
            z = (x + (z + alpha * g.sign() - x).clamp(-epsilon, epsilon)).clamp(0, 1)
        else:
            delta = z + alpha * g / length(g, 2) - x
            z = (x + delta * (epsilon / length(delta, 2)).clamp(max=1)).clamp(0, 1)
    torch.testing.assert_close(x_adv, z, rtol=0, atol=1e-7)
    assert inside(x_adv, x, norm, epsilon)


@pytest.mark.parametrize("shape", [(9, 9), (8, 5), (3, 16)])
def test_resized_images_are_interpolated_and_padded(shape: tuple[int, int]) -> None:
    x = random(64, 2, *shape, seed=1, dtype=torch.float64)
    draws = random(64, 4, seed=2, dtype=torch.float64)
    got = resized(x, draws, chance=0.75, least=0.5)
    sizes = set()
    for image, result, draw in zip(x, got, draws.tolist(), strict=True):
        if draw[0] >= 0.75:
            assert torch.equal(result, image)
            continue
        new = [-(-side // 2) + int(draw[1] * (side - -(-side // 2) + 1)) for side in shape]
        small = functional.interpolate(image[None], size=new, mode="bilinear", align_corners=False)[0]
        top, left = (int(u * (side - n + 1)) for u, side, n in zip(draw[2:], shape, new, strict=True))
        padding = (left, shape[1] - new[1] - left, top, shape[0] - new[0] - top)
        torch.testing.assert_close(result, functional.pad(small, padding))
        sizes.add(new[0])
    assert sizes == set(range(-(-shape[0] // 2), shape[0] + 1))


def test_gaussian_kernel() -> None:
    kernel = gaussian(7, torch.zeros(1, dtype=torch.float64))[0, 0]
    assert float(kernel.sum()) == pytest.approx(1)
    assert float(kernel[3, 6] / kernel[3, 3]) == pytest.approx(float(torch.exp(torch.tensor(-9 / (2 * 3.0)))))
    assert float(kernel[6, 0] / kernel[3, 3]) == pytest.approx(float(torch.exp(torch.tensor(-18 / (2 * 3.0)))))
    assert gaussian(1, kernel).tolist() == [[[[1.0]]]]
    point = torch.zeros(1, 2, 7, 7, dtype=torch.float64)
    point[0, 1, 3, 3] = 2
    torch.testing.assert_close(smoothed(point, gaussian(7, point))[0, 1], 2 * kernel)


def test_the_model_is_run_twice_and_judges() -> None:
    net, (x, _) = small_net(), images(16)
    victim = Recording(nn.Sequential(nn.Flatten(), nn.Linear(36, 5)).double())
    victim.model[1].weight.data = random(5, 36, seed=9, dtype=torch.float64)
    y = victim.model(x).argmax(1)
    ended: dict[int, bool] = {}
    attack = TransferAttack(
        victim, 0.2, surrogate=net, batch_size=16, callback=lambda row, success, _: ended.__setitem__(row, success)
    )
    x_adv = attack(x, y)
    assert attack.forwards == victim.rows == 32
    broken = fooled_alone(victim.model, x_adv, y)
    assert [ended[row] for row in range(16)] == broken
    assert attack.evaluate(x, y, x_adv)["robust_accuracy"] == 1 - sum(broken) / 16
    y[3] = (y[3] + 1) % 5
    assert torch.equal(attack(x, y)[3], x[3])


def test_surrogates_of_other_kinds() -> None:
    """A callable, an EOT, several, saturated logits, bfloat16 autocast of the model; modes are restored."""
    net, (x, _) = small_net(torch.float32).train(), images(6, torch.float32)
    y = torch.zeros(6, dtype=torch.int64)
    for surrogate in (lambda z: net(z), EOT(net, 2, lambda z: z + 0.0), [net, lambda z: net(z)]):
        x_adv = TransferAttack(right, 0.1, surrogate=surrogate, steps=3)(x, y)
        torch.testing.assert_close(x_adv, TransferAttack(right, 0.1, surrogate=net, steps=3)(x, y), rtol=0, atol=1e-5)
    assert net.training
    x_adv = TransferAttack(right, 0.1, surrogate=net, diversity=1.0, steps=2, memory_format=torch.channels_last)(x, y)
    assert inside(x_adv, x, "linf", 0.1)
    y = net(x).argmax(1)
    seen: list[torch.dtype] = []
    net.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    TransferAttack(small_net(torch.float32), 0.1, surrogate=net, steps=2, dtype=torch.bfloat16)(x, y)
    TransferAttack(small_net(torch.bfloat16), 0.1, surrogate=net, steps=2)(x.bfloat16(), y)
    assert set(seen) == {torch.float32}
    # Logits times 10^4 have a cross-entropy whose gradient underflows; directions stay.
    sharp = TransferAttack(net, 0.1, surrogate=lambda z: 1e4 * net(z), nesterov=True, scales=2, neighbors=2)
    assert bool(((sharp(x, y) - x).abs().flatten(1).amax(1) > 0.05).all())


def test_runs_are_stored_and_compare_the_surrogate(tmp_path: Any) -> None:
    net, (x, _) = small_net(torch.float32), images(10, torch.float32)
    surrogate = nn.Sequential(nn.Flatten(), nn.Linear(36, 5))

    def run() -> Any:
        attack = TransferAttack(net, 0.2, surrogate=surrogate, steps=3)
        return attack_dataset(attack, (x, net(x).argmax(1)), out=tmp_path / "run.db", batch_size=4)

    assert len(run()) == len(run()) == 10
    with torch.no_grad():
        surrogate[1].bias += 1
    with pytest.raises(RuntimeError, match="surrogate"):
        run()
