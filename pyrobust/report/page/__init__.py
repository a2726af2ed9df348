"""The HTML page of a report: one self-contained file."""

from pyrobust.report.page.render import page_html, write_page
from pyrobust.report.page.threats import threat_page_html

__all__ = ["page_html", "threat_page_html", "write_page"]
