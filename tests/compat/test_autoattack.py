"""Scripts for the reference implementation of AutoAttack run with only the import changed, and print its lines."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from support import torchattacks_nets as nets
from torch import Tensor, nn

from pyrobust.compat.autoattack import AutoAttack
from pyrobust.errors import FileFormatError, InputError

EPS = 0.05


class Bright(nn.Module):
    """Logits (0, m, -m, -2) of the mean brightness m - 0.5: class 1 where the image is bright, class 2 where dark."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean((1, 2, 3)) - 0.5
        return torch.stack([torch.zeros_like(mean), mean, -mean, torch.full_like(mean, -2.0)], 1)


class Quantized(Bright):
    """Gradients of zero everywhere; no image within EPS of an eighth is moved."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward((x * 8).round() / 8)


class Softmax(Bright):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).softmax(1)


class Adapting(Bright):
    """Computes the gradient of its input, as a defense that optimizes at inference."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = x.detach().clone().requires_grad_()
            torch.autograd.grad(super().forward(leaf).sum(), leaf)
        return super().forward(x)


def images(*, eighths: bool = False) -> tuple[Tensor, Tensor]:
    """Seven images: one misclassified, three within reach of EPS, three out of reach."""
    mean = torch.tensor([0.3, 0.54, 0.9, 0.1, 0.46, 0.8, 0.53])
    if eighths:
        mean = torch.tensor([2, 5, 7, 1, 3, 6, 5]) / 8
    y = torch.tensor([1, 1, 1, 2, 2, 1, 1])
    return mean.view(7, 1, 1, 1).expand(7, 1, 4, 4).contiguous(), y


def adversary(
    model: nn.Module, path: Path | None = None, attacks: tuple[str, ...] = (), **options: object
) -> AutoAttack:
    version = {"version": "custom", "attacks_to_run": list(attacks)} if attacks else {}
    made = AutoAttack(model, eps=EPS, seed=0, device="cpu", log_path=path, **version, **options)
    for settings in (made.apgd, made.apgd_targeted, made.fab):
        settings.n_iter = 5
    made.apgd_targeted.n_target_classes = made.fab.n_target_classes = 3
    made.square.n_queries = 5
    return made


def seen(lines: str) -> list[str]:
    """Lines as a program reads them: any number of seconds is T, and a flag ends with its first sentence."""
    lines = re.sub(r"\d+\.\d s\)", "T s)", lines)
    return re.sub(r"(?m)^(Warning: .*?[!%.]) .*", r"\1", lines).splitlines()


# --- lines: those of the reference on the same models, images and settings, up to its seconds and advice


STANDARD = """\
using standard version including apgd-ce, apgd-t, fab-t, square.
initial accuracy: 85.71%
apgd-ce - 1/2 - 2 out of 4 successfully perturbed
apgd-ce - 2/2 - 1 out of 2 successfully perturbed
robust accuracy after APGD-CE: 42.86% (total time T s)
apgd-t - 1/1 - 0 out of 3 successfully perturbed
robust accuracy after APGD-T: 42.86% (total time T s)
fab-t - 1/1 - 0 out of 3 successfully perturbed
robust accuracy after FAB-T: 42.86% (total time T s)
square - 1/1 - 0 out of 3 successfully perturbed
robust accuracy after SQUARE: 42.86% (total time T s)
max Linf perturbation: 0.05000, nan in tensor: 0, max: 0.90000, min: 0.10000
robust accuracy: 42.86%
"""


def test_standard_evaluation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.txt"
    adversary(Bright(), log).run_standard_evaluation(*images(), bs=4)
    assert seen(log.read_text()) == STANDARD.splitlines()
    # The reference does not log this line.
    assert seen(capsys.readouterr().out) == ["setting parameters for standard version", *STANDARD.splitlines()]


BROKEN = """\
apgd-ce - 1/2 - 2 out of 4 successfully perturbed
apgd-ce - 2/2 - 1 out of 2 successfully perturbed
robust accuracy after APGD-CE: 42.86% (total time T s)
max Linf perturbation: 0.05000, nan in tensor: 0, max: 0.90000, min: 0.10000
robust accuracy: 42.86%
"""
FLAGS: dict[str, tuple[type[nn.Module], tuple[str, ...], str]] = {
    "zero gradient": (
        Quantized,
        ("apgd-t", "square"),
        """\
using custom version including apgd-t, square.
initial accuracy: 85.71%
Warning: there are 4 points with zero gradient!
Warning: there are 4 points with zero gradient!
Warning: there are 4 points with zero gradient!
apgd-t - 1/2 - 0 out of 4 successfully perturbed
Warning: there are 2 points with zero gradient!
Warning: there are 2 points with zero gradient!
Warning: there are 2 points with zero gradient!
apgd-t - 2/2 - 0 out of 2 successfully perturbed
robust accuracy after APGD-T: 85.71% (total time T s)
square - 1/2 - 0 out of 4 successfully perturbed
square - 2/2 - 0 out of 2 successfully perturbed
robust accuracy after SQUARE: 85.71% (total time T s)
max Linf perturbation: 0.00000, nan in tensor: 0, max: 0.87500, min: 0.12500
robust accuracy: 85.71%
""",
    ),
    "probabilities": (
        Softmax,
        ("apgd-ce",),
        f"""\
using custom version including apgd-ce.
Warning: it seems that the output is a probability distribution, please be sure that the logits are used!
initial accuracy: 85.71%
{BROKEN}""",
    ),
    "gradients at inference": (
        Adapting,
        ("apgd-ce",),
        f"""\
using custom version including apgd-ce.
Warning: it seems to be a dynamic defense!
initial accuracy: 85.71%
{BROKEN}""",
    ),
}


@pytest.mark.parametrize("flag", FLAGS)
def test_flags_are_printed_and_logged(flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, attacks, expected = FLAGS[flag]
    log = tmp_path / "log.txt"
    x, y = images(eighths=model is Quantized)
    adversary(model(), log, attacks).run_standard_evaluation(x, y, bs=4)
    assert seen(capsys.readouterr().out) == seen(log.read_text()) == expected.splitlines()
    adversary(model(), log, attacks, verbose=False).run_standard_evaluation(x, y, bs=4)
    quiet = [line for line in expected.splitlines() if line.startswith("Warning")]
    assert seen(capsys.readouterr().out) == quiet


def test_square_after_gradients_is_flagged(capsys: pytest.CaptureFixture[str]) -> None:
    made = adversary(Bright(), None, ("apgd-ce", "square"))
    made.apgd.eps = 0.0  # each attack has its own, as in the reference
    made.run_standard_evaluation(*images())
    lines = seen(capsys.readouterr().out)
    assert "apgd-ce - 1/1 - 0 out of 6 successfully perturbed" in lines
    assert "Warning: Square Attack has decreased the robust accuracy of 42.86%." in lines


@pytest.mark.parametrize(("classes", "loss"), [(2, "the DLR loss"), (3, "the targeted DLR loss")])
def test_few_classes_are_flagged(classes: int, loss: str, capsys: pytest.CaptureFixture[str]) -> None:
    class Few(Bright):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)[:, [1, 2, 0][:classes]]

    x, y = images()
    adversary(Few(), None, ("apgd-ce", "apgd-t")).run_standard_evaluation(x, y - 1)
    assert f"Warning: with only {classes} classes it is not possible to use {loss}!" in seen(capsys.readouterr().out)


def test_randomized_models_are_flagged_unless_the_version_is_rand(capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)

    class Noisy(Bright):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + 1e-3 * torch.randn(len(x), 4)

    x, y = images()
    line = "Warning: it seems to be a randomized defense!"
    adversary(Noisy(), None, ("apgd-ce",)).run_standard_evaluation(x, y)
    assert seen(capsys.readouterr().out).count(line) == 1
    rand = AutoAttack(Noisy(), eps=EPS, version="rand", device="cpu")
    rand.apgd.n_iter = 1
    rand.run_standard_evaluation(x[:2], y[:2])
    assert line not in seen(capsys.readouterr().out)


def test_each_attack_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.txt"
    x, y = images()
    made = adversary(Bright(), log, ("apgd-ce", "fab"))
    made.apgd.n_restarts = 2
    results = made.run_standard_evaluation_individual(x, y.int(), bs=4, return_labels=True)
    expected = [
        "robust accuracy by APGD-CE \t 42.86% \t (time attack: T s)",
        "robust accuracy by FAB \t \t 42.86% \t (time attack: T s)",
    ]
    assert seen(log.read_text()) == expected
    assert seen(capsys.readouterr().out) == ["using custom version including apgd-ce, fab", *expected]
    assert list(results) == made.attacks_to_run == ["apgd-ce", "fab"]
    for x_adv, y_adv in results.values():
        assert y_adv.dtype == torch.int32
        assert torch.equal(y_adv, Bright()(x_adv).argmax(1).int())
        assert int((y_adv == y).sum()) == 3
    assert made.clean_accuracy(x, y, bs=5) == 6 / 7
    assert capsys.readouterr().out == "clean accuracy: 85.71%\n"
    assert seen(log.read_text()) == expected
    made.verbose = False
    plain = made.run_standard_evaluation_individual(x, y, bs=6)
    for name, (x_adv, _) in results.items():
        torch.testing.assert_close(plain[name], x_adv)
    assert capsys.readouterr().out == ""


def test_a_killed_evaluation_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x, y = images()
    path = tmp_path / "state.json"

    class Killed(Exception):
        pass

    def kill(module: nn.Module, inputs: tuple[Tensor]) -> None:
        if path.exists() and json.loads(path.read_text())["done"] == ["apgd-ce"]:
            raise Killed

    def made() -> AutoAttack:
        made = adversary(Bright(), None, ("apgd-ce", "square"))
        made.apgd.eps = 0.035  # it breaks one of the three images that Square breaks
        return made

    whole = made().run_standard_evaluation(x, y)
    capsys.readouterr()
    killed = made()
    killed.model.register_forward_pre_hook(kill)
    with pytest.raises(Killed):
        killed.run_standard_evaluation(x, y, state_path=path)
    assert seen(capsys.readouterr().out)[:3] == [
        f"Created state in {path}",
        "using custom version including apgd-ce, square.",
        "initial accuracy: 85.71%",
    ]
    resumed = made().run_standard_evaluation(x, y, state_path=path)
    assert seen(capsys.readouterr().out) == [
        f"Restored state from {path}",
        "Only the adversarial examples of this run are returned, not those found before.",
        "using custom version including square.",
        "apgd-ce was/were already run.",
        "initial clean accuracy: 85.71%",
        "robust accuracy at the time of restoring the state: 71.43%",
        "square - 1/1 - 2 out of 5 successfully perturbed",
        "robust accuracy after SQUARE: 42.86% (total time T s)",
        "max Linf perturbation: 0.05000, nan in tensor: 0, max: 0.90000, min: 0.10000",
        "robust accuracy: 42.86%",
    ]
    # The first run's adversarial examples are not returned again; the second run's equal those of an uninterrupted run.
    changed = (resumed != x).flatten(1).any(1)
    assert changed.sum() == 2
    assert torch.equal(resumed[changed], whole[changed])
    state = json.loads(path.read_text())
    assert state["done"] == ["apgd-ce", "square"]
    assert state["robust"] == (Bright()(whole).argmax(1) == y).tolist()
    assert torch.equal(made().run_standard_evaluation(x, y, state_path=path), x)


def test_state_of_another_run_or_broken(tmp_path: Path) -> None:
    x, y = images()
    path = tmp_path / "state.json"

    def run(x: Tensor = x, y: Tensor = y, attacks: tuple[str, ...] = ("square",), **changed: object) -> None:
        made = adversary(Bright(), None, attacks, verbose=False)
        for name, value in changed.items():
            setattr(made, name, value)
        made.run_standard_evaluation(x, y, state_path=path)

    run()
    for changed, message in (
        ({"epsilon": 0.03}, r"eps 0\.03, got 0\.05"),
        ({"attacks": ("apgd-ce",)}, "attacks"),
        ({"x": x[:6], "y": y[:6]}, "examples 6, got 7"),
        ({"x": x / 2}, "state_path: expected a state with data"),
        ({"model": nn.Sequential(nn.Flatten(), nn.Linear(16, 4))}, "state_path: expected a state with model"),
    ):
        with pytest.raises(InputError, match=message):
            run(**changed)
    good = path.read_text()
    content = json.loads(good)
    for broken in (
        "",
        "[" * 9000,
        good[:-3],
        "\xff",
        json.dumps({**content, "version": 1}),
        json.dumps({**content, "version": float(content["version"])}),
        json.dumps({**content, "clean": None}),
        json.dumps({**content, "clean": 1.5}),
        json.dumps({**content, "robust": [1] * 7}),
        json.dumps({**content, "robust": [True] * 6}),
        json.dumps({**content, "done": "square"}),
        json.dumps({**content, "done": ["rm"]}),
        json.dumps({**content, "more": "x" * 100_000}),
    ):
        path.write_text(broken, encoding="latin-1")
        with pytest.raises(FileFormatError, match=r"state\.json"):
            run()


# --- settings


@pytest.mark.parametrize("norm", ["Linf", "L2", "L1"])
def test_versions_match_the_reference(norm: str, capsys: pytest.CaptureFixture[str]) -> None:
    adversary = AutoAttack(Bright(), norm=norm, verbose=False, device="cpu")
    l1 = norm == "L1"
    assert (adversary.apgd.n_restarts, adversary.apgd.use_largereps) == (5 if l1 else 1, l1)
    assert adversary.apgd_targeted.n_target_classes == (5 if l1 else 9)
    assert (adversary.fab.n_restarts, adversary.fab.n_target_classes) == (1, 9)
    adversary.verbose = True
    adversary.set_version("plus")
    questioned = ['"plus" version is used with L1 norm: please check'] if l1 else []
    assert capsys.readouterr().out.splitlines() == ["setting parameters for plus version", *questioned]
    assert (adversary.apgd.n_restarts, adversary.fab.n_restarts, adversary.apgd_targeted.n_restarts) == (5, 5, 1)
    adversary.set_version("rand")
    assert adversary.attacks_to_run == ["apgd-ce", "apgd-dlr"]
    assert (adversary.apgd.n_restarts, adversary.apgd.eot_iter) == (1, 20)


def test_settings_have_the_references_attributes() -> None:
    adversary = AutoAttack(nets.net(), norm="L2", eps=0.5, seed=7, verbose=False)  # on the CPU where there is no GPU
    assert torch.device(adversary.device).type == "cpu"  # where the model is
    for settings in (adversary.apgd, adversary.apgd_targeted, adversary.fab, adversary.square):
        assert (settings.eps, settings.norm, settings.seed) == (0.5, "L2", 7)
    adversary.epsilon = 0.25
    assert adversary.square.eps == adversary.epsilon == 0.25
    adversary.apgd.eps = 0.125
    assert (adversary.apgd.eps, adversary.fab.eps) == (0.125, 0.25)
    with pytest.raises(AttributeError):
        adversary.apgd.n_restart = 2


def test_perturb_uses_its_own_epsilon_and_the_predicted_labels() -> None:
    model, (x, predicted) = nets.net(), nets.images(8)
    made = adversary(model, None, ("apgd-ce",), verbose=False)
    made.epsilon, made.fab.targeted = 0.01, True
    for settings in (made.apgd, made.apgd_targeted, made.fab, made.square):
        settings.eps = 0.02
        x_adv = settings.perturb(x)
        assert torch.equal(x_adv, settings.perturb(x, predicted))
        assert 0.01 < float((x_adv.double() - x.double()).abs().max()) <= 0.02
        assert (model(x_adv).argmax(1) != predicted).any()


def test_single_runs() -> None:
    model, (x, y) = nets.net(), nets.images(8)
    y[0] = (y[0] + 1) % nets.CLASSES
    made = adversary(model, None, ("fab-t",), verbose=False)
    for settings, loss in ((made.apgd, "ce"), (made.apgd, "dlr"), (made.apgd_targeted, "dlr-targeted")):
        settings.loss, settings.eps = loss, 0.01
        x_best, acc, value, x_best_adv = settings.attack_single_run(x, y)
        assert torch.equal(x_best, x_best_adv)
        assert float((x_best.double() - x.double()).abs().max()) <= 0.01
        logits = model(x_best)
        assert torch.equal(acc, logits.argmax(1) == y)
        assert 0 < int(acc.sum()) < 8
        if loss == "ce":
            torch.testing.assert_close(value, nn.functional.cross_entropy(logits, y, reduction="none"))
        else:  # the untargeted DLR loss, negative where the example is right
            assert torch.equal(value <= 0, acc)
    made.epsilon = 0.2
    nearest = made.fab.attack_single_run(x, y, is_targeted=True)
    assert (model(nearest).argmax(1) != y).all()
    assert torch.equal(nearest[0], x[0])  # wrong without an attack
    # An evaluation, which reports no distance, may move a point further beyond the boundary than a search may.
    distance, least = (
        (points - x).abs().flatten(1).amax(1) for points in (made.run_standard_evaluation(x, y), nearest)
    )
    torch.testing.assert_close(distance.median(), least.median(), rtol=1e-3, atol=1e-6)
    assert (distance <= 1.101 * least).all()
    assert float(distance.max()) < 0.1
    assert (model(made.fab.attack_single_run(x, is_targeted=True)).argmax(1) != y).sum() > 4
    with pytest.raises(InputError, match="x_init: expected None"):
        made.apgd.attack_single_run(x, y, x_init=x)
    with pytest.raises(InputError, match="use_rand_start: expected False"):
        made.fab.attack_single_run(x, y, use_rand_start=True)


def test_wrong_arguments() -> None:
    for options, message in (
        ({"is_tf_model": True}, "is_tf_model: expected False"),
        ({"norm": "linf"}, "norm: expected one of Linf, L2, L1"),
        ({"version": "best"}, "version: expected one of"),
        ({"attacks_to_run": ["fab"]}, 'use version="custom"'),
        ({"version": "custom", "attacks_to_run": ["fgsm"]}, "attacks_to_run: expected one of"),
        ({"eps": -1.0}, "epsilon: expected"),
    ):
        with pytest.raises(InputError, match=message):
            AutoAttack(Bright(), **{"device": "cpu", "verbose": False, **options})
    x, y = images()
    with pytest.raises(InputError, match="x: expected values in"):
        adversary(Bright(), None, ("square",), verbose=False).run_standard_evaluation(2 * x, y)
    with pytest.raises(InputError, match="attacks_to_run: expected at least one"):
        AutoAttack(Bright(), version="custom", device="cpu", verbose=False).run_standard_evaluation(x, y)
