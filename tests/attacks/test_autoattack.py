"""AutoAttack: the published versions, attacks only on robust examples, and the result."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from support.attack_models import NORMS, Recording, fooled_alone, images, inside, random, shortened, small_net
from torch import Tensor, nn

from pyrobust.attacks import APGD, EOT
from pyrobust.attacks.autoattack import AutoAttack, AutoAttackResult
from pyrobust.attacks.black_box.square import Square
from pyrobust.attacks.minimum.fab import FAB
from pyrobust.errors import InputError

EPSILON = {"linf": 0.02, "l2": 0.1, "l1": 0.3}


def quick(model: Any, epsilon: float = 0.02, norm: str = "linf", **options: Any) -> AutoAttack:
    """AutoAttack with a few steps per attack."""
    return shortened(AutoAttack(model, epsilon, norm, **options), 5)


def outcome(attack: AutoAttack, *arguments: Any, **keywords: Any) -> tuple[Tensor, AutoAttackResult]:
    """The points that the attack generates, and its result."""
    x_adv = attack.generate(*arguments, **keywords)
    assert attack.result is not None
    return x_adv, attack.result


@pytest.mark.parametrize("norm", NORMS)
def test_published_budgets(norm: str) -> None:
    l1 = norm == "l1"
    net = small_net()
    standard = AutoAttack(net, norm=norm).attacks
    assert list(standard) == ["apgd-ce", "apgd-t", "fab-t", "square"]
    ce, targeted, fab, square = standard.values()
    assert isinstance(ce, APGD)
    assert (ce.loss, ce.steps, ce.restarts, ce.multi_epsilon) == ("ce", 100, 5 if l1 else 1, l1)
    assert isinstance(targeted, APGD)
    assert (targeted.loss, targeted.steps, targeted.restarts) == ("dlr-targeted", 100, 1)
    assert targeted.targets == (5 if l1 else 9)
    assert isinstance(fab, FAB)
    assert (fab.steps, fab.restarts, fab.targets, fab.alpha_max, fab.eta, fab.beta) == (100, 1, 9, 0.1, 1.05, 0.9)
    assert isinstance(square, Square)
    assert (square.n_queries, square.p_init, square.restarts, square.rescale_schedule) == (5000, 0.8, 1, False)

    plus = AutoAttack(net, norm=norm, version="plus").attacks
    assert list(plus) == ["apgd-ce", "apgd-dlr", "fab", "square", "apgd-t", "fab-t"]
    assert [plus[name].restarts for name in ("apgd-ce", "apgd-dlr", "fab", "fab-t")] == [5, 5, 5, 1]
    assert plus["fab"].targets is None

    rand = AutoAttack(net, norm=norm, version="rand").attacks
    assert list(rand) == ["apgd-ce", "apgd-dlr"]
    for each in rand.values():
        assert isinstance(each.model, EOT)
        assert (each.model.samples, each.restarts) == (20, 1)

    names = ["square", "fab", "apgd-ce", "apgd-t"]
    custom = AutoAttack(net, norm=norm, version="custom", attacks_to_run=names)
    assert (custom.version, list(custom.attacks)) == ("custom", names)
    for name, attack in custom.attacks.items():
        budget = {key: value for key, value in vars(attack).items() if isinstance(value, int | float | str | bool)}
        assert budget == {key: vars(plus[name])[key] for key in budget}


@pytest.mark.parametrize("norm", NORMS)
def test_result_reports_each_attack(norm: str) -> None:
    x, y = images(16)
    net = small_net()
    calls: dict[int, tuple[bool, Tensor]] = {}
    stages: list[tuple[str, int]] = []
    progress: list[tuple[int, int]] = []
    attack = quick(
        net,
        EPSILON[norm],
        norm,
        batch_size=5,
        callback=lambda row, success, point: calls.__setitem__(row, (success, point.clone())),
        after_attack=lambda name, robust, x_adv: stages.append((name, int(robust.sum()))),
        progress=lambda done, total: progress.append((done, total)),
    )
    x_adv, result = outcome(attack, x, y)
    assert inside(x_adv, x, norm, EPSILON[norm])
    broken = fooled_alone(net, x_adv, y)
    assert [by is not None for by in result.broken_by] == broken
    assert 0 < sum(broken) < 16
    wrong = fooled_alone(net, x, y)
    assert [by == "clean" for by in result.broken_by] == wrong
    for row, by in enumerate(result.broken_by):
        assert torch.equal(x_adv[row], x[row]) == (by in (None, "clean"))
        assert calls[row][0] == (by is not None)
        assert torch.equal(calls[row][1], x_adv[row])
    robust = 16
    for name, rate in result.accuracy.items():
        robust -= sum(by == name for by in result.broken_by)
        assert rate == robust / 16
    assert stages == [(name, round(rate * 16)) for name, rate in result.accuracy.items()]
    assert result.robust_accuracy == 1 - sum(broken) / 16
    for single in attack.attacks.values():
        single.callback = None
        assert sum(fooled_alone(net, single.generate(x, y), y)) <= sum(broken)
    assert result.to_dict()["robust_accuracy"] == result.robust_accuracy
    assert progress[-1] == (16, 16)


def test_only_robust_examples_are_attacked(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    x, y = images(12)
    counting = Recording(small_net())
    _, result = outcome(quick(counting, 0.5, batch_size=12), x, y)  # all are broken by the first attack
    assert list(result.accuracy) == ["clean", "apgd-ce"]
    assert result.forwards == counting.rows
    with caplog.at_level(logging.INFO, logger="pyrobust"):
        _, weak = outcome(quick(counting, 1e-6), x, y)
    assert list(weak.accuracy) == ["clean", "apgd-ce", "apgd-t", "fab-t", "square"]
    assert set(weak.broken_by) == {"clean", None}
    assert sum("robust accuracy" in line for line in caplog.messages) == 4
    assert capsys.readouterr() == ("", "")


def test_results_do_not_depend_on_batches_and_order() -> None:
    x, y = images(12)
    net = small_net()
    x_adv, whole = outcome(quick(net, batch_size=12), x, y)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    points, permuted = outcome(quick(net, batch_size=5), x[order], y[order], indices=order)
    torch.testing.assert_close(points, x_adv[order], rtol=0, atol=1e-9)
    assert permuted.broken_by == tuple(whole.broken_by[i] for i in order.tolist())


@pytest.mark.parametrize(
    ("classes", "names"), [(2, ["apgd-ce", "fab-t"]), (3, ["apgd-ce", "apgd-dlr", "fab-t"]), (4, None)]
)
def test_few_classes(classes: int, names: list[str] | None, caplog: pytest.LogCaptureFixture) -> None:
    x, y = images(6, classes=classes)
    net = small_net(classes=classes)
    _, result = outcome(quick(net, 1e-6, attacks_to_run=["apgd-ce", "apgd-t", "fab-t"]), x, y)
    assert list(result.accuracy)[1:] == (names or ["apgd-ce", "apgd-t", "fab-t"])
    assert any("apgd-t needs four classes" in line for line in caplog.messages) == (classes < 4)
    if classes == 2:
        quick(net, attacks_to_run=["apgd-ce", "apgd-dlr"]).generate(x, y)
        assert any("apgd-dlr needs 3 classes: skipped" in line for line in caplog.messages)
        with pytest.raises(InputError, match="expected an attack that can run with 2 classes, such as apgd-ce"):
            AutoAttack(net, attacks_to_run=["apgd-t", "apgd-dlr"]).generate(x, y)


def test_targeted() -> None:
    x, _ = images(8)
    net = small_net()
    label = net(x).argmax(1)
    goal = (label + 1) % 5
    x_adv, result = outcome(quick(net, 0.1), x, label, True, goal)
    reached = net(x_adv).argmax(1) == goal
    assert [by is not None for by in result.broken_by] == reached.tolist()
    assert reached.sum() >= 3


def test_randomized_models(caplog: pytest.LogCaptureFixture) -> None:
    net = small_net(torch.float32)
    torch.manual_seed(0)
    x, y = images(6, torch.float32)

    def noisy(batch: Tensor) -> Tensor:
        return net(batch + 0.05 * torch.randn_like(batch))

    quick(noisy, 1e-3, attacks_to_run=["apgd-ce"]).generate(x, y)
    assert any('use version="rand"' in line for line in caplog.messages)
    caplog.clear()
    _, rand = outcome(quick(noisy, 0.2, version="rand"), x, y)
    assert rand.robust_accuracy < 0.5
    assert not caplog.messages


def test_warnings(caplog: pytest.LogCaptureFixture) -> None:
    x, y = images(12, torch.float32)
    net = small_net(torch.float32)
    quick(nn.Sequential(net, nn.Softmax(1)), attacks_to_run=["apgd-ce"]).generate(x, y)
    assert any("look like probabilities" in line for line in caplog.messages)
    caplog.clear()

    class Masked(nn.Module):
        """A model whose gradients are zero."""

        def forward(self, batch: Tensor) -> Tensor:
            return net((batch * 20).round() / 20 + 0 * batch)

    masked = Masked()
    with torch.no_grad():
        label = masked(x).argmax(1)
    attack = AutoAttack(masked, 0.3, attacks_to_run=["apgd-ce", "square"])
    attack.attacks["apgd-ce"].steps = 1
    attack.attacks["square"].n_queries = 100
    _, result = outcome(attack, x, label)
    assert any("Square breaks" in line for line in caplog.messages)
    assert [flag.name for flag in result.flags] == ["square"]
    assert result.to_dict()["flags"]["square"] in caplog.messages
    assert "flags=('square',)" in repr(result)
    caplog.clear()
    _, dlr = outcome(quick(masked, 1e-3, attacks_to_run=["apgd-dlr", "apgd-t"], batch_size=5), x, label)
    (flag,) = dlr.flags
    assert (flag.name, flag.value) == ("zero-gradient", 5)
    assert len(caplog.messages) == 1  # not once for each batch, start and class
    APGD(masked, 1e-3, loss="dlr", steps=1, batch_size=5).generate(x, label)
    assert len(caplog.messages) == 2
    assert "5 examples have a gradient of zero" in caplog.messages[1]


@pytest.mark.parametrize("through", ["grad", "backward"])
def test_gradients_at_inference_are_flagged(through: str, caplog: pytest.LogCaptureFixture) -> None:
    x, y = images(4, torch.float32)
    net = small_net(torch.float32)

    class Adapting(nn.Module):
        """A defense that moves its input against the gradient first."""

        def forward(self, batch: Tensor) -> Tensor:
            with torch.enable_grad():
                leaf = batch.detach().clone().requires_grad_()
                lead = net(leaf).amax(1).sum()
                if through == "grad":
                    torch.autograd.grad(lead, leaf)
                else:
                    lead.backward()
            return net(batch)

    _, result = outcome(quick(Adapting(), 1e-3, attacks_to_run=["square"]), x, y)
    assert [flag.name for flag in result.flags] == ["dynamic"]
    assert any("computes gradients in its forward pass" in line for line in caplog.messages)
    _, plain = outcome(quick(net, 1e-3, attacks_to_run=["apgd-ce"]), x, y)
    assert plain.flags == ()
    assert "flags" not in repr(plain)


def test_no_examples() -> None:
    attack = AutoAttack(small_net())
    assert attack.generate(random(0, 1, 6, 6), torch.zeros(0, dtype=torch.int64)).shape == (0, 1, 6, 6)
    assert attack.result is None
