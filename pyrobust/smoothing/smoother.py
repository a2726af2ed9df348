"""Randomized smoothing after Cohen, Rosenfeld and Kolter (2019)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyrobust.errors import InputError
from pyrobust.runner import Classifier, Progress, Runner, reporting
from pyrobust.stats import SHARE_AT_END

from .certificates import Certificates, Predictions
from .checks import (
    Channels,
    certified_radii,
    channels,
    count,
    integer,
    one_example,
    probability,
    samples,
)
from .examples import checked_examples, noise_dtype
from .fixed_batch import certify_fixed
from .grid import read_grid, usual_grid
from .prediction import decide, joint_delta
from .radius import certified_radius
from .sampling import Sampler
from .sequential import CertificationRule
from .sequential_batch import certify_sequentially


class RandomizedSmoothing:
    """The smoothed classifier ``g(x) = argmax over c of P(f(x + ε) = c)`` and its certificates.

    f is the base classifier's arg-max (a row of logits with NaN or +inf votes for no class), ε noise of standard
    deviation sigma in every coordinate. ``certify`` selects a class with n0 samples and bounds its probability from
    below with n fresh ones (Clopper and Pearson, 1934); the bound gives a radius
    (``pyrobust.smoothing.certified_radius``). All rounding is towards "not certified".

    The noise of an example depends on (seed, image index, sample index) alone: any batch size, thread count, order or
    split of a data set into calls sees the same noise, and so gets the same counts wherever the model's own
    arithmetic does not depend on its batch. A certificate is void for an x that was chosen after seeing counts made
    with the same seed.

    Args:
        model: the base classifier: module or callable, [N, ...] → logits [N, K] or an object with ``.logits``.
        num_classes: K.
        sigma: standard deviation of the noise in every coordinate, in the input's unit; positive.
        noise: "gaussian", "uniform" (half-width √3·sigma) or "laplace" (scale sigma/√2).
        norm: of the radius: "l2" for gaussian, "l1" for the other two.
        normalize: (mean, std) per channel, applied after the noise in the same pass: what a normalisation layer in
            front of the model would compute, bit for bit in float32, for less. x and sigma stay in the unnormalised
            unit.
        seed: in [0, 2**64).
        grid: step of the grid that images are on, an exact fraction such as "1/255" (bytes divided by 255); "auto":
            found for the examples of each call. Gaussian noise only; it is rounded to the grid, so that no rounding of
            floats makes a certificate false for an image on the grid (``guarantee="grid"``, docs/how-to/grid.md). The
            model then runs on batches of one size, with kernels that repeat their bits. Default: none.
        batch_size: rows a forward pass; default: found so that it fits memory.
        device, dtype, memory_format: how the model runs, see ``pyrobust.runner.Runner``.

    Raises:
        InputError: a value out of range, a pair (noise, norm) without a certificate, or a grid for other noise.
        InputTypeError: a model that is not callable, or a float for the grid.

    >>> smoother = RandomizedSmoothing(lambda x: torch.stack([x[:, 0], -x[:, 0]], 1), num_classes=2, sigma=0.5)
    >>> label, radius = smoother.certify(torch.tensor([1.0]), n0=100, n=10_000, alpha=0.001)
    >>> label, f"{radius:.2f}"  # the true distance to the boundary is 1
    (0, '0.98')
    """

    def __init__(
        self,
        model: Classifier,
        num_classes: int,
        sigma: float,
        *,
        noise: str = "gaussian",
        norm: str = "l2",
        normalize: tuple[Channels, Channels] | None = None,
        seed: int = 0,
        grid: Fraction | str | None = None,
        batch_size: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        memory_format: torch.memory_format | None = None,
    ) -> None:
        self.num_classes = count("num_classes", num_classes)
        certified_radius(0.0, sigma, noise=noise, norm=norm)  # says what is wrong with them
        if not 0 <= integer("seed", seed) < 1 << 64:
            raise InputError(f"seed: expected 0 to 2**64 - 1, got {seed}")
        self.sigma = float(sigma)
        self.noise = noise
        self.norm = norm
        self.seed = int(seed)
        self.grid = read_grid(grid)
        if grid is not None and noise != "gaussian":
            raise InputError(f"grid: expected None for {noise} noise: only gaussian has a certificate on a grid")
        self.runner = Runner(model, device=device, dtype=dtype, memory_format=memory_format, batch_size=batch_size)
        self.normalize = (
            None if normalize is None else channels(normalize, noise_dtype(self.runner), self.runner.device)
        )
        self.sampler = self._make_sampler()

    def on_grid_of(self, x: Tensor) -> RandomizedSmoothing:
        """This smoother with the grid that ``grid="auto"`` finds for x; itself where it does not ask for that.

        Args:
            x: any number of examples. All that are to share a smoothed classifier: the grid is part of it.

        Raises:
            InputError: x is on none of the usual grids.
            InputTypeError: x is not a tensor of float32 or float64.
        """
        if self.grid != "auto":
            return self
        step = usual_grid(x)
        found = copy.copy(self)
        found.grid = step
        found.sampler = found._make_sampler()
        return found

    def _make_sampler(self) -> Sampler:
        step = self.grid if isinstance(self.grid, Fraction) else None
        return Sampler(self.runner, self.num_classes, self.sigma, self.noise, self.seed, self.normalize, step)

    def predict(self, x: Tensor, n: int, alpha: float = 0.001, *, index: int = 0) -> int:
        """The smoothed classifier's class at one example, or ``ABSTAIN``; wrong with probability at most alpha.

        The two classes with most of n votes are compared by the two-sided binomial test of p = 1/2 (Hung and Fithian,
        2019); votes without a winner count as a class of their own, and where that one leads the result is ``ABSTAIN``.

        Args:
            x: one example, [...] (no batch dimension).
            n: number of samples, at least 1.
            alpha: in (0, 1).
            index: image index of the noise contract, in [0, 2**32); examples of one data set need different ones.

        Raises:
            InputError: as ``certify_batch``.
        """
        return int(self.predict_batch(one_example(x), n=n, alpha=alpha, indices=[index]).prediction[0])

    def certify(
        self,
        x: Tensor,
        n0: int = 100,
        n: int = 100_000,
        alpha: float = 0.001,
        batch_size: int | None = None,
        *,
        index: int = 0,
    ) -> tuple[int, float]:
        """Class and certified radius of one example; (``ABSTAIN``, 0.0) where nothing could be certified.

        Args:
            x: one example, [...] (no batch dimension).
            n0: samples for the selection of the class, at least 1.
            n: samples for the bound on its probability, at least 1.
            alpha: probability that the certificate is wrong, in (0, 1).
            batch_size: rows a forward pass in this call; default: the smoother's.
            index: image index of the noise contract, in [0, 2**32).

        Raises:
            InputError: as ``certify_batch``.
        """
        before = self.runner.given_batch_size
        if batch_size is not None:
            self.runner.set_batch_size(batch_size)
        try:
            result = self.certify_batch(one_example(x), n0=n0, n=n, alpha=alpha, indices=[index])
        finally:
            self.runner.set_batch_size(before)
        return int(result.prediction[0]), float(result.radius[0])

    def certify_batch(
        self,
        x: Tensor,
        *,
        n0: int = 100,
        n: int = 100_000,
        alpha: float = 0.001,
        indices: Sequence[int] | Tensor | None = None,
        radii: Sequence[float] | None = None,
        method: str = "fixed",
        hybrid: float | None = None,
        two_class: bool = False,
        progress: bool | Progress = False,
    ) -> Certificates:
        """Certificates of B examples; samples of several examples share full batches, counts stay on the device.

        Args:
            x: [B, ...], float, finite. Under a float32 (or 16-bit) model a float64 x must hold float32 values: a
                certificate at a rounded image says nothing about the image that was given. With a grid, float32 or
                float64, each value the float nearest to a multiple of the step.
            n0: samples for the selection of the class, at least 1.
            n: fresh samples for the bound on its probability, at least 1.
            alpha: probability that one certificate is wrong, in (0, 1).
            indices: image index of each example in the noise contract, in [0, 2**32); default 0 … B - 1.
            radii: radii of interest, at least 0, for ``Certificates.certified``; "sequential" needs some.
            method: "fixed": n samples for every example; "sequential": samples until every one of radii is decided, n
                at most (``pyrobust.smoothing.sequential.CertificationRule``).
            hybrid: share of alpha, in [0, 1), that "sequential" keeps for one Clopper-Pearson bound at n samples;
                default 0.01. A larger one, such as 0.5, certifies more near the largest radius that n samples prove.
            two_class: "sequential" also bounds the other classes from above, with half of alpha; gaussian noise only.
            progress: True for a bar on the terminal, or a function of (samples done, samples in all).

        Returns:
            Certificates.

        Raises:
            InputError: x not finite, not on the grid or without a batch dimension, numbers out of range, indices of
                another length, or a num_classes that is not what the model returns.
            InputTypeError: integer images, or numbers that are not integers.
            ModelError: a model that does not return logits; with a grid also one that needs kernels that do not repeat
                their bits, or a batch size that does not fit memory.
        """
        n0, n, alpha = samples("n0", n0), samples("n", n), probability("alpha", alpha)
        radii = certified_radii(method, radii)
        smoother = self.on_grid_of(x)
        sampler = smoother.sampler
        x, index = smoother.examples(x, indices)
        if method == "sequential":
            rule = smoother.rule(
                radii=radii, n=n, alpha=alpha, hybrid=hybrid, two_class=two_class, delta=sampler.delta(x.shape[1:])
            )
            return certify_sequentially(sampler, rule, n0, x, index, progress)
        if hybrid is not None or two_class:
            raise InputError('hybrid, two_class: expected none with method "fixed", which draws n samples anyway')
        return certify_fixed(sampler, x, index, n0, n, alpha, radii, progress)

    def predict_batch(
        self,
        x: Tensor,
        *,
        n: int,
        alpha: float = 0.001,
        indices: Sequence[int] | Tensor | None = None,
        progress: bool | Progress = False,
    ) -> Predictions:
        """``predict`` for B examples at once; arguments and errors as of ``certify_batch``."""
        n, alpha = samples("n", n), probability("alpha", alpha)
        smoother = self.on_grid_of(x)
        sampler = smoother.sampler
        x, index = smoother.examples(x, indices)
        with reporting(progress, len(x) * n) as report:
            counts = sampler.votes(x, index, n, "predict", report)
        delta = joint_delta(sampler.delta(x.shape[1:]), n)
        prediction, p_value = decide(counts, alpha, delta=delta, tails=sampler.grid is not None)
        return Predictions(
            indices=np.asarray(index, dtype=np.int64),
            prediction=prediction,
            p_value=p_value,
            counts=counts,
            sigma=self.sigma,
            noise=self.noise,
            norm=self.norm,
            n=n,
            alpha=alpha,
            seed=self.seed,
            guarantee=sampler.guarantee,
            grid=sampler.grid,
            delta=delta,
        )

    def votes(
        self, x: Tensor, *, n: int, stage: str = "estimate", indices: Sequence[int] | Tensor | None = None
    ) -> npt.NDArray[np.int64]:
        """The base classifier's votes under noise, which certificates and predictions are made of.

        Args:
            x: [B, ...], float, finite.
            n: samples an example, at least 1.
            stage: of the noise contract, see ``pyrobust.ops.sample_noise``; certificates use "select" and "estimate".
            indices: as of ``certify_batch``.

        Returns:
            [B, K + 1], int64; every row sums to n, column K holds the votes without a winner.

        Raises:
            InputError, InputTypeError, ModelError: as ``certify_batch``.
        """
        n = samples("n", n)
        smoother = self.on_grid_of(x)
        x, index = smoother.examples(x, indices)
        return smoother.sampler.votes(x, index, n, stage, lambda done: None)

    def examples(self, x: Tensor, indices: Sequence[int] | Tensor | None = None) -> tuple[Tensor, list[int]]:
        """Examples as they are sampled, and their image indices; arguments and errors as of ``certify_batch``."""
        given = None if self.normalize is None else len(self.normalize[0])
        return checked_examples(x, indices, self.runner, given, self.sampler.grid)

    def rule(
        self,
        *,
        radii: Sequence[float] | None,
        n: int,
        alpha: float,
        hybrid: float | None = None,
        two_class: bool = False,
        delta: float = 0.0,
    ) -> CertificationRule:
        """The rule of a sequential certification.

        Args:
            radii: as of ``certify_batch``; and so the next four, and the errors.
            n: samples at most.
            alpha: probability that a certificate is wrong.
            hybrid: share of alpha; default 0.01.
            two_class: whether other classes are bounded.
            delta: as ``sampler.delta`` has it for one example.

        Returns:
            ``pyrobust.smoothing.sequential.CertificationRule``.
        """
        radii, share = certified_radii("sequential", radii), SHARE_AT_END if hybrid is None else hybrid
        return CertificationRule(
            radii, self.num_classes, self.sigma, self.noise, self.norm, n, alpha, share, two_class, delta
        )
