"""Rates against hand-worked cases and published ones; their intervals, treatments of missing verdicts, comparisons."""

from __future__ import annotations

import csv
import math
import os
from collections import Counter
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from pyrobust.errors import InputError, InputTypeError
from pyrobust.metrics import paired_test
from pyrobust.stats import bounded_mean_interval, clopper_pearson_lower, clopper_pearson_upper
from pyrobust.threats import (
    ThreatVerdict,
    ThreatVerdicts,
    compare_attacks,
    compare_models,
    contradiction_rate,
    jailbreak_rate,
    prompt_injection_rate,
    queries_to_success,
    read_verdicts,
    refusal_rate,
    success_at_k,
    targeted_success_rate,
    threat_success_rate,
)


def table(outcomes, **columns):
    """One attempt at each behaviour; "-" is missing."""
    rows = []
    for i, outcome in enumerate(outcomes):
        missing = {"success": None, "status": "error"} if outcome == "-" else {"success": outcome == "1"}
        rows.append(ThreatVerdict(f"{columns.get('model', '')}{i}", behaviour=f"b{i}", **missing, **columns))
    return ThreatVerdicts(tuple(rows))


def attempts(*prompts, **columns):
    """Several attempts at each prompt, each prompt a behaviour."""
    return ThreatVerdicts(
        tuple(
            ThreatVerdict(f"{i}/{j}", behaviour=str(i), attempt=j, success=outcome == "1", **columns)
            for i, prompt in enumerate(prompts)
            for j, outcome in enumerate(prompt)
        )
    )


def test_published_rates():
    """The 18 published rates count what was not submitted as failures; the rates without it stand beside them."""
    if not os.environ.get("PYROBUST_DATA"):
        pytest.skip("PYROBUST_DATA is not set")
    data = Path(os.environ["PYROBUST_DATA"]) / "text"
    with (data / "jbb_judgements.csv").open() as file:
        entries = list(csv.DictReader(file))
    published = {(row["method"], row["model"]): float(row["published_asr"]) for row in entries}
    submitted = {(row["method"], row["model"]): int(row["number_of_submitted_prompts"]) for row in entries}
    successes = Counter((row["method"], row["model"]) for row in entries if row["jailbroken"] == "True")
    verdicts = read_verdicts(data / "jbb_judgements.csv")
    rates = threat_success_rate(verdicts, ("group", "model"), judge="jailbroken", missing="failure")
    assert len(rates) == len(published) == 18
    for rate in rates:
        assert rate.value == rate.as_failures == published[rate.group]
        assert rate.judged_only == successes[rate.group] / submitted[rate.group]
        assert (rate.verdicts, rate.missing, rate.clusters) == (100, 100 - submitted[rate.group], 100)
        k = round(100 * rate.value)
        assert rate.lower == clopper_pearson_lower(k, 100, 0.05 / 36)
        assert rate.upper == clopper_pearson_upper(k, 100, 0.05 / 36)
    assert sum(rate.missing for rate in rates) == 163
    assert len(verdicts.where(judge="jailbroken", status="unsubmitted")) == 163
    assert len(verdicts.where(judge="jailbroken_llama_guard1")) == 1600

    log = threat_success_rate(read_verdicts(data / "csv_attack_log.csv"))[0]
    summary = threat_success_rate(read_verdicts(data / "json_attack_summary.json"))[0]
    assert (log.value, log.verdicts, summary.value, summary.verdicts) == (1, 2, 1, 2)
    assert (log.lower, log.upper) == (summary.lower, summary.upper) == (clopper_pearson_lower(2, 2, 0.025), 1)


def test_missing_verdicts_are_never_failures_silently():
    verdicts = table("110000--")
    rate = threat_success_rate(verdicts)[0]
    assert (rate.as_failures, rate.as_successes, rate.judged_only, rate.missing) == (2 / 8, 4 / 8, 2 / 6, 2)
    assert (float(rate), rate.value, rate.lower) == (2 / 6, 2 / 6, clopper_pearson_lower(2, 8, 0.025))
    assert rate.upper == clopper_pearson_upper(4, 8, 0.025)
    ends = {
        "failure": (2 / 8, clopper_pearson_upper(2, 8, 0.025)),
        "success": (4 / 8, clopper_pearson_upper(4, 8, 0.025)),
        "exclude": (2 / 6, clopper_pearson_upper(2, 6, 0.025)),
    }
    for missing, (value, upper) in ends.items():
        other = threat_success_rate(verdicts, missing=missing)[0]
        assert (other.value, other.upper, other.missing) == (value, upper, 2)
    lost = threat_success_rate(table("--"))[0]
    assert math.isnan(lost.value)
    assert (lost.lower, lost.upper, lost.as_failures, lost.as_successes) == (0, 1, 0, 1)
    lost = threat_success_rate(table("--"), missing="exclude")[0]
    assert (lost.lower, lost.upper) == (0, 1)


def test_the_estimand_is_the_mean_over_prompts():
    """A prompt with many attempts weighs as much as one with few; behaviours are the clusters."""
    rate = threat_success_rate(attempts("1111", "00", "01"))[0]
    assert rate.value == (1 + 0 + 0.5) / 3
    assert (rate.lower, rate.upper) == bounded_mean_interval([1, 0, 0.5], 1, 0.05)
    rows = [ThreatVerdict(f"{m}{b}", behaviour=str(b), model=m, success=b < 2) for m in "abc" for b in range(5)]
    rate = threat_success_rate(ThreatVerdicts(tuple(rows)))[0]
    assert (rate.prompts, rate.clusters, rate.value) == (15, 5, 6 / 15)
    assert (rate.lower, rate.upper) == bounded_mean_interval([3, 3, 0, 0, 0], 3, 0.05)


def test_groups_share_the_error_rate():
    verdicts = ThreatVerdicts((*table("1100", model="a"), *table("1000", model="b")))
    rates = threat_success_rate(verdicts, by="model", confidence=0.9)
    assert [(rate.group, rate.value) for rate in rates] == [(("a",), 0.5), (("b",), 0.25)]
    assert rates.upper[0] == clopper_pearson_upper(2, 4, 0.1 / 4)
    assert rates.to_pandas().model.tolist() == ["a", "b"]
    assert rates.to_dict()["rates"][1]["value"] == 0.25
    np.testing.assert_array_equal(rates.value, [0.5, 0.25])
    with pytest.raises(InputError, match=r"^rates: expected a single group, got 2"):
        float(rates)


def test_several_judges_on_an_attempt():
    verdicts = ThreatVerdicts((*table("11-", judge="j"), *table("100", judge="k"), ThreatVerdict("3", status="error")))
    with pytest.raises(InputError, match=r"^judge: expected one of j, k, because attempts have verdicts of several"):
        threat_success_rate(verdicts)
    rates = threat_success_rate(verdicts, by="judge")
    # The attempt that nobody judged is missing for both.
    assert [(r.group, r.as_failures, r.missing) for r in rates] == [(("j",), 2 / 4, 2), (("k",), 1 / 4, 1)]
    assert threat_success_rate(verdicts, judge="k")[0].missing == 1
    with pytest.raises(InputError, match=r"^judge: expected one of j, k, got 'l'"):
        threat_success_rate(verdicts, judge="l")


def test_judges_of_runs_by_their_names_without_the_hash():
    first, second = "refusal #b232db5b", "refusal #0b883b25"
    verdicts = ThreatVerdicts((*table("11-", judge=first), *table("100", judge="k #1")))
    assert threat_success_rate(verdicts, judge="refusal")[0] == threat_success_rate(verdicts, judge=first)[0]
    assert [rate.group for rate in threat_success_rate(verdicts, "judge", judge="refusal")] == [(first,)]
    with pytest.raises(InputError, match=r"judge: expected one of k #1, refusal #b232db5b, got 'k'"):
        threat_success_rate(verdicts, judge="k")
    drifted = ThreatVerdicts((*table("11-", judge=first), *table("100", judge=second)))
    with pytest.raises(InputError, match="judge: expected one of"):
        threat_success_rate(drifted, judge="refusal")


def test_kinds_of_threat():
    kinds = {"jailbreak": "1000", "targeted": "110", "prompt-injection": "100", "refusal": "111", "factuality": "10-"}
    rows = [row for kind, outcomes in kinds.items() for row in table(outcomes, threat=kind, model=kind)]
    verdicts = ThreatVerdicts(tuple(rows))
    assert float(targeted_success_rate(verdicts)) == 2 / 3
    assert float(jailbreak_rate(verdicts)) == 1 / 4
    assert float(prompt_injection_rate(verdicts)) == 1 / 3
    assert float(refusal_rate(verdicts)) == 1
    contradicted = contradiction_rate(verdicts)[0]
    assert (contradicted.value, contradicted.as_failures, contradicted.as_successes) == (1 / 2, 1 / 3, 2 / 3)
    with pytest.raises(InputError, match=r"^verdicts: expected rows whose threat is 'refusal', got jailbreak"):
        refusal_rate(table("1"))


def test_success_at_k():
    verdicts = attempts("0010", "0000", "1111")
    assert float(success_at_k(verdicts, 1)) == (1 / 4 + 0 + 1) / 3
    share = [
        np.mean([any(p[i] == "1" for i in s) for s in combinations(range(4), 2)]) for p in ("0010", "0000", "1111")
    ]
    assert float(success_at_k(verdicts, 2)) == pytest.approx(np.mean(share), abs=1e-15)
    whole = success_at_k(verdicts, 4)[0]
    assert (whole.value, whole.method, whole.upper) == (2 / 3, "clopper-pearson", clopper_pearson_upper(2, 3, 0.025))
    with pytest.raises(InputError, match=r"^k: expected at most the number of attempts at each prompt, got 5 with 4"):
        success_at_k(verdicts, 5)


def test_success_at_k_of_logs_that_stop_at_success():
    stopped = attempts("01", "0000", "1")
    assert [float(success_at_k(stopped, k)) for k in (1, 2, 3, 4)] == [1 / 3, 2 / 3, 2 / 3, 2 / 3]
    assert success_at_k(stopped, 2)[0].method == "clopper-pearson"
    with pytest.raises(InputError, match=r"^k: expected at most the number of attempts at each prompt, got 5 with 4"):
        success_at_k(stopped, 5)
    lost = (*attempts("01", "000"), ThreatVerdict("lost", behaviour="2", status="error"))
    rate = success_at_k(ThreatVerdicts((*lost, ThreatVerdict("next", behaviour="2", attempt=1, success=False))), 2)[0]
    assert (rate.as_failures, rate.as_successes) == (1 / 3, 2 / 3)
    rows = (*attempts("01"), ThreatVerdict("lost", behaviour="0", attempt=2, status="error"))
    rate = success_at_k(ThreatVerdicts(rows), 2)[0]
    assert (rate.as_failures, rate.as_successes, rate.judged_only) == (2 / 3, 1, 1)
    assert float(success_at_k(attempts("001", "000", "001"), 1)) == pytest.approx(2 / 9)
    # One of two models was attacked until the first success.
    both = [replace(row, id=row.id + row.model) for row in attempts("110", "010", model="a")]
    both += attempts("01", "0000", "1", model="b")
    for by, expected in (("model", [1 / 2, 1 / 3]), (None, [2 / 5])):
        assert success_at_k(ThreatVerdicts(tuple(both)), 1, by=by).value.tolist() == pytest.approx(expected)


def test_queries_to_success():
    """Two of four succeed, one is censored at 30, one spends the budget: worked by hand."""
    spent = [(10, True), (20, True), (30, False), (100, False)]
    rows = [ThreatVerdict(str(i), behaviour=str(i), success=s, queries=q) for i, (q, s) in enumerate(spent)]
    result = queries_to_success(ThreatVerdicts(tuple(rows)), 100, [0.25, 0.5, 0.75])
    assert result.mean == pytest.approx(10 + 10 * 0.75 + 80 * 0.5)  # below the survival curve 1, 3/4, 1/2
    assert result.quantiles == (10, 20, math.inf)
    assert (result.successes, result.censored, result.attempts, result.clusters) == (2, 1, 4, 4)
    lower = bounded_mean_interval([0.1, 0.2, 0.3, 1.0], 1, 0.05)[0]
    upper = bounded_mean_interval([0.1, 0.2, 1.0, 1.0], 1, 0.05)[1]
    assert (result.lower, result.upper) == (100 * lower, 100 * upper)
    assert all(
        a <= q <= b for a, q, b in zip(result.quantile_lower, result.quantiles, result.quantile_upper, strict=True)
    )
    with pytest.raises(InputError, match=r"^verdicts: expected numbers of queries, got none"):
        queries_to_success(table("10"), 5)
    lost = [ThreatVerdict(str(i), behaviour=str(i), status="error", queries=3) for i in range(4)]
    queries = queries_to_success(ThreatVerdicts(tuple(lost)), 5)
    assert (math.isnan(queries.mean), math.isnan(queries.quantiles[0])) == (True, True)
    assert (queries.lower, queries.upper, queries.censored) == (0, 5, 4)
    late = [ThreatVerdict(str(i), behaviour=str(i), success=True, queries=10 if i < 10 else 20) for i in range(200)]
    queries = queries_to_success(ThreatVerdicts(tuple(late)), 15)  # successes after the budget are none
    assert (queries.quantiles, queries.quantile_upper) == ((math.inf,), (math.inf,))
    assert queries.quantile_lower[0] <= 15


def test_quantiles_of_queries_cover():
    """Geometric queries, attempts cut off at random: the interval of the median covers it."""
    rng = np.random.default_rng(1)
    median, missed, runs = math.ceil(math.log(0.5) / math.log(0.9)), 0, 10
    for _ in range(runs):
        needed, limit = rng.geometric(0.1, 60), rng.integers(5, 60, 60)
        rows = [
            ThreatVerdict(str(i), behaviour=str(i), success=bool(n <= m), queries=int(min(n, m)))
            for i, (n, m) in enumerate(zip(needed, limit, strict=True))
        ]
        result = queries_to_success(ThreatVerdicts(tuple(rows)), 60)
        missed += not result.quantile_lower[0] <= median <= result.quantile_upper[0]
        assert result.quantile_lower[0] > 1
        assert result.lower <= result.mean <= result.upper
    assert missed <= 3  # 4 or more have a probability of 0.1 % at most


def test_paired_comparisons():
    a, b = "1111110010", "1100000011"
    verdicts = ThreatVerdicts((*table(a, model="a"), *table(b, model="b")))
    pair = compare_models(verdicts).comparisons[0]
    flags = [np.array([c == "1" for c in outcomes]) for outcomes in (a, b)]
    assert pair.p_value == paired_test(*flags).p_value
    assert pair.difference == pytest.approx(0.3)
    assert pair.lower < 0.3 < pair.upper
    lower, upper = bounded_mean_interval((flags[0] * 1.0 - flags[1] + 1) / 2, 1, 0.05)
    assert (pair.lower, pair.upper) == pytest.approx((2 * lower - 1, 2 * upper - 1))
    same = compare_models(ThreatVerdicts((*table(a, model="a"), *table(a, model="b")))).comparisons[0]
    assert (same.difference, same.p_value) == (0, 1)


def test_missing_verdicts_count_against_a_difference():
    rows = (*table("11111111--", model="a"), *table("0000000000", model="b"))
    bounds, excluded, failures = (
        compare_models(ThreatVerdicts(rows), missing=missing).comparisons[0]
        for missing in ("bounds", "exclude", "failure")
    )
    assert (bounds.missing, bounds.clusters, excluded.clusters, excluded.difference) == (2, 10, 8, 1)
    assert bounds.p_value == excluded.p_value == failures.p_value == pytest.approx(2 / 2**8)
    assert bounds.lower == failures.lower < excluded.lower
    assert bounds.upper == 1 > failures.upper


def test_a_difference_is_no_further_out_than_missing_verdicts_allow():
    """The judged difference is 1, but against b nothing is known of the half where a withstood: at most 1/2."""
    half = 100
    rows = (*table("1" * half + "0" * half, model="a"), *table("0" * half + "-" * half, model="b"))
    pair = compare_models(ThreatVerdicts(rows)).comparisons[0]
    assert pair.difference == 0.5
    assert pair.lower < 0 < pair.difference < pair.upper < 1


def test_all_pairs_share_the_error_rate():
    rows = (*table("1111", model="a"), *table("1000", model="b"), *table("0000", model="c"))
    result = compare_models(ThreatVerdicts(rows))
    assert [(pair.first, pair.second) for pair in result.comparisons] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert all(pair.adjusted >= pair.p_value for pair in result.comparisons)
    alone = compare_models(ThreatVerdicts(rows), ["a", "c"]).comparisons[0]
    assert alone.lower > result.comparisons[1].lower
    assert result.to_pandas().shape == (3, 13)
    with pytest.raises(InputError, match=r"^models: expected one of a, b, c, got 'd'"):
        compare_models(ThreatVerdicts(rows), ["a", "d"])
    with pytest.raises(InputError, match=r"^models: expected at least two, got a"):
        compare_models(ThreatVerdicts(rows), ["a"])
    with pytest.raises(InputError, match=r"^models: expected behaviours that a and b have in common, got none"):
        compare_models(
            ThreatVerdicts((*table("1", model="a"), ThreatVerdict("x", model="b", behaviour="z", success=True)))
        )


def test_models_are_paired_by_behaviour():
    """Each model got prompts of its own, two of them at b0; behaviour c is one model's alone."""
    rows = [
        ThreatVerdict(f"{model}{i}", prompt=f"{model} {i}", behaviour=behaviour, model=model, success=success)
        for model, outcomes in (
            ("a", (("b0", True), ("b0", False), ("b1", True), ("b2", True))),
            ("b", (("b0", False), ("b1", False), ("b2", True), ("c", True))),
        )
        for i, (behaviour, success) in enumerate(outcomes)
    ]
    [pair] = compare_models(ThreatVerdicts(tuple(rows))).comparisons
    assert pair.difference == pytest.approx((1 / 2 + 1 + 0) / 3)
    assert (pair.clusters, pair.prompts, pair.only_first, pair.only_second) == (3, 7, 0, 1)
    assert pair.test == "betting"


def test_attacks_on_one_model_are_compared():
    rows = [*table("11111110", group="x", model="m"), *table("10000000", group="y", model="m")]
    rows = [replace(row, id=f"{row.group}{row.id}") for row in rows]
    rows += [replace(row, id=f"n{row.id}", model="n", success=False) for row in rows[:8]]
    [pair] = compare_attacks(ThreatVerdicts(tuple(rows))).comparisons
    assert (pair.first, pair.second, pair.difference, pair.clusters, pair.missing) == ("x", "y", 6 / 8, 8, 0)
    assert pair.p_value == pytest.approx(2 / 2**6)
    with pytest.raises(InputError, match=r"^attacks: expected one of x, y, got 'z'"):
        compare_attacks(ThreatVerdicts(tuple(rows)), ["x", "z"])


def test_the_test_is_of_the_difference_that_is_shown():
    """Most behaviours differ a little one way, few much the other way: the mean is 0, and a sign test would reject."""
    generator = np.random.default_rng(0)
    rejected = 0
    for _ in range(10):
        rows = []
        for i, much in enumerate(generator.random(60) < 0.2):
            wins = {"a": 0, "b": 4} if much else {"a": 1, "b": 0}
            rows += [
                ThreatVerdict(f"{m}{i}/{j}", behaviour=str(i), attempt=j, model=m, success=j < wins[m])
                for m in "ab"
                for j in range(4)
            ]
        [pair] = compare_models(ThreatVerdicts(tuple(rows))).comparisons
        rejected += pair.p_value < 0.05
        assert (pair.p_value < 0.05) == (pair.lower > 0 or pair.upper < 0)
    assert rejected <= 3  # 4 or more have a probability of 0.1 % at most


def test_unequal_behaviours_are_said_to_need_independent_sizes():
    rows = [ThreatVerdict(str(i), prompt=str(i), behaviour=str(i // 2 % 3), success=True) for i in range(7)]
    rates = threat_success_rate(ThreatVerdicts(tuple(rows)))
    assert rates[0].sizes == (2, 3)
    assert rates.caveat.startswith("Behaviours have 2 to 3 prompts: the intervals hold only if")
    assert rates.to_dict()["caveat"] == rates.caveat
    assert threat_success_rate(table("0110")).caveat == ""


def test_bad_input():
    for verdicts, arguments, error, message in [
        (table("1"), {"by": "models"}, InputError, r"by: expected one of id, prompt"),
        (table("1"), {"confidence": 1}, InputError, r"confidence: expected a number in \(0, 1\)"),
        (
            table("1"),
            {"missing": "drop"},
            InputError,
            r"missing: expected one of bounds, failure, success, exclude, got 'drop'",
        ),
        (ThreatVerdicts(()), {}, InputError, "verdicts: expected at least one row, got none"),
        ([], {}, InputTypeError, "verdicts: expected ThreatVerdicts, got list; use read_verdicts"),
    ]:
        with pytest.raises(error, match=f"^{message}"):
            threat_success_rate(verdicts, **arguments)
