"""Scripts for the reference implementation of AutoAttack run with only the import changed; crashed runs resume."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pyrobust.compat.autoattack import AutoAttack
from pyrobust.errors import FileFormatError, InputError

CLASSES = 5


def net() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(216, 24), nn.ReLU(), nn.Linear(24, CLASSES)
    )


def images(count: int) -> tuple[Tensor, Tensor]:
    """Images and labels; every eighth label is wrong."""
    x = torch.rand(count, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        y = net()(x).argmax(1)
    y[::8] = (y[::8] + 1) % CLASSES
    return x, y


def small(
    eps: float = 0.02, norm: str = "Linf", attacks: tuple[str, ...] = ("apgd-ce", "square"), **options: object
) -> AutoAttack:
    adversary = AutoAttack(
        net(),
        norm=norm,
        eps=eps,
        version="custom",
        attacks_to_run=attacks,
        device="cpu",
        **options,
    )
    for settings in (adversary.apgd, adversary.apgd_targeted, adversary.fab):
        settings.n_restarts, settings.n_iter = 1, 5
    adversary.square.n_queries = 5
    return adversary


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return sum(int(model(x[i : i + 1]).argmax() == y[i]) for i in range(len(y))) / len(y)


def test_script_of_the_custom_version(capsys: pytest.CaptureFixture[str]) -> None:
    model = net()
    x, y = images(12)
    adversary = AutoAttack(model, norm="L2", eps=0.1, version="custom", verbose=False, device="cpu")
    adversary.seed = 0
    adversary.attacks_to_run = ["apgd-ce", "fab"]
    adversary.apgd.n_restarts = adversary.fab.n_restarts = 2
    adversary.apgd.n_iter = adversary.fab.n_iter = 5
    result = adversary.run_standard_evaluation_individual(x, y, bs=6, return_labels=True)
    assert list(result) == ["apgd-ce", "fab"]
    for x_adv, y_adv in result.values():
        assert y_adv.dtype == y.dtype
        with torch.no_grad():
            assert torch.equal(y_adv, model(x_adv).argmax(1))
        assert accuracy(model, x_adv, y) < accuracy(model, x, y)
    assert adversary.attacks_to_run == ["apgd-ce", "fab"]
    assert adversary.clean_accuracy(x, y, bs=5) == accuracy(model, x, y)
    plain = adversary.run_standard_evaluation_individual(x, y, bs=6)
    assert all(torch.equal(plain[name], result[name][0]) for name in plain)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("norm", ["Linf", "L2", "L1"])
def test_versions_match_the_reference(norm: str) -> None:
    adversary = AutoAttack(net(), norm=norm, verbose=False, device="cpu")
    l1 = norm == "L1"
    assert (adversary.apgd.n_restarts, adversary.apgd.use_largereps) == (5 if l1 else 1, l1)
    assert adversary.apgd_targeted.n_target_classes == (5 if l1 else 9)
    assert (adversary.fab.n_restarts, adversary.fab.n_target_classes) == (1, 9)
    adversary.set_version("plus")
    assert (adversary.apgd.n_restarts, adversary.fab.n_restarts, adversary.apgd_targeted.n_restarts) == (5, 5, 1)
    adversary.set_version("rand")
    assert adversary.attacks_to_run == ["apgd-ce", "apgd-dlr"]
    assert (adversary.apgd.n_restarts, adversary.apgd.eot_iter) == (1, 20)


def test_settings_have_the_references_attributes() -> None:
    adversary = AutoAttack(net(), norm="L2", eps=0.5, seed=7, verbose=False)  # on the CPU where there is no GPU
    assert torch.device(adversary.device).type == "cpu"  # where the model is
    for settings in (adversary.apgd, adversary.apgd_targeted, adversary.fab, adversary.square):
        assert (settings.eps, settings.norm, settings.seed) == (0.5, "L2", 7)
    adversary.epsilon = 0.25
    assert adversary.square.eps == adversary.epsilon == 0.25
    adversary.apgd.eps = 0.125
    assert (adversary.apgd.eps, adversary.fab.eps) == (0.125, 0.25)


def test_perturb_uses_its_own_epsilon_and_the_predicted_labels() -> None:
    adversary = small(attacks=("apgd-ce",), verbose=False)
    adversary.fab.targeted = True
    x, _ = images(8)
    with torch.no_grad():
        predicted = net()(x).argmax(1)
    for settings in (adversary.apgd, adversary.apgd_targeted, adversary.fab, adversary.square):
        settings.eps = 0.03
        x_adv = settings.perturb(x)
        assert torch.equal(x_adv, settings.perturb(x, predicted))
        assert 0.02 < float((x_adv.double() - x.double()).abs().max()) <= 0.03
        assert accuracy(adversary.model, x_adv, predicted) < 1
    with pytest.raises(AttributeError):
        adversary.apgd.n_restart = 2


def test_single_runs() -> None:
    adversary = small(verbose=False)
    x, y = images(8)
    model = net()
    for settings, loss in ((adversary.apgd, "ce"), (adversary.apgd, "dlr"), (adversary.apgd_targeted, "dlr-targeted")):
        settings.loss = loss
        x_best, acc, value, x_best_adv = settings.attack_single_run(x, y)
        assert torch.equal(x_best, x_best_adv)
        assert float((x_best.double() - x.double()).abs().max()) <= 0.02
        with torch.no_grad():
            logits = model(x_best)
        assert torch.equal(acc, logits.argmax(1) == y)
        assert 0 < int(acc.sum()) < 8
        if loss == "ce":
            torch.testing.assert_close(value, nn.functional.cross_entropy(logits, y, reduction="none"))
        else:  # the untargeted DLR loss, negative where the example is right
            assert torch.equal(value <= 0, acc)
    nearest = adversary.fab.attack_single_run(x, y)
    assert accuracy(model, nearest, y) == 0
    assert torch.equal(nearest[0], x[0])  # wrong without an attack
    assert accuracy(model, adversary.fab.attack_single_run(x, is_targeted=True), y) < 0.5
    with pytest.raises(InputError, match="x_init: expected None"):
        adversary.apgd.attack_single_run(x, y, x_init=x)
    with pytest.raises(InputError, match="use_rand_start: expected False"):
        adversary.fab.attack_single_run(x, y, use_rand_start=True)


def test_fab_returns_the_nearest_points() -> None:
    adversary = small(eps=0.2, attacks=("fab-t",), verbose=False)
    x, y = images(8)
    found = adversary.run_standard_evaluation(x, y)
    alone = adversary.fab.attack_single_run(x, y, is_targeted=True)
    size = [(points - x).abs().flatten(1).amax(1) for points in (found, alone)]
    # An evaluation, which reports no distance, may move a point further beyond the boundary than a search may.
    torch.testing.assert_close(size[0].median(), size[1].median(), rtol=1e-3, atol=1e-6)
    assert (size[0] <= 1.101 * size[1]).all()
    assert float(size[0].max()) < 0.1


def test_labels_and_batches() -> None:
    x, y = images(16)
    x_adv, y_adv = small(verbose=False).run_standard_evaluation(x, y, bs=3, return_labels=True)
    whole = small(verbose=False).run_standard_evaluation(x, y.int(), bs=16, return_labels=True)
    torch.testing.assert_close(whole[0], x_adv)
    assert whole[1].dtype == torch.int32
    model = net()
    for row in range(16):
        with torch.no_grad():
            assert int(model(x_adv[row : row + 1]).argmax()) == y_adv[row]


def test_state_resumes_a_run(tmp_path: Path) -> None:
    x, y = images(16)
    path = tmp_path / "state.json"
    whole = small().run_standard_evaluation(x, y)

    class Crash(Exception):
        pass

    crashing = small()

    def crash(module: nn.Module, inputs: tuple[Tensor]) -> None:
        if path.exists() and json.loads(path.read_text())["done"] == ["apgd-ce"]:
            raise Crash

    crashing.model = net()
    crashing.model.register_forward_pre_hook(crash)
    with pytest.raises(Crash):
        crashing.run_standard_evaluation(x, y, state_path=path)
    rest = small().run_standard_evaluation(x, y, state_path=path)
    changed = (rest != x).flatten(1).any(1)
    # The first run's adversarial examples are not returned again; the second run's equal those of an uninterrupted run.
    state = json.loads(path.read_text())
    assert state["done"] == ["apgd-ce", "square"]
    assert torch.equal(rest[changed], whole[changed])
    wrong = torch.tensor([accuracy(net(), whole[i : i + 1], y[i : i + 1]) == 0 for i in range(16)])
    assert state["robust"] == (~wrong).tolist()
    assert not changed[~wrong].any()
    again = small().run_standard_evaluation(x, y, state_path=path)
    assert torch.equal(again, x)


def test_state_of_another_run_or_broken(tmp_path: Path) -> None:
    x, y = images(8)
    path = tmp_path / "state.json"
    small(verbose=False).run_standard_evaluation(x, y, state_path=path)
    with pytest.raises(InputError, match=r"eps 0\.03, got 0\.02"):
        small(eps=0.03, verbose=False).run_standard_evaluation(x, y, state_path=path)
    with pytest.raises(ValueError, match="attacks"):
        small(attacks=("apgd-ce",), verbose=False).run_standard_evaluation(x, y, state_path=path)
    with pytest.raises(InputError, match="examples 7"):
        small(verbose=False).run_standard_evaluation(x[:7], y[:7], state_path=path)
    with pytest.raises(InputError, match="state_path: expected a state with data"):
        small(verbose=False).run_standard_evaluation(x / 2, y, state_path=path)
    other = small(verbose=False)
    other.model = nn.Sequential(nn.Flatten(), nn.Linear(36, CLASSES))
    with pytest.raises(InputError, match="state_path: expected a state with model"):
        other.run_standard_evaluation(x, y, state_path=path)
    good = path.read_text()
    content = json.loads(good)
    for broken in (
        "",
        "[" * 9000,
        good[:-3],
        "\xff",
        json.dumps({**content, "version": 1}),
        json.dumps({**content, "clean": None}),
        json.dumps({**content, "clean": 1.5}),
        json.dumps({**content, "robust": [1] * 8}),
        json.dumps({**content, "robust": [True] * 7}),
        json.dumps({**content, "done": "square"}),
        json.dumps({**content, "done": ["rm"]}),
        json.dumps({**content, "more": "x" * 100_000}),
    ):
        path.write_text(broken, encoding="latin-1")
        with pytest.raises(FileFormatError, match=r"state\.json"):
            small(verbose=False).run_standard_evaluation(x, y, state_path=path)


def test_wrong_arguments() -> None:
    model = net()
    for options, message in (
        ({"is_tf_model": True}, "is_tf_model: expected False"),
        ({"norm": "linf"}, "norm: expected one of Linf, L2, L1"),
        ({"version": "best"}, "version: expected one of"),
        ({"attacks_to_run": ["fab"]}, 'use version="custom"'),
        ({"version": "custom", "attacks_to_run": ["fgsm"]}, "attacks_to_run: expected one of"),
        ({"eps": -1.0}, "epsilon: expected"),
    ):
        with pytest.raises(InputError, match=message):
            AutoAttack(model, **{"device": "cpu", "verbose": False, **options})
    with pytest.raises(InputError, match="x: expected values in"):
        small(verbose=False).run_standard_evaluation(*(2 * images(4)[0], images(4)[1]))
    with pytest.raises(InputError, match="attacks_to_run: expected at least one"):
        small(attacks=(), verbose=False).run_standard_evaluation(*images(4))
