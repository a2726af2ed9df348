"""Tests of the documentation site's own tools; the site itself is built, with warnings as errors, by .ci/run."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def link_check():
    spec = importlib.util.spec_from_file_location("link_check", ROOT / "docs/_ext/link_check.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_broken_links_are_found(tmp_path, link_check):
    (tmp_path / "below").mkdir()
    (tmp_path / "a b.html").write_text('<p id="here"><a href="#here">1</a><a href="https://example.org/x">2</a>')
    (tmp_path / "below/page.html").write_text('<a href="../a%20b.html#here">1</a><img src="../data.json">')
    (tmp_path / "data.json").write_text("{}")
    assert link_check.broken_links(tmp_path) == (3, 1, [])

    (tmp_path / "bad.html").write_text('<a href="a b.html#gone">1</a><a href="#no">2</a><script src="no.js"></script>')
    assert link_check.broken_links(tmp_path)[2] == ["bad.html: a b.html#gone", "bad.html: #no", "bad.html: no.js"]


def test_every_page_is_in_the_contents_of_its_folder():
    for contents in [ROOT / "docs/index.md", *(ROOT / "docs").glob("*/README.md")]:
        text = contents.read_text()
        pages = {page.name for page in contents.parent.glob("*.md")} - {contents.name, "README.md"}
        missing = [page for page in sorted(pages) if f"]({page})" not in text and f"\n{page[:-3]}\n" not in text]
        assert not missing, contents
