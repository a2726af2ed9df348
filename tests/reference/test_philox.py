"""Philox against its authors' known answers, and the layout of key and counter."""

from __future__ import annotations

import pytest
import torch

from pyrobust.reference import FAMILIES, STAGES, noise_words, philox4x32

# From the known-answer file of Random123 (Salmon et al.): counter, key, result.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> torch.Tensor:
    return torch.tensor([int(word, 16) for word in text.split()])


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_known_answers(counter: str, key: str, answer: str) -> None:
    assert philox4x32(words(key), words(counter)).tolist() == words(answer).tolist()


def test_many_counters_and_keys_at_once() -> None:
    counters = torch.stack([words(counter) for counter, _, _ in KNOWN_ANSWERS])
    keys = torch.stack([words(key) for _, key, _ in KNOWN_ANSWERS])
    answers = torch.stack([words(answer) for _, _, answer in KNOWN_ANSWERS])
    assert torch.equal(philox4x32(keys, counters), answers)
    crossed = philox4x32(keys[:, None], counters)
    assert crossed.shape == (3, 3, 4)
    assert torch.equal(crossed[2, 0], philox4x32(keys[2], counters[0]))


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1, 2**32, 2**63 + 5, 2**64 - 1])
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


def test_words_are_unsigned_32_bits_and_uniform_in_every_bit() -> None:
    drawn = noise_words(0, 0, 64, 4096)
    assert drawn.min() >= 0
    assert drawn.max() < 2**32
    ones = torch.stack([(drawn >> bit) & 1 for bit in range(33)]).double().mean(dim=(1, 2))
    assert ones[32] == 0
    assert (ones[:32] - 0.5).abs().max() < 5 * 0.5 / drawn.numel() ** 0.5


def test_no_samples_and_no_elements() -> None:
    assert noise_words(0, 5, 0, 7).shape == (0, 7)
    assert noise_words(0, 5, 7, 0).shape == (7, 0)
