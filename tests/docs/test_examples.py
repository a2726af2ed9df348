"""Every example runs in an empty folder, and what it prints holds together."""

from __future__ import annotations

import ast
import importlib
import re
import runpy
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))


def run(name: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Lines that an example prints, without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"torch\.")
        runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    return capsys.readouterr().out.splitlines()


def numbers(line: str) -> list[float]:
    """All numbers of a line, percentages as shares."""
    return [float(text[:-1]) / 100 if text.endswith("%") else float(text) for text in re.findall(r"\d+\.?\d*%?", line)]


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch, few_steps):
    monkeypatch.chdir(tmp_path)


def test_first_certificate(capsys):
    header, *rows = run("first_certificate", capsys)
    assert header.split() == ["label", "certified", "class", "l2", "radius"]
    digits = [row.split() for row in rows[:5]]
    assert sum(label == predicted for label, predicted, _ in digits) >= 4
    radii = [float(radius) for label, predicted, radius in digits if label == predicted]
    assert max(radii) <= 0.25 * 3.2  # at most 0.25 · Φ⁻¹(0.001^(1/10,000))
    for row, radius in zip(rows[5:], (0.0, 0.25, 0.5), strict=True):
        shown, rate, lower, upper = numbers(row)
        assert shown == radius
        assert rate == sum(r >= radius for r in radii) / 5
        assert lower <= rate <= upper


def test_tabular(capsys):
    clean, near, far, smoothed, distance, page = run("tabular", capsys)
    assert numbers(clean)[0] > 0.85
    counts = [[int(number) for number in numbers(line)[1:]] for line in (near, far)]
    assert all(sum(row) == 60 and row[0] > 30 for row in counts)
    assert counts[0][0] > counts[1][0]
    assert counts[0][1] < counts[1][1]
    assert numbers(smoothed)[2] > 0.5
    lower, upper = numbers(distance)
    assert 0 < lower < upper
    assert Path(page).stat().st_size > 10_000


def test_image(capsys):
    accuracy, proved, smoothed, distance, page = run("image", capsys)
    clean, robust, _, _ = numbers(accuracy)
    assert robust > 0.5
    assert clean > robust
    assert 0.3 < numbers(proved)[2] <= clean
    assert numbers(smoothed)[2] > 0.3
    assert 0 < numbers(distance)[0] < numbers(distance)[1]
    assert Path(page).stat().st_size > 10_000


def test_audio(capsys):
    clean, near, far, smoothed, distance, page = run("audio", capsys)
    assert numbers(clean)[0] > 0.9
    assert numbers(near)[2] < numbers(far)[2]
    assert numbers(smoothed)[2] > 0.5
    assert 0 < numbers(distance)[0] < numbers(distance)[1]
    assert Path(page).stat().st_size > 10_000


def test_text(capsys):
    clean, words, vectors, page = run("text", capsys)
    assert numbers(clean)[0] == 1
    assert sum(numbers(words)) == 6
    _, _, broken, verified = numbers(vectors)
    assert 0 < verified <= 1 - broken / 6
    assert Path(page).stat().st_size > 10_000


def test_bound_your_own_model(capsys):
    clean, *rows = run("bound_your_own_model", capsys)
    proved = {row.split()[0]: numbers(row)[-1] for row in rows[:3]}
    counts = {row.split()[0]: numbers(row)[0] for row in rows[3:]}
    assert 0.8 < numbers(clean)[0] <= 1
    assert 0 < proved["ibp"] < proved["crown"] <= numbers(clean)[0]
    assert sum(counts.values()) == 100
    assert counts["verified"] >= 100 * proved["crown"] - 0.5
    assert counts["falsified"] > 0


def test_attack_and_curve(capsys):
    _, pgd, auto, _, *curve = run("attack_and_curve", capsys)
    (clean, robust, success), (same, fewer, more) = numbers(pgd), numbers(auto)
    assert clean == same
    assert fewer <= robust < clean
    assert success == pytest.approx(1 - robust, abs=0.01)
    assert more >= success
    rows = [numbers(row) for row in curve]
    assert [row[0] for row in rows] == [0.0, 0.05, 0.1, 0.15, 0.2]
    assert rows[0][1] == rows[0][-1] == clean
    assert rows[3][1] == robust
    for column in (1, -1):
        values = [row[column] for row in rows]
        assert values == sorted(values, reverse=True)
        assert values[-1] < values[0]
    assert all(lower <= rate <= upper for _, rate, lower, upper, _ in rows)


def test_sequential_sweep(capsys, tmp_path):
    first, second, *table = run("sequential_sweep", capsys)
    assert 48 <= numbers(first)[0] < 96
    assert second == "sequential.db: 96 of 96 images"
    assert 0.5 < numbers(table[1])[1] < numbers(table[0])[1] <= 1
    samples, fixed = (float(text.replace(",", "")) for text in re.findall(r"[\d,]*\d{3}", table[2]))
    assert samples < fixed / 5
    before = (tmp_path / "sequential.db").read_bytes()
    assert run("sequential_sweep", capsys) == [second, second, *table]
    assert (tmp_path / "sequential.db").read_bytes() == before


def test_audit_log(capsys, tmp_path):
    honest, survival, average, forged, fault, same, raised, *notes = run("audit_log", capsys)
    assert honest == "honest_sigma0.25.tsv: 60 rows, faults: 0"
    assert forged == "forged_sigma0.25.tsv: 60 rows, faults: 1"
    assert "above the maximum" in fault
    assert "line 8" in fault
    assert "survival curve" in survival
    assert numbers(average)[0] < numbers(raised)[0]
    assert same == survival  # no radius that votes cannot give
    assert notes
    first, second = ((tmp_path / f"{name}_sigma0.25.tsv").read_text().split("\n") for name in ("honest", "forged"))
    assert [i for i, (a, b) in enumerate(zip(first, second, strict=True), start=1) if a != b] == [8]


def test_certified_training(capsys):
    _, *rows = run("certified_training", capsys)
    rates = {row.split()[0]: numbers(row) for row in rows}
    assert list(rates) == ["none", "ibp", "crown-ibp"]
    assert all(clean >= robust >= proved for clean, proved, robust in rates.values())
    assert min(rates["ibp"][1], rates["crown-ibp"][1]) > rates["none"][1] + 0.05


def test_lipschitz_net(capsys):
    constant, _, *rows, mean = run("lipschitz_net", capsys)
    _, upper, lower = numbers(constant)
    assert lower <= upper < 1.01
    certified = [numbers(row)[1] for row in rows]
    assert all(proved <= robust for _, proved, robust in map(numbers, rows))
    assert certified == sorted(certified, reverse=True)
    assert certified[0] > 0.7
    assert numbers(mean)[0] > 0.25


def test_swap_import(capsys):
    header, *rows, last = run("swap_import", capsys)
    assert header.split("\t") == ["idx", "label", "predict", "radius", "correct"]
    table = [[float(field) for field in row.split("\t")] for row in rows]
    assert [row[0] for row in table] == list(range(0, 382, 40))
    assert all(correct == (label == predict) for _, label, predict, _, correct in table)
    certified, images = numbers(last)[1:]
    assert images == len(table)
    assert certified == sum(correct and radius >= 0.25 for *_, radius, correct in table) > images / 2


def test_both_sides(capsys):
    _, _, *lines = run("both_sides", capsys)
    rows = [[float(field) for field in line.split()] for line in lines[:3]]
    for _, *distances in rows:
        for lower, upper in (distances[:2], distances[2:]):
            assert 0 < lower <= upper
    for line, lower, upper in zip(lines[3:], (1, 3), (2, 4), strict=True):
        radius, certified, undecided, attacked = numbers(line)
        assert certified == pytest.approx(sum(row[lower] >= radius for row in rows) / 3, abs=0.005)
        assert attacked == pytest.approx(sum(row[upper] <= radius for row in rows) / 3, abs=0.005)
        assert certified + undecided + attacked == pytest.approx(1, abs=0.011)


def test_word_substitutions(capsys):
    lines = run("word_substitutions", capsys)
    shares = {line.split(":")[0]: numbers(line) for line in lines if not line.startswith(" ")}
    assert list(shares) == ["usual", "bounds"]
    assert all(sum(values) == pytest.approx(1, abs=0.011) for values in shares.values())
    assert shares["bounds"][0] > shares["usual"][0]
    assert all(" -> " in line for line in lines if line.startswith(" "))


def test_threat_verdicts(capsys):
    summary, _, *rows = run("threat_verdicts", capsys)
    assert summary == "ThreatVerdicts(verdicts=72, judged=70, missing=2)"
    rates = {row.split()[0]: numbers(row) for row in rows}
    assert list(rates) == ["fraud", "theft"]
    for rate, lower, upper, behaviours, _, failures, successes in rates.values():
        assert lower <= failures <= rate <= successes <= upper
        assert behaviours == 6
    assert rates["fraud"][0] < rates["theft"][0]
    assert sum(row[4] for row in rates.values()) == 2


def test_triangular_noise(capsys):
    formula, sampler, *rates = run("triangular_noise", capsys)
    assert -1e-9 <= float(formula.split()[-1]) < 1e-6  # attained, up to 1/√6, which is not a double
    assert numbers(sampler)[0] < numbers(sampler)[1] == 0.002
    shares = [numbers(line)[-1] for line in rates]
    assert shares == sorted(shares, reverse=True)
    assert shares[1] > 0.5


def test_no_example_is_left_out():
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    page = (ROOT / "docs" / "examples.md").read_text()
    assert len(SCRIPTS) >= 8
    for script in SCRIPTS:
        assert script.stem in tested
        assert f"(../examples/{script.name})" in page


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_examples_use_public_names_and_say_what_they_print(script):
    tree = ast.parse(script.read_text())
    assert "Prints" in (ast.get_docstring(tree) or "")
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    ours = [(node.module, alias.name) for node in imports for alias in node.names if node.module.startswith("pyrobust")]
    assert ours
    for module, name in ours:
        source = importlib.import_module(module)
        # A drop-in module has the names of what it replaces, and no __all__.
        assert name in source.__all__ if hasattr(source, "__all__") else getattr(source, name).__module__ == module
