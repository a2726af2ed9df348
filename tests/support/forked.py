"""A child of the test process in which the package is imported anew: torch, which takes seconds to import, stays."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable
from typing import Any


def forget(package: str) -> None:
    """Take a package out of the table of imported modules."""
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        del sys.modules[name]


def in_fork(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of a module in a child of this process; return its result or raise its error."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(function, arguments)
