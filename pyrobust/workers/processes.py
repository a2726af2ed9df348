"""Workers that are processes of this machine, one for each device."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import Any

from pyrobust.errors import InputError
from pyrobust.workers.fleet import Event, Factory, Failed, Fleet, Lost, Place, Reply, Started
from pyrobust.workers.payload import dump, load, portable_error

# CUDA and threads do not survive a fork, and multiprocessing's spawn would run a script without a main guard again.
# With -c, Python would import from the working folder first, for example a file random.py there.
_PROGRAM = "import sys; sys.path[:] = {paths}; from pyrobust.workers.processes import serve; serve({descriptor})"
# Seconds between telling a worker to stop and killing it.
_GRACE_S = 5.0


class Processes(Fleet):
    """Workers in processes of this machine.

    Args:
        factory: makes the object of a worker. The factory is pickled and sent to each worker. It is pickled by
            cloudpickle if this is installed, and otherwise by pickle, which accepts only classes and functions at the
            top level of modules.
        places: device, threads and name of each worker.

    Raises:
        InputError: the factory cannot be pickled.

    >>> with Processes(str, [Place("cpu", 1, "first")]) as fleet:
    ...     fleet.wait(60)
    ...     fleet.call(0, "count", "cpu")
    ...     fleet.wait(60)
    [Started(worker=0, place=Place(device='cpu', threads=1, name='first'))]
    [Reply(worker=0, value=1)]
    """

    def __init__(self, factory: Factory, places: Sequence[Place]) -> None:
        try:
            self._payload = dump(factory, _pickler())
        except Exception as error:
            raise InputError(
                "executor",
                "a model, data and functions that can be sent to other processes",
                f"{type(error).__name__}: {error}",
                "define them in a module",
            ) from error
        self._processes: dict[int, tuple[subprocess.Popen[bytes], Connection[Any, Any], Place]] = {}
        self._started: set[int] = set()
        self._next = 0
        self._events: deque[Event] = deque()
        try:
            for place in places:
                self._start(place)
        except BaseException:
            self.close()
            raise

    def _start(self, place: Place) -> None:
        number, self._next = self._next, self._next + 1
        ours, theirs = Pipe()
        paths = [path or os.getcwd() for path in sys.path if isinstance(path, str)]
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM.format(paths=paths, descriptor=theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self._processes[number] = process, ours, place
        self._send(number, dump(place, pickle.Pickler))
        self._send(number, self._payload)

    def _send(self, worker: int, content: bytes) -> None:
        # A process that has died meanwhile is found by ``wait``.
        with contextlib.suppress(OSError):
            self._processes[worker][1].send_bytes(content)

    def __len__(self) -> int:
        return len(self._processes)

    def call(self, worker: int, method: str, *arguments: Any) -> None:
        """Send a call to the process, unless the process is lost."""
        if worker in self._processes:
            self._send(worker, dump((method, arguments), pickle.Pickler))

    def wait(self, seconds: float) -> list[Event]:
        """Receive what processes have sent; replace dead processes."""
        connections = {connection: number for number, (_, connection, _) in self._processes.items()}
        for ready in wait(list(connections), 0 if self._events else seconds):
            # ``wait`` is typed to return file descriptors and sockets as well.
            number = connections[ready]  # type: ignore[index]
            process, connection, place = self._processes[number]
            try:
                kind, value = pickle.loads(connection.recv_bytes())
            except (EOFError, OSError):
                self._lose(number)
                continue
            if kind == "error":
                self._events.append(Failed(number, value))
            elif number in self._started:
                self._events.append(Reply(number, value))
            else:
                self._started.add(number)
                self._events.append(Started(number, place))
        for number, (process, connection, _) in list(self._processes.items()):
            # Processes that the model has started may hold the pipe of a dead worker open.
            if process.poll() is not None and not connection.poll():
                self._lose(number)
        events = list(self._events)
        self._events.clear()
        return events

    def _lose(self, worker: int) -> None:
        """Report a worker that has died, and start another one on its device."""
        place = self._processes[worker][2]
        process = self._forget(worker)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
        process.kill()  # has an effect only if the process lives and has closed its pipe
        self._events.append(Lost(worker, _death(process, place)))
        self._start(place)

    def _forget(self, worker: int) -> subprocess.Popen[bytes]:
        process, connection, _ = self._processes.pop(worker)
        connection.close()
        return process

    def replace(self, worker: int) -> None:
        """Stop a process, and start another on its device."""
        place = self._processes[worker][2]
        _stop([self._forget(worker)])
        self._start(place)

    def close(self) -> None:
        """Kill all processes."""
        _stop([self._forget(worker) for worker in list(self._processes)])


def _pickler() -> type[pickle.Pickler]:
    try:
        import cloudpickle
    except ImportError:
        return pickle.Pickler
    pickler: type[pickle.Pickler] = cloudpickle.Pickler
    return pickler


def _stop(processes: list[subprocess.Popen[bytes]]) -> None:
    """Stop processes; kill those that are still running after ``_GRACE_S`` seconds."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + _GRACE_S
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _death(process: subprocess.Popen[bytes], place: Place) -> str:
    """Describe how a process ended."""
    code = process.returncode
    if code is None or code >= 0:
        return f"{place.name} ended with status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = ", which the system sends when memory runs out" if name == "SIGKILL" else ""
    return f"{place.name} was killed by {name}{hint}"


def serve(descriptor: int) -> None:
    """Run as a worker: make the object that the first messages describe, and answer calls until the pipe is closed."""
    # Ctrl-C goes to the whole process group; the driver decides about its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection: Connection[Any, Any] = Connection(descriptor)
    messages: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_receive, args=(connection, messages), daemon=True).start()
    place: Place = pickle.loads(messages.get())
    if place.device is not None and place.device.startswith("cuda"):
        import torch

        torch.cuda.set_device(place.device)
    held: Any = None
    while True:
        message = messages.get()
        try:
            if held is None:
                held, value = _load(message, place.name)(place), None
            else:
                method, arguments = pickle.loads(message)
                value = getattr(held, method)(*arguments)
            answer = dump(("value", value), pickle.Pickler)
        except Exception as error:
            answer = dump(("error", portable_error(error, place.name)), pickle.Pickler)
        try:
            connection.send_bytes(answer)
        except OSError:  # the driver is gone, or a model has closed the pipe
            os._exit(1)


def _receive(connection: Connection[Any, Any], messages: SimpleQueue[bytes]) -> None:
    """Queue messages at once, so that driver and worker never deadlock; exit when the driver ends, even in a chunk."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            messages.put(connection.recv_bytes())
    os._exit(1)


def _load(payload: bytes, where: str) -> Factory:
    sys.path.insert(0, os.getcwd())  # as in the driver, where the user's modules were imported
    try:
        factory: Factory = load(payload, where)
    finally:
        del sys.path[0]
    return factory
