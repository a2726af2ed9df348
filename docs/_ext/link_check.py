"""After the build: every link of the site leads to a file of the site, and to an anchor that it has."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from sphinx.application import Sphinx


_ATTRIBUTE = re.compile(r'\s(href|src|id|name)="([^"]*)"')


def broken_links(site: Path) -> tuple[int, int, list[str]]:
    """Count the links inside and out of a built site and list the broken ones.

    Links to other hosts are counted, not followed: a build needs no network.
    """
    anchors: dict[Path, set[str]] = {}
    links: dict[Path, list[str]] = {}
    for file in sorted(site.resolve().rglob("*.html")):
        found = [(key, unescape(value)) for key, value in _ATTRIBUTE.findall(file.read_text(encoding="utf-8"))]
        anchors[file] = {value for key, value in found if key in ("id", "name")}
        links[file] = [value for key, value in found if key in ("href", "src")]
    inner = outer = 0
    broken = []
    for file, own in links.items():
        for link in own:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                outer += 1
                continue
            inner += 1
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            anchor = unquote(parts.fragment)
            if not target.is_file() or (anchor and target in anchors and anchor not in anchors[target]):
                broken.append(f"{file.relative_to(site.resolve())}: {link}")
    return inner, outer, broken


def check(app: Sphinx, exception: Exception | None) -> None:
    """Fail the build where a link leads nowhere."""
    from sphinx.errors import SphinxError
    from sphinx.util import logging

    if exception is None and app.builder.name == "html":
        inner, outer, broken = broken_links(Path(app.outdir))
        if broken:
            raise SphinxError("broken links:\n" + "\n".join(sorted(set(broken))))
        logging.getLogger(__name__).info("%d links inside the site checked; %d links to other hosts", inner, outer)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the check."""
    app.connect("build-finished", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
