"""Attacked and verified runs side by side: table and figure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pyrobust.attacks import FAB, FGSM
from pyrobust.errors import InputError, InputTypeError
from pyrobust.evaluation import Run, attack_dataset, certify_dataset, verify_dataset
from pyrobust.report import robustness_table
from pyrobust.report.axes import LineStyles
from pyrobust.report.figures import certified_accuracy_frame, robust_accuracy_frame, survival_frame
from pyrobust.report.formats import Quantity
from pyrobust.smoothing import RandomizedSmoothing
from pyrobust.zoo import load_data, load_model

SMOOTH, IBP = "zoo:digits-smooth-0.25", "zoo:digits-ibp-0.10"
EPSILONS = (8 / 255, 0.1)


def attacked(name: str, epsilon: float, **options: object) -> Run:
    attack = FGSM(load_model(name), epsilon, **options)
    return attack_dataset(attack, load_data("digits"), skip=20, model_name=name)


def verified(name: str) -> Run:
    data = load_data("digits")
    return verify_dataset(load_model(name), data, epsilons=EPSILONS, skip=20, method="ibp", model_name=name)


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return [
        *(attacked(name, epsilon) for name in (SMOOTH, IBP) for epsilon in EPSILONS),
        verified(SMOOTH),
        verified(IBP),
    ]


def test_bounds_of_a_classifier_stand_in_one_column(runs: list[Run]) -> None:
    table = robustness_table(runs)
    assert [column.name for column in table.columns] == ["", SMOOTH, IBP]
    rows = {str(row[0]): row[1:] for row in table.rows}
    for place, name in enumerate((SMOOTH, IBP)):
        own = [run for run in runs if run.header.model == name]
        for epsilon, text in zip(EPSILONS, ("8/255", "0.1"), strict=True):
            upper = next(run for run in own if run.parameters.get("epsilon") == epsilon).robust_accuracy()
            lower = own[-1].verified_accuracy(epsilon)
            assert rows[f"linf {text}: robust under attack, FGSM"][place] == quantity(upper)
            assert rows[f"linf {text}: verified, ibp"][place] == quantity(lower)
            assert lower.value <= upper.value
    assert not any("CROSSING" in note for note in table.notes)


def quantity(rate) -> Quantity:
    return Quantity(rate.value, rate.lower, rate.upper, 2, percent=True)


def test_runs_of_one_method_do_not_replace_each_other(runs: list[Run]) -> None:
    table = robustness_table([runs[0], attacked(SMOOTH, EPSILONS[0], seed=1)])
    assert [str(row[0]).startswith("linf 8/255: robust") for row in table.rows][-2:] == [True, True]
    assert table.rows[-1][0] != table.rows[-2][0]


def test_a_crossing_is_reported(runs: list[Run]) -> None:
    proof = verified(SMOOTH)
    proof.table["radius"] = np.full(len(proof), 1.0)
    broken = int((runs[1].correct & ~runs[1].robust).sum())
    assert broken > 0
    [note] = [note for note in robustness_table([runs[1], proof]).notes if "CROSSING" in note]
    assert f"and {broken - 1} more" in note or broken == 1


def test_only_runs_that_bound_robust_accuracy(runs: list[Run]) -> None:
    data = load_data("digits")
    searched = verify_dataset(load_model(SMOOTH), data, radius=True, skip=100, method="ibp")
    certified = certify_dataset(RandomizedSmoothing(load_model(SMOOTH), 10, 0.25), data, n=50, max_images=2)
    for wrong in (searched, certified, [runs[0], certified], []):
        with pytest.raises(InputError, match=r"^runs: expected"):
            robustness_table(wrong)
    for wrong in (3, [3], "run.db"):
        with pytest.raises(InputTypeError, match=r"^runs: expected"):
            robustness_table(wrong)


def test_a_classifier_has_one_line_style_in_all_figures(runs: list[Run], tmp_path: Path) -> None:
    from certification_logs import log_of

    pytest.importorskip("matplotlib", reason="the extra plot")

    def styles_of(frame) -> list[tuple[str, str]]:
        return [(line.get_color(), str(line.get_linestyle())) for line in frame.axes.lines]

    logs = [log_of([1000, 900], [True, True], name=name) for name in ("a", "b", "c")]
    styles = LineStyles()
    first, second, third = styles_of(certified_accuracy_frame(logs, styles=styles))
    assert styles_of(survival_frame(logs[1:], styles=styles)) == [second, third]
    assert len({first, second, third}) == 3
    drawn = [line for line in robust_accuracy_frame(runs, styles=styles).axes.lines if line.get_marker() in ("v", "^")]
    smooth_attack, smooth_proof, ibp_attack, ibp_proof = ((line.get_color(), line.get_linestyle()) for line in drawn)
    assert smooth_attack == smooth_proof != ibp_attack == ibp_proof
    assert len({color for color, _ in (first, second, third, smooth_attack, ibp_attack)}) == 5
    frame = robust_accuracy_frame(runs)
    frame.write(tmp_path / "robust.png")
    with pytest.raises(InputError, match="one norm"):
        robust_accuracy_frame([runs[0], attacked(SMOOTH, 0.5, norm="l2")])


def nearest(name: str, images: int = 8, norm: str = "linf", seed: int = 0) -> Run:
    attack = FAB(load_model(name), norm=norm, steps=2, seed=seed)
    return attack_dataset(attack, load_data("digits"), minimum=True, max_images=images, model_name=name)


def test_minimum_norm_runs_stand_beside_others(runs: list[Run]) -> None:
    smooth, ibp = nearest(SMOOTH), nearest(IBP)
    table = robustness_table([smooth, ibp, runs[0]])
    rows = {str(row[0]): row[1:] for row in table.rows}
    for place, run in enumerate((smooth, ibp)):
        # The epsilon of the other attack is one of the rows.
        share = rows["linf 8/255: robust under attack, FAB, 2 steps"][place]
        assert share == quantity(run.robust_accuracy(epsilon=8 / 255))
        median = rows["linf distance, median: FAB, 2 steps"][place]
        assert isinstance(median, Quantity)
        assert median.value == np.sort(run.table["distance"])[3]
    assert any("no lower bound of robustness" in note for note in table.details)
    frame = robust_accuracy_frame([smooth, ibp, runs[0]])
    steps = [line for line in frame.axes.lines if line.get_drawstyle() == "steps-post"]
    assert len(steps) == 2
    for line, run in zip(steps, (smooth, ibp), strict=True):
        x, y = line.get_data()
        for epsilon, share in zip(x, y, strict=True):
            assert share == pytest.approx(100 * run.robust_accuracy(epsilon=epsilon).value)


def test_curves_of_other_images_or_norms_are_refused(runs: list[Run]) -> None:
    first, fewer, other = nearest(SMOOTH), nearest(IBP, images=7), nearest(IBP, norm="l2")
    for draw in (robustness_table, robust_accuracy_frame):
        with pytest.raises(InputError, match=r"on the same images, got .*, of other images; their curves do not"):
            draw([first, fewer])
    with pytest.raises(InputError, match="expected radii of one norm, got l2, linf"):
        robust_accuracy_frame([first, other])


def test_a_crossing_of_a_nearest_example_is_reported() -> None:
    proof, found = verified(IBP), nearest(IBP, images=100)
    assert not any("CROSSING" in note for note in robustness_table([found, proof]).notes)
    distance = found.table["distance"]
    index = int(np.flatnonzero(np.isin(found.table["index"], proof.table["index"]) & (distance > 0))[0])
    row = np.flatnonzero(proof.table["index"] == found.table["index"][index])
    proof.table["radius"][:] = 0.0
    proof.table["radius"][row] = distance[index]
    [note] = [note for note in robustness_table([found, proof]).notes if "CROSSING" in note]
    assert f"image {found.table['index'][index]}," in note
