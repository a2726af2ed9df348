"""Errors about an option name it as it is typed, wherever the check is."""

from __future__ import annotations

from typing import Any

import pytest

NET = ("--model", "zoo:digits-smooth-0.25", "--data", "digits", "--max", "2", "--out", "run.db")
SMOOTH = (*NET, "--sigma", "0.25", "--n", "20")
SEQUENTIAL = (*SMOOTH, "--method", "sequential", "--radii", "0.1")
VERIFY = (*NET, "--method", "crown")
ATTACK = (*NET, "--epsilon", "0.1", "--attack")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("certify", *SMOOTH, "--grid", "x"), "--grid: expected a positive fraction"),
        (
            ("certify", *SMOOTH, "--noise", "laplace", "--grid", "1/16"),
            "--grid: expected none with laplace noise, got '1/16'",
        ),
        (("certify", *SMOOTH, "--sigma", "-1"), "--sigma: expected a positive number"),
        (("certify", *SMOOTH, "--sigma", "1e9", "--grid", "1/16"), "--sigma: expected at most 2**13 steps"),
        (("certify", *SMOOTH, "--alpha", "2"), "--alpha: expected a number in (0, 1), got 2.0"),
        (("certify", *SMOOTH, "--n", "0"), "--n: expected at least 1, got 0"),
        (("certify", *SMOOTH, "--n0", "0"), "--n0: expected at least 1, got 0"),
        (("certify", *SMOOTH, "--seed", "-1"), "--seed: expected 0 to 2**64 - 1"),
        (("certify", *SMOOTH, "--batch-size", "9999999999"), "--batch-size: expected at most"),
        (("certify", *SMOOTH, "--skip", "9999999999"), "--skip: expected at most"),
        (("certify", *SMOOTH, "--max", "9999999999"), "--max: expected at most"),
        (("certify", *SMOOTH, "--device", "nowhere"), "--device: expected"),
        (("certify", *SMOOTH, "--normalize", "0,0/1,1"), "--normalize: expected a mean and a std for each channel"),
        (("certify", *SMOOTH, "--model", "zoo:none"), "--model: expected zoo:"),
        (("certify", *SMOOTH, "--data", "none"), "--data: expected one of digits"),
        (("certify", *SEQUENTIAL, "--hybrid", "1"), "--hybrid: expected a share of alpha in [0, 1), got 1.0"),
        (("certify", *SEQUENTIAL, "--two-class", "--noise", "laplace"), "--two-class: expected gaussian noise"),
        (("certify", *SEQUENTIAL, "--radii", "0.1,"), "--radii: expected a finite number"),
        (("verify", *VERIFY), "--epsilon: expected either epsilons or radius, got neither"),
        (("verify", *VERIFY, "--epsilon", "0.1,0.1"), "--epsilon: expected positive numbers, each once, got 0.1, 0.1"),
        (("verify", *VERIFY, "--radius", "--attack", "pgd"), "--attack: expected none without epsilons, got pgd"),
        (("predict", *SMOOTH, "--alpha", "0"), "--alpha: expected a number in (0, 1)"),
        (("attack", *ATTACK, "pgd", "--steps", "0"), "--steps: expected at least 1, got 0"),
        (("attack", *ATTACK, "square", "--steps", "0"), "--steps: expected at least 1, got 0"),
        (("attack", *ATTACK, "pgd", "--restarts", "0"), "--restarts: expected at least 1, got 0"),
        (("attack", *ATTACK, "pgd", "--seed", "-1"), "--seed: expected 0 to 2**64 - 1"),
        (("train", "digits-smooth", "--sigma", "-1"), "--sigma: expected a finite number above 0"),
        (("train", "digits-ibp", "--method", "none"), "--method: expected one of ibp, crown-ibp"),
        (("train", "digits-ibp", "--epochs", "0"), "--epochs: expected 1 to 2**20 - 1"),
    ],
)
def test_the_option_is_named(pyrobust: Any, arguments: tuple[str, ...], words: str) -> None:
    assert pyrobust(*arguments).error.startswith(f"error: {words}")


def test_file_names_are_not_taken_for_options(pyrobust: Any) -> None:
    # Files named like options.
    assert pyrobust("plan", "sigma").error.startswith("error: sigma: file not found; expected a certification log")
    assert pyrobust("log", "out").error.startswith("error: out: file not found; expected a run of pyrobust")


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--sigma", "x", "expected a number such as 0.25 or 1/4, got 'x'"),
        ("--sigma", "1/0", "expected a number such as 0.25 or 1/4, got '1/0'"),
        ("--n", "1e5", "expected a whole number such as 1000, got '1e5'"),
        ("--seed", "1.5", "expected a whole number such as 1000, got '1.5'"),
        ("--skip", "0", "expected at least 1, got 0"),
        ("--max", "-1", "expected at least 1, got -1"),
    ],
)
def test_values_of_options_are_named(pyrobust, option, value, words):
    done = pyrobust("certify", *SMOOTH, "--sigma", 0.25, option, value)
    assert done.status == 2
    shown = " ".join(done.err.replace("│", " ").split())
    assert f"Invalid value for '{option}': {words}" in shown


def test_numbers_may_be_fractions(pyrobust):
    done = pyrobust("certify", *SMOOTH, "--sigma", "1/4", "--n", 20, "--max", 1, "--out", "run.db")
    assert done.status == 0
    assert "sigma 0.25" in done.out


def test_an_option_that_would_do_nothing_is_refused(pyrobust):
    error = pyrobust("verify", *VERIFY, "--epsilon", "0.1", "--largest", "1/2").error
    assert "--largest: expected none without --radius; leave it out" in error
