"""The lines that AutoAttack prints and logs, as the reference implementation does.

The expected lines are those of the reference on the same models, images and settings, as the programs that read its
logs see them: with any number of seconds, and each flag up to its advice.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pyrobust.compat.autoattack import AutoAttack

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
            given = x.detach().clone().requires_grad_()
            torch.autograd.grad(super().forward(given).sum(), given)
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
    made = adversary(Bright(), log, ("apgd-ce", "fab"))
    made.run_standard_evaluation_individual(*images(), bs=4)
    expected = [
        "robust accuracy by APGD-CE \t 42.86% \t (time attack: T s)",
        "robust accuracy by FAB \t \t 42.86% \t (time attack: T s)",
    ]
    assert seen(log.read_text()) == expected
    assert seen(capsys.readouterr().out) == ["using custom version including apgd-ce, fab", *expected]
    made.clean_accuracy(*images())
    assert capsys.readouterr().out == "clean accuracy: 85.71%\n"
    assert seen(log.read_text()) == expected


def test_resumed_evaluation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = tmp_path / "state.json"
    whole = adversary(Bright(), None, ("apgd-ce", "square"))
    whole.run_standard_evaluation(*images(), state_path=state)
    lines = seen(capsys.readouterr().out)
    assert lines[:3] == [
        f"Created state in {state}",
        "using custom version including apgd-ce, square.",
        "initial accuracy: 85.71%",
    ]
    # As if it had been killed during the second attack.
    state.write_text(json.dumps(json.loads(state.read_text()) | {"done": ["apgd-ce"]}))
    adversary(Bright(), None, ("apgd-ce", "square")).run_standard_evaluation(*images(), state_path=state)
    assert seen(capsys.readouterr().out) == [
        f"Restored state from {state}",
        "Only the adversarial examples of this run are returned, not those found before.",
        "using custom version including square.",
        "apgd-ce was/were already run.",
        "initial clean accuracy: 85.71%",
        "robust accuracy at the time of restoring the state: 42.86%",
        "square - 1/1 - 0 out of 3 successfully perturbed",
        "robust accuracy after SQUARE: 42.86% (total time T s)",
        "max Linf perturbation: 0.00000, nan in tensor: 0, max: 0.90000, min: 0.10000",
        "robust accuracy: 42.86%",
    ]


def test_plus_in_l1_is_questioned(capsys: pytest.CaptureFixture[str]) -> None:
    AutoAttack(Bright(), norm="L1", version="plus", device="cpu")
    assert capsys.readouterr().out.splitlines() == [
        "setting parameters for plus version",
        '"plus" version is used with L1 norm: please check',
    ]
