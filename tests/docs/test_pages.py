"""Tests of the pages: links resolve, every code block runs, commands and options exist.

The blocks of a page run in order, Python in one namespace and `pyrobust ...` lines in the same process, in one empty
folder. In the pages,

- `<!-- setup` ... `-->` is Python that the reader does not see;
- `<!-- not run: REASON -->` before a block leaves it out;
- a block of Python that begins with `# name.py` is that file; `<!-- file NAME -->` before a block writes any other;
- a comment behind an expression that is itself a value, such as `# (3, 0.5)`, is the value of the expression;
- `# exit status N` behind a command is its status.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import io
import os
import re
import shlex
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import pytest
import torch

from pyrobust.attacks.diagnosis import trials
from pyrobust.cli import main

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    page
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench/results").glob("*.md")]
    if not {"_build", "node_modules"} & set(page.parts)
)
BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>not run|file):? (?P<what>[^\n]*) -->\n+)?"
    r"^(?:```(?P<language>\w*)\n(?P<code>.*?)^```$|<!-- setup\n(?P<setup>.*?)^-->$)",
    re.S | re.M,
)


class Block(NamedTuple):
    kind: str  # "python", "commands", "file", "not run" or "text"
    what: str  # file name or reason
    code: str
    line: int  # of the page, before the first line of code


def blocks(text: str) -> Iterator[Block]:
    for match in BLOCK.finditer(text):
        group = "setup" if match["setup"] is not None else "code"
        code = match[group]
        line = text.count("\n", 0, match.start(group))
        name = re.match(r"# (\w+\.py)\n", code)
        if match["mark"]:
            yield Block(match["mark"], match["what"], code, line)
        elif group == "setup" or match["language"] == "python":
            yield Block("file", name[1], code, line) if name else Block("python", "", code, line)
        elif match["language"] in ("bash", "console", "sh") or re.search(r"^(pyrobust|pip|python|cd) ", code, re.M):
            yield Block("commands", "", code, line)
        else:
            yield Block("text", "", code, line)


def relative(page):
    return str(page.relative_to(ROOT))


WITH_CODE = [page for page in PAGES if any(block.kind not in ("text", "not run") for block in blocks(page.read_text()))]


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)  # in C++, a lambda looks like a link
    targets = re.findall(r"\]\(([^)#]+)", text)
    missing = [t for t in targets if not t.startswith("http") and not (page.parent / t).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_rows_belong_to_a_table(page):
    """A row that follows a blank line is the header of a table, or would be shown as text."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    assert re.findall(r"(?<=\n\n)(?=\|)[^\n]*\n(?!\|[ :|-]+\|\n).*", text) == []


def as_value(comment: str) -> str | None:
    """Return a comment that is a Python value, such as `# (3, Fraction(1, 4))`, without its `# `; None for prose."""
    text = comment.removeprefix("# ")
    if re.fullmatch(r"[A-Z]\w*\(.*\)", text):  # such as a repr that is no syntax
        return text
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError:
        return None
    if isinstance(tree, ast.Name | ast.Attribute):
        return text if text in ("inf", "nan") else None
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    plain = ast.Constant | ast.Tuple | ast.List | ast.Dict | ast.Set | ast.Call | ast.UnaryOp | ast.USub | ast.Load
    auxiliary = ast.keyword | ast.expr_context
    if any(text[node.func.end_col_offset or 0] != "(" for node in ast.walk(tree) if isinstance(node, ast.Call)):
        return None  # such as `Cohen (1960)`
    fits = all(isinstance(node, plain | auxiliary) or id(node) in called for node in ast.walk(tree))
    return text if fits else None


def run_python(block: Block, page: Path, names: dict[str, Any]) -> int:
    """Execute a block; return the number of values that were compared with their comments."""
    comments = {
        token.end[0] + block.line: token.string
        for token in tokenize.generate_tokens(io.StringIO(block.code).readline)
        if token.type == tokenize.COMMENT
    }
    compared = 0
    for statement in ast.increment_lineno(ast.parse(block.code), block.line).body:
        if not isinstance(statement, ast.Expr):
            exec(compile(ast.Module([statement], []), str(page), "exec"), names)
            continue
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            value = eval(compile(ast.Expression(statement.value), str(page), "eval"), names)
        expected = as_value(comments.get(statement.end_lineno or 0, "#"))
        if expected is not None:
            shown = [output.getvalue().strip()] if value is None else [str(value), repr(value)]
            assert expected in shown, f"{relative(page)}:{statement.end_lineno}: {expected} is {shown[-1]}"
            compared += 1
    return compared


def run_commands(block: Block, page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for line in block.code.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        where = f"{relative(page)}:{block.line + 1}: {line}"
        assert words[0] == "pyrobust", f"{where}: only pyrobust runs here; mark the block: <!-- not run: REASON -->"
        status = re.search(r"# .*exit status (\d)", line)
        monkeypatch.setattr(sys, "argv", words)
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output), pytest.raises(SystemExit) as exit_:
            main()
        assert (exit_.value.code or 0) == int(status[1] if status else 0), f"{where}\n{output.getvalue()}"


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder, from which modules are imported; what a page leaves in this process is taken back."""
    matplotlib.get_cachedir()  # which it remembers: each new one would be filled with the fonts of the machine
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)
    threads, grad = torch.get_num_threads(), torch.is_grad_enabled()
    yield tmp_path
    torch.set_num_threads(threads)
    torch.set_grad_enabled(grad)
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(f"{tmp_path}{os.sep}"):
            del sys.modules[name]


@pytest.mark.usefixtures("few_steps")
@pytest.mark.parametrize("page", WITH_CODE, ids=relative)
def test_blocks_run(page, empty_folder, monkeypatch):
    monkeypatch.setattr(trials, "_QUERIES", 100)
    monkeypatch.setattr(trials, "_MORE_RESTARTS", 1)
    names: dict[str, Any] = {"__name__": "page"}
    page_blocks = list(blocks(page.read_text()))
    for block in page_blocks:
        if block.kind == "file":
            (empty_folder / block.what).write_text(block.code)
    compared = 0
    for block in page_blocks:
        if block.kind == "python":
            compared += run_python(block, page, names)
        elif block.kind == "commands":
            run_commands(block, page, monkeypatch)
    assert compared >= (15 if page.stem == "evaluating-threats" else 0)


def test_commands_and_options_exist():
    """Check every `pyrobust ...` line of the pages against the commands and their options."""
    import typer.main

    from pyrobust.cli.app import app

    group = typer.main.get_command(app)
    seen = 0
    for page in PAGES:
        code = "\n".join(block.code for block in blocks(page.read_text()) if block.kind in ("commands", "not run"))
        for line in re.findall(r"^pyrobust (\w.*)$", code.replace("\\\n", " "), re.M):
            words = line.split("#")[0].split()
            command = group
            while words and words[0] in getattr(command, "commands", {}):
                command = command.commands[words.pop(0)]
            options = {option for parameter in command.params for option in parameter.opts}
            unknown = [w for w in words if w.startswith("--") and w not in options]
            assert command is not group, (page, line)
            assert not unknown, (page, line)
            seen += 1
    assert seen >= 50


def test_the_map_of_the_code_is_that_of_the_code():
    """Every file that the architecture page names exists, and its floors are those that lint-imports checks."""
    text = (ROOT / "docs/architecture.md").read_text()
    code = [
        *(ROOT / "csrc").rglob("*"),
        *(ROOT / "pyrobust").rglob("*"),
        *(ROOT / "tests").rglob("*"),
        *(ROOT / "bench").rglob("*"),
        *ROOT.glob("*.py"),
    ]
    files = {f"/{path.relative_to(ROOT).as_posix()}" for path in code}
    named = re.findall(r"(?<![\w/.])[\w/]+\.(?:py|cpp|h|cu)\b", text)
    assert len(named) > 60
    named = [name for name in named if "NAME" not in name]
    assert not [name for name in named if not any(file.endswith(f"/{name}") for file in files)]
    floors = text.split("## The floors")[1].split("```text\n")[1].split("```")[0]
    names = re.findall(r"[\w, |]+?(?=  |$)", "\n".join(line.split("  ")[0] for line in floors.splitlines()), re.M)
    layers = (ROOT / "pyproject.toml").read_text().split("layers = [")[1].split("]")[0]
    listed = [name for name in re.findall(r"\w+", " ".join(names)) if name != "pyrobust"]
    assert listed == [name for name in re.findall(r"\w+", layers) if name != "pyrobust"]


def test_comments_that_are_values():
    values = ["0.5", "(1, 2)", "[0.27, 0.33]", "'masked'", "Fraction(1, 4)", "-1", "True", "Run(images=3, part='x')"]
    prose = ["-1 and 0.0: abstained", "bool [B]", "[B, R], [B]", "0.29 in [0.2, 0.3]", "exact", "Cohen (1960)"]
    assert [as_value(f"# {text}") for text in values] == values
    assert [as_value(f"# {text}") for text in prose] == [None] * len(prose)


def test_blocks_of_a_page_that_is_wrong_are_found(empty_folder, monkeypatch):
    page = ROOT / "docs/guide.md"
    python, command, foreign, printed = blocks(
        "```python\nx = 1\nx + 1  # 3\n```\n```\npyrobust certify --no-such\n```\n"
        "```bash\nsbatch x\n```\n```\nprinted\n```\n"
    )
    with pytest.raises(AssertionError, match=r"guide.md:3: 3 is 2"):
        run_python(python, page, {})
    with pytest.raises(AssertionError, match="No such option"):
        run_commands(command, page, monkeypatch)
    with pytest.raises(AssertionError, match="not run"):
        run_commands(foreign, page, monkeypatch)
    assert printed.kind == "text"


def test_tables_of_figures_are_those_of_the_results(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import figures

    pages = [page.read_text() for page in figures.PAGES]
    assert [figures.with_tables(page) for page in pages] == pages
    assert sum(page.count("<!-- figures: ") for page in pages) >= 10


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
