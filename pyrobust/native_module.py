"""Load the native module from the package or, in a source folder, from an installed build of the same sources."""

from __future__ import annotations

import hashlib
import re
import sys
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType

# Imports only the standard library: setup.py runs this file for `source_hash`.

_NAME = "pyrobust._C"


def source_hash(root: Path) -> str | None:
    """Return the SHA-256 of the version and native sources in a source folder; None for any other folder.

    >>> source_hash(Path(__file__).parent / "ops") is None
    True
    """
    project, csrc = root / "pyproject.toml", root / "csrc"
    if not (project.is_file() and csrc.is_dir()):
        return None
    version = re.search(r'^version = "(.*)"$', project.read_text(encoding="utf-8"), re.MULTILINE)
    parts = ["" if version is None else version[1]]
    for file in [root / "CMakeLists.txt", *sorted(path for path in csrc.rglob("*") if path.is_file())]:
        parts += [file.relative_to(root).as_posix(), hashlib.sha256(file.read_bytes()).hexdigest()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def load_native_module() -> ModuleType:
    """Import ``pyrobust._C``, or raise ImportError.

    In a clone, the source folder hides the package that pip installed, including its native module. The source folder
    then uses the installed native module, but only if it was built from the same native sources: a module built from
    other sources could disagree with the Python code.
    """
    try:
        return import_module(_NAME)
    except ModuleNotFoundError as error:
        if error.name != _NAME:
            raise
    root = Path(__file__).resolve().parent.parent
    expected = source_hash(root)
    if expected is None:
        raise ImportError(f"{root / 'pyrobust'} has none", name=_NAME)
    for entry in sys.path:
        folder = Path(entry).resolve() / "pyrobust"
        spec = None if folder.parent == root else PathFinder.find_spec(_NAME, [str(folder)])
        if spec is None or spec.loader is None:
            continue
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        if module.build_info().get("sources") != expected:
            raise ImportError(
                f"the source folder {root} hides the installed package, whose native module, in {folder}, was built "
                "from other sources: leave the folder, or install from it",
                name=_NAME,
            )
        sys.modules[_NAME] = module
        # as an import of a submodule does; mypy knows no attributes of a module in this table
        sys.modules["pyrobust"]._C = module  # type: ignore[attr-defined]  # not a name of that module
        return module
    raise ImportError(f"the source folder {root} has none, and none is installed", name=_NAME)
