"""Contents from lists of links: what ``- [Title](page.md)`` names on a README or the start page, stands below it.

The pages stay plain Markdown, with no directive. Headings above the lists group the pages in the navigation.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx


@cache
def groups(page: Path) -> list[tuple[str, list[str]]]:
    """Return the headings of a page, each with the pages of its lists, in order."""
    found: list[tuple[str, list[str]]] = [("", [])]
    for heading, link in re.findall(r"^## (.+)$|^- \[[^\]]+\]\(([^)#:]+)\.md\)", page.read_text("utf-8"), re.MULTILINE):
        if heading:
            found.append((heading, []))
        else:
            found[-1][1].append(link)
    return [(heading, links) for heading, links in found if links]


def is_contents(app: Sphinx, docname: str) -> bool:
    """Whether a page lists what stands below it."""
    return docname == app.config.root_doc or docname.endswith("/README")


def add_contents(app: Sphinx, docname: str, source: list[str]) -> None:
    """Append a hidden table of contents for each group."""
    if is_contents(app, docname):
        for heading, links in groups(Path(app.env.doc2path(docname))):
            inside = [link for link in links if not link.startswith("..")]
            source[0] += "\n```{toctree}\n:hidden:\n" + f":caption: {heading}\n" * bool(heading)
            source[0] += "\n".join(["", *inside, "```", ""])


def add_group_names(app: Sphinx, docname: str, template: str, context: dict[str, Any], doctree: nodes.document) -> None:
    """Write the groups' headings into the navigation, where the theme shows none below the start page."""
    tree = context.get("furo_navigation_tree", "")
    for parent in filter(lambda name: name.endswith("/README"), app.env.found_docs):
        for heading, links in groups(Path(app.env.doc2path(parent))):
            if heading:
                uri = app.builder.get_relative_uri(docname, f"{parent.rpartition('/')[0]}/{links[0]}")
                uri = "#" if docname == f"{parent.rpartition('/')[0]}/{links[0]}" else uri
                tree = re.sub(
                    rf'(<li class="toctree-l[2-9][^"]*"><a class="[^"]*" href="{re.escape(uri)}")',
                    rf'<li class="group">{heading}</li>\1',
                    tree,
                    count=1,
                )
    # Names of modules break at their dots.
    tree = re.sub(r"(?<=>)pyrobust\.[\w.]+(?=<)", lambda m: m[0].replace(".", ".<wbr>"), tree)
    context["furo_navigation_tree"] = tree


def setup(app: Sphinx) -> dict[str, bool]:
    """Register both."""
    app.connect("source-read", add_contents)
    app.connect("html-page-context", add_group_names, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
