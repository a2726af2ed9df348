"""Atomic file writes."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from pyrobust.errors import StoreError


def write_atomically(path: str | os.PathLike[str], content: bytes | memoryview) -> None:
    """Write a file whole or not at all: under a temporary name first, then renamed over an existing file.

    Raises StoreError if it cannot be written (missing folder, no permission, full disk); an existing file then stays.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomically(Path(folder) / "a", b"text")
    ...     [file.name for file in Path(folder).iterdir()]
    ['a']
    """
    path = Path(path)
    with _store_errors(path), _temporary_file(path, content) as temporary:
        os.replace(temporary, path)


def write_together(folder: str | os.PathLike[str], files: Mapping[str, bytes]) -> None:
    """Write several files, given as contents by name, atomically; if one cannot be written, none is.

    All are written under temporary names before the first is renamed. (A kill between two renames leaves some old and
    some new files.) Creates the folder if needed. Raises StoreError if a file cannot be written or a folder has its
    name; existing files then stay.

    >>> with tempfile.TemporaryDirectory() as parent:
    ...     write_together(Path(parent) / "report", {"a": b"1", "b": b"2"})
    ...     sorted(file.name for file in Path(parent, "report").iterdir())
    ['a', 'b']
    """
    folder = Path(folder)
    with contextlib.ExitStack() as stack, _store_errors(folder):
        stack.enter_context(_created(folder))
        for name in files:
            if (folder / name).is_dir():
                raise IsADirectoryError(None, f"{name} is a folder")
        temporaries = [stack.enter_context(_temporary_file(folder / name, content)) for name, content in files.items()]
        for temporary, name in zip(temporaries, files, strict=True):
            os.replace(temporary, folder / name)


@contextlib.contextmanager
def _store_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"{path}: cannot be written ({error.strerror or error}); nothing was changed there") from error


@contextlib.contextmanager
def _temporary_file(path: Path, content: bytes | memoryview) -> Iterator[str]:
    """Write the content to a temporary file beside the path; remove it afterwards unless it was renamed."""
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = file.name
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        # Temporary files are private by default; this one gets the permissions of the umask.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        yield temporary
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


@contextlib.contextmanager
def _created(folder: Path) -> Iterator[None]:
    """Create a folder; remove it afterwards if it is new and empty."""
    new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        if new:
            with contextlib.suppress(OSError):
                folder.rmdir()
