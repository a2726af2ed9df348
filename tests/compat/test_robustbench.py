"""RobustBench's evaluation loop: what it returns, prints and writes, and the files it reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pyrobust.compat.autoattack import AutoAttack
from pyrobust.compat.robustbench import benchmark, read_model_info
from pyrobust.errors import FileFormatError, InputError

FIELDS = (
    "link, name, authors, additional_data, number_forward_passes, dataset, venue, architecture, eps, clean_acc, "
    "reported, corruptions_acc, autoattack_acc, footnote"
)


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def net_and_images() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.Softplus(), nn.Linear(4, 3)).eval()
    x = torch.rand(16, 3, 2, 2)
    y = net(x).argmax(1)
    y[::8] = (y[::8] + 1) % 3
    return net, x, y


@pytest.mark.parametrize("threat", ["Linf", "L2"])
def test_the_numbers_of_the_published_loop(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, threat: str
) -> None:
    """Accuracy, AutoAttack's standard version, and accuracy on its points, of the first images."""
    standard = AutoAttack.set_version

    def quick(self: AutoAttack, version: str = "standard") -> None:
        standard(self, version)
        self.apgd.n_iter = self.apgd_targeted.n_iter = self.fab.n_iter = 5
        self.square.n_queries = 20

    monkeypatch.setattr(AutoAttack, "set_version", quick)
    net, x, y = net_and_images()
    eps = {"Linf": 0.15, "L2": 0.4}[threat]
    clean = float((net(x[:8]).argmax(1) == y[:8]).float().mean())
    x_adv = AutoAttack(net, norm=threat, eps=eps, device="cpu").run_standard_evaluation(x[:8], y[:8], bs=5)
    assert isinstance(x_adv, torch.Tensor)
    robust = float((net(x_adv).argmax(1) == y[:8]).float().mean())
    lines = capsys.readouterr().out.splitlines()
    assert 0 < robust < clean
    accuracies = benchmark(net, 8, "cifar10", threat, batch_size=5, eps=eps, data=(x, y))
    assert accuracies == pytest.approx((clean, robust))
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == f"Clean accuracy: {clean:.2%}"
    assert printed[-1] == f"Adversarial accuracy: {robust:.2%}"

    def without_times(text: list[str]) -> list[str]:
        return [line.split(" (total time")[0] for line in text]

    assert without_times(printed[1:-1]) == without_times(lines)


def test_model_info_is_written_and_read() -> None:
    net, x, y = net_and_images()
    options: dict[str, Any] = {"eps": 0.5, "data": (x, y), "to_disk": True, "model_name": "Mine2026"}
    clean, robust = benchmark(net, 8, **options)
    path = Path("model_info/cifar10/Linf/Mine2026.json")
    content = json.loads(path.read_text())
    assert ", ".join(content) == FIELDS
    assert path.read_text() == json.dumps(content, indent=2)
    stated = [name for name, value in content.items() if value is not None]
    assert stated == ["dataset", "eps", "clean_acc", "autoattack_acc"]
    info = read_model_info(path)
    assert (info.name, info.dataset, info.eps) == ("Mine2026", "cifar10", 0.5)
    assert (info.clean_accuracy, info.robust_accuracy) == (clean, robust)
    path.write_text(json.dumps({"authors": "me", "clean_acc": "1.0", "unreliable": True}))
    benchmark(net, 8, **options)
    again = json.loads(path.read_text())
    assert (again["authors"], again["unreliable"], again["clean_acc"]) == ("me", True, clean)
    path.write_text("mine, not RobustBench's")
    with pytest.raises(FileFormatError, match=r"Mine2026.json: expected a model info file of RobustBench"):
        benchmark(net, 8, **options)
    assert path.read_text() == "mine, not RobustBench's"


def test_data_from_the_folder(capsys: pytest.CaptureFixture[str]) -> None:
    net, x, y = net_and_images()
    Path("data").mkdir()
    np.savez("data/cifar10.npz", x=x.numpy(), y=y.numpy())
    assert benchmark(net, 8, eps=0.5) == benchmark(net, 8, eps=0.5, data=(x, y))
    with pytest.raises(FileFormatError, match=r"data/cifar100.npz"):
        benchmark(net, 8, "cifar100", eps=0.5)


def test_leaderboard_files() -> None:
    path = Path("Carmon2019Unlabeled.json")
    path.write_text(json.dumps({"name": "Unlabeled", "clean_acc": "89.69", "autoattack_acc": "59.53", "eps": "8/255"}))
    info = read_model_info(path)
    assert (info.name, info.clean_accuracy, info.robust_accuracy) == ("Unlabeled", 0.8969, 0.5953)
    assert info.eps == 8 / 255
    path.write_text(json.dumps({"clean_acc": 89.69, "eps": None}))
    info = read_model_info(path)
    assert (info.name, info.clean_accuracy, info.robust_accuracy) == ("Carmon2019Unlabeled", 0.8969, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a model info file"),
        ("[]", "a JSON object with clean_acc"),
        ("[" * 100_000, "expected a model info file"),
        ('{"clean_acc": "x"}', "clean_acc: expected an accuracy"),
        ('{"clean_acc": 101}', "clean_acc: expected an accuracy"),
        ('{"clean_acc": NaN}', "clean_acc: expected an accuracy"),
        ('{"clean_acc": true}', "clean_acc: expected an accuracy"),
        ('{"clean_acc": 0.5, "eps": "1/0"}', "eps: expected a radius"),
        ('{"clean_acc": 0.5, "eps": -1}', "eps: expected a radius"),
        ('{"clean_acc": 0.5, "name": 3}', "name: expected text"),
        ('{"clean_acc": 0.5, "footnote": "' + "x" * (1 << 20) + '"}', "a JSON object"),
    ],
    ids=lambda text: text[:25],
)
def test_broken_files(text: str, message: str) -> None:
    Path("a.json").write_text(text)
    with pytest.raises(FileFormatError, match=f"a.json: .*{message}"):
        read_model_info("a.json")


BAD: list[tuple[dict[str, Any], str]] = [
    ({"threat_model": "corruptions"}, r"^threat_model: expected Linf or L2, got 'corruptions'"),
    ({"eps": None}, r"^eps: expected the radius of the ball, got None"),
    ({"eps": -0.1}, r"^eps: expected a finite number of at least 0"),
    ({"n_examples": 0}, r"^n_examples: expected at least 1"),
    ({"batch_size": 0}, r"^batch_size: expected at least 1"),
    ({"to_disk": True}, r"^model_name: expected a name with to_disk=True"),
    ({"preprocessing": "Res256"}, r"^preprocessing: expected None"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=str)
def test_bad_input(options: dict[str, Any], message: str) -> None:
    net, x, y = net_and_images()
    with pytest.raises(InputError, match=message):
        benchmark(net, **{"n_examples": 4, "eps": 0.1, "data": (x, y), **options})
    assert not Path("model_info").exists()
