"""Every sweep: the same results in any order and in shards, and no resuming with other parameters."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.attack_runs import Mine, digits, fitted, pgd
from support.example_parameters import example
from support.sweep_models import FEW, Bands, Failing, Stop, images, same, smoother, stop_after
from torch import nn

from pyrobust.attacks import FAB, FGSM, AutoAttack
from pyrobust.errors import InputError, InputTypeError, StoreError
from pyrobust.evaluation import (
    Run,
    attack_dataset,
    certify_dataset,
    merge_runs,
    predict_dataset,
    sandwich_dataset,
    verify_dataset,
)
from pyrobust.runs.kinds.certify import Certify
from pyrobust.runs.parameters import chosen_indices, processing_order
from pyrobust.zoo import load_model

SEQUENTIAL: dict[str, Any] = {"n0": 10, "n": 400, "method": "sequential", "radii": [0.05, 0.2]}


def certify(classifier: Any = None, data: Any = None, **options: Any) -> Run:
    return certify_dataset(classifier or smoother(), data or images(), **(FEW | options))


def sequential(**options: Any) -> Run:
    return certify(**(SEQUENTIAL | options))


def attack(attacker: Any = None, **options: Any) -> Run:
    return attack_dataset(attacker or pgd(), digits(12), **({"batch_size": 5} | options))


def verify(**options: Any) -> Run:
    defaults: dict[str, Any] = {"epsilons": [0.02, 0.05], "attack": "pgd", "batch_size": 2}
    return verify_dataset(fitted(), digits(6), **(defaults | options))


def sandwich(**options: Any) -> Run:
    return sandwich_dataset(fitted(), digits(2), batch_size=1, **options).run


SWEEPS: dict[str, Callable[..., Run]] = {
    "certify": certify,
    "sequential": sequential,
    "predict": lambda **options: predict_dataset(smoother(), images(), n=50, **options),
    "attack": attack,
    "certified first": lambda **options: attack(
        AutoAttack(load_model("zoo:digits-ibp-0.10"), 0.12, certify_first=True, attacks_to_run=["square"]), **options
    ),
    "nearest": lambda **options: attack_dataset(
        FAB(fitted(), norm="l2", steps=3), digits(4), minimum=True, batch_size=1, **options
    ),
    "verify": verify,
    "sandwich": sandwich,
    "smoothed sandwich": lambda **options: (
        sandwich_dataset(smoother(), images(9), n0=10, n=200, n_attack=200, steps=3, draws=4, **options).run
    ),
}


def test_the_order_is_a_permutation_of_the_covered_images() -> None:
    parameters = example("certify") | {"images": 500, "skip": 3, "max": 120, "order": "random", "order_seed": 7}
    order = list(processing_order(parameters))
    assert sorted(order) == list(chosen_indices(parameters))
    assert order != sorted(order)
    digests = [hashlib.sha256(f"order 7 {index}".encode()).hexdigest() for index in order]
    assert digests == sorted(digests)
    assert list(processing_order(parameters | {"order_seed": 8})) != order
    # Every shard takes its images in the order of the whole.
    for number in (1, 2, 3):
        shard = list(processing_order(parameters | {"shard": [number, 3]}))
        assert shard == [index for index in order if index in set(shard)]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """One thread: torch divides a batch among several, and a row's last bits follow from where it stands."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("sweep", SWEEPS.values(), ids=SWEEPS)
@pytest.mark.usefixtures("few_steps", "one_thread")
def test_results_depend_neither_on_order_and_shards_nor_on_interruptions(
    sweep: Callable[..., Run], tmp_path: Path
) -> None:
    expected, paths = sweep(), [tmp_path / f"{number}.db" for number in (1, 2)]
    with contextlib.suppress(Stop):  # some are done in one chunk
        sweep(order="random", out=paths[0], shard=(1, 2), progress=stop_after(1))
    shuffled = sweep(order="random", out=paths[0], shard=(1, 2))
    sweep(out=paths[1], shard=(2, 2))
    merged = merge_runs(paths)
    assert merged.complete
    assert same(merged, expected)
    assert same(Run(paths[0]), shuffled)
    assert shuffled.table["index"].tolist() == expected.table["index"].tolist()[::2]
    assert {name: shuffled.parameters[name] for name in set(shuffled.parameters) - set(expected.parameters)} == {
        "order": "random",
        "order_seed": 0,
    }


def test_chunks_are_committed_in_the_order_and_resumed(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    options: dict[str, Any] = {"out": path, "n0": 10, "n": 4000, "order": "random"}
    with pytest.raises(ValueError, match="broken"):
        certify_dataset(smoother(Failing(900, ValueError("broken"))), images(), **options)
    kept = Run(path)
    order = processing_order(kept.parameters)
    assert kept.parameters["chunk"] == 1
    assert 0 < len(kept) < len(order)
    assert sorted(kept.table["index"].tolist()) == sorted(order[: len(kept)])
    assert kept.table["index"].tolist() != list(range(len(kept)))
    resumed = certify_dataset(smoother(Failing(10**9, ValueError("broken"))), images(), **options)
    assert same(resumed, certify_dataset(smoother(), images(), n0=10, n=4000))


def shuffled(**options: Any) -> Run:
    return certify(**({"order": "random"} | options))


OTHERS: list[tuple[Callable[..., Run], dict[str, Any], str]] = [
    (certify, {"n": 101}, "n: 100 stored, 101 given"),
    (certify, {"shard": (1, 2)}, "shard: None stored"),
    (certify, {"batch_size": 32}, "batch_size: 64 stored, 32 given"),
    (certify, {"data": images(41)}, "hash of the data.*images: 40 stored, 41 given"),
    (certify, {"classifier": smoother(seed=1)}, "seed: 0 stored, 1 given"),
    (certify, {"classifier": smoother(nn.Sequential(Bands()))}, "hash of the model"),
    (certify, SEQUENTIAL, "method: 'fixed' stored, 'sequential' given"),
    (shuffled, {"order": "data"}, "order: 'random' stored, None given; order_seed: 0 stored, None given"),
    (shuffled, {"classifier": smoother(seed=5)}, "order_seed: 0 stored, 5 given"),
    (sequential, {"radii": [0.05]}, r"radii: \[0.05, 0.2\] stored, \[0.05\] given"),
    (sequential, {"hybrid": 0.5}, "hybrid: 0.01 stored, 0.5 given"),
    (sequential, {"two_class": True}, "two_class: False stored, True given"),
    (attack, {"attacker": pgd(steps=4)}, "steps: 3 stored, 4 given"),
    (attack, {"attacker": pgd(epsilon=0.2)}, "epsilon: 0.15 stored, 0.2 given"),
    (attack, {"attacker": pgd(norm="l2")}, "norm: 'linf' stored, 'l2' given"),
    (attack, {"attacker": pgd(loss="margin")}, "loss: 'ce' stored, 'margin' given"),
    (attack, {"attacker": FGSM(pgd().model, 0.15)}, "attack: 'PGD' stored, 'FGSM' given"),
    (attack, {"keep_examples": False}, "examples: True stored, False given"),
    (verify, {"epsilons": [0.02]}, r"epsilons: \[0.02, 0.05\] stored, \[0.02\] given"),
    (verify, {"epsilons": None, "radius": True, "attack": None}, "largest: None stored, 1.0 given"),
    (verify, {"method": "crown"}, "method: 'cascade' stored, 'crown' given"),
    (verify, {"sound": False}, "guarantee: 'deterministic' stored, 'none' given; sound: True stored, False given"),
    (verify, {"attack": None}, "attack: 'PGD' stored, None given"),
    (sandwich, {"norm": "l2"}, "norm: 'linf' stored, 'l2' given"),
    (sandwich, {"epsilons": 0.1}, r"epsilons: None stored, \[0.1\] given"),
]


@pytest.mark.usefixtures("few_steps")
@pytest.mark.parametrize("sweep", [certify, shuffled, sequential, attack, verify, sandwich])
def test_other_parameters_are_refused_by_name(sweep: Callable[..., Run], tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    complete = sweep(out=path)
    before = path.read_bytes()
    for other, words in [(other, words) for each, other, words in OTHERS if each is sweep]:
        with pytest.raises(StoreError, match=words):
            sweep(**other, out=path)
    again = sweep(out=path)
    assert path.read_bytes() == before
    assert again.table["seconds"].tolist() == complete.table["seconds"].tolist()  # measured anew they would differ


def test_the_seed_of_the_order() -> None:
    assert certify_dataset(smoother(seed=9), images(), order="random", **FEW).parameters["order_seed"] == 9
    assert attack_dataset(pgd(seed=4), digits(), order="random").parameters["order_seed"] == 4
    without = Mine(load_model("zoo:digits-smooth-0.25"))
    assert attack_dataset(without, digits(), order="random").parameters["order_seed"] == 0
    assert verify(order="random", seed=3).parameters["order_seed"] == 3


def test_other_orders_are_refused() -> None:
    Certify().check(example("certify") | {"order": "random", "order_seed": 0})
    for order in (
        {"order": "index", "order_seed": 0},
        {"order": "random", "order_seed": -1},
        {"order": "random"},
        {"order_seed": 0},
    ):
        with pytest.raises(ValueError, match="parameter"):
            Certify().check(example("certify") | order)
    with pytest.raises(InputError, match=r"^order: expected one of data, random, got 'shuffled'"):
        certify(order="shuffled")
    with pytest.raises(InputError, match=r"^order: expected one of data, random, got None"):
        attack(order=None)
    with pytest.raises(InputTypeError, match=r"^seed: expected an integer, got 0.5"):
        verify(order="random", seed=0.5)
