"""`pyrobust plan` as a user sees it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.damage import change
from support.planted_logs import made_up

MADE_UP = made_up(400)


def log(name: str = "log_sigma0.25.tsv") -> Path:
    path = Path(name)
    path.write_text(MADE_UP)
    return path


def test_a_text_log(pyrobust: Any) -> None:
    done = pyrobust.ok("plan", log(), "--radii", "0.25,0.5", "--budget", "1e7", "--n-max", "5000")
    assert done.err == ""
    assert "\x1b" not in done.out
    words = " ".join(done.out.split())
    assert "Plan: sigma 0.25, alpha 0.001, at most 5,000 samples" in words
    assert "images for 10,000,000 samples" in words
    for name in ("samples, if only at", "certified at", "undecided at", "exact error at"):
        assert f"{name} 0.25" in words
        assert f"{name} 0.5 " in words
    assert "Recommended: " in words
    assert "0.75" not in words


def test_json_and_the_usual_radii(pyrobust: Any) -> None:
    done = pyrobust("plan", log(), "--json", "--n-max", "5000", "--alpha", "0.01", "--hybrid", "0.25", "--n0", "10")
    plan = json.loads(done.out)
    assert plan["radii"][:2] == [0.25, 0.5]
    assert (plan["n_max"], plan["alpha"], plan["hybrid"], plan["n0"]) == (5000, 0.01, 0.25, 10)
    fixed, sequential, hybrid = plan["methods"]
    assert fixed["samples"] == 5010
    assert sequential["samples"] < hybrid["samples"] < 5010
    assert all(error <= 0.01 for method in plan["methods"] for error in method["error"])
    assert "budget" not in plan
    sigma = ("--sigma", "0.25", "--n-max", "500", "--budget", "1e6")  # that the name of the file does not state
    assert json.loads(pyrobust("plan", log("unknown.tsv"), "--json", *sigma).out)["budget"] == 1e6


def test_a_pilot_run(pyrobust: Any) -> None:
    sweep = ("--model", "zoo:digits-smooth-0.25", "--data", "digits", "--sigma", "0.25", "--max", "8")
    pyrobust.ok("certify", *sweep, "--n", "500", "--seed", "3", "--out", "pilot.db")
    done = pyrobust("plan", "pilot.db", "--radii", "0.25", "--json", "--n-max", "10000")
    assert "noise of seed 3: certify with another --seed" in done.err
    plan = json.loads(done.out)
    assert plan["images"] == 8
    assert plan["sigma"] == 0.25
    refused = pyrobust("plan", "pilot.db", "--sigma", "0.5").error
    assert "--sigma: expected none for pilot.db, which states 0.25, got 0.5; leave it out" in refused
    assert plan["methods"][1]["samples"] < 10_100
    sequential = ("--method", "sequential", "--radii", "0.1", "--n", "200", "--out", "sequential.db")
    pyrobust.ok("certify", *sweep, *sequential)
    refused = pyrobust("plan", "sequential.db").error
    assert "sequential.db: expected a run with a fixed n, got a sequential one" in refused
    plan = json.loads(pyrobust("plan", "sequential.db", "--workers", "2", "--chunk", "16", "--json").out)
    assert [list(plan), list(plan["time"])] == [["kind", "time", "pilot"], ["certify"]]
    (time,) = plan["time"]["certify"]
    assert (time["images"], time["workers"], time["chunk"]) == (382, 2, 16)


def test_time_on_workers(pyrobust: Any) -> None:
    """Fixed times a sample, from chunks of 1 image after the first; twice the samples take twice as long."""
    sweep = ("--model", "zoo:digits-smooth-0.25", "--data", "digits", "--sigma", "0.25", "--batch-size", "16")
    pyrobust.ok("certify", *sweep, "--n", "400", "--n0", "100", "--max", "6", "--out", "pilot.db")
    change("pilot.db", "UPDATE result SET seconds = CASE idx WHEN 0 THEN 9.0 ELSE 0.5 END")
    options = ("--radii", "0.25", "--n-max", "900", "--images", "1001")
    done = pyrobust("plan", "pilot.db", *options, "--workers", "1,10", "--json")
    plan = json.loads(done.out)
    one, ten = plan["time"]["fixed"]
    assert one["wall_seconds"] == pytest.approx(1001)
    assert ten["wall_seconds"] == pytest.approx(101)
    assert ten["worker_seconds"] == pytest.approx(1001)
    assert ten["waiting"] == pytest.approx(1 - 1001 / 1010)
    sequential = plan["time"]["sequential"][0]["worker_seconds"]
    assert sequential == pytest.approx(1001 * plan["methods"][1]["samples"] * 0.001, rel=0.15)
    assert "6 images, 0.5 s each, on " in plan["pilot"][0]
    assert "took 18.00 times the median of the others" in plan["pilot"][0]
    table = " ".join(pyrobust("plan", "pilot.db", *options, "--workers", "10").out.split())
    assert "Time: 1,001 images" in table
    assert " 101 s " in table
    timed = json.loads(pyrobust("plan", log(), "--workers", "2", "--n-max", "100", "--json").out)
    assert timed["time"]["fixed"][0]["images"] == 400


def test_time_of_an_attack(pyrobust: Any) -> None:
    attack = ("--model", "zoo:digits-smooth-0.25", "--data", "digits", "--attack", "fgsm", "--epsilon", "0.1")
    for shard in ("1/2", "2/2"):
        options = ("--max", "24", "--shard", shard, "--batch-size", "4", "--order", "random", "--out", f"{shard[0]}.db")
        pyrobust.ok("attack", *attack, *options)
    done = pyrobust.ok("plan", "1.db", "2.db", "--workers", "3", "--json")
    plan = json.loads(done.out)
    (time,) = plan["time"]["attack"]
    assert (plan["kind"], time["images"], time["chunk"]) == ("attack", 382, 4)
    assert 0 < time["standard_error"] < time["worker_seconds"] <= 3 * time["wall_seconds"]
    assert "Pilot: 24 images" in plan["pilot"][0]
    assert "1.db: expected a run with a fixed n, got attack" in pyrobust("plan", "1.db").error
    pyrobust.ok("attack", *attack, "--max", "4", "--out", "one.db")
    assert "Timed as one chunk" in pyrobust("plan", "one.db", "--workers", "2").out


def test_shards_and_exported_logs_give_the_plan_of_their_run(pyrobust: Any) -> None:
    for shard in ("1/2", "2/2"):
        pyrobust("certify", "--model", "zoo:digits-smooth-0.25", "--data", "digits", "--sigma", 0.5, "--n", 200,
                 "--max", 20, "--shard", shard, "--out", f"part{shard[0]}.db")  # fmt: skip
    options = ("--radii", "0.1", "--n-max", "1000", "--json")
    shards = json.loads(pyrobust("plan", "part1.db", "part2.db", *options).out)
    assert shards["images"] == 20
    pyrobust("log", "part1.db", "part2.db", "--out", "log.tsv")
    assert json.loads(pyrobust("plan", "log.tsv", *options).out)["sigma"] == 0.5
    first, second = json.loads(pyrobust("plan", "part1.db", log(), *options).out)
    assert (first["images"], second["images"]) == (10, 400)
    assert "--n: expected none for part1.db, which states 200" in pyrobust("plan", "part1.db", "--n", 100).error


def test_votes_follow_the_alpha_that_the_radii_have(pyrobust: Any) -> None:
    path = Path("net_sigma0.25.tsv")
    path.write_text(made_up(1000, alpha=0.01))
    done = pyrobust.ok("plan", path, "--radii", "0.5", "--n-max", "1000", "--json")
    assert "made with n 100,000, alpha 0.01 and sigma 0.25, not n 100,000, alpha 0.001" in done.err
    assert "more fit" not in done.err


def test_of_several_parameters_that_fit_the_first_are_used(pyrobust: Any) -> None:
    path = Path("net_sigma0.5.tsv")
    path.write_text(made_up(500, alpha=0.01, sigma=0.5))
    options = ("--radii", "0.5", "--n-max", "1000", "--json")
    done = pyrobust.ok("plan", path, *options)
    note = re.fullmatch(
        r"net_sigma0.5.tsv: made with n (\S+), alpha (\S+) and sigma (\S+), not n 100,000, alpha 0.001 and sigma 0.5; "
        r"the plan uses these; (\d+) more fit, which pyrobust audit lists",
        done.err.strip(),
    )
    assert note is not None
    assert float(note[2]) == 0.01
    assert json.loads(done.out)["sigma"] == float(note[3])


def test_radii_of_another_formula_alone_give_no_votes(pyrobust: Any) -> None:
    path = Path("net_sigma0.25.tsv")
    path.write_text(made_up(500, show=lambda radius: f"{radius / 3072**0.5:.6f}"))
    refused = pyrobust("plan", path).error
    assert "but its radii contradict n 100,000, alpha 0.001 and sigma 0.25: see pyrobust audit" in refused
