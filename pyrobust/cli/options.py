"""Options that many commands share, and functions that make commands from declared options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, TypeAlias

import typer

from pyrobust.cli.parsing import (
    PATH_FORMS,
    parse_clip,
    parse_epsilon,
    parse_epsilons,
    parse_grid,
    parse_normalize,
    positive_number,
    real_number,
    whole_number,
)
from pyrobust.cli.shell import ERROR_STATUS, note, reports_errors
from pyrobust.errors import InputError
from pyrobust.option import MODEL_PANEL, Option

#: For an option of another command: the name of that command, and what to do.
Elsewhere: TypeAlias = tuple[Option, str, str]
_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_TYPES: dict[str, type] = {"flag": bool, "integer": int, "count": int, "real": float, "file": Path}
# Parsers of texts that run while typer reads the command line.
_PARSERS: dict[str, Callable[[str], Any]] = {
    "integer": whole_number,
    "count": positive_number,
    "real": real_number,
}
# Parsers that run when the command runs, with errors that name the option.
_READERS: dict[str, Callable[[str, str], Any]] = {
    "number": parse_epsilon,
    "numbers": parse_epsilons,
    "range": parse_clip,
    "step": parse_grid,
    "channels": parse_normalize,
}


def completing(*values: str) -> Callable[[str], list[str]]:
    """Return the shell-completion function of an option that takes these values.

    >>> completing("linf", "l2")("li")
    ['linf']
    """

    def complete(incomplete: str) -> list[str]:
        return [value for value in values if value.startswith(incomplete)]

    return complete


def complete_model(incomplete: str) -> list[str]:
    """Complete the name of a bundled model from its weight file, without torch.

    >>> complete_model("zoo:digits-i")
    ['zoo:digits-ibp-0.10']
    """
    files = (Path(__file__).parent.parent / "zoo" / "data").glob("*.pt")
    return completing(*sorted(f"zoo:{file.stem}" for file in files))(incomplete)


MODEL = Option(
    "Model: a bundled net (zoo:NAME), one of RobustBench (robustbench:NAME), or your own (module:callable).",
    "SPEC",
    panel=MODEL_PANEL,
    required=True,
    complete=complete_model,
)
DATA = Option(
    "Data set: digits, mnist:DIR, npz:FILE (arrays x and y) or npz:FILE:IMAGES,LABELS (their names), folder:DIR, "
    "parquet:PATH, hf:DIR[:SPLIT] (of save_to_disk), tar:PATTERN[:EXTENSION] (WebDataset shards) or your own "
    "(module:callable).",
    "SPEC",
    panel=MODEL_PANEL,
    required=True,
    complete=completing("digits", *(f"{form}:" for form in PATH_FORMS)),
)
WEIGHTS = Option("State dict to load into the model (.pt or .safetensors).", "FILE", "file", MODEL_PANEL)

Replace = Annotated[bool, typer.Option("--replace", help="Overwrite existing files; inputs are never overwritten.")]

LogReader = Annotated[
    str | None,
    typer.Option(
        "--reader",
        metavar="MODULE:NAME",
        help="Your own function that reads text logs of another format: path to a dictionary of text for each row.",
    ),
]


def load_reader(spec: str | None) -> Callable[..., Any] | None:
    """Import the reader that a spec names; None without a spec.

    >>> load_reader("csv:DictReader").__name__
    'DictReader'
    """
    from pyrobust.zoo.user_code import find_object, working_directory_importable

    if spec is None:
        return None
    with working_directory_importable():
        reader_function = find_object(spec, "--reader")
    if not callable(reader_function):
        raise InputError("--reader", "a function (path) -> rows", type(reader_function).__name__, where=spec)
    reader: Callable[..., Any] = reader_function
    return reader


def offering(
    options: Mapping[str, Option], elsewhere: Mapping[str, Elsewhere] = MappingProxyType({})
) -> Callable[[Callable[[dict[str, Any]], None]], Callable[..., None]]:
    """Make a command from a function that takes the options' values, as a dict by parameter name.

    Args:
        options: the options by name, in the order of the help.
        elsewhere: options of other commands. If the user gives such an option, this command ends with a line that names
            the other command. Both commands may have an option of the same name, with different choices. If the user
            then gives a choice that only the other command accepts, this command ends in the same way.
    """
    parameters = [_parameter(name, option, _words(name, option, elsewhere)) for name, option in options.items()]
    parameters += [_refusal(name, *other) for name, other in elsewhere.items() if name not in options]

    def decorate(function: Callable[[dict[str, Any]], None]) -> Callable[..., None]:
        def command(**texts: Any) -> None:
            values = {}
            for name, option in options.items():
                values[name] = value_of(name, option, texts[_variable(name, option)])
            function(values)

        for attribute in ("__name__", "__doc__", "__module__"):
            setattr(command, attribute, getattr(function, attribute))
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # functions may have it
        return reports_errors(command)

    return decorate


def flag_of(name: str, option: Option) -> str:
    """Return an option as a user types it.

    >>> flag_of("two_class", Option("Bound the other classes too."))
    '--two-class'
    """
    return f"--{option.name or name.replace('_', '-')}"


def value_of(name: str, option: Option, text: Any) -> Any:
    """Return the value of an option from the text or value that typer passes for the option.

    >>> value_of("radii", Option("Radii.", form="numbers"), "0.25,1/2")
    [0.25, 0.5]
    """
    if text is None or text == option.none:
        return None
    return _READERS[option.form](flag_of(name, option), text) if option.form in _READERS else text


_WIDEST = 40  # width of choices that fit the help's column at 120 columns


def _variable(name: str, option: Option) -> str:
    """Return the parameter name under which typer passes an option."""
    return (option.name or name).replace("-", "_")


def _parameter(name: str, option: Option, elsewhere: Mapping[str, str]) -> inspect.Parameter:
    """Return a parameter that declares an option to typer; ``elsewhere`` maps other commands' choices to errors."""
    parser, metavar, complete = _PARSERS.get(option.form), option.metavar, option.complete
    if option.choices:
        parser, complete = _chooser(flag_of(name, option), option, elsewhere), completing(*option.choices)
        # Where the column of the help is too narrow, lines break at spaces, or, without spaces, within a name.
        joined = "|".join(option.choices)
        metavar = metavar or f"<{joined if len(joined) <= _WIDEST else joined.replace('|', '| ')}>"
    info = typer.Option(
        flag_of(name, option),
        parser=parser,
        autocompletion=complete,
        metavar=metavar or None,
        help=option.help,
        rich_help_panel=option.panel,
    )
    kind: Any = _TYPES.get(option.form, str)
    if option.default is None and not option.required:
        kind |= None
    default = inspect.Parameter.empty if option.required else option.default
    return inspect.Parameter(_variable(name, option), _KEYWORD, default=default, annotation=Annotated[kind, info])


def _refusal(name: str, option: Option, command: str, advice: str) -> inspect.Parameter:
    """Return a hidden parameter for another command's option; its use ends the command with an error."""

    def refuse(value: Any) -> None:
        if value is not None:
            note(f"error: {flag_of(name, option)}: expected none, as it is an option of {command}; {advice}")
            raise typer.Exit(ERROR_STATUS)

    info = typer.Option(flag_of(name, option), callback=refuse, hidden=True)
    kind: Any = bool if option.form == "flag" else str
    return inspect.Parameter(_variable(name, option), _KEYWORD, default=None, annotation=Annotated[kind | None, info])


def _words(name: str, option: Option, elsewhere: Mapping[str, Elsewhere]) -> dict[str, str]:
    """Return, for each value of this option that only another command accepts, a text for the error message."""
    other, command, advice = elsewhere.get(name, (option, "", ""))
    said = f"which is one of {command}; {advice}"
    return {word: said for word in other.choices if word not in option.choices}


def _chooser(flag: str, option: Option, elsewhere: Mapping[str, str]) -> Callable[[str], str]:
    """Return the parser of an option with choices."""
    words = {word.lower() if option.any_case else word: word for word in option.choices}

    def choose(text: str) -> str:
        if text in elsewhere:
            note(f"error: {flag}: expected {' or '.join(option.choices)}, got {text}, {elsewhere[text]}")
            raise typer.Exit(ERROR_STATUS)
        word = words.get(text.lower() if option.any_case else text)
        if word is not None or (option.form == "name" and ":" in text):
            return word or text
        if option.form == "name":
            raise typer.BadParameter(f"expected one of {', '.join(option.choices)} or module:callable, got {text!r}")
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(map(repr, option.choices))}.")

    return choose
