"""``--json``: summaries of runs for programs."""

from __future__ import annotations

import json

import pytest

MODEL = ("--model", "zoo:digits-smooth-0.25", "--data", "digits", "--max", 6)
RUNS = {
    "certify": ("--sigma", 0.25, "--n", 100),
    "predict": ("--sigma", 0.25, "--n", 100),
    "attack": ("--epsilon", "8/255", "--attack", "fgsm"),
    "verify": ("--epsilon", "1/255,0.02", "--method", "ibp"),
}


@pytest.mark.parametrize("command", RUNS)
def test_summaries_hold_the_rates_of_the_run(pyrobust, tmp_path, command):
    from pyrobust.evaluation import Run

    arguments = (command, *MODEL, *RUNS[command], "--out", "run.db")
    done = pyrobust(*arguments, "--json", "run.json")
    assert done.status == 0
    assert "json: run.json" in done.err
    text = (tmp_path / "run.json").read_text()
    found, run = json.loads(text), Run(tmp_path / "run.db")
    assert (found["kind"], found["images"], found["complete"], found["path"]) == (command, 6, True, "run.db")
    assert found["parameters"] == run.parameters
    assert found["clean_accuracy"] == run.clean_accuracy().to_dict()
    if command == "certify":
        radii = [entry["radius"] for entry in found["certified_accuracy"]]
        assert [entry["value"] for entry in found["certified_accuracy"]] == run.certified_accuracy(radii).tolist()
        assert found["mean_radius_correct_only"] == pytest.approx(run.table["radius"][run.correct].mean())
        assert found["average_certified_radius"]["value"] <= found["mean_radius_correct_only"]
    elif command == "attack":
        assert found["robust_accuracy"] == run.robust_accuracy().to_dict()
        assert sum(found["broken_by"].values()) == 6 - found["robust_accuracy"]["successes"]
    elif command == "verify":
        assert [entry["epsilon"] for entry in found["verified_accuracy"]] == [1 / 255, 0.02]
        for entry in found["verified_accuracy"]:
            assert sum(entry["verdicts"].values()) == 6
    # again, over the earlier summary: the run is resumed and nothing changes
    assert pyrobust(*arguments, "--json", "run.json").status == 0
    assert (tmp_path / "run.json").read_text() == text
    done = pyrobust(*arguments, "--json", "-")
    assert done.out == text
    assert "clean accuracy" in done.err or "smoothed prediction" in done.err


def test_a_summary_overwrites_neither_a_run_nor_another_file(pyrobust, tmp_path):
    arguments = ("certify", *MODEL, *RUNS["certify"])
    (tmp_path / "mine.json").write_text("{}")
    assert "--json: expected" in pyrobust(*arguments, "--out", "run.db", "--json", "mine.json").error
    assert "--json: expected" in pyrobust(*arguments, "--out", "run.db", "--json", "run.db").error
    assert "--json: expected" in pyrobust(*arguments, "--out", "run.db", "--json", "no/such/folder.json").error
    assert sorted(file.name for file in tmp_path.iterdir()) == ["mine.json"]
    assert (tmp_path / "mine.json").read_text() == "{}"


@pytest.mark.parametrize("name", ["certify-digits-smooth-0.25-digits-sigma0.25-n100.db", "run.db-wal"])
def test_a_new_run_is_not_overwritten_by_its_summary(pyrobust, tmp_path, name):
    arguments = ["certify", *MODEL, "--sigma", "0.25", "--n", "100", "--max", "2"]
    arguments += ["--out", "run.db"] if name.startswith("run") else []
    done = pyrobust(*arguments, "--json", name)
    assert done.status == 2
    assert "error: --json: expected a file" in done.err
    run = name.removesuffix("-wal")
    assert [file.name for file in tmp_path.iterdir()] == [run]
    assert pyrobust("log", run).status == 0
