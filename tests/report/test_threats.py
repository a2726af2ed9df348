"""Tables, figure and page of verdicts on threats."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest

from pyrobust.errors import InputError, InputTypeError
from pyrobust.metrics import estimate_rate
from pyrobust.report import format_table, judge_table, model_table, threat_table, threat_tables
from pyrobust.report.verdict_tables import grouping
from pyrobust.threats import (
    ThreatVerdict,
    ThreatVerdicts,
    compare_models,
    is_verdicts,
    join_verdicts,
    queries_to_success,
    read_verdicts,
    success_at_k,
    threat_success_rate,
    write_verdicts,
)
from pyrobust.threats.judges import JudgeLabels, judge_accuracy, labelled_success_rate

DATA = Path(os.environ.get("PYROBUST_DATA", "")) / "text"
needs_data = pytest.mark.skipif(not (DATA / "jbb_judgements.csv").exists(), reason="needs PYROBUST_DATA")
HOSTILE = "</script><img src=x onerror=hacked()>\x00\u202e=1+1|$_\r\nnext"


def row(i, success, behaviour=None, **columns):
    status = "judged" if success is not None else "error"
    return ThreatVerdict(str(i), behaviour=behaviour or str(i), success=success, status=status, **columns)


def cells(table, name):
    return [line[[column.name for column in table.columns].index(name)] for line in table.rows]


@needs_data
def test_published_rates_and_judges():
    logged = read_verdicts(DATA / "jbb_judgements.csv")
    few = (each for each in logged if each.group in ("PAIR", "DSN"))
    verdicts = ThreatVerdicts(tuple(replace(each, queries=None) for each in few))  # their intervals take seconds
    tables = threat_tables(verdicts, ["group", "model"])
    rates = threat_success_rate(verdicts, ["group", "model", "judge"])
    assert len(tables["threats"].rows) == len(rates) == 6 + 4  # two artifacts have a single judge
    assert cells(tables["threats"], "missing as failures")[-1].value == rates[-1].as_failures
    for cell, rate in zip(cells(tables["threats"], "success rate"), rates, strict=True):
        assert (cell.lower, cell.upper) == (rate.lower, rate.upper)
    names = cells(tables["threats"], "group, model, judge")
    row_of = names.index("PAIR · gpt-4-0125-preview · jailbroken")
    assert cells(tables["threats"], "missing as failures")[row_of].value == 0.34
    assert cells(tables["agreement"], "differ")[0] == 58
    assert len(tables["models"].rows) == 12
    one = threat_tables(verdicts, judge="jailbroken")
    assert one["threats"].columns[0].name == "model"
    assert "agreement" not in one
    pair = compare_models(verdicts, judge="jailbroken").comparisons[0]
    difference = cells(one["models"], "difference of the rates")[0]
    assert (difference.value, difference.lower, difference.upper) == (pair.difference, pair.lower, pair.upper)


def test_intervals_are_simultaneous_and_said_to_be():
    rows = [row(f"{m}{i}", i < 3, str(i), model=m) for m in "abcd" for i in range(10)]
    table = threat_table(ThreatVerdicts(tuple(rows)))
    alone = threat_success_rate(ThreatVerdicts(tuple(rows[:10])))[0]
    cell = cells(table, "success rate")[0]
    assert cell.lower < alone.lower < alone.upper < cell.upper
    assert any("95 % for all 4 rows of a column together (Bonferroni)" in note for note in table.notes)
    assert any("Sample: the behaviours" in note for note in table.notes)
    assert "missing as failures" not in [column.name for column in table.columns]
    strict = threat_table(ThreatVerdicts(tuple(rows)), alpha=0.01)
    assert cells(strict, "success rate")[0].lower < cell.lower
    assert any("99 %" in note for note in strict.notes)


def test_kinds_of_threat_and_judges_do_not_mix():
    rows = [row(0, True, threat="refusal"), row(1, False), row(1, True, judge="b")]
    assert cells(threat_table(ThreatVerdicts(tuple(rows))), "model, threat, judge") == [
        "refusal",
        "jailbreak",
        "jailbreak · b",
    ]


def test_without_any_verdict_nothing_is_known():
    table = threat_table(ThreatVerdicts((row(0, None), row(1, None))))
    cell = cells(table, "success rate")[0]
    assert math.isnan(cell.value)
    assert (cell.lower, cell.upper) == (0.0, 1.0)
    assert "2 error" in table.notes[-1]


def test_success_at_k_where_it_is_allowed():
    fixed = ThreatVerdicts(
        tuple(row(f"{b}{a}", (a + b) % 4 == 0, str(b), attempt=a) for b in range(8) for a in range(4))
    )
    assert cells(threat_table(fixed, k=2), "success at 2")[0].value == success_at_k(fixed, 2)[0].value == 0.5
    assert cells(threat_table(fixed), "success at 4")[0].value == 1.0
    # stopped at the first success
    stopped = ThreatVerdicts(tuple(row(f"{b}{a}", a == b, str(b), attempt=a) for b in range(4) for a in range(b + 1)))
    table = threat_table(stopped)
    assert cells(table, "success at 4")[0].value == 1.0
    assert any("a success in the first 4 attempts" in note for note in table.notes)
    assert cells(threat_table(stopped, k=1), "success at 1")[0].value == 0.25


def test_queries_to_success():
    rows = [row(i, i % 2 == 0, queries=10 + i) for i in range(30)]
    verdicts = ThreatVerdicts(tuple(rows))
    table = threat_table(verdicts, budget=20)
    expected = queries_to_success(verdicts, 20)
    mean, median = cells(table, "mean queries, of 20")[0], cells(table, "median queries")[0]
    assert (mean.value, mean.lower, mean.upper) == (expected.mean, expected.lower, expected.upper)
    assert median.value == expected.quantiles[0]
    assert any("largest number of queries, 39" in note for note in threat_table(verdicts).notes)


def test_judges_against_labels():
    truth = [i % 2 == 0 for i in range(200)]
    verdict = [t if i % 5 else not t for i, t in enumerate(truth)]
    rows = [row(i, v, model="m", human_label=truth[i] if i < 60 else None) for i, v in enumerate(verdict)]
    table = judge_table(ThreatVerdicts(tuple(rows)))
    labels = JudgeLabels.of(verdict[:60], truth[:60])
    expected = estimate_rate(30, 60)
    cell = cells(table, "rate of the labels")[0]
    assert (cell.value, cell.lower, cell.upper) == (expected.value, expected.lower, expected.upper)
    assert cells(table, "sensitivity")[0].lower == judge_accuracy(labels).sensitivity.lower
    assert cells(table, "rate of the verdicts")[0].value == sum(verdict) / 200
    assert judge_table(ThreatVerdicts((row(0, True),))) is None


def test_labels_of_whole_behaviours():
    rows = [
        row(f"{b}{a}", (a + b) % 3 == 0, str(b), attempt=a, human_label=(b % 2 == 0) if b < 20 else None)
        for b in range(60)
        for a in range(2)
    ]
    expected = labelled_success_rate(ThreatVerdicts(tuple(rows)))[0]
    assert (expected.clusters, expected.verdicts) == (20, 40)
    cell = cells(judge_table(ThreatVerdicts(tuple(rows))), "rate of the labels")[0]
    assert (cell.value, cell.lower, cell.upper) == (expected.value, expected.lower, expected.upper)


def test_agreement_of_judges():
    rows = [row(i, i < 40, judge="a") for i in range(50)] + [row(i, i < 45, judge="b") for i in range(49)]
    table = threat_tables(ThreatVerdicts(tuple(rows)))["agreement"]
    assert cells(table, "answers of both") == [49]
    assert cells(table, "differ") == [5]
    expected = estimate_rate(44, 49)
    assert (cells(table, "agree")[0].value, cells(table, "agree")[0].lower) == (expected.value, expected.lower)


def test_models_without_common_behaviours_are_left_out():
    rows = [row(f"{m}{i}", i % 2 == 0, f"{i}", model=m) for m in "ab" for i in range(4)]
    rows += [row(f"c{i}", True, f"other {i}", model="c") for i in range(4)]
    assert cells(model_table(ThreatVerdicts(tuple(rows))), "models") == ["a - b"]
    assert model_table(ThreatVerdicts(tuple(rows[4:]))) is None
    with pytest.raises(InputError, match="a and c have in common"):
        compare_models(ThreatVerdicts(tuple(rows)), ["a", "c"])


def test_hostile_names_in_every_form():
    rows = tuple(row(i, True, model=HOSTILE, human_label=True, judge=judge) for judge in "ab" for i in range(3))
    for table in threat_tables(ThreatVerdicts(rows, f"{HOSTILE}.csv")).values():
        for form in ("md", "tex", "csv", "json"):
            text = format_table(table, form)
            assert not {"\x00", "\u202e"} & set(text)
            assert form != "md" or "<img" not in text
        json.loads(format_table(table, "json"))


def test_files_of_verdicts_are_told_from_logs(tmp_path):
    write_verdicts(ThreatVerdicts((row(0, True),)), tmp_path / "v.jsonl")
    (tmp_path / "v.csv").write_text("\ufeffid,success\n0,1\n")
    (tmp_path / "log.tsv").write_text("idx\tlabel\tpredict\tradius\tcorrect\n0\t1\t1\t0.5\t1\n")
    (tmp_path / "commas.csv").write_text("idx,label,predict,radius,correct\n0,1,1,0.5,1\n")
    (tmp_path / "success.tsv").write_text("idx\tlabel\tpredict\tradius\tcorrect,success\n")
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    (tmp_path / "empty").write_bytes(b"")
    names = {path.name for path in (*tmp_path.iterdir(), tmp_path, tmp_path / "missing") if is_verdicts(path)}
    assert names == {"v.jsonl", "v.csv"}


@needs_data
def test_published_logs_are_no_verdicts():
    logs = [*DATA.parent.glob("logs/**/*.tsv")]
    assert logs
    assert not any(map(is_verdicts, logs))
    assert all(
        is_verdicts(DATA / name) for name in ("jbb_judgements.csv", "csv_attack_log.csv", "json_attack_summary.json")
    )


def test_joined_files():
    a = ThreatVerdicts(tuple(row(i, True, judge="a") for i in range(3)), "a.csv")
    other_judge = ThreatVerdicts(tuple(row(i, False, judge="b") for i in range(3)), "b.csv")
    assert set(join_verdicts([a, other_judge]).column("id")) == {"0", "1", "2"}
    other_answers = ThreatVerdicts(tuple(row(i, False, f"other {i}", judge="b") for i in range(3)), "c.csv")
    joined = join_verdicts([a, other_judge, other_answers])
    assert joined.column("id")[-3:] == ["3:0", "3:1", "3:2"]
    assert joined.source == "a.csv\nb.csv\nc.csv"
    again = join_verdicts([a, a])
    assert len(set(again.column("id"))) == 6
    with pytest.raises(InputError, match="at least one"):
        join_verdicts([])


def test_figure():
    pytest.importorskip("matplotlib", reason="the extra plot")
    from pyrobust.report.threat_figure import success_frame

    rows = tuple(row(f"{m}{i}", None if m == 9 else i < m, model=f"$m_{m}") for m in range(45) for i in range(3))
    frame = success_frame(threat_table(ThreatVerdicts(rows)))
    assert b" 5 further rows" in frame.render("svg")
    with pytest.raises(InputError, match="success rates"):
        success_frame(judge_table(ThreatVerdicts(tuple(replace(each, human_label=True) for each in rows[:3]))))


class TestPage:
    @pytest.fixture(autouse=True)
    def _extra(self):
        pytest.importorskip("jinja2", reason="the extra report")

    def page(self, rows, **options):
        from pyrobust.report.page import threat_page_html

        return threat_page_html(ThreatVerdicts(tuple(rows), "file.csv"), **options)

    def columns(self, text):
        data = text.split('class="rows-data">')[1].split("</script>")[0]
        return {column["name"]: column for column in json.loads(data)}

    def test_parts_are_there_if_there_is_material(self):
        text = self.page([row(i, i < 3) for i in range(10)])
        assert 'id="s1-rates"' in text
        assert 'id="s1-judges"' not in text
        assert 'id="s1-models"' not in text
        assert text == self.page([row(i, i < 3) for i in range(10)])
        rows = [
            row(f"{m}{i}", i < 3, f"{i}", model=m, human_label=True, category=f"{i}") for m in "ab" for i in range(5)
        ]
        text = self.page(rows)
        for fragment in ('id="s1-judges"', 'id="s1-models"', "Success rate by category", "Threats against 2 models"):
            assert fragment in text
        from pyrobust.report.page import threat_page_html

        with pytest.raises(InputTypeError, match="read_verdicts"):
            threat_page_html(rows)

    def test_nothing_judged(self):
        assert "nothing is known of the success rate" in self.page([row(0, None), row(1, None)])

    def test_hostile_text(self):
        rows = [row(i, True, model=HOSTILE, group=HOSTILE, prompt=HOSTILE, judge=HOSTILE) for i in range(3)]
        text = self.page([*rows, row(9, False)])
        assert "<img" not in text
        assert not {"\x00", "\u202e"} & set(text)
        prompts = self.columns(text)["prompt"]
        assert prompts["hidden"]
        assert prompts["texts"][0][1] == "next"  # lines are kept

    def test_long_texts_are_cut_and_say_so(self):
        rows = [row(i, True, "b" * 300, prompt="p" * 1_000_000 + str(i)) for i in range(3)]
        text = self.page(rows)
        assert len(text) < 200_000
        columns = self.columns(text)
        assert columns["prompt"]["texts"][0] == ["p" * 2000 + " … [998,001 characters left out]"]
        assert columns["behaviour"]["texts"] == ["b" * 80 + " … [220 characters left out]"]
        names = {name: name[0] * 1_000_000 for name in ("model", "group", "category", "judge")}
        assert len(self.page([row(i, True, human_label=True, **names) for i in range(3)])) < 200_000

    def test_rows_beyond_the_limit_are_left_out_and_counted(self, monkeypatch):
        from pyrobust.report.page import threats

        monkeypatch.setattr(threats, "MAX_ROWS", 7)
        text = self.page([row(i, True) for i in range(10)])
        assert "The table has the first 7 of 10 rows" in text
        assert "10 attempts" in text
        assert len(self.columns(text)["row"]["values"]) == 7

    def test_many_groups(self):
        text = self.page([row(i, i % 2 == 0 and i < 68, model=f"m{i}") for i in range(70)])
        assert "The 59 highest and the lowest of 70 rates are shown" in text


def test_judges_of_different_answers_are_kept_apart():
    verdicts = [row(i, i < 8, model="ab"[i < 8], judge="lenient" if i < 8 else "strict") for i in range(16)]
    assert grouping(ThreatVerdicts(tuple(verdicts))) == ("model", "judge")
    assert model_table(ThreatVerdicts(tuple(verdicts))) is None
