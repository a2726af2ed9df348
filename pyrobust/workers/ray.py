"""Workers that are actors of a Ray cluster, one for each device."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import signal
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator
from typing import Any

from pyrobust.errors import InputError, MissingExtraError, WorkerError
from pyrobust.workers.fleet import Event, Factory, Failed, Fleet, Lost, Place, Reply, Started
from pyrobust.workers.payload import dump, load, portable_error

logger = logging.getLogger(__name__)

# Seconds between queries for machines that have joined or left the cluster.
_LOOK_S = 2.0
# Seconds without any worker before the log mentions it.
_PATIENCE_S = 30.0
# Niceness of Ray's workers. With Ray's default, 15, their imports take minutes beside busy processes.
_NICENESS = "RAY_worker_niceness"


class RayActors(Fleet):
    """Workers in a Ray cluster: one actor for each GPU, or for every ``threads`` CPUs if there are no GPUs.

    Machines may join and leave the cluster. There are always as many actors as fit on its machines. The factory is put
    into Ray's object store once. If Ray does not run in this process yet, a cluster is started on this machine, or a
    connection to a cluster is opened. ``close`` ends this cluster or connection.

    Args:
        factory: makes the object of a worker.
        address: "ray" or "ray://HOST:PORT". "ray" stands for the cluster that the environment variable RAY_ADDRESS
            names. If this variable is not set, "ray" stands for a new cluster on this machine. "ray://HOST:PORT" is the
            address of a cluster's Ray Client server, whose port is 10001 by default.
        device: "cpu" or "cuda". By default, it is "cuda" if the cluster has GPUs.
        threads: number of CPUs of each actor. The default is 1 for actors without a GPU. For actors with a GPU, the
            default is the cluster's number of CPUs divided by the cluster's number of GPUs.
        max_actors: largest number of actors. By default, only the CPUs and GPUs of the cluster limit their number.

    Raises:
        MissingExtraError: Ray is not installed.
        InputError: the factory cannot be pickled.
        WorkerError: no cluster answers at the address.
    """

    def __init__(
        self,
        factory: Factory,
        address: str = "ray",
        *,
        device: str | None = None,
        threads: int | None = None,
        max_actors: int | None = None,
    ) -> None:
        self._ray = ray = _import_ray()
        self._stops = _connect(ray, address)
        # Ray reports lost workers on standard output, among a command's results, and has no option to turn this off.
        self._prints = getattr(ray._private.worker, "print_to_stdstream", None) if self._stops else None
        if self._prints is not None:
            ray._private.worker.print_to_stdstream = _log
        try:
            from ray import cloudpickle

            resources = ray.cluster_resources()
            gpus = resources.get("GPU", 0) if device is None else device.startswith("cuda")
            self._device = "cuda" if gpus else "cpu"
            share = int(resources.get("CPU", 1) // resources["GPU"]) if resources.get("GPU") and gpus else 1
            self._threads = threads or max(1, share)
            self._max_actors = max_actors
            try:
                payload = dump(factory, cloudpickle.Pickler)
            except Exception as error:
                raise InputError(
                    "executor",
                    "a model, data and functions that can be sent to other machines",
                    f"{type(error).__name__}: {error}",
                ) from error
            self._payload = ray.put(payload)
            self._actors: dict[int, Any] = {}
            self._places: dict[int, Place] = {}  # places of started actors
            self._nodes: dict[int, str] = {}
            self._calls: dict[Any, tuple[int, str]] = {}  # outstanding references: worker, method
            self._events: deque[Event] = deque()
            self._next = 0
            self._looked = -math.inf
            self._since = time.monotonic()
            self._actor_class = ray.remote(_Actor)
            self._fill()
        except BaseException:
            self.close()
            raise

    def _fit(self) -> int:
        """Return the number of actors that fit on the living machines."""
        number = 0
        for node in self._ray.nodes():
            if node["Alive"]:
                has = node["Resources"]
                by_cpu = int(has.get("CPU", 0) // self._threads)
                number += min(by_cpu, int(has.get("GPU", 0))) if self._device == "cuda" else by_cpu
        return number if self._max_actors is None else min(number, self._max_actors)

    def _fill(self) -> None:
        """Start actors on machines that have joined; look for such machines only every few seconds."""
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return
        self._looked = now
        for _ in range(self._fit() - len(self._actors)):
            self._start()
        if self._places:
            self._since, self.waiting_for = now, ""
        elif now - self._since > _PATIENCE_S and not self.waiting_for:
            total, free = self._ray.cluster_resources(), self._ray.available_resources()
            self.waiting_for = (
                f"no worker has started for {_PATIENCE_S:.0f} s: each needs {self._threads} CPUs"
                f"{' and a GPU' if self._device == 'cuda' else ''}, the cluster has {total.get('CPU', 0):.0f} CPUs and "
                f"{total.get('GPU', 0):.0f} GPUs, of which {free.get('CPU', 0):.0f} and {free.get('GPU', 0):.0f} are "
                f"free; on busy machines workers start slowly unless {_NICENESS}=0 was set at ray start"
            )
            logger.warning("%s", self.waiting_for)

    def _start(self) -> None:
        number, self._next = self._next, self._next + 1
        options = {
            "num_cpus": self._threads,
            "num_gpus": 1 if self._device == "cuda" else 0,
            # Ray would set it to the actor's CPUs, and torch would follow it instead of the threads that the run
            # records.
            "runtime_env": {"env_vars": {"OMP_NUM_THREADS": str(self._threads)}},
            "max_restarts": 0,
        }
        actor = self._actor_class.options(**options).remote(number, self._device, self._threads, _import_paths())
        self._actors[number] = actor
        self._calls[actor.start.remote(self._payload)] = number, "start"

    def __len__(self) -> int:
        return len(self._actors)

    def call(self, worker: int, method: str, *arguments: Any) -> None:
        """Call a method of the actor's object, unless the actor is lost."""
        if worker in self._actors:
            self._calls[self._actors[worker].call.remote(method, arguments)] = worker, method

    def wait(self, seconds: float) -> list[Event]:
        """Fetch outcomes; replace actors that have died, and start further actors where machines have joined."""
        self._fill()
        if self._calls:
            waited = 0.0 if self._events else min(seconds, _LOOK_S)
            ready, _ = self._ray.wait(list(self._calls), num_returns=1, timeout=waited)
            if ready:  # fetch all other finished calls, too
                ready, _ = self._ray.wait(list(self._calls), num_returns=len(self._calls), timeout=0)
            for reference in ready:
                self._receive(reference)
        else:
            time.sleep(min(seconds, _LOOK_S))
        events = list(self._events)
        self._events.clear()
        return events

    def _receive(self, reference: Any) -> None:
        if reference not in self._calls:  # its actor was already found lost
            return
        worker, method = self._calls.pop(reference)
        try:
            kind, value = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            self._lose(worker, error)
            return
        if kind == "error":
            self._events.append(Failed(worker, value))
        elif method == "start":
            self._nodes[worker], host = value
            self._places[worker] = Place(self._device, self._threads, f"worker {worker} on {host}")
            self._events.append(Started(worker, self._places[worker]))
        else:
            self._events.append(Reply(worker, value))

    def _lose(self, worker: int, error: Exception) -> None:
        name = self._places[worker].name if worker in self._places else f"worker {worker}"
        alive = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
        node = self._nodes.get(worker)
        gone = node is not None and node not in alive
        with contextlib.suppress(Exception):  # the actor may live if only its answer was lost
            self._ray.kill(self._actors[worker])
        self._forget(worker)
        cause = str(error).strip().splitlines() or [type(error).__name__]
        line = cause[0]
        if getattr(error, "actor_init_failed", False):
            # The text begins with the address and ends with the reason, such as a module that the machine lacks.
            address = re.search(r"\bip=([\w.:]+)", line)
            name, line = f"{name} on {address[1]}" if address else name, cause[-1]
        reason = f"{name} was lost{' with its machine' if gone else ''}: {line}"
        self._events.append(Lost(worker, reason, blameless=gone))
        self._looked = -math.inf

    def _forget(self, worker: int) -> Any:
        self._calls = {reference: of for reference, of in self._calls.items() if of[0] != worker}
        self._places.pop(worker, None)
        self._nodes.pop(worker, None)
        return self._actors.pop(worker)

    def replace(self, worker: int) -> None:
        """Kill an actor, and start another."""
        self._ray.kill(self._forget(worker))
        self._start()

    def close(self) -> None:
        """Kill all actors, and end the cluster or the connection that was started here."""
        for worker in list(getattr(self, "_actors", ())):
            with contextlib.suppress(Exception):  # the cluster may be gone
                self._ray.kill(self._forget(worker))
        if self._stops:
            self._ray.shutdown()
        if self._prints is not None:
            self._ray._private.worker.print_to_stdstream = self._prints


class _Actor:
    """Holds a worker's object; an exception in one of its methods is returned as a value."""

    def __init__(self, number: int, device: str, threads: int, paths: list[str]) -> None:
        import torch

        # The user's modules are where the driver found them, on this machine or a shared file system.
        sys.path.extend(path for path in paths if path not in sys.path)
        if paths and os.path.isdir(paths[0]):
            os.chdir(paths[0])
        torch.set_num_threads(threads)
        self._place = Place(device, threads, f"worker {number}")
        self._held: Any = None

    def start(self, payload: bytes) -> tuple[str, Any]:
        import socket

        import ray

        host = socket.gethostname()
        self._place = Place(self._place.device, self._place.threads, f"{self._place.name} on {host}")
        try:
            self._held = load(payload, self._place.name)(self._place)
        except Exception as error:
            return "error", portable_error(error, self._place.name)
        return "value", (ray.get_runtime_context().get_node_id(), host)

    def call(self, method: str, arguments: tuple[Any, ...]) -> tuple[str, Any]:
        try:
            return "value", getattr(self._held, method)(*arguments)
        except Exception as error:
            return "error", portable_error(error, self._place.name)


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("executor: ray is not installed; pip install 'pyrobust[ray]'") from error
    return ray


def _import_paths() -> list[str]:
    """Return the working folder and the other folders from which this process imports."""
    return [os.getcwd(), *(os.path.abspath(path) for path in sys.path if path)]


def _connect(ray: Any, address: str) -> bool:
    """Connect to a cluster; return whether this process has to disconnect."""
    if ray.is_initialized():
        return False
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == "ray":
        # Without an address, Ray uses that of the environment variable, or else starts a cluster here.
        address = os.environ.get("RAY_ADDRESS", "local")
    if address == "local":
        options["include_dashboard"] = False
    before = signal.getsignal(signal.SIGTERM)
    try:
        with warnings.catch_warnings(), _as_busy_as_others() if address == "local" else contextlib.nullcontext():
            warnings.simplefilter("ignore")  # about a server that does not answer; the error below says so
            ray.init(address, **options)
    except Exception as error:
        cause = str(error).strip().splitlines()
        if "ray[client]" in str(error):
            raise MissingExtraError("executor: ray[client] is not installed; pip install 'pyrobust[ray]'") from error
        raise WorkerError(
            f"executor: expected a Ray cluster at {address}, got {cause[0] if cause else type(error).__name__}; start "
            "one with `ray start --head`, or check host, port and versions"
        ) from error
    # Ray's own handler would first print a stack trace.
    if callable(before) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)
    return True


@contextlib.contextmanager
def _as_busy_as_others() -> Iterator[None]:
    """Let Ray start its workers at normal process priority, unless the environment sets another priority."""
    if _NICENESS in os.environ:
        yield
        return
    os.environ[_NICENESS] = "0"
    try:
        yield
    finally:
        del os.environ[_NICENESS]


def _log(data: dict[str, Any], **_: Any) -> None:
    """Log the lines that Ray would otherwise print."""
    logger.debug("%s", data.get("lines"))
