"""Names of the API in backticks, on pages and in docstrings, become links to their reference."""

from __future__ import annotations

import sys
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.nodes import make_refnode

import pyrobust


def documented(env: BuildEnvironment) -> dict[str, str]:
    """Map every unambiguous way to write a documented name to its full name.

    A name that several modules have belongs to the one that ``pyrobust`` itself exports, else to none.
    """
    if (known := getattr(env, "documented_names", None)) is not None:
        return known
    full: dict[str, list[str]] = {}
    for name, entry in env.get_domain("py").objects.items():
        if not entry.aliased:
            parts = name.split(".")
            # A member has its class before it: its name alone is anybody's.
            shortest = {"module": len(parts), "class": 1, "exception": 1, "function": 1, "data": 1}.get(
                entry.objtype, 2
            )
            for start in range(len(parts) - shortest + 1):
                full.setdefault(".".join(parts[start:]), []).append(name)
    exported = {
        candidate
        for name in pyrobust.__all__
        for candidate in full.get(name, [])
        if getattr(sys.modules.get(candidate.rpartition(".")[0]), name, None) is getattr(pyrobust, name)
    }
    names = {f"pyrobust.{name.rpartition('.')[2]}": name for name in exported}
    for short, found in full.items():
        if len(found) > 1:
            found = [name for name in found if name == short or exported & {name, name.rpartition(".")[0]}]
        if len(found) == 1:
            names[short] = found[0]
    env.documented_names = names
    return names


class LinkNames(SphinxPostTransform):
    """Turn literals that are names of the API into links."""

    default_priority = 8

    def run(self, **kwargs: Any) -> None:
        """Link the names of one page; lower-case words of one part only with parentheses behind them."""
        names = documented(self.env)
        objects = self.env.get_domain("py").objects
        for literal in list(self.document.findall(nodes.literal)):
            text = literal.astext().removesuffix("()")
            distinct = text != text.lower() or "." in text or "_" in text or text != literal.astext()
            if not distinct or text not in names or inside(literal, nodes.reference, nodes.title, pending_xref):
                continue
            entry = objects[names[text]]
            literal.replace_self(
                make_refnode(
                    self.app.builder, self.env.docname, entry.docname, entry.node_id, literal.deepcopy(), names[text]
                )
            )


def inside(node: nodes.Node, *kinds: type[nodes.Node]) -> bool:
    """Whether a node has an ancestor of one of the kinds."""
    parent = node.parent
    while parent is not None and not isinstance(parent, kinds):
        parent = parent.parent
    return parent is not None


def resolve(app: Sphinx, env: BuildEnvironment, node: pending_xref, contnode: nodes.Element) -> nodes.Element | None:
    """Resolve a reference from where an object is defined or exported to where it is documented."""
    if node.get("refdomain") != "py":
        return None
    names = documented(env)
    target = node["reftarget"]
    name = names.get(target) or names.get(target.rpartition(".")[2] if target.startswith("pyrobust.") else target)
    if name is None:
        return contnode  # of another library, or not public
    entry = env.get_domain("py").objects[name]
    return make_refnode(app.builder, node["refdoc"], entry.docname, entry.node_id, contnode, name)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the links."""
    app.add_post_transform(LinkNames)
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
