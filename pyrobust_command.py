"""Entry point of ``pyrobust``, outside the package: imports take a second or two, in which Ctrl-C can come."""

# Nothing that Python has not loaded by now: signal, for one, takes 20 ms, in which Ctrl-C would show a traceback.
import _signal  # type: ignore[import-not-found]
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

_INTERRUPTED_STATUS = 130


def main() -> None:
    """Import the command line and run it.

    During imports, those of a command included, Ctrl-C ends the process silently with status 130: a KeyboardInterrupt
    would surface as any error of the module that is being imported. Otherwise the commands handle it.
    """
    open_closed_streams()
    # A process started with Ctrl-C ignored keeps ignoring it.
    handled = _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler
    if handled:
        _signal.signal(_signal.SIGINT, _interrupt)
    prepare_threads(os.environ)
    try:
        from pyrobust.cli import main as run

        run()
    finally:
        if handled:
            _signal.signal(_signal.SIGINT, _signal.default_int_handler)


def _interrupt(number: int, frame: "FrameType | None") -> None:
    """End the process if an import is under way below ``main``, else raise KeyboardInterrupt."""
    while frame is not None and frame.f_code is not main.__code__:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os._exit(_INTERRUPTED_STATUS)
        frame = frame.f_back
    raise KeyboardInterrupt


def open_closed_streams() -> None:
    """Open the null device for each standard stream that the caller closed: the next file would get its number."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None and os.open(os.devnull, os.O_RDWR) == number:
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def prepare_threads(environment: "os._Environ[str] | dict[str, str]") -> None:
    """Set OpenMP's variables, which it reads once, when torch is loaded; each only unless the user set it.

    On a busy machine, threads that wait for others sleep instead of spinning, which takes the processor from the thread
    that is waited for. Where control groups, as of a container, allow fewer processors than torch sees, it starts no
    more threads than these.
    """
    if "GOMP_SPINCOUNT" not in environment and machine_is_busy():
        environment.setdefault("OMP_WAIT_POLICY", "passive")
    allowed = allowed_processors()
    if allowed is not None and allowed < len(os.sched_getaffinity(0)):
        environment.setdefault("OMP_NUM_THREADS", str(allowed))


def machine_is_busy(root: str = "") -> bool:
    """Return whether more than this process is running at this moment, or that cannot be known."""
    words = " ".join(_lines(f"{root}/proc/loadavg")).split()
    return len(words) < 4 or words[3].split("/")[0] != "1"


def allowed_processors(root: str = "") -> "int | None":
    """Return how many processors the control groups of this process allow it, rounded up; None without a limit."""
    counts = []
    for line in _lines(f"{root}/proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        folder = f"{root}/sys/fs/cgroup" + ("/cpu" if controllers else "")
        # Limits of the groups above hold, too; those outside a container cannot be seen.
        for part in ("", *path.strip("/").split("/")):
            folder = f"{folder}/{part}" if part else folder
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


if __name__ == "__main__":
    main()
