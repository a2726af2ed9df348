"""Writing files so that none is ever half there."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from pyrobust.errors import StoreError


def write_atomically(path: str | os.PathLike[str], content: bytes | memoryview) -> None:
    """Writes a file whole or not at all: under another name first, then renamed.

    Args:
        path: the file; replaced if it is there.
        content: all of it.

    Raises:
        StoreError: it cannot be written: no such folder, no permission, a full disk. What was there before stays.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomically(Path(folder) / "a", b"text")
    ...     [file.name for file in Path(folder).iterdir()]
    ['a']
    """
    path = Path(path)
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = file.name
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        # Temporary files are private; this one is what the umask says, like any other.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise StoreError(f"{path}: cannot be written ({error.strerror or error}); nothing was changed there") from error
