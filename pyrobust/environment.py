"""Environment variables that torch's libraries read once, prepared when pyrobust is imported.

The code uses only modules that Python has already loaded, since the import of any other module takes time. The command
``pyrobust`` does not handle Ctrl-C yet at this stage, so Ctrl-C during such an import would show a traceback.
"""

import os

#: Environment variable that makes cuBLAS deterministic; torch reads it at the first matrix product.
CUBLAS_VARIABLE = "CUBLAS_WORKSPACE_CONFIG"
CUBLAS_WORKSPACE = ":4096:8"


def prepare_cublas(environment: "os._Environ[str] | dict[str, str]") -> None:
    """Set CUBLAS_WORKSPACE_CONFIG if it is unset, before torch reads it at the first matrix product."""
    environment.setdefault(CUBLAS_VARIABLE, CUBLAS_WORKSPACE)


def prepare_threads(environment: "os._Environ[str] | dict[str, str]") -> None:
    """Set OpenMP's variables that the user has not set; OpenMP reads them once, when torch is loaded.

    If other processes run, these variables make waiting threads sleep instead of spin, since spinning threads occupy
    processors that other threads need. If control groups (for example of a container) allow fewer processors than torch
    sees, torch starts only as many threads as there are allowed processors.
    """
    if "GOMP_SPINCOUNT" not in environment and machine_is_busy():
        environment.setdefault("OMP_WAIT_POLICY", "passive")
    allowed = allowed_processors()
    if allowed is not None and allowed < len(os.sched_getaffinity(0)):
        environment.setdefault("OMP_NUM_THREADS", str(allowed))


def machine_is_busy(root: str = "") -> bool:
    """Return whether other processes are running at this moment; if /proc does not show this, return True."""
    words = " ".join(_lines(f"{root}/proc/loadavg")).split()
    return len(words) < 4 or words[3].split("/")[0] != "1"


def allowed_processors(root: str = "") -> "int | None":
    """Return how many processors the control groups of this process allow, rounded up; None for no limit."""
    counts = []
    for line in _lines(f"{root}/proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        folder = f"{root}/sys/fs/cgroup" + ("/cpu" if controllers else "")
        # Limits of the parent groups hold, too; groups outside a container cannot be seen.
        for segment in ("", *path.strip("/").split("/")):
            folder = f"{folder}/{segment}" if segment else folder
            if controllers:  # version 1 of control groups
                limit = [*_lines(f"{folder}/cpu.cfs_quota_us"), *_lines(f"{folder}/cpu.cfs_period_us")]
            else:
                limit = [word for line in _lines(f"{folder}/cpu.max") for word in line.split()]
            if len(limit) == 2 and limit[0].isdigit() and limit[1].isdigit() and int(limit[1]):
                counts.append(max(1, -(-int(limit[0]) // int(limit[1]))))
    return min(counts, default=None)


def _lines(file: str) -> "list[str]":
    try:
        with open(file) as stream:
            return stream.read().split("\n")[:-1]
    except OSError:
        return []
