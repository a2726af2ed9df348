"""The Python blocks of the documents that define the terms."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

Names = dict[str, Any]


@pytest.fixture(scope="session")
def run_blocks() -> Callable[..., Names]:
    """Run the Python blocks of one document with names for what they leave undefined; return what they define."""
    folder = os.environ.get("PYROBUST_DATA")
    if not folder:
        pytest.skip("PYROBUST_DATA is not set")

    def run(number: str, **undefined: Any) -> Names:
        texts = sorted((Path(folder).parent / "documents").glob(f"{number}_*.txt"))
        if not texts:
            pytest.skip(f"no document {number} beside PYROBUST_DATA")
        blocks = re.findall(r"^```python\n(.*?)^```", texts[0].read_text(), re.MULTILINE | re.DOTALL)
        assert blocks
        names: Names = {"torch": torch, **undefined}
        exec("\n".join(blocks), names)
        return names

    return run
