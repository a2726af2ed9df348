"""Losses for certified training, and the ramp of their parameters."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from pyrobust.bounds import DifferentiableBounds
from pyrobust.checks import kind, shape_text, share
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
    """IBP training loss: kappa·CE(f(x), y) + (1 − kappa)·CE(ẑ, y), averaged over the batch.

    ẑ denotes the worst-case logits in the l∞ ball of radius epsilon: ẑ_y = 0 and ẑ_j = −m_j. Here, m_j is the interval
    bound on the margin f_y − f_j (Gowal et al., "On the effectiveness of interval bound propagation for training
    verifiably robust models", 2018). CE(ẑ, y) = log(1 + Σⱼ exp(−m_j)) is an upper bound on the cross entropy in the
    ball.

    During training, epsilon usually grows from 0 and kappa falls from 1 (see ``ramp``).

    Args:
        bounds: differentiable bounds of the network. The clean logits are ``bounds.model(x)``, in the model's current
            mode.
        x: inputs [B, ...] in the model's dtype, within the clip range.
        y: labels [B], int64.
        epsilon: radius of the ball, at least 0; a number or a tensor [B].
        kappa: weight of the clean loss, in [0, 1]; a number, or a tensor of one element. If kappa is a tensor,
            ``torch.compile`` does not specialise on its value.
        clip: (lowest, highest) value of an input element; None for no limits.

    Returns:
        The loss, a scalar tensor.

    Raises:
        InputError: kappa is a number out of range or a tensor that has not one element, or an argument is not valid for
            ``DifferentiableBounds.margins``. The value of a tensor is not checked.
        InputTypeError: an argument has a type that is not valid for ``DifferentiableBounds.margins``.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3)).eval()
    >>> bounds = DifferentiableBounds(model, torch.zeros(1, 1, 2, 2))
    >>> x, y = torch.rand(8, 1, 2, 2), torch.randint(3, (8,))
    >>> bool(ibp_loss(bounds, x, y, 0.1, kappa=0.0) > ibp_loss(bounds, x, y, 0.1, kappa=1.0))
    True
    """
    _check_weight("kappa", kappa)
    robust = _worst_case_loss(bounds.margins(x, y, epsilon, method="ibp", clip=clip))
    return _weighted_loss(bounds, x, y, robust, kappa)


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
    """CROWN-IBP training loss: ``ibp_loss`` with tighter margins m = beta·m_CROWN-IBP + (1 − beta)·m_IBP.

    CROWN-IBP uses interval bounds for the hidden layers and a linear backward pass from the margins to the input (Zhang
    et al., "Towards stable and efficient training of verifiably robust neural networks", 2020). In that paper, beta
    falls from 1 to 0 while epsilon grows. Training thus starts with the tight CROWN-IBP bounds and ends with IBP
    bounds, which become tight as the network learns.

    Args:
        bounds: differentiable bounds of the network, see ``ibp_loss``.
        x: inputs [B, ...] in the model's dtype, within the clip range.
        y: labels [B], int64.
        epsilon: radius of the ball, at least 0; a number or a tensor [B].
        kappa: weight of the clean loss, in [0, 1]; a number, or a tensor of one element.
        beta: weight of the CROWN-IBP margins, in [0, 1]; a number, or a tensor of one element.
        clip: (lowest, highest) value of an input element; None for no limits.

    Returns:
        The loss, a scalar tensor.

    Raises:
        InputError: kappa or beta is a number out of range or a tensor that has not one element, or an argument is not
            valid for ``DifferentiableBounds.margins``. The value of a tensor kappa or beta is not checked.
        InputTypeError: an argument has a type that is not valid for ``DifferentiableBounds.margins``.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
    >>> bounds = DifferentiableBounds(model, torch.zeros(1, 4))
    >>> x, y = torch.rand(8, 4), torch.randint(3, (8,))
    >>> difference = crown_ibp_loss(bounds, x, y, 0.1, beta=0.0) - ibp_loss(bounds, x, y, 0.1)
    >>> bool(difference.abs() < 1e-6)
    True
    """
    _check_weight("kappa", kappa)
    _check_weight("beta", beta)
    if not isinstance(beta, Tensor) and beta == 0:
        margins = bounds.margins(x, y, epsilon, method="ibp", clip=clip)
    else:
        margins = bounds.margins(x, y, epsilon, method="crown-ibp", clip=clip, share=beta)
    return _weighted_loss(bounds, x, y, _worst_case_loss(margins), kappa)


def choices_ibp_loss(
    bounds: DifferentiableBounds,
    points: Tensor,
    y: Tensor,
    scale: float | Tensor = 1.0,
    *,
    kappa: float | Tensor = 0.5,
) -> Tensor:
    """``ibp_loss`` for inputs whose parts vary in finite sets, such as the vectors of a word and of its substitutes.

    The worst-case logits are taken over a product of boxes, one for each part of the input. Each box is the bounding
    box of the points p of a part, shrunk towards the first point p₁: it extends from p₁ + scale·(min p − p₁) to p₁ +
    scale·(max p − p₁). Jia et al., "Certified robustness to adversarial word substitutions" (2019), train with such
    boxes. During training, scale usually grows from 0 to 1 while kappa falls from 1 (see ``ramp``). The loss is also
    differentiable with respect to the points, so that word vectors can be trained with the network.

    Args:
        bounds: differentiable bounds of the network.
        points: [B, K, P, ...] in the model's dtype: K points for each of the P parts of each input, see
            ``pyrobust.bounds.Choices``.
        y: labels [B], int64.
        scale: size of the box, in [0, 1]; a number, or a tensor of one element.
        kappa: weight of the clean loss, in [0, 1]; a number, or a tensor of one element.

    Returns:
        The loss, a scalar tensor.

    Raises:
        InputError: scale or kappa is a number out of range or a tensor that has not one element, or an argument is not
            valid for ``DifferentiableBounds.margins``. The value of a tensor scale or kappa is not checked.
        InputTypeError: an argument has a type that is not valid for ``DifferentiableBounds.margins``.

    >>> import torch
    >>> words = torch.nn.Embedding(10, 4)
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2)).eval()
    >>> bounds = DifferentiableBounds(model, torch.zeros(1, 3, 4))
    >>> indices = torch.randint(10, (8, 5, 3))  # 8 texts of 3 words with 4 substitutes each
    >>> choices_ibp_loss(bounds, words(indices), torch.randint(2, (8,)), 0.5).backward()
    >>> words.weight.grad.shape
    torch.Size([10, 4])
    """
    _check_weight("scale", scale)
    _check_weight("kappa", kappa)
    if not isinstance(points, Tensor) or points.dim() < 3 or not points.shape[1]:
        got = shape_text(points.shape) if isinstance(points, Tensor) else kind(points)
        raise InputError("points", "a tensor (B, K, P, ...) with K above 0", got)
    first = points[:, 0]
    lower, upper = (first + scale * (bound - first) for bound in (points.amin(1), points.amax(1)))
    robust = _worst_case_loss(bounds.margins((lower + upper) / 2, y, (upper - lower) / 2))
    return _weighted_loss(bounds, first, y, robust, kappa)


def ramp(step: float, begin: float, end: float, first: float, last: float, *, shape: str = "linear") -> float:
    """Ramp of a training parameter (epsilon, kappa or beta) from ``first`` to ``last`` between two steps.

    Returns first + (last − first)·g(t). Here, t is (step − begin) / (end − begin), clipped to [0, 1].

    - "linear": g(t) = t.
    - "smooth": g(t) = a·t⁴ up to t = ¼. From ¼ on, g is the tangent of this curve at ¼. The factor a makes g(1) = 1. If
      epsilon follows this ramp, the ball grows slowly at first, while the network is far from robust (Xu et al.,
      "Automatic perturbation analysis for scalable certified robustness and beyond", 2020).

    Args:
        step: current training step.
        begin: step at which the ramp begins. Before this step, the result is ``first``.
        end: step at which the ramp ends, at least ``begin``. From this step on, the result is ``last``.
        first: value at the beginning.
        last: value at the end.
        shape: "linear" or "smooth".

    Raises:
        InputError: the shape is unknown, or end is smaller than begin.

    >>> [ramp(step, 10, 20, 0.0, 0.5) for step in (0, 15, 30)]
    [0.0, 0.25, 0.5]
    >>> ramp(15, 10, 20, 0.0, 0.5, shape="smooth") < 0.25
    True
    """
    if shape not in ("linear", "smooth"):
        raise InputError("ramp: shape", "linear or smooth", repr(shape))
    if not begin <= end:
        raise InputError("ramp: end", f"at least {begin}", end)
    t = 1.0 if step >= end else 0.0 if step <= begin else (step - begin) / (end - begin)
    if shape == "smooth":
        t = min(1.0, _smooth(t))
    return (1 - t) * first + t * last


def _smooth(t: float) -> float:
    corner = 0.25
    # t⁴, continued after the corner by its tangent, divided by the value at 1.
    height = corner**4 + 4 * corner**3 * (1 - corner)
    return (t**4 if t <= corner else corner**4 + 4 * corner**3 * (t - corner)) / height


def _worst_case_loss(margins: Tensor) -> Tensor:
    """Return the mean over the batch of log(1 + Σ exp(−m)), which is the cross entropy of the worst-case logits."""
    # cross_entropy launches two kernels in each direction; logsumexp and mean launch a dozen.
    first = torch.zeros(len(margins), dtype=torch.int64, device=margins.device)
    return functional.cross_entropy(functional.pad(-margins, (1, 0)), first)


def _weighted_loss(bounds: DifferentiableBounds, x: Tensor, y: Tensor, robust: Tensor, kappa: float | Tensor) -> Tensor:
    if not isinstance(kappa, Tensor) and kappa == 0:
        return robust
    clean = functional.cross_entropy(bounds.model(x), y)
    return kappa * clean + (1 - kappa) * robust


def _check_weight(name: str, value: float | Tensor) -> None:
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise InputError(name, "one number", f"shape {tuple(value.shape)}")
    else:
        share(name, value)
