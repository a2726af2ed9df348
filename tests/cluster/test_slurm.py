"""The job array of docs/how-to/cluster.md on a Slurm of one's own: killed, submitted again, merged.

Its node and daemons have all their files in a temporary folder, and end with the tests.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from pyrobust.errors import PyrobustError
from pyrobust.evaluation import Run, format_log, merge_runs

pytestmark = pytest.mark.full

PAGE = Path(__file__).parents[2] / "docs/how-to/cluster.md"
# Of the eight tasks with four processors each, two run side by side.
PROCESSORS = 8
# What Slurm says of a task that scancel, or someone else, has killed.
KILLED = ("CANCELLED", "FAILED")
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


def until(condition: Callable[[], object], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


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

    def wait(self, job: str) -> dict[str, str]:
        """Wait until all tasks of a job have ended, and return their states."""
        unfinished = {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING"}
        until(lambda: (states := set(self.states(job).values())) and not states & unfinished, 900)
        return self.states(job)


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """A running munged, slurmctld and slurmd."""
    if reason := unavailable():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(secrets.token_bytes(128))
    (folder / "munge.key").chmod(0o400)
    ports = dict(zip(("controller", "node"), free_ports(2), strict=True))
    host = socket.gethostname().partition(".")[0]
    configuration = folder / "slurm.conf"
    configuration.write_text(_CONFIGURATION.format(folder=folder, host=host, cpus=PROCESSORS, **ports))
    # Jobs may ask for GPUs, and get the numbers of some.
    for number in range(PROCESSORS):
        (folder / f"gpu{number}").touch()
    (folder / "gres.conf").write_text(f"NodeName={host} Name=gpu File={folder}/gpu[0-{PROCESSORS - 1}]\n")
    # Variables of a surrounding job would be taken for those of the tests' jobs.
    outer = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
    slurm = Slurm({**outer, "SLURM_CONF": str(configuration)})

    def listing(*command: str) -> list[str]:
        done = subprocess.run([*command, "--noheader"], env=slurm.environment, capture_output=True, text=True)
        return done.stdout.split()

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
                until((folder / "munge.sock").exists, 60)
        until(lambda: listing("sinfo", "--format=%T") == ["idle"], 60)  # fails until the controller answers
        yield slurm
    finally:
        for state in ("running", "pending"):
            subprocess.run(["scancel", f"--state={state}"], env=slurm.environment, capture_output=True)
        deadline = time.monotonic() + 30  # tasks outlive the daemons
        while time.monotonic() < deadline and listing("squeue"):
            time.sleep(0.2)
        for daemon in reversed(daemons):
            daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


@pytest.fixture
def blocks() -> dict[str, str]:
    """The page's shell commands, by their first word that matters here."""
    scripts = re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.S)
    names = {"file": "#!/bin/bash", "submit": "job=$(", "again": "again=$("}
    return {name: next(block for block in scripts if block.startswith(begin)) for name, begin in names.items()}


@pytest.fixture
def folder(tmp_path: Path, blocks: dict[str, str]) -> Path:
    """A folder with the page's file and an environment to activate."""
    (tmp_path / "certify.sh").write_text(blocks["file"])
    (tmp_path / "venv/bin").mkdir(parents=True)
    (tmp_path / "venv/bin/activate").write_text(f'export PATH="{Path(sys.executable).parent}:$PATH"\n')
    return tmp_path


def shell(slurm: Slurm, folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", f". venv/bin/activate\n{command}"],
        cwd=folder,
        env=slurm.environment | {"OMP_NUM_THREADS": "4"},
        capture_output=True,
        text=True,
    )


def images(folder: Path, number: int) -> int:
    """How many images of a shard are in its file."""
    try:
        return sum(len(Run(file)) for file in (folder / "runs").glob(f"*shard{number}of8.db"))
    except PyrobustError:  # just being created
        return 0


def processes(slurm: Slurm, job: str, number: int) -> list[int]:
    """The processes of a task; the number that Slurm gives a task of an array as a job is not that of the array."""
    job_id = slurm.run("squeue", "--array", "--noheader", "--format=%A", f"--jobs={job}_{number}")
    lines = slurm.run("scontrol", "listpids", job_id).splitlines()[1:]
    return [int(line.split()[0]) for line in lines if int(line.split()[0]) > 0]


def without_times(run: Run) -> str:
    return "".join(line.rpartition("\t")[0] + "\n" for line in format_log(run).splitlines())


def test_an_array_with_two_tasks_killed_equals_the_single_process(
    slurm: Slurm, folder: Path, blocks: dict[str, str]
) -> None:
    submitted = shell(slurm, folder, f"{blocks['submit']}echo $job")
    merging, job = re.findall(r"\d+", submitted.stdout)
    killed: dict[int, dict[int, float]] = {}
    for number in (1, 4):
        until(lambda number=number: images(folder, number) >= 5)
        if number == 1:
            slurm.run("scancel", "--signal=KILL", "--full", f"{job}_{number}")
        else:
            for process in processes(slurm, job, number):
                os.kill(process, signal.SIGKILL)
        until(lambda number=number: slurm.states(job)[str(number)] in KILLED)
        run = Run(next((folder / "runs").glob(f"*shard{number}of8.db")))
        killed[number] = dict(zip(run.table["index"].tolist(), run.table["seconds"].tolist(), strict=True))
        assert 5 <= len(killed[number]) < 47
    # A preempted task is told so, and goes on by itself under the same number.
    until(lambda: images(folder, 6) >= 5)
    slurm.run("scontrol", "requeue", f"{job}_6")
    states = {int(number): state for number, state in slurm.wait(job).items()}
    assert {number for number, state in states.items() if state in KILLED} == {1, 4}
    assert [state for number, state in states.items() if number not in killed] == ["COMPLETED"] * 6
    told = (folder / f"certify-{job}_6.out").read_text()
    assert re.search(r"terminated; \d+ of 48 images are saved in runs/.*\n.*resumed, \d+ of 48 done", told, re.S)

    assert slurm.wait(merging) == {"": "FAILED"}
    assert "1,4" in (folder / "merge.out").read_text()
    missing = shell(slurm, folder, "pyrobust missing runs/")
    assert missing.stdout == "1,4\n"
    assert [f"shard {i}/8: {len(rows)} of 48 images" in missing.stderr for i, rows in killed.items()] == [True, True]
    print(missing.stderr + missing.stdout)

    again = shell(slurm, folder, blocks["again"])
    assert slurm.wait(re.findall(r"\d+", again.stdout)[0]) == {"1": "COMPLETED", "4": "COMPLETED"}
    for number, rows in killed.items():  # nothing is computed twice
        run = Run(next((folder / "runs").glob(f"*shard{number}of8.db")))
        now = dict(zip(run.table["index"].tolist(), run.table["seconds"].tolist(), strict=True))
        assert {index: now[index] for index in rows} == rows
    assert shell(slurm, folder, "pyrobust missing runs/").stdout == ""
    assert shell(slurm, folder, blocks["again"]).stdout == ""  # nothing is submitted

    merged = shell(slurm, folder, "pyrobust merge runs/ --out all.db")
    assert merged.returncode == 0, merged.stderr
    command = re.search(r"exec (pyrobust .*?)--shard", blocks["file"], re.S)
    assert command is not None
    single = shell(slurm, folder, f"{command[1]} --out single.db")
    assert single.returncode == 0, single.stderr
    whole = Run(folder / "single.db")
    assert len(whole) == 382
    both = Run(folder / "all.db")
    assert without_times(both) == without_times(whole)
    assert both.table["p_lower"].tobytes() == whole.table["p_lower"].tobytes()
    assert (both.histogram() == whole.histogram()).all()


def test_an_array_numbered_from_0_says_what_to_submit(slurm: Slurm, folder: Path) -> None:
    job = slurm.run("sbatch", "--parsable", "--array=0-1", "certify.sh", folder=folder)
    assert set(slurm.wait(job).values()) == {"FAILED"}
    assert "submit with --array=1-8" in (folder / f"certify-{job}_1.out").read_text()


def test_two_processes_of_torchrun_make_a_sweep(tmp_path: Path) -> None:
    arguments = ["certify", "--model", "zoo:digits-smooth-0.25", "--data", "digits", "--sigma", "0.25", "--n", "1000"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "--"]
    command = ["pyrobust", *arguments, "--max", "40", "--batch-size", "500"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run(
        [*torchrun, *command, "--shard", "auto", "--out", "runs/"], cwd=tmp_path, env=environment, check=True
    )
    subprocess.run([sys.executable, "-m", *command, "--out", "single.db"], cwd=tmp_path, env=environment, check=True)
    shards = sorted((tmp_path / "runs").iterdir())
    assert [re.findall(r"shard\w+", file.name) for file in shards] == [["shard1of2"], ["shard2of2"]]
    assert without_times(merge_runs(shards)) == without_times(Run(tmp_path / "single.db"))
