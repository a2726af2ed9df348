"""Writing files so that none is ever half there."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
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
    with _explained(path), _written(path, content) as temporary:
        os.replace(temporary, path)


def write_together(folder: str | os.PathLike[str], files: Mapping[str, bytes]) -> None:
    """Writes several files, each whole; where one of them cannot be written, none is.

    All are written under other names before the first is renamed. (A kill between two renames leaves some old, some
    new ones.)

    Args:
        folder: made if it is not there.
        files: contents by name; replaced if they are there.

    Raises:
        StoreError: one cannot be written, or a folder has its name. What was there before stays.

    >>> with tempfile.TemporaryDirectory() as parent:
    ...     write_together(Path(parent) / "report", {"a": b"1", "b": b"2"})
    ...     sorted(file.name for file in Path(parent, "report").iterdir())
    ['a', 'b']
    """
    folder = Path(folder)
    with contextlib.ExitStack() as stack, _explained(folder):
        stack.enter_context(_made(folder))
        for name in files:
            if (folder / name).is_dir():
                raise IsADirectoryError(None, f"{name} is a folder")
        written = [stack.enter_context(_written(folder / name, content)) for name, content in files.items()]
        for temporary, name in zip(written, files, strict=True):
            os.replace(temporary, folder / name)


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"{path}: cannot be written ({error.strerror or error}); nothing was changed there") from error


@contextlib.contextmanager
def _written(path: Path, content: bytes | memoryview) -> Iterator[str]:
    """The content under a name beside the path, to be renamed; removed where it is not."""
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
        yield temporary
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


@contextlib.contextmanager
def _made(folder: Path) -> Iterator[None]:
    """A folder, removed again where nothing came into it."""
    new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        if new:
            with contextlib.suppress(OSError):
                folder.rmdir()
