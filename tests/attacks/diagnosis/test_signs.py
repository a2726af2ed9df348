"""The measurements behind the signs, where they can be computed by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from pyrobust.attacks import PGD
from pyrobust.attacks.diagnosis import trials
from pyrobust.attacks.diagnosis.catalogue import CATALOGUE, make_finding
from pyrobust.attacks.diagnosis.continuity import find_cause_of_gradient
from pyrobust.attacks.diagnosis.finding import share_severity
from pyrobust.attacks.diagnosis.gradient import saturates
from pyrobust.attacks.diagnosis.notes import Notes
from pyrobust.attacks.diagnosis.operations import record_operations
from pyrobust.attacks.diagnosis.segments import Segments, measure_segments
from pyrobust.attacks.diagnosis.subject import ExaminedModel
from pyrobust.attacks.engine.norms import norm_of
from pyrobust.attacks.engine.queries import Queries
from pyrobust.runner import Runner


def subject(model: Any, examples: int = 20, norm: str = "linf", epsilon: float = 0.25) -> ExaminedModel:
    """A model of two classes on random points of five coordinates, of which the first class is predicted."""
    x = torch.rand(examples, 5, generator=torch.Generator().manual_seed(0)) * 0.4 + 0.3
    y = torch.zeros(examples, dtype=torch.int64)
    queries = Queries(Runner(model))
    generator = torch.Generator().manual_seed(1)
    return ExaminedModel(model, queries, x, y, norm_of(norm), epsilon, 0.0, 1.0, {"seed": 0}, generator)


def of(f: Any) -> Any:
    """The classifier of two classes whose margin is f."""
    return lambda x: torch.stack([-f(x), torch.zeros_like(f(x))], 1)


class Rescaled(torch.autograd.Function):
    """The identity, with a gradient 4 times too large."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 4 * gradient


WEIGHTS = torch.tensor([1.0, -2.0, 0.5, 3.0, -1.0])


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_unexplained_share(norm: str) -> None:
    def share(f: Any) -> Tensor:
        segments = measure_segments(subject(of(f), norm=norm))
        assert int(segments.usable.sum()) >= 18
        return segments.unexplained()

    assert float(share(lambda x: x @ WEIGHTS).max()) < 1e-4
    assert float(share(lambda x: (x @ WEIGHTS).square()).max()) < 1e-3  # the midpoint rule is exact for parabolas
    assert float(share(lambda x: ((x - 0.5) @ WEIGHTS).abs()).max()) < 0.2  # one kink
    # |c − 4c| / 4|c|
    torch.testing.assert_close(
        share(lambda x: Rescaled.apply(x) @ WEIGHTS), torch.tensor(0.75).double().expand(20), rtol=0, atol=1e-3
    )
    assert measure_segments(subject(of(lambda x: Rescaled.apply(x) @ WEIGHTS), norm=norm)).factor() == pytest.approx(
        0.25, rel=1e-3
    )
    jumps = share(lambda x: (x @ WEIGHTS * 50).round() + 1e-3 * (x @ WEIGHTS))
    assert float(jumps.median()) > 0.99


def test_segments_by_hand() -> None:
    slopes = torch.tensor([[2.0, 1.0, 0.0], [2.0, -1.0, 0.0]]).double()
    segments = Segments(torch.tensor([1.0, 0.5, 3.0]).double(), slopes, torch.tensor([True, True, True]))
    assert segments.unexplained().tolist() == [0.5, 0.5, 1.0]
    assert segments.unexplained(0.5).tolist() == [0.0, 1.0, 1.0]
    assert segments.steadiness().tolist() == [1.0, 0.0, 1.0]
    waves = measure_segments(subject(of(lambda x: (x @ WEIGHTS) + 0.01 * (x @ WEIGHTS * 2000).sin())))
    assert float(waves.steadiness().median()) < 0.5


@pytest.mark.parametrize(
    ("margin", "cause"),
    [
        (lambda x: 0 * x[:, 0] - 1, "constant"),
        (lambda x: (x * 4).round() @ WEIGHTS, "piecewise constant"),
        (lambda x: (x * 255).round() @ WEIGHTS, "piecewise constant"),
        (lambda x: (x @ WEIGHTS).sin() + (x @ WEIGHTS * 30).floor(), "discontinuous"),
        (lambda x: x @ WEIGHTS, "replaced"),
        (lambda x: (x @ WEIGHTS * 20).sin(), "replaced"),
        (lambda x: torch.relu(x @ WEIGHTS - 0.3), "replaced"),
    ],
)
def test_causes_are_found_from_the_outputs_alone(margin: Any, cause: str) -> None:
    assert find_cause_of_gradient(subject(of(margin), epsilon=0.25)) == cause


def test_saturation_is_that_of_torch() -> None:
    """Where autograd's gradient of the cross-entropy is zero, on logits of all sizes."""
    for dtype in (torch.float32, torch.float64):
        logits = torch.randn(200, 4, generator=torch.Generator().manual_seed(2), dtype=dtype)
        logits = (logits * torch.logspace(0, 4, 200, dtype=dtype)[:, None]).requires_grad_()
        y = logits.argmax(1)
        loss = torch.nn.functional.cross_entropy(logits, y, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, logits)
        expected = (gradient == 0).all(1)
        assert torch.equal(saturates(logits.detach(), y), expected)
        assert 0 < int(expected.sum()) < 200


def test_shares() -> None:
    assert share_severity(0, 0) is None
    assert share_severity(64, 64) == "masked"
    assert share_severity(12, 64) is None  # 19 %, whose lower bound is below 10 %
    assert share_severity(16, 64) == "suspicious"
    notes = Notes()
    notes.share("flat-loss", 2, 2, "2 of 2 examples", {})
    assert "flat-loss" not in notes
    assert "deciding takes at least 3 examples" in notes.undecided["flat-loss"]


def judged(n: int, **fooled: list[int]) -> tuple[Notes, trials.Trials]:
    """Trials of n examples, in which each attack fooled the rows given."""
    notes = Notes()
    made = trials.Trials(subject(of(lambda x: x @ WEIGHTS), n), notes, lambda: None)
    for name, rows in fooled.items():
        made.fooled[name] = torch.zeros(n, dtype=torch.bool)
        made.fooled[name][rows] = True
    return notes, made


def test_more_steps_count_what_the_white_box_attacks_fooled() -> None:
    _, made = judged(8, **{trials._WHITE_BOX: list(range(7))})
    made._attack_rest(trials._MORE, PGD, steps=1)
    assert made.fooled[trials._MORE][:7].all()


def test_a_loss_that_pgd_does_not_raise() -> None:
    notes, made = judged(40, PGD=list(range(10)))
    made._check_loss(made.subject.x)
    (finding,) = notes.findings
    assert (finding.name, finding.severity, finding.evidence["count"]) == ("flat-loss", "masked", 30)


def test_comparisons_are_corrected_together() -> None:
    rows = list(range(100))
    notes, made = judged(100, a=rows[:21], b=rows[:20], c=rows[:40])
    made._compare("black-box", "a", "b")  # a single image more, at which AutoAttack raises its flag
    made._compare("one-step", "b", "c")
    made._judge()
    assert notes.findings == []
    # 8 of 8: p = 1/256 alone, 3/256 of three
    for tests, flagged in ((1, True), (3, False)):
        notes, made = judged(100, a=rows[:28], b=rows[:20])
        made._compare("black-box", "a", "b")
        for _ in range(tests - 1):
            made._compare("transfer", "b", "a")
        made._judge()
        assert ("black-box" in notes) == flagged
        if flagged:
            (finding,) = notes.findings
            assert finding.severity == "masked"
            assert (finding.evidence["only_first"], finding.evidence["only_second"]) == (8, 0)
            assert finding.evidence["adjusted_p_value"] == pytest.approx(1 / 256)


def test_a_larger_budget_has_to_gain_much() -> None:
    rows = list(range(400))
    for gain, flagged in ((15, False), (25, True)):
        notes, made = judged(400, a=rows[: 100 + gain], b=rows[:100])
        made._compare("more-steps", "a", "b")
        made._judge()
        assert ("more-steps" in notes) == flagged


def test_operations() -> None:
    x = torch.rand(3, 4)
    assert record_operations(lambda: torch.rand(3).sign().long())[:2] == (["sign", "conversion to int64"], ["rand"])
    assert record_operations(lambda: (x > 0.5).float().softmax(1)) == (["gt"], [], True)
    assert record_operations(lambda: torch.nn.functional.relu(x) @ x.T) == ([], [], False)


def test_catalogue() -> None:
    for name, sign in CATALOGUE.items():
        assert all(len(text) > 10 for text in sign)
        key, cause = name if isinstance(name, tuple) else (name, None)
        finding = make_finding(key, "masked", "seen", {"count": 1}, cause)
        assert finding.evidence.get("cause") == cause
        assert finding.meaning == sign.meaning
