"""False alarms and misses of ``pyrobust audit`` on simulated logs.

python bench/audit_simulation.py [--clean N] [--planted N] [--seed S] [--json FILE]

A clean log is what the certification script of Cohen, Rosenfeld and Kolter (2019) prints. Each image has a probability
p_A; n0 samples select a class, and n more are votes from a binomial distribution; the radius is sigma times the normal
quantile of the lower Clopper-Pearson bound, and images whose bound is below 1/2 abstain. Nothing of this uses the
auditor's code. Logs cycle through all combinations of sigma, n, alpha, digits and style of printing, with random
length, stride, number of classes and distribution of p_A. A third of the logs are read with their sigma given in the
file name, and without n and alpha where these are the usual ones; a third with everything given; a third without sigma.

A planted log is a clean one with one fault; it counts as found if the audit reports a fault of the expected kind.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from pyrobust.auditing import audit, read_certification_log

SIGMAS = (0.12, 0.25, 0.5, 1.0)
COUNTS = (100, 1000, 10_000, 100_000)
ALPHAS = (0.01, 0.001, 1e-4)
DIGITS = (2, 3, 4, 5, 6)
USUAL = (100_000, 0.001)


def _fixed(radius: float, digits: int) -> str:
    return f"{radius:.{digits}f}"


def _significant(radius: float, digits: int) -> str:
    return f"{radius:.{digits}}"


def _rounded(radius: float, digits: int) -> str:
    return repr(round(float(radius), digits))


def _down(radius: float, digits: int) -> str:
    return f"{np.floor(radius * 10**digits) / 10**digits:.{digits}f}"


STYLES: dict[str, Callable[[float, int], str]] = {
    "fixed": _fixed,
    "significant": _significant,
    "zeros dropped": _rounded,
    "rounded down": _down,
}
COMBINATIONS = list(itertools.product(SIGMAS, COUNTS, ALPHAS, DIGITS, STYLES))


@dataclass
class Log:
    """A log as rows of text fields, and how it was made.

    Attributes:
        rows: idx, label, predict, radius, correct, time of each row.
        given: arguments of the reader.
        named: whether the name of the file states sigma.
        text: the file, where it is not the rows.
    """

    sigma: float
    n: int
    alpha: float
    digits: int
    style: str
    classes: int
    rows: list[list[str]]
    given: dict[str, Any] = field(default_factory=dict)
    named: bool = True
    text: str | None = None

    def content(self) -> str:
        """Return the text of the file."""
        if self.text is not None:
            return self.text
        lines = ["idx\tlabel\tpredict\tradius\tcorrect\ttime", *map("\t".join, self.rows)]
        return "".join(line + "\n" for line in lines)

    def show(self, radius: float) -> str:
        """Print a radius in the style of the log."""
        return STYLES[self.style](radius, self.digits)


@lru_cache(maxsize=64)
def _unit_radii(n: int, alpha: float) -> npt.NDArray[np.float64]:
    """Radius at sigma 1 of every number of votes; NaN where the lower bound is below 1/2."""
    votes = np.arange(1, n + 1)
    lower = np.append(0.0, stats.beta.ppf(alpha, votes, n - votes + 1))
    return np.where(lower >= 0.5, stats.norm.ppf(lower), np.nan)


def probabilities(random: np.random.Generator, rows: int) -> npt.NDArray[np.float64]:
    """Draw p_A of each image from a random kind of classifier."""
    kind = random.integers(6)
    if kind == 0:
        p = random.beta(4.0, 0.5, rows)  # Gaussian augmentation
    elif kind == 1:
        p = random.beta(8.0, 3.0, rows)  # hardly any saturated image
    elif kind == 2:
        p = np.where(random.random(rows) < random.random(), 1.0, random.beta(3.0, 1.0, rows))  # many saturated ones
    elif kind == 3:
        p = random.random(rows)
    elif kind == 4:
        p = 1 - 10 ** -random.uniform(0.3, 6.0, rows)  # many near the maximum, on a logarithmic scale
    else:
        p = np.full(rows, 1 - 10 ** -random.uniform(0.5, 5.5))  # all images alike
    return p


def _indices(random: np.random.Generator, whole: bool = False) -> npt.NDArray[np.int64]:
    kind = 0 if whole else random.integers(5)
    if kind == 0:  # a whole test set, or every 20th or 100th image of it
        size, stride = ((10_000, 1), (10_000, 20), (50_000, 100), (10_000, 5))[random.integers(4)]
        return np.arange(0, size, stride)
    if kind == 1:
        return np.arange(random.choice([100, 200, 500, 1000, 2000]))  # --max
    if kind == 2:
        return np.arange(random.choice([1, 2, 5, 10, 20, 50]))
    if kind == 3:
        return np.arange(random.choice([100, 500])) * int(random.choice([2, 10, 20]))
    return np.sort(random.choice(10_000, int(random.choice([30, 100, 300, 1000])), replace=False))


def simulate(random: np.random.Generator, combination: tuple[Any, ...], **options: Any) -> Log:
    """Simulate a clean log; options replace what is random: index, p, classes."""
    sigma, n, alpha, digits, style = combination
    index = options.get("index")
    index = _indices(random) if index is None else index
    rows = len(index)
    p = options.get("p")
    p = probabilities(random, rows) if p is None else p
    classes = options.get("classes") or int(random.choice([2, 10, 10, 100, 1000]))
    radius, selected = certified(random, p, n, alpha)
    label = random.integers(0, classes, rows)
    if random.random() < 0.3:  # as in folders of classes
        label = np.sort(label)
    # The most probable class is the label for most images; another class, rarely selected, never gets many votes.
    best = np.where(random.random(rows) < random.uniform(0.3, 1.0), label, random.integers(0, classes, rows))
    predict = np.where(selected, best, (best + 1) % classes)
    log = Log(sigma, n, alpha, digits, style, classes, [])
    second = datetime.timedelta(seconds=random.uniform(0.1, 40.0))
    for i in range(rows):
        abstained = np.isnan(radius[i])
        shown = "0.0" if abstained else log.show(sigma * radius[i])
        answer = -1 if abstained else int(predict[i])
        right = int(answer == label[i])
        log.rows.append([str(index[i]), str(label[i]), str(answer), shown, str(right), str(second * random.random())])
    usual = (n, alpha) == USUAL
    reading = random.integers(3)
    log.named = bool(reading == 0)
    if reading == 1:
        log.given = {"n": n, "alpha": alpha, "sigma": sigma}
    elif not usual:
        log.given = {"n": n, "alpha": alpha}
    return log


def certified(
    random: np.random.Generator, p: npt.NDArray[np.float64], n: int, alpha: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Radius at sigma 1 of each image, NaN for an abstention, and whether selection chose the class of p."""
    selected = random.binomial(100, p) >= 50
    votes = random.binomial(n, np.where(selected, p, 1 - p))
    return _unit_radii(n, alpha)[votes], selected


def _certified_rows(log: Log, least: float = 0.0) -> list[int]:
    return [i for i, row in enumerate(log.rows) if row[2] != "-1" and float(row[3]) > least]


def _plantable(random: np.random.Generator, **choice: Any) -> Log:
    """A log long and confident enough for any fault to show, named after its sigma."""
    n, alpha = choice.pop("n", None) or int(random.choice([10_000, 100_000])), choice.pop("alpha", 0.001)
    digits = choice.pop("digits", None) or int(random.choice([3, 4, 5, 6]))
    sigma, style = choice.pop("sigma", None) or float(random.choice(SIGMAS)), str(random.choice(list(STYLES)))
    size, stride = ((10_000, 1), (10_000, 5), (10_000, 20), (50_000, 100))[random.integers(4)]
    if choice.pop("long", False):
        size, stride = 10_000, int(random.choice([1, 5]))
    index = np.arange(0, size, stride)
    # A tenth saturated, the rest from images that are certain to images that abstain.
    p = np.where(random.random(len(index)) < random.uniform(0.1, 0.4), 1.0, random.beta(4.0, 0.6, len(index)))
    log = simulate(random, (sigma, n, alpha, digits, style), index=index, p=p, **choice)
    log.named, log.given = True, {} if n == USUAL[0] else {"n": n}
    return log


def _set(column: int, value: str, least: float = 0.05) -> Callable[[Log, np.random.Generator], None]:
    def plant(log: Log, random: np.random.Generator) -> None:
        rows = _certified_rows(log, least * log.sigma)
        log.rows[int(random.choice(rows))][column] = value

    return plant


def _cut(log: Log, random: np.random.Generator) -> None:
    content = log.content()
    line = content[:-1].rfind("\n") + 1
    # Inside any field but the time, whose shorter form is complete too.
    log.text = content[: line + int(random.integers(1, content.rfind("\t") - line))]


def _few_fields(log: Log, random: np.random.Generator) -> None:
    log.rows[-1] = log.rows[-1][: int(random.integers(1, 5))]


def _without_end(log: Log, random: np.random.Generator) -> None:
    del log.rows[-int(random.integers(1, max(2, min(90, len(log.rows) // 20)))) :]


def _duplicate(log: Log, random: np.random.Generator) -> None:
    row = int(random.integers(len(log.rows)))
    log.rows.insert(row, list(log.rows[row]))


def _resumed_twice(log: Log, random: np.random.Generator) -> None:
    row = int(random.integers(60, len(log.rows)))
    log.rows[row:row] = [list(fields) for fields in log.rows[row - 50 : row]]


def _missing(size: int) -> Callable[[Log, np.random.Generator], None]:
    def plant(log: Log, random: np.random.Generator) -> None:
        row = int(random.integers(1, len(log.rows) - size - 1))
        del log.rows[row : row + size]

    return plant


def _shuffled(log: Log, random: np.random.Generator) -> None:
    log.rows = [log.rows[i] for i in random.permutation(len(log.rows))]


def _swapped(log: Log, random: np.random.Generator) -> None:
    row = int(random.integers(len(log.rows) - 1))
    log.rows[row], log.rows[row + 1] = log.rows[row + 1], log.rows[row]


def _flipped(log: Log, random: np.random.Generator) -> None:
    row = log.rows[int(random.choice(_certified_rows(log)))]
    row[4] = str(1 - int(row[4]))


def _cumulative(show: Callable[[int, int], str]) -> Callable[[Log, np.random.Generator], None]:
    def plant(log: Log, random: np.random.Generator) -> None:
        count = 0
        for seen, row in enumerate(log.rows, start=1):
            count += int(row[4])
            row[4] = show(count, seen)

    return plant


def _half(log: Log, random: np.random.Generator) -> None:
    log.rows[int(random.integers(len(log.rows)))][4] = "0.5"


def _abstained(correct: str, radius: str) -> Callable[[Log, np.random.Generator], None]:
    def plant(log: Log, random: np.random.Generator) -> None:
        row = log.rows[int(random.integers(len(log.rows)))]
        row[2], row[3], row[4] = "-1", radius, correct

    return plant


def _too_large(log: Log, random: np.random.Generator) -> None:
    largest = log.sigma * _unit_radii(log.n, log.alpha)[-1]
    excess = largest * random.uniform(1.05, 3.0) + 3 * 10.0 ** (1 - log.digits)
    log.rows[int(random.choice(_certified_rows(log)))][3] = log.show(float(excess))


def _five_without_sigma(log: Log, random: np.random.Generator) -> None:
    log.rows[int(random.choice(_certified_rows(log)))][3] = log.show(5.0)
    log.named = False


def _between_the_largest(log: Log, random: np.random.Generator) -> None:
    below, largest = log.sigma * _unit_radii(log.n, log.alpha)[-2:]
    log.rows[int(random.choice(_certified_rows(log)))][3] = f"{0.5 * (below + largest):.4f}"


def _edited(log: Log, random: np.random.Generator) -> None:
    for row in random.choice(_certified_rows(log, 0.3 * log.sigma), 20, replace=False):
        log.rows[row][3] = log.show(float(log.rows[row][3]) * random.uniform(0.5, 1.0))


def _other_sigma(factor: float) -> Callable[[Log, np.random.Generator], None]:
    """500 rows in place of those that the same images have at sigma times a factor."""

    def plant(log: Log, random: np.random.Generator) -> None:
        start = int(random.integers(len(log.rows) - 500))
        rows = log.rows[start : start + 500]
        if random.random() < 0.5:
            rows = [log.rows[i] for i in random.choice(len(log.rows), 500, replace=False)]
        _recertify(rows, log, log.sigma * factor, log.n, log.alpha, random)

    return plant


def _recertify(
    rows: list[list[str]], log: Log, sigma: float, n: int, alpha: float, random: np.random.Generator
) -> None:
    p = np.where(random.random(len(rows)) < 0.2, 1.0, random.beta(4.0, 0.6, len(rows)))
    radius, _ = certified(random, p, n, alpha)
    for row, unit in zip(rows, radius.tolist(), strict=True):
        row[2], row[3] = ("-1", "0.0") if np.isnan(unit) else (row[1], log.show(sigma * unit))
        row[4] = str(int(row[1] == row[2]))


def _second_half(n: int) -> Callable[[Log, np.random.Generator], None]:
    def plant(log: Log, random: np.random.Generator) -> None:
        _recertify(log.rows[len(log.rows) // 2 :], log, log.sigma, n, log.alpha, random)

    return plant


def _as_probability(log: Log, random: np.random.Generator) -> None:
    for row in log.rows:
        if row[2] != "-1":
            row[3] = log.show(float(stats.norm.cdf(float(row[3]) / log.sigma)) * 4 * log.sigma)


def _wrong_name(log: Log, random: np.random.Generator) -> None:
    log.sigma = float(random.choice([sigma for sigma in SIGMAS if sigma != log.sigma]))


def _given(**values: Any) -> Callable[[Log, np.random.Generator], None]:
    def plant(log: Log, random: np.random.Generator) -> None:
        log.given = values

    return plant


def _nothing(log: Log, random: np.random.Generator) -> None:
    log.given = {}


@dataclass(frozen=True)
class Fault:
    """A kind of fault: what plants it, the kinds of finding that report it, and what its log is made with."""

    plant: Callable[[Log, np.random.Generator], None]
    kinds: tuple[str, ...]
    made: dict[str, Any] = field(default_factory=dict)


_ROWS = ("above-maximum", "unattainable", "parameters", "pile")
FAULTS: dict[str, Fault] = {
    "cut inside the last line": Fault(_cut, ("truncated",)),
    "last line without its last fields": Fault(_few_fields, ("truncated",)),
    "last images missing": Fault(_without_end, ("missing",)),
    "one image missing": Fault(_missing(1), ("missing",)),
    "forty images missing": Fault(_missing(40), ("missing",)),
    "duplicate row": Fault(_duplicate, ("duplicate",)),
    "fifty duplicate rows": Fault(_resumed_twice, ("duplicate",)),
    "shuffled rows": Fault(_shuffled, ("order",)),
    "two rows swapped": Fault(_swapped, ("order",)),
    "one correct flipped": Fault(_flipped, ("correct",)),
    "running count": Fault(_cumulative(lambda count, seen: str(count)), ("cumulative-correct",)),
    "running mean": Fault(_cumulative(lambda count, seen: f"{count / seen:.4f}"), ("cumulative-correct",)),
    "correct one half": Fault(_half, ("correct-value",)),
    "abstention marked correct": Fault(_abstained("1", "0.0"), ("abstained-correct",)),
    "abstention with a radius": Fault(_abstained("0", "0.05"), ("abstained-radius",)),
    "NaN": Fault(_set(3, "nan"), ("nan",)),
    "infinite radius": Fault(_set(3, "inf"), ("infinite",)),
    "negative radius": Fault(_set(3, "-0.25"), ("negative",)),
    "radius above the maximum": Fault(_too_large, ("above-maximum",)),
    "radius of 5, sigma unknown": Fault(_five_without_sigma, ("above-maximum",), {"n": 100_000}),
    "radius between the two largest": Fault(_between_the_largest, ("unattainable",), {"digits": 4}),
    "twenty radii edited": Fault(_edited, _ROWS, {"digits": 6}),
    "label 99 of 10 classes": Fault(_set(1, "99"), ("label",), {"classes": 10}),
    "prediction 99 of 10 classes": Fault(_set(2, "99"), ("prediction",), {"classes": 10}),
    "negative label": Fault(_set(1, "-2"), ("label",)),
    "prediction below -1": Fault(_set(2, "-3"), ("prediction",)),
    "made with alpha 0.01": Fault(_nothing, ("parameters",), {"alpha": 0.01, "n": 100_000}),
    "made with alpha 1e-5": Fault(_nothing, ("parameters",), {"alpha": 1e-5, "n": 100_000}),
    "alpha 0.01 given": Fault(_given(alpha=0.01), ("parameters",), {"n": 100_000}),
    "n 1,000 given": Fault(_given(n=1000), ("parameters",), {"n": 100_000}),
    "made with n 10,000": Fault(_nothing, ("parameters",), {"n": 10_000}),
    "sigma of another log in the name": Fault(_wrong_name, ("parameters",)),
    "500 rows of half of sigma": Fault(_other_sigma(0.5), _ROWS, {"long": True}),
    "500 rows of twice sigma": Fault(_other_sigma(2.0), _ROWS, {"long": True}),
    "second half with n 1,000": Fault(_second_half(1000), _ROWS, {"long": True, "n": 100_000}),
    "probabilities in place of radii": Fault(_as_probability, _ROWS, {"n": 100_000}),
}


def findings_of(log: Log, folder: Path) -> list[tuple[str, str]]:
    """Audit a log; return kind and message of each fault."""
    name = f"net_sigma_{log.sigma:g}.tsv" if log.named else "net.tsv"
    path = folder / name
    path.write_text(log.content())
    found = audit(read_certification_log(path, **log.given))
    return [(finding.kind, finding.message) for finding in found.faults]


def describe(log: Log) -> str:
    """Describe how a log was made."""
    return (
        f"sigma {log.sigma:g}, n {log.n:,}, alpha {log.alpha:g}, {log.digits} digits, {log.style}, "
        f"{len(log.rows):,} rows, {log.classes} classes, {'named' if log.named else 'not named'}, given {log.given}"
    )


def clean_trials(seed: int, trials: range) -> Iterator[str]:
    """Audit clean logs; describe each that has a fault."""
    with tempfile.TemporaryDirectory() as folder:
        for trial in trials:
            random = np.random.default_rng([seed, trial])
            log = simulate(random, COMBINATIONS[trial % len(COMBINATIONS)])
            faults = findings_of(log, Path(folder))
            if faults:
                yield f"clean log {trial}: {describe(log)}: {faults}"


def planted_trials(seed: int, name: str, trials: range) -> Iterator[str]:
    """Audit logs with one kind of fault; describe each in which it is not found."""
    fault = FAULTS[name]
    with tempfile.TemporaryDirectory() as folder:
        for trial in trials:
            random = np.random.default_rng([seed, trial, *name.encode()])
            log = _plantable(random, **fault.made)
            fault.plant(log, random)
            faults = findings_of(log, Path(folder))
            if not {kind for kind, _ in faults} & {*fault.kinds}:
                yield f"{name} {trial}: {describe(log)}: {faults}"


def _clean(args: tuple[int, range]) -> list[str]:
    return list(clean_trials(*args))


def _planted(args: tuple[int, str, range]) -> list[str]:
    return list(planted_trials(*args))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clean", type=int, default=10_000, help="clean logs")
    parser.add_argument("--planted", type=int, default=100, help="logs of each kind of fault")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    started = time.perf_counter()
    with ProcessPoolExecutor(args.processes) as pool:
        # Logs of one n and alpha share a table, so that neighbours in the cycle go to one process.
        step = len(COMBINATIONS)
        parts = [(args.seed, range(first, min(first + step, args.clean))) for first in range(0, args.clean, step)]
        faulted = [line for lines in pool.map(_clean, parts) for line in lines]
        for line in faulted:
            print(line, flush=True)
        print(f"clean: {len(faulted)} of {args.clean:,} logs with a fault", flush=True)
        found = {}
        missed = pool.map(_planted, [(args.seed, name, range(args.planted)) for name in FAULTS])
        for name, lines in zip(FAULTS, missed, strict=True):
            found[name] = args.planted - len(lines)
            print(f"{name}: found in {found[name]} of {args.planted}", *lines[:3], sep="\n  ", flush=True)
    if args.json:
        figures = {
            "command": "python bench/audit_simulation.py " + shlex.join(sys.argv[1:]),
            "seconds": round(time.perf_counter() - started, 1),
            "seed": args.seed,
            "combinations": {"sigma": SIGMAS, "n": COUNTS, "alpha": ALPHAS, "digits": DIGITS, "style": list(STYLES)},
            "clean": args.clean,
            "clean_with_fault": len(faulted),
            "planted": args.planted,
            "found": found,
        }
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
