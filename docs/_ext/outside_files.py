"""Links to files and folders outside docs: their pages, or their copies on the site, below ``files``."""

from __future__ import annotations

import html
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import quote

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util.osutil import relative_uri

# Files outside docs, and the page that stands for each.
PAGES = {
    "CHANGELOG.md": "changelog",
    "CONTRIBUTING.md": "contributing",
    "bench/results/README.md": "results",
    "bench/results/kernels.md": "results-kernels",
    "bench/results/bounds.md": "results-bounds",
    "bench/results/attacks.md": "results-attacks",
    "bench/results/texts.md": "results-texts",
    "bench/results/published.md": "published",
    "README.md": "index",
}
# Files that their pages include, with their links as they are, by page.
INCLUDED = {page: name for name, page in PAGES.items() if page != "index"} | {"first-release": "CHANGELOG.md"}


class OutsideLinks(SphinxTransform):
    """Let a relative link to a file or folder of the repository lead to its page or its copy."""

    default_priority = 400

    def apply(self, **kwargs: Any) -> None:
        """Replace the links of one page."""
        root = Path(self.app.srcdir).resolve().parent
        included = INCLUDED.get(self.env.docname)
        folder = (root / included if included else Path(self.env.doc2path(self.env.docname))).parent
        uri = self.app.builder.get_target_uri(self.env.docname)
        kinds = (addnodes.download_reference, addnodes.pending_xref)
        for link in [node for kind in kinds for node in self.document.findall(kind) if node["reftype"] == "myst"]:
            reference, _, anchor = link["reftarget"].partition("#")
            if link.get("refdomain") == "doc":  # a page, named without its suffix
                reference, anchor = reference + ".md", link["reftargetid"]
            path = (folder / reference).resolve()
            known = link["reftarget"] in self.env.found_docs or link.get("reflocalid")
            if known or not reference or not path.exists() or root not in path.parents:
                continue
            name = path.relative_to(root).as_posix()
            page = PAGES.get(name) or self.env.path2doc(path / "README.md" if path.is_dir() else path)
            if page in self.env.found_docs:
                attributes = {**link.attributes, "refdomain": "doc", "reftarget": page, "reftargetid": anchor or None}
                link.replace_self(addnodes.pending_xref("", *link.children, **attributes))
            else:
                target = relative_uri(uri, copied(path, name, Path(self.app.outdir)))
                link.replace_self(nodes.reference("", "", *link.children, refuri=target, internal=True))


def copied(path: Path, name: str, site: Path) -> str:
    """Copy a file or folder to the site, a folder with a page that lists its files, and return its address."""
    copy = site / "files" / name
    copy.parent.mkdir(parents=True, exist_ok=True)
    if path.is_file():
        shutil.copyfile(path, copy)
        return f"files/{quote(name)}"
    shutil.copytree(path, copy, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    files = sorted(file.relative_to(copy).as_posix() for file in copy.rglob("*") if file.is_file())
    items = "".join(f'<li><a href="{quote(file)}">{html.escape(file)}</a>\n' for file in files if file != "index.html")
    title = html.escape(name)
    (copy / "index.html").write_text(
        '<!doctype html>\n<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">\n'
        f'<meta name="color-scheme" content="light dark"><title>{title}</title>\n'
        f'<body style="font-family: sans-serif; overflow-wrap: anywhere"><main><h1>{title}</h1>\n'
        f"<ul>\n{items}</ul></main>\n",
        encoding="utf-8",
    )
    return f"files/{quote(name)}/index.html"


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the transform."""
    app.add_transform(OutsideLinks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
