"""Docstrings written for readers of plain text, as Sphinx needs them."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

# The first entry of Args, where it names so many arguments of a base class that the names take two lines.
_OF_THE_BASE = re.compile(r"^Args:\n +((?:\w+,\s+)+\w+): (see [^\n]+)\n", re.MULTILINE)
# Neighbouring entries that all refer to the same function: "x: as for ``bounds``."
_AS_ELSEWHERE = re.compile(r"^( +)\w+: (as for ``\w+``\.)\n(?:\1\w+: \2\n)+", re.MULTILINE)
_SEVERAL_ATTRIBUTES = re.compile(r"^:ivar ((?:\w+, )+\w+):(.*(?:\n +\S.*)*)", re.MULTILINE)

_NDARRAY = re.compile(r"[~.\w]*ndarray\[[~.\w]*tuple\[[~.\w]+, \.\.\.\], [~.\w]*dtype\[[~.\w]*?(\w+)\]\]")


def move_arguments_of_the_base(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Write "model, ..., callback: see ``Base``" as a paragraph instead of one parameter a name."""
    text = _OF_THE_BASE.sub(lambda m: f"{' '.join(m[1].split())}: {m[2]}\n\nArgs:\n", "\n".join(lines))
    lines[:] = text.split("\n")


def merge_arguments_as_elsewhere(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Write neighbouring arguments that are "as for ``bounds``." as one sentence in place of one entry each."""
    text = "\n".join(lines)
    match = _AS_ELSEWHERE.search(text)
    if match:
        *first, last = re.findall(r"(\w+): as for", match[0])
        before, others = text[: match.start()].rsplit("Args:\n", 1)
        after = text[match.end() :]
        alone = not others and after.startswith("\n")
        text = f"{before}Arguments {', '.join(first)} and {last}: {match[2]}\n\n"
        text += after.lstrip("\n") if alone else f"Args:\n{others}{after}"
    lines[:] = text.split("\n")


def split_attributes(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Write "lower, upper: text" among attributes as two: Sphinx takes all names but the last for a type."""
    text = _SEVERAL_ATTRIBUTES.sub(
        lambda m: "\n".join(f":ivar {attribute}:{m[2]}" for attribute in m[1].split(", ")), "\n".join(lines)
    )
    lines[:] = text.split("\n")


def short_arrays(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str | None, result: str | None
) -> tuple[str | None, str | None]:
    """Write NDArray[int64] as the source does, instead of what it stands for."""
    written = [text and _NDARRAY.sub(r"NDArray[\1]", text) for text in (signature, result)]
    return written[0], written[1]


def public_bases(app: Sphinx, name: str, obj: Any, options: Any, bases: list[type]) -> None:
    """Name the public classes that private bases extend."""
    while any(base.__name__.startswith("_") for base in bases):
        bases[:] = [up for base in bases for up in (base.__bases__ if base.__name__.startswith("_") else [base])]


class PlainText(SphinxTransform):
    """Leave |x| as it is written, an absolute value and no substitution; drop the line of a class without bases."""

    default_priority = 200

    def apply(self, **kwargs: Any) -> None:
        """Change one page."""
        for paragraph in list(self.document.findall(nodes.paragraph)):
            if paragraph.astext() == "Bases: object":
                paragraph.parent.remove(paragraph)
        for node in list(self.document.findall(nodes.substitution_reference)):
            if node["refname"] not in self.document.substitution_defs:
                node.replace_self(nodes.Text(f"|{node.astext()}|"))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register all."""
    app.connect("autodoc-process-docstring", move_arguments_of_the_base, priority=400)
    app.connect("autodoc-process-docstring", merge_arguments_as_elsewhere, priority=400)
    app.connect("autodoc-process-docstring", split_attributes, priority=600)  # after napoleon, which is at 500
    app.connect("autodoc-process-signature", short_arrays)
    app.connect("autodoc-process-bases", public_bases)
    app.add_transform(PlainText)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
