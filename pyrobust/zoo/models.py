"""Models by name, and the hash that tells them apart."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

from pyrobust.errors import InputError, InputTypeError
from pyrobust.zoo.image_set import hash_tensors
from pyrobust.zoo.nets import digits_convnet
from pyrobust.zoo.user_code import find_object, working_folder_importable
from pyrobust.zoo.weights import load_weights

_DATA = Path(__file__).parent / "data"
_ZOO = {"digits-smooth-0.25": "digits-smooth-0.25.pt", "digits-smooth-0.50": "digits-smooth-0.50.pt"}


def list_models() -> list[str]:
    """The bundled models, as `load_model` takes them.

    The number is the standard deviation of the Gaussian noise that the net was trained with, pixels being in [0, 1].

    >>> list_models()
    ['zoo:digits-smooth-0.25', 'zoo:digits-smooth-0.50']
    """
    return [f"zoo:{name}" for name in _ZOO]


def load_model(spec: str, weights: str | Path | None = None) -> nn.Module:
    """Loads a model named by a spec.

    Args:
        spec: ``zoo:NAME`` (`list_models`), or ``module:callable``: the user's own code, imported with the working
            folder on the path; a module, or a callable that is called without arguments and returns one, such as its
            class.
        weights: a file to take the weights from (`read_state_dict`); default the bundled ones, or those that the
            callable set.

    Returns:
        The model in eval mode.

    Raises:
        InputError: the spec has another form or names nothing that is there.
        InputTypeError: what it names is neither a module nor a callable that returns one.
        FileFormatError: the weights are missing, damaged or refused, or do not fit; the message lists the names.
        MissingExtraError: ``.safetensors`` without the package.

    >>> load_model("zoo:digits-smooth-0.50").training
    False
    """
    if not isinstance(spec, str):
        raise InputTypeError(f"model: expected a string, zoo:NAME or module:callable; got {type(spec).__name__}")
    kind, colon, name = spec.partition(":")
    if kind == "zoo" or not colon:
        if not colon or name not in _ZOO:
            raise InputError(f"model: expected {', '.join(list_models())} or module:callable; got {spec!r}")
        model: nn.Module = digits_convnet()
        weights = _DATA / _ZOO[name] if weights is None else weights
    else:
        with working_folder_importable():
            found = find_object(spec, "model")
            if not isinstance(found, nn.Module) and callable(found):
                found = found()
        if not isinstance(found, nn.Module):
            raise InputTypeError(
                f"model: {spec}: expected a torch.nn.Module or a callable that returns one, got {type(found).__name__}"
            )
        model = found
    if weights is not None:
        load_weights(model, weights)
    return model.eval()


def model_hash(module: nn.Module) -> str:
    """SHA-256 in hex over what a model is: its structure and its numbers.

    Goes over the class of every submodule, the printed structure, and name, dtype, shape and bytes of every parameter
    and buffer, persistent or not. Device, train or eval mode and ``requires_grad`` do not matter. A number that a class
    keeps as a plain attribute and does not print, or a change of its code, cannot be seen.

    Args:
        module: any module with dense tensors.

    Returns:
        64 hexadecimal digits.

    >>> model_hash(nn.Sequential(nn.ReLU())) == model_hash(nn.Sequential(nn.Sigmoid()))
    False
    """
    tensors: dict[str, Tensor] = {}
    extra: list[str] = []
    for name, value in module.state_dict().items():
        if isinstance(value, Tensor):
            tensors[name] = value
        else:  # what a class returns from get_extra_state
            extra.append(f"{name} {value!r}")
    tensors |= dict(module.named_buffers(remove_duplicate=False))
    classes = [f"{name} {type(part).__module__}.{type(part).__qualname__}" for name, part in module.named_modules()]
    return hash_tensors(tensors, "\n".join([*classes, repr(module), *extra]))
