"""Write the tables of the pages in bench/results that stand between `<!-- figures: GROUP -->` and `<!-- end -->`.

python bench/figures.py [--check]

A row is a case of that group in bench/results/cpu.json and cpu-avx2.json: the time of the first variant, then that of
each other one as a multiple of it, with AVX-512 / with AVX2 alone. GROUP "files" lists the files of bench/results,
"architectures" the networks of the study bounds/architectures. The tables `<!-- computed: NAME -->` of published.md are
published.py's, where PYROBUST_DATA has the logs. --check writes nothing and fails where a page differs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench/results"
PAGES = [RESULTS / f"{name}.md" for name in ("README", "kernels", "bounds", "attacks", "texts")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only compare the pages with bench/results")
    args = parser.parse_args()
    pages = {page: with_tables(page.read_text()) for page in PAGES}
    if data := os.environ.get("PYROBUST_DATA"):
        import published

        pages[published.PAGE] = published.filled(published.PAGE.read_text(), Path(data) / "logs")
    for page, written in pages.items():
        if args.check and written != page.read_text():
            raise SystemExit(f"{page.name}: differs from bench/results; run python bench/figures.py")
        page.write_text(written)


def with_tables(page: str) -> str:
    """Return the page with each table made anew."""
    block = re.compile(r"(<!-- figures: (\S+) -->\n).*?(<!-- end -->)", re.S)
    return block.sub(lambda match: f"{match[1]}\n{table(match[2])}\n\n{match[3]}", page)


def table(name: str) -> str:
    """Return a table in Markdown."""
    return {"files": files, "architectures": architectures}.get(name, lambda: cases(name))()


def files() -> str:
    """Return the table of result files: command and processor."""
    lines = ["| file | command | processor, threads |", "|---|---|---|"]
    for path in sorted(RESULTS.glob("*.[jt]*")):
        if path.suffix != ".json":
            commands = [line[2:] for line in path.read_text().splitlines() if line.startswith("$ ")]
            machine = {}
        else:
            content = json.loads(path.read_text())
            commands = content.get("commands") or [content["command"]]
            machine = content.get("machine", {})
        shown = "<br>".join(f"`{command}`" for command in commands)
        cpu = f"{machine['cpu']}, {machine['threads']}" if machine else "not recorded"
        lines.append(f"| [{path.name}]({path.name}) | {shown} | {cpu} |")
    return "\n".join(lines)


def architectures() -> str:
    """Return the table of bounds/architectures: milliseconds, and the other tool's time over them; by batch."""
    content = json.loads((RESULTS / "architectures-cpu.json").read_text())
    cells: dict[str, dict[str, list[dict]]] = {}
    for row in content["results"]:
        cells.setdefault(row["name"], {}).setdefault(row["method"], []).append(row["threads 1"])
    methods = {method: None for rows in cells.values() for method in rows}
    lines = ["| network | " + " | ".join(methods) + " |", "|---" * (1 + len(methods)) + "|"]
    for name, rows in cells.items():
        shown = []
        for method in methods:
            native = " / ".join(_three(1000 * cell["native"]) for cell in rows[method] if "native" in cell)
            ratios = " / ".join(_three(cell["ratio"]) if "ratio" in cell else "–" for cell in rows[method])
            shown.append(f"{native} ms" + (f", {ratios}×" if set(ratios) - set("– /") else ""))
        lines.append(f"| {name} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def _three(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def cases(group: str) -> str:
    """Return the table of one group of bench/run.py."""
    wide, narrow = ({case["case"]: case for case in _cases(f"cpu{level}.json", group)} for level in ("", "-avx2"))
    lines = ["| case | time | times as long |", "|---|---|---|"]
    for name, case in wide.items():
        seconds = [each["seconds"] for each in (case, narrow[name])]
        first = next(iter(seconds[0]))
        per = "" if case["items"] == 1 else " each"
        time = " / ".join(_time(each[first]["median"] / case["items"]) for each in seconds)
        others = [
            f"{other} {' / '.join(_ratio(each[other]['median'] / each[first]['median']) for each in seconds)}"
            for other in seconds[0]
            if other != first
        ]
        lines.append(f"| {name} | {time}{per} | {'; '.join(others)} |")
    return "\n".join(lines)


def _cases(file: str, group: str) -> list[dict]:
    content = json.loads((RESULTS / file).read_text())
    return [case for case in content["results"] if case["group"] == group]


def _time(seconds: float) -> str:
    unit, scale = next(u for u in (("s", 1), ("ms", 1e3), ("µs", 1e6), ("ns", 1e9)) if seconds * u[1] >= 1)
    return f"{seconds * scale:.3g} {unit}"


def _ratio(value: float) -> str:
    text = f"{value:.0f}" if value >= 20 else f"{value:.2g}" if value >= 1 else f"{value:.2f}"
    return f"{text}×"


if __name__ == "__main__":
    main()
