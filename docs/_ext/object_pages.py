"""Pages of single objects share the navigation of their module: one with every object on every page takes minutes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

# The start page's lists, the modules and commands below them, and no objects below those.
DEPTH = 2
_FOLDER = "reference/generated/"
_trees: dict[str, str] = {}


def shallow(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    """Give a page a navigation without objects; that of an object is the last one of its module."""
    if "toctree" not in context:
        return
    whole: Callable[..., str] = context["toctree"]
    module = page.rpartition(".")[0] if page.startswith(_FOLDER) else ""

    def toctree(**options: Any) -> str:
        if not module:
            return whole(**options | {"maxdepth": DEPTH})
        if module not in _trees:
            _trees[module] = whole(**options | {"maxdepth": DEPTH})
        return _trees[module]

    context["toctree"] = toctree


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension, before the theme asks for the tree."""
    app.connect("html-page-context", shallow, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
