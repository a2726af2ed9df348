"""Roles that Sphinx leaves out of its HTML."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

_PARAMETERS = re.compile(r'<dl>\n((?:<dd><em class="sig-param">.*</dd>\n)+)</dl>')


def add_roles(app: Sphinx, docname: str, template: str, context: dict[str, Any], doctree: nodes.document) -> None:
    """Give the navigation's headings their level, and make a list of what is one."""
    tree = context.get("furo_navigation_tree", "")
    context["furo_navigation_tree"] = tree.replace('role="heading">', 'role="heading" aria-level="2">')
    context["body"] = _PARAMETERS.sub(as_list, context.get("body", ""))


def as_list(parameters: re.Match[str]) -> str:
    """Return parameters on lines of their own, written as ``dd`` without ``dt``, as a list."""
    items = parameters[1].replace("<dd>", '<div role="listitem">').replace("</dd>", "</div>")
    return f'<div class="sig-params" role="list">\n{items}</div>'


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the roles."""
    app.connect("html-page-context", add_roles, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
