"""Tables of logs, and of attacked and verified runs, side by side: every figure is the log's."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from support.certification_logs import ABSTAINS, CONSTANT, GOOD, POOR, log_of, write

from pyrobust.attacks import FAB, FGSM
from pyrobust.auditing.findings import AuditFinding
from pyrobust.errors import InputError, InputTypeError
from pyrobust.evaluation import Run, attack_dataset, certify_dataset, read_certification_log, verify_dataset
from pyrobust.metrics.certified import average_certified_radius
from pyrobust.report import Quantity, comparison_table, describe_run, robustness_table
from pyrobust.report.axes import LineStyles
from pyrobust.report.figures import certified_accuracy_frame, robust_accuracy_frame, survival_frame
from pyrobust.report.subjects import distinct_names
from pyrobust.smoothing import RandomizedSmoothing
from pyrobust.zoo import load_data, load_model

NET = "zoo:digits-smooth-0.25"


UNUSABLE = r"finite and at least 0, got .* in .*good.tsv; pyrobust audit says where"


def names(table):
    return [column.name for column in table.columns[1:]]


def row(table, start):
    matches = [row for row in table.rows if row[0] == start] or [row for row in table.rows if row[0].startswith(start)]
    assert len(matches) == 1, [row[0] for row in table.rows]
    return matches[0][1:]


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A certification and a verification of one net, in files."""
    folder = tmp_path_factory.mktemp("runs")
    smoother = RandomizedSmoothing(load_model(NET), 10, 0.25)
    certify_dataset(smoother, load_data("digits"), out=folder / "smooth.db", n=200, skip=40, model_name=NET)
    verify_dataset(
        load_model(NET), load_data("digits"), out=folder / "proved.db", radius=True, norm="l2", method="ibp", skip=40
    )
    return folder


def test_a_constant_classifier_ranks_last():
    """The paper's point (Sun, Mao, Müller and Vechev, 2025): its average certified radius is by far the largest."""
    radii = {log.name: float(average_certified_radius(log.radius, log.certified)) for log in (GOOD, POOR, CONSTANT)}
    assert radii["constant"] > 1e4 * max(radii["good"], radii["poor"])
    table = comparison_table([CONSTANT, POOR, GOOD])
    assert names(table) == ["good", "poor", "constant"]
    values = [cell.value for cell in row(table, "average certified radius")]
    assert values == [radii[name] for name in names(table)]
    # last in the table, and with its warning
    assert table.rows[-2][0] == "average certified radius"
    assert "constant classifier" in table.details[-1]
    assert row(table, "area under the survival")[2].value == pytest.approx(0.1)


def test_sureness_comes_first_then_accuracy():
    starts = [section[0][0] for section in comparison_table([GOOD, POOR]).sections]
    assert [start.split()[0] for start in starts] == ["method", "area", "certified", "of", "average"]


def test_figures_match_the_log():
    table = comparison_table([GOOD, POOR], [0.0, 0.3, 99.0], alpha=0.1, delta=0.01)
    for column, log in enumerate((GOOD, POOR)):
        for radius in (0.0, 0.3, 99.0):
            count = int((log.certified & (log.radius >= radius)).sum())
            cell = row(table, f"certified at {radius:g}")[column]
            assert cell.value == count / len(log)
            assert cell.lower <= cell.value <= cell.upper
            # at alpha 0.001 and ten images, one false certificate leaves a probability below 0.01
            assert row(table, f"of these at least, at {radius:g}")[column].value == max(0, count - 0) / len(log)
        assert row(table, "images")[column] == len(log)
        assert row(table, "n")[column] == 1000
        assert row(table, "share with p_A below 1/2")[column].value == 0.2
        p_a = np.where(log.certified, [1000, 999, 950, 900, 800, 700, 650, 990, 0, 0], 0) / 1000
        if log is GOOD:
            assert row(table, "area")[column].value == pytest.approx(np.maximum(0, 2 * p_a - 1).mean())
    assert "90 % intervals" in " ".join(table.notes)
    assert "at most 0.01" in " ".join(table.details)


def test_notes_state_what_printed_digits_leave_open():
    # four digits tell one of a thousand votes, and not one of a hundred thousand
    logs = [log_of([n * 9 // 10] * 5, [True] * 5, n=n) for n in (1000, 100_000)]
    exact, coarse = map(comparison_table, logs)
    assert not any(cells[0].startswith("the area") for cells in exact.rows)
    span = row(coarse, "the area, for possible votes")[0]
    assert span.lower < 0.8 < span.upper
    # the interval for other images is another matter: all five are the same here
    assert row(coarse, "area")[0].lower == row(coarse, "area")[0].upper == row(coarse, "area")[0].value


def test_possibly_false_certificates_are_subtracted():
    log = log_of([990] * 400, [True] * 400, alpha=0.05)
    cell = row(comparison_table(log, [0.0]), "of these at least")[0]
    # P(Bin(400, 0.05) > 35) is 0.00057, P(Bin(400, 0.05) > 34) is 0.00110
    assert cell.value == (400 - 35) / 400
    assert str(cell) == "91.25 %"


def test_a_single_log_and_one_that_abstains():
    table = comparison_table(ABSTAINS)
    assert names(table) == ["abstains"]
    assert [row[0] for row in table.rows if row[0].startswith("certified")] == ["certified at 0"]
    assert row(table, "certified at 0")[0].value == 0
    assert row(table, "average certified radius")[0].value == 0
    assert row(table, "area")[0].value == 0


def test_logs_without_votes_come_last_with_a_reason():
    unknown = dataclasses.replace(GOOD, name="unknown", n=None, alpha=None)
    table = comparison_table([unknown, POOR])
    assert names(table) == ["poor", "unknown"]
    assert row(table, "area")[1] is None
    assert row(table, "n") == (1000, "unknown")
    assert row(table, "of these at least, at 0")[1] is None
    assert any("unknown has no votes: its n, alpha are unknown; give n, alpha" in note for note in table.notes)
    alone = comparison_table(unknown)
    assert not any(cells[0].startswith("area") for cells in alone.rows)
    assert not any(note.startswith("p_A") for note in alone.details)


def test_runs_have_exact_votes_and_their_hashes(stored):
    smooth, proved = (read_certification_log(stored / name) for name in ("smooth.db", "proved.db"))
    table = comparison_table([proved, smooth], [0.0, 0.1])
    assert names(table) == ["smooth", "proved"]
    assert not any(cells[0].startswith("the area") for cells in table.rows)
    assert row(table, "method") == ("gaussian smoothing", "ibp")
    assert row(table, "sigma") == ("0.25", None)
    for column, log in enumerate((smooth, proved)):
        assert row(table, "data sha256")[column] == log.header.data_sha256[:12]
        assert row(table, "model sha256")[column] == log.header.model_sha256[:12]
        assert row(table, "certified at 0.1")[column].value == np.mean(log.certified & (log.radius >= 0.1))
        # a verification with radius 0 has proved nothing
        assert row(table, "certified at 0")[column].value == np.mean(log.certified)
    # proofs are not false
    assert row(table, "of these at least, at 0.1")[1].value == row(table, "certified at 0.1")[1].value
    from pyrobust.evaluation import Run

    for line in describe_run(Run(stored / "smooth.db")):
        assert f"smooth: {line}" in table.details
    assert any("bound propagation, without samples" in note for note in table.notes)


def test_notes_state_differences_between_logs():
    def said(*logs):
        return " ".join(note for note in comparison_table(logs).notes if note.startswith("The logs do not"))

    assert said(GOOD, POOR) == ""
    assert "same sigma" in said(GOOD, CONSTANT)
    assert "same n and alpha" in said(GOOD, log_of([100] * 10, [True] * 10, n=100))
    assert "same images" in said(GOOD, log_of([900] * 9, [True] * 9))
    shuffled = dataclasses.replace(GOOD, index=GOOD.index[::-1].copy())
    assert said(GOOD, shuffled) == ""


def test_equal_names_are_made_distinct(tmp_path):
    logs = [dataclasses.replace(GOOD, path=Path(folder, "net.tsv"), name="net") for folder in ("a", "b", "b", "b")]
    assert distinct_names(logs) == ["a/net", "b/net", "b/net (2)", "b/net (3)"]
    assert distinct_names([GOOD, POOR]) == ["good", "poor"]
    assert len(set(names(comparison_table(logs)))) == 4


def test_notes_state_the_origin_of_parameters(tmp_path):
    log = read_certification_log(write(GOOD, tmp_path / "net_sigma0.25.tsv"), n=1000)
    text = " ".join(comparison_table(log).all_notes)
    assert "sigma: the name of the file" in text
    assert "n: given" in text
    assert "model and data not stated" in text
    damaged = dataclasses.replace(log, findings=(AuditFinding("truncated", "fault", "the last line was cut off"),))
    assert any("the last line was cut off" in note for note in comparison_table(damaged).notes)


def test_default_radii():
    def radii(log):
        starts = [cells[0] for cells in comparison_table(log).rows if cells[0].startswith("certified")]
        return [float(start.removeprefix("certified at ")) for start in starts]

    assert radii(GOOD) == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6]  # quarters would be three rows
    assert radii(log_of([900] * 5, [True] * 5, sigma=1.0)) == [0.0, 0.25, 0.5, 0.75, 1.0]
    small = radii(log_of([900] * 5, [True] * 5, sigma=0.01))
    assert small[0] == 0.0
    assert 5 <= len(small) <= 13
    assert small[-1] <= 0.0126


@pytest.mark.parametrize(
    ("logs", "arguments", "error", "match"),
    [
        ([], {}, InputError, "logs: expected at least one, got none"),
        ([3], {}, InputTypeError, "logs: expected CertificationLog, one or several, got int"),
        ([GOOD, dataclasses.replace(GOOD, norm="l1")], {}, InputError, "one norm, got l1, l2"),
        *(
            (dataclasses.replace(GOOD, radius=np.r_[GOOD.radius[:9], radius]), {}, InputError, UNUSABLE)
            for radius in (math.nan, math.inf, -0.5)
        ),
        (GOOD, {"radii": [-1.0]}, InputError, "radii"),
        (GOOD, {"alpha": 0.0}, InputError, "alpha"),
        (GOOD, {"delta": 1.0}, InputError, "delta"),
    ],
)
def test_bad_input(logs, arguments, error, match):
    with pytest.raises(error, match=match):
        comparison_table(logs, **arguments)


def test_cells_are_numbers_or_text():
    for cells in comparison_table([GOOD, POOR]).rows:
        assert isinstance(cells[0], str)
        assert all(isinstance(cell, (str, int, Quantity)) for cell in cells[1:])


# --- attacked and verified runs


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
    for index, name in enumerate((SMOOTH, IBP)):
        classifier_runs = [run for run in runs if run.header.model == name]
        for epsilon, text in zip(EPSILONS, ("8/255", "0.1"), strict=True):
            upper = next(run for run in classifier_runs if run.parameters.get("epsilon") == epsilon).robust_accuracy()
            lower = classifier_runs[-1].verified_accuracy(epsilon)
            assert rows[f"linf {text}: robust under attack, FGSM"][index] == quantity(upper)
            assert rows[f"linf {text}: verified, ibp"][index] == quantity(lower)
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
    from support.certification_logs import log_of

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
    for column, run in enumerate((smooth, ibp)):
        # The epsilon of the other attack is one of the rows.
        share = rows["linf 8/255: robust under attack, FAB, 2 steps"][column]
        assert share == quantity(run.robust_accuracy(epsilon=8 / 255))
        median = rows["linf distance, median: FAB, 2 steps"][column]
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
    proof, attack = verified(IBP), nearest(IBP, images=100)
    assert not any("CROSSING" in note for note in robustness_table([attack, proof]).notes)
    distance = attack.table["distance"]
    index = int(np.flatnonzero(np.isin(attack.table["index"], proof.table["index"]) & (distance > 0))[0])
    row = np.flatnonzero(proof.table["index"] == attack.table["index"][index])
    proof.table["radius"][:] = 0.0
    proof.table["radius"][row] = distance[index]
    [note] = [note for note in robustness_table([attack, proof]).notes if "CROSSING" in note]
    assert f"image {attack.table['index'][index]}," in note
