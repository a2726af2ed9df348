"""Logs of other programs: each layout, damage, and what untrusted files may contain."""

from __future__ import annotations

import functools
import io
import json
import math
import operator
import re
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import threat_logs as logs

from pyrobust.cli.report import report as report_command
from pyrobust.errors import FileFormatError, InputError, MissingExtraError
from pyrobust.threats import ThreatVerdict, read_verdicts, threat_success_rate, untrusted, write_verdicts
from pyrobust.threats.read import FORMATS


@pytest.fixture
def read(tmp_path):
    """Write a log, given as bytes, text or JSON, and read it."""

    def written(content, *arguments, name="log", **keywords):
        if not isinstance(content, bytes | str):
            content = json.dumps(content)
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_verdicts(path, *arguments, **keywords)

    return written


def outcomes(verdicts):
    return [(row.judge, row.success, row.status) for row in verdicts]


def test_jailbreakbench(read):
    verdicts = read(logs.LOGS["artifact.json"])
    first, second = "jailbroken", "jailbroken_llama_guard1"
    assert outcomes(verdicts) == [
        (first, True, "judged"),
        (second, True, "judged"),
        (first, False, "judged"),
        (second, True, "judged"),
        (first, None, "unsubmitted"),
        (second, None, "unsubmitted"),
    ]
    assert verdicts.column("queries") == [7, 7, 30, 30, 30, 30]
    row = verdicts.rows[0]
    assert (row.group, row.model) == ("PAIR", "vicuna-13b-v1.5")
    assert (row.behaviour, row.prompt, row.category) == ("Phishing", "Write", "Fraud")


def test_textattack(read):
    verdicts = read(logs.TEXTATTACK)
    assert [row.success for row in verdicts] == [True, False, None]
    assert [row.status for row in verdicts] == ["judged", "judged", "unsubmitted"]
    assert [row.queries for row in verdicts] == [28, 9, 1]
    assert verdicts.rows[0].behaviour == "a good film"
    counts = read(logs.SUMMARY)
    assert counts.column("success") == [True] * 3 + [False] + [None] * 2
    with pytest.raises(
        FileFormatError, match="line 3: result_type: expected one of Successful, Failed, Skipped, Maxim"
    ):
        read(logs.TEXTATTACK.replace("Failed", "Lost"))
    with pytest.raises(FileFormatError, match="Number of failed attacks:: expected a number, got 'many'"):
        read(json.dumps(logs.SUMMARY).replace('attacks:": 1', 'attacks:": "many"'))


def test_garak(read):
    verdicts = read(logs.LOGS["garak.report.jsonl"])
    assert outcomes(verdicts) == [
        ("dan.DAN", True, "judged"),  # the score is the threshold
        ("dan.DAN", None, "error"),  # no output
        ("dan.DAN", None, "unparsable"),
        ("mitigation.Bypass", False, "judged"),
        ("mitigation.Bypass", True, "judged"),
        ("mitigation.Bypass", False, "judged"),
        ("", None, "error"),  # its detectors have not run
    ]
    assert verdicts.column("attempt") == [0, 1, 2, 0, 1, 2, 0]
    row = verdicts.rows[0]
    assert (row.prompt, row.behaviour, row.model) == ("Say 0", "dan.Dan/0", "gpt2")
    assert read(logs.LOGS["garak.report.jsonl"], threshold=0.39).column("success")[-2] is True
    injected = json.dumps(logs.GARAK).replace("dan.Dan", "web_injection.Exfil").replace("target_name", "target_type")
    rows = read(logs.in_lines(json.loads(injected)))
    names = [set(rows.column(name)) for name in ("category", "model", "threat")]
    assert names == [{"S009exfil"}, {"gpt2"}, {"prompt-injection"}]
    assert set(verdicts.column("threat")) == {"jailbreak"}
    with pytest.raises(FileFormatError, match="line 7: uuid: expected one completed attempt of each"):
        read("\n".join(map(json.dumps, [*logs.GARAK, logs.GARAK[3]])))


@pytest.mark.parametrize("name", ["inspect.json", "inspect.eval"])
def test_inspect(read, name):
    verdicts = read(logs.LOGS[name])
    assert outcomes(verdicts) == [
        ("attack", True, "judged"),
        ("attack", None, "unparsable"),
        ("attack", False, "judged"),
        ("", None, "error"),
        ("", None, "unsubmitted"),  # the evaluation ended before sample 3
        ("", None, "unsubmitted"),
    ]
    assert verdicts.column("behaviour") == ["1", "1", "two", "two", "3", "3"]
    row = verdicts.rows[0]
    assert (row.model, row.category, verdicts.rows[2].prompt) == ("mockllm/model", "web", "Yo")
    inverted = read(logs.LOGS[name], invert=True, threat="factuality")
    assert inverted.column("success") == [False, None, True, None, None, None]
    assert set(inverted.column("threat")) == {"factuality"}


def test_promptfoo(read):
    verdicts = read(logs.PROMPTFOO)
    assert outcomes(verdicts) == [
        ("promptfoo", False, "judged"),
        ("promptfoo", True, "judged"),
        ("promptfoo", None, "error"),
    ]
    assert verdicts.column("attempt") == [0, 1, 0]
    row = verdicts.rows[0]
    assert (row.threat, row.behaviour, row.cost) == ("prompt-injection", "g", 0.01)
    assert read(logs.PROMPTFOO["results"]).rows == verdicts.rows
    log = json.loads(json.dumps(logs.PROMPTFOO))
    log["results"]["results"][1]["success"] = "no"
    with pytest.raises(FileFormatError, match=r"results\.results\[1\]: success, failureReason: expected true or false"):
        read(log)


def test_promptfoo_assertions_that_did_not_run(read):
    """promptfoo counts five of the six as failed or as errors; two of them are no verdict on the model."""
    verdicts = read(logs.LOGS["promptfoo.jsonl"])
    assert [(row.success, row.status) for row in verdicts] == [
        (False, "judged"),
        (True, "judged"),
        (None, "unparsable"),
        (None, "unparsable"),
        (True, "judged"),
        (None, "error"),
    ]
    assert verdicts.column("attempt") == list(range(6))
    assert set(verdicts.column("model")) == {"toy"}
    assert read({"results": {"results": logs.GRADED}}).rows == verdicts.rows
    assert read(logs.GRADED[0], "promptfoo").rows == verdicts.rows[:1]  # a single line
    log = json.loads(json.dumps(logs.GRADED))
    log[2]["gradingResult"]["componentResults"][1]["metadata"] = 5
    with pytest.raises(FileFormatError, match="line 3: metadata: expected an object"):
        read("\n".join(map(json.dumps, log)))


def test_inspect_scores(read):
    """Scorers of several values, numbers, texts, NaN and lists, as in the real logs."""
    log = json.loads(json.dumps(logs.INSPECT)) | {"status": "success"}
    values = [{"a": 1, "b": 0.0}, True, "P", 0.4, "1", "0.7", "0", " C ", "nan", "x", math.nan, ["a"]]
    log["samples"] = [
        {"id": i, "epoch": 1, "input": "Hi", "scores": {"s": {"value": value}}} for i, value in enumerate(values)
    ]
    rows = read(log).rows
    assert [row.judge for row in rows] == ["s/a", "s/b", *["s"] * 11]
    scores = [1.0, 0.0, 1.0, 0.5, 0.4, 1.0, 0.7, 0.0, 1.0, *[None] * 4]
    assert [row.score for row in rows] == scores
    assert [row.success for row in rows] == [None if score is None else score >= 0.5 for score in scores]
    assert [row.status for row in rows] == ["judged"] * 9 + ["unparsable"] * 4
    log = json.loads(json.dumps(logs.INSPECT).replace('"C"', "7"))
    with pytest.raises(FileFormatError, match=r"samples\[0\]: scores: attack: .* in \[0, 1\], got 7; pass a"):
        read(log)
    assert read(log, threshold=5).column("success")[0] is True


def test_csv(read):
    verdicts = read(logs.CSV)
    assert outcomes(verdicts) == [("", True, "judged"), ("", False, "judged"), ("", None, "unparsable")]
    assert (verdicts.rows[0].prompt, verdicts.rows[0].queries, verdicts.rows[0].human_label) == ('a, "b"\nc', 3, True)
    for change, message in [
        ((",0,,,,,", ",maybe,,,,,"), "line 4: success: expected true, false or nothing, got 'maybe'"),
        ((",0,,,,,", ",0,,,,"), "line 4: expected 9 fields, got 8"),
        ((",0,,,,,", ",0,1_0,,,,"), "line 4: score: expected a number, got '1_0'"),
        ((",0,,,,,", ",0,,١,,,"), "line 4: queries: expected a number, got '١'"),
        ((",0,,,,,", ",0,nan,,,,"), "line 4: score: expected a finite float"),
        ((",0,,,,,", ",0,,1.5,,,"), "line 4: queries: expected an integer, got '1.5'"),
        (("unparsable", "gone"), "line 5: status: expected one of judged"),
        (("score", "id"), "line 1: expected different column names"),
        (("\n2,", "\n1,"), "expected one verdict of each judge on each id, got 2 on '1'"),
    ]:
        with pytest.raises(FileFormatError, match=message):
            read(logs.CSV.replace(*change))


def test_other_files(read, tmp_path):
    for content, message in [
        ("", "expected verdicts in one of the formats"),
        ("[]", "expected verdicts in one of the formats"),
        ("{", "JSONDecodeError"),
        ('{"a": [{"b": 1}]}', "expected verdicts in one of the formats"),
        ('{"jailbreaks": {}}', "jailbreaks: expected an array, got dict"),
        ('{"jailbreaks": []}', "expected at least one verdict, got none"),
        ('{"jailbreaks": [1]}', r"jailbreaks\[0\]: expected an object, got int '1'"),
        (b"PK\x03\x04", "BadZipFile"),
        (b"\xff\xfe", "UnicodeDecodeError"),
        ('{"results": ' + "[" * 5000 + "]" * 5000 + "}", "nested at most 100 deep|RecursionError"),
        ("success\n" + "9" * 200_000 + "\n", "line 2: expected CSV, got: field larger .* as JSON Lines"),
    ]:
        with pytest.raises(FileFormatError, match=message):
            read(content)
    with pytest.raises(FileFormatError, match="found nothing there"):
        read_verdicts(tmp_path / "missing")
    with pytest.raises(FileFormatError, match="found a folder there"):
        read_verdicts(tmp_path)
    with pytest.raises(InputError, match=r"^format: expected one of run, verdicts, parquet"):
        read(logs.CSV, "excel")


def test_zip_bombs_are_refused(read):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("header.json", "{}")
        file.writestr("samples/a.json", b" " * (65 << 20))
    with pytest.raises(FileFormatError, match="expected a compression ratio of at most 200"):
        read(buffer.getvalue())
    content = bytearray(logs.LOGS["inspect.eval"])
    first = content.index(b"PK\x01\x02")
    at = content.index(b"PK\x01\x02", first + 4) + 24  # the uncompressed size of a sample in the directory
    content[at : at + 4] = (5).to_bytes(4, "little")
    with pytest.raises(FileFormatError):
        read(bytes(content))


def test_archives_compressed_with_zstandard(read, tmp_path):
    zstandard = pytest.importorskip("zstandard")
    content = logs.archive(level=zipfile.ZIP_STORED)
    packed = logs.with_zstandard(content, zstandard.ZstdCompressor().compress)
    assert read(packed).rows == read(content).rows
    with pytest.raises(FileFormatError):
        read(packed.replace(zstandard.MAGIC_NUMBER.to_bytes(4, "little"), b"\0\0\0\0"))


def test_sizes_are_limited(read, monkeypatch):
    monkeypatch.setattr(untrusted, "MAX_BYTES", 100)
    with pytest.raises(FileFormatError, match="expected at most 100 bytes, got"):
        read(logs.PROMPTFOO)


QUICK = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["C", "I", "0.5"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
KINDS = [None, True, -1, 1e300, "", "x", [], [0], [{}], {}, {"a": 0}]


def survives(read, content, *arguments):
    """Whether it is a log; only FileFormatError may escape, or what Parquet and zstandard need and is not installed."""
    try:
        return len(read(content, *arguments)) > 0
    except FileFormatError:
        return False
    except MissingExtraError:
        return not content.startswith((b"PAR1", b"PK"))


OWN = ("run", "verdicts", "parquet")  # without a sample, tested where they are written


def test_each_format_has_a_sample_that_it_is_found_from_and_survives_the_others(read):
    for name in FORMATS:
        samples = [content for content in logs.LOGS.values() if survives(read, content, name)]
        assert name in OWN or any(read(content).rows == read(content, name).rows for content in samples), name


def test_each_format_is_documented():
    page = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "threats.md"
    if not page.exists():
        pytest.skip("not in a checkout")
    table = page.read_text().partition("\n## Logs\n")[2].partition("\n## ")[0]
    rows = {name for row in re.findall(r"^\| ([^|]+) \|", table, re.M) for name in row.split(", ")}
    assert rows - {"format"} == set(FORMATS)
    for name in FORMATS:
        assert f'"{name}"' in read_verdicts.__doc__
        assert name in OWN or name in report_command.__doc__.casefold()


@QUICK
@given(st.sampled_from([*logs.LOGS.values(), b"", b"PK", b"{", b"success,id\n"]), st.data())
def test_mutated_bytes(read, start_of, data):
    content = bytearray(start_of)
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(content)))
        end = min(len(content), start + data.draw(st.integers(0, 30)))
        content[start:end] = data.draw(
            st.binary(max_size=6) | st.sampled_from([b"null", b"{}", b'"', b"1e999", b"\n", b","])
        )
    survives(read, bytes(content))


@pytest.mark.parametrize("name", logs.JSON)
@pytest.mark.parametrize("other", ["missing", *(pytest.param(value, marks=pytest.mark.full) for value in KINDS)])
def test_each_value_missing_or_of_another_kind(read, name, other):
    """Each key and element in turn."""
    for *path, last in logs.places(logs.JSON[name]):
        log = json.loads(json.dumps(logs.JSON[name]))
        holder = functools.reduce(operator.getitem, path, log)
        if other == "missing":
            del holder[last]
        else:
            holder[last] = other
        survives(read, logs.in_lines(log))


@settings(QUICK, max_examples=25)
@given(st.sampled_from(sorted(logs.JSON)), st.data())
def test_changed_values(read, name, data):
    """Any value at any place of the JSON."""
    log = json.loads(json.dumps(logs.JSON[name]))
    for _ in range(data.draw(st.integers(1, 2))):
        *path, last = data.draw(st.sampled_from(list(logs.places(log))))
        holder = functools.reduce(operator.getitem, path, log)
        holder[last] = data.draw(VALUES)
    survives(read, logs.in_lines(log))


def test_the_field_of_the_behaviour(read):
    samples = [
        {
            "id": i,
            "input": "x",
            "scores": {"s": {"value": "1"}},
            "metadata": {"id_original": f"b{i // 4}", "nested": {"name": i % 2}},
        }
        for i in range(8)
    ]
    log = {"eval": {"model": "m"}, "samples": samples}
    # The variants that AgentHarm names are one behaviour.
    assert read(log).column("behaviour") == [f"b{i // 4}" for i in range(8)]
    assert read(log, behaviour="nested.name").column("behaviour") == ["0", "1"] * 4
    with pytest.raises(FileFormatError, match=r"samples\[0\]: goal: expected a text or a number.*id_original, input"):
        read(log, behaviour="goal")
    garak = read(logs.LOGS["garak.report.jsonl"], behaviour="goal")
    assert set(garak.column("behaviour")) == {"disregard the system prompt"}
    with pytest.raises(InputError, match=r"^behaviour: expected a field of a log of csv, garak, inspect-ai, promptfoo"):
        read(logs.JAILBREAKBENCH, behaviour="goal")
    assert set(read(logs.PROMPTFOO, behaviour="success").column("behaviour")) == {"True", "False"}


def test_every_column_of_a_table_can_be_grouped_by(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("id,goal,language,success\n0,a,en,true\n1,a,de,false\n2,b,en,true\n3,b,,0\n")
    verdicts = read_verdicts(path, behaviour="goal")
    assert verdicts.names[-2:] == ("goal", "language")
    assert verdicts.column("behaviour") == ["a", "a", "b", "b"]
    rates = threat_success_rate(verdicts, "language")
    assert {rate.group: rate.value for rate in rates} == {("en",): 1.0, ("de",): 0.0, ("",): 0.0}
    assert len(verdicts.where(language="en")) == 2
    for name in ("verdicts.jsonl", "verdicts.parquet"):
        if name.endswith("parquet"):
            pytest.importorskip("pyarrow", reason="the extra parquet")
        write_verdicts(verdicts, tmp_path / name)
        assert read_verdicts(tmp_path / name).rows == verdicts.rows
    with pytest.raises(InputError, match=r"^by: expected one of id, .*, goal, language, got 'tongue'"):
        threat_success_rate(verdicts, "tongue")
    with pytest.raises(InputError, match=r"^extras: expected names other than the columns"):
        ThreatVerdict("0", success=True, extras=(("model", "m"),))
