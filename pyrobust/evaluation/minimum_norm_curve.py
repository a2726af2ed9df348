"""Robust accuracy at every epsilon, from one run of a minimum-norm attack."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from pyrobust.attacks import AdversarialAttack, AutoAttackResult, MinimumNorm
from pyrobust.checks import Numbers, class_labels, float_tensor, kind, probability
from pyrobust.errors import InputError, InputTypeError
from pyrobust.evaluation.attack_chunk import AttackChunk
from pyrobust.evaluation.robustness_curve import Confirmation, RobustnessCurve
from pyrobust.metrics import distances_above, estimate_rate
from pyrobust.runner import Progress, reporting
from pyrobust.runs.kinds.words import box_norm, norm_of
from pyrobust.runs.run import Run


def minimum_norm_curve(found: MinimumNorm | Run, *, alpha: float = 0.05) -> RobustnessCurve:
    """Compute robust accuracy at every epsilon from the nearest adversarial examples that were found.

    An example counts as robust at epsilon if no adversarial example was found within epsilon. The curve is the step
    function ``(1/N)·|{i: dᵢ > ε}|``. If the clean example i is misclassified, dᵢ = 0; otherwise dᵢ is the distance of
    the nearest adversarial example found, or inf if none was found. Each distance is rounded up to a float64 number,
    which does not change whether it exceeds a float64 ε. The curve is an upper bound of robust accuracy. Its pointwise
    intervals (Clopper and Pearson, 1934) are for the accuracy under this attack: their lower ends are not lower bounds
    of the true robust accuracy.

    Args:
        found: the result of ``MinimumNormAttack.minimum`` or ``minimum_norm``, or a run of
            ``attack_dataset(..., minimum=True)``, with at least one example.
        alpha: probability that the interval at one epsilon misses the true value, in (0, 1).

    Returns:
        RobustnessCurve with ``stepwise``.

    Raises:
        InputError: no example, a run of another kind, or alpha out of range.
        InputTypeError: an argument of the wrong type.

    >>> from pyrobust.attacks import FAB
    >>> from pyrobust.zoo import load_data, load_model
    >>> data = load_data("digits")
    >>> attack = FAB(load_model("zoo:digits-smooth-0.25"), norm="l2", steps=5)
    >>> curve = minimum_norm_curve(attack.minimum(data.x[:20], data.y[:20]))
    >>> curve.rate(0.0).successes, curve.rate(10.0).successes
    (20, 0)
    >>> 0 < curve.area(1.0) < 1, curve.quantiles([0.5]) == [float(np.sort(curve.broken_epsilon)[9])]
    (True, True)
    """
    probability("alpha", alpha, "0.05 is usual")
    if isinstance(found, Run):
        if not found.header.type.stepwise:
            raise InputError(
                "found",
                "a run of a minimum-norm attack",
                f"one of kind {found.kind}",
                "use attack_dataset(..., minimum=True)",
            )
        distance, forwards = found.table["distance"], None
        attack, norm = found.parameters["attack"], norm_of(found.parameters)
    elif isinstance(found, MinimumNorm):
        names = dict.fromkeys(name for name in found.found_by if name not in (None, "clean"))
        distance, forwards = found.distance.numpy(), found.forwards
        attack, norm = ", ".join(map(str, names)) or "minimum-norm attack", found.norm
        norm = norm if found.box is None else box_norm(found.box.tolist())
    else:
        raise InputTypeError("found", "a MinimumNorm or a Run", kind(found))
    if not len(distance):
        raise InputError("found", "at least one example", "none")
    return _step_curve(distance, attack, norm, float(alpha), forwards, ())


def confirm_curve(
    curve: RobustnessCurve,
    attack: AdversarialAttack,
    x: Numbers,
    y: Numbers,
    *,
    progress: bool | Progress = False,
) -> RobustnessCurve:
    """Run another attack, such as ``AutoAttack``, on the examples that count as robust at that attack's epsilon.

    Both attacks give upper bounds of robust accuracy, so the minimum of the two is an upper bound, too. Where the new
    attack breaks an example, the curve takes the distance of the new attack's x_adv. Every x_adv is checked as in
    ``attack_dataset``.

    Args:
        curve: result of ``minimum_norm_curve``.
        attack: an attack in the curve's norm, with the epsilon at which the curve is to be confirmed.
        x: [N, ...], float, the examples of the curve, in the same order.
        y: [N], integers, labels of the examples.
        progress: True for a bar on the terminal, or a function that receives (examples done, examples).

    Returns:
        The curve, nowhere higher than before, with one more entry in ``confirmations``.

    Raises:
        InputError: a curve that is not ``stepwise``; an attack in another norm, or with a separate epsilon for each
            example; a wrong number of examples; an attack that leaves the ball or the clip range, or returns a wrong
            shape, NaN or inf.
        InputTypeError: an argument of the wrong type.

    >>> from pyrobust.attacks import FAB, PGD
    >>> from pyrobust.zoo import load_data, load_model
    >>> data, model = load_data("digits"), load_model("zoo:digits-smooth-0.25")
    >>> x, y = data.x[:20], data.y[:20]
    >>> curve = minimum_norm_curve(FAB(model, steps=2).minimum(x, y))
    >>> confirmed = confirm_curve(curve, PGD(model, epsilon=0.15, steps=10), x, y)
    >>> [done] = confirmed.confirmations
    >>> confirmed.rate(0.15).successes == curve.rate(0.15).successes - done.broken
    True
    """
    for name, value, expected in (("curve", curve, RobustnessCurve), ("attack", attack, AdversarialAttack)):
        if not isinstance(value, expected):
            raise InputTypeError(name, expected.__name__, kind(value))
    if not curve.stepwise:
        raise InputError("curve", "a curve of minimum_norm_curve", "one of points")
    if isinstance(attack.epsilon, Tensor) or attack.norm != curve.norm:
        got = "several radii" if isinstance(attack.epsilon, Tensor) else f"{attack.epsilon:g} in {attack.norm}"
        raise InputError("attack", f"one epsilon in {curve.norm}", got)
    if attack.grid == "auto":
        raise InputError("attack", 'the step of its grid, such as "1/255"', '"auto"')
    x = float_tensor("x", x)
    labels = class_labels("y", y, len(x))
    if len(x) != curve.n:
        raise InputError("x", f"the {curve.n} examples of the curve", len(x))
    name, epsilon = type(attack).__name__, float(attack.epsilon)
    rows = np.flatnonzero(curve.broken_epsilon > epsilon)
    distance, broken, forwards = curve.broken_epsilon.copy(), np.zeros(0, dtype=np.int64), curve.forwards
    proved = 0
    if len(rows):
        clean, goal = attack.snap(x).cpu()[rows], labels[rows]
        grid: dict[str, object] = {} if attack.grid is None else {"grid": attack.grid}
        chunk = AttackChunk(attack, {"attack": name, "examples": False, "seed": 0, "epsilon": epsilon, **grid})
        with reporting(progress, len(rows)) as report:
            _, adversarial, length, x_adv = chunk.examine(
                clean, goal, range(len(rows)), lambda done, total: report(done)
            )
        fooled = np.flatnonzero(adversarial != goal.numpy())
        broken = rows[fooled]
        # On a grid, the distances are exact already.
        above = distances_above(x_adv[fooled], clean[fooled], curve.norm).numpy()
        distance[broken] = above if attack.grid is None else length[fooled]
        spent = getattr(chunk.result, "forwards", None)
        forwards = None if forwards is None or spent is None else forwards + spent
        if isinstance(chunk.result, AutoAttackResult) and chunk.result.certified_first is not None:
            proved = sum(chunk.result.certified_first.proved)
    done = Confirmation(name, epsilon, len(rows), len(broken), proved)
    return _step_curve(distance, curve.attack, curve.norm, curve.alpha, forwards, (*curve.confirmations, done))


def _step_curve(
    distance: npt.NDArray[np.float64],
    attack: str,
    norm: str,
    alpha: float,
    forwards: int | None,
    confirmations: Sequence[Confirmation],
) -> RobustnessCurve:
    epsilons = np.unique(np.concatenate([[0.0], distance[np.isfinite(distance)]]))
    counts = len(distance) - np.searchsorted(np.sort(distance), epsilons, side="right")
    rates = [estimate_rate(count, len(distance), alpha) for count in counts.tolist()]
    return RobustnessCurve(
        attack=attack,
        norm=norm,
        epsilons=epsilons,
        counts=counts.astype(np.int64),
        n=len(distance),
        lower=np.array([rate.lower for rate in rates]),
        upper=np.array([rate.upper for rate in rates]),
        alpha=alpha,
        broken_epsilon=np.array(distance, dtype=np.float64),
        forwards=forwards,
        stepwise=True,
        confirmations=tuple(confirmations),
    )
