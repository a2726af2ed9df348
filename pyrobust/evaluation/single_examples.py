"""Treat any data set as single labelled examples, and any model as a function from one example to one class.

A model takes an example either alone (just as a data set yields it) or as a batch of one. The first example shows which
form a model takes.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from pyrobust.attacks import EOT
from pyrobust.attacks.engine.queries import Queries
from pyrobust.checks import as_tensor, finite_values, first_wrong, shape_text, shown
from pyrobust.correctness import Judge
from pyrobust.errors import InputError, InputTypeError, ModelError
from pyrobust.evaluation.attack_chunk import check_adversarial
from pyrobust.evaluation.datasets import items
from pyrobust.runner import Runner, evaluation_mode
from pyrobust.zoo.rows import is_batch


@dataclass(frozen=True)
class LabelledExample:
    """One labelled example.

    Attributes:
        input: the example alone, without a batch dimension.
        label: its true label.
        from_batch: whether the data set yielded the example in a batch.
    """

    input: Any
    label: Any
    from_batch: bool

    def form(self, batched: bool) -> tuple[Any, Any]:
        """Return copies of input and label, alone or in a batch of one.

        In a batch of one, the integer label of a tensor input becomes an int64 tensor of shape [1].
        """
        if not batched:
            return _copied(self.input), _copied(self.label)
        number = as_class(self.label) if isinstance(self.input, Tensor) else None
        label = _batch_of_one(self.label) if number is None else torch.tensor([number], device=self.input.device)
        return _copied(_batch_of_one(self.input)), _copied(label)


def single_examples(name: str, dataset: Iterable[Any]) -> Iterator[LabelledExample]:
    """Yield the examples of a data set or loader, one by one.

    The data set yields pairs (x, y): an example and its label, or a batch and its labels. One batch of tensors or
    arrays also counts as a data set. A pair holds a batch if it comes from a ``DataLoader``, or if its labels are a
    tensor or array [N], or a list for a tensor or array x. ``name`` is the argument's name in error messages.

    >>> [example.input for example in single_examples("data", [("good", 1), ("bad", 0)])]
    ['good', 'bad']
    >>> [example.label.item() for example in single_examples("data", (torch.zeros(2, 3), torch.tensor([1, 0])))]
    [1, 0]
    """
    if isinstance(dataset, tuple | list) and len(dataset) == 2 and _is_array(dataset[0]) and is_batch(*dataset):
        dataset = [tuple(dataset)]
    batches = isinstance(dataset, DataLoader) and dataset.batch_sampler is not None
    for item in items(name, dataset):
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise InputTypeError(name, "pairs (x, y)", type(item).__name__)
        x, y = item
        if _is_array(x) and isinstance(y, list | tuple if batches else list):
            y = np.asarray(y)
        if not batches and not (_is_array(y) and y.ndim):
            yield LabelledExample(_checked(name, x), y, False)
            continue
        if _is_array(x) and (not _is_array(y) or y.ndim != 1 or not x.ndim or len(x) != len(y)):
            got = shape_text(y.shape) if _is_array(y) else f"{len(y)} labels"
            raise InputError(
                name, "x [...] with one label, or x [N, ...] with y [N]", f"x {tuple(x.shape)} and y {got}"
            )
        for i in range(len(y)):
            yield LabelledExample(_checked(name, _row(name, x, i, len(y))), y[i], True)


@dataclass(frozen=True)
class Logits:
    """Logits [1, K] of one example, and whether the model returned them as a batch."""

    values: Tensor
    batched: bool


class SingleModel:
    """Tells for one example at a time whether a model predicts the true label.

    Args:
        model: a module or callable that returns a label or logits, or an object whose ``predict`` returns a label.
            Logits have shape [1, K] or [K]; they are a float tensor, an array, an object with ``.logits`` or a dict
            with "logits". If the input contains tensors and a module also has ``predict``, the module itself is called
            instead of its ``predict``.

    Raises:
        InputTypeError: a model of the wrong type.

    >>> model = SingleModel(lambda text: "positive" if "good" in text else "negative")
    >>> [model.correct(LabelledExample(text, "positive", False)) for text in ("good", "bad")]
    [True, False]
    """

    def __init__(self, model: Any) -> None:
        predict = getattr(model, "predict", None)
        self._predict: Callable[[Any], Any] | None = predict if _takes_one_argument(predict) else None
        if self._predict is None and not callable(model):
            raise InputTypeError(
                "model", "a torch.nn.Module, a callable or an object with predict(x)", type(model).__name__
            )
        self.model = model
        self._calls_model = callable(model) and (self._predict is None or isinstance(model, nn.Module))
        self.runner = Runner(model if self._calls_model else self._predict)  # type: ignore[arg-type]  # checked above: one of them is callable
        self._queries = Queries(self.runner)
        # Applies the rule of ``pyrobust.correctness`` to logits that are already computed.
        self._logits_judge = Judge(Runner(lambda logits: logits, batch_size=1))
        #: Whether the model takes batches of one; None until the first example.
        self.batched: bool | None = None

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """Enter evaluation mode without gradients, as ``Runner.session`` does."""
        with self.runner.session(gradients=True), evaluation_mode(self.model):
            yield

    def correct(self, example: LabelledExample) -> bool:
        """Whether the model predicts the example's label."""
        if self.batched is None:
            self.batched = self._find_form(example)
        return self.correct_at(example.form(self.batched)[0], example.label)

    def correct_at(self, x: Any, label: Any) -> bool:
        """Whether the model predicts this label for an input that is already in the form that the model takes."""
        return self._is_label(self._answer(x), label)

    def device_input(self, x: Any) -> Any:
        """Move a tensor, or those in a dict or tuple, to the model's device; a lone float tensor gets its dtype."""
        if not self._calls_model:
            return x
        if isinstance(x, np.ndarray) and isinstance(self.model, nn.Module):
            x = as_tensor(x)
        if isinstance(x, Tensor):
            x = x.detach()
            if not x.is_floating_point():
                return x.to(self.runner.device_for(x))
            self.runner.follow(x)
            return x.to(self.runner.device_for(x), self.runner.dtype)
        if isinstance(x, Mapping):
            return {name: self._on_device(value) for name, value in x.items()}
        return tuple(map(self._on_device, x)) if isinstance(x, tuple) else x

    def _on_device(self, value: Any) -> Any:
        return value.detach().to(self.runner.device_for(value)) if isinstance(value, Tensor) else value

    def _find_form(self, example: LabelledExample) -> bool:
        """Whether the model is called with batches of one.

        If the example is a tensor or a row of a batch, a batch of one is tried first. This form is chosen if the model
        returns a batch for it. Otherwise, the example is tried alone. Only if the model cannot answer for the example
        alone, a batch of one is tried. It is tried last because a function of one text also returns something for a
        list of one text.
        """
        problem: Exception | None = None
        first = example.from_batch or (self._calls_model and isinstance(example.input, Tensor))
        for batched, batch_expected in [(True, True)] * first + [(False, False), (True, False)]:
            try:
                answer = self._answer(example.form(batched)[0])
                _single(answer, example.label)
                if not batch_expected or _is_batch(answer):
                    return batched
            except Exception as error:  # raised by the model, which may take the other form
                problem = problem or error
        assert problem is not None
        raise problem

    def _answer(self, x: Any) -> Any:
        """Return ``Logits`` if the model returns logits of one example; else its answer, which should be a label."""
        x = self.device_input(x)
        with self.session():
            uses_predict = self._predict is not None and not (self._calls_model and _has_tensor(x))
            if uses_predict and self._predict is not None:
                return self._predict(x)
            if isinstance(self.model, EOT):
                return Logits(self._queries.logits(x), batched=True)
            output = self.model(x)
        logits = getattr(output, "logits", output)
        if isinstance(logits, Mapping) and "logits" in logits:
            logits = logits["logits"]
        if logits is output and not isinstance(output, Tensor):
            logits = _numbers(output)
        if not isinstance(logits, Tensor) or not logits.is_floating_point():
            return output
        logits = logits.detach()
        if logits.dim() == 1 and len(logits) > 1:
            return Logits(logits.unsqueeze(0), batched=False)
        return Logits(logits, batched=True) if logits.dim() == 2 and len(logits) == 1 else logits

    def _is_label(self, answer: Any, label: Any) -> bool:
        if not isinstance(answer, Logits):
            return _equal(_single(answer, label), _element(label))
        number = as_class(label)
        if number is None:
            raise InputTypeError("dataset", "y to be integers, because the model returns logits", _kind(label))
        return bool(self._logits_judge.correct(answer.values, torch.tensor([number]), "dataset")[0])


def as_class(label: Any) -> int | None:
    """Return the class index of one integer (Python, numpy, or a tensor or array of one element), else None.

    >>> as_class(np.int64(3)), as_class("3"), as_class(True)
    (3, None, None)
    """
    element = _element(label)
    return element if isinstance(element, int) and not isinstance(element, bool) else None


def check_adversarial_input(x_adv: Any, x: Any) -> Any:
    """Return an attack's x_adv, as a float tensor if x is one; raise if its shape is wrong or a value is not finite."""
    if isinstance(x, Tensor) and x.is_floating_point():
        return check_adversarial("attack_fn", "the function", x_adv, x)
    if x_adv is None:
        raise InputTypeError("attack_fn", "the function to return an adversarial input", None)
    if _is_array(x) and _is_array(x_adv) and tuple(x_adv.shape) != tuple(x.shape):
        raise InputError("attack_fn", f"the function to return shape {shape_text(x.shape)}", shape_text(x_adv.shape))
    for leaf in tree_leaves(x_adv):
        if _is_array(leaf) or isinstance(leaf, float | np.floating):
            values = np.asarray(leaf.detach().double().cpu() if isinstance(leaf, Tensor) else leaf)
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                wrong = first_wrong(values, ~np.isfinite(values))
                raise InputError("attack_fn", "the function to return finite values", wrong)
    return x_adv


def _takes_one_argument(function: Any) -> bool:
    if not callable(function):
        return False
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature
        return True
    return True


def _single(answer: Any, label: Any) -> Any:
    """Return the label that a model answered for one example; raise if the answer has several labels, or none."""
    if isinstance(answer, list | tuple) and not isinstance(_element(label), list | tuple):
        answer = answer[0] if len(answer) == 1 else answer
        if isinstance(answer, list | tuple):
            raise _no_answer(f"{type(answer).__name__} of {len(answer)}")
    answer = _element(answer)
    if _is_array(answer) and not (_is_array(label) and answer.shape == label.shape):
        raise _no_answer(f"{answer.dtype} of shape {shape_text(answer.shape)}")
    if answer is None and label is not None:
        raise _no_answer("None")
    return answer


def _is_batch(answer: Any) -> bool:
    if isinstance(answer, Logits):
        return answer.batched
    return answer.ndim > 0 if _is_array(answer) else isinstance(answer, list | tuple)


def _no_answer(got: str) -> ModelError:
    return ModelError(
        f"model: expected logits [K] or [1, K], an object with .logits, or one label, for one example, got {got}; "
        "wrap the model in a function that returns the logits, or the class, alone"
    )


def _equal(answer: Any, label: Any) -> bool:
    result = answer == label
    return bool(result.all()) if _is_array(result) else bool(result)


def _element(value: Any) -> Any:
    """Return the element of a one-element tensor or array (0-d or 1-d); return any other value unchanged."""
    if isinstance(value, np.generic):
        return value.item()
    return value.item() if _is_array(value) and value.ndim <= 1 and np.prod(value.shape) == 1 else value


def _kind(label: Any) -> str:
    if isinstance(label, str):
        return repr(label)
    try:
        return str(torch.as_tensor(label).dtype)
    except (TypeError, ValueError, RuntimeError):
        return shown(label)


def _numbers(output: Any) -> Any:
    """Convert arrays and lists of floats to a float tensor; return any other value unchanged."""
    if not isinstance(output, np.ndarray | list):
        return output
    try:
        values = np.asarray(output)
    except ValueError:  # ragged
        return output
    return torch.from_numpy(values) if values.dtype.kind == "f" and values.ndim else output


def _has_tensor(x: Any) -> bool:
    if isinstance(x, Mapping):
        return any(map(_has_tensor, x.values()))
    return isinstance(x, Tensor) or (isinstance(x, tuple | list) and any(map(_has_tensor, x)))


def _is_array(value: Any) -> bool:
    return isinstance(value, Tensor | np.ndarray)


def _checked(name: str, x: Any) -> Any:
    if isinstance(x, Tensor):
        x = x.detach()
        if x.is_floating_point():
            finite_values(f"{name}: x", x)
    return x


def _row(name: str, x: Any, i: int, count: int) -> Any:
    """Return example i of a batch: item i of it, of each value of a dict, or of each array in a tuple or list."""
    if isinstance(x, Mapping):
        return {key: _row(name, value, i, count) for key, value in x.items()}
    if (
        isinstance(x, tuple | list)
        and x
        and all(_is_array(array) and array.ndim and len(array) == count for array in x)
    ):
        return tuple(array[i] for array in x)
    if not hasattr(x, "__len__") or len(x) != count:
        raise InputError(name, f"x with one example for each of the {count} labels", shown(x))
    return x[i]


def _batch_of_one(value: Any) -> Any:
    if _is_array(value):
        return value[None]
    if isinstance(value, Mapping):
        return {key: _batch_of_one(item) for key, item in value.items()}
    return tuple(map(_batch_of_one, value)) if isinstance(value, tuple) else [value]


def _copied(value: Any) -> Any:
    """Return a copy, so that model and attack cannot write to the data set's memory."""
    return value.clone() if isinstance(value, Tensor) else copy.deepcopy(value)
