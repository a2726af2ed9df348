"""Weight files: read without running code, put into a model all or not at all, written atomically."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pyrobust.errors import FileFormatError, MissingExtraError
from pyrobust.zoo.files import write_atomically
from pyrobust.zoo.untrusted import existing_file

_NESTS = ("state_dict", "model_state_dict", "model", "net", "network")
# What DataParallel and torch.compile put into the names of parameters, at any depth.
_WRAPPERS = ("module", "_orig_mod")


def read_state_dict(path: str | Path) -> dict[str, Tensor]:
    """Reads the tensors of a weight file.

    Args:
        path: ``.safetensors`` (the extra ``safetensors``), or a file of ``torch.save``: a state dict, or a checkpoint
            that has one under ``state_dict``, ``model_state_dict``, ``model``, ``net`` or ``network``. Loaded with
            ``weights_only=True``.

    Returns:
        Tensors on the CPU by name.

    Raises:
        FileFormatError: the file is missing or damaged, needs pickle, or holds no state dict.
        MissingExtraError: ``.safetensors`` without the package.

    >>> path = Path(__file__).parent / "data" / "digits-smooth-0.25.pt"
    >>> read_state_dict(path)["7.bias"].shape
    torch.Size([10])
    """
    path = existing_file(path)
    found = _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
    for _ in range(3):  # a checkpoint of a checkpoint is as deep as it gets
        if isinstance(found, Mapping) and found and all(isinstance(value, Tensor) for value in found.values()):
            if all(isinstance(name, str) for name in found):
                return dict(found)
            break
        nests = [key for key in _NESTS if isinstance(found, Mapping) and isinstance(found.get(key), Mapping)]
        if not nests:
            break
        found = found[nests[0]]
    keys = f"with the keys {', '.join(map(repr, list(found)[:10]))}" if isinstance(found, Mapping) else ""
    raise FileFormatError(
        f"{path}: expected a state dict, tensors by name, plain or under one of {', '.join(_NESTS)}; "
        f"got {type(found).__name__} {keys}; save model.state_dict()"
    )


def _read_safetensors(path: Path) -> Any:
    try:
        from safetensors.torch import load_file
    except ImportError as error:
        raise MissingExtraError(
            'weights: .safetensors needs a package; install it with pip install "pyrobust[safetensors]"'
        ) from error
    try:
        return load_file(path)
    except Exception as error:  # its own error type, and torch's for dtypes that this torch lacks
        raise FileFormatError(f"{path}: not a readable safetensors file ({error})") from error


def _read_torch(path: Path) -> Any:
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                # torch.save never compresses, so whatever a file unpacks to is at most the file.
                if sum(info.file_size for info in archive.infolist()) > path.stat().st_size:
                    raise FileFormatError(
                        f"{path}: promises more bytes than the file has; torch.save writes no such file"
                    )
        # Bytes, so that a file whose tensors claim more than it holds cannot be mapped or read past its end.
        return torch.load(io.BytesIO(path.read_bytes()), map_location="cpu", weights_only=True)
    except FileFormatError:
        raise
    except pickle.UnpicklingError as error:
        raise FileFormatError(
            f"{path}: damaged, or holds Python objects, and reading those would run code. If you trust it, convert it "
            "once: torch.save(torch.load(FILE, weights_only=False).state_dict(), NEW), without .state_dict() where it "
            "is a dict already"
        ) from error
    except Exception as error:  # on damaged bytes torch and its unpickler raise nearly every built-in exception
        reason = str(error).strip().split("\n")[0][:200] or type(error).__name__
        raise FileFormatError(f"{path}: not a readable file of torch.save ({reason}); save it again") from error


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Puts the tensors of a weight file into a model; it is not changed unless everything fits.

    Names agree up to the parts ``module`` and ``_orig_mod``, which DataParallel and torch.compile insert. A missing
    ``num_batches_tracked`` does not matter in eval mode and is let pass.

    Args:
        model: any module.
        path: see `read_state_dict`.

    Raises:
        FileFormatError: see `read_state_dict`; or names or shapes differ, each listed.

    >>> from pyrobust.zoo import digits_convnet
    >>> load_weights(digits_convnet(), Path(__file__).parent / "data" / "digits-smooth-0.25.pt")
    """
    wanted = model.state_dict()
    found = read_state_dict(path)
    names = {_bare(name): name for name in wanted}
    renamed = {names.get(_bare(name), name): tensor for name, tensor in found.items()}
    if len(names) < len(wanted) or len(renamed) < len(found):  # "module" is part of the model's own names
        renamed = found
    problems = [
        f"{name}: missing" for name in wanted if name not in renamed and not name.endswith("num_batches_tracked")
    ]
    problems += [f"{name}: unexpected" for name in renamed if name not in wanted]
    for name, tensor in renamed.items():
        target = wanted.get(name)
        if not isinstance(target, Tensor):
            continue
        if tensor.shape != target.shape or tensor.is_floating_point() != target.is_floating_point():
            problems.append(
                f"{name}: expected {target.dtype} {list(target.shape)}, got {tensor.dtype} {list(tensor.shape)}"
            )
    if problems:
        more = f"; and {len(problems) - 20} more" if len(problems) > 20 else ""
        raise FileFormatError(
            f"{path}: does not fit the model {type(model).__name__}: {'; '.join(problems[:20])}{more}; "
            "name the model that the file was saved from"
        )
    model.load_state_dict(renamed, strict=False)


def _bare(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def save_state_dict(model: nn.Module, path: str | Path) -> None:
    """Writes a model's state dict so that the file is there whole or not at all.

    Args:
        model: any module; tensors are written as CPU tensors.
        path: the file; replaced if it is there. The same tensors give the same bytes.

    Raises:
        StoreError: the file cannot be written: no such folder, no permission, a full disk.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_state_dict(nn.Linear(2, 1), Path(folder) / "a.pt")
    ...     sorted(read_state_dict(Path(folder) / "a.pt"))
    ['bias', 'weight']
    """
    # Serialised in memory: torch.save writes the name of the file it is given into it.
    buffer = io.BytesIO()
    torch.save({name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}, buffer)
    write_atomically(path, buffer.getbuffer())
