"""One page for each command, written from the command line's own help."""

from __future__ import annotations

import inspect
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main
from sphinx.application import Sphinx


def commands(name: str, command: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the full name, the command and its context of every command below a group, leaves only."""
    context = command.make_context(name, [], resilient_parsing=True)
    if hasattr(command, "list_commands"):
        for child in command.list_commands(context):
            yield from commands(f"{name} {child}", command.get_command(context, child))
    else:
        yield name, command, context


def paragraphs(text: str) -> list[str]:
    """Return lines of reStructuredText that show a help text as it is written, wrapped."""
    lines = inspect.cleandoc(text.replace("\b", "").replace("\f", "")).splitlines()
    lines = [line.replace("\\", r"\\").replace("*", r"\*").replace("`", "") for line in lines]
    return [re.sub(r"(?<=^Example: ).+|(?<!\S)--[\w-]+", r"``\g<0>``", line) for line in lines]


def page(name: str, command: Any, context: Any) -> str:
    """Return the page of one command: usage, description, its options by panel."""
    lines = [name, "=" * len(name), "", ".. code-block:: text", ""]
    lines += [f"   {name} {' '.join(command.collect_usage_pieces(context))}", ""]
    lines += [*paragraphs(command.help or ""), "", f".. program:: {name}", ""]
    panels: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.params:
        if (record := parameter.get_help_record(context)) is not None:
            other = "Arguments" if parameter.param_type_name == "argument" else "Options"
            panels.setdefault(getattr(parameter, "rich_help_panel", None) or other, []).append(record)
    for panel, records in panels.items():
        lines += [panel, "-" * len(panel), ""]
        for declaration, text in records:
            lines += [f".. option:: {declaration.replace(' / ', ', ')}", ""]
            lines += [f"   {line}" for line in paragraphs(text)] + [""]
    return "\n".join(lines) + "\n"


def write_pages(app: Sphinx) -> None:
    """Write the pages into the folder of the generated reference."""
    from pyrobust.cli.app import app as application

    folder = Path(app.srcdir) / "reference/generated/commands"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, command, context in commands("pyrobust", typer.main.get_command(application)):
        file = folder / f"{name.partition(' ')[2].replace(' ', '-')}.rst"
        file.write_text(page(name, command, context), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the writer."""
    app.connect("builder-inited", write_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
