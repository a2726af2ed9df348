"""An object of workers that answers calls, and ends its worker in several ways."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from pyrobust.workers.fleet import Place


class Echo:
    def __init__(self, place: Place, lock: Any = None) -> None:
        self.place = place

    def echo(self, value: Any) -> Any:
        return value

    def die_with_a_child(self, seconds: int) -> None:
        if os.fork():
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(seconds)
        os._exit(0)

    def close_pipe(self) -> None:
        os.closerange(3, 256)

    def fail(self) -> None:
        raise LookupError("no such thing")
