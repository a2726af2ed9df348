"""A probe of what every certificate assumes: a row's logits depend on that row alone and are reproducible.

The proofs of certified robustness are about a function of one input. They do not apply to a model whose output for a
row depends on more than this row: on other rows of the batch, on the row's position, on the size of the batch, on
earlier calls or on chance. The probe runs rows of a batch again: among other rows, in another order, and alone. The
probe can refuse a model. Passing the probe proves nothing, because a model may depend on conditions that the probe does
not vary. docs/decisions/row-independence.md lists the dependences that the probe finds, and the probability of finding
each.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from pyrobust.arithmetic import watched
from pyrobust.errors import RowDependenceError
from pyrobust.machine import filled_memory, is_out_of_memory
from pyrobust.row_causes import Rows, describe, find_cause, mixing_problem, random_problem, same_bits

# Only few rows are compared at unchanged places, so that almost all of the batch around them changes.
_SHARE_COMPARED = 16
#: Passes over the whole first batch, besides those of its rows alone.
_FIRST = ("repeat", "zeros", "ones", "others", "permuted", "repeat")
#: Passes over random later batches: half of the passes compare with the first batch.
_LATER = (*["later"] * len(_FIRST), *_FIRST)
#: Rows of the first batch that run alone: a deviation in 5 % of rows or calls shows with probability 0.96.
FIRST_ALONE = 64
#: The first EARLY batches, or groups of smaller batches with EARLY_ROWS rows, each give a row that runs again in a
#: small batch of EARLY_TOGETHER such rows; after that, only random batches are probed.
EARLY, EARLY_ROWS, EARLY_TOGETHER = 177, 256, 8
#: Probability of a whole pass, and of a row alone, at each later batch: together below 1 % of a run's passes.
LATER, LATER_ALONE = 0.004, 0.005
#: Probability that a later chunk of a sweep of attacks or proofs is probed.
CHECKED = 0.05

_EVENTS = {
    "repeat": "when the same batch ran again",
    "later": "between the first batch and a later one",
    "zeros": "when the other rows became zeros",
    "ones": "when the other rows became ones",
    "others": "when the other rows became other images",
    "permuted": "when the rows of the batch were permuted",
    "alone": "when the row ran in a smaller batch",
}
#: The rows around those compared, as functions of the batch.
_OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "zeros": torch.zeros_like,
    "ones": torch.ones_like,
    "others": lambda batch: 1 - batch.flip(0),
}
_EXPECTED = "logits that depend on their own row alone"
_ADVICE = {
    "repeat": (
        "it changes from call to call: make it a function of its input, without counters, other state, uninitialised "
        "memory (torch.empty) or draws of its own; on a GPU, replace kernels that do not repeat; attacks take a random "
        "model as pyrobust.attacks.EOT(model, samples)"
    ),
    "mixed": "it mixes the rows of a batch: normalise with stored statistics, and operate along dimensions 1 on",
    "permuted": (
        "its answer depends on the place of a row, or was kept from an earlier batch: compute every row alike, and "
        "keep no results between calls"
    ),
    "alone": (
        "its answer depends on the size of the batch or on the other rows: compute every row alike, in batches of any "
        "size, and keep no results between calls"
    ),
}
_RANDOM = (
    "it draws random numbers: draw them once and keep them, or seed a generator in forward, so that it is a function "
    "of its input, and certify that function; certificates of a random model would need fresh draws for every row, "
    "which is not checked; attacks take a random model as pyrobust.attacks.EOT(model, samples)"
)
_ROUNDING = (
    "only its rounding depends on the other rows; the grid guarantee needs equal bits: use grid=None (--grid none), "
    "which idealises the arithmetic"
)

# If bits are not part of the guarantee, logits at unchanged shape and place differ only by rounding up to this many
# units of their row's largest |logit|: experts of a mixture get batches of other sizes.
_ROUNDING_UNITS = 64
# Copies of a row, unchanged and with its last bits changed, distinguish a model that amplifies rounding from one that
# depends on other rows: number of copies, how many must differ, and by which share of the deviation in doubt.
_COPIES, _SENSITIVE_COPIES, _SENSITIVE_SHARE = 32, 4, 1 / 16
_PERTURBATION_UNITS, _MOST_PERTURBATION = 64, 1e-5  # of coarse arithmetic: two units
# Largest of the small batches of other sizes.
_MOST_FRESH = 16
# Number of rows in doubt from which their share counts, and the largest share of copies that must differ.
_COMMON, _MOST_SENSITIVE = 8, 0.9
# Number of rows in doubt that are examined, those that deviate most.
_MOST_EXAMINED = 4

#: Device, address and version of each tensor.
Versions: TypeAlias = tuple[tuple[torch.device, int, int], ...]


class _Compared(NamedTuple):
    """Rows x [m, ...] from a batch of ``rows`` rows, their positions [m] in the batch, and their logits [m, K]."""

    rows: int
    positions: Tensor
    x: Tensor
    logits: Tensor


class RowProbe:
    """Checks, on the batches that a model is run on, that a row's logits depend on this row alone and are reproducible.

    Rows are run a second time, and the logits of both times are compared. If the row's position and the shape of its
    batch are the same both times, the logits are compared bit by bit. Otherwise, they are compared up to rounding: the
    tolerance is √ε times the row's largest |logit|, where ε is the machine epsilon of the batch's dtype. A larger
    deviation is accepted if changing the last bits of the row itself has a similar effect on its logits.

    Args:
        model: module or callable. If a probe fails, its submodules are searched for the cause.
        logits: function that returns the logits [N, K] of a batch [N, ...]; it is called in a session of the model's
            ``Runner``.
        seed: seed for the random choice of the rows and of the later batches that are probed. It changes no result. By
            default, every run uses a different seed.

    >>> def coupled(x):
    ...     return torch.cat([x, x.mean().expand(len(x), 1)], dim=1)
    >>> RowProbe(coupled, coupled).logits(torch.arange(8.0)[:, None], exact=True)
    Traceback (most recent call last):
    pyrobust.errors.RowDependenceError: model: expected logits that depend on their own row alone, ...
    """

    def __init__(self, model: Any, logits: Callable[[Tensor], Tensor], seed: int | None = None) -> None:
        self._model = model
        self._forward = logits
        self._random = random.Random(seed)
        self._generator = torch.Generator("cpu").manual_seed(self._random.getrandbits(63))
        self._versions: Versions = ()
        self._single = True  # whether all batches have one row, as far as is known
        self._format = torch.contiguous_format  # of the batches
        #: Forward passes of the probe so far, and rows in them.
        self.passes = self.rows = 0
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._early = self._waiting = 0  # early rows kept so far, and rows of batches since the last of them
        self._held: list[tuple[Tensor, Tensor]] = []  # early rows [1, ...] to run again, with their logits [1, K]
        self._sizes: set[int] = set()  # of the batches that had every probe
        self._single_done = False  # whether a batch of one row has been probed
        self._first: _Compared | None = None
        self._first_rows = 0  # rows of the first batch that are not copies
        self._bits_repeat = True
        self._small: int | None = 1  # rows of a small batch; None for a model that takes one size only
        self._small_ran = False
        self._fresh = 1  # rows of the last small batch of another size

    def expect_known_modules(self, *, single: bool = False) -> None:
        """Raise RowDependenceError if a module is known to mix rows or to draw random numbers; call it in a session.

        If the model's tensors have changed since the last call, for example by training, the model counts as another
        one. The probe of the model then starts again.

        Args:
            single: whether every batch has one row, so that no other row can affect its logits.
        """
        self._single = single
        versions = tensor_versions(self._model) if isinstance(self._model, nn.Module) else ()
        if versions != self._versions:
            self._versions = versions
            self._begin_anew()
        if self._first is None and isinstance(self._model, nn.Module):
            for name, module in self._model.named_modules():
                problem = random_problem(module) or ("" if single else mixing_problem(module))
                if problem:
                    raise RowDependenceError(
                        f"model: expected {_EXPECTED}, got {describe(name, module)}, which {problem}"
                    )

    def logits(self, batch: Tensor, *, exact: bool, rows: int | None = None) -> Tensor:
        """Return the logits [N, K] of a batch [N, ...] of a run; if a probe is due, probe the model on this batch.

        Args:
            batch: a batch that the constructor's ``logits`` accepts. A probe may reuse its memory, for example for
                permuted rows, and then restores its values.
            exact: whether to compare bit by bit even if a repeat of the batch does not give the same bits; if False,
                such a batch is compared up to rounding.
            rows: number of rows to consider, at least one. The rows after these are copies that only pad the batch.
                Default: all.

        Raises:
            RowDependenceError: a row's logits depend on other rows, on the row's position or on the batch's size; or
                they differ when the batch is repeated. The message names the module that is the likely cause.
        """
        rows = len(batch) if rows is None else rows
        whole: tuple[str, ...] = ()
        alone, early = 0, False
        if self._is_first(len(batch), rows) or (exact and rows > 1 and len(batch) not in self._sizes):
            whole, alone = (_FIRST, FIRST_ALONE) if rows > 1 else (("repeat",), 0)
            self._sizes.add(len(batch))
        else:
            whole = (self._random.choice(_LATER),) if self._random.random() < LATER else ()
            if self._early >= EARLY - 1:
                alone = int(self._random.random() < LATER_ALONE)
            else:
                self._waiting += rows
                early = self._waiting >= EARLY_ROWS
        logits = self._probed(batch, rows, whole, alone, exact)
        if early:
            logits = logits.clone()  # the model may reuse their memory
            self._early, self._waiting = self._early + 1, 0
            self._probe_early(batch, self._random.randrange(rows), logits)
        return logits

    def _probe_early(self, batch: Tensor, row: int, logits: Tensor) -> None:
        """Keep a row of an early batch with its logits; later, run such rows of several batches in one small batch."""
        held = self._held
        if held and (held[0][0].shape[1:], held[0][0].dtype) != (batch.shape[1:], batch.dtype):
            held.clear()
        held.append((batch[row : row + 1].clone(), logits[row : row + 1].clone()))
        if len(held) == EARLY_TOGETHER or self._early == EARLY - 1:
            rows, expected = (torch.cat(parts) for parts in zip(*held, strict=True))
            held.clear()
            self._compare_early(rows, expected)

    def check(self, batch: Tensor) -> None:
        """Probe the model on a batch [N, ...] of a chunk; for attacks and proofs, whose forward passes are not probed.

        The first call runs every probe. Each later call probes with probability ``CHECKED``: it runs one probe and also
        runs one row alone. The errors are those of ``logits``.
        """
        if self._is_first(len(batch), len(batch)):
            self.logits(batch, exact=False)
        elif self._random.random() < CHECKED:
            self._probed(batch, len(batch), (self._random.choice(_LATER),), 1, exact=False)

    def _is_first(self, size: int, rows: int) -> bool:
        """Whether a batch is the first with one row, the first with several rows, or far larger than the latter."""
        if rows == 1:
            return not self._single_done and self._first is None
        return self._first is None or (2 * self._first_rows < size and 2 * self._first_rows < rows)

    def _probed(self, batch: Tensor, rows: int, whole: tuple[str, ...], alone: int, exact: bool) -> Tensor:
        """Return a batch's logits; run the probes that ``whole`` names, and probe some rows (``alone``) one by one."""
        channels_last = batch.dim() == 4 and batch.is_contiguous(memory_format=torch.channels_last)
        self._format = torch.channels_last if channels_last and not batch.is_contiguous() else torch.contiguous_format
        if not whole and (rows == 1 or not alone):
            return self._forward(batch)
        before = batch.clone() if whole else batch
        logits = self._forward(batch).clone()  # a model may return a view of its input
        if rows == 1:
            self._probe_single(batch, before, logits, exact)
            return logits
        for kind in whole:
            self._probe(kind, batch, before, logits, exact)
        if alone:
            self._compare_alone(Rows(before, self._choose(rows, alone, batch.device)), logits)
        if whole == _FIRST:
            positions = self._choose(rows, len(batch) // _SHARE_COMPARED, batch.device)
            self._first = _Compared(len(batch), positions, before[positions], logits[positions])
            self._first_rows = rows
        return logits

    def _run(self, batch: Tensor) -> Tensor:
        self.passes += 1
        self.rows += len(batch)
        return self._forward(batch.contiguous(memory_format=self._format))

    def _probe(self, kind: str, batch: Tensor, before: Tensor, logits: Tensor, exact: bool) -> None:
        """Run the probe named ``kind``: it runs rows a second time and compares the logits of both times."""
        if kind == "permuted":
            self._probe_permuted(batch, before, logits)
            return
        if kind == "repeat":
            everywhere = torch.arange(len(batch), device=batch.device)
            compared, others = _Compared(len(batch), everywhere, before, logits), before
        elif kind == "later":
            if self._first is None or self._first.rows != len(batch):
                return
            compared, others = self._first, before
        else:
            # The first row and the last row, on which others may depend, are each compared in one pass and replaced in
            # others.
            ends = {"zeros": [0], "ones": [len(batch) - 1]}.get(kind, [])
            positions = self._choose(len(batch), len(batch) // _SHARE_COMPARED, batch.device, ends)
            compared = _Compared(len(batch), positions, before[positions], logits[positions])
            others = _OTHERS[kind](before)
        changed = others.clone()
        changed[compared.positions] = compared.x
        drawn = _random_state(batch.device)
        # In the batch's memory: an answer kept for this address shows, because other rows have run there.
        if kind == "repeat":
            with filled_memory():
                output = self._run(batch)
        else:
            output = self._run(changed.clone())
        got = output[compared.positions]
        if not same_bits(got, compared.logits):
            drew = drawn != _random_state(batch.device)
            if exact or drew or not self._is_rounding(kind, got, compared.logits):
                self._refuse_mixed(kind, before, changed, compared, got, drew=drew)
            if kind == "repeat":
                self._bits_repeat = False  # for example, because of atomic sums on a GPU
        if kind in _OTHERS:
            self._compare_fresh(changed, output)

    def _is_rounding(self, kind: str, got: Tensor, expected: Tensor) -> bool:
        """Whether the logits of rows at unchanged positions differ by no more than rounding can explain."""
        if kind == "repeat" or not self._bits_repeat:
            return bool(_close(got, expected).all())
        return bool(_close(got, expected, _ROUNDING_UNITS * torch.finfo(expected.dtype).eps).all())

    def _probe_permuted(self, batch: Tensor, before: Tensor, logits: Tensor) -> None:
        """Run the rows in another order in the same memory, to expose a model that caches by shape or address."""
        order = torch.tensor(self._random.sample(range(len(batch)), len(batch)), device=batch.device)
        rows = Rows(before[order], torch.arange(len(batch), device=batch.device))
        batch.copy_(rows.batch)
        got = self._run(batch).clone()
        batch.copy_(before)
        self._expect_close("permuted", Rows(before, order), logits[order], rows, got)
        self._compare_fresh(rows.batch, got)

    def _probe_single(self, batch: Tensor, before: Tensor, logits: Tensor, exact: bool) -> None:
        """Run the single row again many times, with other inputs in between, in the same memory."""
        if self._single_done or not self._single:
            self._single_done = True
            self._probe("repeat", batch, before, logits, exact)
            return
        outputs = []
        for change in _OTHERS.values():
            batch.copy_(change(before))
            outputs.append((batch.clone(), self._run(batch).clone()))
            batch.copy_(before)
            self._probe("repeat", batch, before, logits, exact)
        if all(same_bits(output, logits) for _, output in outputs):
            # The model is constant or kept its first answer; a batch of another size decides.
            self._compare_fresh(torch.cat([x for x, _ in outputs]), torch.cat([z for _, z in outputs]))
        for _ in range(FIRST_ALONE - len(outputs)):
            self._probe("repeat", batch, before, logits, exact)
        self._single_done = True

    def _compare_alone(self, rows: Rows, logits: Tensor) -> None:
        """Run rows in the smallest batch that the model takes, and compare their logits with those of the batch [N, K].

        In every second row, the last bit of the largest element is changed, so that the model cannot have stored the
        logits of this row.
        """
        batch, positions = rows
        if self._small is None:
            return
        outputs = []
        for number, i in enumerate(positions.tolist()):
            row = batch[i : i + 1]
            outputs.append(self._run_small(_last_bit_changed(row) if number % 2 else row))
        if self._small is not None:
            got = torch.cat([output[:1] for output in outputs if output is not None])
            self._expect_close("alone", rows, logits[positions], None, got)

    def _compare_early(self, rows: Tensor, logits: Tensor) -> None:
        """Run rows of earlier batches, every second one changed, in a small batch; compare with their ``logits``."""
        changed = rows.clone()
        for i in range(1, len(rows), 2):
            changed[i : i + 1] = _last_bit_changed(rows[i : i + 1])
        output = self._run_small(changed)
        if output is not None:
            positions = torch.arange(len(rows), device=rows.device)
            self._expect_close("alone", Rows(rows, positions), logits, None, output[: len(rows)])

    def _compare_fresh(self, batch: Tensor, logits: Tensor) -> None:
        """Run rows in a batch of a size that is new to the model, and compare their logits with those of the batch."""
        if self._small is None:
            return
        self._fresh = self._fresh % min(len(batch), _MOST_FRESH) + 1
        positions = self._choose(len(batch), min(self._fresh, len(batch)), batch.device)
        chosen, expected = batch[positions], logits[positions]
        output = self._run_small(chosen[torch.arange(self._fresh) % len(chosen)])
        if output is not None:
            self._expect_close("alone", Rows(batch, positions), expected, None, output[: len(positions)])

    def _run_small(self, rows: Tensor) -> Tensor | None:
        """Return the logits of rows, repeated up to the smallest batch the model takes; None if it takes none."""
        while self._small is not None:
            repeats = -(-self._small // len(rows))
            try:
                output = self._run(rows.repeat(repeats, *[1] * (rows.dim() - 1))).clone()
            except Exception as error:
                if is_out_of_memory(error) or (len(rows) == 1 and self._small_ran):
                    raise
                if len(rows) > 1:
                    return None
                # squeeze() may have dropped the dimension of a single row, or the model is compiled for one size.
                self._small = 2 if self._small == 1 else None
            else:
                self._small_ran |= len(rows) == 1
                return output
        return None

    def _expect_close(self, kind: str, rows: Rows, expected: Tensor, moved: Rows | None, got: Tensor) -> None:
        """Refuse the model if the logits [m, K] of rows differ from the expected ones by more than rounding explains.

        ``moved`` is the batch that gave the logits ``got``, with the rows' positions in it; None if it was a small
        batch.
        """
        if got.shape != expected.shape:
            raise RowDependenceError(
                f"model: expected logits of shape {tuple(expected.shape)} {_EVENTS[kind]}, got {tuple(got.shape)}"
            )
        far = ~_close(got, expected)
        if not bool(far.any()):
            return
        deviation = (got.double() - expected.double()).abs().amax(dim=1).nan_to_num(nan=torch.inf)
        deviation = deviation.masked_fill(~far, -1)
        # The copies change by more than rounding, so a larger share of the copies than of the rows differs.
        share = float(far.double().mean()) if int(far.sum()) >= _COMMON else 0.0
        needed = max(_SENSITIVE_COPIES, round(_COPIES * min(2 * share, _MOST_SENSITIVE)))
        for i in deviation.topk(min(_MOST_EXAMINED, len(deviation))).indices.tolist():
            position = int(rows.positions[i])
            row = rows.batch[position : position + 1]
            if deviation[i] < 0 or self._amplifies_rounding(row, float(deviation[i]), needed):
                continue
            if moved is None:
                second, size = Rows(row, torch.zeros(1, dtype=torch.int64, device=row.device)), self._small or 1
                second = Rows(row.repeat(size, *[1] * (row.dim() - 1)), second.positions)
            else:
                second = Rows(moved.batch, moved.positions[i : i + 1])
            first = Rows(rows.batch, rows.positions[i : i + 1])
            where = find_cause(self._model, self._forward, first, second, lambda a, b: bool(_close(a, b).all()))
            self._refuse(
                _EXPECTED, position, len(rows.batch), float(deviation[i]), kind=kind, where=where, advice=_ADVICE[kind]
            )

    def _amplifies_rounding(self, row: Tensor, deviation: float, needed: int) -> bool:
        """Whether changing the last bits of a row [1, ...] often changes its logits about as much as ``deviation``."""
        with watched(row) as arithmetic:
            alone = self._run_small(row)
        if alone is None:
            return False
        unit = arithmetic.unit(alone) or torch.finfo(alone.dtype).eps  # coarser than the row dtype's under autocast
        tiny = max(2 * unit, min(_PERTURBATION_UNITS * unit, _MOST_PERTURBATION)) * float(row.abs().max())
        limit = _SENSITIVE_SHARE * deviation
        changed = []  # how many copies, and how many perturbed copies, differ from the first of their kind
        for scale in (0.0, tiny):
            outputs = []
            for _ in range(1 + _COPIES):
                noise = 2 * torch.rand(row.shape, generator=self._generator, dtype=torch.float32).to(row) - 1
                outputs.append(self._run_small(row + scale * noise))
            ran = [output for output in outputs if output is not None]
            if len(ran) < len(outputs):
                return False
            first, *others = ran
            changes = [(other.double() - first.double()).abs().max().nan_to_num(nan=torch.inf) for other in others]
            changed.append(sum(bool(change >= limit) for change in changes))
        return changed[0] == 0 and changed[1] >= needed

    def _choose(self, rows: int, number: int, device: torch.device, ends: list[int] | None = None) -> Tensor:
        """Return random positions, int64 [max(1, number)], first ``ends``; none repeats before all rows are chosen."""
        number = max(1, number)
        chosen = list(ends or [])
        while len(chosen) < number:
            others = self._random.sample(range(rows), min(rows, number))
            chosen += [row for row in others if row not in (ends or ())][: number - len(chosen)] or others
        return torch.tensor(chosen[:number], device=device)

    def _refuse_mixed(
        self, kind: str, before: Tensor, changed: Tensor, compared: _Compared, got: Tensor, *, drew: bool
    ) -> NoReturn:
        """Refuse a model because the logits of rows at unchanged positions differ."""
        first = before
        if kind == "later":  # the rows among those of another batch
            first = before.clone()
            first[compared.positions] = compared.x
        where = find_cause(
            self._model, self._forward, Rows(first, compared.positions), Rows(changed, compared.positions)
        )
        row = int((got != compared.logits).any(dim=1).nonzero()[0])
        size = float((got - compared.logits)[row].abs().max())
        repeats = kind in ("repeat", "later")
        if drew:
            advice = _RANDOM
        elif repeats:
            advice = _ADVICE["repeat"]
        else:
            advice = _ROUNDING if bool(_close(got, compared.logits).all()) else _ADVICE["mixed"]
        expected = "the same logits for the same row" if repeats else _EXPECTED
        self._refuse(expected, int(compared.positions[row]), compared.rows, size, kind=kind, where=where, advice=advice)

    @staticmethod
    def _refuse(expected: str, row: int, rows: int, size: float, kind: str, where: str, advice: str) -> NoReturn:
        raise RowDependenceError(
            f"model: expected {expected}, but those of row {row} of a batch of {rows} changed by {size:.3g} "
            f"{_EVENTS[kind]}; the first module where they differ is {where}; {advice}",
            "Nothing can be certified otherwise",
        )


def submodules(module: nn.Module) -> list[nn.Module]:
    """Return a module and its submodules, each once and after its parent; this is faster than ``modules()``.

    >>> [type(part).__name__ for part in submodules(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))]
    ['Sequential', 'Linear', 'ReLU']
    """
    modules = [module]
    seen = {id(module)}
    for parent in modules:
        for child in parent._modules.values():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                modules.append(child)
    return modules


def tensor_versions(module: nn.Module) -> Versions:
    """Return the addresses of a module's parameters and buffers, and how often each was changed in place.

    >>> layer = nn.Linear(2, 2)
    >>> before = tensor_versions(layer)
    >>> _ = nn.init.zeros_(layer.weight)
    >>> tensor_versions(layer) == before
    False
    """
    tensors = (
        t
        for submodule in submodules(module)
        for kept in (submodule._parameters, submodule._buffers)
        for t in kept.values()
    )
    return tuple((t.device, _address(t), 0 if t.is_inference() else t._version) for t in tensors if t is not None)


def _address(tensor: Tensor) -> int:
    """Return the address of a tensor's values, or its ``id`` if it is in oneDNN's own layout, which has no address."""
    if tensor.is_mkldnn:
        return id(tensor)
    if tensor.layout != torch.strided:
        tensor = tensor.detach()._values() if tensor.layout == torch.sparse_coo else tensor.detach().values()
    return tensor.data_ptr()


def _last_bit_changed(row: Tensor) -> Tensor:
    """Return a copy of a row [1, ...] whose element of largest magnitude is larger by a factor of 1 + eps."""
    changed = row.clone(memory_format=torch.contiguous_format)
    changed.view(-1)[row.abs().argmax()] *= 1 + torch.finfo(row.dtype).eps
    return changed


def _close(a: Tensor, b: Tensor, tolerance: float | None = None) -> Tensor:
    """Return, as bool [m], which rows of a and b agree up to ``tolerance`` (by default, up to rounding)."""
    tolerance = torch.finfo(b.dtype).eps ** 0.5 if tolerance is None else tolerance
    a, b = a.flatten(1), b.flatten(1)
    scale = b.masked_fill(~b.isfinite(), 0).abs().amax(dim=1, keepdim=True)
    near = (a - b).abs() <= tolerance * scale
    return (near | (a == b) | (a.isnan() & b.isnan())).all(dim=1)


def _random_state(device: torch.device) -> tuple[Any, ...]:
    """Return the states of torch's generators for the CPU and a GPU, and those of NumPy and Python."""
    states = [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]
    # NumPy's global generator, the one that models draw from.
    others = pickle.dumps(np.random.get_state(legacy=False)), random.getstate()  # noqa: NPY002 - see above
    return (*(state.numpy().tobytes() for state in states), *others)
