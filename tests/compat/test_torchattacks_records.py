"""Files of adversarial images: what save writes and reports, and what load reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import pyrobust.compat.torchattacks as torchattacks
from pyrobust.errors import FileFormatError, InputError, StoreError

EPS = 16 / 255


class Shifted(nn.Module):
    """A linear model of images normalized with mean 0.5 and std 0.25."""

    def __init__(self, normalized: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.normalized = normalized
        self.linear = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear((x if self.normalized else (x - 0.5) / 0.25).flatten(1))
        return out


def loader(normalized: bool = False, batch: int = 4) -> DataLoader[tuple[Tensor, ...]]:
    x = torch.randint(256, (10, 1, 4, 4), generator=torch.Generator().manual_seed(2)) / 255
    y = Shifted(False)(x).argmax(1)
    return DataLoader(TensorDataset((x - 0.5) / 0.25 if normalized else x, y), batch_size=batch)


def images() -> tuple[Tensor, Tensor]:
    x, y = next(iter(loader(batch=10)))
    return x, y


def attack(normalized: bool = False) -> torchattacks.PGD:
    atk = torchattacks.PGD(Shifted(normalized), eps=EPS, alpha=4 / 255, steps=5, random_start=False)
    if normalized:
        atk.set_normalization_used([0.5], [0.25])
    return atk


@pytest.mark.parametrize("normalized", [False, True])
def test_save_and_load(normalized: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "adv.pt"
    model = Shifted(False)
    x, y = images()
    expected = attack()(x, y)
    atk = attack(normalized)
    result = atk.save(loader(normalized), path, return_verbose=True, save_predictions=True, save_clean_inputs=True)
    assert "Robust accuracy" in capsys.readouterr().out
    fooled = model(expected).argmax(1) != y
    assert fooled.any()
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
    scaled, _ = torchattacks.Attack.load(path, normalize={"mean": [0.5], "std": [0.25]}).dataset[:]
    torch.testing.assert_close(scaled, (adv - 0.5) / 0.25)


def test_integers_keep_epsilon(tmp_path: Path) -> None:
    path = str(tmp_path / "adv.pt")
    x, _ = images()
    attack().save(loader(), path, verbose=False, save_clean_inputs=True, save_type="int")
    content = torch.load(path, weights_only=True)
    assert content["adv_inputs"].dtype == content["clean_inputs"].dtype == torch.uint8
    assert torch.equal(content["clean_inputs"], (x * 255).round().byte())
    assert int((content["adv_inputs"].int() - content["clean_inputs"].int()).abs().max()) == 16
    adv, clean = torchattacks.Attack.load(path, batch_size=4, load_clean_inputs=True).dataset[:][::2]
    torch.testing.assert_close(clean, x)
    assert float((adv - clean).abs().max()) <= EPS + 1e-6


def test_return_type_int_is_saved_in_the_unit_range(tmp_path: Path) -> None:
    path = str(tmp_path / "adv.pt")
    atk = attack()
    atk.set_return_type("int")
    accuracy, distance, _ = atk.save(loader(), path, verbose=False, return_verbose=True)
    assert 0 < accuracy < 100
    assert distance <= EPS * 4
    assert torch.load(path, weights_only=True)["adv_inputs"].max() <= 1


def test_a_failing_batch_leaves_the_ones_before(tmp_path: Path) -> None:
    path = tmp_path / "adv.pt"

    class Broken(list[Any]):
        pass

    x, y = images()
    batches = Broken([(x[:4], y[:4]), (x[4:], y[4:]), (x[:4] + 2, y[:4])])
    with pytest.raises(InputError, match="x: expected values in"):
        attack().save(batches, str(path), verbose=False)
    assert len(torch.load(path, weights_only=True)["labels"]) == 10
    assert [file.name for file in tmp_path.iterdir()] == ["adv.pt"]
    with pytest.raises(InputError, match="data_loader: expected at least one batch"):
        attack().save([], str(path))  # type: ignore[arg-type]
    assert len(torch.load(path, weights_only=True)["labels"]) == 10
    with pytest.raises(StoreError, match="cannot be written"):
        attack().save(loader(), str(tmp_path / "missing" / "adv.pt"), verbose=False)
    with pytest.raises(InputError, match="save_type: expected float or int"):
        attack().save(loader(), str(path), save_type="half")


def test_nothing_is_written_without_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert attack().save(loader(), verbose=False) is None
    assert list(tmp_path.iterdir()) == []


def test_multiattack_reports_each_attack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = [torchattacks.FGSM(Shifted(False), eps=2 / 255), attack()]
    parts[0].set_model(parts[1].model)
    atk = torchattacks.MultiAttack(parts)
    accuracy, rates, distance, seconds = atk.save(loader(), str(tmp_path / "adv.pt"), return_verbose=True)
    assert len(rates) == 2
    assert rates == sorted(rates)
    assert rates[1] == pytest.approx(100 - accuracy)
    assert distance > 0
    assert seconds > 0
    assert "Attack success rate: " in capsys.readouterr().out
    assert len(torchattacks.MultiAttack.load(str(tmp_path / "adv.pt")).dataset) == 10  # type: ignore[arg-type]


def test_bad_files(tmp_path: Path) -> None:
    load = torchattacks.Attack.load
    with pytest.raises(FileFormatError, match="expected a file, found nothing there"):
        load(str(tmp_path / "none.pt"))
    path = tmp_path / "bad.pt"
    path.write_bytes(b"text")
    with pytest.raises(FileFormatError, match=r"bad\.pt: "):
        load(str(path))
    good = {"adv_inputs": torch.zeros(3, 1, 2, 2), "labels": torch.zeros(3, dtype=torch.int64), "save_type": "float"}
    for content, match in (
        ([1, 2], "found no adv_inputs"),
        (good | {"labels": [0, 0, 0]}, "found no labels"),
        (good | {"labels": torch.zeros(2)}, "expected parts of one length"),
    ):
        torch.save(content, path)
        with pytest.raises(FileFormatError, match=match):
            load(str(path))
    torch.save(good, path)
    with pytest.raises(FileFormatError, match="found no preds"):
        load(str(path), load_predictions=True)
    with pytest.raises(InputError, match="batch_size: expected at least 1"):
        load(str(path), batch_size=0)
    torch.save(good | {"model": nn.Linear(2, 2)}, path)
    with pytest.raises(FileFormatError, match="could run code"):
        load(str(path))


def test_to_type() -> None:
    half = torch.tensor([0.0, 0.5, 1.0])
    assert torchattacks.Attack.to_type(half, "int").tolist() == [0, 127, 255]
    assert torchattacks.Attack.to_type(torch.tensor([0, 51, 255], dtype=torch.uint8), "float").tolist() == [
        0.0,
        pytest.approx(0.2),
        1.0,
    ]
    assert torchattacks.Attack.to_type(half, "float") is half
    with pytest.raises(InputError, match="type: expected float or int"):
        torchattacks.Attack.to_type(half, "half")
