from __future__ import annotations

import numpy as np
import pytest
import torch

from pyrobust.errors import InputError
from pyrobust.zoo import load_digits
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
    for part in (train, test):
        share = torch.bincount(part.y, minlength=10) / len(part)
        assert float(share.min()) > 0.09
        assert float(share.max()) < 0.11


def test_test_split_starts_with_a_new_form() -> None:
    # Every form has the same sequence of labels, so the labels from its first row on equal those of the first form.
    y = load_digits("all").y
    assert torch.equal(y[1415:1545], y[:130])
    assert torch.equal(y[1667:1797], y[:130])
    assert not torch.equal(y[1437 : 1437 + 130], y[:130])


def test_notice_names_source_and_licence() -> None:
    from pyrobust.zoo.digits import DATA

    notice = (DATA / "NOTICE-optdigits.txt").read_text()
    assert "Alpaydin" in notice
    assert "CC BY 4.0" in notice
    assert read_npz_arrays(DATA / "optdigits.npz", ["x", "y"])["x"].dtype == np.uint8


def test_unknown_split_is_rejected() -> None:
    with pytest.raises(InputError, match="expected one of train, test, all, got 'dev'"):
        load_digits("dev")
