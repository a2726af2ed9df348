"""After the build: every link of the site leads to a file of the site, and to an anchor that it has."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from sphinx.application import Sphinx


class Page(HTMLParser):
    """The links and anchors of one page."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect links, images, scripts and anchors."""
        for key, value in attrs:
            if key in ("href", "src") and tag != "use" and value is not None:
                self.links.append(value)
            elif key in ("id", "name") and value:
                self.anchors.add(value)


def broken_links(site: Path) -> tuple[int, int, list[str]]:
    """Count the links inside and out of a built site and list the broken ones.

    Links to other hosts are counted, not followed: a build needs no network.
    """
    pages = {file: Page(file) for file in sorted(site.resolve().rglob("*.html"))}
    inner = outer = 0
    broken = []
    for file, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                outer += 1
                continue
            inner += 1
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            anchor = unquote(parts.fragment)
            if not target.is_file() or (anchor and target in pages and anchor not in pages[target].anchors):
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
