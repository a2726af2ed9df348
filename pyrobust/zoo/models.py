"""Loading models by name."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from pyrobust.checks import file_path
from pyrobust.errors import InputError, InputTypeError
from pyrobust.zoo.nets import digits_convnet
from pyrobust.zoo.weights import load_weights

_DATA = Path(__file__).parent / "data"
_ZOO = {name: f"{name}.pt" for name in ("digits-ibp-0.10", "digits-smooth-0.25", "digits-smooth-0.50")}


def list_models() -> list[str]:
    """List the names of the bundled models, to be passed to `load_model`.

    The "smooth" nets were trained with Gaussian noise. The number in their name is the standard deviation. The "ibp"
    nets were trained by interval bound propagation on l∞ balls. The number in their name is the radius. Pixels are in
    [0, 1].

    >>> list_models()
    ['zoo:digits-ibp-0.10', 'zoo:digits-smooth-0.25', 'zoo:digits-smooth-0.50']
    """
    return [f"zoo:{name}" for name in _ZOO]


def load_model(spec: str, weights: str | Path | None = None) -> nn.Module:
    """Load the model named by a spec.

    Args:
        spec: ``zoo:NAME`` is a bundled model (`list_models`). ``robustbench:DATASET/THREAT/NAME`` is a model of
            RobustBench; for cifar10/Linf, ``robustbench:NAME`` is enough. Such a spec needs the package
            ``robustbench``; no weights are downloaded. ``module:callable`` is user code, imported with the working
            directory on the path. The spec then names a torch module, or a callable that returns a torch module when it
            is called without arguments. Such a callable may be a class of torch modules.
        weights: weight file (`read_state_dict`). The default for ``zoo:`` is the bundled weights. The default for
            ``robustbench:`` is ``models/DATASET/THREAT/NAME.pt`` in the working directory, where RobustBench stores its
            weights. By default, a module of user code keeps the weights that it has.

    Returns:
        The model in eval mode.

    Raises:
        InputError: the spec has another form, or the object that it names does not exist, needs arguments or ends the
            process.
        InputTypeError: the object is neither a torch module nor a callable that returns one.
        FileFormatError: the weights are missing, damaged or refused, or do not fit the model. If they do not fit, the
            message lists the first 20 differences.
        MissingExtraError: ``.safetensors`` or ``robustbench:`` is used, but the package is not installed.

    >>> load_model("zoo:digits-smooth-0.50").training
    False
    """
    if not isinstance(spec, str):
        raise InputTypeError(
            "model",
            problem=f"expected a string, zoo:NAME, robustbench:NAME or module:callable; got {type(spec).__name__}",
        )
    kind, colon, name = spec.partition(":")
    if kind == "zoo" or not colon:
        if not colon or name not in _ZOO:
            raise InputError(
                "model",
                problem=f"expected {', '.join(list_models())}, robustbench:NAME or module:callable; got {spec!r}",
            )
        model: nn.Module = digits_convnet()
        weights = _DATA / _ZOO[name] if weights is None else weights
    elif kind == "robustbench":
        from pyrobust.zoo.robustbench import load_robustbench

        return load_robustbench(name, weights)
    else:
        from pyrobust.zoo.user_code import call_without_arguments, find_object, working_directory_importable

        with working_directory_importable():
            loaded = find_object(spec, "model")
            if not isinstance(loaded, nn.Module) and callable(loaded):
                loaded = call_without_arguments(loaded, spec, "model")
        if not isinstance(loaded, nn.Module):
            raise InputTypeError(
                "model", "a torch.nn.Module or a callable that returns one", type(loaded).__name__, where=spec
            )
        model = loaded
    if weights is not None:
        load_weights(model, file_path("weights", weights))
    return model.eval()
