"""Sweeps that take their images in random order: the same results and logs, recorded, resumed and merged as others."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from attack_runs import Mine, digits, pgd
from damage import change
from example_parameters import example
from sweep_models import FEW, Failing, images, same, smoother

from pyrobust.attacks import FAB, AutoAttack
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


def certify(**options: Any) -> Run:
    return certify_dataset(smoother(), images(), **(FEW | options))


def predict(**options: Any) -> Run:
    return predict_dataset(smoother(), images(), n=50, **options)


def sequential(**options: Any) -> Run:
    return certify_dataset(smoother(), images(), **(SEQUENTIAL | options))


def attack(**options: Any) -> Run:
    return attack_dataset(pgd(), digits(), batch_size=5, **options)


def proved_first(**options: Any) -> Run:
    attacker = AutoAttack(load_model("zoo:digits-ibp-0.10"), 0.1, attacks_to_run=["apgd-ce"], certify_first=True)
    return attack_dataset(attacker, digits(), batch_size=5, **options)


def nearest(**options: Any) -> Run:
    attacker = FAB(load_model("zoo:digits-smooth-0.25"), norm="l2", steps=3)
    return attack_dataset(attacker, digits(), minimum=True, batch_size=5, **options)


def verify(**options: Any) -> Run:
    model = load_model("zoo:digits-smooth-0.25")
    return verify_dataset(model, digits(), epsilons=[0.02, 0.05], attack="pgd", batch_size=5, **options)


def sandwich(**options: Any) -> Run:
    return sandwich_dataset(load_model("zoo:digits-ibp-0.10"), digits(), batch_size=1, max_images=3, **options).run


def smoothed_sandwich(**options: Any) -> Run:
    return sandwich_dataset(smoother(), images(9), n0=10, n=200, n_attack=200, steps=3, draws=4, **options).run


SMOOTHED = [certify, predict, sequential]


def test_the_order_is_a_permutation_of_the_covered_images() -> None:
    parameters = example("certify") | {"images": 500, "skip": 3, "max": 120, "order": "random", "order_seed": 7}
    order = list(processing_order(parameters))
    assert sorted(order) == list(chosen_indices(parameters))
    assert order != sorted(order)
    digests = [hashlib.sha256(f"order 7 {index}".encode()).hexdigest() for index in order]
    assert digests == sorted(digests)
    assert list(processing_order(parameters | {"order_seed": 8})) != order
    # Every shard takes its images in the order of the whole.
    for part in (1, 2, 3):
        shard = list(processing_order(parameters | {"shard": [part, 3]}))
        assert shard == [index for index in order if index in set(shard)]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """One thread: torch divides a batch among several, and a row's last bits follow from where it stands."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("sweep", [*SMOOTHED, attack, proved_first, nearest, verify, sandwich, smoothed_sandwich])
@pytest.mark.usefixtures("few_steps", "one_thread")
def test_results_do_not_depend_on_the_order(sweep: Callable[..., Run], tmp_path: Path) -> None:
    expected, shuffled = sweep(), sweep(order="random", out=tmp_path / "run.db")
    assert same(shuffled, expected)
    assert same(Run(tmp_path / "run.db"), expected)
    assert shuffled.table["index"].tolist() == expected.table["index"].tolist()
    assert {name: shuffled.parameters[name] for name in set(shuffled.parameters) - set(expected.parameters)} == {
        "order": "random",
        "order_seed": 0,
    }


@pytest.mark.parametrize("sweep", [certify, sequential, attack, verify])
def test_shards_merge_to_the_whole(sweep: Callable[..., Run], tmp_path: Path) -> None:
    paths = [tmp_path / f"{part}.db" for part in (1, 2)]
    sweep(order="random", out=paths[0], shard=(1, 2))
    sweep(out=paths[1], shard=(2, 2))  # like the batch size, the order changes no result
    merged = merge_runs(paths)
    assert merged.complete
    assert same(merged, sweep())


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


def test_a_run_keeps_its_order(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    certify(out=path, order="random")
    with pytest.raises(StoreError, match=r"order: 'random' stored, None given; order_seed: 0 stored, None given"):
        certify(out=path)
    with pytest.raises(StoreError, match="order_seed: 0 stored, 5 given"):
        certify_dataset(smoother(seed=5), images(), out=path, order="random", **FEW)


def test_the_seed_of_the_order() -> None:
    data = images()
    assert certify_dataset(smoother(seed=9), data, order="random", **FEW).parameters["order_seed"] == 9
    run = attack_dataset(pgd(seed=4), digits(), order="random", batch_size=5)
    assert run.parameters["order_seed"] == 4
    assert same(run, attack_dataset(pgd(seed=4), digits(), batch_size=5))
    assert (
        attack_dataset(Mine(load_model("zoo:digits-smooth-0.25")), digits(), order="random").parameters["order_seed"]
        == 0
    )
    assert verify(order="random", seed=3).parameters["order_seed"] == 3


@pytest.mark.parametrize(
    "order",
    [
        {"order": "index", "order_seed": 0},
        {"order": "random", "order_seed": -1},
        {"order": "random"},
        {"order_seed": 0},
    ],
)
def test_other_orders_in_a_file_are_refused(order: dict[str, Any]) -> None:
    Certify().check(example("certify") | {"order": "random", "order_seed": 0})
    with pytest.raises(ValueError, match="parameter"):
        Certify().check(example("certify") | order)


def test_bad_input() -> None:
    with pytest.raises(InputError, match=r"^order: expected one of data, random, got 'shuffled'"):
        certify(order="shuffled")
    with pytest.raises(InputError, match=r"^order: expected one of data, random, got None"):
        attack(order=None)
    with pytest.raises(InputTypeError, match=r"^seed: expected an integer, got 0.5"):
        verify(order="random", seed=0.5)


def test_random_numbers_are_those_of_the_chunk(tmp_path: Path) -> None:
    """A chunk's generators are seeded by its first image, so that a resumed shuffled run repeats them."""
    options: dict[str, Any] = {"batch_size": 8, "order": "random", "out": tmp_path / "run.db"}
    first = attack_dataset(pgd(), digits(), **options)
    gone = ", ".join(map(str, list(processing_order(first.parameters))[8:16]))
    change(tmp_path / "run.db", f"DELETE FROM result WHERE idx IN ({gone})")
    assert same(attack_dataset(pgd(), digits(), **options), first)
