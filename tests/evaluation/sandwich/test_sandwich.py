"""Sandwiches as runs: what they hold, resumed, sharded, damaged, and asked for wrongly."""

from __future__ import annotations

import copy
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.attack_runs import digits, fitted
from support.damage import change
from torch import Tensor, nn

from pyrobust import RandomizedSmoothing
from pyrobust.auditing.audit import audit_run
from pyrobust.bounds import BoundedModel
from pyrobust.bounds.deployed_arithmetic import other_convolutions
from pyrobust.errors import FileFormatError, InputError, InputTypeError, ModelError
from pyrobust.evaluation import (
    Run,
    Sandwich,
    predict_dataset,
    read_log,
    sandwich,
    sandwich_dataset,
    write_log,
)
from pyrobust.report import describe_run, run_summary, sandwich_table
from pyrobust.smoothing.sampling import Sampler
from pyrobust.zoo import ImageSet, load_model

pytestmark = pytest.mark.usefixtures("few_steps_in_module")

IMAGES = 4


def smoother(**options: Any) -> RandomizedSmoothing:
    return RandomizedSmoothing(load_model("zoo:digits-smooth-0.25"), 10, sigma=0.25, **options)


def bound(classifier: Any = None, data: Any = None, **options: Any) -> Sandwich:
    few = {"n": 1000, "n_attack": 1000, "steps": 5} if isinstance(classifier, RandomizedSmoothing) else {}
    return sandwich_dataset(classifier or fitted(), data or digits(IMAGES), **few | options)


def steeper() -> nn.Module:
    """The net with a first layer of twice the weights: it is more often wrong, and its certified radii are shorter."""
    net = copy.deepcopy(fitted())
    net[1].weight.mul_(2)
    return net


@pytest.fixture(scope="module")
def base_run(tmp_path_factory: pytest.TempPathFactory, few_steps_in_module: None) -> Path:
    path = tmp_path_factory.mktemp("sandwich") / "run.db"
    bound(out=path)
    return path


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_both_bounds_are_of_the_deployed_model(norm: str) -> None:
    data, model = digits(IMAGES), fitted()
    data.y[3] = (data.y[3] + 1) % 10  # misclassified
    both = bound(model, data, norm=norm)
    table, x_adv = both.run.table, both.run.examples()
    assert both.lower[3] == both.upper[3] == 0
    assert table["upper_by"][3] == "clean"
    assert (both.lower <= both.upper).all()
    assert both.crossings == ()
    right = table["prediction"] == data.y.numpy()
    assert right.sum() >= IMAGES - 2
    assert ((both.lower > 0) == right).all()
    assert np.isfinite(both.upper).all()
    for i, (point, clean) in enumerate(zip(x_adv.flatten(1).tolist(), data.x.flatten(1).tolist(), strict=True)):
        assert int(model(x_adv[i : i + 1]).argmax()) == table["adversarial"][i]
        delta = [abs(Fraction(a) - Fraction(b)) for a, b in zip(point, clean, strict=True)]
        size = {"linf": max(delta), "l1": sum(delta), "l2": sum(z * z for z in delta)}[norm]
        assert Fraction(both.upper[i]) ** (2 if norm == "l2" else 1) >= size
    bounded = BoundedModel(model, data.x[:1])
    sure = bounded.certify(
        data.x[right], data.y[right], torch.from_numpy(both.lower[right]), norm=norm, clip=(0, 1), semantics="float32"
    )
    assert sure.float().mean() > 0.8  # one of the methods proved each; CROWN alone proves most of them


def test_real_semantics_add_lipschitz_bounds() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval()
    torch.manual_seed(0)
    nn.init.normal_(model[1].weight)
    x = digits(IMAGES).x
    data = ImageSet("digits", x, model(x).argmax(1))
    both = bound(model, data, norm="l2", semantics="real")
    assert "lipschitz" in both.run.table["lower_by"]
    assert both.crossings == ()


def test_autoattack_runs_where_undecided() -> None:
    plain, both = bound(max_images=3), bound(epsilons=[0.15], max_images=3)
    assert np.array_equal(plain.lower, both.lower)
    assert (both.upper <= plain.upper).all()
    assert both.run.parameters["epsilons"] == [0.15]
    assert "AutoAttack at 0.15" in " ".join(describe_run(both.run))


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_smoothed_bounds_follow_from_their_votes(noise: str) -> None:
    options = {} if noise == "gaussian" else {"noise": "laplace", "norm": "l1"}
    data = digits(IMAGES)
    data.y[3] = (data.y[3] + 1) % 10
    both = bound(smoother(**options, batch_size=100), data)
    assert both.smoothed
    assert both.norm == ("l2" if noise == "gaussian" else "l1")
    table = both.run.table
    assert both.lower[3] == both.upper[3] == 0
    assert np.isfinite(both.upper).sum() > IMAGES / 2
    assert (both.lower <= both.upper).all()
    assert [finding["kind"] for finding in audit_run(both.run)["findings"]] == ["guarantee"]
    votes = both.run.histogram("counts_adv")
    assert set(votes.sum(axis=1).tolist()) <= {0, 1000}
    attacked = (table["upper_by"] != "") & (table["upper_by"] != "clean")
    assert (votes[attacked, :-1].argmax(axis=1) == table["adversarial"][attacked]).all()
    assert (table["p_value"][attacked] <= 0.001).all()
    assert both.confidence.max() <= 1


def test_confirming_noise_is_of_neither_certificate_nor_attack() -> None:
    """The test at x_adv draws from the stage of predictions, with the image's own index."""
    data, smooth = digits(IMAGES), smoother(batch_size=100)
    both = bound(smooth, data)
    row = int(np.flatnonzero(both.run.table["upper_by"] == "SmoothedAttack")[0])
    x_adv = both.run.examples([row])
    votes = smooth.on_grid_of(data.x).votes(x_adv, n=1000, stage="predict", indices=[row])
    assert np.array_equal(votes[0], both.run.histogram("counts_adv")[row])
    for stage in ("select", "estimate", "attack"):
        other = smooth.on_grid_of(data.x).votes(x_adv, n=1000, stage=stage, indices=[row])
        assert not np.array_equal(other[0], both.run.histogram("counts_adv")[row])


def test_the_search_draws_from_the_stage_of_attacks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[str, int]] = []
    count = Sampler.count

    def recorded(self: Sampler, x: Tensor, runs: Any, stages: str | list[str], *arguments: Any, **options: Any) -> None:
        named = [stages] * len(runs) if isinstance(stages, str) else stages
        drawn.extend(
            (stage, max(r[2] + r[3] for s, r in zip(named, runs, strict=True) if s == stage)) for stage in set(named)
        )
        count(self, x, runs, stages, *arguments, **options)

    monkeypatch.setattr(Sampler, "count", recorded)
    both = bound(smoother(batch_size=100))
    searching = [stage for stage, samples in drawn if samples == 32 + 1000]  # beyond the 32 draws of the gradients
    assert len(searching) > 5
    assert set(searching) == {"attack"}
    # After the probe of one sample, one test of every example that was found.
    assert [samples for stage, samples in drawn if stage == "predict"] == [1, 1000]
    assert (both.run.table["upper_by"] == "SmoothedAttack").sum() > IMAGES // 2


def test_shares_groups_and_comparisons(base_run: Path) -> None:
    first, second = Sandwich(Run(base_run)), bound(steeper())
    shares = first.shares([0.05, 0.2])
    assert [rate.n for rate in shares.certified] == [IMAGES, IMAGES]
    by_class = first.shares_by_class([0.1])
    assert sum(group.n for group in by_class.shares) == IMAGES
    by_confidence, edges = first.shares_by_confidence([0.1], n_bins=3)
    assert len(by_confidence) == len(edges) <= 3
    compared = first.compare(second, [0.1, 0.2])
    assert compared.comparisons[0].only_first >= compared.comparisons[0].only_second
    assert compared.correction == "holm"
    with pytest.raises(InputError, match="expected the same norm"):
        first.compare(bound(norm="l2", max_images=1), [0.1])
    with pytest.raises(InputTypeError, match="expected a Sandwich"):
        first.compare(first.run, [0.1])  # type: ignore[arg-type]  # a wrong type


def test_tables_logs_and_frames(tmp_path: Path, base_run: Path) -> None:
    both = Sandwich(Run(base_run))
    table = sandwich_table(both.run, [0.1])
    assert table.title == f"Sandwich of {IMAGES} images"
    # No number stands under a column that it does not belong to, and no row repeats what an interval is.
    clean, at, *quartiles = [[str(cell) for cell in row] for row in table.rows]
    rate = both.run.clean_accuracy()
    assert clean[0] == "radius 0 (clean)"
    assert clean[1].startswith(f"{100 * rate.value:.1f} % (")
    assert [row[0] for row in quartiles] == ["lower quartile", "median", "upper quartile"]
    assert at[0].endswith("radius 0.1")
    assert all(" % (" in cell for cell in at[1:])
    summary = run_summary(both.run, [0.1])
    assert summary["shares"][0]["certified"]["n"] == IMAGES
    assert summary["crossings"] == []
    write_log(both.run, tmp_path / "log.tsv")
    log = read_log(tmp_path / "log.tsv")
    assert np.array_equal(log["upper"], both.upper)
    assert (log["lower"] <= both.lower).all()
    assert log["lower_by"].tolist() == both.run.table["lower_by"].tolist()
    frame = both.to_pandas()
    assert frame["gap"].tolist() == both.gap.tolist()
    assert "crossings=0" in repr(both)
    assert both.to_dict()["crossings"] == []


def test_edited_smoothed_runs_are_found_by_the_audit(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    bound(smoother(), out=path)
    row = int(np.flatnonzero(Run(path).table["lower"] > 0)[0])
    change(path, f"UPDATE result SET lower = lower * 1.01 WHERE idx = {row}")
    kinds = {finding["kind"] for finding in audit_run(Run(path))["findings"]}
    assert "above-votes" in kinds
    forged = 'p_value = 1e-9, counts_adv = \'{"0":500,"1":500}\''
    change(path, f"UPDATE result SET lower = lower / 1.01, {forged} WHERE idx = {row}")
    messages = " ".join(finding["message"] for finding in audit_run(Run(path))["findings"])
    assert "p_value differs" in messages
    assert "votes do not reject the label" in messages
    change(path, f"UPDATE result SET x_adv = x'00' WHERE idx = {row}")
    run = Run(path)
    with pytest.raises(FileFormatError, match="expected 256 bytes an image"):
        audit_run(run)


def test_a_model_of_nan_certifies_nothing() -> None:
    linear = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval()
    nn.init.constant_(linear[1].weight, 1e38)
    both = bound(linear)
    assert (both.lower == 0).all()
    assert both.crossings == ()


class Odd(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.special.bessel_j0(x)


@pytest.mark.parametrize(
    ("classifier", "options", "error", "message"),
    [
        (fitted, {"norm": "l0"}, InputError, "norm: expected"),
        (fitted, {"epsilons": [0.1, 0.1]}, InputError, "epsilons: expected positive numbers"),
        (fitted, {"semantics": "float32", "method": "lipschitz"}, InputError, 'expected "real"'),
        (fitted, {"method": "magic"}, InputError, "method: expected"),
        (fitted, {"clip": (0.0, 0.5)}, InputError, "expected pixels in"),
        (fitted, {"n": 100}, InputError, "n: expected none for a base classifier"),
        (fitted, {"keep_examples": 1}, InputTypeError, "keep_examples"),
        (fitted, {"seed": -1}, InputError, "seed"),
        (smoother, {"norm": "l2"}, InputError, "norm: expected none for a smoothed classifier"),
        (smoother, {"device": "cpu"}, InputError, "device: expected none for a smoothed classifier"),
        (smoother, {"epsilons": 0.1}, InputError, "epsilons: expected none for a smoothed classifier"),
        (smoother, {"alpha_attack": 1.0}, InputError, "alpha_attack"),
        (smoother, {"n_attack": 0}, InputError, "n_attack"),
        (smoother, {"steps": 0}, InputError, "steps"),
        (smoother, {"draws": 0}, InputError, "draws"),
        (lambda: print, {}, InputTypeError, r"classifier: expected a torch\.nn\.Module or a RandomizedSmoothing"),
        (lambda: copy.deepcopy(fitted()).to(torch.bfloat16), {}, InputTypeError, "float32 or float64"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10), Odd()).eval(), {}, ModelError, "special|no bound rule"),
    ],
)
def test_bad_arguments_are_named(
    classifier: Any, options: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        bound(classifier(), **options, out=tmp_path / "run.db")
    assert list(tmp_path.iterdir()) == []


def test_runs_of_other_kinds_are_refused() -> None:
    predictions = predict_dataset(smoother(), digits(IMAGES), n=10)
    with pytest.raises(InputError, match="expected one of kind sandwich"):
        Sandwich(predictions)


def test_certificates_of_another_arithmetic_are_refused() -> None:
    with torch.autocast("cpu"), pytest.raises(ModelError, match=r"outside torch\.autocast"):
        bound(max_images=1)
    with torch.backends.mkldnn.flags(enabled=False), pytest.raises(InputError, match="oneDNN is off"):
        bound(max_images=1)
    convolutional = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 3)).eval()
    bounded = BoundedModel(convolutional, digits(IMAGES).x[:1])
    assert other_convolutions(bounded.output, torch.device("cpu")) is None
    assert "Winograd" in str(other_convolutions(bounded.output, torch.device("cuda")))


def test_float64_models_and_single_examples() -> None:
    data = digits(IMAGES)
    both = sandwich(copy.deepcopy(fitted()).double(), data.x[:1], data.y[:1], norm="l2")
    assert len(both) == 1
    assert 0 < both.lower[0] <= both.upper[0]
