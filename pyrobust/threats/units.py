"""Prompts and clusters of a table of verdicts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyrobust.checks import choice
from pyrobust.errors import InputError, InputTypeError
from pyrobust.threats.verdicts import ThreatVerdict, ThreatVerdicts

Key = tuple[str, ...]

# Suffix of the names of a run's judges.
_HASH: Final = re.compile(" #[0-9a-f]{8}$")


@dataclass
class Prompt:
    """The attempts at one prompt.

    Attributes:
        cluster: name of the cluster to which the prompt belongs, which is the prompt's behaviour.
        rows: the verdicts, one for each attempt.
    """

    cluster: str
    rows: list[ThreatVerdict] = field(default_factory=list)

    @property
    def successes(self) -> int:
        """Number of attempts that succeeded."""
        return sum(row.success is True for row in self.rows)

    @property
    def missing(self) -> int:
        """Number of attempts without a verdict."""
        return sum(row.success is None for row in self.rows)


def prompt_key(row: ThreatVerdict) -> Key:
    """Return a key that all attempts at one prompt share; a row with neither prompt nor behaviour has its own key."""
    return (row.model, row.group, row.threat, row.behaviour, row.prompt) + (
        () if row.behaviour or row.prompt else (row.id,)
    )


def prompts_of(rows: Iterable[ThreatVerdict]) -> dict[Key, Prompt]:
    """Return the prompts in the rows of one judge."""
    prompts: dict[Key, Prompt] = {}
    for row in rows:
        prompts.setdefault(prompt_key(row), Prompt(row.behaviour or row.prompt or row.id)).rows.append(row)
    return prompts


def of_one_judge(verdicts: ThreatVerdicts, judge: str | None) -> list[ThreatVerdict]:
    """Return the rows of a judge and all rows with neither verdict nor judge; if ``judge`` is None, return all rows."""
    judges = judges_of(verdicts)
    if judge is None:
        if len(judges) > 1 and len({row.id for row in verdicts}) < len(verdicts):
            raise InputError(
                "judge",
                problem=f"expected one of {', '.join(judges)}, because attempts have verdicts of several; got None",
                hint="or pass by='judge'",
            )
        return list(verdicts)
    name = judge_named(judge, judges)
    return [row for row in verdicts if row.judge == name or (row.success is None and not row.judge)]


def judge_named(judge: str, judges: Sequence[str], argument: str = "judge") -> str:
    """Return the judge of this name; the hash at the end of the name may be left out if only one judge matches.

    >>> judge_named("refusal", ["refusal #b232db5b", "rule #0b883b25"])
    'refusal #b232db5b'
    """
    of_runs = [name for name in judges if _HASH.sub("", name) == judge]
    return of_runs[0] if judge not in judges and len(of_runs) == 1 else choice(argument, judge, judges)


def judges_of(verdicts: ThreatVerdicts) -> list[str]:
    """Return the names of the judges, sorted; rows with neither verdict nor judge are left out."""
    if not isinstance(verdicts, ThreatVerdicts):
        raise InputTypeError("verdicts", "ThreatVerdicts", type(verdicts).__name__, "use read_verdicts")
    return sorted({row.judge for row in verdicts if row.judge or row.success is not None})


def grouped(
    verdicts: ThreatVerdicts, by: str | Sequence[str] | None, judge: str | None
) -> dict[Key, list[ThreatVerdict]]:
    """Group rows by the values of the columns ``by``, in order of appearance; without columns, there is one group."""
    judges_of(verdicts)
    names = () if by is None else (by,) if isinstance(by, str) else tuple(by)
    for name in names:
        choice("by", name, verdicts.names)
    if "judge" not in names:
        parts: dict[str | None, list[ThreatVerdict]] = {None: of_one_judge(verdicts, judge)}
    else:
        judges = judges_of(verdicts)
        chosen = judges if judge is None else [judge_named(judge, judges)]
        parts = {name: of_one_judge(verdicts, name) for name in chosen}
    groups: dict[Key, list[ThreatVerdict]] = {}
    for stratum, rows in parts.items():
        for row in rows:
            key = tuple(stratum if name == "judge" and stratum is not None else str(row.value(name)) for name in names)
            groups.setdefault(key, []).append(row)
    return groups
