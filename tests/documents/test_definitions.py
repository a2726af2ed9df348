"""Each definition of docs/definitions.md on a case that is worked out by hand.

The classifier of most cases is the identity on R², whose class is the larger of two coordinates: x = (a, b) with a > b
has class 0 and margin a - b. A perturbation changes the class once it takes (a - b)/2 from a and adds it to b: at l∞
distance (a - b)/2, l2 distance (a - b)/√2 and l1 distance a - b.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import pyrobust
from pyrobust import metrics, threats

Case = Callable[[], None]
CASES: dict[str, Case] = {}
PAGE = Path(__file__).parents[2] / "docs" / "definitions.md"


def term(name: str) -> Callable[[Case], Case]:
    def add(case: Case) -> Case:
        CASES[name] = case
        return case

    return add


def identity() -> nn.Module:
    net = nn.Linear(2, 2)
    with torch.no_grad():
        net.weight.copy_(torch.eye(2))
        net.bias.zero_()
    return net.eval()


# Margins 0.4, 0.2, 0.1 and, misclassified, -0.2.
X = torch.tensor([[0.7, 0.3], [0.6, 0.4], [0.55, 0.45], [0.4, 0.6]])
Y = torch.tensor([0, 0, 0, 0])


class Push(pyrobust.AdversarialAttack):
    """Take epsilon from the first coordinate and add it to the second: the strongest l∞ attack on the identity."""

    def generate(self, x: Tensor, y: Tensor, targeted: bool = False, target_labels: Tensor | None = None) -> Tensor:
        return x + self.epsilon * torch.tensor([-1.0, 1.0])


class Known:
    """A smoother with a class and radius for each image: the first pixel is the class, the second the radius."""

    def certify(self, x: Tensor, n: int, alpha: float) -> tuple[int, float]:
        return int(x[0]), float(x[1])


@term("clean accuracy")
def clean_accuracy() -> None:
    assert float(metrics.clean_accuracy(metrics.predicted_classes(X), Y)) == 3 / 4


@term("certified accuracy at radius r")
def certified_accuracy() -> None:
    """Radius r itself counts; a wrong class and an abstention never do."""
    radius, correct = np.array([0.5, 0.25, 0.9, 0.0]), np.array([True, True, False, False])
    assert [float(rate) for rate in metrics.certified_accuracy(radius, correct, [0, 0.25, 0.3])] == [0.5, 0.5, 0.25]


@term("certified accuracy of a smoother")
def certified_accuracy_of_a_smoother() -> None:
    images = torch.tensor([[0, 0.5], [1, 2.0], [0, 0.25], [-1, 0.0]])
    result = pyrobust.compute_certified_accuracy(Known(), images, torch.tensor([0, 0, 0, 0]), [0.25, 0.5])
    assert result == {
        "clean_accuracy": 0.5,
        "certified_r=0.25": 0.5,
        "certified_r=0.5": 0.25,
        "avg_radius": 0.375,
    }


@term("interval bounds")
def interval_bounds() -> None:
    """Logits (a, b) lie within epsilon of themselves."""
    lower, upper = pyrobust.compute_ibp_bounds(identity(), X, 0.125)
    expected = X.double() - 0.125, X.double() + 0.125
    assert torch.allclose(lower.double(), expected[0], atol=1e-6)
    assert torch.allclose(upper.double(), expected[1], atol=1e-6)
    assert (lower <= expected[0]).all()
    assert (upper >= expected[1]).all()


@term("certified accuracy by interval bounds")
def certified_accuracy_by_interval_bounds() -> None:
    """Proved where the lower bound of the class exceeds the other upper bound: margins above 2 epsilon."""
    result = pyrobust.certified_accuracy_ibp(identity(), [(X, Y)], 0.06, device="cpu")
    assert result == {"clean_accuracy": 3 / 4, "certified_accuracy": 2 / 4}


@term("certification gap")
def certification_gap() -> None:
    """Certified at most true, true at most empirical: here at l∞ radius 0.12, where the true robust accuracy is 1/4."""
    epsilon = 0.12
    certified = pyrobust.certified_accuracy_ibp(identity(), [(X, Y)], epsilon, device="cpu")["certified_accuracy"]
    empirical = pyrobust.compute_robustness_curve(Push, identity(), X, Y, [epsilon])[epsilon]
    assert certified <= 1 / 4 <= empirical
    assert metrics.certification_gap(empirical, certified) == empirical - certified == 0


@term("empirical robustness")
def empirical_robustness() -> None:
    """Of three examples that are correct, one stays so: margins 0.4, 0.2 and 0.1 less 0.3."""

    def shift(model: nn.Module, x: Tensor, label: Tensor, budget: float) -> Tensor:
        return x + budget * torch.tensor([-1.0, 1.0])

    dataset = list(zip(X, Y, strict=True))
    assert pyrobust.calculate_empirical_robustness(identity(), dataset, shift, 0.15) == 1 / 3


@term("robustness curve")
def robustness_curve() -> None:
    """Margins 0.4, 0.2 and 0.1 are lost at l∞ distances 0.2, 0.1 and 0.05."""
    curve = pyrobust.compute_robustness_curve(Push, identity(), X, Y, [0, 0.06, 0.12, 0.3])
    assert curve == {0: 3 / 4, 0.06: 2 / 4, 0.12: 1 / 4, 0.3: 0.0}


@term("area under the robustness curve")
def area_under_the_curve() -> None:
    """Trapezoids of width 0.1 between the heights 3/4, 2/4 and 1/4."""
    curve = pyrobust.robustness_curve(Push, identity(), X, Y, [0, 0.07, 0.14])
    assert curve.area() == pytest.approx(0.07 * (5 / 8 + 3 / 8))


@term("pointwise robustness")
def pointwise_robustness() -> None:
    """The identity is robust at a point within less than half of its margin, and bounds of it are exact."""
    bounded = pyrobust.BoundedModel(identity(), X)
    assert bounded.certify(X, Y, 0.09, method="crown").tolist() == [True, True, False, False]


@term("minimum adversarial perturbation")
def minimum_adversarial_perturbation() -> None:
    for norm, factor in (("linf", 1 / 2), ("l2", 1 / math.sqrt(2)), ("l1", 1.0)):
        expected = torch.tensor([0.4, 0.2, 0.1]) * factor
        distance = pyrobust.minimum_norm(identity(), X[:3], Y[:3], norm=norm).distance
        proved = pyrobust.BoundedModel(identity(), X).certified_radius(X[:3], Y[:3], norm=norm)
        assert torch.as_tensor(distance).float() == pytest.approx(expected, rel=2e-2)
        assert torch.as_tensor(proved).float() == pytest.approx(expected, rel=2e-2)
        assert (torch.as_tensor(proved) <= torch.as_tensor(distance)).all()


@term("average certified radius")
def average_certified_radius() -> None:
    """Over all examples, a wrong one as 0."""
    acr = metrics.average_certified_radius(np.array([0.5, 1.0, 0.7, 0.0]), np.array([True, True, False, False]))
    assert float(acr) == (0.5 + 1.0) / 4


@term("distribution of p_A")
def distribution_of_p_a() -> None:
    """Ten votes each: 10, 8 and 4 for the class, and a wrong one, which counts as 0.

    A quantile is the smallest value with at least this share at or below it.
    """
    curve = metrics.survival_curve(np.array([10, 8, 4, 9]), 10, np.array([True, True, True, False]))
    assert curve.quantiles([0.25, 0.5, 0.75]) == [0.0, 0.4, 0.8]
    assert curve.share_below_half == 0.5


@term("average provable robustness, binary")
def average_provable_robustness_binary() -> None:
    """s·f(x)/L: 1, -0.5 and 2, of which the negative counts as 0 or as itself."""
    logits, labels = torch.tensor([2.0, 1.0, -4.0]), torch.tensor([1, 0, 0])
    assert float(pyrobust.BinaryProvableAvgRobustness(lip_const=2.0)(logits, labels)) == 1.0
    signed = pyrobust.BinaryProvableAvgRobustness(lip_const=2.0, negative_robustness=True)
    assert float(signed(logits, 2 * labels - 1)) == pytest.approx(2.5 / 3)


@term("average provable robustness, categorical")
def average_provable_robustness_categorical() -> None:
    """The margin 3 over 2·L if each logit has the constant L, over √2·L if the vector of logits has it."""
    logits, labels = torch.tensor([[4.0, 1.0, 0.0]]), torch.tensor([0])
    assert float(pyrobust.CategoricalProvableAvgRobustness(lip_const=1.5)(logits, labels)) == 1.0
    joint = pyrobust.CategoricalProvableAvgRobustness(lip_const=1.5, disjoint_neurons=False)
    assert float(joint(logits, labels)) == pytest.approx(math.sqrt(2))


@term("provable robust accuracy, binary")
def provable_robust_accuracy_binary() -> None:
    """Radii 1, 0.5 and -1: strictly above 0.5 is one of three."""
    logits, labels = torch.tensor([1.0, 0.5, 1.0]), torch.tensor([1, 1, 0])
    assert float(pyrobust.BinaryProvableRobustAccuracy(0.5)(logits, labels)) == pytest.approx(1 / 3)


@term("provable robust accuracy, categorical")
def provable_robust_accuracy_categorical() -> None:
    """Margins 3, 1 and -1 over 2: strictly above 0.5 is one of three."""
    logits, labels = torch.tensor([[3.0, 0.0], [1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 0, 1])
    assert float(pyrobust.CategoricalProvableRobustAccuracy(0.5)(logits, labels)) == pytest.approx(1 / 3)


CLEAN, ADVERSARIAL = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 1, 0])


@term("standard risk")
def standard_risk() -> None:
    assert float(metrics.standard_risk(CLEAN, Y)) == 2 / 4


@term("robust risk")
def robust_risk() -> None:
    """The last is misclassified without an attack, which mends it."""
    assert float(metrics.robust_risk(CLEAN, ADVERSARIAL, Y)) == 3 / 4
    assert float(metrics.robust_risk(CLEAN, CLEAN, Y)) == float(metrics.standard_risk(CLEAN, Y))


@term("robust accuracy")
def robust_accuracy() -> None:
    assert float(metrics.robust_accuracy(CLEAN, ADVERSARIAL, Y)) == 1 / 4


@term("attack success rate")
def attack_success_rate() -> None:
    rate = float(metrics.attack_success_rate(CLEAN, ADVERSARIAL, Y))
    assert rate == 3 / 4 == 1 - float(metrics.robust_accuracy(CLEAN, ADVERSARIAL, Y))


@term("success rate on correct examples")
def success_rate_on_correct() -> None:
    assert float(metrics.success_rate_on_correct(CLEAN, ADVERSARIAL, Y)) == 1 / 2


@term("targeted attack success rate")
def targeted_success_rate() -> None:
    assert float(metrics.targeted_success_rate(ADVERSARIAL, torch.tensor([1, 1, 1, 1]))) == 2 / 4


@term("distance")
def distance() -> None:
    x_adv = torch.tensor([[3.0, -4.0]])
    assert [float(metrics.distances(x_adv, torch.zeros(1, 2), norm)) for norm in ("linf", "l2", "l1")] == [4, 5, 7]


@term("average distance of successful attacks")
def average_distance() -> None:
    """Of the second and third example, which are wrong at x_adv."""
    size = torch.tensor([9.0, 1.0, 2.0, 9.0])
    assert metrics.mean_distance(size, ADVERSARIAL != Y) == 1.5


@term("projection")
def projection() -> None:
    """Onto the ball, then into the clip range; in l1 onto both: (1, 1) to (0.75, 0.25), as b may rise by 0.25."""
    x = torch.tensor([[0.0, 0.75]])
    delta = torch.tensor([[1.0, 1.0]])
    net = identity()
    assert Push(net, 0.5, "linf").project(delta, x).tolist() == [[0.5, 0.25]]
    assert Push(net, 0.5, "l2").project(delta, x) == pytest.approx(torch.tensor([[math.sqrt(0.125), 0.25]]))
    assert Push(net, 1.0, "l1").project(delta, x) == pytest.approx(torch.tensor([[0.75, 0.25]]))


@term("evaluation of an attack")
def evaluation() -> None:
    """Pushed by 0.15, which moves every point by 0.15 in l∞: one of the three correct ones stays correct."""
    attack = Push(identity(), 0.15)
    result = attack.evaluate(X, Y, attack.generate(X, Y))
    expected = {"clean_accuracy": 3 / 4, "robust_accuracy": 1 / 4, "attack_success_rate": 3 / 4}
    assert {key: result[key] for key in expected} == expected
    assert result["avg_perturbation"] == pytest.approx(0.15)


def verdicts(threat: str, succeeded: list[bool]) -> threats.ThreatVerdicts:
    return threats.ThreatVerdicts(
        tuple(threats.ThreatVerdict(str(i), threat=threat, success=value) for i, value in enumerate(succeeded))
    )


@term("jailbreak rate")
def jailbreak_rate() -> None:
    assert float(threats.jailbreak_rate(verdicts("jailbreak", [True, False, False, True]))) == 2 / 4


@term("prompt injection rate")
def prompt_injection_rate() -> None:
    assert float(threats.prompt_injection_rate(verdicts("prompt-injection", [True, False, False, False]))) == 1 / 4


@term("factual consistency")
def factual_consistency() -> None:
    """The first question's answer changes in one of two paraphrases, the second's in none: 1/2 and 0, mean 1/4."""
    groups = [["Paris", "paris.", "Lyon"], ["1969", "1969", "1969."]]
    assert float(threats.answer_change_rate(groups)) == 1 / 4
    assert float(threats.factual_consistency(groups)) == 3 / 4
    assert float(threats.answer_change_rate(groups, per="question")) == 1 / 2


@pytest.mark.usefixtures("few_steps")
@pytest.mark.parametrize("name", CASES)
def test_hand_worked_case(name: str) -> None:
    CASES[name]()


def rows() -> dict[str, list[str]]:
    """The rows of the page's tables of terms, by term."""
    tables, _ = PAGE.read_text().split("## Where a name differs")
    cells = [line.strip("| \n").split(" | ") for line in tables.splitlines() if line.startswith("| ")]
    return {row[0]: row[1:] for row in cells if row[0] != "term"}


def test_every_definition_of_the_page_has_a_case() -> None:
    assert set(rows()) == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_the_page_names_a_function_that_is_there(name: str) -> None:
    _, functions, _ = rows()[name]
    paths = re.findall(r"`(pyrobust[\w.]*)", functions)
    assert paths
    for path in paths:
        module, *attributes = path.split(".")
        target: object = importlib.import_module(module)
        for attribute in attributes:
            target = getattr(target, attribute)
        assert callable(target)
