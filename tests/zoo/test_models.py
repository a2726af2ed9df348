from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from pyrobust.errors import FileFormatError, InputError, InputTypeError
from pyrobust.zoo import digits_convnet, list_models, load_data, load_digits, load_model, model_hash, save_state_dict
from pyrobust.zoo.digits import DATA


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


def test_bundled_files_are_small() -> None:
    assert sum(path.stat().st_size for path in DATA.glob("*.pt")) < 450_000
    assert len(list(DATA.glob("*.pt"))) == len(list_models()) == 3


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


def test_weights_replace_the_bundled_ones(tmp_path: Path) -> None:
    save_state_dict(digits_convnet(5), tmp_path / "a.pt")
    assert model_hash(load_model("zoo:digits-smooth-0.25", tmp_path / "a.pt")) == model_hash(digits_convnet(5))


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
    assert model_hash(load_model("user_model_module:make", tmp_path / "a.pt")) == model_hash(digits_convnet(6))
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
