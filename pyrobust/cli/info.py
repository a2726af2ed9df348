"""``pyrobust info``."""

from __future__ import annotations

import platform
from importlib import util

import typer

from pyrobust.cli.shell import reports_errors

#: Extras and their modules.
_EXTRAS = {
    "plot": "matplotlib",
    "data": "PIL",
    "pandas": "pandas",
    "parquet": "pyarrow",
    "ray": "ray",
    "report": "jinja2",
    "safetensors": "safetensors",
    "torchmetrics": "torchmetrics",
    "threats": "inspect_ai",
}


@reports_errors
def info() -> None:
    """Show versions, the native build and devices."""
    for name, value in _facts():
        typer.echo(f"{name:<22}{value}")


def _facts() -> list[tuple[str, str]]:
    import numpy as np
    import torch

    import pyrobust
    from pyrobust.ops import build_info

    facts = [("pyrobust", pyrobust.__version__), ("python", platform.python_version())]
    facts += [("torch", str(torch.__version__)), ("numpy", np.__version__)]
    facts += [(name.replace("_", " "), _text(value)) for name, value in build_info().items()]
    if torch.cuda.is_available():
        devices = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        facts += [(f"cuda:{index}", name) for index, name in enumerate(devices)]
    else:
        facts.append(("GPU", "none usable by torch"))
    for extra, module in _EXTRAS.items():
        installed = util.find_spec(module) is not None
        facts.append((f"extra {extra}", "installed" if installed else f'missing: pip install "pyrobust[{extra}]"'))
    return facts


def _text(value: str | int | list[str] | None) -> str:
    if value is None:
        return "none"
    return ", ".join(value) if isinstance(value, list) else str(value)
