"""Where work is computed: in this process, in processes on devices of this machine, or in a Ray cluster."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from pyrobust.checks import count, shown
from pyrobust.errors import InputError, InputTypeError
from pyrobust.machine import existing_device
from pyrobust.workers.fleet import MOST_WORKERS, Factory, Fleet, Place, ThisProcess


@dataclass(frozen=True)
class RayCluster:
    """A Ray cluster, as an executor of sweeps.

    Args:
        address: "ray", "ray://HOST" or "ray://HOST:PORT". "ray" stands for the cluster that the environment variable
            RAY_ADDRESS names. If this variable is not set, "ray" stands for a new cluster on this machine. The other
            two forms are addresses of a cluster's Ray Client server. The default port is 10001.
        device: "cpu" or "cuda". By default, a resumed run keeps its device. A new run uses "cuda" if the cluster has
            GPUs.
        workers: largest number of workers. By default, only the CPUs and GPUs of the cluster limit their number.

    Raises:
        InputError: the address or the device is invalid, or the number of workers is not from 1 to 65,536. If this
            number is not an integer, InputTypeError is raised.

    >>> RayCluster("ray://head").address
    'ray://head:10001'
    """

    address: str = "ray"
    device: str | None = None
    workers: int | None = None

    def __post_init__(self) -> None:
        match = re.fullmatch(r"ray(?:://([^\s/:]+|\[[0-9a-fA-F:]+\])(?::(\d{1,5}))?/?)?", str(self.address))
        if match is None:
            raise InputError("executor", "ray or ray://HOST:PORT", shown(self.address))
        if match[1]:
            object.__setattr__(self, "address", f"ray://{match[1]}:{match[2] or 10001}")
        if self.device not in (None, "cpu", "cuda"):
            raise InputError("device", "cpu or cuda for a Ray cluster", shown(self.device))
        if self.workers is not None:
            count("workers", self.workers, MOST_WORKERS)


#: None for this process; "ray", "ray://HOST" or a `RayCluster`; or devices of this machine, one worker on each: a
#: sequence such as ["cuda:0", "cuda:1"], or "all", "0,1,3" or "cpu:4".
Executor: TypeAlias = str | RayCluster | Sequence[str | torch.device] | None


def check_executor(executor: Executor) -> RayCluster | list[str] | None:
    """Return the cluster or the devices that ``executor=`` names; None for this process.

    >>> check_executor("cpu:2"), check_executor("ray").address
    (['cpu', 'cpu'], 'ray')
    >>> check_executor("gpu")
    Traceback (most recent call last):
    pyrobust.errors.InputError: executor: expected ray, ray://HOST, all, GPUs such as 0,1,3, or cpu:N, got 'gpu'
    """
    if executor is None or isinstance(executor, RayCluster):
        return executor
    if isinstance(executor, str):
        return RayCluster(executor) if executor.startswith("ray") else _devices(executor)
    if not isinstance(executor, Sequence) or isinstance(executor, bytes):
        raise InputTypeError("executor", "a string, a RayCluster or a list of devices", shown(executor))
    if not executor:
        raise InputError("executor", "at least one device", "an empty list")
    return [str(existing_device(device)) for device in executor]


def _devices(text: str) -> list[str]:
    """Return the devices that a command-line argument names."""
    if text == "all":
        gpus = torch.cuda.device_count()
        if not gpus:
            raise InputError("executor", "GPUs for all", "a machine without", "use cpu:N for N workers")
        return [f"cuda:{number}" for number in range(gpus)]
    match = re.fullmatch(r"cpu(?::(\d{1,5}))?", text)
    if match:
        return ["cpu"] * count("executor", int(match[1] or 1), MOST_WORKERS)
    if re.fullmatch(r"\d{1,5}(,\d{1,5})*", text):
        return [str(existing_device(f"cuda:{number}")) for number in text.split(",")]
    raise InputError("executor", "ray, ray://HOST, all, GPUs such as 0,1,3, or cpu:N", shown(text))


def open_fleet(executor: Executor, factory: Factory, threads: int | None, stored: Mapping[str, Any]) -> Fleet:
    """Start workers with ``threads`` CPU threads each; the default is in ``stored``, the settings of a resumed run.

    If neither ``threads`` nor ``stored`` gives a number, worker processes share the CPUs of this machine equally, and
    ``RayActors`` uses its own default. If ``executor`` is None, the worker is this process, and its number of threads
    is left to the factory.
    """
    where = check_executor(executor)
    if where is None:
        return ThisProcess(factory)
    threads = threads or stored.get("threads")
    if isinstance(where, RayCluster):
        from pyrobust.workers.ray import RayActors

        device = where.device or stored.get("device")
        return RayActors(factory, where.address, device=device, threads=threads, max_actors=where.workers)
    from pyrobust.workers.processes import Processes

    threads = threads or max(1, len(os.sched_getaffinity(0)) // len(where))
    return Processes(factory, [Place(device, threads, f"worker {i} on {device}") for i, device in enumerate(where)])
