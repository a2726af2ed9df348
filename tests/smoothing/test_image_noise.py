"""Noise of images without an index: keyed by seed, grid step, shape and values."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrobust import RandomizedSmoothing, ops
from pyrobust.errors import InputError, InputTypeError
from pyrobust.reference.noise import value_key as reference_key
from pyrobust.smoothing.image_noise import value_key

BYTE = Fraction(1, 255)
RUNS = [(0, 0, 0, 3), (1, 0, 2, 9), (0, 2**32 - 1, 1, 4), (2, 5, 0, 0), (2, 0, 7, 2)]
KEYS = [5, 2**64 - 1, 2**63, 0, 2**40 + 1]
# The two kinds of examples without an index: real values, and levels of a grid.
SMOOTHERS = {"real": None, "grid": BYTE}


def first_three(batch):
    return batch.flatten(1)[:, :3]


def images(count=7):
    return torch.randint(256, (count, 2, 3, 4), generator=torch.Generator().manual_seed(5)).float() / 255


def smoother(grid, model=first_three, **options):
    return RandomizedSmoothing(model, 3, 0.25, grid=grid, **({"seed": 4, "batch_size": 32} | options))


# --- the key


def test_key_is_the_same_in_every_process():
    assert value_key(0, torch.arange(4.0)) == 12916534367360333721
    assert value_key(3, torch.arange(4, dtype=torch.int32), BYTE) == 10424859174586150059


@given(st.integers(0, 2**64 - 1), st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=12))
def test_key_agrees_with_the_reference(seed, values):
    x = torch.tensor(values, dtype=torch.float32)
    k = x.view(torch.int32)
    assert value_key(seed, k, BYTE) == reference_key(seed, k, BYTE)
    assert value_key(seed, x) == value_key(seed, x.double()) == reference_key(seed, x)
    assert value_key(seed, x) == value_key(seed, x.expand(2, -1)[1])


def test_key_covers_seed_step_shape_and_values_but_not_dtype_or_layout():
    x, k = torch.tensor([[0.0, 1.0], [2.0, 3.0]]), torch.tensor([[0, 1], [2, 3]], dtype=torch.int32)
    keys = [value_key(seed, x) for seed in (0, 1, 2**32, 2**64 - 1)]
    keys += [value_key(0, y) for y in (x[None], x.flatten(), x.T, x.nextafter(torch.tensor(9.0)), x[:1])]
    keys += [value_key(0, k, step) for step in (BYTE, Fraction(1, 256), Fraction(1), Fraction(2, 255))]
    assert len(set(keys)) == len(keys)
    assert all(0 <= key < 2**64 for key in keys)
    assert value_key(0, torch.full((3,), -0.0)) == value_key(0, torch.zeros(3))
    halves = torch.tensor([[0.5, -0.25, 0.0]])
    assert value_key(1, halves.bfloat16()) == value_key(1, halves.half()) == value_key(1, halves)
    y = torch.rand(2, 4, 5, 3).permute(0, 3, 1, 2)[1]
    assert value_key(1, y) == value_key(1, y.contiguous())


# --- the noise


def test_wrong_keys():
    for keys in (KEYS[:-1], [*KEYS, 1], [-1, *KEYS[1:]], [2**64, *KEYS[1:]], 5):
        with pytest.raises((InputError, InputTypeError), match="keys: expected"):
            ops.sample_noise(images(3), RUNS, sigma=0.25, keys=keys)


@pytest.mark.usefixtures("unprobed")
def test_stages_images_and_kinds_share_no_noise():
    seen = []

    def model(batch):
        seen.append(batch.clone())
        return first_three(batch)

    x = torch.zeros(3, 2, 4, 5)
    x[1], x[2, 0, 0, 0] = 2.0**-126, 2.0**-24
    smooth = smoother(None, model)
    smooth.certify_batch(x, n0=20, n=30)
    smooth.predict_batch(x, n=30)
    smooth.certify_batch(x[:1], n0=20, n=30, indices=[0])
    rows = torch.cat(seen).flatten(1)[:, 1:]
    assert len(rows) == 3 * 80 + 50
    assert len(rows.unique(dim=0)) == len(rows)


# --- results


@settings(max_examples=8)
@given(st.permutations(range(7)), st.integers(1, 7), st.sampled_from([3, 32, 100]), st.sampled_from(list(SMOOTHERS)))
def test_results_do_not_depend_on_order_split_batch_size_or_dtype(order, size, batch_size, kind):
    x, expected = images(), smoother(SMOOTHERS[kind]).certify_batch(images(), n0=10, n=50)
    for begin in range(0, 7, size):
        chosen = order[begin : begin + size]
        batch = x[chosen].double() if begin % 2 and kind == "real" else x[chosen]
        result = smoother(SMOOTHERS[kind], batch_size=batch_size).certify_batch(batch, n0=10, n=50)
        np.testing.assert_array_equal(result.counts, expected.counts[chosen])
        np.testing.assert_array_equal(result.counts0, expected.counts0[chosen])
        np.testing.assert_array_equal(result.keys, expected.keys[chosen])


@pytest.mark.parametrize("kind", list(SMOOTHERS))
def test_loops_equal_one_call(kind):
    x, smooth = images(), smoother(SMOOTHERS[kind])
    result = smooth.certify_batch(x, n0=10, n=200)
    alone = [smooth.certify(image, n0=10, n=200) for image in x]
    assert alone == list(zip(result.prediction.tolist(), result.radius.tolist(), strict=True))
    assert [smooth.predict(image, 50) for image in x] == smooth.predict_batch(x, n=50).prediction.tolist()
    options = {"n0": 10, "n": 500, "method": "sequential", "radii": [0.1, 0.2]}
    whole, *pieces = (smooth.certify_batch(y, **options) for y in (x, *x.split(3)))
    for name in ("counts", "keys"):
        np.testing.assert_array_equal(np.concatenate([getattr(p, name) for p in pieces]), getattr(whole, name))
    np.testing.assert_array_equal(whole.counts0, result.counts0)
    assert len({tuple(row) for row in result.counts.tolist()}) > 1


def test_results_say_how_their_noise_was_keyed():
    x, smooth = images(4)[[0, 1, 0, 0]], smoother(None)
    for result in (smooth.certify_batch(x, n0=5, n=10), smooth.predict_batch(x, n=10)):
        assert (result.keyed_by, result.repeated) == ("values", 2)
        assert result.keys.dtype == np.uint64
        assert result.keys.tolist() == [value_key(4, image) for image in x]
        assert result.indices.tolist() == [0, 1, 2, 3]
        assert result.counts[0].tolist() == result.counts[2].tolist()
        assert "keyed_by='values', repeated=2" in repr(result)
    indexed = smooth.certify_batch(x, n0=5, n=10, indices=[7, 3, 9, 4])
    assert (indexed.keyed_by, indexed.repeated, indexed.keys) == ("indices", 0, None)
    assert indexed.indices.tolist() == [7, 3, 9, 4]
