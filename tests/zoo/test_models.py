"""The bundled images and models, and models by name."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pyrobust.errors import FileFormatError, InputError, InputTypeError
from pyrobust.zoo import digits_convnet, list_models, load_data, load_digits, load_model, model_hash, save_state_dict
from pyrobust.zoo.digits import DATA
from pyrobust.zoo.npz import read_npz_arrays


def test_equals_the_copy_in_scikit_learn() -> None:
    datasets = pytest.importorskip("sklearn.datasets", reason="needs scikit-learn")
    expected = datasets.load_digits()
    data = load_digits("all")
    assert (data.x.shape, data.x.dtype, data.y.dtype) == ((1797, 1, 8, 8), torch.float32, torch.int64)
    assert np.array_equal(data.x[:, 0].double().numpy() * 16, expected.images)
    assert np.array_equal(data.y.numpy(), expected.target)


def test_splits_are_disjoint_complete_and_balanced() -> None:
    train, test, everything = load_digits("train"), load_digits(), load_digits("all")
    assert (len(train), len(test)) == (1415, 382)
    assert torch.equal(torch.cat([train.x, test.x]), everything.x)
    assert torch.equal(torch.cat([train.y, test.y]), everything.y)
    # No image occurs twice, so the test images are new.
    assert len(everything.x.flatten(1).unique(dim=0)) == 1797
    for split in (train, test):
        share = torch.bincount(split.y, minlength=10) / len(split)
        assert float(share.min()) > 0.09
        assert float(share.max()) < 0.11
    # Every form has the same sequence of labels; the split starts with the first row of one.
    y = everything.y
    assert torch.equal(y[1415:1545], y[:130])
    assert torch.equal(y[1667:1797], y[:130])
    assert not torch.equal(y[1437 : 1437 + 130], y[:130])
    with pytest.raises(InputError, match="expected one of train, test, all, got 'dev'"):
        load_digits("dev")


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("user_model_module")
    monkeypatch.setitem(sys.modules, "user_model_module", module)
    return module


@pytest.mark.parametrize(
    ("spec", "least"),
    [("zoo:digits-ibp-0.10", 0.9), ("zoo:digits-smooth-0.25", 0.95), ("zoo:digits-smooth-0.50", 0.95)],
)
def test_bundled_models_classify_new_handwriting(spec: str, least: float) -> None:
    assert spec in list_models()
    model = load_model(spec)
    assert not model.training
    data = load_digits()
    with torch.inference_mode():
        accuracy = (model(data.x).argmax(1) == data.y).double().mean()
    assert accuracy > least


def test_bundled_files_are_small_and_name_their_source() -> None:
    assert sum(path.stat().st_size for path in DATA.glob("*.pt")) < 450_000
    assert len(list(DATA.glob("*.pt"))) == len(list_models()) == 3
    notice = (DATA / "NOTICE-optdigits.txt").read_text()
    assert "Alpaydin" in notice
    assert "CC BY 4.0" in notice
    assert read_npz_arrays(DATA / "optdigits.npz", ["x", "y"])["x"].dtype == np.uint8


def test_architecture_and_initial_weights_are_fixed() -> None:
    net = digits_convnet()
    assert {type(layer) for layer in net} == {nn.Conv2d, nn.ReLU, nn.Flatten, nn.Linear}
    assert sum(p.numel() for p in net.parameters()) <= 36_000
    assert model_hash(net) == model_hash(digits_convnet(0)) != model_hash(digits_convnet(1))
    for layer in (net[0], net[2], net[5], net[7]):
        bound = layer.weight[0].numel() ** -0.5
        assert bound * 0.9 < float(layer.weight.detach().abs().max()) <= bound


def test_loading_ignores_global_random_state_and_default_dtype() -> None:
    state = torch.random.get_rng_state()
    torch.set_default_dtype(torch.float64)
    try:
        model = load_model("zoo:digits-smooth-0.25")
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert model_hash(model) == model_hash(load_model("zoo:digits-smooth-0.25"))


def test_user_models(user: ModuleType, tmp_path: Path) -> None:
    user.Net = nn.Identity
    user.make = lambda: digits_convnet(3)
    user.net = digits_convnet(4)
    user.number = 3
    user.wrong = lambda: "net"
    assert isinstance(load_model("user_model_module:Net"), nn.Identity)
    assert load_model("user_model_module:net") is user.net
    assert not user.net.training
    save_state_dict(digits_convnet(6), tmp_path / "a.pt")
    for spec in ("user_model_module:make", "zoo:digits-smooth-0.25"):  # they replace those of the model
        assert model_hash(load_model(spec, tmp_path / "a.pt")) == model_hash(digits_convnet(6))
    with pytest.raises(FileFormatError, match="does not fit the model Identity"):
        load_model("user_model_module:Net", tmp_path / "a.pt")
    for name, got in (("number", "int"), ("wrong", "str")):
        with pytest.raises(InputTypeError, match=f"got {got}"):
            load_model(f"user_model_module:{name}")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        *((spec, "zoo:digits-ibp-0.10, .* or module:callable") for spec in ("", "zoo:", "zoo:resnet", "digits")),
        ("no_such_module:f", "no module 'no_such_module' in "),
        (3, "expected a string"),
    ],
)
def test_unknown_specs_name_the_models(spec: Any, message: str) -> None:
    with pytest.raises((InputError, InputTypeError), match=message):
        load_model(spec)


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("sys:exit", "got code that ended the process when called"),
        ("script_for_zoo:net", "got code that ended the process when imported"),
        ("operator:add", "got one that needs a, b"),
    ],
)
def test_callables_that_need_arguments_or_exit_are_refused(
    spec: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script_for_zoo.py").write_text("import sys\n\nsys.exit()\n")
    for load, argument in ((load_model, "model"), (load_data, "data")):
        with pytest.raises(InputError, match=f"^{argument}: {spec}: expected .*{problem}"):
            load(spec)
