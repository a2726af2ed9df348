"""A kind of run: a class whose attributes declare its parameters and the columns of its table.

Code for tables, validators, logs, rates, captions, audits and pages asks the class of a run for what it needs, and
never compares names of kinds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from pyrobust.checks import number_text
from pyrobust.errors import FileFormatError
from pyrobust.late import numpy as np
from pyrobust.option import Option
from pyrobust.runs.kinds import values
from pyrobust.runs.kinds.columns import Array, Column, ExampleColumn, Index, Label, Prediction, Seconds, Text, Votes
from pyrobust.runs.kinds.values import Valid, integer, is_shard, is_word, none_or, one_of
from pyrobust.runs.parameters import chosen_indices

if TYPE_CHECKING:
    from pyrobust.metrics import Rate
    from pyrobust.runs.reader import Header
    from pyrobust.runs.run import Run

Parameters: TypeAlias = dict[str, Any]
Table: TypeAlias = Mapping[str, Array]
#: Rows whose columns contradict each other: the kind of the finding, a mask, and a description.
Contradictions: TypeAlias = Iterator[tuple[str, Array, str]]
#: A column of a page's table of examples: its heading, a description, and values [N], NaN for nothing.
Shown: TypeAlias = tuple[str, str, Array]
#: The kinds of runs, by their layouts.
KINDS: dict[str, Kind] = {}


@dataclass(frozen=True)
class Parameter:
    """A parameter of a run.

    Attributes:
        valid: function that tests an untrusted value.
        group: name of a group of parameters, of which a run has all or none; "" if every run has the parameter.
        execution: whether shards of one sweep may differ in the parameter. With "always", they may, because results do
            not depend on it, except for rounding. With "off grid", they may, unless the guarantee is "grid", because
            the parameter is then part of the certified classifier. With "", they may not.
        option: the parameter's command-line option; None if it has none.
    """

    valid: Valid
    group: str = ""
    execution: Literal["", "always", "off grid"] = ""
    option: Option | None = None

    def offered(self, option: Option) -> Parameter:
        """Return the same parameter with another command-line option."""
        return replace(self, option=option)


@dataclass(frozen=True)
class NamedRate:
    """A rate that appears in a run's table and JSON.

    Attributes:
        name: name of the rate, such as "robust accuracy"; in JSON, it is written with underscores.
        rate: the share of the images, with its interval.
        at: the setting for which the rate holds, such as {"sigma": 0.25}. In JSON, the rates that have a setting are
            grouped by name, in one list for each name.
    """

    name: str
    rate: Rate
    at: dict[str, float] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Name of the rate, and the setting that it refers to.

        >>> NamedRate("accuracy", None, {"sigma": 0.25}).title
        'accuracy at sigma 0.25'
        """
        return " at ".join([self.name, *(f"{name} {number_text(value)}" for name, value in self.at.items())])


@dataclass(frozen=True, eq=False)
class Bound:
    """A lower or an upper bound of each image's robust radius.

    Attributes:
        radius: [N], float64. A lower bound is 0 where nothing is certified. An upper bound is the distance of the
            nearest adversarial example found, 0 where the image is misclassified, inf where no example was found.
        method: the method or attack, for tables and captions.
        by: [N], the method or attack that gave each bound, "" where no bound was found; None if ``method`` gave all
            bounds.
        limit: largest radius that was examined; an attack at one epsilon says nothing beyond that epsilon.
        marks: the given radii at which robustness was decided; empty if the bound may take any value.
    """

    radius: Array
    method: str
    by: tuple[str, ...] | None = None
    limit: float = math.inf
    marks: tuple[float, ...] = ()


class Kind:
    """A kind of run; subclasses declare their own parameters and columns as attributes.

    Columns are in the order of declaration, and the columns of a base class come first. If a column is declared again,
    it moves to the end. ``KINDS`` holds an instance of each class that is declared with ``layout=``. The ``name`` of
    such a class defaults to its layout.

    Attributes:
        name: the kind, as a header states it; several layouts may share one name.
        layout: the name of the class in ``KINDS``.
        parameters, columns: all declared parameters and columns, by name.
        options: command-line options by name. Some are the options of parameters. The others are declared separately,
            because the run stores their values in another form.
        pending: columns of images that are begun but not finished; empty if images have no intermediate state.
        log: columns of the text log.
        statuses: values of the column ``status``.
        certified: name of the column of certified radii; "" if there is none.
        smoothed: whether the run is of a smoothed classifier.
        sampled_by_votes: whether the number of samples differs between images and depends on their votes.
        attacked: whether the run has adversarial examples that are not part of a verification.
        stepwise: whether the run stores the distance of the nearest adversarial example of each image.
        outcome: the result that a rate at an epsilon counts, such as "verified"; "" if the run has no rates at
            epsilons.
        side: whether the rates at an epsilon are a lower or an upper bound of robust accuracy, as text for a figure's
            caption.
        table: function of `pyrobust.report` that makes the run's table; by default a table of its ``rates``.
        panel: help heading under which the kind's command is listed. The command is a function in a module of
            `pyrobust.cli.sweeps`. The function and its module have the name of the kind, with underscores in place of
            dashes.
    """

    name: ClassVar[str] = ""
    layout: ClassVar[str] = ""
    parameters: ClassVar[dict[str, Parameter]] = {}
    columns: ClassVar[dict[str, Column]] = {}
    options: ClassVar[dict[str, Option]] = {}
    pending: ClassVar[dict[str, Column]] = {}
    log: ClassVar[tuple[str, ...]] = ()
    statuses: ClassVar[tuple[str, ...]] = ("ok",)
    certified: ClassVar[str] = ""
    smoothed: ClassVar[bool] = False
    sampled_by_votes: ClassVar[bool] = False
    attacked: ClassVar[bool] = False
    stepwise: ClassVar[bool] = False
    outcome: ClassVar[str] = ""
    side: ClassVar[str] = ""
    table: ClassVar[str] = "rates_table"
    panel: ClassVar[str] = ""

    num_classes = Parameter(values.count)
    dtype = Parameter(is_word)
    memory_format = Parameter(is_word)
    images = Parameter(values.count)
    skip = Parameter(values.count)
    max = Parameter(none_or(values.count))
    shard = Parameter(is_shard, execution="always")
    batch_size = Parameter(values.count, execution="off grid")
    chunk = Parameter(values.count, execution="always")
    device = Parameter(is_word, execution="off grid")
    threads = Parameter(integer(1, 65536), group="threads", execution="always")
    order = Parameter(one_of("random"), group="order", execution="always")
    order_seed = Parameter(values.seed, group="order", execution="always")

    idx = Index()
    label = Label()
    prediction = Prediction()
    status = Text()
    seconds = Seconds()

    def __init_subclass__(cls, layout: str = "", name: str = "") -> None:
        declared: dict[str, Any] = {}
        for base in reversed(cls.__mro__):
            for attribute, value in vars(base).items():
                if isinstance(value, Parameter | Column | Option):
                    declared.pop(attribute, None)
                    declared[attribute] = value
        cls.parameters = {key: value for key, value in declared.items() if isinstance(value, Parameter)}
        cls.columns = {key: value for key, value in declared.items() if isinstance(value, Column)}
        offered = {key: value.option if isinstance(value, Parameter) else value for key, value in declared.items()}
        cls.options = {key: option for key, option in offered.items() if isinstance(option, Option)}
        if layout:
            cls.layout, cls.name = layout, name or layout
            KINDS[layout] = cls()

    def applies(self, parameters: Parameters) -> bool:
        """Whether a run with these untrusted parameters has this layout, and not the default layout of its kind."""
        return False

    def check(self, parameters: Any) -> None:
        """Raise ValueError if untrusted parameters, as parsed from JSON, are missing, unknown or out of range."""
        declared = self.parameters
        names = set(parameters) if isinstance(parameters, dict) else set()
        groups = {declared[name].group for name in names & set(declared)}
        if names != {name for name, parameter in declared.items() if not parameter.group or parameter.group in groups}:
            raise ValueError("parameters do not match this kind of run")
        for name, value in parameters.items():
            if not declared[name].valid(value):
                raise ValueError(f"parameter {name}: {str(value)[:40]}")

    def execution(self, *, grid: bool) -> frozenset[str]:
        """Return the parameters in which shards of one sweep may differ."""
        allowed = ("always",) if grid else ("always", "off grid")
        return frozenset(name for name, parameter in self.parameters.items() if parameter.execution in allowed)

    def guarantees_grid(self, parameters: Parameters) -> bool:
        """Whether the guarantee of a run with these parameters is "grid"."""
        return "grid" in parameters

    def histograms(self) -> dict[str, Votes]:
        """Return the columns of votes by name."""
        return {name: column for name, column in self.columns.items() if isinstance(column, Votes)}

    def table_columns(self) -> list[str]:
        """Return the columns of `Run.table`: all but votes and examples."""
        return [name for name, column in self.columns.items() if not isinstance(column, Votes | ExampleColumn)]

    def check_rows(self, parameters: Parameters, table: Table, path: Path) -> None:
        """Raise FileFormatError for untrusted rows that contradict the kind or the parameters of the run."""
        for fault, passed in self._row_checks(parameters, table):
            if not passed:
                raise FileFormatError(f"{path}: damaged: holds {fault}; do not use this file")

    def _row_checks(self, parameters: Parameters, table: Table) -> Iterator[tuple[str, Any]]:
        expected = chosen_indices(parameters)
        positions, remainder = np.divmod(table["index"] - expected.start, expected.step)
        covered = (remainder == 0) & (positions >= 0) & (positions < len(expected))
        yield "an image that the run does not cover", covered.all()
        for name, column in self.columns.items():
            if name in table:
                yield column.fault.format(name=name), np.all(column.in_range(table[name], parameters))
        yield "an unknown status", np.isin(table["status"], self.statuses).all()
        yield from self.faults(parameters, table)

    def faults(self, parameters: Parameters, table: Table) -> Iterator[tuple[str, Any]]:
        """Check that columns agree; for each check, yield a description of the fault, and whether the check passed."""
        yield from ()

    def counted(self, radius: Array) -> Array:
        """Return for each radius whether a correctly classified image with it counts as certified, bool [N]."""
        return np.ones(len(radius), dtype=bool)

    def reference(self, parameters: Parameters) -> float:
        """Return the radius that the progress of a sweep refers to; 0 if there is none."""
        return 0.0

    def unbroken(self, rows: Mapping[str, Any], radius: float) -> Array | None:
        """Whether each image withstood the attack; None if there was no attack, or none with a rate at ``radius``.

        If a run has several radii, only the attack within ``radius`` counts.
        """
        return None

    def failures(self, run: Run) -> int:
        """Count the images with logits that have no finite maximum (after smoothing, in at least one sample)."""
        return int((run.table["prediction"] < 0).sum())

    def without_examples(self, parameters: Parameters) -> str:
        """Describe a run that holds no examples, for an error message."""
        return f"one of kind {self.name}"

    def logged(self, name: str, table: Table) -> list[Any]:
        """Return a column that the text log has and the table lacks."""
        raise NotImplementedError

    def rates(self, run: Run, alpha: float) -> Iterator[NamedRate]:
        """Yield all rates but clean accuracy, for the table and the JSON of a non-empty run."""
        yield from ()

    def epsilons_of(self, parameters: Parameters) -> Sequence[float]:
        """Return the epsilons at which the run has rates."""
        return ()

    def reach(self, run: Run) -> Array:
        """For each image that an attack broke, return the distance within which the attack broke it."""
        raise NotImplementedError

    def rate(self, run: Run, epsilon: float, alpha: float) -> Rate:
        """Return the rate at an epsilon; ``outcome`` says what the rate counts."""
        raise NotImplementedError

    def method_of(self, parameters: Parameters) -> str:
        """Return the method's name as tables show it."""
        raise NotImplementedError

    def caveat(self, parameters: Parameters) -> str:
        """Return the caveat to be shown after the method's name in comparisons of bounds."""
        return ""

    def describe(self, header: Header) -> list[str]:
        """Describe the run's method, norm, budget and confidence for captions, in one line each."""
        raise NotImplementedError

    def promises(self, header: Header) -> Iterator[str]:
        """Yield sentences that say what the results guarantee."""
        raise NotImplementedError

    def contradictions(self, run: Run) -> Contradictions:
        """Recompute the columns that are determined by other columns, and yield the contradictions."""
        raise NotImplementedError

    def arithmetic(self, parameters: Parameters) -> tuple[Any, ...]:
        """Return the arithmetic that a network's bounds are meant for, whether they are sound, and the clip range."""
        raise NotImplementedError

    def lower_bound(self, run: Run) -> Bound | None:
        """Return certified lower bounds of each image's robust radius; None if there are none."""
        return None

    def upper_bound(self, run: Run) -> Bound | None:
        """Return the distances of adversarial examples; None if there was no attack."""
        return None

    def found(self, run: Run) -> Array | None:
        """Whether each image has an adversarial example; None if there was no attack."""
        return None

    def class_votes(self, run: Run) -> Array | None:
        """Return how many of the n samples voted for the selected class; 0 where the classifier abstained.

        Returns None if p_A cannot be estimated from these votes.
        """
        return None

    def shown(self, run: Run) -> Sequence[Shown]:
        """Return further columns for a table of examples."""
        return ()


def kind_of(name: str, parameters: Any) -> Kind:
    """Return a run's class, given its kind's name and its parameters (untrusted); raise ValueError for unknown names.

    >>> kind_of("certify", {"method": "sequential"}).layout, kind_of("certify", {"method": "fixed"}).layout
    ('sequential', 'certify')
    >>> kind_of("attack", {"minimum": True}).layout, kind_of("attack", {"epsilon": 0.1}).layout
    ('minimum', 'attack')
    """
    kinds = [kind for kind in KINDS.values() if kind.name == name]
    if not kinds:
        raise ValueError(f"unknown kind {name[:40]!r}")
    applying = (kind for kind in kinds if isinstance(parameters, dict) and kind.applies(parameters))
    return next(applying, KINDS[name])


def named(kinds: Iterable[Kind]) -> str:
    """Join the names of kinds for a message.

    >>> named(kind for kind in KINDS.values() if kind.certified == "radius")
    'certify or verify'
    """
    return " or ".join(dict.fromkeys(kind.name for kind in kinds))
