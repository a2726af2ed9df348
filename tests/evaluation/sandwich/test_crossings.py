"""Crossings are found where a certificate is false, and nowhere else; exact distances lie between the bounds."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.damage import change
from support.piecewise_linear import distance_to_other_class, random_net, regions
from torch import Tensor, nn
from typer.testing import CliRunner

from pyrobust import RandomizedSmoothing
from pyrobust.auditing.audit import audit_run
from pyrobust.bounds import BoundedModel
from pyrobust.cli.app import app
from pyrobust.errors import CrossingError
from pyrobust.evaluation import Run, Sandwich, sandwich, sandwich_dataset
from pyrobust.smoothing import batches
from pyrobust.zoo import load_data, load_model

FACTOR = 1.05
CASES = [("linf", "float32"), ("l2", "real"), ("l1", "float32"), ("l1", "real")]
CLIP = (-8.0, 9.0)  # no limit to any perturbation, so that l1 bounds are tight


@pytest.fixture
def unsound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Certified radii that are larger than what was proved by a twentieth."""
    radius = BoundedModel.certified_radius
    monkeypatch.setattr(BoundedModel, "certified_radius", lambda *args, **options: FACTOR * radius(*args, **options))


def tight() -> tuple[nn.Module, Tensor, Tensor]:
    """A linear model, whose certificates reach the attacks up to rounding."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).eval()
    for parameter in model.parameters():
        parameter.data.normal_(generator=generator)
    x = 0.25 + 0.5 * torch.rand(10, 1, 4, 4, generator=generator)
    return model, x, model(x).argmax(1)


@pytest.mark.usefixtures("few_steps")
@pytest.mark.parametrize(("norm", "semantics"), CASES)
def test_an_unsound_certificate_is_caught(unsound: None, norm: str, semantics: str) -> None:
    model, x, y = tight()
    both = sandwich(model, x, y, norm=norm, semantics=semantics, clip=CLIP)
    assert len(both.crossings) > 5
    for crossing in both.crossings:
        assert crossing.upper <= crossing.lower
        assert crossing.margin is not None
        assert crossing.margin <= 0
        assert crossing.adversarial != crossing.label
    first = both.crossings[0]
    with pytest.raises(CrossingError, match=rf"example {first.index} is certified by .* \(margin -"):
        both.check()


@pytest.mark.usefixtures("few_steps")
@pytest.mark.parametrize(("norm", "semantics"), CASES)
def test_tight_certificates_do_not_cross(norm: str, semantics: str) -> None:
    model, x, y = tight()
    both = sandwich(model, x, y, norm=norm, semantics=semantics, clip=CLIP)
    assert both.crossings == ()
    both.check()
    assert (both.lower > 0.95 * both.upper).mean() > 0.5


@pytest.mark.usefixtures("few_steps")
def test_the_command_fails_and_names_example_and_file(unsound: None, tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    command = ["sandwich", "--model", "zoo:digits-ibp-0.10", "--data", "digits", "--max", "3", "--out", str(path)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1
    both = Sandwich(Run(path))
    assert both.crossings
    message = " ".join(result.output.split())
    assert f"example {both.crossings[0].index} is certified" in message
    assert "run.db" in message
    assert "CROSSING: image" in message
    assert "crossing" in {finding["kind"] for finding in audit_run(Run(path))["findings"]}
    # Again, from the complete run.
    assert CliRunner().invoke(app, command).exit_code == 1


@pytest.mark.usefixtures("few_steps")
def test_rounding_alone_is_no_crossing_in_exact_arithmetic(unsound: None, tmp_path: Path) -> None:
    """Where the margin may be positive in exact arithmetic, the model's rounding can have fooled it."""
    model, x, y = tight()
    path = tmp_path / "run.db"
    both = sandwich_dataset(model, (x, y), semantics="real", clip=CLIP, out=path)
    change(path, f"UPDATE result SET margin = 1e-9 WHERE idx = {both.crossings[0].index}")
    assert [c.index for c in Sandwich(Run(path)).crossings] == [c.index for c in both.crossings[1:]]


def test_too_many_crossings_of_a_smoothed_classifier_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    smoother = RandomizedSmoothing(load_model("zoo:digits-smooth-0.25"), 10, sigma=0.25)
    data = load_data("digits")
    honest = sandwich_dataset(smoother, data, n=500, n_attack=500, steps=5, draws=16, max_images=6)
    honest.check()
    assert honest.crossings == ()
    fixed = batches.fixed_results

    def exaggerated(*args: Any, **options: Any) -> dict[str, Any]:
        return (result := fixed(*args, **options)) | {"radius": 3 * result["radius"]}

    monkeypatch.setattr(batches, "fixed_results", exaggerated)
    both = sandwich_dataset(smoother, data, n=500, n_attack=500, steps=5, draws=16, max_images=6)
    assert len(both.crossings) > both.allowed_crossings == 1
    assert all(c.p_value is not None and c.p_value <= 0.001 and c.lower_by == "smoothing" for c in both.crossings)
    with pytest.raises(CrossingError, match=r"expected at most 1: .* \(p-value"):
        both.check()
    assert np.array_equal(both.upper, honest.upper)


# -- exact distances, by enumeration of linear regions


def check_enumerated(seed: int, points: int, norm: str, semantics: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compare both bounds of the points of one net with their exact distances; return all three."""
    net = random_net(seed)
    x = torch.rand(points, 2, generator=torch.Generator().manual_seed(seed)).view(-1, 1, 1, 2)
    model = nn.Sequential(nn.Flatten(), *net).eval()
    y = model(x).argmax(1)
    y[0] = (y[0] + 1) % 3  # one that is misclassified
    both = sandwich(model, x, y, norm=norm, semantics=semantics)
    pieces = regions(net)
    exact = [
        distance_to_other_class(pieces, row, int(label), norm)
        for row, label in zip(x.flatten(1).double().numpy(), y, strict=True)
    ]
    exact[0] = 0.0
    distance = np.array(exact)
    assert both.crossings == ()
    assert both.lower[0] == both.upper[0] == 0
    # Enumeration computes in double precision, and the attacks are judged in the net's float32.
    assert (both.lower <= distance * (1 + 1e-9) + 1e-12).all()
    assert (distance <= both.upper * (1 + 1e-4) + 1e-5).all()
    return both.lower, distance, both.upper


@pytest.mark.usefixtures("few_steps")
@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_the_exact_distance_lies_between_the_bounds(norm: str) -> None:
    lower, exact, upper = check_enumerated(11, 3, norm, "real")
    finite = np.isfinite(upper)
    assert finite.mean() > 0.8
    assert np.median(lower[finite] / exact[finite].clip(1e-12)) > 0.2
    assert np.median(upper[finite] / exact[finite].clip(1e-12)) < 1.05
    assert all(math.isinf(value) or value <= 2 for value in upper)


@pytest.mark.full
@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize("seed", range(67))
def test_the_exact_distance_lies_between_the_bounds_of_many_nets(seed: int, norm: str) -> None:
    check_enumerated(1000 + seed, 50, norm, ("float32", "real")[seed % 2])
