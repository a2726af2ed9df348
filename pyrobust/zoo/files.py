"""Atomic file writes, and the rule for what they may overwrite."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from pyrobust.errors import InputError, StoreError

#: What SQLite appends to the name of a database for its companion files.
COMPANIONS = ("-wal", "-shm", "-journal")
#: Prefix of the names of temporary files.
TEMPORARY = ".pyrobust."


def check_output(
    option: str,
    path: str | os.PathLike[str],
    *,
    inputs: Iterable[str | os.PathLike[str]] = (),
    replace: bool = False,
    begins: bytes | None = None,
) -> None:
    """Raise unless a file may be written; every command checks this before it writes.

    An input is never overwritten, not even through a symbolic or hard link. The same holds for files in an input folder
    and for companion files of a database, such as ``run.db-wal``. Any other existing file is overwritten only if it is
    empty or of the same kind as the new file, or with ``replace``. Character devices and pipes that are not inputs may
    always be written to; folders and block devices may never be.

    Args:
        option: name of the option or argument for the file, used in the message.
        path: the file.
        inputs: files and folders that the command reads.
        replace: whether existing files may be overwritten.
        begins: the bytes with which files of the new file's kind begin. An existing file that begins with them is
            overwritten without ``replace``. None if no existing file counts as being of the same kind.

    Raises:
        InputError: the file may not be written.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomically(Path(folder) / "net.pt", b"weights")
    ...     check_output("--out", Path(folder) / "log.tsv")
    ...     check_output("--out", Path(folder) / "net.pt", replace=True)
    ...     check_output("--out", Path(folder) / "net.pt", inputs=[Path(folder) / "net.pt"], replace=True)
    Traceback (most recent call last):
    pyrobust.errors.InputError: --out: expected a file other than the inputs, got 'net.pt'; name another
    """
    path = Path(path)
    try:
        real = Path(os.path.realpath(path))
    except ValueError as error:
        raise InputError(option, "the name of a file", f"{str(path)!r} ({error})") from error
    name = repr(path.name if path.is_absolute() else str(path))
    for read in inputs:
        if _is_same(path, read) or (os.path.lexists(path) and Path(os.path.realpath(read)) in real.parents):
            raise InputError(option, "a file other than the inputs", name, "name another")
    for suffix in COMPANIONS:
        if real.name.endswith(suffix) and os.path.exists(str(real).removesuffix(suffix)):
            database = path.name.removesuffix(suffix)
            raise InputError(option, "a file of its own", f"{name}, which belongs to {database}")
    try:
        status = os.stat(path)
    except OSError:
        return  # a new file; any other problem shows when it is written
    if stat.S_ISDIR(status.st_mode) or stat.S_ISBLK(status.st_mode):
        what = "folder" if stat.S_ISDIR(status.st_mode) else "disk"
        raise InputError(option, "a file", f"the {what} {name}", "name a file")
    # An empty file, such as mktemp makes, has no content to lose.
    if replace or not stat.S_ISREG(status.st_mode) or status.st_size == 0:
        return
    if begins is None or not _begins(path, begins):
        way = "--replace" if option.startswith("-") else "replace=True"
        kind = "a new file" if begins is None else "a new file, or one of the same kind"
        raise InputError(option, kind, f"{name}, which exists", f"name another or pass {way}")


def write_atomically(path: str | os.PathLike[str], content: bytes | memoryview) -> None:
    """Write a file completely or not at all.

    The content is written to a temporary file, which is then renamed to the given name. An existing file of this name
    is replaced.

    If the path is a symbolic link, the file that it points to is written, and the link is kept. Character devices and
    pipes are written to directly.

    Raises StoreError if the file cannot be written (missing folder, no permission, full disk). An existing file is then
    unchanged.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomically(Path(folder) / "a", b"text")
    ...     [file.name for file in Path(folder).iterdir()]
    ['a']
    """
    path = Path(path)
    with _store_errors(path):
        if path.is_char_device() or path.is_fifo():
            with path.open("wb") as device:
                device.write(content)
            return
        target = _resolved(path)
        with _temporary_file(target, content) as temporary:
            os.replace(temporary, target)


def write_together(folder: str | os.PathLike[str], files: Mapping[str, bytes]) -> None:
    """Write several files: if the content of one file cannot be written, no file is changed.

    ``files`` maps names to contents. All files are written under temporary names before the first is renamed. (If a
    rename fails, as onto a mounted file, or if the process is killed between two renames, some files are new and the
    others are still old.) Creates the folder if needed. Raises StoreError if a file cannot be written or if its name is
    that of an existing folder.

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
        targets = [_resolved(folder / name) for name in files]
        contents = zip(targets, files.values(), strict=True)
        temporaries = [stack.enter_context(_temporary_file(target, content)) for target, content in contents]
        for temporary, target in zip(temporaries, targets, strict=True):
            os.replace(temporary, target)


def _is_same(path: Path, other: str | os.PathLike[str]) -> bool:
    """Whether two names refer to the same file, through symbolic or hard links."""
    try:
        return os.path.samefile(path, other)
    except (OSError, ValueError):
        return os.path.realpath(path) == os.path.realpath(other)


def _begins(path: Path, begin: bytes) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(begin)) == begin
    except OSError:
        return False


def _resolved(path: Path) -> Path:
    """Return the file that a name refers to, existing or not; raise OSError for a loop of symbolic links."""
    with contextlib.suppress(FileNotFoundError):
        path.stat()
    return Path(os.path.realpath(path))


@contextlib.contextmanager
def _store_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StoreError(f"{path}: cannot be written ({reason}); nothing was changed there") from error


@contextlib.contextmanager
def _temporary_file(path: Path, content: bytes | memoryview) -> Iterator[str]:
    """Write the content to a temporary file next to the path; remove the file afterwards unless it was renamed."""
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=TEMPORARY, delete=False) as file:
            temporary = file.name
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, _mode(path))
        yield temporary
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def _mode(path: Path) -> int:
    """Return the permissions for a new file: those of the existing file that it replaces, or else the default ones."""
    with contextlib.suppress(OSError):
        return stat.S_IMODE(path.stat().st_mode)
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask


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
