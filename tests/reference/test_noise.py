"""Arithmetic of the noise contract: its parts against wider arithmetic, the whole against a second implementation.

The second implementation is scalar, in rational numbers, and shares no code with the first. Philox has known answers.
"""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

from pyrobust.reference import FAMILIES, STAGES, noise_words, philox4x32, sample_noise, unit_noise
from pyrobust.reference.noise import _COS, _LOG, _SIN, minus_two_log
from pyrobust.reference.rounding import fma, horner, sqrt

# --- a fused multiply-add in rational numbers


def nearest(exact: Fraction, dtype: type[np.floating]) -> np.floating:
    """Round a rational to the nearest floating-point number, ties to even."""
    near = dtype(float(exact))
    neighbours = (np.nextafter(near, dtype(-np.inf)), near, np.nextafter(near, dtype(np.inf)))
    integer = {np.float32: np.int32, np.float64: np.int64}[dtype]
    return min(
        (value for value in neighbours if np.isfinite(value)),
        key=lambda value: (abs(Fraction(float(value)) - exact), int(value.view(integer)) & 1),
    )


def fma_exactly(a: float, b: float, c: float, dtype: type[np.floating] = np.float32) -> np.floating:
    return nearest(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)), dtype)


def mantissas(rng: np.random.Generator, n: int, exponents: tuple[int, int], bits: int) -> np.ndarray:
    """Draw random signs, exponents and mantissa lengths, so that ties and cancellations occur."""
    mantissa = rng.integers(1, 2 ** rng.integers(1, bits + 1, n), endpoint=True)
    return np.ldexp(mantissa.astype(np.float64) * rng.choice([-1.0, 1.0], n), rng.integers(*exponents, n))


def hard_triples(dtype: type[np.floating], n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    bits = 24 if dtype is np.float32 else 53
    a = mantissas(rng, n, (-12, 12), bits).astype(dtype)
    b = mantissas(rng, n, (-12, 12), 24).astype(np.float32)
    product = a.astype(np.float64) * b
    c = np.select(
        [rng.integers(0, 4, n) == k for k in range(3)],
        [
            -product * (1 + rng.integers(-4, 5, n) * 2.0 ** -(bits - 1)),  # cancels almost all of the product
            product * 2.0 ** rng.integers(-2 * bits - 2, 2 * bits + 3, n),  # one of the two is a last bit of the other
            np.ldexp(1.0, rng.integers(-40, 60, n)),  # a power of two: the neighbour below is closer than the one above
        ],
        mantissas(rng, n, (-30, 30), bits),
    ).astype(dtype)
    # c plus almost half of its last bit: rounded to 53 bits first, the sum becomes a tie.
    small = 2.0 ** -(bits - 3)
    odd = (1 + rng.integers(0, 2 ** (bits - 1), 200) * 2.0 ** (1 - bits)).astype(dtype)
    a = np.concatenate([a, np.full(200, 2.0**-bits * (1 - small), dtype)])
    b = np.concatenate([b, np.where(np.arange(200) % 2, 1, 1 + small).astype(np.float32)])
    return a, b, np.concatenate([c, odd])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fma_rounds_once(dtype: type[np.floating]) -> None:
    a, b, c = hard_triples(dtype, 6000)
    got = fma(torch.from_numpy(a), torch.from_numpy(b), torch.from_numpy(c)).numpy()
    want = np.array([fma_exactly(*triple, dtype) for triple in zip(a, b, c, strict=True)], dtype=dtype)
    np.testing.assert_array_equal(got, want)
    twice = (a * b).astype(dtype) + c
    assert (twice != want).sum() > 200  # the cases distinguish one rounding from two
    if dtype is np.float32:
        through_float64 = (a.astype(np.float64) * b + c).astype(np.float32)
        assert (through_float64 != want).sum() > 10  # and one rounding from rounding to float64, then float32


def test_fma_of_subnormals_and_infinities() -> None:
    tiny = torch.tensor(2.0**-149)
    unit = torch.tensor(1.0)
    assert fma(tiny, unit * 0.5, tiny).item() == 2.0**-148  # 1.5 of the smallest: a tie, to even
    assert fma(tiny, unit * 0.5, tiny * 2).item() == 2.0**-148  # 2.5 of it: a tie, to even
    assert fma(tiny, unit * 0.5000001, tiny * 2).item() == 3 * 2.0**-149
    for real in (torch.float32, torch.float64):
        a = torch.tensor([1.0, 1.0, 1.0, -1.0], dtype=real)
        c = torch.tensor([math.inf, -math.inf, math.nan, 0.0], dtype=real)
        got = fma(a, torch.ones(4), c)
        assert got[:2].tolist() == [math.inf, -math.inf]
        assert got[2].isnan()
        assert got[3] == -1
        largest = torch.tensor(torch.finfo(real).max, dtype=real)
        assert fma(largest, 2 * unit, largest).item() == math.inf


def test_sqrt_is_rounded_once() -> None:
    x = torch.from_numpy(mantissas(np.random.default_rng(1), 4000, (-40, 40), 24).astype(np.float32)).abs()
    for value, root in zip(x.tolist(), sqrt(x).tolist(), strict=True):
        down, up = (float(np.nextafter(np.float32(root), np.float32(to))) for to in (0, np.inf))
        # √value lies between the middles to the neighbours, compared as squares.
        assert ((Fraction(down) + Fraction(root)) / 2) ** 2 <= Fraction(value)
        assert Fraction(value) <= ((Fraction(root) + Fraction(up)) / 2) ** 2


# --- accuracy of the polynomials

TOP = 2**31
WORDS = {
    "every 1021st": torch.arange(0, TOP, 1021),
    "lowest, the far tail": torch.arange(0, 2**20),
    "highest, the centre": torch.arange(TOP - 2**20, TOP),
    "where the exponent changes": torch.arange(int(2**30.5) - 2**18, int(2**30.5) + 2**18),
}


def minus_two_log_exactly(words: Tensor) -> Tensor:
    missing = (TOP - 0.5 - words.double()) / TOP
    return torch.where(missing < 0.5, -2 * torch.log1p(-missing), -2 * torch.log((words.double() + 0.5) / TOP))


@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS.keys())
def test_minus_two_log(words: Tensor) -> None:
    got = minus_two_log(words).double()
    want = minus_two_log_exactly(words)
    # 1.2e-7 for the word rounded to 24 bits; relative for the polynomial. Measured: 6.1e-8 near 0, 1.14e-7 in the tail.
    assert ((got - want).abs() <= 1.2e-7 + 1.2e-7 * want).all()
    of_rounded = -2 * torch.log((words.float() + 0.5).double() / TOP)
    assert ((got - of_rounded).abs() <= 1.7e-7 * of_rounded).all()
    assert (got >= 0).all()
    assert ((got - want).abs() > 1e-9 * want).any()  # the result is float32, not the oracle itself


def test_the_float64_logarithm_used_above() -> None:
    words = torch.cat([words[:: len(words) // 50] for words in WORDS.values()])
    with mpmath.workdps(40):
        for word, got in zip(words.tolist(), minus_two_log_exactly(words).tolist(), strict=True):
            want = -2 * mpmath.log((mpmath.mpf(word) + 0.5) / TOP)
            assert abs(got - want) <= 1e-14 * want


def test_extreme_normals() -> None:
    largest = math.sqrt(minus_two_log(torch.tensor(0)).item())
    assert largest == pytest.approx(math.sqrt(2 * 32 * math.log(2)), rel=1e-7)
    assert f"{largest:.2f}" == "6.66"  # the figure in the contract
    assert minus_two_log(torch.tensor(TOP - 1)).item() == 0


def test_sine_and_cosine() -> None:
    x = torch.arange(-(2**31), 2**31, 1021 * 4).float() * 2.0**-31
    q = x * x
    sine, cosine = (horner(q, _SIN) * x).double(), horner(q, _COS).double()
    angle = x.double() * (math.pi / 4)
    # Measured 8.6e-8 (1.7 ulp) and 9.5e-8 (1.6 ulp); together they stay on the circle within 2.4e-7.
    assert (sine - angle.sin()).abs().max() < 1e-7
    assert (cosine - angle.cos()).abs().max() < 1e-7
    assert (sine**2 + cosine**2 - 1).abs().max() < 2.5e-7


# --- the whole, word by word


# Copied from the contract; the highest are too small to matter in a few hundred words.
LOG = [-2, 0.999999762, -0.666683733, 0.500041485, -0.399136662, 0.331247807, -0.299045414, 0.287337214, -0.174447373]
SIN = [0.785398185, -0.0807454363, 0.00249000709, -3.59545083e-05]
COS = [1, -0.308424264, 0.0158499144, -0.000318880513]


def test_coefficients() -> None:
    assert [list(coefficients) for coefficients in (_LOG, _SIN, _COS)] == [LOG, SIN, COS]


def float32(exact: Fraction) -> np.float32:
    return nearest(exact, np.float32)


def polynomial(x: np.float32, coefficients: list[float]) -> np.float32:
    result = np.float32(coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        result = fma_exactly(result, x, np.float32(coefficient))
    return result


def scalar_minus_two_log(word: int) -> np.float32:
    v = float32(Fraction(int(float32(Fraction(word)))) + Fraction(1, 2))
    mantissa, exponent = np.frexp(v)  # in [½, 1)
    m, e = (np.float32(mantissa), exponent) if mantissa > math.sqrt(0.5) else (np.float32(2 * mantissa), exponent - 1)
    t = float32(Fraction(float(m)) - 1)
    c = np.float32(31 - e) * np.float32(1.38629436)
    return fma_exactly(t, polynomial(t, LOG), c)


def scalar_unit_noise(words: list[int], family: str) -> list[np.float32]:
    if family == "uniform":
        scale, offset = np.float32(8.06548994e-10), np.float32(4.03274497e-10)
        return [
            fma_exactly(float32(Fraction(word - 2**32 if word >= 2**31 else word)), scale, offset) for word in words
        ]
    if family == "laplace":
        half = np.float32(0.353553385)
        return [scalar_minus_two_log(w % 2**31) * half * np.float32(-1 if w >= 2**31 else 1) for w in words]
    normals = []
    for a, d in zip(words[::2], words[1::2], strict=True):
        radius = np.sqrt(scalar_minus_two_log(a // 2)) * np.float32(-1 if d >= 2**31 else 1)
        fraction = d * 4 % 2**32
        x = np.float32(math.ldexp(float(float32(Fraction(fraction - 2**32 if fraction >= 2**31 else fraction))), -31))
        q = x * x
        s = polynomial(q, SIN) * x
        k = polynomial(q, COS)
        normals += [radius * s, radius * k] if d >> 30 & 1 else [radius * k, radius * s]
    return normals


@pytest.mark.parametrize("family", ["gaussian", "uniform", "laplace"])
def test_unit_noise_against_a_scalar_reading_in_rationals(family: str) -> None:
    where = {"noise": family, "stage": "predict", "seed": 2**63 + 12345}
    words = noise_words(77, 2**32 - 3, 3, 200, **where)
    want = [scalar_unit_noise(row, family) for row in words.tolist()]
    got = unit_noise(77, 2**32 - 3, 3, 200, **where).numpy()
    np.testing.assert_array_equal(got.view(np.int32), np.array(want, dtype=np.float32).view(np.int32))


def test_an_element_does_not_depend_on_how_many_follow() -> None:
    whole = unit_noise(3, 0, 5, 16)
    for elements in range(17):
        assert torch.equal(unit_noise(3, 0, 5, elements), whole[:, :elements])
    assert torch.equal(unit_noise(3, 2, 2, 16), whole[2:4])
    assert noise_words(0, 5, 0, 7).shape == (0, 7)


# --- into the batch


def test_batch_of_one_element_by_hand() -> None:
    x = torch.tensor([[0.3], [0.7]])
    got = sample_noise(x, [(1, 9, 4, 2)], sigma=0.37, noise="laplace", normalize=([0.5], [0.2]))
    for row, z in zip(got[:, 0].tolist(), unit_noise(9, 4, 2, 1, noise="laplace")[:, 0].tolist(), strict=True):
        y = fma_exactly(np.float32(0.37), np.float32(z), np.float32(0.7))
        assert row == (y - np.float32(0.5)) / np.float32(0.2)


def test_float64_batch_uses_the_same_noise() -> None:
    x = torch.rand(1, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    z = unit_noise(0, 0, 6, 12)
    got = sample_noise(x, [(0, 0, 0, 6)], sigma=0.1).reshape(6, 12)
    want = [
        [fma_exactly(0.1, value, start, np.float64) for value, start in zip(row, x.flatten().tolist(), strict=True)]
        for row in z.tolist()
    ]
    assert got.tolist() == want
    # A float32 batch of float64 images rounds the images first.
    single = sample_noise(x, [(0, 0, 0, 6)], sigma=0.1, dtype=torch.float32)
    assert torch.equal(single, sample_noise(x.float(), [(0, 0, 0, 6)], sigma=0.1))


# --- Philox, and the layout of key and counter

# From the known-answer file of Random123 (Salmon et al.): counter, key, result.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> torch.Tensor:
    return torch.tensor([int(word, 16) for word in text.split()])


def test_known_answers() -> None:
    counters, keys, answers = (torch.stack([*map(words, column)]) for column in zip(*KNOWN_ANSWERS, strict=True))
    assert torch.equal(philox4x32(keys, counters), answers)
    crossed = philox4x32(keys[:, None], counters)
    assert torch.equal(crossed[range(3), range(3)], answers)
    assert torch.equal(crossed[2, 0], philox4x32(keys[2], counters[0]))


@pytest.mark.parametrize("seed", [1, 2**32, 2**64 - 1])
def test_key_and_counter_of_each_element(seed: int) -> None:
    key = torch.tensor([seed % 2**32, seed // 2**32])
    for stage, stage_number in STAGES.items():
        for family, family_number in FAMILIES.items():
            image, first = 2**32 - 1, 2**32 - 3
            got = noise_words(image, first, 3, 7, noise=family, stage=stage, seed=seed)
            assert got.shape == (3, 7)
            for sample in range(3):
                for element in range(7):
                    counter = [element // 4, first + sample, image, 256 * stage_number + family_number]
                    assert got[sample, element] == philox4x32(key, torch.tensor(counter))[element % 4]


def test_stage_and_family_numbers_follow_the_contract() -> None:
    assert STAGES == {"select": 0, "estimate": 1, "predict": 2, "attack": 3, "train": 4}
    assert FAMILIES == {"gaussian": 0, "uniform": 1, "laplace": 2}
