"""Losses whose minimum is a classifier with certificates."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from pyrobust.bounds import DifferentiableBounds
from pyrobust.checks import number
from pyrobust.errors import InputError


def ibp_loss(
    bounds: DifferentiableBounds,
    x: Tensor,
    y: Tensor,
    epsilon: float | Tensor,
    *,
    kappa: float | Tensor = 0.5,
    clip: tuple[float, float] | None = None,
) -> Tensor:
    """The loss of interval training: kappa·CE(f(x), y) + (1 − kappa)·CE(ẑ, y), the mean over the batch.

    ẑ are the worst-case logits of the l∞ ball of radius epsilon: ẑ_y = 0 and ẑ_j = −m_j, with m_j the interval bound of
    the margin f_y − f_j (Gowal et al., "On the effectiveness of interval bound propagation for training verifiably
    robust models", 2018). CE(ẑ, y) = log(1 + Σⱼ exp(−m_j)) is at least the cross entropy of any input of the ball.

    epsilon usually grows from 0 and kappa falls from 1 during training, see ``ramp``.

    Args:
        bounds: of the network; the clean logits are ``bounds.model(x)``, in whatever mode the model is.
        x: [B, ...] in the model's dtype, in the clip range.
        y: [B], the labels, int64.
        epsilon: at least 0; a number or a tensor [B].
        kappa: the weight of the clean logits, in [0, 1]; a number, or a tensor of one element, which
            ``torch.compile`` does not specialise on.
        clip: (lowest, highest) value of an element of an input; None for no limits.

    Returns:
        One number.

    Raises:
        InputError: kappa is out of range, or as of ``DifferentiableBounds.margins``.
        InputTypeError: as of ``DifferentiableBounds.margins``.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3)).eval()
    >>> bounds = DifferentiableBounds(model, torch.zeros(1, 1, 2, 2))
    >>> x, y = torch.rand(8, 1, 2, 2), torch.randint(3, (8,))
    >>> bool(ibp_loss(bounds, x, y, 0.1, kappa=0.0) > ibp_loss(bounds, x, y, 0.1, kappa=1.0))
    True
    """
    _check_share("kappa", kappa)
    robust = _worst_case(bounds.margins(x, y, epsilon, method="ibp", clip=clip))
    return _combined(bounds, x, y, robust, kappa)


def crown_ibp_loss(
    bounds: DifferentiableBounds,
    x: Tensor,
    y: Tensor,
    epsilon: float | Tensor,
    *,
    kappa: float | Tensor = 0.5,
    beta: float | Tensor = 1.0,
    clip: tuple[float, float] | None = None,
) -> Tensor:
    """The loss of CROWN-IBP training: as ``ibp_loss``, with tighter margins.

    m = beta·m_CROWN-IBP + (1 − beta)·m_IBP; intervals inside, linear bounds from the margins back to the input (Zhang
    et al., "Towards stable and efficient training of verifiably robust neural networks", 2020). There beta falls from 1
    to 0 while epsilon grows: the tight bounds start the training, the intervals, which the network learns to make
    tight, end it.

    Args:
        bounds: as of ``ibp_loss``.
        x: as of ``ibp_loss``.
        y: as of ``ibp_loss``.
        epsilon: as of ``ibp_loss``.
        kappa: as of ``ibp_loss``.
        beta: the weight of the linear bounds, in [0, 1], like kappa.
        clip: as of ``ibp_loss``.

    Returns:
        One number.

    Raises:
        InputError: kappa or beta is out of range, or as of ``DifferentiableBounds.margins``.
        InputTypeError: as of ``DifferentiableBounds.margins``.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
    >>> bounds = DifferentiableBounds(model, torch.zeros(1, 4))
    >>> x, y = torch.rand(8, 4), torch.randint(3, (8,))
    >>> same = crown_ibp_loss(bounds, x, y, 0.1, beta=0.0) - ibp_loss(bounds, x, y, 0.1)
    >>> bool(same.abs() < 1e-6)
    True
    """
    _check_share("kappa", kappa)
    _check_share("beta", beta)
    if not isinstance(beta, Tensor) and beta == 0:
        margins = bounds.margins(x, y, epsilon, method="ibp", clip=clip)
    else:
        margins = bounds.margins(x, y, epsilon, method="crown-ibp", clip=clip, share=beta)
    return _combined(bounds, x, y, _worst_case(margins), kappa)


def ramp(step: float, begin: float, end: float, first: float, last: float, *, shape: str = "linear") -> float:
    """A number that goes from first to last while the step goes from begin to end: for epsilon, kappa, beta.

    With t the share of the way, clipped to [0, 1], the result is first + (last − first)·g(t).

    - "linear": g(t) = t.
    - "smooth": g(t) = a·t⁴ up to t = ¼, and from there on its tangent, with a such that g(1) = 1: the ball grows
      slowly while the network is still far from robust (Xu et al., "Automatic perturbation analysis for scalable
      certified robustness and beyond", 2020).

    Args:
        step: where training stands.
        begin: the step up to which the number is first.
        end: the step from which on it is last; at least begin.
        first: at the beginning.
        last: at the end.
        shape: "linear" or "smooth".

    Raises:
        InputError: another shape, or an end before the beginning.

    >>> [ramp(step, 10, 20, 0.0, 0.5) for step in (0, 15, 30)]
    [0.0, 0.25, 0.5]
    >>> ramp(15, 10, 20, 0.0, 0.5, shape="smooth") < 0.25
    True
    """
    if shape not in ("linear", "smooth"):
        raise InputError(f"ramp: shape: expected linear or smooth, got {shape!r}")
    if not begin <= end:
        raise InputError(f"ramp: end: expected at least {begin}, got {end}")
    t = 1.0 if step >= end else 0.0 if step <= begin else (step - begin) / (end - begin)
    if shape == "smooth":
        t = min(1.0, _smooth(t))
    return (1 - t) * first + t * last


def _smooth(t: float) -> float:
    corner = 0.25
    # t⁴ and its tangent from the corner on, over what they reach at 1
    height = corner**4 + 4 * corner**3 * (1 - corner)
    return (t**4 if t <= corner else corner**4 + 4 * corner**3 * (t - corner)) / height


def _worst_case(margins: Tensor) -> Tensor:
    """The mean of log(1 + Σ exp(−m)): the cross entropy of the worst-case logits, whose class comes first."""
    # cross_entropy is two kernels each way, logsumexp and mean a dozen
    first = torch.zeros(len(margins), dtype=torch.int64, device=margins.device)
    return functional.cross_entropy(functional.pad(-margins, (1, 0)), first)


def _combined(bounds: DifferentiableBounds, x: Tensor, y: Tensor, robust: Tensor, kappa: float | Tensor) -> Tensor:
    if not isinstance(kappa, Tensor) and kappa == 0:
        return robust
    clean = functional.cross_entropy(bounds.model(x), y)
    return kappa * clean + (1 - kappa) * robust


def _check_share(name: str, value: float | Tensor) -> None:
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise InputError(f"{name}: expected one number, got shape {tuple(value.shape)}")
    elif not 0 <= number(name, value) <= 1:
        raise InputError(f"{name}: expected a number in [0, 1], got {value}")
