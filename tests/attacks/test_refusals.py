"""Refusals of attacks: values out of the range of a setting, arguments of constructors and calls, and models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.attack_models import images, small_net
from torch import Tensor, nn

from pyrobust import BPDA
from pyrobust.attacks import (
    APGD,
    EOT,
    FAB,
    PGD,
    AdaptedAttack,
    AdversarialAttack,
    AdversarialPatch,
    AutoAttack,
    DeepFool,
    HopSkipJump,
    MinimumNormEnsemble,
    TransferAttack,
    UniversalPerturbation,
    minimum_norm,
)
from pyrobust.attacks.catalogue import CATALOGUE
from pyrobust.attacks.engine.settings import settings_of
from pyrobust.attacks.losses import named_loss
from pyrobust.attacks.minimum.sampling import Sampling
from pyrobust.errors import InputError, InputTypeError, ModelError

X, Y = torch.full((2, 3), 0.5), torch.tensor([0, 1])
NET = nn.Linear(3, 3)
IMAGES, LABELS = images(4)

Wrong = tuple[tuple[Any, type[Exception], str], ...]
COUNT: Wrong = (
    (0, InputError, "at least 1, got 0"),
    (2.0, InputTypeError, "an integer, got 2.0"),
    (True, InputTypeError, "an integer, got True"),
)
POSITIVE: Wrong = ((0.0, InputError, "a finite number above 0, got 0.0"), ("x", InputTypeError, "a number"))
NON_NEGATIVE: Wrong = ((-0.1, InputError, "a finite number of at least 0"), (torch.nan, InputError, "a finite number"))
SHARE: Wrong = ((1.5, InputError, r"a number in \[0, 1\], got 1.5"), (-0.1, InputError, r"a number in \[0, 1\]"))
PROBABILITY: Wrong = ((1.0, InputError, r"a number in \(0, 1\), got 1.0"), (0, InputError, r"a number in \(0, 1\)"))
FLAG: Wrong = ((1, InputTypeError, "True or False, got 1"), ("yes", InputTypeError, "True or False, got 'yes'"))
LOSS: Wrong = (("mse", InputError, "one of"), (None, InputError, "one of"))
#: Setting, of one class where its name says so → what is refused.
REFUSED: dict[str, Wrong] = {
    **dict.fromkeys(("steps", "restarts", "targets", "searches", "rounds", "candidates", "n_queries"), COUNT),
    **dict.fromkeys(("samples", "max_samples", "scales"), COUNT),
    **dict.fromkeys(("step_size", "constant", "learning_rate", "sigma", "threshold_step"), POSITIVE),
    **dict.fromkeys(("start_length", "neighborhood", "delta", "HopSkipJump.gamma"), POSITIVE),
    **dict.fromkeys(("momentum", "overshoot", "confidence", "EAD.beta"), NON_NEGATIVE),
    **dict.fromkeys(("alpha_max", "beta", "threshold", "diversity"), SHARE),
    **dict.fromkeys(("gamma", "rho", "resize"), PROBABILITY),
    **dict.fromkeys(("abort_early", "nearest", "nesterov"), FLAG),
    **dict.fromkeys(("random_start", "multi_epsilon", "rescale_schedule"), ()),  # any truth value
    "loss": LOSS,
    "APGD.loss": (("margin", InputError, "one of ce, dlr, dlr-targeted, got 'margin'"),),
    "PGD.loss": (("dlr-targeted", InputError, "one of ce, margin, dlr, got 'dlr-targeted'"), *LOSS),
    "p_init": ((0.0, InputError, ""), (1.5, InputError, "")),
    "eta": ((0.9, InputError, "a number of at least 1, got 0.9"),),
    "kernel": ((4, InputError, "an odd number, got 4"), (2.5, InputTypeError, "an integer")),
    "neighbors": ((-1, InputError, "at least 0, got -1"),),
    "seed": ((-1, InputError, r"0 to 2\*\*64 - 1, got -1"), (0.5, InputTypeError, "an integer, got 0.5")),
    "callback": ((3, InputTypeError, "a callable, got int"),),
    "progress": (),
    "version": (),
    "attacks": (),
    "surrogate": (
        (3, InputTypeError, "a sequence of models, got 3"),
        ([3], InputTypeError, "a torch.nn.Module or a callable, got int"),
        ([], InputError, "at least one model, got none"),
    ),
    "starts": (
        ([1], InputTypeError, "a float tensor, got torch.int64"),
        (torch.zeros(0, 3), InputError, r"images \[M, ...\], at least one, got shape"),
        (torch.full((1, 3), 2.0), InputError, "values in the clip range"),
        (torch.full((1, 3), torch.nan), InputError, "finite values"),
    ),
}
ATTACKS = sorted({entry.attack for entry in CATALOGUE.values()} | {TransferAttack}, key=lambda attack: attack.__name__)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_every_setting_refuses_values_out_of_its_range_at_once_and_late(attack: type[AdversarialAttack]) -> None:
    needed = {"surrogate": NET} if attack is TransferAttack else {}
    late = attack(NET, 0.1, attack.norms[0], **needed)
    for name, declared in settings_of(attack).items():
        for value, error, message in REFUSED.get(f"{attack.__name__}.{name}", REFUSED[name]) if declared.init else ():
            with pytest.raises(error, match=rf"^{name}: expected {message}"):
                attack(NET, 0.1, attack.norms[0], **(needed | {name: value}))
            if attack is not AutoAttack:  # whose attacks have the settings
                before = getattr(late, name)
                with pytest.raises(error, match=rf"^{name}: expected {message}"):
                    setattr(late, name, value)
                assert getattr(late, name) is before


class Still(AdversarialAttack):
    """Returns x."""

    def generate(self, x: Tensor, y: Tensor, targeted: bool = False, target_labels: Tensor | None = None) -> Tensor:
        return x


def far(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return x + 9


def universal(**options: Any) -> UniversalPerturbation:
    return UniversalPerturbation(small_net(), **options)


def patch(**options: Any) -> AdversarialPatch:
    return AdversarialPatch(small_net(), **{"size": 3, **options})


def adapted(attack: Any, **options: Any) -> AdaptedAttack:
    return AdaptedAttack(NET, attack=attack, **options)


def returns(points: Any) -> Tensor:
    attack = AdaptedAttack(lambda x: x[:, :2] * torch.tensor([1.0, 0.0]), attack=lambda model, x, y: points)
    return attack(X, Y * 0)


CONSTRUCTION: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: Still(NET, norm="l3"), InputError, "norm: expected one of linf, l2, l1, l0, got 'l3'"),
    (lambda: DeepFool(NET, norm="l1"), InputError, "norm: expected one of linf, l2, got 'l1'"),
    (lambda: Sampling(NET, norm="l0"), InputError, "norm: expected one of linf, l2, l1, got 'l0'"),
    (lambda: universal(norm="l0"), InputError, "norm: expected"),
    (lambda: Still(NET, -0.1), InputError, "epsilon: expected a finite number of at least 0, got -0.1"),
    (lambda: Still(NET, "0.1"), InputTypeError, r"epsilon: expected a number or a tensor \[N\] of numbers, got '0.1'"),
    (lambda: Still(NET, torch.tensor([0.1, -1])), InputError, "epsilon: expected finite numbers of at least 0"),
    (lambda: Still(NET, torch.ones(2, 1), "l2"), InputError, "epsilon: expected numbers in l2"),
    (lambda: universal(epsilon="x"), InputTypeError, "epsilon: expected a number"),
    (lambda: adapted(far, epsilon=torch.ones(3)), InputError, "epsilon: expected a number, got a tensor of 3"),
    (lambda: Still(NET, clip_min=1, clip_max=1), InputError, "clip_max: expected a number above clip_min, 1.0"),
    (lambda: Still(NET, clip_min=-torch.inf), InputError, "clip_min: expected a finite number"),
    (lambda: Still(NET, clip_max=None), InputTypeError, "clip_max: expected a number, got None"),
    (lambda: Still(NET, clip=(1, 0)), InputError, r"clip: expected two finite numbers, low < high, got \(1, 0\)"),
    (lambda: Still(NET, clip="01"), InputTypeError, "clip: expected two finite numbers, low < high, got '01'"),
    (lambda: Still(NET, device="tpu"), InputError, "device: expected cpu or cuda"),
    (lambda: Still(NET, device="cuda:256"), InputError, "device: expected cpu or cuda, got 'cuda:256'"),
    (lambda: Still(3), InputTypeError, "model: expected a torch.nn.Module or a callable, got int"),
    (lambda: EOT(3, samples=1), InputTypeError, "model: expected a torch.nn.Module or a callable, got int"),
    (lambda: EOT(NET, samples=0), InputError, "samples: expected at least 1"),
    (lambda: EOT(NET, samples=1, transform=3), InputTypeError, "transform: expected a callable, got int"),
    (lambda: PGD(NET, batch_size=0), InputError, "batch_size: expected at least 1"),
    (lambda: PGD(NET, restarts=2, random_start=False), InputError, "restarts: expected 1 with random_start=False"),
    (lambda: APGD(NET, multi_epsilon=True), InputError, "multi_epsilon: expected norm=\"l1\", got 'linf'"),
    *((lambda e=e: PGD(NET, e), InputError, "epsilon: expected") for e in ("8/0", "a/b", "-1/255", "nan/1")),
    *(
        (lambda grid=grid: PGD(NET, grid=grid, clip=(0.1, 0.9)), InputError, "grid: expected")
        for grid in ("1/0", "-1/255", "byte", "1e-3", torch.nan, 0.0, "1/3000000", 2.5)
    ),
    *((lambda g=g: PGD(NET, grid=g), InputTypeError, "grid: expected") for g in ([1, 255], True, b"1/255")),
    (lambda: Sampling(NET, points=0), InputError, "points: expected"),
    (lambda: AutoAttack(NET, version="fast"), InputError, "version: expected one of standard, plus, rand"),
    (lambda: AutoAttack(NET, attacks_to_run=["fab", "fab"]), InputError, "attacks_to_run: expected"),
    (lambda: AutoAttack(NET, version="custom", attacks_to_run=[]), InputError, "attacks_to_run: .* attacks, got none"),
    (lambda: AutoAttack(NET, version="custom"), InputError, 'attacks_to_run: .* with version="custom", got No'),
    (lambda: AutoAttack(NET, certify_first="yes"), InputTypeError, "certify_first: expected"),
    (lambda: MinimumNormEnsemble(NET, attacks=[]), InputError, "attacks: expected one or more distinct"),
    (lambda: MinimumNormEnsemble(NET, attacks=["ddn"]), InputError, "attacks: .* know linf, .*fmn, .*; got 'ddn'"),
    (lambda: MinimumNormEnsemble(NET, attacks=["pgd"]), InputError, "attacks: expected"),
    (lambda: adapted(3), InputTypeError, "attack: expected an attack of foolbox, torchattacks or ART, or .* got int"),
    (lambda: adapted(PGD), InputTypeError, "attack: .*; make an instance of the class"),
    (lambda: adapted(NET), InputTypeError, "attack: expected an attack of foolbox, .* got Linear"),
    (lambda: adapted(PGD(NET)), InputTypeError, "attack: expected an attack of another library, got PGD; use it as"),
    (lambda: adapted(far, seed=-1), InputError, "seed: expected 0 to"),
    (lambda: universal(seed=-1), InputError, "seed: expected 0 to"),
    (lambda: universal(epochs=0), InputError, "epochs: expected at least 1"),
    (lambda: universal(step_size=0), InputError, "step_size: expected"),
    (lambda: universal(beta=torch.nan), InputError, "beta: expected a finite number"),
    (lambda: patch(size=0), InputError, "size: expected at least 1"),
    (lambda: patch(size=(1, 2, 3)), InputError, r"size: expected two integers, got \(1, 2, 3\)"),
    (lambda: patch(size=True), InputTypeError, "size: expected an integer"),
    (lambda: patch(target=-1), InputError, "target: expected"),
    (lambda: patch(mask=torch.ones(3, 3)), InputTypeError, "mask: expected a bool tensor"),
    (lambda: patch(mask=torch.zeros(3, 3) > 0), InputError, r"mask: expected shape \(3, 3\) with a True"),
    (lambda: patch(position=(0, -1)), InputError, "position: expected at least 0"),
    (lambda: patch(step_size=0), InputError, "step_size: expected"),
    (lambda: universal(loss="hinge"), InputError, "loss: expected one of ce, margin, dlr, got 'hinge'"),
    (lambda: patch(loss=None), InputError, "loss: expected one of ce, margin, dlr, got None"),
]


def evaluate(**changed: Any) -> dict[str, float]:
    return Still(NET).evaluate(**{"x": X, "y": Y, "x_adv": X, **changed})


def generate(**changed: Any) -> Tensor:
    return PGD(NET).generate(**{"x": X, "y": Y, **changed})


def fit(x: Tensor = IMAGES, y: Tensor = LABELS, **options: Any) -> Any:
    return UniversalPerturbation(small_net(), 0.1, epochs=1, **options).fit(x, y)


def fit_patch(x: Tensor = IMAGES, size: int = 3, **options: Any) -> Any:
    return AdversarialPatch(small_net(), size, epochs=1, **options).fit(x, LABELS)


def transfer(surrogate: Any, **options: Any) -> Tensor:
    flat, y = torch.full((2, 36), 0.5), torch.tensor([4, 0])

    def model(x: Tensor) -> Tensor:
        return nn.functional.one_hot(y[: len(x)], 5).float()

    return TransferAttack(model, surrogate=surrogate or model, **options)(flat, y)


def loss_of(classes: int, name: str, *, targeted: bool = False) -> object:
    return named_loss(X[:1, :classes], Y[:1], Y[:1], name=name, targeted=targeted)


def within(box: list[float], **options: Any) -> object:
    return minimum_norm(nn.Linear(4, 4), torch.zeros(1, 4), [0], box=box, **options)


RIGHT = NET(X).argmax(1)
OTHER = {"targeted": True, "target_labels": (RIGHT + 1) % 3}
DLR, DLR_TARGETED = PGD(NET, loss="dlr"), APGD(NET, loss="dlr-targeted")
START = HopSkipJump(small_net(), starts=torch.zeros(1, 1, 5, 5))
WEIGHT = torch.ones(2, requires_grad=True)  # a gradient, but not with respect to the input
NO_GRADIENT = "model: expected logits differentiable with respect to the input"
CALLS: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: evaluate(x="x"), InputTypeError, "x: expected a tensor, an array or a list, got str"),
    (lambda: evaluate(x=(X * 255).byte()), InputTypeError, "x: expected a float tensor, got torch.uint8; for 8-bit"),
    (lambda: evaluate(x=X[:, :0]), InputError, r"x: expected a batch \[N, ...\] of non-empty examples"),
    (lambda: evaluate(x=X[:0], y=Y[:0], x_adv=X[:0]), InputError, "x: expected at least one example, got none"),
    (lambda: evaluate(x=X * torch.nan), InputError, "x: expected finite values"),
    (lambda: evaluate(y=Y.float()), InputTypeError, "y: expected integer labels, got torch.float32"),
    (lambda: evaluate(y=-Y), InputError, "y: expected labels of at least 0, got -1"),
    (lambda: evaluate(y=Y + 2), InputError, "y: expected labels 0 to 2, the model's classes, got 3"),
    (lambda: evaluate(x_adv=X[:1]), InputError, r"x_adv: expected x's shape \(2, 3\), got \(1, 3\)"),
    (lambda: evaluate(x_adv=X * torch.inf), InputError, "x_adv: expected finite values"),
    (lambda: evaluate(x_adv=None), InputTypeError, "x_adv: expected a tensor, an array or a list, got NoneType"),
    (lambda: Still(NET).project(X[:, :2], X), InputError, "delta: expected x's shape"),
    (lambda: Still(NET).project(X * torch.nan, X), InputError, "delta: expected finite values"),
    (lambda: Still(NET).project(X, X * torch.inf), InputError, "x: expected finite values"),
    (lambda: Still(NET, torch.ones(3)).project(X, X), InputError, "epsilon: expected one radius for each of the 2"),
    (lambda: generate(x=X - 1), InputError, r"x: expected values in the clip range \[0.0, 1.0\], got -0.5"),
    (lambda: generate(x=X * torch.nan), InputError, "x: expected finite values"),
    (lambda: PGD(NET, grid="1/255")(X.half(), Y), InputTypeError, "x: expected float32 or float64 for values"),
    (lambda: PGD(NET, grid="auto")(X / 3, Y), InputError, "grid: expected x on one of the grids"),
    (lambda: generate(y=Y[:1]), InputError, r"y: expected shape \(2,\)"),
    (lambda: generate(y=Y + 2), InputError, "y: expected labels 0 to 2, the model's classes, got 3"),
    (lambda: generate(targeted=True), InputError, "target_labels: expected one .* with targeted=True, got None"),
    (lambda: FAB(NET).minimum(X, Y, targeted=True), InputError, "target_labels: expected one"),
    (lambda: AutoAttack(NET)(X, Y, True), InputError, "target_labels: expected one"),
    (lambda: generate(targeted=True, target_labels=Y + 2), InputError, "target_labels: expected labels 0 to 2"),
    (lambda: generate(target_labels=Y), InputError, "target_labels: expected None without targeted=True, got"),
    (lambda: generate(epsilon=torch.ones(3)), InputError, r"epsilon: .* for each of the 2 examples \(radii of el"),
    (lambda: generate(indices=[0]), InputError, "indices: expected one for each of the 2 examples, got 1"),
    (lambda: generate(indices=[0, 2**32]), InputError, r"indices: expected 0 to 2\*\*32 - 1"),
    (lambda: generate(indices=[0.0, 1.0]), InputTypeError, "indices: expected a sequence of integers"),
    (lambda: FAB(NET).minimum(X, Y, margin=0.1), InputTypeError, r"margin: expected True or False, got 0\.1"),
    (lambda: DLR_TARGETED(X, RIGHT), InputError, "loss: expected at least 4 classes for dlr-targeted"),
    (lambda: DLR_TARGETED(X, RIGHT, **OTHER), InputError, 'loss: expected "ce" or "dlr" with targeted'),
    (lambda: DLR(X, RIGHT, **OTHER), InputError, "loss: expected at least 4 classes for targeted dlr"),
    (lambda: PGD(lambda x: torch.tensor([[1.0, 0.0]]).repeat(len(x), 1))(X, Y * 0), ModelError, NO_GRADIENT),
    (lambda: PGD(lambda x: (x[:, :2] > 0.6).float() * WEIGHT)(X, Y * 0), ModelError, NO_GRADIENT),
    (lambda: Still(lambda x: "yes").evaluate(X, Y, X), ModelError, "model: expected "),
    (lambda: Still(lambda x: x.sum()).evaluate(X, Y, X), ModelError, "model: expected "),
    (lambda: Still(nn.Flatten(0)).evaluate(X, Y, X), ModelError, "model: expected "),
    (lambda: BPDA(3), InputTypeError, "module: expected a torch.nn.Module or a callable, got int"),
    (lambda: BPDA(NET, "x"), InputTypeError, "backward: expected a torch.nn.Module, a callable or None, got str"),
    (lambda: BPDA(Tensor.long)(X), ModelError, "BPDA: module: expected a float tensor, got torch.int64"),
    (lambda: BPDA(lambda x: (x, x))(X), ModelError, "BPDA: module: expected a float tensor, got tuple"),
    (lambda: BPDA(NET, lambda x: None)(X), ModelError, "BPDA: backward: expected a float tensor, got NoneType"),
    (lambda: returns(None), InputTypeError, "attack: expected <lambda> to return a float tensor, got None"),
    (lambda: returns(Y.expand(3, 2).T), InputTypeError, "attack: expected <lambda> to return a float tensor"),
    (lambda: returns(X[:1]), InputError, r"attack: expected <lambda> to return shape \(2, 3\), got \(1, 3\)"),
    (lambda: START(IMAGES, LABELS), InputError, r"starts: expected shape \(M, 1, 6, 6\), as x"),
    (lambda: loss_of(2, "dlr"), InputError, "loss: expected at least 3 classes"),
    (lambda: loss_of(3, "dlr", targeted=True), InputError, "loss: expected at least 4 classes"),
    (lambda: loss_of(1, "margin"), InputError, "loss: expected at least 2 classes"),
    (lambda: transfer(nn.Linear(36, 5), kernel=3), InputError, r"x: expected images \[N, C, H, W\] for diversity"),
    (lambda: transfer(nn.Linear(36, 3)), InputError, "surrogate: expected the model's classes, up to 4, got 3 classes"),
    (lambda: transfer([nn.Linear(36, 5), nn.Linear(36, 6)]), ModelError, "surrogate: expected logits of one"),
    (lambda: transfer(None), ModelError, "model: expected logits differentiable"),
    (lambda: minimum_norm(NET, X * 4, Y), InputError, "x: expected values in"),
    (lambda: DeepFool(lambda x: x[:, :1]).minimum(X, Y * 0), ModelError, ".*2 classes"),
    (lambda: within([1.0] * 4, norm="l2"), InputError, "box: expected none in norms other than linf"),
    (lambda: within([1.0] * 4, grid="1/255"), InputError, "box: expected none with a grid"),
    (lambda: within([1.0] * 3), InputError, r"box: expected radii that broadcast to the shape \(4,\)"),
    (lambda: within([-1.0] * 4), InputError, "box: expected radii of features"),
    (lambda: fit(IMAGES * torch.nan), InputError, "x: expected finite values in the clip range"),
    (lambda: fit(IMAGES[:0], LABELS[:0]), InputError, r"x: expected images \[N, ...\], at least one"),
    (lambda: fit(y=LABELS[:2]), InputError, r"y: expected shape \(4,\)"),
    (lambda: fit(y=LABELS + 5), InputError, "y: expected labels 0 to 4, the model's classes"),
    (lambda: UniversalPerturbation(Tensor.detach).fit(X, Y), ModelError, "model: expected logits differentiable"),
    (lambda: fit().apply(IMAGES[..., :5, :5]), InputError, r"x: expected shape \(N, 1, 6, 6\)"),
    (lambda: fit_patch(size=7), InputError, r"x: expected images \[N, C, H, W\] of at least 7 x 7 pixels"),
    (lambda: fit_patch(IMAGES.flatten(1)), InputError, r"x: expected images \[N, C, H, W\], got shape"),
    (lambda: fit_patch(position=(4, 0)), InputError, r"position: expected at most \(3, 3\) for these"),
    (lambda: fit_patch(target=7), InputError, "y or target: expected labels 0 to 4"),
    (lambda: fit_patch().apply(IMAGES, torch.tensor([4, 0])), InputError, "positions: expected rows from 0 to 3"),
    (lambda: fit_patch().apply(IMAGES, torch.zeros(2)), InputTypeError, "positions: expected a tensor of integers"),
    (lambda: fit_patch().apply(IMAGES[:, :0], torch.tensor([0, 0])), InputError, r"x: expected images \(N, 1, H >= 3"),
]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [*CONSTRUCTION, *CALLS],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_refusals(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        call()
