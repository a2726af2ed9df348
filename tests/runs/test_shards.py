"""Shards partition the chosen images, and array expressions name them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyrobust.runs.parameters import chosen_indices, processing_order
from pyrobust.runs.shards import array_expression


@given(
    images=st.integers(1, 300),
    skip=st.integers(1, 20),
    most=st.none() | st.integers(1, 400),
    count=st.integers(1, 40),
    order=st.sampled_from([{}, {"order": "random", "order_seed": 3}]),
)
def test_shards_partition_the_chosen_images(
    images: int, skip: int, most: int | None, count: int, order: dict[str, object]
) -> None:
    selection = {"images": images, "skip": skip, "max": most, "shard": None, **order}
    whole = [index for index in range(images) if index % skip == 0][:most]
    assert list(chosen_indices(selection)) == whole
    parts = [selection | {"shard": [number, count]} for number in range(1, count + 1)]
    assert [shard[0] for shard in map(list, map(chosen_indices, parts)) if shard] == whole[:count]
    shards = [processing_order(part) for part in parts]
    assert sorted(index for shard in shards for index in shard) == whole
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


def expand(expression: str) -> set[int]:
    """The task numbers of an array, as Slurm reads the expression."""
    numbers: set[int] = set()
    for part in filter(None, expression.split(",")):
        first, _, last = part.partition("-")
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


@given(st.sets(st.integers(1, 60)))
def test_an_array_expression_names_each_number_once(numbers: set[int]) -> None:
    expression = array_expression(numbers)
    assert expand(expression) == numbers
    assert expression.count(",") + 1 == len([n for n in numbers if n - 1 not in numbers]) or not numbers
