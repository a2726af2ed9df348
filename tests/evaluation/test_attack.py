"""Attack sweeps: stored results match the model; arguments, and attacks that leave their ball, are refused."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.attack_runs import EPSILON, Crowd, Hesitant, Mine, digits, pgd
from support.sweep_models import Stop, same, stop_after
from torch import Tensor, nn

from pyrobust.attacks import APGD, EOT, FGSM, AdversarialAttack, AutoAttack
from pyrobust.errors import InputError, InputTypeError, ModelError, StoreError
from pyrobust.evaluation import (
    Run,
    SweepProgress,
    attack_dataset,
    calculate_empirical_robustness,
    certified_accuracy_ibp,
    compute_robustness_curve,
    format_log,
    read_log,
    verify_dataset,
    write_log,
)
from pyrobust.machine import fixed_threads
from pyrobust.metrics import distances, estimate_rate
from pyrobust.report import attack_table, prediction_table, verification_table
from pyrobust.zoo import ImageSet, load_model


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_results_match_the_attack_and_the_model_on_single_images(tmp_path: Path, norm: str) -> None:
    data, epsilon = digits(), {"linf": EPSILON, "l2": 0.8, "l1": 2.0}[norm]
    attack = pgd(norm=norm, epsilon=epsilon, seed=3)
    run = attack_dataset(attack, data, out=tmp_path / "run.db", skip=2, max_images=9)
    indices = torch.arange(0, 18, 2)
    x, y = data.x[indices], data.y[indices]
    with fixed_threads():  # as the sweep did: on a busy machine, attacks try another number, and so other last bits
        x_adv = attack.generate(x, y, indices=indices)
    assert torch.equal(run.examples(), x_adv)
    assert run.table["index"].tolist() == indices.tolist()
    model = attack.model
    for name, batch in (("prediction", x), ("adversarial", x_adv)):
        alone = [int(model(batch[i : i + 1]).argmax()) for i in range(9)]
        assert run.table[name].tolist() == alone
    broken = ~run.robust
    assert np.array_equal(run.table["distance"][broken], distances(x_adv, x, norm).numpy()[broken])
    assert (run.table["distance"][broken] <= epsilon).all()
    assert np.isnan(run.table["distance"][~broken]).all(), "a last iterate is not an adversarial example"
    expected = attack.evaluate(x, y, x_adv)
    assert float(run.robust_accuracy()) == expected["robust_accuracy"]
    assert float(run.clean_accuracy()) == expected["clean_accuracy"]
    assert 0 < run.robust.sum() < 9, "the test needs broken images and others"
    assert run.robust_accuracy(0.1) == estimate_rate(int(run.robust.sum()), 9, 0.1)
    assert (run.kind, run.header.guarantee, run.complete) == ("attack", "empirical", True)
    with pytest.raises(InputError, match="expected a run of kind certify"):
        run.certified_accuracy([0.0])
    with pytest.raises(InputError, match="use attack_table"):
        prediction_table(run)


def test_results_hardly_depend_on_the_batch_size_which_is_that_of_the_run() -> None:
    whole, seen, attack = attack_dataset(pgd(), digits()), list[SweepProgress](), pgd(batch_size=7)
    run = attack_dataset(attack, digits(), progress=seen.append, batch_size=10)
    assert (run.parameters["chunk"], attack.runner.given_batch_size, attack.progress) == (10, 7, False)
    # Only the model's own arithmetic depends on the batch.
    assert np.array_equal(run.robust, whole.robust)
    assert torch.allclose(run.examples(), whole.examples(), atol=1e-3)
    assert seen[-1].summary == f"correct 100.0 %, robust: {100 * run.robust.mean():.1f} %"
    done = [now.images for now in seen]
    assert done == sorted(done)
    assert any(now.images % 10 for now in seen)


def test_autoattack_reports_which_attack_broke_each_image(tmp_path: Path) -> None:
    def attack(steps: int = 2) -> AutoAttack:
        made = AutoAttack(load_model("zoo:digits-smooth-0.25"), EPSILON, attacks_to_run=["apgd-ce", "square"])
        made.attacks["apgd-ce"].steps = steps
        made.attacks["square"].n_queries = 20
        return made

    mine = attack()
    y = digits().y.clone()
    y[5] = (y[5] + 1) % 10  # the model is wrong about this one
    data = ImageSet("digits", digits().x, y)
    run = attack_dataset(mine, data, out=tmp_path / "run.db")
    assert mine.result is None
    mine.generate(data.x, data.y)
    assert run.table["broken_by"].tolist() == [name or "" for name in mine.result.broken_by]
    assert run.table["broken_by"][5] == "clean"
    assert {"", "apgd-ce", "clean"} <= set(run.table["broken_by"])
    assert float(run.robust_accuracy()) == mine.result.robust_accuracy
    assert run.parameters["settings"]["square.n_queries"] == 20
    with pytest.raises(StoreError, match=r"apgd-ce\.steps: 2 stored, 3 given"):
        attack_dataset(attack(3), data, out=tmp_path / "run.db")


def test_examples_are_optional() -> None:
    run, full = attack_dataset(pgd(), digits(), keep_examples=False), attack_dataset(pgd(), digits())
    assert np.array_equal(run.table["adversarial"], full.table["adversarial"])
    chosen = [7, 2, 4, 3, 1]
    assert torch.equal(full.examples(chosen), full.examples()[chosen])
    with pytest.raises(InputError, match="one made with keep_examples=False"):
        run.examples()
    with pytest.raises(InputError, match=rf"^indices: expected images of the run, 0 to {len(full) - 1}, got 99$"):
        full.examples([1, 99])
    with pytest.raises(InputTypeError, match="expected a sequence of integers"):
        full.examples([0.5])


@pytest.mark.usefixtures("unprobed")
def test_close_logits_are_judged_on_single_images() -> None:
    x = torch.full((6, 1, 2, 2), 0.5)
    x[0] = 0.95
    data = ImageSet("grey", x, torch.zeros(6, dtype=torch.int64))
    run = attack_dataset(Mine(Hesitant()), data)
    assert run.table["prediction"].tolist() == [1, 0, 0, 0, 0, 0]
    assert run.table["adversarial"].tolist() == [1, 0, 0, 0, 0, 0]
    assert run.table["broken_by"].tolist() == ["clean", "", "", "", "", ""]
    x[1] = 0.85  # which the attack lifts above the threshold
    run = attack_dataset(Mine(Hesitant()), data)
    assert run.table["broken_by"].tolist() == ["clean", "Mine", "", "", "", ""]


def test_user_attacks_are_compared_by_their_attributes(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    model = load_model("zoo:digits-smooth-0.25")
    attack_dataset(Mine(model, step=torch.tensor(0.1)), digits(), out=path)
    assert attack_dataset(Mine(model, step=torch.tensor(0.1)), digits(), out=path).parameters["seed"] is None
    with pytest.raises(StoreError, match=r"step: 'sha256 .*' stored, 'sha256 .*' given"):
        attack_dataset(Mine(model, step=torch.tensor(0.2)), digits(), out=path)
    mine = Mine(model, step=np.float64(0.1))
    mine.more = {"a": [1, 2], "b": (None,)}
    mine.shard = "a"  # named as a parameter of the run
    named = attack_dataset(mine, digits(), max_images=1, out=tmp_path / "named.db")
    assert named.parameters["settings"] == {"step": 0.1, "more.a.0": 1, "more.a.1": 2, "more.b.0": None, "shard": "a"}
    mine.shard = "b"
    with pytest.raises(StoreError, match=r"settings\.shard: 'a' stored, 'b' given"):
        attack_dataset(mine, digits(), max_images=1, out=tmp_path / "named.db")


def test_different_seeds_become_settings() -> None:
    attack = AutoAttack(load_model("zoo:digits-smooth-0.25"), 0.4, attacks_to_run=["apgd-ce", "square"], seed=5)
    assert attack_dataset(attack, digits(), max_images=1).parameters["seed"] == 5
    attack.attacks["square"].seed = 6
    parameters = attack_dataset(attack, digits(), max_images=1).parameters
    assert parameters["seed"] is None
    assert (parameters["settings"]["apgd-ce.seed"], parameters["settings"]["square.seed"]) == (5, 6)


@pytest.mark.parametrize("order", ["data", "random"])
def test_randomised_models_repeat_their_results_and_restore_the_generator(tmp_path: Path, order: str) -> None:
    """A chunk's generators are seeded by its first image, so that a resumed run repeats them."""

    def attacked(**options: Any) -> Run:
        noisy = EOT(load_model("zoo:digits-smooth-0.25"), 2, transform=lambda x: x + 0.3 * torch.randn_like(x))
        return attack_dataset(FGSM(noisy, EPSILON), digits(), order=order, **options)

    before = torch.get_rng_state()
    whole = attacked(batch_size=8)
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(Stop):
        attacked(out=tmp_path / "run.db", batch_size=8, progress=stop_after(8))
    assert len(Run(tmp_path / "run.db")) == 8
    torch.rand(5)
    assert same(attacked(out=tmp_path / "run.db"), whole)  # the batch size is the run's


def test_the_log_matches_the_run(tmp_path: Path) -> None:
    run = attack_dataset(pgd(), digits())
    write_log(run, tmp_path / "log.tsv")
    assert (tmp_path / "log.tsv").read_text() == format_log(run)
    log = read_log(tmp_path / "log.tsv")
    names = {"idx": "index", "label": "label", "predict": "prediction", "adversarial": "adversarial"}
    for name, column in {**names, "distance": "distance", "broken_by": "broken_by"}.items():
        assert np.array_equal(log[name], run.table[column], equal_nan=name == "distance")
    assert np.array_equal(log["robust"], run.robust)
    assert np.array_equal(log["correct"], run.correct)


def test_flags_are_logged_once_in_a_run(caplog: pytest.LogCaptureFixture) -> None:
    """Not once for each chunk."""

    def flat(x: Tensor) -> Tensor:
        mean = (x.mean((1, 2, 3)) * 8).round() / 8
        return torch.stack([mean, 1 - mean, torch.zeros_like(mean), -mean], 1).softmax(1)

    data = (torch.full((6, 1, 2, 2), 0.9), torch.zeros(6, dtype=torch.int64))
    attack = AutoAttack(flat, epsilon=0.01, attacks_to_run=["apgd-dlr"])
    attack.attacks["apgd-dlr"].steps = 1
    attack_dataset(attack, data, batch_size=2, model_name="flat")
    lines = [line for line in caplog.messages if "gradient of zero" in line or "probabilities" in line]
    assert len(lines) == 2
    caplog.clear()
    attack_dataset(APGD(flat, 0.01, loss="dlr", steps=1), data, batch_size=2, model_name="flat")
    assert sum("gradient of zero" in line for line in caplog.messages) == 1


class Returning(AdversarialAttack):
    """Returns the result of a given function."""

    def __init__(self, change: Any, model: Any = None, **options: Any) -> None:
        super().__init__(model or load_model("zoo:digits-smooth-0.25"), **({"epsilon": EPSILON} | options))
        self.change = change

    def generate(self, x: Tensor, y: Tensor, targeted: bool = False, target_labels: Tensor | None = None) -> Any:
        return self.change(x)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda x: x.long(), InputTypeError, "to return a float tensor, got torch.int64"),
        (lambda x: x[:-1], InputError, r"to return shape \(24, 1, 8, 8\), got \(23, 1, 8, 8\)"),
        (lambda x: x * math.nan, InputError, "finite values"),
        (lambda x: x - 1e-9, InputError, "to stay in the clip range, 0.0 to 1.0, got -9.99"),
        (lambda x: (x + EPSILON + 1e-6).clamp(max=1), InputError, "to stay within linf distance 0.15, got 0.15000"),
        (lambda x: x.add_(0.2).clamp_(max=1), InputError, "to stay within linf distance"),
    ],
)
def test_invalid_adversarial_examples_are_refused(tmp_path: Path, change: Any, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        attack_dataset(Returning(change), digits(), out=tmp_path / "run.db")
    assert list(tmp_path.iterdir()) == []


def test_the_ball_is_checked_in_exact_arithmetic() -> None:
    """A distance that float64 rounds above epsilon is stored as epsilon; one truly above it is refused."""
    generator = torch.Generator().manual_seed(0)
    shape = (1, 1, 32, 32)
    data = (torch.zeros(shape), torch.tensor([1]))  # wrong from the start, so that the distance is kept
    rounded = 0
    for _ in range(20):
        z = torch.rand(shape, generator=generator) * 2.0 ** -torch.randint(0, 40, shape, generator=generator)
        computed = float(distances(z, data[0], "l1")[0])
        exact = sum(map(Fraction, z.flatten().tolist()))
        inside = computed
        while Fraction(inside) < exact:
            inside = math.nextafter(inside, math.inf)
        while Fraction(outside := math.nextafter(inside, 0.0)) >= exact:
            inside = outside
        run = attack_dataset(Returning(lambda _, z=z: z, Crowd(), epsilon=inside, norm="l1"), data)
        assert run.table["distance"].tolist() == [min(computed, inside)]
        rounded += computed > inside
        if outside < computed:
            with pytest.raises(InputError, match="to stay within l1 distance"):
                attack_dataset(Returning(lambda _, z=z: z, Crowd(), epsilon=outside, norm="l1"), data)
    assert rounded >= 3


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"attack": load_model}, InputTypeError, "attack: expected an AdversarialAttack"),
        ({"attack": Mine(Crowd(), epsilon=torch.ones(4))}, InputError, "one epsilon for the run, got a tensor of 4"),
        ({"attack": Mine(lambda x: x)}, InputError, "model_name: expected a name"),
        ({"attack": Mine(nn.Linear(3, 2))}, ModelError, r"failed on one image of shape \(1, 8, 8\)"),
        ({"attack": Mine(Crowd())}, InputError, "expected labels of 0 to 1, the model's classes; image 2 has 2"),
        ({"attack": pgd(clip_max=0.5)}, InputError, r"expected pixels in \[0.0, 0.5\]"),
        ({"keep_examples": 1}, InputTypeError, "keep_examples: expected True or False"),
        (
            {"attack": Mine(Crowd(), step="x" * 300), "data": (torch.zeros(2, 1, 2, 2), torch.tensor([0, 1]))},
            InputError,
            "attack: expected values that a run can store",
        ),
    ],
)
def test_invalid_arguments_leave_no_file(tmp_path: Path, change: dict[str, Any], error: type, words: str) -> None:
    arguments: dict[str, Any] = {"attack": pgd(), "data": digits(), "out": tmp_path / "run.db"}
    with pytest.raises(error, match=words):
        attack_dataset(**(arguments | change))
    assert list(tmp_path.iterdir()) == []


# -- logits without a winner, such as NaN

#: Four images, of class 1 if bright; the model returns NaN for the darkest one.
X = torch.tensor([0.05, 0.3, 0.7, 0.9]).view(4, 1, 1, 1).expand(4, 1, 2, 2).contiguous()
Y = torch.tensor([0, 0, 1, 1])


class Undecided(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean((1, 2, 3))
        return torch.where(mean[:, None] < 0.1, math.nan, torch.stack([0.5 - mean, mean - 0.5], 1))


def robust_accuracy(ensemble: AutoAttack) -> float:
    ensemble.generate(X, Y)
    assert ensemble.result.broken_by == ("clean", None, None, None)
    return float(ensemble.result.robust_accuracy)


def test_no_winner_counts_as_wrong_everywhere_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    net, attack = Undecided(), FGSM(Undecided(), epsilon=0.0)
    ensemble = AutoAttack(net, epsilon=0.0, attacks_to_run=["apgd-ce"])
    shares: dict[str, Callable[[], list[float]]] = {
        "evaluate": lambda: [
            attack.evaluate(X, Y, attack.generate(X, Y))[name] for name in ("clean_accuracy", "robust_accuracy")
        ],
        "AutoAttack": lambda: [robust_accuracy(ensemble)],
        "run": lambda: [float(attack_dataset(FGSM(net, 0.0), (X, Y), batch_size=1).robust_accuracy())],
        "curve": lambda: [compute_robustness_curve(FGSM, net, X, Y, [0.0])[0.0]],
        # Of the three examples that are right, scaled to all four.
        "function": lambda: [0.75 * calculate_empirical_robustness(net, (X, Y), lambda model, x, y, budget: x, 0.0)],
    }
    for name, measure in shares.items():
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="pyrobust"):
            assert set(measure()) == {0.75}, name
        [said] = caplog.messages
        assert "examples have no predicted class" in said
        assert "count as wrong" in said


def test_tables_and_logs_count_rows_without_a_winner(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    with torch.no_grad():
        model[1].weight.fill_(3e38)  # too much for float32 but for the darkest image
    attacked = attack_dataset(FGSM(Undecided(), epsilon=0.0), (X, Y))
    assert attacked.robust.tolist() == [False, True, True, True]
    verified = verify_dataset(model, (X, Y), epsilons=0.1)
    for table, share in ((attack_table(attacked), "25.0 %"), (verification_table(verified), "75.0 %")):
        [row] = [row for row in table.rows if "logits NaN or inf, counted wrong" in str(row[0])]
        assert share in " ".join(map(str, row))
    assert certified_accuracy_ibp(model, (X, Y), 0.0)["certified_accuracy"] == 0
    write_log(attacked, tmp_path / "log.tsv")
    assert read_log(tmp_path / "log.tsv")["predict"].tolist() == [-1, 0, 1, 1]
