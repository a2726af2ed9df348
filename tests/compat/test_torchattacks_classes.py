"""The classes of torchattacks: their signatures, their steps, training mode, MultiAttack and users' own attacks."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import pytest
import torch
from support.torchattacks_nets import CLASSES, MEAN, STD, images, net, normalize, restore, shifted
from torch import Tensor, nn
from torch.nn import functional

import pyrobust.compat.torchattacks as torchattacks
from pyrobust.attacks.autoattack_versions import VERSIONS
from pyrobust.errors import InputError, InputTypeError

EPS, ALPHA = 6 / 255, 2 / 255

# The parameters after the model, of torchattacks 3.5.1.
STEPS = "eps=8 / 255, alpha=2 / 255, steps=10"
EAD = "kappa=0, lr=0.01, binary_search_steps=9, max_iterations=100, abort_early=True, initial_const=0.001, beta=0.001"
SIGNATURES = {
    "VANILA": "",
    "GN": "std=0.1",
    "FGSM": "eps=8 / 255",
    "BIM": STEPS,
    "RFGSM": STEPS,
    "TPGD": STEPS,
    "PGD": f"{STEPS}, random_start=True",
    "EOTPGD": f"{STEPS}, eot_iter=2, random_start=True",
    "FFGSM": "eps=8 / 255, alpha=10 / 255",
    "MIFGSM": f"{STEPS}, decay=1.0",
    "NIFGSM": f"{STEPS}, decay=1.0",
    "SINIFGSM": f"{STEPS}, decay=1.0, m=5",
    "VMIFGSM": f"{STEPS}, decay=1.0, N=5, beta=3 / 2",
    "VNIFGSM": f"{STEPS}, decay=1.0, N=5, beta=3 / 2",
    "UPGD": f"{STEPS}, random_start=False, loss='ce', decay=1.0, eot_iter=1",
    "DIFGSM": f"{STEPS}, decay=0.0, resize_rate=0.9, diversity_prob=0.5, random_start=False",
    "TIFGSM": f"{STEPS}, decay=0.0, kernel_name='gaussian', len_kernel=15, nsig=3, resize_rate=0.9, "
    "diversity_prob=0.5, random_start=False",
    "Jitter": f"{STEPS}, scale=10, std=0.1, random_start=True",
    "PGDRS": f"{STEPS}, noise_type='guassian', noise_sd=0.5, noise_batch_size=5, batch_max=2048",
    "PGDL2": "eps=1.0, alpha=0.2, steps=10, random_start=True, eps_for_division=1e-10",
    "PGDRSL2": "eps=1.0, alpha=0.2, steps=10, noise_type='guassian', noise_sd=0.5, noise_batch_size=5, "
    "batch_max=2048, eps_for_division=1e-10",
    "PIFGSM": "max_epsilon=16 / 255, num_iter_set=10, momentum=1.0, amplification=10.0, prob=0.7",
    "PIFGSMPP": "max_epsilon=16 / 255, num_iter_set=10, momentum=1.0, amplification=10.0, prob=0.7, project_factor=0.8",
    "SPSA": "eps=0.3, delta=0.01, lr=0.01, nb_iter=1, nb_sample=128, max_batch_size=64",
    "APGD": "norm='Linf', eps=8 / 255, steps=10, n_restarts=1, seed=0, loss='ce', eot_iter=1, rho=0.75, verbose=False",
    "APGDT": "norm='Linf', eps=8 / 255, steps=10, n_restarts=1, seed=0, eot_iter=1, rho=0.75, verbose=False, "
    "n_classes=10",
    "FAB": "norm='Linf', eps=8 / 255, steps=10, n_restarts=1, alpha_max=0.1, eta=1.05, beta=0.9, verbose=False, "
    "seed=0, multi_targeted=False, n_classes=10",
    "Square": "norm='Linf', eps=8 / 255, n_queries=5000, n_restarts=1, p_init=0.8, loss='margin', "
    "resc_schedule=True, seed=0, verbose=False",
    "CW": "c=1, kappa=0, steps=50, lr=0.01",
    "DeepFool": "steps=50, overshoot=0.02",
    "EADL1": EAD,
    "EADEN": EAD,
    "AutoAttack": "norm='Linf', eps=8 / 255, version='standard', n_classes=10, seed=None, verbose=False",
}
UNTARGETED = {"VANILA", "GN", "TPGD", "PIFGSM", "APGD", "APGDT", "AutoAttack", "DeepFool"}
UNTIL_FOOLED = ["FGSM", "FFGSM", "BIM", "PGD", "PGDL2", "EOTPGD", "UPGD"]
JUDGED = ["APGD", "APGDT", "FAB", "Square", "AutoAttack"]
NEAREST = ["CW", "DeepFool", "EADL1", "EADEN"]
TRANSFER = ["MIFGSM", "NIFGSM", "SINIFGSM", "VMIFGSM", "VNIFGSM", "DIFGSM", "TIFGSM"]
ALL_STEPS = [*TRANSFER, "RFGSM", "TPGD", "PIFGSM", "PIFGSMPP", "Jitter", "PGDRS", "PGDRSL2", "SPSA"]


def make(name: str, model: nn.Module, **options: Any) -> torchattacks.Attack:
    """An attack with a small budget."""
    attack: Any = getattr(torchattacks, name)
    parameters = inspect.signature(attack).parameters
    small = {"eps": 0.3 if "L2" in name else EPS, "alpha": 0.1 if "L2" in name else ALPHA, "steps": 4, "n_queries": 40}
    small |= {"max_epsilon": EPS, "num_iter_set": 4, "nb_sample": 50, "nb_iter": 4}
    small |= {"c": 10, "max_iterations": 20, "binary_search_steps": 5, "initial_const": 0.1}
    small |= {"lr": 0.01 if name in NEAREST else ALPHA}
    small |= {"steps": 30} if name in NEAREST else {}
    small |= {"len_kernel": 3, "noise_sd": 0.05, "n_classes": CLASSES}
    made: torchattacks.Attack = attack(model, **{k: v for k, v in small.items() if k in parameters} | options)
    return made


def test_every_class_is_served_or_refused() -> None:
    assert {*SIGNATURES, "MultiAttack"} == set(torchattacks.__all__)
    # Its users loop over the attacks that take a model.
    assert torchattacks.__wrapper__ == ["MultiAttack"]
    assert issubclass(torchattacks.MultiAttack, torchattacks.Attack)
    assert {*UNTIL_FOOLED, *JUDGED, *NEAREST, *ALL_STEPS, "VANILA", "GN"} == set(SIGNATURES)
    assert len(SIGNATURES) + 1 + len(torchattacks.NOT_SERVED) == 39
    for name in torchattacks.NOT_SERVED:
        with pytest.raises(AttributeError, match=f"has no {name}: keep torchattacks itself"):
            getattr(torchattacks, name)
    with pytest.raises(AttributeError, match="has no attribute 'PGDL3'"):
        torchattacks.PGDL3  # noqa: B018 - the lookup itself raises


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name: str) -> None:
    attack = getattr(torchattacks, name)
    parameters = list(inspect.signature(attack).parameters.values())
    positional = [(p.name, p.default) for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    expected = eval(f"dict({SIGNATURES[name]})")
    assert positional[0][0] == "model"
    assert positional[1:] == list(expected.items())
    made = attack(net())
    renamed = {"rho": "thr_decr", "resc_schedule": "rescale_schedule", "n_classes": "n_target_classes"}
    for key, value in expected.items():
        if name in ("APGDT", "FAB") and key == "n_classes":
            value -= 1
        if key == "seed":
            value = 0
        assert getattr(made, key if name == "AutoAttack" else renamed.get(key, key)) == value
    assert made.attack == name
    assert repr(made).startswith(f"{name}(")
    assert made.supported_mode == ["default", *["targeted"] * (name not in UNTARGETED)]


@pytest.mark.parametrize("name", SIGNATURES)
def test_results(name: str) -> None:
    """Perturbations are in the ball, fool some images, repeat for a new object, and leave torch's generator alone."""
    model = net()
    x, y = images(16)
    torch.manual_seed(0)
    state = torch.get_rng_state()
    options = {"eps": 0.5} if name == "AutoAttack" else {}  # its published budgets are long where an image is robust
    adv = make(name, model, **options)(x, y)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(make(name, model, **options)(x, y), adv)
    assert adv.min() >= 0
    assert adv.max() <= 1
    if name in ("VANILA", "GN"):
        assert torch.equal(adv, x) == (name == "VANILA")
        return
    if name in NEAREST:
        options["eps"] = 2.0
    order, radius = (2, 0.3) if "L2" in name else (torch.inf, options.get("eps", EPS))
    size = torch.linalg.vector_norm((adv.double() - x.double()).flatten(1), order, dim=1)
    assert size.max() <= radius * (1 + 1e-9)
    assert (model(adv).argmax(1) != y).any()
    if name != "TPGD":
        with pytest.raises(InputError, match=f"labels: expected the labels of the images, which {name} needs"):
            make(name, model)(x)


@pytest.mark.parametrize("name", sorted(set(SIGNATURES) - {"VANILA", "GN", "TPGD"}))
def test_targeted_mode(name: str) -> None:
    model, (x, y) = net(), images(16)
    atk = make(name, model)
    if name in UNTARGETED:
        with pytest.raises(InputError, match=f"mode: expected default, the only mode of {name}"):
            atk.set_mode_targeted_by_label(quiet=True)
        assert atk.get_mode() == "default"
        return
    target = (y + 1) % CLASSES
    atk.set_mode_targeted_by_function(lambda x, y: (y + 1) % CLASSES, quiet=True)
    adv = atk(x, y)
    with torch.no_grad():
        before, after = (model(z).softmax(1).gather(1, target.unsqueeze(1)) for z in (x, adv))
    if name in JUDGED + NEAREST:
        reached = model(adv).argmax(1) == target
        assert reached.any()
        assert torch.equal(adv[~reached], x[~reached])
    else:
        assert after.mean() > before.mean()


@pytest.mark.parametrize("name", ["MIFGSM", "NIFGSM", "SINIFGSM", "VMIFGSM", "VNIFGSM"])
def test_transfer_attacks_take_all_steps(name: str) -> None:
    """The published iterations of MI-, NI- and SI-NI-FGSM in plain torch; VMI and VNI equal them with beta = 0."""
    model, (x, y) = net(), images(12)
    y[0] = (y[0] + 1) % CLASSES  # misclassified without an attack
    adv, velocity, correction = x.clone(), torch.zeros_like(x), torch.zeros_like(x)
    for _ in range(4):
        ahead = adv + ALPHA * velocity if "NI" in name else adv
        scales = [2.0**-i for i in range(5)] if name == "SINIFGSM" else [1.0]
        slope = torch.stack([scale * slope_of(model, scale * ahead, y) for scale in scales]).mean(0)
        gradient = slope + correction
        if name.startswith("V"):
            correction = slope_of(model, adv, y) - slope
        velocity = velocity + gradient / gradient.abs().mean(dim=(1, 2, 3), keepdim=True)
        adv = (x + (adv + ALPHA * velocity.sign() - x).clamp(-EPS, EPS)).clamp(0, 1)
    result = make(name, model, **{"beta": 0.0} if name.startswith("V") else {})(x, y)
    torch.testing.assert_close(result, adv, rtol=0, atol=1e-6)


def slope_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    leaf = x.detach().requires_grad_()
    return torch.autograd.grad(functional.cross_entropy(model(leaf), y, reduction="sum"), leaf)[0]


def test_patchwise_moves() -> None:
    """PIFGSM's published iteration: what exceeds eps in a pixel moves its neighbors, too."""
    model, (x, y) = net(), images(6)
    eps, steps = 4 / 255, 5
    size = eps / steps * 3.0
    kernel = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 1.0]]).expand(2, 1, 3, 3)
    adv, moved = x.clone(), torch.zeros_like(x)
    for _ in range(steps):
        sign = slope_of(model, adv, y).sign()
        moved = moved + size * sign
        excess = (moved.abs() - eps).clamp(min=0) * moved.sign()
        spread = size * functional.conv2d(excess, kernel, padding=1, groups=2).sign()
        moved = moved + spread
        adv = (x + (adv + size * sign + spread - x).clamp(-eps, eps)).clamp(0, 1)
    result = torchattacks.PIFGSM(model, max_epsilon=eps, num_iter_set=steps, amplification=3.0)(x, y)
    torch.testing.assert_close(result, adv, rtol=0, atol=1e-6)
    with pytest.raises(InputError, match=r"images: expected \[N, C, H, W\] for PIFGSM"):
        torchattacks.PIFGSM(nn.Linear(72, CLASSES))(x.flatten(1), y)


def test_spsa_goes_up_the_margin() -> None:
    signs = torch.tensor([1.0, -1.0, -1.0, 1.0, -1.0])
    x, y = torch.full((3, 5), 0.5), torch.tensor([0, 1, 0])

    class Signs(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([x @ signs, -x @ signs], 1).detach()  # no gradient

    adv = torchattacks.SPSA(Signs(5, 2), lr=0.01, nb_sample=200)(x, y)
    torch.testing.assert_close(adv - x, 0.01 * (2.0 * y - 1)[:, None] * signs, rtol=0, atol=1e-6)


def test_start_of_l2_is_uniform_in_its_distance() -> None:
    x, _ = images(200)
    adv = torchattacks.PGDL2(net(), eps=0.01, alpha=1e-9, steps=1)(0.3 + 0.4 * x, net()(0.3 + 0.4 * x).argmax(1))
    distance = (adv - 0.3 - 0.4 * x).flatten(1).norm(dim=1) / 0.01
    assert 0.4 < distance.mean() < 0.6
    assert distance.min() < 0.05
    assert distance.max() > 0.95


def test_diversity_and_smoothing_of_gradients() -> None:
    model, (x, y) = net(), images(8)
    plain = make("MIFGSM", model, decay=0.0)(x, y)
    for name, options in (
        ("DIFGSM", {"diversity_prob": 0.0}),
        ("DIFGSM", {"resize_rate": 1.0}),
        ("TIFGSM", {"diversity_prob": 0.0, "len_kernel": 1}),
    ):
        torch.testing.assert_close(make(name, model, **options)(x, y), plain, rtol=0, atol=1e-6)
    assert not torch.equal(make("DIFGSM", model, diversity_prob=1.0, resize_rate=0.5)(x, y), plain)
    flexible = nn.Sequential(nn.Conv2d(2, 6, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, CLASSES))
    assert make("DIFGSM", flexible, diversity_prob=1.0, resize_rate=1.5)(x, y).shape == x.shape
    for name in ("gaussian", "linear", "uniform"):
        line = torchattacks.TIFGSM(model, kernel_name=name, len_kernel=5)._weights()
        assert line.sum() == pytest.approx(1)
        assert torch.equal(line, line.flip(0))
        assert (line[:2].diff() >= 0).all()


@pytest.mark.parametrize("name", ALL_STEPS)
def test_results_do_not_depend_on_the_batch_size(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = net().double()
    x, y = images(9)
    x = x.double()
    whole = make(name, model)(x, y)
    monkeypatch.setattr(getattr(torchattacks, name), "_batch_size", lambda self, examples: 4)
    torch.testing.assert_close(make(name, model)(x, y), whole, rtol=0, atol=1e-7)


@pytest.mark.parametrize("name", [*UNTIL_FOOLED, "MIFGSM"])
def test_training_mode(name: str) -> None:
    """In training mode batch norm couples the examples, so all take all steps; then each module has its mode again."""
    model = net(batch_norm=True).double()
    model[2].train()
    x, y = images(8, net(batch_norm=True))
    x = x.double()
    atk = make(name, model)
    seen: list[tuple[int, bool]] = []
    model[1].register_forward_hook(lambda module, inputs, output: seen.append((len(output), module.training)))
    atk.set_model_training_mode(model_training=True, batchnorm_training=True)
    adv = atk(x, y)
    assert set(seen) == {(8, True)}
    assert len(seen) == {"FGSM": 1, "FFGSM": 1, "EOTPGD": 8}.get(name, 4)
    assert [module.training for module in model] == [False, False, True, False, False, False, False]
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not torch.equal(adv, x)
    if name == "BIM":
        expected = x
        reference = net(batch_norm=True).double().train()
        for _ in range(4):
            sign = slope_of(reference, expected, y).sign()
            expected = (x + (expected + ALPHA * sign - x).clamp(-EPS, EPS)).clamp(0, 1)
        torch.testing.assert_close(adv, expected, rtol=0, atol=1e-9)
    seen.clear()
    atk.set_model_training_mode(model_training=True)
    atk(x, y)
    assert {training for _, training in seen} == {False}
    with pytest.raises(InputTypeError, match="model_training: expected True or False"):
        atk.set_model_training_mode(1)  # type: ignore[arg-type]  # a wrong type


@pytest.mark.parametrize("name", JUDGED)
def test_judged_attacks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images that are not fooled come back unchanged, calls repeat, and training mode is refused."""
    monkeypatch.setitem(VERSIONS, "standard", ("apgd-ce",))
    model, (x, y) = net(), images(16)
    atk = make(name, model, eps=2 / 255)
    adv = atk(x, y)
    assert torch.equal(atk(x, y), adv)
    robust = model(adv).argmax(1) == y
    assert robust.any()
    assert torch.equal(adv[robust], x[robust])
    atk.set_model_training_mode(True)
    with pytest.raises(InputError, match=f"model_training: expected False for {name}"):
        atk(x, y)


@pytest.mark.parametrize("name", sorted(set(SIGNATURES) - {"AutoAttack"}))
def test_callers_inference_mode_and_copies(name: str) -> None:
    """Attacks run in inference mode, on no images, and as copies."""
    model, (x, y) = net(), images(2)
    few = {"nb_sample": 4, "binary_search_steps": 2, "max_iterations": 5, "N": 2, "n_queries": 5}
    parameters = inspect.signature(getattr(torchattacks, name)).parameters
    options = {option: value for option, value in few.items() if option in parameters}
    atk = make(name, model, **options)
    copied = pickle.loads(pickle.dumps(atk))
    adv = atk(x, y)
    assert torch.equal(copied(x, y), adv)
    with torch.inference_mode():
        assert torch.equal(make(name, model, **options)(x.clone(), y.clone()), adv)
    assert atk(x[:0], y[:0]).shape == (0, 2, 6, 6)


def test_images_that_calls_and_forward_take() -> None:
    """Calls take arrays, lists and normalized images, ``forward`` images in the unit range."""
    model, (x, y) = net(), images(8)
    atk = make("MIFGSM", shifted(model))
    atk.set_normalization_used(MEAN, STD)
    expected = make("MIFGSM", model)
    model.train()
    torch.testing.assert_close(atk.forward(x, y), expected.forward(x, y), rtol=0, atol=1e-6)
    assert model.training
    torch.testing.assert_close(restore(atk(normalize(x), y)), expected(x, y), rtol=0, atol=1e-6)
    assert torch.equal(expected(x.numpy(), y.tolist()), expected(x.tolist(), y.numpy()))


class OneStep(torchattacks.Attack):
    """A user's own attack."""

    def __init__(self, model: nn.Module, eps: float) -> None:
        super().__init__("OneStep", model)
        self.eps = eps
        self.supported_mode = ["default", "targeted"]

    def forward(self, images: Tensor, labels: Tensor | None = None, *args: Any, **kwargs: Any) -> Tensor:
        goal = self.get_target_label(images, labels) if self.targeted else labels
        leaf = images.clone().requires_grad_()
        sign = -1 if self.targeted else 1
        (slope,) = torch.autograd.grad(sign * functional.cross_entropy(self.get_logits(leaf), goal), leaf)
        return (images + self.eps * slope.sign()).clamp(0, 1)


def test_users_own_attack() -> None:
    model, (x, y) = net().train(), images(12)
    atk, fgsm = OneStep(model, EPS), make("FGSM", model)
    torch.testing.assert_close(atk(x, y), fgsm(x, y), rtol=0, atol=1e-6)
    assert model.training
    for attack in (atk, fgsm):
        attack.set_mode_targeted_least_likely(quiet=True)
    torch.testing.assert_close(atk(x, y), fgsm(x, y), rtol=0, atol=1e-6)
    with pytest.raises(NotImplementedError, match="expected a subclass that defines forward"):
        torchattacks.Attack("Nothing", model)(x, y)


def test_multiattack() -> None:
    model, (x, y) = net(), images(24)
    weak, strong = make("FGSM", model, eps=1 / 255), make("PGD", model, steps=8)
    first, second = weak(x, y), make("PGD", model, steps=8)(x, y)
    adv = torchattacks.MultiAttack([weak, strong, OneStep(model, 0.0)])(x, y)
    wrong_first, wrong = (model(z).argmax(1) != y for z in (first, adv))
    assert 0 < int(wrong_first.sum()) < int(wrong.sum()) < 24
    assert torch.equal(adv[wrong_first], first[wrong_first])
    assert int(wrong.sum()) >= int((model(second).argmax(1) != y).sum()) - 1
    assert torch.equal(adv[~wrong], x[~wrong])


def test_multiattack_applies_settings_to_its_attacks(capsys: pytest.CaptureFixture[str]) -> None:
    model = net(batch_norm=True)
    x, y = images(12, model)
    expected = torchattacks.MultiAttack([make("FGSM", model), make("BIM", model)])(x, y)
    moved = shifted(model)
    parts = [make("FGSM", moved), make("BIM", moved)]
    atk = torchattacks.MultiAttack(parts, verbose=True)
    atk.set_normalization_used(MEAN, STD)
    torch.testing.assert_close(restore(atk(normalize(x), y)), expected, rtol=0, atol=1e-6)
    assert "Attack success rate: " in capsys.readouterr().out
    again = torchattacks.MultiAttack(parts)
    torch.testing.assert_close(restore(again(normalize(x), y)), expected, rtol=0, atol=1e-6)
    atk.set_model_training_mode(True, True)
    atk(normalize(x), y)
    other = net()
    atk.set_model(other)
    atk.set_device("cpu")
    assert all(attack.model is other and attack.device.type == "cpu" for attack in parts)
    nested = torchattacks.MultiAttack([torchattacks.MultiAttack(parts), make("PGD", other)])
    nested.set_normalization_used(MEAN, STD)
    assert nested(normalize(x), y).shape == x.shape
    with pytest.raises(InputError, match="mode: expected default"):
        atk.set_mode_targeted_random()
    with pytest.raises(InputError, match="labels: expected"):
        atk(x)
    with pytest.raises(InputError, match="attacks: expected at least two, got 1"):
        torchattacks.MultiAttack(parts[:1])
    with pytest.raises(InputError, match="attacks: expected attacks on one model, got 2 models"):
        torchattacks.MultiAttack([*parts, make("FGSM", model)])
    with pytest.raises(InputTypeError, match="attacks: expected attacks of this module, got function"):
        torchattacks.MultiAttack([*parts, lambda x, y: x])  # type: ignore[list-item]  # a wrong type


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("TIFGSM", {"kernel_name": "box"}, "kernel_name: expected gaussian, linear or uniform"),
    ("PGDRS", {"noise_type": "laplace"}, "noise_type: expected"),
    ("UPGD", {"loss": lambda x, y, z: x}, "loss: expected one of ce"),
    ("PGD", {"seed": -1}, "seed: expected 0 to"),
    *((name, {"norm": "linf"}, "norm: expected one of Linf, L2, L1, got 'linf'") for name in JUDGED),
]


def test_bad_calls() -> None:
    x, y = images(4)
    for name, options, message in BAD:
        with pytest.raises(InputError, match=message):
            make(name, net(), **options)(x, y)
    with pytest.raises(InputError, match=r"images: expected \[N, C, H, W\] for DIFGSM, got shape \(4, 72\)"):
        make("DIFGSM", nn.Linear(72, CLASSES))(x.flatten(1), y)
    atk = make("PGD", net())
    with pytest.raises(InputTypeError, match="images: expected a tensor, an array or a list, got str"):
        atk("x", y)
    with pytest.raises(InputTypeError, match="labels: expected a tensor, an array or a list, got str"):
        atk(x, "y")
    atk.set_mode_targeted_least_likely(CLASSES, quiet=True)
    with pytest.raises(InputError, match="kth_min: expected at most 4, the other classes, got 5"):
        atk(x, y)
