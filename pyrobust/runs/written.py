"""Whether a process is writing a run file."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path
from typing import Final

# Linux's struct flock, and the byte of SQLite's companion file -shm that a writer locks.
_FLOCK: Final = "hhqqi4x"
_WRITE_LOCK: Final = 120
# Between two transactions, a writer holds no lock, and may be interrupted.
_ATTEMPTS: Final = 3
_PAUSE_S: Final = 0.1


def is_written(path: Path) -> bool:
    """Whether a process, on this machine or on another that shares the folder, holds SQLite's write lock on a run.

    The lock is on the run's companion file, whose name ends in -shm. Linux lists the locks of this machine, so the
    companion need not be opened to find them. For locks of other machines, the file system or its network server is
    queried. This query opens and closes the companion. If this process holds a lock on the companion, the query is
    omitted, because closing the file would release the lock. If the system has no list of locks, the run counts as
    locked whenever a companion exists, although a killed writer leaves a companion, too.
    """
    companion = f"{os.path.realpath(path)}-shm"
    for attempt in range(_ATTEMPTS):
        time.sleep(_PAUSE_S if attempt else 0)
        try:
            inode = os.stat(companion).st_ino
        except OSError:
            return False
        try:
            locks = Path("/proc/locks").read_text()
        except OSError:
            return True
        held = [line.split() for line in locks.splitlines() if f":{inode} " in line and "->" not in line]
        if any(words[3] == "WRITE" and words[-1] == str(_WRITE_LOCK) for words in held):
            return True
        if all(words[4] != str(os.getpid()) for words in held) and _locked_elsewhere(companion):
            return True
    return False


def _locked_elsewhere(companion: str) -> bool:
    import fcntl

    question = struct.pack(_FLOCK, fcntl.F_RDLCK, os.SEEK_SET, _WRITE_LOCK, 1, 0)
    try:
        with open(companion, "rb") as file:
            answer = fcntl.fcntl(file, fcntl.F_GETLK, question)
    except OSError:
        return False
    return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)
