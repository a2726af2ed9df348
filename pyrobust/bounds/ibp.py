"""Interval bounds of a module's outputs by one function call, with a cache of captured networks."""

from __future__ import annotations

import contextlib
import weakref
from collections import OrderedDict
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pyrobust.bounds.engines.denormals import denormals_kept
from pyrobust.bounds.engines.native import Engine
from pyrobust.bounds.engines.query import Query
from pyrobust.bounds.engines.select import engine_for
from pyrobust.bounds.engines.tensor.engine import TensorEngine
from pyrobust.bounds.graph.capture import TRACING, capture_classifier, evaluating, example_of, leading_tensor
from pyrobust.bounds.input_set import ball, exact_input
from pyrobust.bounds.module_state import Incomparable, ModuleState
from pyrobust.checks import Numbers
from pyrobust.runner import logits_of

#: Number of captured networks that are kept.
CACHED = 8
_QUERY = Query("ibp", True, "real", None)


class _Captured(NamedTuple):
    """A network captured from a module, and the module's state at that time; the module itself can be freed."""

    module: weakref.ref[nn.Module]
    state: ModuleState
    engine: Engine | TensorEngine
    row: Tensor
    logits: Tensor | None


# Keys: id of the module, and shape, dtype and device of the input; the least recently used comes first. The shape has
# the batch size, because the model was compared with its capture at this size.
_captured: OrderedDict[tuple[Any, ...], _Captured] = OrderedDict()


@denormals_kept()
def compute_ibp_bounds(model: nn.Module, x: Numbers, epsilon: Any) -> tuple[Tensor, Tensor]:
    """Bound the outputs by intervals over the l∞ ball around each example, without clipping (Gowal et al., 2018).

    The bounds are those of the network in evaluation mode; the model's own modes are unchanged
    afterwards. The bounds hold in exact arithmetic, like those of ``BoundedModel.bounds``.

    At most eight captured networks are kept, for further calls with inputs of the same shape. If a model is deleted,
    its network is dropped. Every call first compares the model's state with its state at capture: every byte of its
    tensors, its attributes, the members of its classes, and the global variables that the classes' code uses. The
    logits on one row of the ``x`` that was passed at capture are compared, too. A changed model is captured again. Some
    models are captured at every call: models with forward hooks, models with a part that cannot be compared (such as an
    attribute that is an object of a user-defined class), and models that use ``getattr`` or another function that can
    look up a name computed at run time. A captured network takes about three times the memory of the model's
    parameters.

    Changes of anything else that a forward pass reads (files, environment variables, and the code and settings of
    torch) are noticed only if the compared logits differ. No other thread may run or change the model during a call.
    While ``torch.export`` captures, it puts tensors without values in place of the model's parameters.

    Args:
        model: a module that ``BoundedModel`` supports.
        x: [B, ...].
        epsilon: radius of the balls, at least 0: a number, or one for each example.

    Returns:
        (lower, upper), float64 [B, K], proved.

    Raises:
        InputError, InputTypeError, ModelError: as for ``BoundedModel``.

    >>> import torch
    >>> lower, upper = compute_ibp_bounds(nn.Linear(2, 3), torch.zeros(1, 2), 0.1)
    >>> bool((lower <= upper).all())
    True
    """
    example = example_of(model, x)
    engine = _engine_of(model, example)
    x = exact_input("x", x, example.dtype)
    bounds = engine.run(ball(x, epsilon, "linf", None, tuple(x.shape[1:]), engine.device), None, _QUERY)
    return bounds.lower, bounds.upper


def _engine_of(model: nn.Module, x: Tensor) -> Engine | TensorEngine:
    """Return the engine of a model for inputs like x: the stored engine if the model is unchanged, else a new one."""
    if not isinstance(model, nn.Module):
        return _new_engine(model, x, None)  # raises
    key = (id(model), x.shape, x.dtype, x.device)
    with TRACING:  # keeps other threads from putting the model back into training mode before it has run
        engine = _kept_engine(key, model)  # compares the model in evaluation mode
    if engine is not None:
        return engine
    with evaluating(model):
        engine = _kept_engine(key, model)
        if engine is not None:
            return engine
        state = None
        with contextlib.suppress(Incomparable):
            state = ModuleState(model)
        engine = _new_engine(model, x, state)
        if state is not None and len(x) and _is_unchanged(state, model):
            _keep(key, model, x, state, engine)
        return engine


def _kept_engine(key: tuple[Any, ...], model: nn.Module) -> Engine | TensorEngine | None:
    kept = _captured.get(key)
    if kept is None or kept.module() is not model or not _is_unchanged(kept.state, model):
        return None
    if not _agrees(kept, model):
        _captured.pop(key, None)
        return None
    with contextlib.suppress(KeyError):  # if another thread has removed it
        _captured.move_to_end(key)
    return kept.engine


def _logits(model: nn.Module, row: Tensor) -> Tensor | None:
    """Return the logits of a row, [1, ...]; None if the model does not run on it."""
    row = row.to(leading_tensor(model, row).device)
    for batch in (row, row.expand(2, *row.shape[1:])):
        with contextlib.suppress(Exception), torch.no_grad():  # a model may run on batches of two or more only
            return logits_of(model(batch))[0].flatten()
    return None


def _agrees(kept: _Captured, model: nn.Module) -> bool:
    """Whether the model's logits of the stored row are unchanged up to rounding; its state is compared separately."""
    logits = _logits(model, kept.row)
    if kept.logits is None or logits is None or logits.shape != kept.logits.shape:
        return False
    if torch.equal(logits, kept.logits):
        return True
    slack = torch.finfo(logits.dtype).eps ** 0.5 * kept.logits.abs().max()
    return bool(((logits - kept.logits).abs() <= slack).all())


def _keep(key: tuple[Any, ...], model: nn.Module, x: Tensor, state: ModuleState, engine: Engine | TensorEngine) -> None:
    captured = _captured  # when the interpreter exits, a model may outlive this module's globals

    def forget(reference: weakref.ref[nn.Module]) -> None:
        kept = captured.get(key)
        if kept is not None and kept.module is reference:  # not the entry of a later module with the same id
            captured.pop(key, None)

    row = x.detach()[x.detach().flatten(1).abs().sum(1).argmax()][None].clone()  # a blank image would reveal little
    _captured[key] = _Captured(weakref.ref(model, forget), state, engine, row, _logits(model, row))
    _captured.move_to_end(key)
    while len(_captured) > CACHED:
        _captured.popitem(last=False)


def _is_unchanged(state: ModuleState, model: nn.Module) -> bool:
    try:
        return state.matches(model)
    except Incomparable:
        return False


def _new_engine(model: nn.Module, x: Tensor, state: ModuleState | None) -> Engine | TensorEngine:
    """Capture a model; if a state is given, the network uses the state's copies of the model's tensors."""
    output = capture_classifier(model, x) if state is None else capture_classifier(model, x, state.copy_of)
    return engine_for(output, x.dtype, leading_tensor(model, x).device, None)
