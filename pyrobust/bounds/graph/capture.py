"""Capture of a torch.nn.Module as a graph: torch.export traces it, and lowering rules turn the calls into nodes.

The module is traced in evaluation mode. The traced batch has two examples, so that operations that mix examples are
detected. Before the graph is used, its values are compared with the module's values on the example and on random
inputs. The comparison covers batches of one row, of three rows, of many rows and of the example's batch size. It also
covers repeated runs, a run with gradients enabled, and inputs far outside [0, 1].
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import warnings
from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import OutputKind
from torch.fx.node import map_aggregate
from torch.nn.utils import parametrize

from pyrobust.bounds.graph.attention_module import batch_kept_first
from pyrobust.bounds.graph.constants import Constant
from pyrobust.bounds.graph.evaluate import forward_all
from pyrobust.bounds.graph.lowering import (  # noqa: F401 - each registers its rules
    affine,
    constant_calls,
    contraction,
    convolution,
    elementwise,
    layout,
    normalization,
    norms,
    pooling,
    products,
    recurrence,
    resampling,
    scattering,
    sorting,
)
from pyrobust.bounds.graph.lowering.constant_calls import constant_call
from pyrobust.bounds.graph.lowering.layout import MOVES, Displaced
from pyrobust.bounds.graph.lowering.registry import BATCH, COMPOSITES, RULES, Lowering, Rule, match
from pyrobust.bounds.graph.nodes import Input, Node
from pyrobust.checks import Numbers, float_tensor, shape_text
from pyrobust.errors import InputError, InputTypeError, ModelError, PyrobustError
from pyrobust.runner import evaluation_mode, logits_of, modules_with_a_mode

#: Largest difference of graph and module, in roundoffs of the largest intermediate value: sums run in another order.
_TOLERANCE = 2.0**10
#: Largest difference of two calls of the module, in the same roundoffs.
_REPEATED = 2.0**2
#: If the largest intermediate value has more elements, the comparison uses a smaller batch than the example's.
_COMPARED = 1 << 22
#: Number of rows of another batch, which reveals code for large batches, and the most elements computed for this check.
_MANY, _MANY_ELEMENTS = 65, 1 << 18


# Modes of modules change while they are traced, and torch's tracing is not made for several threads.
TRACING = threading.RLock()


@contextlib.contextmanager
def evaluating(model: object) -> Iterator[None]:
    """Put a module into evaluation mode, for one thread at a time; restore every submodule's mode on exit."""
    with TRACING, evaluation_mode(model):
        yield


@contextlib.contextmanager
def _without_cached_parameters() -> Iterator[None]:
    """Suspend ``parametrize.cached()``: its values may be outdated, and it would keep values of the trace."""
    before = parametrize._cache_enabled, parametrize._cache
    parametrize._cache_enabled, parametrize._cache = 0, {}
    try:
        yield
    finally:
        parametrize._cache_enabled, parametrize._cache = before


def capture(model: nn.Module, example_input: Tensor, counterpart: Callable[[Tensor], Tensor] = lambda t: t) -> Node:
    """Capture the graph of a module in evaluation mode, and return its output node.

    Args:
        model: its mode is restored afterwards.
        example_input: [B, ...], floating-point; its shape and dtype matter; its device matters only for a module
            without tensors. Graph and module are compared on the example, and on batches of its size B; if the module
            is wide, these batches are smaller.
        counterpart: maps a parameter, buffer or constant of the module to the tensor that holds its values in the
            graph.

    Raises:
        InputTypeError: the model is not a module, or the example is not a floating-point tensor.
        InputError: a submodule stays in training mode, or a parameter or buffer is sparse.
        ModelError: the model cannot be traced, has an operator without a rule, or differs from its graph.
    """
    if not isinstance(model, nn.Module):
        raise InputTypeError("model", "a torch.nn.Module", type(model).__name__)
    if isinstance(model, torch.jit.ScriptModule):
        raise InputTypeError("model", "a module of Python code", "a ScriptModule", "pass the one it was made from")
    example_input = float_tensor("example_input", example_input)
    if example_input.dim() < 2:
        raise InputError("example_input", "a batch [B, ...]", f"shape {shape_text(example_input.shape)}")
    with evaluating(model), _without_cached_parameters():
        return _capture(model, example_input, counterpart)


def capture_classifier(
    model: nn.Module, example_input: Tensor, counterpart: Callable[[Tensor], Tensor] = lambda t: t
) -> Node:
    """Capture a module whose outputs are [B, K]; arguments and errors as for ``capture``."""
    output = capture(model, example_input, counterpart)
    if len(output.shape) != 1:
        raise InputError("model", "outputs [B, K]", f"[B, {', '.join(map(str, output.shape))}]")
    return output


def example_of(model: nn.Module, example_input: Numbers) -> Tensor:
    """Cast a float64 example to the dtype of the model's first float tensor, if there is one and none is float64."""
    example_input = float_tensor("example_input", example_input)
    if example_input.dtype == torch.float64 and isinstance(model, nn.Module):
        dtypes = {t.dtype for t in itertools.chain(model.parameters(), model.buffers()) if t.is_floating_point()}
        if dtypes and torch.float64 not in dtypes:
            return example_input.to(leading_tensor(model, example_input).dtype)
    return example_input


def leading_tensor(model: nn.Module, example_input: Tensor) -> Tensor:
    """Return the first floating-point parameter or buffer, for the model's device and dtype; else the example."""
    tensors = itertools.chain(model.parameters(), model.buffers())
    return next((tensor for tensor in tensors if tensor.is_floating_point()), example_input)


def _capture(model: nn.Module, example_input: Tensor, counterpart: Callable[[Tensor], Tensor]) -> Node:
    if any(module.training for module in modules_with_a_mode(model)):
        raise InputError("model", "evaluation mode", "a submodule that stays in training mode after model.eval()")
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.layout != torch.strided:  # torch.export may end the process
            raise InputError("model", "dense parameters and buffers", f"{name} in {tensor.layout}", "use to_dense()")
        if tensor.is_meta:
            raise InputError("model", "parameters with values", f"{name} on the device meta", "load its weights")
    device = next((tensor.device for tensor in (*model.parameters(), *model.buffers())), example_input.device)
    if torch.is_autocast_enabled(device.type):
        raise ModelError(
            "model: expected construction outside torch.autocast, which changes the dtypes of its operations"
        )
    # a separate generator, so that the caller's random numbers do not change
    generator = torch.Generator("cpu").manual_seed(0)
    shape = (2 * BATCH + 1, *example_input.shape[1:])
    examples = torch.rand(shape, dtype=torch.float64, generator=generator, device="cpu").to(device, example_input.dtype)
    classifier = _Classifier(model)
    program = _export(classifier, examples[:BATCH])
    with torch.device("cpu"):  # indices and constants; the parameters stay where they are
        output = _Translation(classifier, program, examples.dtype, counterpart).run()
    for node in program.graph.nodes:  # torch keeps the last trace's nodes, and with them constants of the model
        if node.name in program.graph_signature.inputs_to_lifted_tensor_constants:
            node.meta.clear()
    # another batch size, to detect one that was traced as a constant
    _compare(classifier, output, examples[BATCH:], len(example_input))
    wide = 3 * torch.randn(shape, dtype=torch.float64, generator=generator, device="cpu")
    for values in (wide[:BATCH], example_input[:BATCH].detach()):
        _compare_values(classifier, output, values.to(device, example_input.dtype))
    return output


class _Classifier(nn.Module):
    """A module whose output is the logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.training = False

    def forward(self, x: Tensor) -> Tensor:
        return logits_of(self.model(x))


def _run(model: nn.Module, example: Tensor) -> Any:
    """Return the module's outputs; raise ModelError where its forward pass fails, as on inputs of another shape."""
    try:
        with torch.no_grad():
            return model(example)
    except PyrobustError:
        raise
    except Exception as error:
        reason = ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
        shape = shape_text(("B", *example.shape[1:]))
        raise ModelError(f"model: its forward pass failed on inputs {shape} of {example.dtype}: {reason}") from error


def _compare(model: nn.Module, output: Node, example: Tensor, batch: int) -> None:
    """Raise ModelError if graph and module compute different values, in passes on one row or on many."""
    ours, roundoff, largest = _evaluated(output, example)
    tolerance = _TOLERANCE * roundoff
    sizes = {min(batch, max(1, _COMPARED // largest)), min(_MANY, _MANY_ELEMENTS // largest)} - {0, 1}
    # twice, because a trace replaces an attribute that changes at every call by a constant
    first, second = _run(model, example), _run(model, example)
    wrong = _differ(first, ours, tolerance) or _differ(second, first, _REPEATED * roundoff)
    for size in () if wrong else sizes:
        rows = torch.arange(size, device=example.device) % len(example)
        wrong = wrong or _differ(_run(model, example[rows]), ours[rows], tolerance)
    # A module need not run on one row, which it may mistake for an unbatched input, nor with gradients.
    for run, expected in ((_run_row, ours[:1]), (_run_with_gradients, ours)):
        with contextlib.suppress(Exception):
            theirs = run(model, example)
            theirs = theirs.reshape_as(expected) if run is _run_row else theirs
            wrong = wrong or _differ(theirs, expected, tolerance)
    if wrong:
        raise _other_outputs()


def _compare_values(model: nn.Module, output: Node, example: Tensor) -> None:
    """Raise ModelError if graph and module differ on this example; do nothing if the module refuses the example."""
    if not len(example):
        return
    try:
        theirs = _run(model, example)
    except ModelError:
        return
    ours, roundoff, _ = _evaluated(output, example)
    if _differ(theirs, ours, _TOLERANCE * roundoff):
        raise _other_outputs()


def _evaluated(output: Node, example: Tensor) -> tuple[Tensor, Tensor, int]:
    """Return the graph's outputs, the roundoff of its largest value, and its largest tensor's size per example."""
    with torch.no_grad():
        values = forward_all(output, example)
    # Infinite or NaN intermediate values come from large or NaN parameters, and give no tolerance.
    sizes = [value.double().abs().amax() for value in values.values() if value.numel()]
    roundoff = torch.finfo(example.dtype).eps * (1 + max(sizes, default=example.new_zeros(())))
    return values[output], roundoff, max(1, *(value[0].numel() for value in values.values()))


def _differ(theirs: Any, expected: Any, tolerance: Tensor) -> bool:
    if theirs.shape != expected.shape or not torch.equal(theirs.isnan(), expected.isnan()):
        return True
    return bool(((expected.double() - theirs.double()).abs() > tolerance).any())


def _other_outputs() -> ModelError:
    return ModelError(
        "model: expected a forward pass that depends only on its input and parameters, got a captured graph with other "
        "outputs than the module"
    )


def _run_row(model: nn.Module, example: Tensor) -> Any:
    return _run(model, example[:1])


def _run_with_gradients(model: nn.Module, example: Tensor) -> Any:
    with torch.inference_mode(False), torch.enable_grad():
        return model(example.clone().requires_grad_()).detach()


def _export(model: nn.Module, example: Tensor) -> torch.export.ExportedProgram:
    _run(model, example)  # if the forward pass fails, tracing would log torch's own stack before any error
    try:
        with torch.no_grad(), batch_kept_first(model), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch warns about its own code
            # hooks, such as those of weight normalisation and pruning, compute the weight again in every forward pass
            warnings.filterwarnings("ignore", "The tensor attribute", UserWarning)
            program: torch.export.ExportedProgram = torch.export.export(model, (example,), strict=False)
            if _is_functional(program):
                return program
            # an empty table decomposes nothing, but makes in-place operations functional, and inlines subgraphs
            functional: torch.export.ExportedProgram = program.run_decompositions({})
            return functional
    except Exception as error:  # tracing raises errors of all types about the model
        reason = (str(error).strip().splitlines() or [repr(error)])[0]
        hint = "; branches that depend on the data are not supported" if "data-dependent" in reason else ""
        raise ModelError(f"model: torch.export cannot trace it, so it cannot be bounded: {reason}{hint}") from error


_aten = torch.ops.aten
#: Operators whose results nothing else refers to, so that they may be changed in place.
_NEW = {
    _aten.linear.default,
    _aten.conv1d.default,
    _aten.conv2d.default,
    _aten.batch_norm.default,
    _aten.add.Tensor,
    _aten.mul.Tensor,
}
#: Operators that change a tensor in place, and those that return a new one.
_IN_PLACE = {
    _aten.relu_.default: _aten.relu.default,
    _aten.leaky_relu_.default: _aten.leaky_relu.default,
    _aten.hardtanh_.default: _aten.hardtanh.default,
    _aten.silu_.default: _aten.silu.default,
    _aten.hardswish_.default: _aten.hardswish.default,
    _aten.elu_.default: _aten.elu.default,
    _aten.add_.Tensor: _aten.add.Tensor,
    _aten.mul_.Tensor: _aten.mul.Tensor,
}


def _is_functional(program: torch.export.ExportedProgram) -> bool:
    """Whether every call has a translation, so that torch's slow decomposition can be skipped.

    In-place calls are replaced by out-of-place calls if nothing else can read the tensor; unused results are removed.
    """
    for call in reversed(program.graph.nodes):
        if not call.users and (call.target in RULES or _is_fresh(call, ())):  # the call changes nothing
            program.graph.erase_node(call)
    calls = [node for node in program.graph.nodes if node.op not in ("placeholder", "output")]
    for call in calls:
        changed = call.args[0] if call.target in _IN_PLACE else None
        if changed is not None and changed.target in _NEW and len(changed.users) == 1:
            dtypes = {operand.meta["val"].dtype for operand in call.all_input_nodes}
            if len(dtypes) == 1:
                call.target = _IN_PLACE[call.target]
    fresh: set[fx.Node] = set()  # made from numbers alone, such as a mask
    for call in calls:
        if _is_fresh(call, fresh):
            fresh.add(call)
    return all((call.target in RULES or call in fresh) and call.users for call in calls)


def _is_fresh(call: fx.Node, fresh: Container[fx.Node]) -> bool:
    """Whether a call makes a tensor only from numbers and fresh tensors, and changes no tensor."""
    makes = isinstance(call.target, torch._ops.OpOverload) and not call.target._schema.is_mutable
    return call.op == "call_function" and makes and all(operand in fresh for operand in call.all_input_nodes)


#: Side effects of a forward pass.
_CHANGED = {
    OutputKind.USER_INPUT_MUTATION: "the input",
    OutputKind.BUFFER_MUTATION: "the buffer {}",
    OutputKind.PARAMETER_MUTATION: "the parameter {}",
}


class _Translation:
    """The translation of an exported program, call by call."""

    def __init__(
        self,
        model: nn.Module,
        program: torch.export.ExportedProgram,
        dtype: torch.dtype,
        counterpart: Callable[[Tensor], Tensor],
    ) -> None:
        self.model = model
        self.counterpart = counterpart
        self.program = program
        self.lowering = Lowering(dtype)
        self.values: dict[fx.Node, Any] = {}

    def run(self) -> Node:
        constants = dict(self._constants())
        inputs = set(self.program.graph_signature.user_inputs)
        composites, replaced = self._composites()
        for call in self.program.graph.nodes:
            if call in replaced:
                continue
            if call in composites:
                operand, rule, numbers = composites[call]
                self._enter(call)
                self.values[call] = self._typed(call, rule(self.lowering, self.values[operand], *numbers))
            elif call.op == "placeholder":
                if call.name in constants:
                    self.values[call] = Constant.of(self.counterpart(constants[call.name]))
                elif call.name in inputs:
                    shape = tuple(call.meta["val"].shape[1:])
                    self.values[call] = Input(name="the input", shape=shape, inputs=())
            elif call.op == "call_function":
                self.values[call] = self._lower(call)
            elif call.op == "output":
                return self._output(call)
        raise ModelError("model: expected an output, got none")

    def _composites(self) -> tuple[dict[fx.Node, tuple[fx.Node, Rule, tuple[float, ...]]], set[fx.Node]]:
        """Match ``COMPOSITES``; map each match's last call to (operand, rule, numbers); also return its other calls."""
        ends: dict[fx.Node, tuple[fx.Node, Rule, tuple[float, ...]]] = {}
        replaced: set[fx.Node] = set()
        inputs = set(self.program.graph_signature.user_inputs)
        dependent: set[fx.Node] = set()  # calls that depend on the input
        for call in self.program.graph.nodes:
            if call.name in inputs or not dependent.isdisjoint(call.all_input_nodes):
                dependent.add(call)
            for pattern, rule in COMPOSITES.get(call.target, ()):
                matched = match(call, pattern)
                if matched is not None and matched[0] in dependent:
                    ends[call] = matched[0], rule, matched[2]
                    replaced |= matched[1]
        return ends, replaced

    def _constants(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (name of the placeholder, tensor) for the module's parameters; the tensors are its own, not copies."""
        signature = self.program.graph_signature
        named: dict[str, Tensor] = dict(self.model.named_parameters(remove_duplicate=False))
        named.update(self.model.named_buffers(remove_duplicate=False))
        for name, target in [*signature.inputs_to_parameters.items(), *signature.inputs_to_buffers.items()]:
            yield name, named[target] if target in named else self.program.constants[target]
        for name, target in signature.inputs_to_lifted_tensor_constants.items():
            yield name, self.program.constants[target]

    def _enter(self, call: fx.Node) -> Lowering:
        """Return the state that rules see at a call."""
        self.lowering.name, self.lowering.source = _call_text(call), _source(call)
        result: Any = call.meta.get("val")
        value = result[0] if isinstance(result, tuple | list) and result else result
        is_tensor = isinstance(value, Tensor)
        self.lowering.shape = tuple(value.shape[1:]) if is_tensor else None
        self.lowering.dtype = value.dtype if is_tensor else None
        self.lowering.device = value.device if is_tensor else None
        return self.lowering

    def _lower(self, call: fx.Node) -> Any:
        lowering = self._enter(call)
        arguments = fx.map_arg(call.args, lambda node: self.values[node])
        options = {key: fx.map_arg(option, lambda node: self.values[node]) for key, option in call.kwargs.items()}
        rule: Rule | None = RULES.get(call.target)
        if not _is_node([*arguments, *options.values()]):
            if torch.Tag.nondeterministic_seeded in getattr(call.target, "tags", ()):
                raise lowering.unsupported(f"{call.target} gives random numbers")
            rule = functools.partial(constant_call, target=call.target)
        if rule is None:
            raise lowering.unsupported(f"no bound rule for {call.target}; {_advice(call, arguments)}")
        if call.target not in MOVES:
            map_aggregate((arguments, options), _check_in_place)
        try:
            return self._typed(call, rule(lowering, *arguments, **options))
        except PyrobustError:
            raise
        except Exception as error:  # the rule does not take these arguments
            raise lowering.unsupported(f"{call.target} is called in a way that has no bound rule") from error

    def _typed(self, call: fx.Node, result: Any) -> Any:
        """Return the result of a rule; raise ModelError if the call rounds to a dtype other than the input's."""
        traced: Any = call.meta.get("val")
        several = isinstance(result, list | tuple) and isinstance(traced, list | tuple)
        dtype = self.lowering.input_dtype
        for value, tensor in zip(result, traced, strict=False) if several else ((result, traced),):
            if not isinstance(value, Node | Displaced) or not isinstance(tensor, Tensor):
                continue
            if not tensor.is_floating_point() or torch.promote_types(tensor.dtype, dtype) != tensor.dtype:
                raise self.lowering.unsupported(f"it rounds values of {dtype} to {tensor.dtype}")
        return result

    def _output(self, call: fx.Node) -> Node:
        results = []
        outputs: Any = call.args[0]
        for value, spec in zip(outputs, self.program.graph_signature.output_specs, strict=True):
            if spec.kind in _CHANGED:
                what = _CHANGED[spec.kind].format(_own_name(spec.target or ""))
                raise ModelError(
                    f"model: {_call_text(value)} changes {what} in place, which is not supported; use "
                    "inplace=False, or x.clone() before it"
                )
            results.append(value)
        if len(results) != 1 or not isinstance(results[0], fx.Node):
            raise ModelError(f"model: expected one tensor of logits, got {len(results)} results")
        result = _check_in_place(self.values[results[0]])
        if not isinstance(result, Node):
            raise ModelError("model: expected logits that depend on the input, got a constant")
        return result


def _call_text(call: fx.Node) -> str:
    stack = list(call.meta.get("nn_module_stack", {}).values())
    path = _own_name(stack[-1][0] if stack else "")
    return f"{path or 'the model itself'} ({_operator(call.target)})"


def _own_name(name: str) -> str:
    """Return the name that a module, parameter or buffer has in the model, given its name in ``_Classifier``."""
    return name.removeprefix("model").removeprefix(".")


def _operator(target: Any) -> str:
    return str(target).removesuffix(".default")


#: Where the code of torch's own modules lies.
_TORCH = str(Path(torch.__file__).parent)


def _source(call: fx.Node) -> str:
    """Return the call's place in the user's code: the innermost frame of the stack trace outside torch."""
    lines = [line.strip() for line in (call.meta.get("stack_trace") or "").splitlines() if line.strip()]
    places = [i for i, line in enumerate(lines) if line.startswith("File ") and _TORCH not in line]
    places = [i for i in places if lines[i].split('"')[1] != __file__]
    if not places:
        return ""
    return f", called in {' '.join(lines[places[-1] : places[-1] + 2])}"


def _advice(call: fx.Node, arguments: Sequence[Any]) -> str:
    """Return advice about an operator without a rule."""
    tensors = [argument for argument in call.all_input_nodes if isinstance(argument.meta.get("val"), Tensor)]
    is_elementwise = torch.Tag.pointwise in getattr(call.target, "tags", ())
    if is_elementwise and len(arguments) == 1 and not call.kwargs:
        return "pyrobust.bounds.register_rule adds one"
    if is_elementwise and len(tensors) == 1:
        return "express it with supported functions, or in one operator for pyrobust.bounds.register_rule"
    return "express it with supported operators (see the guide to bounds), or move it out of the model"


def _is_node(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_is_node(element) for element in value)
    return isinstance(value, Node | Displaced)


def _check_in_place(value: Any) -> Any:
    """Return the value, but raise the error of ``Displaced`` elements, whose first dimension is not the batch."""
    if isinstance(value, Displaced):
        raise value.error
    return value
