"""The command-line application: its commands, and the options that precede a command."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from pyrobust.cli.shell import DEBUG_VARIABLE, reports_errors, set_debug
from pyrobust.errors import InputError

# The commands that make no run, by panel of the help; they come after those that make runs, which the kinds of runs
# name.
_PANELS = {
    "Start here": ("quickstart", "info", "bench"),
    "Certificates": ("plan",),
    "Attacks": ("curve", "diagnose"),
    "Both sides": (),
    "Runs": ("watch", "missing", "merge", "log", "audit", "report"),
    "Models": ("train",),
}
# Each command is a function in the module of its name, or in the module that this table gives.
_SHARED = {"missing": "shards", "merge": "shards", "log": "shards"}


@cache
def _modules() -> dict[str, tuple[str, str]]:
    """Return the module and the panel of each command, in the order of the help; imports ``pyrobust.runs.kinds``."""
    from pyrobust.runs.kinds import KINDS

    modules: dict[str, tuple[str, str]] = {}
    for panel in dict.fromkeys((*_PANELS, *(kind.panel for kind in KINDS.values()))):
        kinds = [kind.name for kind in KINDS.values() if kind.panel == panel]
        modules |= {name: (f"sweeps.{name.replace('-', '_')}", panel) for name in kinds}
        modules |= {name: (_SHARED.get(name, name), panel) for name in _PANELS.get(panel, ())}
    return modules


class _Commands(Mapping[str, Any]):
    """The commands by name, as typer commands; a command is imported when it is looked up."""

    def __init__(self, others: Mapping[str, Any]) -> None:
        self._others = others
        self._loaded = dict(others)

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            file, panel = _modules()[name]
            command = getattr(import_module(f"pyrobust.cli.{file}"), name.replace("-", "_"))
            if not isinstance(command, typer.Typer):
                function, command = command, typer.Typer(add_completion=False)
                command.command(name)(function)
            self._loaded[name] = typer.main.get_command(command)
            self._loaded[name].name, self._loaded[name].rich_help_panel = name, panel
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter((*_modules(), *self._others))

    def __len__(self) -> int:
        return len(_modules()) + len(self._others)


class CommandGroup(TyperGroup):
    """The group of commands: a command line imports only the command that it names; ``--help`` imports all commands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Commands(self.commands)  # type: ignore[assignment]  # a mapping; nothing changes it

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands; typer's method would import the commands."""
        return list(self.commands)


app = typer.Typer(
    cls=CommandGroup,
    help="Certified and empirical robustness of PyTorch classifiers.",
    epilog="Start with: pyrobust quickstart",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(requested: bool) -> None:
    if requested:
        import pyrobust

        typer.echo(f"pyrobust {pyrobust.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[
        bool,
        typer.Option("--debug", envvar=DEBUG_VARIABLE, help="Show tracebacks of errors and log progress."),
    ] = False,
) -> None:
    set_debug(debug)
    logging.basicConfig(format="%(name)s: %(message)s", level=logging.INFO if debug else logging.WARNING)


@app.command(hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
@reports_errors
def threat() -> None:
    """Explain that inspect-ai replaces this command, and that nothing resumes its runs of earlier versions."""
    raise InputError(
        "threat",
        "another command, since inspect-ai runs language models (inspect eval, with a threat_task of pyrobust.threats)",
        hint="pyrobust report reads run files of earlier versions, which nothing resumes",
    )
