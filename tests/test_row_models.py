"""The probe of rows on a registry of dependent and honest models, written without knowledge of the probe."""

from __future__ import annotations

import warnings

import pytest
import torch
from row_models import DEPENDENT, HONEST, RowModel

from pyrobust.errors import RowDependenceError
from pyrobust.ops.sample_noise import sample_noise
from pyrobust.row_independence import RowProbe
from pyrobust.runner import Runner

#: Each model of this many is part of the usual run.
_SHARE = 2
_ROWS = 256
#: What no probe finds at first use; docs/decisions/row-independence.md says why.
HIDDEN = {
    "row cache by prefix": "a function of the row in this process",
    "initialised by the first batch": "a function of the row from then on",
    "looks at the call stack": "recognises the probe",
    "by the clock": "changes every half second",
    "coupled with a memory of rows": "in half of all batches",
    "second half in bfloat16": "rounds no more than it does alone",
}
TYPICAL = [name for name, model in DEPENDENT.items() if model.typical and name not in HIDDEN]


def cases(names: list[str]) -> list[object]:
    return [pytest.param(name, marks=[] if i % _SHARE == 0 else pytest.mark.full) for i, name in enumerate(names)]


def probe(model: RowModel, seed: int = 0) -> RowProbe:
    """Run the first batches of a smoothed image through a fresh instance and its probe."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runner = Runner(model.make(), batch_size=model.batch_size or _ROWS)
        probe = RowProbe(runner.model, runner.logits, seed)
        x = torch.rand(1, *model.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float32)
        with runner.session():
            for number in range(4):
                size = model.batch_size or _ROWS
                runs = [(0, 0, number * size, size)]
                batch = sample_noise(x, runs, sigma=0.25, noise="gaussian", stage="estimate", seed=0)
                probe.expect_known_modules(single=model.batch_size == 1)
                probe.logits(batch.to(model.dtype), exact=False)
    return probe


@pytest.mark.parametrize("name", cases(TYPICAL))
def test_dependent_models_are_refused_in_their_first_batches(name: str) -> None:
    with pytest.raises(RowDependenceError):
        probe(DEPENDENT[name])


@pytest.mark.parametrize("name", cases([name for name, model in HONEST.items() if not model.slow]))
def test_honest_models_pass(name: str) -> None:
    assert probe(HONEST[name]).passes > 0
