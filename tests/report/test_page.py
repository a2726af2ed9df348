"""The HTML page: what it shows of each kind of result, and what it makes of hostile ones."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.certification_logs import log_of, write

pytest.importorskip("jinja2", reason="the extra report")
pytest.importorskip("PIL", reason="the extra report")

from pyrobust.attacks import DDN, FGSM, PGD, AutoAttack
from pyrobust.errors import InputError, InputTypeError, MissingExtraError
from pyrobust.evaluation import Run, attack_dataset, certify_dataset, predict_dataset, sandwich_dataset, verify_dataset
from pyrobust.report import describe_run
from pyrobust.report.page import page_html, write_page
from pyrobust.report.page.adapters import subjects_of
from pyrobust.report.page.figures import accuracy_chart, overlay_chart, survival_chart
from pyrobust.report.page.pictures import Pictures
from pyrobust.report.page.render import BEGINS
from pyrobust.report.page.tables import confidence_table, paired_table
from pyrobust.report.page.words import KeyNumber, _median, key_numbers, verdict
from pyrobust.smoothing import RandomizedSmoothing
from pyrobust.zoo import ImageSet, load_data, load_model

NAME, IBP = "zoo:digits-smooth-0.25", "zoo:digits-ibp-0.10"
HOSTILE = "</script><img src=x onerror=alert(1)>\"'\u202e&amp;"


@pytest.fixture(scope="module")
def digits():
    return load_data("digits")


@pytest.fixture(scope="module")
def model():
    return load_model(NAME)


@pytest.fixture(scope="module")
def smoother(model):
    return RandomizedSmoothing(model, 10, sigma=0.25)


@pytest.fixture(scope="module")
def proof(model, digits):
    return verify_dataset(model, digits, epsilons=[0.01, 0.03], attack="pgd", max_images=40, model_name=NAME)


@pytest.fixture(scope="module")
def attack(model, digits):
    return attack_dataset(PGD(model, 0.1, steps=5), digits, max_images=40, model_name=NAME)


@pytest.fixture(scope="module")
def sandwich(digits, few_steps_in_module):
    return sandwich_dataset(load_model(IBP), digits, max_images=20, model_name=IBP)


def headings(page):
    return re.findall(r"<h[1-4][^>]*>(?:<bdi>)?([^<]*)", page)


def rows(page, table=0):
    """Columns of the table of all examples of a subject, by name."""
    tables = re.findall(r'class="rows-data">(.*?)</script>', page)
    return {column["name"]: column for column in json.loads(tables[table])}


def test_a_certification_alone(smoother, digits):
    run = certify_dataset(smoother, digits, n=200, max_images=30, model_name=NAME)
    page = page_html(run)
    assert page.encode().startswith(BEGINS)
    assert {"Certified accuracy", "How sure the smoothed classifier is", "Histogram of the certified radii"} <= {
        *headings(page)
    }
    assert "distance" not in rows(page)
    assert rows(page)["certified radius"]["values"] == pytest.approx(run.table["radius"].tolist(), rel=1e-5)
    assert rows(page)["p_A"]["values"][0] <= 1
    # the picture of each example, from the bundled data
    assert len(re.findall(r"<img ", page)) == 30
    assert page == page_html(run)


def test_a_prediction_alone(smoother, digits):
    page = page_html(predict_dataset(smoother, digits, n=100, max_images=9, model_name=NAME))
    assert "nothing was certified or attacked" in page
    assert not any("ertified" in heading or "istogram" in heading for heading in headings(page))


def test_an_attack_alone(attack):
    page = page_html(attack)
    assert "Accuracy under attack" in headings(page)
    assert "Nothing was proved" in page
    assert "Above the upper curve: examples that are misclassified" in page
    assert "certified radius" not in rows(page)
    broken = attack.correct & ~attack.robust
    finite = [value not in ("inf", 0) for value in rows(page)["distance"]["values"]]
    assert finite == broken.tolist()


def test_proofs_and_attacks_of_one_network_stand_together(proof, attack):
    [subject] = subjects_of([proof, attack])
    assert subject.radii == [0.01, 0.03, 0.1]
    for radius in subject.radii:
        certified, broken = subject.certified(radius), subject.broken(radius)
        assert not (certified & broken).any()
        assert int(certified.sum()) == (proof.verified_accuracy(radius).successes if radius < 0.1 else 0)
    assert int((~subject.broken(0.1)).sum()) <= attack.robust_accuracy().successes
    page = page_html([proof, attack])
    assert "Certified and attacked accuracy" in headings(page)
    assert "are undecided" in page


def test_a_crossing_is_a_fault(proof, attack):
    [subject] = subjects_of([proof, attack])
    unsound = replace(subject.lower, radius=np.where(subject.correct, 0.2, 0.0))
    assert not subject.crossings
    from pyrobust.report.page import adapters

    parts = [adapters._of_run(attack)]
    parts.append(replace(parts[0], upper=None, lower=unsound, found=None))
    [crossed] = adapters._joined(parts, 0.05)
    assert list(crossed.crossings) == attack.table["index"][attack.correct & ~attack.robust].tolist()
    assert crossed.faults == 1


def test_attacks_on_the_network_do_not_bound_the_smoothed_classifier(smoother, attack, digits):
    run = certify_dataset(smoother, digits, n=100, max_images=40, model_name=NAME)
    smoothed, base = subjects_of([attack, run])
    assert (smoothed.smoothed, smoothed.upper) == (True, None)
    assert (base.smoothed, base.lower) == (False, None)
    assert smoothed.name != base.name


def test_minimum_norm_attacks_and_their_pictures(model, digits):
    run = attack_dataset(DDN(model, norm="l2", steps=5), digits, minimum=True, max_images=12, model_name=NAME)
    page = page_html(run)
    adversarial = int((run.correct & np.isfinite(run.table["distance"])).sum())
    assert len(re.findall(r"<img ", page)) == 12 + 2 * adversarial
    assert len(re.findall("data-scale", page)) == adversarial


def test_a_log_of_text(tmp_path):
    path = write(log_of([*range(900, 930), *[400] * 5, *range(985, 990)], [True] * 40), tmp_path / "net_sigma0.25.tsv")
    from pyrobust.evaluation import read_certification_log

    log = read_certification_log(path, n=1000, alpha=0.001)
    page = page_html(log)
    assert "the log does not name its data" in page
    assert "<img " not in page
    # a page of a log with faults says so first
    path.write_text(path.read_text()[:-9])
    page = page_html(read_certification_log(path, n=1000, alpha=0.001))
    assert "do not rely on these numbers" in page


def test_text_logs_get_pictures_of_data_with_the_same_labels():
    log = log_of([900] * 20, [True] * 20)
    data = ImageSet("mine", torch.rand(20, 3, 4, 4), torch.arange(20) % 10)
    assert len(re.findall("<img ", page_html(log, data=data))) == 20
    with pytest.raises(InputError, match="data: expected the data set of the results, got mine: its labels are others"):
        page_html(log, data=replace(data, y=data.y.flip(0)))
    with pytest.raises(InputError, match="it has 10 examples"):
        page_html(log, data=ImageSet("mine", data.x[:10], data.y[:10]))


def test_without_pillow_the_page_has_no_pictures(attack, digits, monkeypatch):
    from pyrobust.report.page import adapters

    monkeypatch.setattr(adapters, "find_spec", lambda name: None)
    page = page_html(attack)
    assert "pictures need Pillow" in page
    assert "<img " not in page
    with pytest.raises(MissingExtraError, match="pictures need Pillow"):
        page_html(attack, data=digits)


def test_data_from_code_are_not_loaded(model, digits, monkeypatch):
    run = attack_dataset(FGSM(model, 0.1), replace(digits, name="os:abort"), max_images=4, model_name=NAME)
    page = page_html(run)
    assert "the data come from code (os:abort), which is not run for a report" in page
    assert len(re.findall("<img ", page_html(run, data=digits))) >= 4
    with pytest.raises(InputError, match="its hash is"):
        page_html(run, data=ImageSet("other", digits.x * 0.5, digits.y))


def test_hostile_names_are_text(model, digits):
    run = attack_dataset(FGSM(model, 0.1), replace(digits, name=HOSTILE), max_images=4, model_name=HOSTILE)
    page = page_html(run, title=HOSTILE)
    assert "<img src=x" not in page
    assert "\u202e" not in page
    # the scripts are those of the page alone
    assert len(re.findall(r"<script(?: type=\"application/json\"[^>]*)?>", page)) == page.count("</script>")
    assert page.count("<script>") == 1


def test_the_page_sends_no_request(attack):
    page = page_html(attack)
    assert "default-src 'none'" in page
    assert not re.search(r"(src|href|action)=\"(?!data:|#)", page)
    assert not re.search(r"url\(|@import|\son\w+=|\sstyle=", page)


def test_bad_arguments(attack, tmp_path):
    with pytest.raises(InputError, match="expected at least one"):
        page_html([])
    with pytest.raises(InputTypeError, match="expected runs or certification logs, got int"):
        page_html([1])
    path = tmp_path / "page.html"
    write_page(path, attack)
    write_page(path, attack, title="again")
    assert "<title>again</title>" in path.read_text()
    path.write_text("mine")
    with pytest.raises(InputError, match="which exists"):
        write_page(path, attack)
    assert path.read_text() == "mine"
    write_page(path, attack, replace=True)
    assert path.read_bytes().startswith(BEGINS)


def test_what_an_attack_proved_first_is_a_lower_bound(digits):
    attack = AutoAttack(load_model(IBP), 0.1, certify_first=True)
    run = attack_dataset(attack, digits, max_images=8, model_name=IBP)
    [subject] = subjects_of(run)
    assert subject.certified(0.1).tolist() == (run.table["proved"] == 1).tolist()
    assert subject.certified(0.1).any()
    assert not subject.certified(0.11).any()
    assert "were not attacked" in page_html(run)


def test_radii_of_any_size_are_drawn():
    for scale in (1e-300, 1e-12, 1e80):
        log = log_of([900, 950, 600] * 7, [True] * 21)
        log = replace(log, radius=log.radius * scale, n=None, alpha=None, sigma=None)
        assert "Histogram of the certified radii" in page_html(log)


def test_examples_of_another_shape_are_not_shown(attack, digits, monkeypatch):
    monkeypatch.setitem(attack.parameters, "shape", [1, 4, 16])
    page = page_html(attack)
    assert "data-scale" not in page
    assert "<img " in page


def test_an_unfinished_run_says_so(model, digits, tmp_path):
    path = tmp_path / "run.db"

    def stop(now):
        if now.done >= 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attack_dataset(FGSM(model, 0.1), digits, out=path, batch_size=8, max_images=20, progress=stop)
    run = Run(path)
    assert 0 < len(run) < 20
    assert f"Unfinished run: {len(run)} of 20 images." in page_html(run)
    assert f"NOT FINISHED: {len(run)} of 20 images" in describe_run(run)[-1]


@pytest.mark.usefixtures("few_steps")
def test_sandwiches(smoother, digits, sandwich):
    base = sandwich
    smoothed = sandwich_dataset(smoother, digits, n=300, n_attack=300, steps=5, draws=2, max_images=6, model_name=NAME)
    first, second = subjects_of([base.run, smoothed.run])
    assert (first.smoothed, second.smoothed) == (True, False)
    for subject, both in ((first, smoothed), (second, base)):
        assert subject.lower.radius.tolist() == both.lower.tolist()
        assert subject.upper.radius.tolist() == both.upper.tolist()
        radius = subject.headline
        [expected] = both.shares([radius]).certified
        assert subject.rate(int(subject.certified(radius).sum())) == expected
        assert not subject.crossings
        assert set(subject.adversarial) == set(subject.index[(both.upper > 0) & np.isfinite(both.upper)].tolist())
    page = page_html([base.run, smoothed.run])
    assert page.count("are undecided") == 4
    about = "Below the lower curve: examples that are correct and certified at the radius. Above the upper curve: "
    assert page.count(about) == 2
    assert " are certified and at most " in verdict(first)
    assert " are proved robust and at most " in verdict(second)
    assert "softmax" in json.dumps(rows(page, 1)).lower()


@pytest.mark.usefixtures("few_steps")
def test_shares_by_confidence_and_paired_tests(model, digits, sandwich):
    both = [sandwich, sandwich_dataset(model, digits, max_images=20, model_name=NAME)]
    subjects = subjects_of([each.run for each in both])
    confidence = confidence_table(subjects[0])
    shares, edges = both[0].shares_by_confidence([subjects[0].headline])
    assert [row[1] for row in confidence.table.rows] == [each.n for each in shares.shares]
    assert str(confidence.table.rows[0][0]) == f"up to {edges[0]:.6g}"
    assert [(row[2].value, row[2].lower) for row in confidence.table.rows] == [
        (each.certified[0].value, each.certified[0].lower) for each in shares.shares
    ]
    radii = [radius for radius in subjects[0].radii if radius > 0][:8]
    table = paired_table(subjects)
    for outcome in ("certified", "robust"):
        tests = both[0].compare(both[1], radii, outcome).comparisons
        kept = [row for row in table.rows if row[2] == {"robust": "not broken"}.get(outcome, outcome)]
        assert [row[3:5] for row in kept] == [(test.only_first, test.only_second) for test in tests]
        assert all(row[5].value >= test.p_value for row, test in zip(kept, tests, strict=True))
    assert paired_table(subjects[:1]) is None
    page = page_html([each.run for each in both])
    assert page.count("Shares at the marked radius by the confidence") == 2
    assert "Paired tests on the same examples" in page


def test_crossings_of_a_sandwich_are_faults(sandwich, monkeypatch):
    broken = (sandwich.upper > 0) & np.isfinite(sandwich.upper)
    monkeypatch.setitem(sandwich.run.table, "lower", np.where(broken, 1.05 * sandwich.upper, 0.0))
    monkeypatch.setitem(sandwich.run.table, "margin", np.where(broken, -0.1, np.nan))
    [subject] = subjects_of(sandwich.run)
    assert subject.faults == 1
    assert "certified radius that an adversarial example contradicts" in subject.findings[0].message
    assert "do not rely on these numbers" in page_html(sandwich.run)


def logs_of_two_sigmas():
    votes = ([1000] * 8 + [900, 600], [990] * 3 + [900, 850, 800, 700, 600, 600, 300])
    return [
        log_of(counts, [True] * 10, sigma=sigma, name=name)
        for counts, sigma, name in zip(votes, (1.0, 0.25), ("large", "small"), strict=True)
    ]


def test_wrong_classes_come_before_abstentions():
    log = log_of([600, 400, *[1000] * 7, 900], [False, *[True] * 8, False])
    [subject] = subjects_of(log)
    assert log.prediction[[9, 0, 1]].tolist() == [0, 1, -1]
    assert subject.order[:3].tolist() == [9, 0, 1]


def test_models_are_compared_at_one_radius():
    logs = logs_of_two_sigmas()
    alone = [subjects_of(log)[0].headline for log in logs]
    assert alone[0] != alone[1]
    subjects = subjects_of(logs)
    [radius] = {subject.headline for subject in subjects}
    assert radius > 0
    for subject in subjects:
        assert f"At l2 radius {radius:g}, " in verdict(subject)
        chart = accuracy_chart(subject, "chart")
        assert chart.positions[chart.start] == radius
    chart = overlay_chart(subjects, "overlay")
    assert chart.marker.text == f"{radius:g}"
    assert chart.positions[chart.start] == radius
    assert f"{radius:g}" in [row[0] for row in chart.table.rows]


def test_the_least_robust_examples_come_first():
    """Of the misclassified ones, that with the largest certified radius of the wrong class."""
    [subject] = subjects_of(log_of([700, 950, 900, 800], [False, True, False, True]))
    assert subject.order.tolist() == [2, 0, 3, 1]


def test_pictures_of_data_below_zero():
    x = torch.linspace(-1, 1, 16).view(1, 4, 4)
    pictures = Pictures(SimpleNamespace(extremes=(-1.0, 1.0)), {})
    clean, both = pictures._picture(x, None), pictures._picture(x, x)
    assert clean.clean == both.clean == both.adversarial


def test_radii_that_are_asked_for_come_first():
    subjects = subjects_of(logs_of_two_sigmas(), radii=[0.4, 0.0, 0.2])
    assert {subject.headline for subject in subjects} == {0.4}
    assert all(subject.radii == [0.0, 0.2, 0.4] for subject in subjects)
    assert page_html(logs_of_two_sigmas(), radii=[0.4]).count("At l2 radius 0.4,") == 4


@pytest.mark.usefixtures("few_steps")
def test_a_sandwich_begins_with_the_epsilon_that_was_asked_for(digits):
    both = sandwich_dataset(load_model(IBP), digits, epsilons=[0.07], max_images=4, model_name="net")
    [subject] = subjects_of(both.run)
    assert subject.headline == 0.07
    assert 0.07 in subject.radii
    shapes = {shape.style: shape.path for shape in accuracy_chart(subject, "chart").shapes}
    # The bands lie on the outer sides of the curves, so that neither covers the other or what is undecided.
    assert shapes["band certified"].startswith(shapes["line certified"])
    assert reversed_path(shapes["line attacked"]) in shapes["band attacked"]


def reversed_path(path):
    return "L".join(reversed(path.removeprefix("M").split("L")))


def test_a_radius_beyond_proofs_and_attacks_is_no_result(proof, attack):
    [subject] = subjects_of([proof, attack], radii=[0.05])
    assert verdict(subject).endswith("Nothing was proved at l∞ radius 0.05.")
    assert [number.title for number in key_numbers(subject)] == [
        "Correct without a change",
        "Not broken within l∞ 0.05",
    ]
    [subject] = subjects_of([proof, attack], radii=[0.3])
    assert "Attacks were run at smaller radii only: robust accuracy is at most" in verdict(subject)
    assert [number.title for number in key_numbers(subject)] == ["Correct without a change"]


@pytest.mark.parametrize(("images", "interval"), [(5, "0 to ∞"), (6, "0 to 5"), (9, "1 to 7")])
def test_the_median_of_few_images_has_its_exact_interval(images, interval):
    """The ends are the extreme values from six images on: the median is beyond all of five with probability 1/16."""
    median = _median("Median", np.arange(images)[::-1].astype(float), 0.05)
    assert median == KeyNumber("Median", f"{(images - 1) // 2}", interval)


def test_the_survival_curve_has_a_band():
    [subject] = subjects_of(logs_of_two_sigmas()[0])
    chart = survival_chart(subject, "survival")
    [line] = chart.lines
    lower, upper = subject.survival.band()
    assert (line.lower, line.upper) == (tuple(lower.tolist()), tuple(upper.tolist()))
    assert (lower < subject.survival.share).all()
    assert chart.shapes[0].style == "band certified"
