"""Warnings about balls and noise wider than the inputs."""

from __future__ import annotations

import logging

import pytest
import torch
from typer.testing import CliRunner

from pyrobust.attacks import FGSM, PGD, DeepFool
from pyrobust.bounds import BoundedModel
from pyrobust.cli.app import app
from pyrobust.errors import InputError
from pyrobust.evaluation import sandwich_dataset
from pyrobust.scale import _log, warn_of_wide_ball, warn_of_wide_noise
from pyrobust.smoothing import RandomizedSmoothing
from pyrobust.training import train_digits_smooth
from pyrobust.zoo import ImageSet, load_data, load_model

DIGITS = load_data("digits")
X, Y = DIGITS.x[:2], DIGITS.y[:2]


@pytest.fixture
def warnings(caplog):
    """The warnings about scale, shown again in each test."""
    _log.cache_clear()
    caplog.set_level(logging.WARNING, "pyrobust.scale")
    return lambda: [record.message for record in caplog.records if record.name == "pyrobust.scale"]


@pytest.fixture
def model():
    return load_model("zoo:digits-ibp-0.10")


@pytest.mark.parametrize("epsilon", [8, 16, 64, 255])
def test_attacks_with_levels_of_bytes_as_epsilon_are_named(warnings, model, epsilon):
    attack = PGD(model, epsilon=epsilon, steps=1)
    for _ in range(2):
        attack(X, Y)
    [text] = warnings()
    assert text.startswith(f"epsilon: linf radius {epsilon} reaches every input in the clip range [0, 1]; ")
    assert f"write {epsilon}/255" in text


@pytest.mark.parametrize(("norm", "diameter"), [("l2", 8.0), ("l1", 64.0)])
def test_other_norms_have_the_diameter_of_the_clip_range(warnings, model, norm, diameter):
    FGSM(model, epsilon=diameter, norm=norm)(X, Y)
    assert warnings() == []
    FGSM(model, epsilon=1.01 * diameter, norm=norm)(X, Y)
    [text] = warnings()
    assert f"whose diameter is {diameter:g}" in text


def test_usual_radii_are_not_named(warnings, model):
    FGSM(model, epsilon=1.0)(X, Y)
    FGSM(model, epsilon=torch.tensor([0.1, 1.0]))(X, Y)
    FGSM(model, epsilon=8, clip=(0, 255))(255 * X, Y)
    FGSM(model, epsilon=20, norm="l0")(X, Y)
    DeepFool(model, epsilon=64.0, norm="l2")(X, Y)  # any distance
    BoundedModel(model, X).verify(X, Y, 0.1, clip=(0, 1))
    RandomizedSmoothing(model, 10, sigma=1.0).certify_batch(X, n0=10, n=10)
    warn_of_wide_ball(float("inf"), "linf", (0.0, 1.0), 64)
    warn_of_wide_ball(8, "linf", None, 64)
    warn_of_wide_noise(8.0, 0.0, 255.0)
    assert warnings() == []


def test_proofs_sandwiches_and_noise_are_named(warnings, model):
    FGSM(model, epsilon=torch.tensor([0.1, 8.0]))(X, Y)
    BoundedModel(model, X).verify(X, Y, 16, clip=(0, 1))
    RandomizedSmoothing(model, 10, sigma=8.0).certify_batch(X, n0=10, n=10)
    sandwich_dataset(model, ImageSet("two", X, Y), norm="l1", epsilons=[255], model_name="net")
    texts = warnings()
    for text in ("8/255 (0.03137)", "16/255", "sigma: noise of 8 hides inputs in [0, 1]", "epsilons: l1 radius 255"):
        assert any(text in each for each in texts), text


def test_training_refuses_noise_that_leaves_nothing():
    with pytest.raises(InputError, match=r"sigma: expected at most 100, for pixels in \[0, 1\], got 1e\+20"):
        train_digits_smooth(1e20)
    done = CliRunner().invoke(app, ["train", "digits-smooth", "--sigma", "1e20"])
    assert done.exit_code == 2
