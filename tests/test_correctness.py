"""Whether a model is right at an input: close logits are judged alone; the rounding units of what it computes in."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from support.forked import in_fork
from torch import Tensor, nn

from pyrobust import metrics
from pyrobust.arithmetic import product_units, watched
from pyrobust.attacks import AdversarialAttack, minimum_norm
from pyrobust.attacks.engine.queries import Queries
from pyrobust.correctness import Judge
from pyrobust.errors import InputError
from pyrobust.evaluation import attack_dataset, calculate_empirical_robustness, compute_robustness_curve
from pyrobust.runner import Runner


def rounding(batch):
    """Class 0 where x > 0, except that a batch of several loses a little of it."""
    loss = 1e-5 if len(batch) > 1 else 0.0
    return torch.cat([batch - loss, -batch + loss, torch.full_like(batch, -1.0)], 1)


def test_a_close_example_is_judged_alone():
    x = torch.tensor([[5e-6], [0.5], [-0.5], [-5e-6], [0.2]])
    y = torch.tensor([0, 0, 0, 1, 1])
    judge = Judge(Runner(rounding, batch_size=5))
    assert (rounding(x).argmax(1) == y).tolist() == [False, True, False, True, False]
    assert judge.correct(x, y).tolist() == [True, True, False, True, False]
    assert judge.rows == 5 + 2


def test_a_batch_of_one_runs_once():
    judge = Judge(Runner(rounding, batch_size=1))
    assert judge.correct(torch.tensor([[5e-6], [-5e-6]]), torch.tensor([0, 0])).tolist() == [True, False]
    assert judge.rows == 2


def test_logits_without_a_largest_are_never_right():
    rows = torch.tensor([[math.nan, 0.0], [math.inf, 0.0], [-math.inf, -math.inf], [0.0, 0.0], [1.0, -math.inf]])
    correct = Judge(Runner(lambda x: x)).correct(rows, torch.zeros(5, dtype=torch.int64))
    assert correct.tolist() == [False, False, False, True, True]


class Rounded(torch.nn.Module):
    """A network whose first layer rounds to 10 bits of mantissa in batches of several, as TF32 by size does."""

    def __init__(self, bits: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.first = torch.nn.Conv2d(1, 8, 3).requires_grad_(False)
        self.last = torch.nn.Linear(8 * 16, 5).requires_grad_(False)
        for parameter in self.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 4)
        self.step = 2.0**-bits
        self.last.bias.sub_(self(torch.rand(200, 1, 6, 6, generator=generator)).mean(0))  # so that all classes occur

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 1:
            x = x + ((x / self.step).round() * self.step - x).detach()
        return self.last(self.first(x).relu().flatten(1))


def split_sums(layer: torch.nn.Linear, x: Tensor) -> Tensor:
    """A product whose bfloat16 sum is split in batches of several, as a GPU splits it."""
    parts = 8 if len(x) > 1 else 1
    pairs = zip(x.bfloat16().chunk(parts, 1), layer.weight.bfloat16().chunk(parts, 1), strict=True)
    return sum((a @ b.T for a, b in pairs), start=layer.bias.bfloat16())


LINEAR = torch.nn.Linear(36, 5).requires_grad_(False)
with torch.no_grad():
    LINEAR.weight.copy_(torch.randn(5, 36, generator=torch.Generator().manual_seed(1)))
    LINEAR.bias.zero_()


def rounding_by_size(x: Tensor) -> Tensor:
    """Float32 logits whose last bits depend on the batch, as float64."""
    z = LINEAR(x.float().flatten(1))
    return (z * (1 + 2.0**-21 * torch.tensor([1.0, -1, 1, -1, 1])) if len(x) > 1 else z).double()


def autocast_inside(x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return split_sums(LINEAR, torch.nn.functional.linear(x.float().flatten(1), torch.eye(36))).double()


CASES = {
    "float32 inside, float64 outside": (rounding_by_size, torch.float64, 2.0**-23),
    "bfloat16 inside, float32 outside": (lambda x: split_sums(LINEAR, x.flatten(1)).float(), torch.float32, 2.0**-7),
    "bfloat16 inside, float64 outside": (lambda x: split_sums(LINEAR, x.flatten(1)).double(), torch.float64, 2.0**-7),
    "autocast inside, float64 outside": (autocast_inside, torch.float64, 2.0**-7),
    "TF32": (Rounded(10), torch.float32, 2.0**-10),
}


def boundary_points(model: object, x: Tensor, y: Tensor) -> Tensor:
    """The last points that are right and the first that are wrong, run alone, on segments between examples."""
    low, high = x.clone(), x.flip(0)
    while True:
        middle = ((low.double() + high.double()) / 2).to(x.dtype)
        if ((middle == low) | (middle == high)).all():
            return torch.cat([low, high])
        right = (classes_alone(model, middle) == y).view(-1, 1, 1, 1)
        low, high = torch.where(right, middle, low), torch.where(right, high, middle)


def classes_alone(model: object, x: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([model(x[i : i + 1]).float().argmax(1) for i in range(len(x))])


@pytest.fixture
def tf32(request: pytest.FixtureRequest) -> Iterator[None]:
    """The setting of the CPU that is, for GPUs, the one of TF32; this processor computes in float32 all the same."""
    settings = torch.backends.mkldnn.conv, torch.backends.mkldnn.matmul
    before = [setting.fp32_precision for setting in settings]
    for setting in settings:
        setting.fp32_precision = "tf32"
    yield
    for setting, value in zip(settings, before, strict=True):
        setting.fp32_precision = value


@pytest.mark.usefixtures("few_restarts")
@pytest.mark.parametrize("case", CASES)
def test_answers_are_those_of_each_example_alone_in_any_arithmetic(case: str, request: pytest.FixtureRequest) -> None:
    model, dtype, unit = CASES[case]
    if case == "TF32":
        request.getfixturevalue("tf32")
    x = torch.rand(24, 1, 6, 6, generator=torch.Generator().manual_seed(2)).to(dtype)
    y = classes_alone(model, x)
    attack = Moves(model, epsilon=0.5)
    points, labels = boundary_points(model, x, y), torch.cat([y, y])
    alone = classes_alone(model, points)
    with torch.no_grad():
        assert (model(points).argmax(1) != alone).any()  # the batch answers otherwise
    correct = attack._correct(Queries(attack.runner), points, labels)
    assert correct.tolist() == (alone == labels).tolist()
    runner = Runner(model)
    runner.follow(x)
    with runner.session():
        runner.logits(x, watch=True)
        assert runner.unit == unit
    expected = float((alone == labels).double().mean())
    assert attack.evaluate(torch.cat([x, x]), labels, points)["robust_accuracy"] == expected
    for norm in ("linf", "l2"):
        result = minimum_norm(model, x, y, norm, attacks=["fmn", "deepfool"])
        success = result.success & (classes_alone(model, result.x_adv) == y)
        assert not success.any()
        assert result.success.any()
        rate = attack.evaluate(x, y, result.x_adv)["robust_accuracy"]
        assert rate == float((classes_alone(model, result.x_adv) == y).double().mean())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_arithmetic_in_the_dtype_of_the_images_runs_no_example_again(dtype: torch.dtype) -> None:
    net = copy.deepcopy(LINEAR).to(dtype)
    calls: list[int] = []

    def model(x: Tensor) -> Tensor:
        calls.append(len(x))
        return net(x.flatten(1))

    x = torch.rand(50, 1, 6, 6, generator=torch.Generator().manual_seed(2)).to(dtype)
    y = classes_alone(model, x)
    calls.clear()
    judge = Judge(Runner(model))
    assert judge.correct(x, y).all()
    assert calls == [50]
    assert judge.runner.unit == torch.finfo(dtype).eps


def test_a_curve_judges_a_callable_in_the_dtype_of_the_images() -> None:
    net = copy.deepcopy(LINEAR).double()
    x = torch.rand(8, 1, 6, 6, dtype=torch.float64)
    y = net(x.flatten(1)).argmax(1)
    assert compute_robustness_curve(Moves, lambda x: net(x.flatten(1)), x, y, [0.0])[0.0] == 1
    assert calculate_empirical_robustness(lambda x: net(x.flatten(1)), (x, y), lambda m, x, y, budget: x, 0.1) == 1


def test_labels_outside_the_classes_are_refused():
    with pytest.raises(InputError, match="dataset: expected labels 0 to 2, the model's classes, got 3"):
        Judge(Runner(rounding)).correct(torch.zeros(2, 1), torch.tensor([0, 3]), "dataset")


class Moves(AdversarialAttack):
    """Corrects the first example, breaks the second, and leaves the third alone."""

    def generate(self, x: Tensor, y: Tensor, targeted: bool = False, target_labels: Tensor | None = None) -> Tensor:
        return torch.where(x < 0.5, x + 0.2, torch.where(x < 0.8, x - 0.4, x))


def test_every_robust_accuracy_is_correct_at_x_and_at_x_adv() -> None:
    def model(x: Tensor) -> Tensor:
        mean = x.mean((1, 2, 3))
        return torch.stack([0.5 - mean, mean - 0.5], 1)

    x, y = torch.tensor([0.4, 0.7, 0.9]).view(3, 1, 1, 1), torch.tensor([1, 1, 1])
    attack = Moves(model, epsilon=0.5)
    x_adv = attack.generate(x, y)
    clean, adversarial = model(x).argmax(1), model(x_adv).argmax(1)
    run = attack_dataset(attack, (x, y), batch_size=1)
    curve = compute_robustness_curve(Moves, model, x, y, [0.5])
    rates = [
        attack.evaluate(x, y, x_adv)["robust_accuracy"],
        float(metrics.robust_accuracy(clean, adversarial, y)),
        1 - float(metrics.robust_risk(clean, adversarial, y)),
        float(run.robust_accuracy()),
        curve[0.5],
        float(metrics.clean_accuracy(clean, y))
        * calculate_empirical_robustness(model, (x, y), lambda model, x, y, budget: attack.generate(x, y), 0.5),
    ]
    assert rates == pytest.approx([1 / 3] * 6)


# --- rounding units


SINGLE, HALF, BRAIN, DOUBLE = (
    torch.finfo(t).eps for t in (torch.float32, torch.float16, torch.bfloat16, torch.float64)
)
NET = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3)).requires_grad_(False)
SCRIPT = torch.jit.trace(NET, torch.zeros(2, 1, 6, 6))
MASK = torch.zeros(3, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("model", "dtype", "unit"),
    [
        (NET, torch.float32, SINGLE),
        (lambda x: NET(x.float()), torch.float64, SINGLE),
        (lambda x: NET(x.float()).double(), torch.float64, SINGLE),
        (lambda x: SCRIPT(x.float()).double(), torch.float64, SINGLE),
        (lambda x: x.flatten(1)[:, :3], torch.float64, DOUBLE),
        (lambda x: NET(x.half().float()), torch.float32, HALF),
        (lambda x: NET(x) + MASK.float(), torch.float32, SINGLE),  # no arithmetic of the input
        (lambda x: NET(torch.zeros_like(x).copy_(x)).bfloat16(), torch.float32, BRAIN),
        (lambda x: torch.func.vmap(lambda row: NET(row[None].float())[0].double())(x), torch.float64, SINGLE),
        (
            lambda x: torch.from_numpy(x.detach().numpy().reshape(len(x), -1)[:, :3] * 1),
            torch.float32,
            BRAIN,
        ),  # unknown
    ],
)
@pytest.mark.parametrize("gradients", [False, True])
def test_the_coarsest_arithmetic_is_found(model: object, dtype: torch.dtype, unit: float, gradients: bool) -> None:
    x = torch.rand(4, 1, 6, 6, dtype=dtype)
    runner = Runner(model)
    runner.follow(x)
    with runner.session(gradients=gradients), torch.set_grad_enabled(gradients):
        assert runner.unit == torch.finfo(dtype).eps  # not known yet
        leaf = x.requires_grad_(gradients)
        logits = runner.logits(leaf, watch=True)
        assert runner.unit == unit
        if logits.requires_grad:
            assert torch.autograd.grad(logits.sum(), leaf)[0].shape == x.shape


def test_a_module_outside_torch_has_the_unit_of_its_parameters() -> None:
    class Numpy(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return torch.from_numpy(np.asarray(x.flatten(1)) @ self.weight.detach().numpy().T)

    runner = Runner(Numpy(36, 3))
    with runner.session():
        runner.logits(torch.rand(4, 1, 6, 6), watch=True)
        assert runner.unit == SINGLE


def test_a_session_watches_its_first_batch_of_several_rows_only() -> None:
    rows: list[tuple[int, bool]] = []

    def model(x: Tensor) -> Tensor:
        rows.append((len(x), torch._C._len_torch_dispatch_stack() > 0))
        return x

    runner = Runner(model)
    for _ in range(2):
        with runner.session():
            for count in (1, 4, 3):
                runner.logits(torch.rand(count, 2), watch=True)
    assert rows == [(1, False), (4, True), (3, False)] * 2


def test_units_follow_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert product_units(cpu) == (SINGLE, SINGLE)
    assert product_units(cuda) == (2.0**-10, SINGLE)  # torch's defaults
    for setting, value in (
        (torch.backends.mkldnn.conv, "bf16"),
        (torch.backends.mkldnn.matmul, "tf32"),
        (torch.backends.cudnn.conv, "ieee"),
        (torch.backends.cuda.matmul, "tf32"),
    ):
        before = setting.fp32_precision
        setting.fp32_precision = value
        try:
            units = {unit for device in (cpu, cuda) for unit in product_units(device)}
        finally:
            setting.fp32_precision = before
        expected = {"bf16": BRAIN, "tf32": 2.0**-10, "ieee": SINGLE}[value]
        assert expected in units
        assert product_units(cpu) == (SINGLE, SINGLE)
    monkeypatch.setenv("ONEDNN_DEFAULT_FPMATH_MODE", "BF16")
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    assert (product_units(cpu), product_units(cuda)) == ((BRAIN, BRAIN), (2.0**-10, 2.0**-10))
    x = torch.rand(2, 1, 6, 6)
    with watched(x) as arithmetic:
        logits = NET(x)
    assert arithmetic.unit(logits) == BRAIN
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    assert product_units(cuda) == (SINGLE, SINGLE)


def compiled_after_watching() -> bool:
    """Whether a model whose first pass is watched is compiled later, and not before."""
    compiled = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> object:
        compiled.append(len(inputs))
        return graph.forward

    model = torch.compile(lambda x: x * 2, backend=backend)
    x = torch.rand(3, 2)
    with torch.no_grad():
        with watched(x):
            model(x)
        assert not compiled
        model(x)
    return bool(compiled)


def test_a_compiled_model_is_still_compiled_after_it_was_watched() -> None:
    assert in_fork(compiled_after_watching)
