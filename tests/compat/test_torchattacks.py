"""Scripts for torchattacks run with only the import changed, and the files that they save and load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.torchattacks_nets import CLASSES, MEAN, STD, images, net, normalize, restore, shifted
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import pyrobust.compat.torchattacks as torchattacks
from pyrobust.errors import FileFormatError, InputError, InputTypeError, StoreError

ATTACKS: list[tuple[Any, dict[str, Any]]] = [
    (torchattacks.FGSM, {}),
    (torchattacks.PGD, {"alpha": 2 / 255, "steps": 4}),
    (torchattacks.BIM, {"alpha": 2 / 255, "steps": 4}),
]
EPS = 8 / 255


def test_readme_script(capsys: pytest.CaptureFixture[str]) -> None:
    """Attack a loader's batches, count robust examples, and switch to targeted mode and back."""
    model = net()
    x, y = images(24)
    atk = torchattacks.PGD(model, eps=EPS, alpha=2 / 255, steps=4)
    atk.set_device("cpu")
    assert "steps=4" in repr(atk)
    assert not torch.equal(atk(x, y), atk(x, y)), "calls start at random"
    correct = 0
    for batch, label in zip(x.split(8), y.split(8), strict=True):
        adv = atk(batch, label)
        assert adv.shape == batch.shape
        correct += int((model(adv).argmax(1) == label).sum())
    assert correct < 24
    atk.set_mode_targeted_by_function(target_map_function=lambda images, labels: (labels + 1) % CLASSES, quiet=True)
    adv = atk(x, y)
    reached = model(adv).argmax(1) == (y + 1) % CLASSES
    assert reached.any()
    assert capsys.readouterr().out == ""
    atk.set_mode_targeted_by_label()
    assert "targeted(label)" in capsys.readouterr().out
    assert torch.equal(model(atk(x, (y + 1) % CLASSES)).argmax(1) == (y + 1) % CLASSES, reached)
    atk.set_mode_default()
    assert atk.get_mode() == "default"
    assert (model(atk(x, y)).argmax(1) != y).any()
    atk.steps, atk.eps = 1, 0.0
    assert torch.equal(atk(x, y), x)
    with pytest.raises(InputTypeError, match=r"model: expected a torch\.nn\.Module"):
        torchattacks.PGD(lambda x: x)


@pytest.mark.parametrize(("attack", "options"), ATTACKS)
def test_normalized_images(attack: Any, options: dict[str, Any]) -> None:
    """An attack on normalized images equals the attack on the images in [0, 1]."""
    x, y = images(12)
    plain = attack(net(), eps=EPS, **options)(x, y)
    atk = attack(shifted(net()), eps=EPS, **options)
    with pytest.raises(InputError, match="x: expected values in"):
        atk(normalize(x), y)
    with pytest.raises(InputError, match="std: expected"):
        atk.set_normalization_used([0.5], [0.0])
    atk.set_normalization_used(mean=MEAN, std=STD)
    back = restore(atk(normalize(x), y))
    torch.testing.assert_close(back, plain, rtol=0, atol=3 / 255)
    assert float((back - x).abs().max()) <= EPS + 1e-6
    assert float((net()(back).argmax(1) == net()(plain).argmax(1)).float().mean()) >= 0.9


@pytest.mark.parametrize(("attack", "options"), ATTACKS)
def test_success_matches_running_all_steps(attack: Any, options: dict[str, Any]) -> None:
    """Explicit signed gradient steps: whatever they fool after the last step is fooled here, too."""
    model = net()
    x, y = images(24)
    epsilon = 3 / 255
    settings = dict(options, random_start=False) if attack is torchattacks.PGD else options
    adv = attack(model, eps=epsilon, **settings)(x, y)
    expected_adv = x.clone()
    for _ in range(options.get("steps", 1)):
        expected_adv.requires_grad_()
        (slope,) = torch.autograd.grad(nn.functional.cross_entropy(model(expected_adv), y), expected_adv)
        moved = expected_adv.detach() + options.get("alpha", epsilon) * slope.sign()
        expected_adv = (x + (moved - x).clamp(-epsilon, epsilon)).clamp(0, 1)
    fooled = model(adv).argmax(1) != y
    expected = model(expected_adv).argmax(1) != y
    assert expected.any()
    assert not expected.all()
    assert bool(fooled[expected].all())
    torch.testing.assert_close(adv[~fooled], expected_adv[~fooled], rtol=0, atol=2 * epsilon)


def test_least_likely_and_random_targets() -> None:
    model = net()
    x, y = images(24)
    order = model(x).argsort(1)
    seen: list[Tensor] = []
    atk = torchattacks.PGD(model, eps=0.5, alpha=0.1, steps=20)
    for kth in (1, 2):
        atk.set_mode_targeted_least_likely(kth, quiet=True)
        adv = atk(x, y)
        assert (model(adv).argmax(1) == order[:, kth - 1]).float().mean() > 0.8
    atk.set_mode_targeted_random(quiet=True)
    for _ in range(2):
        adv = atk(x, y)
        got = model(adv).argmax(1)
        assert (got != y).float().mean() > 0.8
        assert len(got.unique()) >= 3
        seen.append(got)
    assert not torch.equal(*seen)
    with pytest.raises(InputError, match="kth_min: expected at least 1"):
        atk.set_mode_targeted_least_likely(0)


# --- files


def loader(normalized: bool = False) -> DataLoader[tuple[Tensor, ...]]:
    x, y = images(10, levels=True)
    return DataLoader(TensorDataset(normalize(x) if normalized else x, y), batch_size=4)


def attack(normalized: bool = False) -> torchattacks.PGD:
    model = shifted(net()) if normalized else net()
    atk = torchattacks.PGD(model, eps=EPS, alpha=2 / 255, steps=5, random_start=False)
    if normalized:
        atk.set_normalization_used(MEAN, STD)
    return atk


@pytest.mark.parametrize("normalized", [False, True])
def test_save_and_load(normalized: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "adv.pt"
    x, y = images(10, levels=True)
    expected = attack()(x, y)
    atk = attack(normalized)
    result = atk.save(loader(normalized), path, return_verbose=True, save_predictions=True, save_clean_inputs=True)
    assert "Robust accuracy" in capsys.readouterr().out
    fooled = net()(expected).argmax(1) != y
    assert 0 < fooled.sum() < 10
    assert result[0] == pytest.approx(100 * float((~fooled).double().mean()))
    assert result[1] == pytest.approx(float((expected - x)[fooled].flatten(1).norm(dim=1).mean()), rel=1e-4)
    assert result[2] > 0
    content = torch.load(path, weights_only=True)
    assert set(content) == {"adv_inputs", "labels", "preds", "clean_inputs", "save_type"}
    torch.testing.assert_close(content["adv_inputs"], expected, rtol=0, atol=1e-6)
    adv, labels, predictions, clean = torchattacks.PGD.load(
        path, batch_size=10, load_predictions=True, load_clean_inputs=True
    ).dataset[:]
    torch.testing.assert_close(clean, x, rtol=0, atol=1e-6)
    assert torch.equal(labels, y)
    assert torch.equal(predictions != y, fooled)
    scaled, _ = torchattacks.Attack.load(path, normalize={"mean": MEAN, "std": STD}).dataset[:]
    torch.testing.assert_close(scaled, normalize(adv))


def test_integers_keep_epsilon(tmp_path: Path) -> None:
    path = tmp_path / "adv.pt"
    x, y = images(10, levels=True)
    levels = (x * 255).round().byte()
    atk = attack()
    atk.save(loader(), path, verbose=False, save_clean_inputs=True, save_type="int")
    content = torch.load(path, weights_only=True)
    assert torch.equal(content["clean_inputs"], levels)
    atk.set_return_type("int")
    for adv in (atk(x, y), content["adv_inputs"]):
        assert adv.dtype == torch.uint8
        assert int((adv.int() - levels.int()).abs().max()) == 8
    adv, clean = torchattacks.Attack.load(path, batch_size=4, load_clean_inputs=True).dataset[:][::2]
    torch.testing.assert_close(clean, x)
    assert float((adv - clean).abs().max()) <= EPS + 1e-6
    accuracy, distance, _ = atk.save(loader(), path, verbose=False, return_verbose=True)
    assert 0 < accuracy < 100
    assert distance <= EPS * 72**0.5
    assert torch.load(path, weights_only=True)["adv_inputs"].max() <= 1
    for refused in (atk.set_return_type, lambda kind: atk.to_type(x, kind)):
        with pytest.raises(InputError, match="type: expected float or int"):
            refused("half")
    half = torch.tensor([0.0, 0.5, 1.0])
    assert torchattacks.Attack.to_type(half, "int").tolist() == [0, 127, 255]
    assert torchattacks.Attack.to_type(half, "float") is half


def test_what_save_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batches before one that fails, the file of an earlier call where none begins, nothing without a path."""
    monkeypatch.chdir(tmp_path)
    assert attack().save(loader(), verbose=False) is None
    assert list(tmp_path.iterdir()) == []
    x, y = images(10)
    with pytest.raises(InputError, match="x: expected values in"):
        attack().save([(x[:4], y[:4]), (x[4:], y[4:]), (x[:4] + 2, y[:4])], "adv.pt", verbose=False)  # type: ignore[arg-type]  # a list, as data loaders are used
    assert len(torch.load("adv.pt", weights_only=True)["labels"]) == 10
    assert [file.name for file in tmp_path.iterdir()] == ["adv.pt"]
    with pytest.raises(InputError, match="data_loader: expected at least one batch"):
        attack().save([], "adv.pt")  # type: ignore[arg-type]  # a list, as above
    assert len(torch.load("adv.pt", weights_only=True)["labels"]) == 10
    with pytest.raises(StoreError, match="cannot be written"):
        attack().save(loader(), "missing/adv.pt", verbose=False)
    with pytest.raises(InputError, match="save_type: expected float or int"):
        attack().save(loader(), "adv.pt", save_type="half")


def test_multiattack_reports_each_attack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weak, strong = torchattacks.FGSM(net(), eps=1 / 255), attack()
    weak.set_model(strong.model)
    atk = torchattacks.MultiAttack([weak, strong])
    accuracy, rates, distance, seconds = atk.save(loader(), str(tmp_path / "adv.pt"), return_verbose=True)
    assert len(rates) == 2
    assert rates == sorted(rates)
    assert rates[1] == pytest.approx(100 - accuracy)
    assert distance > 0
    assert seconds > 0
    assert "Attack success rate: " in capsys.readouterr().out
    assert len(torchattacks.MultiAttack.load(str(tmp_path / "adv.pt")).dataset) == 10  # type: ignore[arg-type]  # data sets have no length for mypy


def test_bad_files(tmp_path: Path) -> None:
    path = tmp_path / "bad.pt"
    good = {"adv_inputs": torch.zeros(3, 1, 2, 2), "labels": torch.zeros(3, dtype=torch.int64), "save_type": "float"}
    for content, options, match in (
        (None, {}, "expected a file, found nothing there"),
        (b"text", {}, r"bad\.pt: "),
        ([1, 2], {}, "found no adv_inputs"),
        (good | {"labels": [0, 0, 0]}, {}, "found no labels"),
        (good | {"labels": torch.zeros(2)}, {}, "expected parts of one length"),
        (good, {"load_predictions": True}, "found no preds"),
        (good | {"model": nn.Linear(2, 2)}, {}, "could run code"),
    ):
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif content is not None:
            torch.save(content, path)
        with pytest.raises(FileFormatError, match=match):
            torchattacks.Attack.load(path, **options)
    torch.save(good, path)
    with pytest.raises(InputError, match="batch_size: expected at least 1"):
        torchattacks.Attack.load(path, batch_size=0)
