"""A digits classifier that appends a line for each forward pass to a file, so that work done twice can be counted."""

from __future__ import annotations

import os

from torch import Tensor, nn

from pyrobust.zoo import load_model

#: Environment variable with the path of the file.
LOG = "PYROBUST_TEST_PASSES"
#: Passes of fewer rows are those that identify and probe the model.
LEAST_ROWS = 100


class Counted(nn.Module):
    """The bundled smoothed classifier; workers import this class."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = load_model("zoo:digits-smooth-0.25")

    def forward(self, x: Tensor) -> Tensor:
        path = os.environ.get(LOG)
        if path and len(x) >= LEAST_ROWS:
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(descriptor, f"{os.getpid()} {len(x)}\n".encode())
            os.close(descriptor)
        logits: Tensor = self.inner(x)
        return logits


def load() -> Counted:
    return Counted()
