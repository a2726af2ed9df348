"""Sweeps that take their images in random order: the same results and logs, recorded, resumed and merged as others."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from attack_runs import Mine, digits, pgd
from example_parameters import example
from sweep_models import FEW, Failing, images, same, smoother

from pyrobust.attacks import FAB
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


def sequential(**options: Any) -> Run:
    return certify_dataset(smoother(), images(), **(SEQUENTIAL | options))


def attack(**options: Any) -> Run:
    return attack_dataset(pgd(), digits(), batch_size=5, **options)


def verify(**options: Any) -> Run:
    model = load_model("zoo:digits-smooth-0.25")
    return verify_dataset(model, digits(12), epsilons=[0.02, 0.05], attack="pgd", batch_size=5, **options)


SWEEPS: dict[str, Callable[..., Run]] = {
    "certify": certify,
    "sequential": sequential,
    "predict": lambda **options: predict_dataset(smoother(), images(), n=50, **options),
    "attack": attack,
    "nearest": lambda **options: attack_dataset(
        FAB(load_model("zoo:digits-smooth-0.25"), norm="l2", steps=3), digits(), minimum=True, batch_size=5, **options
    ),
    "verify": verify,
    "sandwich": lambda **options: (
        sandwich_dataset(load_model("zoo:digits-ibp-0.10"), digits(3), batch_size=1, **options).run
    ),
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


@pytest.mark.parametrize("sweep", SWEEPS.values(), ids=SWEEPS)
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
