"""Do the tests notice faults? One random mutation of the package at a time, on the tests that run the mutated line.

    python bench/mutations.py OUT [--seed 1] [--count 200] [--since REVISION] [--pytest "-n 2"]

Lines of code are drawn at random, and on each an operator, a constant, a condition, a returned value or a call whose
value is not used: OUT/mutations.jsonl. The default part of the tests runs once with a probe before each of these
statements. Then each mutation meets the tests that passed and came by, the fastest 40 of them, up to the first failure:
OUT/results.jsonl. Run again to resume. Mutations whose tests do not end within five minutes count as noticed.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TESTS, SECONDS = 40, 300

_PAIRS = "Add Sub, Mult Div, BitAnd BitOr, LShift RShift, Lt LtE, Gt GtE, Eq NotEq, Is IsNot, In NotIn, And Or"
OPERATORS = {name: other for pair in _PAIRS.split(", ") for name, other in (pair.split(), reversed(pair.split()))}
OPERATORS |= {"FloorDiv": "Mult", "Mod": "Mult", "Pow": "Mult"}


def _other(operator: ast.AST) -> Any:
    return getattr(ast, OPERATORS[type(operator).__name__])()


def _mutants(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that replace one, each a random fault."""
    fields = dict(ast.iter_fields(node))
    match node:
        case ast.BinOp(op=op) | ast.BoolOp(op=op) | ast.AugAssign(op=op) if type(op).__name__ in OPERATORS:
            yield type(node)(**fields | {"op": _other(op)})
        case ast.Compare(ops=[op, *rest]):
            yield ast.Compare(**fields | {"ops": [_other(op), *rest]})
        case ast.UnaryOp(operand=operand):
            yield operand
        case ast.IfExp(test=test):
            yield ast.IfExp(**fields | {"test": ast.UnaryOp(ast.Not(), test)})
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            yield ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call()):
            yield ast.Pass()
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() as value):
            yield ast.Constant(value + 1)
        case ast.Constant(value=float() as value):
            yield ast.Constant(2 * value or 1.0)


def _sites(node: ast.AST, statement: ast.AST | None = None) -> Iterator[tuple[Any, Any, ast.AST]]:
    """Each node that can be mutated, its statement, and the mutant."""
    if isinstance(node, ast.Import | ast.ImportFrom | ast.Assert | ast.pattern | ast.JoinedStr):
        return  # nodes in an f-string have no place in the file
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    statement = node if isinstance(node, ast.stmt) else statement
    for mutant in _mutants(node):
        yield node, statement, mutant
    if isinstance(node, ast.If | ast.While):
        yield node.test, statement, ast.UnaryOp(ast.Not(), node.test)
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _sites(child, statement)


def mutated(source: bytes, mutation: dict[str, Any]) -> bytes:
    """The source with a mutation's text in its place."""
    ends = [0]
    for line in source.splitlines(keepends=True):
        ends.append(ends[-1] + len(line))
    line, column, last_line, last_column = mutation["place"]
    first, last = ends[line - 1] + column, ends[last_line - 1] + last_column
    return source[:first] + mutation["text"].encode() + source[last:]


def draw(seed: int, count: int, since: str | None) -> list[dict[str, Any]]:
    """Mutations of different lines, in random order; of the files that a revision has, too, if one is given."""
    files = set(_git("ls-files", "pyrobust/*.py"))
    if since:
        files &= set(_git("ls-tree", "-r", "--name-only", since))
    lines: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for file in sorted(files):
        for node, statement, mutant in _sites(ast.parse((ROOT / file).read_bytes())):
            text = ast.unparse(mutant)
            lines[file, node.lineno].append(
                {
                    "file": file,
                    "statement": statement.lineno,
                    "place": [node.lineno, node.col_offset, node.end_lineno, node.end_col_offset],
                    "before": ast.unparse(node),
                    "text": f"({text})" if isinstance(node, ast.expr) else text,
                }
            )
    generator = random.Random(seed)
    return [
        {"number": number, **generator.choice(lines[line])}
        for number, line in enumerate(generator.sample(sorted(lines), count))
    ]


def _git(*arguments: str) -> list[str]:
    return subprocess.check_output(["git", *arguments], cwd=ROOT, text=True).splitlines()


def _read(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _copy_tree(tree: Path) -> None:
    for file in (*_git("ls-files"), *(str(path.relative_to(ROOT)) for path in ROOT.glob("pyrobust/_C*.so"))):
        (tree / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / file, tree / file)


# --- which tests run which statement


PROBE = """
import os as _os
def _probe(number, _seen=set()):
    test = _os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    if (number, test) not in _seen:
        _seen.add((number, test))
        try:
            with open({probes!r}, "a") as file:
                file.write("[%d, %s]\\n" % (number, __import__("json").dumps(test)))
        except OSError:  # in a test without permissions
            pass
"""

PLUGIN = """
import json, os
worker = "PYTEST_XDIST_WORKER" in os.environ  # the controller hears of all reports
done = {{json.loads(line)[0] for line in open({reports!r})}} if os.path.exists({reports!r}) else set()
def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if item.nodeid not in done]
def pytest_runtest_logreport(report):
    if not worker and (report.when == "call" or report.outcome != "passed"):
        with open({reports!r}, "a") as file:
            file.write(json.dumps([report.nodeid, report.outcome, report.duration]) + "\\n")
"""


def _probed(source: bytes, numbers: dict[int, list[int]], probes: Path) -> str:
    """The source with probes before the statements of these lines, of those outside functions in every function."""
    tree = ast.parse(source)
    outside: list[int] = []

    def calls(mutations: list[int]) -> list[ast.stmt]:
        return ast.parse("\n".join(f"_probe({number})" for number in mutations)).body

    def visit(node: ast.AST, inside: bool) -> None:
        for _, value in ast.iter_fields(node):
            for child in list(value) if isinstance(value, list) else [value]:
                if isinstance(child, ast.stmt) and (mutations := numbers.get(child.lineno)):
                    if inside:
                        at = value.index(child)
                        value[at:at] = calls(mutations)
                    else:
                        outside.extend(mutations)
                if isinstance(child, ast.AST):
                    visit(child, inside or isinstance(child, ast.FunctionDef))

    visit(tree, False)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.body[:0] = calls(outside)
    future = [i for i, node in enumerate(tree.body) if ast.unparse(node).startswith("from __future__")]
    head = 1 + max(future, default=0)
    tree.body[head:head] = ast.parse(PROBE.format(probes=str(probes))).body
    return ast.unparse(ast.fix_missing_locations(tree))


def _environment(tree: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": f"{tree}:{tree.parent}", "PYTHONDONTWRITEBYTECODE": "1"}


def probe(out: Path, mutations: list[dict[str, Any]], arguments: list[str]) -> None:
    """Run the tests with probes: OUT/probes.jsonl, and OUT/reports.jsonl with each test's outcome and seconds."""
    tree = out / "probed"
    _copy_tree(tree)
    (out / "reports_plugin.py").write_text(PLUGIN.format(reports=str(out / "reports.jsonl")))
    places: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for mutation in mutations:
        places[mutation["file"]][mutation["statement"]].append(mutation["number"])
    for file, numbers in places.items():
        (tree / file).write_text(_probed((tree / file).read_bytes(), numbers, out / "probes.jsonl"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "reports_plugin", *arguments]
    if subprocess.run(command, cwd=tree / "tests", env=_environment(tree)).returncode not in (0, 1):
        raise SystemExit("pytest did not end well; run again to resume")
    (out / "probed.done").touch()


def tests_of(out: Path) -> dict[int, list[str]]:
    """The tests that pass and come by each mutation, fastest first."""
    seconds: dict[str, float] = {}
    failed = set()
    for test, outcome, duration in _read(out / "reports.jsonl"):
        seconds[test] = duration
        if outcome != "passed":
            failed.add(test)
    reaching = defaultdict(set)
    for number, test in _read(out / "probes.jsonl"):
        if test in seconds and test not in failed:
            reaching[number].add(test)
    return {number: sorted(tests, key=lambda test: (seconds[test], test)) for number, tests in reaching.items()}


# --- does a test fail


def run(tree: Path, tests: list[str]) -> tuple[str, str]:
    """In a fork of this process, which has torch: "passed", "failed" or "timeout", and the first failure."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.setsid()
        os.environ.update(_environment(tree))
        os.chdir(tree / "tests")
        sys.path[:0] = [str(tree), str(tree.parent)]
        sys.dont_write_bytecode = True
        null = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(null, stream)
        code = 3
        try:
            code = _pytest(writer, [test.removeprefix("tests/") for test in tests])
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as first:
        deadline = time.monotonic() + SECONDS
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            if time.monotonic() > deadline:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return "timeout", ""
            time.sleep(0.05)
        return ("failed" if ended[1] else "passed"), first.readline().strip()


def _pytest(writer: int, tests: list[str]) -> int:
    import pytest

    class First:
        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.outcome == "failed":
                os.write(writer, f"{report.nodeid}\n".encode())

        pytest_collectreport = pytest_runtest_logreport

    return int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *tests], plugins=[First()]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--since", metavar="REVISION", help="only files that this revision has, too")
    parser.add_argument("--pytest", default="", help="options of the run with probes: -n 2")
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    listed, results, tree = out / "mutations.jsonl", out / "results.jsonl", out / "tree"
    if not listed.exists():
        drawn = draw(arguments.seed, arguments.count, arguments.since)
        listed.write_text("".join(json.dumps(mutation) + "\n" for mutation in drawn))
    mutations = _read(listed)
    if not (out / "probed.done").exists():
        probe(out, mutations, shlex.split(arguments.pytest))
    import torch  # noqa: F401  # imported before the forks, which then share it

    _copy_tree(tree)
    tests, done = tests_of(out), {result["number"] for result in _read(results)}
    for mutation in mutations:
        if mutation["number"] in done:
            continue
        chosen, file = tests.get(mutation["number"], [])[:TESTS], tree / mutation["file"]
        source, outcome, first = file.read_bytes(), "no tests", ""
        file.write_bytes(mutated(source, mutation))
        for some in (chosen[:5], chosen[5:]):
            if some and outcome in ("no tests", "passed"):
                outcome, first = run(tree, some)
        file.write_bytes(source)
        result = {"number": mutation["number"], "result": outcome, "first": first, "tests": len(chosen)}
        with results.open("a") as lines:
            lines.write(json.dumps(result) + "\n")
        where = f"{mutation['file']}:{mutation['place'][0]}"
        print(outcome, where, mutation["before"], "->", mutation["text"], first, flush=True)


if __name__ == "__main__":
    main()
