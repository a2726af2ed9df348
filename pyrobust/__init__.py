"""Certified and empirical robustness of PyTorch classifiers, with native kernels.

The names of ``pyrobust.__all__`` are the public API; ``pyrobust.metrics`` has the metrics, ``pyrobust.ops`` the kernels
and ``pyrobust.compat`` drop-in replacements for other libraries' APIs.
"""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from pathlib import Path
from typing import Final

ABSTAIN: Final = -1
"""The prediction of an abstention, where no class could be certified: -1."""

# Type checkers and editors read the same list.
_MODULES = {
    alias.name: statement.module
    for statement in ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
    if isinstance(statement, ast.ImportFrom) and statement.module != "typing"
    for alias in statement.names
}

__all__ = sorted(["ABSTAIN", "__version__", *_MODULES])


def __getattr__(name: str) -> object:
    """Import a public name, or a subpackage, when it is first used."""
    value: object
    if name in _MODULES:
        value = getattr(import_module(_MODULES[name]), name)
    elif name == "__version__":
        value = import_module("importlib.metadata").version("pyrobust")
    elif name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    else:
        try:
            value = import_module(f"{__name__}.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"{__name__}.{name}":
                raise
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


# Registers torch.ops.pyrobust, and prepares cuBLAS before its first use. The command line answers --help, --version and
# completion without torch.
if "pyrobust_command" not in sys.modules and sys.argv[:1] != ["-m"]:
    import_module(f"{__name__}.ops")
    import_module(f"{__name__}.machine")
