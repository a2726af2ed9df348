"""A Slurm of one's own on this machine: one node, its daemons in a temporary folder, gone when the test ends."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_DAEMONS = ("munged", "slurmctld", "slurmd")
_CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=5
CryptoType=crypto/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
SchedulerParameters=sched_interval=1,bf_interval=1
SlurmdParameters=config_overrides
KillWait=5
MinJobAge=3600
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} Gres=gpu:{cpus} State=UNKNOWN
PartitionName=test Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def unavailable() -> str:
    """Why a Slurm cannot be started here; "" if it can."""
    if os.geteuid() != 0:
        return "a private Slurm needs root"
    missing = [name for name in (*_DAEMONS, "sbatch", "munge") if _program(name) is None]
    return f"not installed: {', '.join(missing)} (Debian: slurm-wlm and munge)" if missing else ""


def _program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


class Slurm:
    """The running Slurm; commands are run with its configuration."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)

    def run(self, *command: str, folder: Path | None = None) -> str:
        """Run a command of Slurm, and return its output."""
        done = subprocess.run(command, env=self.environment, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout.strip()

    def states(self, job: str) -> dict[str, str]:
        """The state of each task of an array by its number, or of a job under ""."""
        lines = self.run("squeue", "--array", "--noheader", "--states=all", f"--jobs={job}", "--format=%i %T")
        return {name.partition("_")[2]: state for name, state in (line.split() for line in lines.splitlines())}

    def wait(self, job: str, seconds: float = 900) -> dict[str, str]:
        """Wait until all tasks of a job have ended, and return their states."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            states = self.states(job)
            if states and not set(states.values()) & {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING"}:
                return states
            time.sleep(0.2)
        raise AssertionError(f"job {job} has not ended: {self.states(job)}")


@contextmanager
def private_slurm(folder: Path, cpus: int) -> Iterator[Slurm]:
    """Start munged, slurmctld and slurmd with all their files in an empty folder, and end them."""
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(secrets.token_bytes(128))
    (folder / "munge.key").chmod(0o400)
    ports = dict(zip(("controller", "node"), _free_ports(2), strict=True))
    host = socket.gethostname().partition(".")[0]
    configuration = folder / "slurm.conf"
    configuration.write_text(_CONFIGURATION.format(folder=folder, host=host, cpus=cpus, **ports))
    # Jobs may ask for GPUs, and get the numbers of some.
    for number in range(cpus):
        (folder / f"gpu{number}").touch()
    (folder / "gres.conf").write_text(f"NodeName={host} Name=gpu File={folder}/gpu[0-{cpus - 1}]\n")
    # Variables of a surrounding job would be taken for those of the tests' jobs.
    outer = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
    slurm = Slurm({**outer, "SLURM_CONF": str(configuration)})
    commands = [
        [
            *(_program("munged") or "", "--force", "--foreground", f"--key-file={folder}/munge.key"),
            *(f"--socket={folder}/munge.sock", f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log"),
            f"--seed-file={folder}/munged.seed",
        ],
        [_program("slurmctld") or "", "-D", "-c", "-f", str(configuration)],
        [_program("slurmd") or "", "-D", "-f", str(configuration), "-N", host],
    ]
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            with open(folder / f"{Path(command[0]).name}.out", "wb") as output:
                daemons.append(subprocess.Popen(command, env=slurm.environment, stdout=output, stderr=output))
            if len(daemons) == 1:
                _wait_for(folder, lambda: (folder / "munge.sock").exists())
        _wait_for(folder, lambda: _is_idle(slurm))
        yield slurm
    finally:
        for state in ("running", "pending"):
            subprocess.run(["scancel", f"--state={state}"], env=slurm.environment, capture_output=True)
        deadline = time.monotonic() + 30  # tasks outlive the daemons
        while (
            time.monotonic() < deadline
            and subprocess.run(["squeue", "--noheader"], env=slurm.environment, capture_output=True).stdout
        ):
            time.sleep(0.2)
        for daemon in reversed(daemons):
            daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def _is_idle(slurm: Slurm) -> bool:
    done = subprocess.run(
        ["sinfo", "--noheader", "--format=%T"], env=slurm.environment, capture_output=True, text=True, timeout=30
    )
    return done.stdout.split() == ["idle"]


def _wait_for(folder: Path, ready: object) -> None:
    assert callable(ready)
    deadline = time.monotonic() + 60
    while not ready():
        if time.monotonic() > deadline:
            files = [file for file in folder.iterdir() if file.suffix in (".log", ".out")]
            logs = [file.read_text(errors="replace")[-2000:] for file in files]
            raise AssertionError("\n".join(["Slurm has not started:", *logs]))
        time.sleep(0.1)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
