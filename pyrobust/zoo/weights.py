"""Weight files: they are read without running code, loaded completely or not at all, and written atomically."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pyrobust.errors import FileFormatError, extra
from pyrobust.zoo.files import write_atomically
from pyrobust.zoo.untrusted import existing_file

# Keys under which checkpoints store a state dict.
_STATE_DICT_KEYS = ("state_dict", "model_state_dict", "model", "net", "network")
# Parts that DataParallel and torch.compile insert into the names of parameters, at any depth.
_WRAPPERS = ("module", "_orig_mod")


def read_state_dict(path: str | Path) -> dict[str, Tensor]:
    """Read the tensors of a weight file.

    Args:
        path: a ``.safetensors`` file (needs the extra ``safetensors``) or a ``torch.save`` file. A ``torch.save`` file
            holds a state dict, or a checkpoint with a state dict under ``state_dict``, ``model_state_dict``, ``model``,
            ``net`` or ``network``. It is loaded with ``weights_only=True``.

    Returns:
        The tensors by name, on the CPU.

    Raises:
        FileFormatError: the file is missing or damaged, needs pickle, or does not hold a state dict.
        MissingExtraError: the file is ``.safetensors`` and the package is not installed.

    >>> path = Path(__file__).parent / "data" / "digits-smooth-0.25.pt"
    >>> read_state_dict(path)["7.bias"].shape
    torch.Size([10])
    """
    path = existing_file(path)
    return find_state_dict(_read_safetensors(path) if path.suffix == ".safetensors" else read_torch(path), path)


def find_state_dict(content: Any, path: Path) -> dict[str, Tensor]:
    """Return the state dict in the content of a weight file; raise FileFormatError if there is none."""
    for _ in range(3):  # a state dict may be nested two levels deep
        if isinstance(content, Mapping) and content and all(isinstance(value, Tensor) for value in content.values()):
            if all(isinstance(name, str) for name in content):
                return dict(content)
            break
        nested = [
            key for key in _STATE_DICT_KEYS if isinstance(content, Mapping) and isinstance(content.get(key), Mapping)
        ]
        if not nested:
            break
        content = content[nested[0]]
    keys = f" with the keys {', '.join(map(repr, list(content)[:10]))}" if isinstance(content, Mapping) else ""
    raise FileFormatError(
        f"{path}: expected a state dict (tensors by name), plain or under one of {', '.join(_STATE_DICT_KEYS)}; "
        f"got {type(content).__name__}{keys}; save model.state_dict()"
    )


def _read_safetensors(path: Path) -> Any:
    with extra("safetensors", "weights: .safetensors files need safetensors"):
        from safetensors.torch import load_file
    try:
        return load_file(path)
    except Exception as error:  # the package's own error type, or torch's for unsupported dtypes
        raise FileFormatError(f"{path}: not a readable safetensors file ({error})") from error


def read_torch(path: Path) -> Any:
    """Read a file of ``torch.save`` without running code; raise FileFormatError if it is damaged or needs pickle."""
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                # torch.save never compresses, so a file's contents unpack to at most the file's size.
                if sum(info.file_size for info in archive.infolist()) > path.stat().st_size:
                    raise FileFormatError(
                        f"{path}: declares more bytes than the size of the file, unlike files of torch.save; "
                        "save it again"
                    )
        # Read from memory, so that tensors that declare more data than the file has are not read past its end.
        return torch.load(io.BytesIO(path.read_bytes()), map_location="cpu", weights_only=True)
    except FileFormatError:
        raise
    except pickle.UnpicklingError as error:
        raise FileFormatError(
            f"{path}: damaged, or holds Python objects, which could run code when read. If you trust the file, convert "
            'it once: c = torch.load(FILE, weights_only=False); torch.save(c["state_dict"], NEW), with the key of its '
            "tensors, or torch.save(c.state_dict(), NEW) for a whole model"
        ) from error
    except Exception as error:  # on damaged bytes torch and its unpickler raise nearly every built-in exception
        reason = str(error).strip().split("\n")[0][:200] or type(error).__name__
        raise FileFormatError(f"{path}: not a readable torch.save file ({reason}); save it again") from error


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Load the tensors of a weight file into a model; if they do not all fit, the model stays unchanged.

    Names are compared without the parts ``module`` and ``_orig_mod`` that DataParallel and torch.compile insert. A
    missing ``num_batches_tracked`` is ignored, because it is not used in eval mode.

    Args:
        model: any module.
        path: the weight file, see `read_state_dict`.

    Raises:
        FileFormatError: the file cannot be read (see `read_state_dict`), or names or shapes differ. The message lists
            the first 20 differences and the number of the others.

    >>> from pyrobust.zoo import digits_convnet
    >>> load_weights(digits_convnet(), Path(__file__).parent / "data" / "digits-smooth-0.25.pt")
    """
    fit_tensors(model, read_state_dict(path), path)


def fit_tensors(
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    path: str | Path,
    *,
    wrappers: Collection[str] = _WRAPPERS,
    ignored: Callable[[str], bool] = lambda name: False,
) -> None:
    """Load tensors like `load_weights`, but accept missing or unexpected names for which ``ignored(name)`` is true."""
    expected = model.state_dict()
    names = {_without(wrappers, name): name for name in expected}
    renamed = {names.get(_without(wrappers, name), name): tensor for name, tensor in tensors.items()}
    if len(names) < len(expected) or len(renamed) < len(tensors):  # then the model itself has parts named "module"
        renamed = dict(tensors)
    absent = [name for name in expected if name not in renamed and not name.endswith("num_batches_tracked")]
    problems = [f"{name}: missing" for name in absent if not ignored(name)]
    problems += [f"{name}: unexpected" for name in renamed if name not in expected and not ignored(name)]
    for name, tensor in renamed.items():
        target = expected.get(name)
        if not isinstance(target, Tensor):
            continue
        if tensor.layout != torch.strided or tensor.is_meta:
            kind = "a meta tensor, without data" if tensor.is_meta else f"a tensor of {tensor.layout}"
            problems.append(f"{name}: expected a dense tensor, got {kind}")
        elif tensor.shape != target.shape or tensor.is_floating_point() != target.is_floating_point():
            problems.append(
                f"{name}: expected {target.dtype} {list(target.shape)}, got {tensor.dtype} {list(tensor.shape)}"
            )
    if problems:
        more = f"; and {len(problems) - 20} more" if len(problems) > 20 else ""
        raise FileFormatError(
            f"{path}: does not fit the model {type(model).__name__}: {'; '.join(problems[:20])}{more}; "
            "pass the model that the file was saved from"
        )
    model.load_state_dict(renamed, strict=False)


def _without(wrappers: Collection[str], name: str) -> str:
    return ".".join(component for component in name.split(".") if component not in wrappers)


def save_state_dict(model: nn.Module, path: str | Path) -> None:
    """Write a model's state dict atomically; the same tensors give the same bytes.

    Args:
        model: any module; its tensors are written as CPU tensors.
        path: the file. An existing file is replaced.

    Raises:
        StoreError: the file cannot be written (missing folder, no permission, full disk).

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_state_dict(nn.Linear(2, 1), Path(folder) / "a.pt")
    ...     sorted(read_state_dict(Path(folder) / "a.pt"))
    ['bias', 'weight']
    """
    # Serialised in memory, because torch.save stores the name of its file in the file.
    buffer = io.BytesIO()
    torch.save({name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}, buffer)
    write_atomically(path, buffer.getbuffer())
