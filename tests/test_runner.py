"""Running a model: device, dtype, mode, batch size, checks of its logits; an address space that is limited."""

from __future__ import annotations

import subprocess
import sys
import types
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pyrobust import RandomizedSmoothing
from pyrobust.attacks import PGD
from pyrobust.errors import InputError, InputTypeError, ModelError
from pyrobust.machine import in_batches
from pyrobust.row_independence import tensor_versions
from pyrobust.runner import Runner, reporting

X = torch.rand(4, 3, 6, 6, generator=torch.Generator().manual_seed(2))


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(64, 5)
    )


class Probe(nn.Module):
    """A model that records how it is called."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.seen = []

    def forward(self, x):
        self.seen.append(
            types.SimpleNamespace(
                training=self.training,
                grad=torch.is_grad_enabled(),
                inference=torch.is_inference_mode_enabled(),
                autocast=torch.is_autocast_enabled("cpu"),
            )
        )
        return x.flatten(1)[:, :2] * self.weight.to(x.dtype)


def test_sessions_are_in_evaluation_mode_without_gradients():
    probe = Probe().train()
    RandomizedSmoothing(probe, 2, 0.5).certify_batch(X, n0=5, n=10)
    assert not any(call.training or call.grad or call.inference or call.autocast for call in probe.seen)
    assert probe.training
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


def mixed_modes(model):
    model.train()
    model[1].eval()
    model[3].eval()
    return [module.training for module in model.modules()]


@pytest.mark.parametrize("failure", [None, RuntimeError, KeyboardInterrupt])
def test_the_mode_of_every_submodule_is_restored(failure):
    model = net()
    modes = mixed_modes(model)
    assert len(set(modes)) == 2
    smoother = RandomizedSmoothing(model, 5, 0.5)
    if failure is None:
        smoother.certify_batch(X, n0=5, n=10)
        smoother.predict(X[0], 10)
    else:
        handle = model[4].register_forward_hook(lambda *_: (_ for _ in ()).throw(failure("on purpose")))
        with pytest.raises(failure, match="on purpose"):
            smoother.certify_batch(X, n0=5, n=10)
        handle.remove()
    assert [module.training for module in model.modules()] == modes
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()
    assert not torch.is_autocast_enabled("cpu")


def test_batch_norm_is_evaluated_and_not_updated():
    model = net().train()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    votes = RandomizedSmoothing(model, 5, 0.5, batch_size=7).votes(X, n=40)
    np.testing.assert_array_equal(votes, RandomizedSmoothing(model.eval(), 5, 0.5, batch_size=40).votes(X, n=40))
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]), name


def test_objects_with_logits_and_plain_callables():
    model = net().eval()
    expected = RandomizedSmoothing(model, 5, 0.5, batch_size=20).votes(X, n=40)
    for wrapped in (
        lambda batch: model(batch),
        lambda batch: types.SimpleNamespace(logits=model(batch)),
        lambda batch: {"loss": None, "logits": model(batch)},
        model.forward,
    ):
        np.testing.assert_array_equal(RandomizedSmoothing(wrapped, 5, 0.5, batch_size=20).votes(X, n=40), expected)


def traced():
    with torch.no_grad():
        return torch.jit.trace(net().eval(), X)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "make",
    [
        lambda: traced().train(),
        lambda: torch.jit.script(net()).train(),
        lambda: nn.Sequential(torch.jit.script(net()), nn.Identity()).train(),
        lambda: torch.jit.freeze(torch.jit.script(net().eval())),  # without the attribute ``training``
    ],
    ids=["traced", "scripted", "scripted part", "frozen"],
)
def test_compiled_modules(make):
    """Script modules accept no hooks, so the batch size is found without hooks."""
    model = make()
    votes = RandomizedSmoothing(model, 5, 0.5, batch_size=20).votes(X, n=40)
    np.testing.assert_array_equal(votes, RandomizedSmoothing(net().eval(), 5, 0.5, batch_size=20).votes(X, n=40))
    smoother = RandomizedSmoothing(model, 5, 0.5)
    result = smoother.certify_batch(X, n0=5, n=40)
    assert 16 <= smoother.runner.batch_size((3, 6, 6)) <= 4096
    assert np.abs(result.counts - votes).sum() <= 4  # another batch, whose sums may be rounded in another order
    assert all(getattr(module, "training", True) for module in model.modules())
    assert len(PGD(model, 0.1, steps=2, clip=(0, 1))(X.clamp(0, 1), torch.zeros(len(X), dtype=torch.int64))) == len(X)


def test_sparse_weights():
    class Sparse(nn.Linear):
        def forward(self, x):
            return torch.sparse.mm(self.weight, x.flatten(1).T).T + self.bias

    dense = nn.Sequential(nn.Flatten(), nn.Linear(108, 5))
    sparse = Sparse(108, 5)
    sparse.weight, sparse.bias = nn.Parameter(dense[1].weight.detach().to_sparse()), dense[1].bias
    votes = [RandomizedSmoothing(model, 5, 0.5, batch_size=20).votes(X, n=40) for model in (sparse, dense)]
    np.testing.assert_array_equal(*votes)
    before = tensor_versions(sparse)
    sparse.weight.data = (2 * dense[1].weight.detach()).to_sparse()
    assert tensor_versions(sparse) != before


def test_a_module_is_moved_to_the_given_device(device):
    model = Probe()
    assert Runner(model, device=device).model is model
    assert model.weight.device == device
    assert Runner(Probe(), device=str(device)).device == device
    assert Runner(Probe().to(device)).device == device
    assert Runner(Probe().to(device), device="cpu").model.weight.device.type == "cpu"
    assert Runner(lambda b: b).device.type == "cpu"


def test_another_dtype_than_the_models_is_refused():
    assert Runner(nn.BatchNorm1d(3, affine=False, dtype=torch.float64)).dtype == torch.float64
    assert Runner(lambda b: b, dtype=torch.float64).dtype == torch.float64
    assert Runner(nn.ReLU(), dtype=torch.float64).dtype == torch.float64
    assert Runner(Probe().double(), dtype=torch.float64).dtype == torch.float64
    for model, dtype in ((Probe(), torch.float64), (Probe().half(), torch.float32), (Probe().double(), torch.bfloat16)):
        with pytest.raises(InputTypeError, match=rf"^dtype: expected {model.weight.dtype}.* got {dtype}"):
            Runner(model, dtype=dtype)


def test_batch_size_is_found_once_per_shape_and_can_be_set():
    probe = Probe()
    runner = Runner(probe)
    assert runner.batch_size((3, 8, 8)) == 4096  # 3 KB a row
    assert 16 < runner.batch_size((3, 100, 100)) < 100
    assert runner.batch_size((3, 1024, 1024)) == 2  # 12 MB a row
    calls = len(probe.seen)
    assert calls > 0
    assert [runner.batch_size((3, size, size)) for size in (8, 1024)] == [4096, 2]
    assert len(probe.seen) == calls
    assert Runner(lambda b: b).batch_size((3, 4096, 4096)) == 16
    runner.set_batch_size(np.int64(5))
    assert runner.batch_size((3, 8, 8)) == runner.batch_size((3, 1024, 1024)) == 5
    assert type(runner.batch_size((3, 8, 8))) is int
    for value, error in ((0, InputError), (-1, InputError), (2.5, InputTypeError), (True, InputTypeError)):
        with pytest.raises(error, match="batch_size: expected"):
            runner.set_batch_size(value)
    assert runner.batch_size((3, 8, 8)) == 5


def test_models_without_values_are_refused():
    loaded, empty = nn.Linear(4, 4), nn.Linear(4, 3, device="meta")
    for model in (empty, nn.Sequential(loaded, empty)):
        with pytest.raises(InputError, match="model: expected parameters with values, got some on"):
            Runner(model)


class Broken(Exception):
    """A model that raises an error of its own."""


@pytest.mark.parametrize("error", [Broken("by itself"), RuntimeError("cannot be multiplied")])
def test_other_errors_of_the_model_pass_unchanged(error):
    calls = []

    def model(batch):
        calls.append(len(batch))
        raise error

    with pytest.raises(type(error), match=str(error)):
        RandomizedSmoothing(model, 2, 0.5, batch_size=8).certify_batch(X, n0=5, n=10)
    assert calls == [8]


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError(), RuntimeError("can't allocate memory: x")])
def test_batches_shrink_after_out_of_memory(error):
    sizes, done = [8], []

    def step(begin, end):
        if end - begin > 2:
            raise error
        done.append((begin, end))

    in_batches(5, lambda: sizes[-1], step, lambda rows, error: sizes.append(rows // 2))
    assert sizes == [8, 2]  # the batch of 8 had 5 rows
    assert done == [(0, 2), (2, 4), (4, 5)]


def test_for_each_visits_every_row_once():
    for total, size in ((0, 4), (1, 4), (4, 4), (9, 4), (10, 1000)):
        steps = []
        Runner(lambda b: b, batch_size=size).for_each(total, (1,), lambda begin, end, to=steps: to.append((begin, end)))
        assert [i for begin, end in steps for i in range(begin, end)] == list(range(total))
        assert all(0 < end - begin <= size for begin, end in steps)


def test_reporting():
    calls = []
    with reporting(lambda done, total: calls.append((done, total)), 5) as report:
        report(2)
        report(5)
    assert calls == [(2, 5), (5, 5)]
    with reporting(False, 5) as report:
        report(5)


def test_sessions_can_be_nested():
    model = net().train()
    runner = Runner(model)
    with runner.session():
        with runner.session():
            assert not model.training
        assert not model.training
    assert all(module.training for module in model.modules())


def test_a_model_that_writes_to_its_input_gets_copies():
    runner, x = Runner(lambda x: x.mul_(2)), torch.ones(3, 2)
    with runner.session(gradients=True):
        assert runner.logits(x).tolist() == [[2.0, 2.0]] * 3
        assert runner.logits(x).tolist() == [[2.0, 2.0]] * 3
    assert x.tolist() == [[1.0, 1.0]] * 3


def test_a_model_that_begins_to_write_to_its_input_is_refused():
    calls = []

    def model(x):
        calls.append(1)
        return x if len(calls) < 3 else x.mul_(2)

    runner, x = Runner(model), torch.ones(3, 2)
    with runner.session(gradients=True):
        runner.logits(x)
        runner.logits(x)
        with pytest.raises(ModelError, match="leaves its input alone"):
            runner.logits(x)


def test_a_model_that_writes_to_an_inference_tensor_gets_copies():
    runner = Runner(lambda x: x.mul_(2))
    with torch.inference_mode():
        x = torch.ones(3, 2)
        with runner.session():
            assert [runner.logits(x).tolist() for _ in range(2)] == [[[2.0, 2.0]] * 3] * 2
        assert x.tolist() == [[1.0, 1.0]] * 3


def test_a_session_inside_another_one_has_no_gradients_whatever_was_enabled_between_them() -> None:
    runner = Runner(nn.Linear(2, 2))

    def enabled() -> bool:
        with runner.session(gradients=True):
            return torch.is_grad_enabled()

    with runner.session(gradients=True), torch.enable_grad():
        assert not enabled()
    with runner.session(gradients=True), ThreadPoolExecutor(1) as pool:
        assert not pool.submit(enabled).result()


def test_batches_whose_activations_the_heap_holds() -> None:
    """Larger batches take fresh pages from the system in every pass."""
    shape = (1, 256, 256)
    wide, narrow = (nn.Sequential(nn.Conv2d(1, n, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()) for n in (64, 4))
    assert Runner(wide).batch_size(shape) == 2  # 16 MiB a row
    assert Runner(wide, batch_size=32).even_batch(20, shape) == 2
    assert Runner(wide, batch_size=32).batch_size(shape) == 32
    assert Runner(narrow, batch_size=32).even_batch(20, shape) == 20
    assert Runner(wide, batch_size=32).even_batch(20, (1, 1024, 1024)) == 20  # of 256 MiB a row it holds none


def test_a_model_of_one_batch_size_has_equal_batches() -> None:
    class Eight(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if len(x) != 8:
                raise ValueError("expected 8 rows")
            return x.flatten(1)[:, :3]

    assert Runner(Eight(), batch_size=8).even_batch(16, (1, 256, 256)) == 8


# --- a process whose address space is limited


_LIMITED = """
import logging, re, resource
from pathlib import Path
import numpy as np
import torch
from torch import nn
from pyrobust import FAB, RandomizedSmoothing, attack_dataset, certify_dataset, ops
from pyrobust.machine import in_batches

class Corner(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return (x * self.weight).flatten(1)[:, :3] * 4

class Count(logging.Handler):
    def emit(self, record):
        halved.extend([1] * ("out of memory" in record.getMessage()))

def limited(call, room):
    size = 1024 * int(re.search(r"VmSize:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + room, before[1]))
    try:
        return call()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)

def swept(sweep):
    table = sweep().table
    return {name: column for name, column in table.items() if column.dtype.kind in "bif" and "second" not in name}

halved = []
logging.getLogger("pyrobust").addHandler(Count())
torch.set_num_threads(1)
torch.manual_seed(0)
x = torch.rand(128, 1, 128, 256)
y = Corner()(x).argmax(1)
rows, z = x[:64].flatten(1), torch.full((64, 1 << 15), 0.25)
want, got, sizes = ops.add_perturbation(rows, z), torch.zeros(64, 1 << 15), [64]

def step(begin, end):
    got[begin:end] = ops.add_perturbation(rows[begin:end], z[begin:end])

limited(lambda: in_batches(64, lambda: sizes[-1], step, lambda rows, error: sizes.append(rows // 2)), 4 << 20)
print("op", len(sizes) - 1, torch.equal(got, want))

sweeps = {
    "fab": lambda: attack_dataset(FAB(Corner(), 0.02, steps=2, targets=1, batch_size=128), (x, y)),
    "smoothing": lambda: certify_dataset(
        RandomizedSmoothing(Corner(), 3, 0.5, batch_size=2048, grid=None), (x[:8], y[:8]), n0=8, n=512
    ),
}
for name, sweep in sweeps.items():
    want = swept(sweep)
    halved.clear()
    got = limited(lambda: swept(sweep), 100 << 20)
    same = [np.array_equal(got[column], want[column], equal_nan=True) for column in want]
    print(name, len(halved), set(got) == set(want) and all(same))

"""


@pytest.mark.full  # what else takes address space meanwhile differs from machine to machine
@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space")
def test_batches_are_halved_and_results_are_the_same() -> None:
    run = subprocess.run([sys.executable, "-c", _LIMITED], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    lines = [line.split() for line in run.stdout.splitlines()]
    assert [name for name, *_ in lines] == ["op", "fab", "smoothing"]
    assert all(int(times) > 0 and same == "True" for _, times, same in lines), run.stdout
