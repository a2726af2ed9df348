"""Size of a report's page, time to make it, and time until Chromium paints and has loaded it.

Up to 1,000 examples, the page shows a minimum-norm attack beside proofs, with the pictures of 100 examples of 32 x 32
pixels, their adversarial examples and differences; above, a certification log with 100 pictures. All are noise, which
compresses least. Loading is the median and the longest of seven. Filtering and sorting are those of the largest page,
in milliseconds. "plotly" is the first page with plotly's chart in place of its first figure, where plotly is installed.
Needs Chromium, chromedriver and selenium.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from selenium import webdriver
from study import Results
from torch import nn

from pyrobust.attacks import DDN
from pyrobust.evaluation import CertificationLog, attack_dataset, verify_dataset
from pyrobust.report.page import write_page
from pyrobust.zoo import ImageSet

_ATTACKED = 1000
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
_PAINTED = """return [performance.getEntriesByType('paint')[0].startTime,
                      performance.getEntriesByType('navigation')[0].loadEventEnd]"""
_ANSWERS = """const field = document.querySelector('input[type=search]'), times = [];
for (const query of ['label=3', 'radius>0.1 label=3', '7', '']) {
  field.value = query;
  const begin = performance.now();
  field.dispatchEvent(new Event('input', { bubbles: true }));
  times.push(performance.now() - begin);
}
const begin = performance.now();
document.querySelectorAll('.rows thead button')[4].click();
return [...times, performance.now() - begin];"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--examples", default="100,1000,10000", help="examples of each page")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")


def measure(options: argparse.Namespace) -> Results:
    with tempfile.TemporaryDirectory() as folder:
        pages = {int(text): Path(folder, f"{text}.html") for text in options.examples.split(",")}
        made = {count: _make(count, path) for count, path in pages.items()}
        browser = _browser(folder)
        try:
            for count, path in pages.items():
                size = {"seconds": made[count], "megabytes": path.stat().st_size / 1e6}
                yield f"{count} examples", size | _loaded(browser, path)
            yield "filter, filter, text, all, sort", [round(each, 1) for each in browser.execute_script(_ANSWERS)]
            plotly = _with_plotly(next(iter(pages.values())), Path(folder, "plotly.html"))
            if plotly is not None:
                yield "plotly", {"megabytes": plotly.stat().st_size / 1e6} | _loaded(browser, plotly)
        finally:
            browser.quit()


def _make(count: int, path: Path) -> float:
    """Write the page; return the seconds that it takes, without those of the runs."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)).eval()
    x = torch.rand(count, 3, 32, 32)
    data = ImageSet("noise", x, net(x).argmax(1))
    results: Any = _log(data)
    if count <= _ATTACKED:
        proof = verify_dataset(net, data, epsilons=[0.005, 0.01, 0.02], norm="l2", method="ibp")
        results = [proof, attack_dataset(DDN(net, norm="l2", steps=5), data, minimum=True)]
    begin = time.perf_counter()
    write_page(path, results, data=data)
    return time.perf_counter() - begin


def _log(data: ImageSet) -> CertificationLog:
    label = data.y.numpy()
    return CertificationLog(
        path=Path("noise.tsv"),
        name="noise",
        kind="certify",
        index=np.arange(len(data)),
        label=label,
        prediction=label,
        radius=np.random.default_rng(0).uniform(0.01, 0.9, len(data)).round(4),
        correct=np.ones(len(data)),
        seconds=None,
        decimals=np.full(len(data), 4),
        n=100_000,
        alpha=0.001,
        sigma=0.25,
    )


def _browser(folder: str) -> webdriver.Chrome:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in (*_FLAGS, f"--user-data-dir={folder}/profile"):
        options.add_argument(flag)
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))


def _loaded(browser: webdriver.Chrome, path: Path) -> dict[str, list[float]]:
    times = []
    for _ in range(7):
        browser.get(path.as_uri())
        time.sleep(0.3)
        times.append(browser.execute_script(_PAINTED))
    names = ("first paint, loaded: median ms", "longest ms")
    return {
        name: [round(pick(column)) for column in zip(*times, strict=True)]
        for name, pick in zip(names, (statistics.median, max), strict=True)
    }


def _with_plotly(page: Path, path: Path) -> Path | None:
    """The page with a chart of plotly, which its content security policy would refuse, in place of its first figure."""
    try:
        import plotly.graph_objects as objects
    except ImportError:
        return None
    figure = objects.Figure()
    for power in (1, 2):
        for shift, fill in ((0.02, None), (-0.02, "tonexty"), (0.0, None)):
            x = [i / 240 for i in range(240)]
            figure.add_scatter(x=x, y=[1 - each**power + shift for each in x], fill=fill)
    text = re.sub(r"<meta http-equiv[^>]*>", "", page.read_text())
    begin, end = text.index("<figure"), text.index("</figure>")
    path.write_text(text[:begin] + figure.to_html(full_html=False, include_plotlyjs="inline") + text[end + 9 :])
    return path
