"""diagnose: models of every kind, what cannot be decided, determinism, and bad input."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest
import torch
from support.planted_defenses import AlwaysDropping, noisy, quantized, through
from torch import Tensor, nn

from pyrobust import BPDA, EOT, Diagnosis, diagnose
from pyrobust.attacks.diagnosis import surrogate, trials
from pyrobust.errors import InputError, InputTypeError, ModelError
from pyrobust.zoo import load_data, load_model


@pytest.fixture(autouse=True)
def _small_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attacks of a few steps: these tests look at the rest."""
    for name, value in {
        "_STEPS": 6,
        "_MORE_STEPS": 8,
        "_MORE_RESTARTS": 1,
        "_QUERIES": 40,
        "_TRANSFER_STEPS": 3,
    }.items():
        monkeypatch.setattr(trials, name, value)
    monkeypatch.setattr(surrogate, "_STEPS_PER_ROUND", 3)


NET: Any = load_model("zoo:digits-smooth-0.25")
DATA = load_data("digits")
X, Y = DATA.x[:16], DATA.y[:16]


def names(diagnosis: Diagnosis) -> list[str]:
    return [finding.name for finding in diagnosis.findings]


def cause_of(diagnosis: Diagnosis, name: str) -> Any:
    return next(finding.evidence.get("cause") for finding in diagnosis.findings if finding.name == name)


def test_result() -> None:
    diagnosis = diagnose(quantized(NET), X, Y, "1/10")
    values = json.loads(json.dumps(diagnosis.to_dict(), allow_nan=False))
    assert values["verdict"] == diagnosis.verdict == "masked"
    assert (values["examples"], values["epsilon"], values["norm"]) == (16, 0.1, "linf")
    for finding in diagnosis.findings:
        assert all((finding.observation, finding.meaning, finding.remedy, finding.source))
    frame = pytest.importorskip("pandas") and diagnosis.to_pandas()
    assert frame.name.tolist() == names(diagnosis)
    assert "verdict='masked'" in repr(diagnosis)
    assert "zero-gradient" in diagnosis._repr_html_()


def _through_numpy(x: Tensor) -> Tensor:
    return torch.from_numpy(NET(torch.from_numpy(x.numpy())).detach().numpy().copy())


def _without_graph(x: Tensor) -> Tensor:
    with torch.no_grad():
        logits: Tensor = NET(x)
    return logits


def _only_parameters(x: Tensor) -> Tensor:
    logits: Tensor = NET(x.detach())
    return logits


def test_a_gradient_that_is_lost_on_the_way() -> None:
    def bright_images_detached(x: Tensor) -> Tensor:
        logits: Tensor = NET(x.detach() if bool((x.mean() - X.mean()).abs() > 0.02) else x)
        return logits

    diagnosis = diagnose(bright_images_detached, X, Y, 0.3, batch_size=16)
    assert diagnosis.verdict == "masked"
    assert "no-gradient" in names(diagnosis)
    assert "PGD" not in diagnosis.fooled


@pytest.mark.parametrize("model", [_through_numpy, _without_graph, _only_parameters])
def test_models_that_torch_cannot_differentiate(model: Any) -> None:
    diagnosis = diagnose(model, X, Y, 0.1)
    assert cause_of(diagnosis, "no-gradient") == "replaced"
    assert diagnosis.verdict == "masked"
    assert "queries (Square)" in diagnosis.fooled
    assert "PGD" not in diagnosis.fooled


def test_the_remedy_is_accepted() -> None:
    """Quantization through BPDA, and noise through EOT, leave nothing to find."""
    fine = nn.Sequential(BPDA(lambda x: (16 * x).round() / 16), NET).eval()
    diagnosis = diagnose(fine, X, Y, 0.1)
    assert diagnosis.findings == ()
    assert "BPDA" in diagnosis.undecided["gradient-mismatch"]
    averaged = diagnose(EOT(noisy(NET, 0.02).eval(), samples=8).eval(), X, Y, 0.1)
    assert averaged.findings == ()
    assert "attacks" in averaged.undecided
    assert averaged.verdict == "undecided"


def test_training_mode() -> None:
    model = nn.Sequential(NET[:5], nn.Dropout(0.5), NET[5:])
    model.train()
    diagnosis = diagnose(model, X, Y, 0.1)
    assert names(diagnosis) == ["training-mode"]
    assert "Dropout" in diagnosis.findings[0].evidence["modules"]
    assert model.training
    assert model[1].training
    assert diagnose(model.eval(), X, Y, 0.1).findings == ()
    assert not model.training
    normalized = nn.Sequential(nn.BatchNorm2d(1), copy.deepcopy(NET)).train()
    before = {name: tensor.clone() for name, tensor in normalized.state_dict().items()}
    findings = names(diagnose(normalized, X, Y, 0.1))
    assert "training-mode" in findings
    assert all(torch.equal(tensor, before[name]) for name, tensor in normalized.state_dict().items())


class RandomSigns(torch.autograd.Function):
    """A little noise, with a gradient of noise alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x + 1e-3 * torch.randn_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return torch.randn_like(gradient)


class Alternating(nn.Module):
    """Keeps state from call to call."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        logits: Tensor = NET(x) * (1 + 0.1 * (self.calls % 2))
        return logits


def dropping() -> nn.Module:
    """A net whose dropout stays in training mode."""
    model = nn.Sequential(NET[:5], nn.Dropout(0.5), NET[5:]).eval()
    model[1].train()
    model[1].train = lambda mode=True: model[1]  # type: ignore[method-assign, assignment]  # a module that stays in training mode
    return model


def purified(x: Tensor) -> Tensor:
    with torch.enable_grad():
        point = x.detach().clone().requires_grad_()
        torch.autograd.grad(NET(point).amax(1).sum(), point)
    logits: Tensor = NET(x)
    return logits


COUPLED = nn.Sequential(nn.BatchNorm2d(1, affine=False, track_running_stats=False), NET).eval()
#: Kind of model → the model, its first finding and some of the evidence.
SIGNS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "a random module": (dropping(), "randomized", {"module": "1 (Dropout)"}),
    "waves": (lambda x: NET(x + 0.02 * (500 * x).sin()), "noisy-loss", {}),
    "half the gradient": (
        lambda x: NET((x + x.detach()) / 2),
        "gradient-mismatch",
        {"cause": "rescaled", "factor": pytest.approx(2, rel=0.1)},
    ),
    "state": (Alternating(), "randomized", {}),
    "gradients at inference": (purified, "dynamic", {}),
    "probabilities": (nn.Sequential(NET, nn.Softmax(1)).eval(), "probabilities", {}),
    "a gradient of noise": (
        through(NET, RandomSigns).eval(),
        "randomized",
        {"gradient_cosine": pytest.approx(0, abs=0.2)},
    ),
    "probabilities 0 and 1": (lambda x: (1e4 * NET(x)).softmax(1), "probabilities", {}),
    "two values": (lambda x: torch.where(NET(x) == NET(x).amax(1, keepdim=True), 5.0, -5.0), "arg-max", {}),
    "statistics of the batch": (COUPLED, "batch-dependent", {"changed": 8}),
    "noise": (noisy(NET, 0.02).eval(), "randomized", {}),
}


@pytest.mark.parametrize("kind", SIGNS)
def test_signs(kind: str) -> None:
    model, name, evidence = SIGNS[kind]
    diagnosis = diagnose(model, X, Y, 0.1)
    finding = diagnosis.findings[0]
    assert finding.name == name
    assert finding.severity == ("masked" if kind in ("a gradient of noise", "two values") else "suspicious")
    assert {key: finding.evidence[key] for key in evidence} == evidence
    assert ("arg-max" in names(diagnosis)) == (name == "arg-max")
    if name in ("randomized", "gradient-mismatch", "dynamic"):
        assert len(diagnosis.findings) == 1
    if name == "randomized":
        assert "EOT" in finding.remedy
        assert ("it keeps state from call to call" in finding.observation) == (kind == "state")
        assert ("bernoulli" in finding.evidence.get("operations", ())) == (kind == "a random module")


@pytest.mark.filterwarnings("ignore")
def test_nan() -> None:
    everywhere = diagnose(lambda x: NET(x) * torch.nan, X, Y, 0.1)
    assert names(everywhere) == ["not-finite"]
    assert everywhere.correct == 0
    assert everywhere.verdict == "suspicious"
    assert set(everywhere.undecided) == {"gradient", "attacks"}
    brightness = X.mean((1, 2, 3)).median()

    def undefined_where_dark(x: Tensor) -> Tensor:
        logits: Tensor = NET(x).masked_fill((x.mean((1, 2, 3)) < brightness)[:, None], torch.nan)
        return logits

    finding = diagnose(undefined_where_dark, X, Y, 0.1).findings[0]
    assert (finding.name, finding.severity) == ("not-finite", "suspicious")
    assert finding.evidence["rows"] == int((X.mean((1, 2, 3)) < brightness).sum())

    def switched_off(x: Tensor) -> Tensor:  # classes that are never predicted
        logits: Tensor = NET(x) * 1000 - torch.tensor([0.0] * 8 + [torch.inf] * 2)
        return logits

    infinite = diagnose(switched_off, X[Y < 8], Y[Y < 8], 0.1)
    assert "not-finite" not in names(infinite)
    assert "saturated-loss" in names(infinite)
    json.dumps(infinite.to_dict(), allow_nan=False)

    def root(x: Tensor) -> Tensor:  # derivative 0·∞ at the black pixels of every digit
        logits: Tensor = NET(x) + 1e-6 * x.sqrt().sum((1, 2, 3))[:, None]
        return logits

    assert "not-finite-gradient" in names(diagnose(root, X, Y, 0.05))


def test_a_constant_model() -> None:
    diagnosis = diagnose(lambda x: torch.tensor([1.0, 0.0]) + 0 * x.sum((1, 2, 3))[:, None], X, Y * 0, 0.1)
    assert "constant" in names(diagnosis)
    assert "zero-gradient" not in names(diagnosis)


def test_two_classes() -> None:
    def even(x: Tensor) -> Tensor:
        logits = NET(x)
        return torch.stack([logits[:, ::2].logsumexp(1), logits[:, 1::2].logsumexp(1)], 1)

    diagnosis = diagnose(even, X, Y % 2, 0.1)
    assert diagnosis.findings == ()
    assert diagnosis.correct > 13


def test_one_example() -> None:
    sound = diagnose(NET, X[:1], Y[:1], 0.1)
    assert sound.findings == ()
    assert set(sound.undecided) == {"one-step", "more-steps", "black-box", "transfer"}
    assert "takes at least 9 examples" in sound.undecided["black-box"]
    assert sound.verdict == sound.to_dict()["verdict"] == "undecided"
    rounded = diagnose(quantized(NET), X[:1], Y[:1], 0.1)
    assert rounded.findings == ()
    assert rounded.undecided["zero-gradient"].startswith("the gradient is exactly zero at 1 of 1 examples")
    assert "takes at least 3 examples" in rounded.undecided["zero-gradient"]
    # what is certain at one example is found
    assert names(diagnose(_without_graph, X[:1], Y[:1], 0.1)) == ["no-gradient"]
    assert names(diagnose(AlwaysDropping(NET).eval(), X[:1], Y[:1], 0.1)) == ["randomized"]


def test_no_example_is_right() -> None:
    diagnosis = diagnose(quantized(NET), X, (Y + 1) % 10, 0.1)
    assert names(diagnosis) == ["zero-gradient"]
    assert diagnosis.undecided["attacks"].startswith("no example is classified correctly; check y")
    assert diagnosis.fooled == {}
    honest = diagnose(NET, X, (Y + 1) % 10, 0.1)
    assert (honest.findings, honest.verdict) == ((), "undecided")


def test_a_ball_below_rounding() -> None:
    diagnosis = diagnose(NET, X, Y, 1e-12)
    assert "no more than rounding" in diagnosis.undecided["gradient"]
    assert diagnosis.verdict != "nothing found"


@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_norms(norm: str) -> None:
    epsilon = {"l2": 0.5, "l1": 1.5}[norm]
    assert diagnose(NET, X, Y, epsilon, norm).findings == ()
    diagnosis = diagnose(quantized(NET), X, Y, epsilon, norm)
    assert cause_of(diagnosis, "zero-gradient") == "piecewise constant"
    assert diagnosis.norm == norm


def test_formats() -> None:
    double, half = load_model("zoo:digits-smooth-0.25").double(), load_model("zoo:digits-smooth-0.25").bfloat16()
    for model, x, epsilon, options in (
        (double, X.double(), 0.1, {}),
        (half, X, 0.1, {}),
        (NET, X, 0.1, {"memory_format": torch.channels_last, "batch_size": 7}),
        (NET, X, 0.1, {"dtype": torch.bfloat16}),
        (copy.deepcopy(NET).train(), X, 0.1, {"dtype": torch.bfloat16}),
        (lambda x: NET(x / 2 + 0.5), 2 * X - 1, 0.2, {"clip": (-1, 1)}),
    ):
        assert diagnose(model, x, Y, epsilon, **options).findings == ()


def test_a_given_surrogate() -> None:
    zeroed = diagnose(quantized(NET), X, Y, 0.3, surrogate=NET)
    transfer = next(finding for finding in zeroed.findings if finding.name == "transfer")
    assert transfer.evidence["only_first"] > 10
    assert transfer.evidence["adjusted_p_value"] <= 0.01


def test_results_repeat_and_generators_are_restored() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    stages: list[tuple[int, int]] = []
    first = diagnose(noisy(NET).eval(), X, Y, 0.1, seed=3).to_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    assert diagnose(noisy(NET).eval(), X, Y, 0.1, seed=3).to_dict() == first
    assert diagnose(noisy(NET).eval(), X, Y, 0.1, seed=4).to_dict() != first
    whole = diagnose(NET, X, Y, 0.2, seed=3, progress=lambda done, total: stages.append((done, total))).to_dict()
    assert stages == sorted(stages)
    assert stages[-1] == (10, 10)
    assert len(stages) > 6
    assert diagnose(NET, X, Y, 0.2, seed=3, batch_size=16).to_dict() == whole
    assert all(parameter.grad is None for parameter in NET.parameters())
    with torch.inference_mode():
        assert diagnose(quantized(NET), X, Y, 0.1).verdict == "masked"


def test_exceptions_of_the_model_propagate() -> None:
    class BrokenError(Exception):
        pass

    def broken(x: Tensor) -> Tensor:
        raise BrokenError

    with pytest.raises(BrokenError):
        diagnose(broken, X, Y, 0.1)
    with pytest.raises(ModelError, match=r"^BPDA: backward: expected the shape"):
        diagnose(lambda x: NET(BPDA(lambda z: z[:, :, 1:])(x)), X, Y, 0.1)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        *(
            ({"epsilon": e}, InputError, "epsilon: expected a finite number above 0")
            for e in (0, -1, math.nan, math.inf)
        ),
        ({"epsilon": torch.ones(16)}, InputTypeError, "epsilon: expected a number"),
        ({"epsilon": "8/0"}, InputError, "epsilon: expected a finite number or a fraction"),
        *(({"norm": n}, InputError, "norm: expected one of linf, l2, l1, got") for n in ("l3", "l0", 0)),
        ({"x": X[:0], "y": Y[:0]}, InputError, "x: expected at least one example, got none"),
        ({"x": 255 * X}, InputError, "x: expected values in the clip range"),
        ({"y": Y[:3]}, InputError, r"y: expected shape \(16,\)"),
        ({"y": Y + 5}, InputError, "y: expected labels 0 to 9"),
        ({"model": "net"}, InputTypeError, "model: expected a torch.nn.Module or a callable"),
        ({"model": lambda x: NET(x)[:, :1], "y": Y * 0}, ModelError, r"model: .* two classes, got shape \(16, 1\)"),
        ({"seed": -1}, InputError, "seed: expected"),
        ({"surrogate": 3}, InputTypeError, "surrogate: expected"),
        (
            {"surrogate": lambda x: NET(x) * math.nan},
            ModelError,
            r"surrogate: expected logits without NaN and \+inf, got some at 16 of 16",
        ),
    ],
)
def test_bad_input(changed: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        diagnose(**{"model": NET, "x": X, "y": Y, "epsilon": 0.1, **changed})


def test_the_scale_of_the_weights_is_no_sign() -> None:
    net = load_model("zoo:digits-smooth-0.25")
    last = [module for module in net.modules() if isinstance(module, nn.Linear)][-1]
    with torch.no_grad():
        last.weight *= 20
        last.bias *= 20
    diagnosis = diagnose(net, DATA.x[:60], DATA.y[:60], 0.1)
    assert diagnosis.verdict == "nothing found"
    assert {(finding.name, finding.severity) for finding in diagnosis.findings} == {("saturated-loss", "note")}


@pytest.mark.parametrize(("norm", "epsilon"), [("linf", 0.1), ("l2", 0.5), ("l1", 2.0)])
def test_no_examination_leaves_the_clip_range(norm: str, epsilon: float) -> None:
    def thinned(x: Tensor) -> Tensor:  # with pixels as probabilities
        kept = torch.bernoulli(x, generator=torch.Generator().manual_seed(0))
        logits: Tensor = NET(x * kept)
        return logits

    diagnosis = diagnose(thinned, X[:20], Y[:20], epsilon, norm)
    assert diagnosis.verdict != "nothing found"
