"""Commands that sweep over a data set: each takes declared options, names its run, resumes it and shows it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import fields
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from pyrobust.cli.options import DATA, MODEL, WEIGHTS, Elsewhere, flag_of, offering, value_of
from pyrobust.cli.parsing import images_to_read, input_paths, parse_shard
from pyrobust.cli.sweep import (
    SUMMARY_BEGINS,
    check_json,
    executor_of,
    model_name,
    named_file,
    note_guessing,
    resumable,
    run_file,
    run_name,
    show_run,
)
from pyrobust.errors import InputError
from pyrobust.option import IMAGES_PANEL, RUN_PANEL, Option
from pyrobust.runs.kinds import Kind
from pyrobust.runs.settings import OPTIONS as SHARED
from pyrobust.runs.settings import SweepSettings

if TYPE_CHECKING:
    from torch import nn

    from pyrobust.evaluation import RobustnessCurve, Run
    from pyrobust.zoo import LabelledImages

Options: TypeAlias = Mapping[str, Option]
_NONE: Options = MappingProxyType({})
_JSON = Option("Write a summary as JSON: parameters and rates with their intervals; - for standard output.", "FILE")
# Options at the end of the last panel; options before them stand in the order of their declarations.
_LAST = ("dtype", "allow_changed_code", "json", "replace", "out")
#: Fields of ``SweepSettings`` whose value is that of the option of the same name.
_FIELDS = tuple(
    each.name for each in fields(SweepSettings) if each.name in SHARED and each.name not in ("out", "shard")
)


class Call:
    """A call of a sweep command, with the values of its options by parameter name.

    Attributes:
        device: the device on which this process loads the model.
        shard: the shard (I, K), if any.
        curve: the robustness curve that the table of a minimum-norm run shows.
        afterwards: functions to call after the run has been shown.
    """

    def __init__(self, command: str, options: Options, values: Mapping[str, Any], json_begins: bytes) -> None:
        self._command, self._options, self._values = command, options, values
        self._executor, self.device = executor_of(values.get("on"), values.get("devices"), values["device"])
        self.shard = parse_shard(values.get("shard"))
        self.curve: RobustnessCurve | None = None
        self.afterwards: list[Callable[[], None]] = []
        self.inputs = input_paths(values["data"], values["weights"])
        outputs = [*self.inputs, named_file(values.get("out"))]
        replace, plot = values.get("replace", False), values.get("plot")
        check_json(values["json"], outputs, replace, plot, json_begins=json_begins)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def chosen(self, *names: str) -> dict[str, Any]:
        """Return the values of the named options by name, to be passed as keyword arguments."""
        return {name: self[name] for name in names}

    def refuse(self, *names: str, why: str) -> None:
        """Raise InputError for the first of these options that was given, since the option would have no effect."""
        for name in names:
            option = self._options[name]
            if self[name] != value_of(name, option, option.default):
                raise InputError(flag_of(name, option), f"none {why}", hint="leave it out")

    @property
    def max_images(self) -> int | None:
        """How many images of a data set are read; None for all."""
        return images_to_read(self["skip"], self["max"])

    @cached_property
    def images(self) -> LabelledImages:
        """The data set."""
        from pyrobust.zoo import load_data

        return load_data(self["data"], self.max_images)

    def load_model(self) -> nn.Module:
        """Load the model, with its weights."""
        from pyrobust.zoo import load_model

        return load_model(self["model"], self["weights"])

    @contextlib.contextmanager
    def running(self, *names: str, method: str = "") -> Iterator[SweepSettings]:
        """Yield the settings of the sweep; if the sweep is interrupted, say how to resume it.

        Args:
            names: words that distinguish the run in its default file name, placed after model and data.
            method: a word that distinguishes the run, placed before the model.
        """
        begin = [self._command, *([method] if method else []), self["model"]]
        path = run_file(self["out"], run_name(begin, self["weights"], self["data"], names, self.shard))
        with resumable(path, self["shard"], self["out"]) as progress:
            yield SweepSettings(
                out=path,
                max_images=self["max"],
                shard=self.shard,
                model_name=model_name(self["model"], self["weights"]),
                executor=self._executor,
                progress=progress,
                **self.chosen(*_FIELDS),
            )


#: The function that a sweep command is made of; it returns the run to show, if any.
Sweeping: TypeAlias = Callable[[Call], "Run | None"]


def sweep_command(
    *kinds: type[Kind],
    options: Options = _NONE,
    shared: Collection[str] = tuple(SHARED),
    elsewhere: Mapping[str, Elsewhere] = MappingProxyType({}),
    json_begins: bytes = SUMMARY_BEGINS,
) -> Callable[[Sweeping], Callable[..., None]]:
    """Make a command from a function that runs a sweep.

    The command has the options that ``kinds`` declare, the given ``options``, and the ``shared`` options of
    ``SweepSettings``. The function returns a run; the command prints the run's table and writes its summary to the file
    ``--json``.

    Args:
        kinds: the kinds of runs that the command makes; if two kinds declare the same option, the first declaration
            counts.
        options: options that belong to no kind, by name; they come after the options of the kinds.
        shared: names of the options of ``SweepSettings`` that the command has.
        elsewhere: options of other commands, by name. If the user gives one, this command ends and names the other
            command (see ``offering``).
        json_begins: the first bytes of the command's JSON files, which are overwritten without ``--replace``.
    """
    offered: dict[str, Option] = {"model": MODEL, "data": DATA, "weights": WEIGHTS}
    of_sweep = {name: SHARED[name] for name in shared}
    for more in (*(kind.options for kind in kinds), options, of_sweep, {"json": _JSON}):
        offered |= {name: option for name, option in more.items() if name not in offered}
    offered = dict(sorted(offered.items(), key=lambda item: _rank(*item)))

    def decorate(function: Sweeping) -> Callable[..., None]:
        @functools.wraps(function)
        def sweep(values: dict[str, Any]) -> None:
            call = Call(function.__name__, offered, values, json_begins)
            run = function(call)
            if run is not None:
                show_run(run, call["json"], call.curve)
                note_guessing(run, call["model"], call["weights"])
            for step in call.afterwards:
                step()

        return offering(offered, elsewhere)(sweep)

    return decorate


def _rank(name: str, option: Option) -> tuple[int, int]:
    """Rank an option in the help; options that concern the images and the run come last."""
    panel = {IMAGES_PANEL: 1, RUN_PANEL: 2}.get(option.panel, 0)
    return panel, _LAST.index(name) + 1 if panel and name in _LAST else 0
