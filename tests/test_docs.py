"""Tests of the pages: links resolve, examples compile, commands and options exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def relative(page):
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)  # in C++, a lambda looks like a link
    targets = re.findall(r"\]\(([^)#]+)", text)
    missing = [t for t in targets if not t.startswith("http") and not (page.parent / t).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_python_examples_compile_and_import_names_that_exist(page):
    for code in re.findall(r"```python\n(.*?)```", page.read_text(), re.S):
        for node in ast.walk(ast.parse(code, str(page))):
            if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "pyrobust":
                exec(compile(ast.Module([node], []), str(page), "exec"), {})


def test_the_guide_for_evaluators_runs_and_gives_its_numbers():
    """Run the blocks in order; an expression's value is what the comment behind it says."""
    page = ROOT / "docs/how-to/evaluating-threats.md"
    names: dict[str, object] = {}
    seen = 0
    for code in re.findall(r"```python\n(.*?)```", page.read_text(), re.S):
        lines = code.splitlines()
        for node in ast.parse(code).body:
            if isinstance(node, ast.Expr):
                value = eval(compile(ast.Expression(node.value), str(page), "eval"), names)
                assert lines[(node.end_lineno or 0) - 1].endswith(f"  # {value}"), (lines[node.lineno - 1], value)
                seen += 1
            else:
                exec(compile(ast.Module([node], []), str(page), "exec"), names)
    assert seen >= 20


def test_commands_and_options_exist():
    """Check every `pyrobust ...` line of the pages against the commands and their options."""
    import typer.main

    from pyrobust.cli.app import app

    group = typer.main.get_command(app)
    seen = 0
    for page in PAGES:
        for line in re.findall(r"^pyrobust (\w.*)$", page.read_text(), re.M):
            words = line.split("#")[0].split()
            command = group
            while words and words[0] in getattr(command, "commands", {}):
                command = command.commands[words.pop(0)]
            known = {option for parameter in command.params for option in parameter.opts}
            unknown = [w for w in words if w.startswith("--") and w not in known]
            assert command is not group, (page, line)
            assert not unknown, (page, line)
            seen += 1
    assert seen >= 5


def test_the_map_of_the_code_is_that_of_the_code():
    """Every file that the architecture page names exists, and its floors are those that lint-imports checks."""
    text = (ROOT / "docs/architecture.md").read_text()
    code = [
        *(ROOT / "csrc").rglob("*"),
        *(ROOT / "pyrobust").rglob("*"),
        *(ROOT / "tests").rglob("*"),
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
