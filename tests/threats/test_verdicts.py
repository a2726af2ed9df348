"""The table of verdicts and its own files; judges against labels; verdicts of word substitution attacks."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from scipy import special

from pyrobust.errors import FileFormatError, InputError, InputTypeError, MissingExtraError
from pyrobust.text import WordSubstitution
from pyrobust.threats import (
    ThreatVerdict,
    ThreatVerdicts,
    read_verdicts,
    threat_success_rate,
    word_attack_verdicts,
    write_verdicts,
)
from pyrobust.threats.judges import JudgeLabels, judge_accuracy, labelled_success_rate, labels_by_model

ROWS = (
    ThreatVerdict("0", prompt='a\n"b" \ud800', success=True, score=0.25, judge="j", queries=2**60, cost=0.5, model="m"),
    ThreatVerdict("0", success=False, judge="k", human_label=True, attempt=3, group="g", category="c", threat="t"),
    ThreatVerdict("1", status="unsubmitted", behaviour="b"),
    ThreatVerdict("2", status="error"),
    ThreatVerdict("3", status="unparsable"),
)


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"id": 1}, InputTypeError, "id: expected a string, got 1"),
        ({"success": 1}, InputTypeError, "success: expected True, False or None, got 1"),
        ({"success": None}, InputError, "success: expected None exactly if status is not judged, got None with judged"),
        ({"success": False, "status": "error"}, InputError, "success: expected None exactly .*, got False with error"),
        ({"status": "lost"}, InputError, "status: expected one of judged, unsubmitted, error, unparsable"),
        ({"human_label": "yes"}, InputTypeError, "human_label: expected True"),
        ({"score": math.nan}, InputError, "score: expected a finite float or None, got nan"),
        ({"cost": 1}, InputError, "cost: expected a finite float"),
        ({"queries": -1}, InputError, "queries: expected an integer of at least 0"),
        ({"attempt": None}, InputError, "attempt: expected an integer"),
        ({"extras": (("note", 1),)}, InputTypeError, "extras: expected pairs of strings"),
        ({"extras": (("a", "b", "c"),)}, InputTypeError, "extras: expected pairs of strings"),
    ],
)
def test_bad_rows(values, error, message):
    with pytest.raises(error, match=f"^{message}"):
        ThreatVerdict(**({"id": "0", "success": True} | values))


def test_tables():
    verdicts = ThreatVerdicts((replace(ROWS[0], prompt="p"), *ROWS[1:]), "log")
    assert verdicts.column("success") == [True, False, None, None, None]
    assert verdicts.missing == 3
    assert [row.id for row in verdicts.where(judge="k")] == ["0"]
    assert verdicts.to_dict()["source"] == "log"
    frame = verdicts.to_pandas()
    assert frame.shape == (5, 15)
    assert frame.attrs == {"source": "log"}
    with pytest.raises(InputError, match=r"^rows: expected one verdict of each judge on each id, got 2 on '0' by 'j'"):
        ThreatVerdicts((ROWS[0], ROWS[0]))
    with pytest.raises(InputTypeError, match=r"^rows: expected ThreatVerdict objects, got"):
        ThreatVerdicts(({"id": "0"},))
    with pytest.raises(InputError, match=r"^column: expected one of id"):
        verdicts.where(judges="k")


def test_json_lines(tmp_path):
    path = tmp_path / "verdicts.jsonl"
    write_verdicts(ThreatVerdicts(ROWS), path)
    assert read_verdicts(path).rows == ROWS
    assert [file.name for file in tmp_path.iterdir()] == ["verdicts.jsonl"]
    write_verdicts(ThreatVerdicts(ROWS[:1]), path)  # its own kind
    assert len(read_verdicts(path)) == 1
    path.write_text("a,b\n")
    with pytest.raises(InputError, match=r"^path: expected a new file, or one of the same kind, got 'verdicts.jsonl'"):
        write_verdicts(ThreatVerdicts(ROWS), path)
    assert path.read_text() == "a,b\n"
    write_verdicts(ThreatVerdicts(ROWS), path, replace=True)
    assert len(read_verdicts(path, "verdicts")) == 5


@pytest.mark.parametrize(
    ("line", "change", "message"),
    [
        (0, {"version": 2}, "line 1: expected verdicts of version 1"),
        (0, {"version": True}, "line 1: expected verdicts of version 1"),
        (1, {"success": "yes"}, "line 2: success: expected True, False or None"),
        (1, {"id": None}, "line 2: id: expected a string, got None"),
        (2, {"verdict": 1}, "line 3: expected the columns id, prompt,"),
        (3, {"status": "judged"}, "line 4: success: expected None exactly"),
    ],
)
def test_damaged_json_lines(tmp_path, line, change, message):
    path = tmp_path / "verdicts.jsonl"
    write_verdicts(ThreatVerdicts(ROWS), path)
    lines = path.read_text().splitlines()
    lines[line] = json.dumps(json.loads(lines[line]) | change)
    path.write_text("\n".join(lines))
    with pytest.raises(FileFormatError, match=f"^{path}: {message}"):
        read_verdicts(path)
    write_verdicts(ThreatVerdicts(ROWS), path, replace=True)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(FileFormatError, match=f"^{path}: line 6: JSONDecodeError"):
        read_verdicts(path)


def test_parquet(tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "verdicts.parquet"
    rows = (replace(ROWS[0], prompt="p"), *ROWS[1:])
    write_verdicts(ThreatVerdicts(rows), path)
    assert read_verdicts(path).rows == rows
    with pytest.raises(InputError, match="which exists"):
        write_verdicts(ThreatVerdicts(rows), path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(FileFormatError, match="not a readable Parquet file"):
        read_verdicts(path)


def test_parquet_after_pandas(tmp_path):
    """Edited tables have floats for integers and truth values, numbers for ids, an index, and gaps in texts."""
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    path = tmp_path / "verdicts.parquet"
    rows = tuple(ThreatVerdict(str(i), success=i == 1, queries=i, category="x") for i in range(3))
    frame = pandas.DataFrame({name: [getattr(row, name) for row in rows] for name in ("id", "success", "queries")})
    frame = frame.assign(id=range(3), success=frame.success.astype(float), queries=frame.queries.astype(float))
    frame.assign(category=["x", None, "x"], note="further").set_index("id").to_parquet(path)
    note = (("note", "further"),)
    expected = tuple(replace(row, extras=note, category="" if row.id == "1" else "x") for row in rows)
    assert read_verdicts(path).rows == expected
    for column, value, message in [
        ("queries", 0.5, "row 1: queries: expected an integer, got '0.5'"),
        ("success", 0.5, "row 1: success: expected true, false or nothing, got '0.5'"),
    ]:
        wrong = frame.copy()
        wrong.loc[1, column] = value
        wrong.to_parquet(path)
        with pytest.raises(FileFormatError, match=message):
            read_verdicts(path)


def test_parquet_names_what_it_needs(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"^Parquet: needs pandas and pyarrow"):
        write_verdicts(ThreatVerdicts(ROWS), tmp_path / "a.parquet")
    assert not list(tmp_path.iterdir())


def test_a_name_twice_in_an_object_is_refused(tmp_path):
    path = tmp_path / "verdicts.jsonl"
    write_verdicts(ThreatVerdicts(ROWS), path)
    path.write_text(path.read_text().replace('"success": ', '"success": true, "success": '))
    with pytest.raises(FileFormatError, match="expected different names in an object, got 'success' twice"):
        read_verdicts(path)


# --- judges


def test_counts():
    verdicts, labels = [True, True, False, False, True], [True, False, True, False, True]
    table = JudgeLabels.of(verdicts, labels)
    assert table == JudgeLabels(2, 1, 1, 1)
    assert (table.n, table.successes) == (5, 3)
    assert labels_by_model(verdicts, labels, "aabba") == {"a": JudgeLabels(2, 0, 1, 0), "b": JudgeLabels(0, 1, 0, 1)}


def test_accuracy_is_exact_and_defined_without_labels():
    accuracy = judge_accuracy(JudgeLabels(45, 5, 10, 90))
    assert accuracy.sensitivity.lower == pytest.approx(special.betaincinv(45, 6, 0.025))
    assert accuracy.specificity.upper == pytest.approx(special.betaincinv(91, 10, 0.975))
    assert accuracy.informative
    empty = judge_accuracy(JudgeLabels(0, 0, 3, 4))
    assert math.isnan(empty.sensitivity.value)
    assert (empty.sensitivity.lower, empty.sensitivity.upper, empty.informative) == (0.0, 1.0, False)


def test_the_rate_of_the_labels_is_that_of_labels_as_verdicts():
    rows = [
        ThreatVerdict(
            f"{b}/{a}", behaviour=str(b), attempt=a, success=a == 0, human_label=b % 2 == 0, model="ab"[b % 2]
        )
        for b in range(20)
        for a in range(2)
    ]
    rows[0] = replace(rows[0], success=None, status="unparsable")  # its label counts all the same
    others = [ThreatVerdict(f"other {i}", behaviour=f"other {i}", success=True) for i in range(30)]
    rate = labelled_success_rate(ThreatVerdicts((*rows, *others)))[0]
    labels = ThreatVerdicts(tuple(replace(row, success=row.human_label, status="judged") for row in rows))
    assert rate == threat_success_rate(labels)[0]
    assert (rate.value, rate.clusters, rate.missing, rate.method) == (0.5, 20, 0, "betting")
    single = labelled_success_rate(ThreatVerdicts(tuple(rows[::2])))[0]
    assert single.upper == pytest.approx(special.betaincinv(11, 10, 0.975))
    assert [each.value for each in labelled_success_rate(ThreatVerdicts(tuple(rows)), "model")] == [1.0, 0.0]
    with pytest.raises(InputError, match="verdicts: expected rows with a human_label, got none"):
        labelled_success_rate(ThreatVerdicts(tuple(others)))
    both = (*rows, *(replace(row, judge="second") for row in rows))
    with pytest.raises(InputError, match="judge: expected one of"):
        labelled_success_rate(ThreatVerdicts(both))


def test_bad_input():
    for function, arguments, error, match in [
        (JudgeLabels, (-1, 0, 0, 0), InputError, "true_positives: expected"),
        (JudgeLabels, (10**7, 1, 0, 0), InputError, "expected"),
        (JudgeLabels.of, ([1, 0], [True, False]), InputTypeError, "verdicts: expected booleans"),
        (JudgeLabels.of, ([True, False], [True]), InputError, "labels: expected 2"),
        (labels_by_model, ([True], [True], "ab"), InputError, "models: expected 1"),
        (judge_accuracy, (JudgeLabels(1, 0, 0, 1), 1.0), InputError, "alpha"),
    ]:
        with pytest.raises(error, match=match):
            function(*arguments)


# --- word substitution attacks


TEXTS = ["good film", "good", "a film", "good film", "nan"]


def outcome(**arguments):
    def model(texts):
        return [[0.0, math.nan if "nan" in text else text.count("good") - 0.5] for text in texts]

    return WordSubstitution(model, {"good": ["fine"]}).attack(TEXTS, [1, 0, 0, 1, 0], **arguments)


def test_verdicts_of_an_attack(tmp_path):
    result = outcome()
    verdicts = word_attack_verdicts(result, model="m", group="g")
    assert verdicts.column("success") == [True, None, False, True, None]
    assert verdicts.column("status") == ["judged", "unsubmitted", "judged", "judged", "unsubmitted"]
    assert verdicts.column("queries") == [2, 1, 1, 2, 1]
    assert verdicts.column("attempt") == [0, 0, 0, 1, 0], "equal texts are attempts at one prompt"
    assert verdicts.column("category") == ["1", "0", "0", "1", "0"]
    assert verdicts.column("score") == [-0.5, -0.5, 0.5, -0.5, None]
    assert set(verdicts.column("threat")) == {"misclassification"}
    (rate,) = threat_success_rate(verdicts)
    assert (rate.value, rate.missing, rate.prompts) == (0.5, 2, 4)
    write_verdicts(verdicts, tmp_path / "verdicts.jsonl")
    assert read_verdicts(tmp_path / "verdicts.jsonl").rows == verdicts.rows


def test_targeted():
    verdicts = word_attack_verdicts(outcome(targeted=True, target_labels=[0, 0, 0, 0, 1]))
    assert verdicts.column("success") == [True, True, None, True, False]
    assert set(verdicts.column("threat")) == {"targeted"}


@pytest.mark.parametrize("arguments", [{"result": ["text"]}, {"result": outcome(), "model": 1}])
def test_wrong_arguments(arguments):
    with pytest.raises(InputTypeError, match="expected a"):
        word_attack_verdicts(**arguments)
