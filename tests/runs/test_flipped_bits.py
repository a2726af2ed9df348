"""A flipped bit in a run file never changes what a command prints: it refuses the file, or prints the same."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from functools import cache
from pathlib import Path
from unittest import mock

import pytest
from flipped_runs import REFUSED, columns, flip_byte, flip_value, make_runs, read_by_all

from pyrobust.runs.run import Run

# Read by commands that read examples alone.
EXAMPLES = "x_adv"


def flip_bits(folder: Path, count: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Flip single bits in runs of all kinds, values by SQL and bytes of the file in turn; count what became of them.

    Returns:
        How many flips of each way were refused by all readers, refused by some, or changed nothing; and the flips that
        changed what a reader gave, by file, place and reader.
    """
    paths = make_runs(folder)
    headers = {path: Run(path).header for path in paths}
    copy = folder / "copy" / "run.db"
    copy.parent.mkdir()

    @cache
    def expected(path: Path) -> dict[str, str]:
        shutil.copy(path, copy)
        read = read_by_all(copy, headers[path])
        assert not [text for text in read.values() if text.startswith(REFUSED)]
        return read

    places = [(path, place) for path in paths for place in columns(path)]
    chance = random.Random(seed)
    chance.shuffle(places)
    counts: Counter[str] = Counter()
    changed = []
    for number in range(count):
        by_value = number % 2 == 0
        path, (table, name) = places[number // 2 % len(places)] if by_value else (paths[number % len(paths)], ("", ""))
        for companion in copy.parent.iterdir():
            companion.unlink()
        shutil.copy(path, copy)
        if not by_value:
            path = chance.choice(paths)
            shutil.copy(path, copy)
            flip_byte(copy, chance)
        elif not flip_value(copy, chance, table, name):
            counts["value: not stored"] += 1
            continue
        found = read_by_all(copy, headers[path])
        intact = expected(path)
        refused = [reader for reader, text in found.items() if text.startswith(REFUSED)]
        differing = [reader for reader in found if reader not in refused and found[reader] != intact[reader]]
        where = f"{table}.{name}" if by_value else "a byte"
        changed += [f"{path.name}: {where}: {reader}" for reader in differing]
        outcome = "changed" if differing else "nothing changed" if not refused else "refused by some"
        counts[f"{'value' if by_value else 'byte'}: {'refused by all' if len(refused) == len(found) else outcome}"] += 1
        if by_value and name != EXAMPLES and len(refused) < len(found):
            changed.append(f"{path.name}: {where}: read by {sorted(set(found) - set(refused))}")
    return counts, changed


@pytest.mark.parametrize("count", [10, pytest.param(2000, marks=pytest.mark.full)])
def test_no_flipped_bit_changes_what_is_printed(tmp_path: Path, count: int) -> None:
    with (
        mock.patch("pyrobust.evaluation.watch._PAUSE_S", 0.0),
        mock.patch("pyrobust.runs.shards._PAUSE_S", 0.0),
    ):
        counts, changed = flip_bits(tmp_path, count, seed=count)
    print(dict(counts))
    assert changed == []
    assert counts["value: refused by all"] > 0.3 * count
