"""AutoAttack that leaves out what is proved: the same outcome; proofs of the attack's arithmetic and ball only."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
import torch
from support.attack_models import NORMS, halfspace, random, shortened
from torch import Tensor, nn

from pyrobust.attacks import APGD, EOT, FAB, AutoAttack, Square
from pyrobust.attacks import certified_first as module
from pyrobust.attacks.autoattack import CertifiedFirst
from pyrobust.attacks.autoattack_versions import least_rows
from pyrobust.attacks.certified_first import Proof, Prover, other_arithmetic, proved_robust, radius_of_levels
from pyrobust.attacks.engine.levels import Levels, budgets
from pyrobust.errors import InputError, InputTypeError, ModelError
from pyrobust.runner import Runner
from pyrobust.zoo import load_data, load_model

EPSILON = {"linf": 0.03, "l2": 0.12, "l1": 0.4}
WARNING = "certify_first proves nothing, and every example is attacked: "


class RowWise(nn.Module):
    """A net of elementwise products and sums of rows: no row's rounding depends on the others."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.hidden = nn.Parameter(random(12, 16, seed=4) - 0.5)
        self.output = nn.Parameter(random(classes, 12, seed=5) - 0.5)

    def forward(self, x: Tensor) -> Tensor:
        z = torch.relu((x.flatten(1)[:, None, :] * self.hidden).sum(2))
        return (z[:, None, :] * self.output).sum(2)


def examples(count: int = 48) -> tuple[Tensor, Tensor]:
    """Images that ``RowWise`` classifies correctly, except for every eighth."""
    x = random(count, 1, 4, 4, seed=6)
    y = RowWise()(x).argmax(1)
    y[::8] = (y[::8] + 1) % 5
    return x, y


def quick(model: Any, epsilon: float | Tensor = 0.03, norm: str = "linf", **options: Any) -> AutoAttack:
    """AutoAttack with a few steps per attack."""
    return shortened(AutoAttack(model, epsilon, norm, **options), 5)


def both(
    model: Any, x: Tensor, y: Tensor, *arguments: Any, seen: Any = (([], []), ([], [])), **options: Any
) -> tuple[AutoAttack, AutoAttack, Tensor]:
    """The attacks without and with proofs, after a run each; they must have returned the same bits.

    Their callbacks are seen, and what is robust after each attack.
    """
    calls, stages = seen
    plain, first = (
        quick(
            model,
            *arguments,
            certify_first=bool(i),
            callback=lambda row, success, point, i=i: calls[i].append((row, success, point.sum().item())),
            after_attack=lambda name, robust, x_adv, i=i: stages[i].append((name, robust.tolist())),
            **options,
        )
        for i in range(2)
    )
    x_adv = plain.generate(x, y)
    assert torch.equal(first.generate(x, y), x_adv)
    assert plain.result is not None
    assert first.result is not None
    assert plain.result.certified_first is None
    assert first.result.broken_by == plain.result.broken_by
    assert first.result.accuracy == plain.result.accuracy
    assert [flag.name for flag in first.result.flags] == [flag.name for flag in plain.result.flags]
    return plain, first, x_adv


def proofs(attack: AutoAttack) -> CertifiedFirst:
    """The proofs of the attack's last run."""
    assert attack.result is not None
    assert attack.result.certified_first is not None
    return attack.result.certified_first


@pytest.mark.parametrize(("norm", "batch_size"), [*((norm, None) for norm in NORMS), ("linf", 3)])
def test_the_outcome_is_the_same_bit_by_bit(norm: str, batch_size: int | None) -> None:
    model, (x, y) = RowWise(), examples()
    calls: tuple[list[Any], list[Any]] = [], []
    stages: tuple[list[Any], list[Any]] = [], []
    plain, first, _ = both(model, x, y, EPSILON[norm], norm, batch_size=batch_size, seen=(calls, stages))
    assert sorted(calls[0]) == sorted(calls[1])  # batches of other sizes end in another order
    assert len(calls[0]) == len(x)
    assert stages[0] == stages[1]
    made = proofs(first)
    assert made.reason is None
    assert plain.result is not None
    assert first.result is not None
    broken = [by is not None for by in first.result.broken_by]
    assert 5 < sum(made.proved) < len(x) - 5, "some are proved"
    assert any(by not in (None, "clean") for by in first.result.broken_by), "and some attacked"
    assert not any(proved and by for proved, by in zip(made.proved, broken, strict=True))
    # FAB takes a few more rows where it finds points outside the ball.
    assert made.rows_saved == sum(made.proved) * sum(least_rows(each, 5) for each in first.attacks.values()) > 0
    starts = sum(made.proved) * (2 + 4)  # the starts of apgd-t, whose gradients are checked
    assert plain.result.forwards - first.result.forwards + starts >= made.rows_saved
    told = first.result.to_dict()["certified_first"]
    assert told["guarantee"] == "deterministic, float32 semantics"
    assert set(told) == {"proved", "seconds", "rows_each", "reason", "guarantee"}
    assert first.result.to_pandas()["proved"].tolist() == list(told["proved"]) == list(made.proved)
    assert f"proved='{sum(told['proved'])} of {len(x)}'" in repr(first.result)
    assert "certify_first=True" in repr(first)
    assert "certified_first" not in plain.result.to_dict()
    assert "certify_first" not in repr(plain)


@pytest.mark.parametrize(("norm", "classes"), [("linf", 2), ("l2", 3), ("l1", 5), ("linf", 5)])
def test_rows_of_an_unbroken_example_are_known(norm: str, classes: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, classes)).eval()
    model[1].weight.data *= 1e-3
    model[1].bias.data = torch.arange(classes, 0, -1).float()
    for version in ("standard", "plus"):
        attack = quick(model, 0.01, norm, version=version)
        for each in attack.attacks.values():
            if isinstance(each, APGD) and (each.loss != "ce") and classes < 4:
                continue
            each.generate(random(3, 1, 4, 4), torch.zeros(3, dtype=torch.int64))
            # Without a point that fools, FAB projects none.
            extra = 0 if not isinstance(each, FAB) else each.forwards - 3 * least_rows(each, classes)
            assert 0 <= extra <= 3 * 9 * 5 * 10
            assert each.forwards == 3 * least_rows(each, classes) + extra


def test_all_proved_and_none_robust() -> None:
    model, (x, y) = RowWise(), examples()
    _, first, x_adv = both(model, x, y, 1e-6)
    assert first.result is not None
    assert sum(proofs(first).proved) == sum(by is None for by in first.result.broken_by) > 0
    assert torch.equal(x_adv, x)
    wrong = (y + 1) % 5
    right = model(x).argmax(1) == wrong
    _, first, _ = both(model, x[~right], wrong[~right], 1e-6)
    assert not any(proofs(first).proved)
    assert quick(model, certify_first=True).generate(x[:0], y[:0]).shape == x[:0].shape


def test_radii_of_examples_calls_and_attacks() -> None:
    model, (x, y) = RowWise(), examples()
    radii = torch.linspace(0, 0.3, len(x)).double()
    _, first, _ = both(model, x, y, radii)
    proved = torch.tensor(proofs(first).proved)
    assert proved[:8].sum() > proved[-8:].sum()
    attack = quick(model, 10.0, certify_first=True)
    assert torch.equal(attack.generate(x, y, epsilon=radii), first.generate(x, y))
    assert proofs(attack).proved == proofs(first).proved

    class Own(AutoAttack):
        """Its attacks have radii of their own, of which the largest is proved."""

        def _attack_epsilons(self, attack: Any, examples: int, epsilon: Any) -> Tensor:
            return torch.full((examples,), 0.2 if isinstance(attack, Square) else 0.001).double()

    subclass, wide = Own(model, 0.001, certify_first=True), quick(model, 0.2, certify_first=True)
    for attack in (subclass, wide):
        shortened(attack, 2).generate(x, y)
    assert proofs(subclass).proved == proofs(wide).proved


def test_flags_are_those_of_all_examples() -> None:
    def flat(x: Tensor) -> Tensor:  # without a gradient of any kind where the input is dark
        bright = torch.relu(x.flatten(1).sum(1, keepdim=True) - 0.5)
        return torch.cat([bright + 4, bright * 0.5 + 1, bright * 0.25 + 1, bright * 0.125 + 1], 1)

    model = nn.Module()
    model.forward = flat  # type: ignore[method-assign]  # mypy forbids replacing any method
    _, first, _ = both(model, torch.full((6, 1, 2, 2), 0.05), torch.zeros(6, dtype=torch.int64), 0.01)
    assert first.result is not None
    assert all(proofs(first).proved)
    assert [flag.name for flag in first.result.flags] == ["zero-gradient"]
    first._flags = {}
    first._check_square({"clean": 1.0, "apgd-ce": 0.5, "square": 0.4985})
    assert first._flags == {}, "0.15 % of all examples, however few were attacked"


# -- what a proof covers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("norm", NORMS)
def test_the_proof_covers_the_ball_to_its_edge(norm: str, dtype: torch.dtype) -> None:
    """Of a linear model the distance is known exactly: nothing at or below it is proved, most above it is."""
    weight = torch.tensor([0.5, -0.25, 1.0, 0.75], dtype=dtype)
    model = halfspace(weight, -0.5)
    x = torch.full((1, 4), 0.5, dtype=dtype)
    margin = sum(Fraction(w) * Fraction(v) for w, v in zip(weight.tolist(), x[0].tolist(), strict=True)) - Fraction(
        1, 2
    )
    exact = [Fraction(w) for w in weight.tolist()]
    dual = {"linf": sum(map(abs, exact)), "l1": max(map(abs, exact)), "l2": sum(w * w for w in exact)}[norm]
    distance = margin * margin / dual if norm == "l2" else margin / dual  # squared in l2
    power = 2 if norm == "l2" else 1
    edge = math.sqrt(distance) if norm == "l2" else float(distance)
    while Fraction(edge) ** power < distance:
        edge = math.nextafter(edge, math.inf)
    y = torch.zeros(1, dtype=torch.int64)
    for radius in (edge, math.nextafter(edge, 1)):
        assert not proved_robust(model, x, y, radius, norm).proved.any()
    assert proved_robust(model, x, y, edge * (1 - (1e-4 if dtype == torch.float32 else 1e-9)), norm).proved.all()


def test_the_clip_range_is_the_attacks_own() -> None:
    model = halfspace(torch.tensor([1.0]), -0.5)
    x, y = torch.tensor([[0.75]]), torch.zeros(1, dtype=torch.int64)
    assert proved_robust(model, x, y, 1.0, clip_min=0.625, clip_max=1.0).proved.all()
    assert not proved_robust(model, x, y, 1.0, clip_min=0.375, clip_max=1.0).proved.any()
    attack = quick(model, 1.0, clip=(0.625, 1.0), certify_first=True)
    attack.generate(x, y)
    assert proofs(attack).proved == (True,)
    with pytest.raises(InputError, match=r"^x: expected values in the clip range"):
        proved_robust(model, x, y, 0.1, clip_min=0.0, clip_max=0.5)


@pytest.mark.parametrize("step", [Fraction(1, 255), Fraction(1, 16), Fraction(3, 256)])
@pytest.mark.parametrize("norm", NORMS)
def test_the_ball_on_a_grid_holds_every_level_of_the_attack(norm: str, step: Fraction) -> None:
    levels = Levels(step, 0.0, 1.0)
    floats = levels.values(torch.arange(levels.low, levels.high + 1).double(), torch.zeros(1)).tolist()
    numbers = [Fraction(value) for value in floats]
    for epsilon in (float(step), float(8 * step), 0.1):
        radii = torch.tensor([epsilon], dtype=torch.float64)
        budget, radius = int(budgets(norm, radii, step)), Fraction(float(radius_of_levels(norm, radii, levels, 3)))
        reach = min(budget if norm != "l2" else math.isqrt(budget), len(numbers) - 1)
        farthest = max(abs(b - a) for a, b in zip(numbers, numbers[reach:], strict=False))
        assert farthest <= radius
        if norm == "l2":  # one level in each of as many coordinates as there are
            assert min(budget, 3) * max(abs(b - a) for a, b in pairwise(numbers)) ** 2 <= radius**2
        assert float(radius) < epsilon + 4e-7, "and hardly more"


def test_attacks_on_a_grid() -> None:
    model, (x, y) = RowWise(), examples()
    x = Levels(Fraction(1, 255), 0.0, 1.0).images(x)
    for norm in ("l2", "l1"):
        _, first, _ = both(model, x, y, EPSILON[norm], norm, grid="1/255")
        assert 0 < sum(proofs(first).proved) < len(x)
    both(model, x, y, 8 / 255, grid="auto")


# -- conditions -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def changed(setting: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(setting, name)
    setattr(setting, name, value)
    try:
        yield
    finally:
        setattr(setting, name, before)


@contextlib.contextmanager
def float32_precision(value: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(value)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


SETTINGS: dict[str, tuple[Callable[[], contextlib.AbstractContextManager[Any]], str]] = {
    "matmul precision": (lambda: float32_precision("medium"), "less than float32"),
    "oneDNN bf16": (lambda: changed(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"), "less than float32"),
    "oneDNN off": (lambda: torch.backends.mkldnn.flags(enabled=False), "oneDNN is off"),
    "autocast": (lambda: torch.autocast("cpu", torch.bfloat16), "torch.autocast is on"),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_under_other_settings_everything_is_attacked(setting: str, caplog: pytest.LogCaptureFixture) -> None:
    model, (x, y) = RowWise(), examples(16)
    enter, reason = SETTINGS[setting]
    attack = quick(model, certify_first=True, attacks_to_run=["apgd-ce"])
    with enter(), caplog.at_level(logging.WARNING):
        attack.generate(x, y)
        attack.generate(x, y)
    made = proofs(attack)
    assert not any(made.proved)
    assert made.rows_saved == 0
    assert reason in str(made.reason)
    messages = [record.getMessage() for record in caplog.records if WARNING in record.getMessage()]
    assert messages == [f"{WARNING}{made.reason}"], "once"
    attack.generate(x, y)
    assert any(proofs(attack).proved), "and proofs again without the setting"


def test_arithmetic_of_other_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    def reason() -> str:
        return str(other_arithmetic(runner, torch.float32, "linf"))

    runner = Runner(RowWise())
    assert reason() == "None"
    with float32_precision("high"):
        assert "less than float32" in reason()
    with monkeypatch.context() as context:
        context.setenv("ONEDNN_DEFAULT_FPMATH_MODE", "BF16")
        assert "less than float32" in reason()
    monkeypatch.setattr(Runner, "device", torch.device("cuda"))
    with torch.backends.mkldnn.flags(enabled=False):
        assert reason() == "None"
    for setting in (float32_precision("high"), changed(torch.backends.cuda.matmul, "allow_tf32", True)):
        with setting:
            assert "TF32" in reason()
    for name in ("NVIDIA_TF32_OVERRIDE", "CUBLAS_EMULATE_SINGLE_PRECISION"):
        with monkeypatch.context() as context:
            assert reason() == "None"
            context.setenv(name, "1")
            assert "TF32" in reason()


def reason_of(attack: AutoAttack, x: Tensor, y: Tensor, *arguments: Any) -> str:
    attack.generate(x, y, *arguments)
    assert not any(proofs(attack).proved)
    return str(proofs(attack).reason)


def test_other_models_dtypes_and_targets_are_attacked() -> None:
    model, (x, y) = RowWise(), examples(16)
    assert "targeted" in reason_of(quick(model, certify_first=True), x, y, True, (y + 1) % 5)
    bfloat16 = quick(model, certify_first=True, dtype=torch.bfloat16)
    assert reason_of(bfloat16, x, y) == "the model runs in torch.bfloat16"
    assert (
        reason_of(quick(model, certify_first=True), x.bfloat16(), y)
        == "x is torch.bfloat16, and the model torch.float32"
    )
    assert "average" in reason_of(quick(EOT(model, 2), certify_first=True), x, y)
    assert "apgd-ce attacks another model" in reason_of(quick(model, version="rand", certify_first=True), x, y)
    compiled = RowWise().eval()
    compiled.compile(backend="eager")
    assert "compiled" in str(other_arithmetic(Runner(compiled), torch.float32, "linf"))
    assert "compiled" in str(other_arithmetic(Runner(torch.jit.trace(model, x)), torch.float32, "linf"))
    assert "l0" in str(proved_robust(model, x, y, 2.0, "l0").reason)
    half = proved_robust(nn.Sequential(nn.Flatten(), nn.Linear(16, 5)).bfloat16(), x.bfloat16(), y, 0.1)
    assert (half.proved.any().item(), half.reason) == (False, "the model runs in torch.bfloat16")
    fused = nn.Sequential(nn.Flatten(), nn.Linear(16, 5)).eval()
    assert proved_robust(fused, x, y, 0.0).reason is None


def test_attacks_that_were_changed() -> None:
    for name, value in (("clip_min", -1.0), ("norm", "l2"), ("grid", Fraction(1, 255)), ("model", RowWise())):
        attack = quick(RowWise(), certify_first=True, attacks_to_run=["apgd-ce", "square"])
        setattr(attack.attacks["square"], name, value)
        assert "square attacks another model, ball, clip range, grid or dtype" in reason_of(attack, *examples(8))


def test_models_out_of_reach_are_errors_with_a_way_out() -> None:
    class Branch(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            z = x.flatten(1)[:, :3]
            return z if float(x.sum()) > 0 else -z

    x, y = examples(8)
    with pytest.raises(ModelError, match=r"cannot trace it.*; leave out certify_first to attack every example$"):
        quick(Branch(), certify_first=True).generate(x, torch.zeros_like(y))
    with pytest.raises(InputTypeError, match=r"^model: expected a torch.nn.Module, whose .* leave out certify_first"):
        quick(RowWise().forward, certify_first=True).generate(x, y)


def test_mode_and_gradients_of_the_model_are_kept() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.Dropout()).eval()
    x, _ = examples(4)
    y = model(x).argmax(1)
    model.train()
    proof = proved_robust(model, x, y, 1e-6)
    assert proof.proved.all()
    assert all(module.training for module in model.modules())
    assert model[1].weight.requires_grad
    assert proof.seconds > 0


def test_a_model_that_changes_is_captured_again() -> None:
    model, (x, y) = RowWise(), examples()
    options: dict[str, Any] = {"certify_first": True, "attacks_to_run": ["apgd-ce"]}
    attack, fresh = quick(model, **options), quick(model, **options)

    def captured(x: Tensor, y: Tensor) -> Any:
        attack.generate(x, y)
        return attack._prover._bounded

    captured(x, y)
    before = proofs(attack).proved
    with torch.no_grad():
        model.output *= -1  # every label is wrong now, or nearly so
    worst = model(x).argmax(1)
    first = captured(x, worst)
    fresh.generate(x, worst)
    assert proofs(attack).proved == proofs(fresh).proved != before
    assert captured(x, worst) is first, "without a change, the capture is kept"
    handle = model.register_forward_hook(lambda module, inputs, output: -output)
    assert captured(x, model(x).argmax(1)) is not first, "a hook is a change"
    handle.remove()
    second = captured(x, worst)
    wide = random(4, 2, 2, 4)
    assert captured(wide, model(wide).argmax(1)) is not second, "inputs of another shape are captured, too"


def test_a_prover_that_is_wrong_is_an_error_where_a_start_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_proved(self: Prover, x: Tensor, *arguments: Any) -> Proof:
        return Proof(torch.ones(len(x), dtype=torch.bool), 0.0, None)

    monkeypatch.setattr(Prover, "prove", all_proved)
    model, (x, y) = RowWise(), examples()
    with pytest.raises(ModelError, match=r"^crossing: example \d+ is proved robust .* a random start of apgd-t fools"):
        quick(model, 0.5, certify_first=True).generate(x, y)
    # No attack sees what is proved, so no example can be proved and broken.
    attack = quick(model, 0.5, certify_first=True, attacks_to_run=["apgd-ce", "square"])
    assert torch.equal(attack.generate(x, y), x)
    assert attack.result is not None
    assert set(attack.result.broken_by) == {None, "clean"}


# -- effort -----------------------------------------------------------------------------------------------------------


def test_effort_ends_where_nothing_is_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyrobust.bounds import BoundedModel

    tried: dict[str, int] = {}
    margins = BoundedModel.margins

    def counted(self: BoundedModel, x: Tensor, *arguments: Any, **options: Any) -> Any:
        tried[options["method"]] = tried.get(options["method"], 0) + len(x)
        return margins(self, x, *arguments, **options)

    monkeypatch.setattr(BoundedModel, "margins", counted)
    net, data = load_model("zoo:digits-smooth-0.25"), load_data("digits")
    assert not proved_robust(net, data.x, data.y, 0.15).proved.any()
    assert tried == {"ibp": 2 * len(data.x), "crown-ibp": module._TRIED, "crown": module._TRIED}
    tried.clear()
    again = [proved_robust(net, data.x, data.y, 0.02).proved for _ in range(2)]
    assert torch.equal(*again)
    assert again[0].sum() > module._TRIED
    # Hopeless networks, of which intervals lose everything, are left at once.
    tried.clear()
    monkeypatch.setattr(module, "_HOPELESS", 0.0)
    proved_robust(net, data.x, data.y, 0.15)
    assert (tried["crown-ibp"], tried["crown"]) == (0, 0)
