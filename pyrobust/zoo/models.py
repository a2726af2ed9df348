"""Models by name."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from pyrobust.errors import InputError, InputTypeError
from pyrobust.zoo.nets import digits_convnet
from pyrobust.zoo.user_code import find_object, working_folder_importable
from pyrobust.zoo.weights import load_weights

_DATA = Path(__file__).parent / "data"
_ZOO = {name: f"{name}.pt" for name in ("digits-ibp-0.10", "digits-smooth-0.25", "digits-smooth-0.50")}


def list_models() -> list[str]:
    """The bundled models, as `load_model` takes them.

    "smooth" nets were trained under Gaussian noise, the number is its standard deviation; "ibp" with interval bounds,
    the number is the radius of the l∞ balls. Pixels are in [0, 1].

    >>> list_models()
    ['zoo:digits-ibp-0.10', 'zoo:digits-smooth-0.25', 'zoo:digits-smooth-0.50']
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
