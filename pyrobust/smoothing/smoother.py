"""The smoothed classifier (Cohen, Rosenfeld and Kolter, 2019)."""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyrobust.checks import (
    WORDS,
    NormLike,
    Numbers,
    count,
    float_tensor,
    integer,
    norm_name,
    probability,
    shape_text,
    summary,
)
from pyrobust.errors import InputError, InputTypeError
from pyrobust.grid import find_grid, read_grid
from pyrobust.runner import Classifier, Progress, Runner, model_name, reporting
from pyrobust.stats import SHARE_AT_END
from pyrobust.zoo.image_set import LabelledImages

from .batches import certify_fixed
from .certificates import Certificates, Predictions
from .checks import (
    SEQUENTIAL,
    Channels,
    certified_radii,
    channels,
    check_sampling,
    checked_examples,
    one_example,
    samples,
)
from .image_noise import ImageNoise
from .prediction import decide, joint_delta
from .radius import certified_radius
from .sampling import Sampler

if TYPE_CHECKING:
    from .sequential import CertificationRule

logger = logging.getLogger(__name__)


class RandomizedSmoothing:
    """Smoothed classifier ``g(x) = argmax over c of P(f(x + ε) = c)`` with certified radii.

    f is the arg-max of the base classifier; logits with NaN or +inf, or only -inf, vote for no class. ε is noise with
    standard deviation sigma in every coordinate. ``certify`` selects a class with n0 samples. From n fresh samples, it
    computes a lower confidence bound on the probability of this class (Clopper and Pearson, 1934). The bound gives the
    certified radius (``pyrobust.smoothing.certified_radius``). All rounding is towards "not certified".

    If the index of an example in a data set is given, the noise of the example depends only on (seed, image index,
    sample index), on the stage (selection, estimation or prediction), and on the distribution, precision and grid of
    the noise. Otherwise, a 64-bit hash of seed, grid step, shape and values replaces the seed and the image index. The
    noise does not depend on the batch size, the number of threads or the order of examples. With a given grid or with
    None, it does not depend on the split of a data set into calls either. With ``grid="auto"``, each call detects its
    own grid, so another split may give an example another grid and other noise. To prevent this, name the grid, or call
    ``on_grid_of`` with all examples and use the smoother that it returns. If the arithmetic of the model does not
    depend on the batch, the same holds for the counts. A certificate is void if its x was chosen after seeing counts
    made with the same seed.

    Without indices, and with one grid for all calls, an example gets the same noise in a loop ``for x in images:
    smoother.certify(x)``, in a loop of ``certify_batch`` over a loader, and in one call with all images. It follows
    that

    - two examples that differ share noise only with probability 2^-64;
    - repeating a call uses up no alpha and gives no new information;
    - calls with another n, sigma or model reuse the draws for the same x. The best of several results therefore holds
      at level alpha only if alpha is divided by the number of results, or if the choice is made with another seed;
    - every other x, however close, gets fresh noise, and its certificate may again be wrong with probability alpha; a
      certificate that was found by searching for a certified x is therefore void.

    Args:
        model: base classifier, a module or callable that maps [N, ...] to logits [N, K] or an object with ``.logits``.
        num_classes: number of classes K. By default, it is the number of logits that the model returns for the first
            examples.
        sigma: standard deviation of the noise in every coordinate, in the input's unit; positive.
        noise: "gaussian", "uniform" (half-width √3·sigma) or "laplace" (scale sigma/√2).
        norm: norm of the radius: "l2" for gaussian, "l1" for the other two.
        normalize: (mean, std) per channel, or per feature of [N, D]. The noisy copies are normalised with them, in the
            same pass over memory that adds the noise. In float32 this is bit-identical to a normalisation layer in
            front of the model, and cheaper. x and sigma stay in the unnormalised unit.
        seed: random seed in [0, 2**64).
        grid: step of the grid of the images, an exact fraction such as "1/255" (bytes divided by 255); None for no
            grid; or "auto" to detect the grid from the examples of each call. If the examples are on no usual grid,
            "auto" uses no grid and logs a warning. A grid needs Gaussian noise. The noise is rounded to the grid. For
            an image on the grid, floating-point rounding can then not make a certificate false (``guarantee="grid"``,
            docs/how-to/grid.md). The model then runs with deterministic kernels on batches of equal size. This size is
            the batch size, except in ``certify`` and ``predict``. These two divide the samples of one example into
            equal batches, which may be smaller. Without a grid, the proof idealises the noise as real-valued
            (``guarantee="real"``).
        batch_size: rows per forward pass; default: chosen to fit in memory.
        device, dtype, memory_format: how the model runs, see ``pyrobust.runner.Runner``.

    Raises:
        InputError: a value is out of range, the pair (noise, norm) has no certificate, or a grid is combined with noise
            other than Gaussian.
        InputTypeError: the model is not callable, or the grid is a float.

    >>> smoother = RandomizedSmoothing(lambda x: torch.stack([x[:, 0], -x[:, 0]], 1), num_classes=2, sigma=0.5)
    >>> label, radius = smoother.certify(torch.tensor([1.0]), n0=100, n=10_000, alpha=0.001)
    >>> label, f"{radius:.2f}"  # the true distance to the boundary is 1
    (0, '0.96')
    """

    def __init__(
        self,
        model: Classifier,
        num_classes: int | None = None,
        sigma: float | None = None,
        *,
        noise: str = "gaussian",
        norm: NormLike = "l2",
        normalize: tuple[Channels, Channels] | None = None,
        seed: int = 0,
        grid: Fraction | str | None = "auto",
        batch_size: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        memory_format: torch.memory_format | None = None,
    ) -> None:
        self._num_classes = None if num_classes is None else count("num_classes", num_classes)
        if sigma is None:
            raise InputTypeError("sigma", "a number", "None", "pass sigma=, such as sigma=0.25")
        certified_radius(0.0, sigma, noise=noise, norm=norm)  # checks sigma, noise and norm
        self.sigma = float(sigma)
        self.noise = noise
        self.norm: str = norm_name("norm", norm)
        self.seed = integer("seed", seed, 0, (1 << 64) - 1)
        self.grid = read_grid(grid)
        if noise != "gaussian":
            if self.grid not in (None, "auto"):
                raise InputError(
                    "grid",
                    f"none with {noise} noise",
                    repr(str(self.grid)),
                    "certificates on a grid need Gaussian noise",
                )
            self.grid = None
        self.runner = Runner(model, device=device, dtype=dtype, memory_format=memory_format, batch_size=batch_size)
        self.normalize = None if normalize is None else channels(normalize, self.runner.input_dtype, self.runner.device)
        self.sampler = self._make_sampler()

    def __repr__(self) -> str:
        return summary(
            self,
            model=model_name(self.runner.model),
            num_classes=self._num_classes,
            sigma=self.sigma,
            noise=self.noise,
            norm=self.norm,
            normalize=None if self.normalize is None else tuple(statistic.tolist() for statistic in self.normalize),
            seed=self.seed,
            grid=None if self.grid is None else str(self.grid),
            batch_size=self.runner.given_batch_size,
            device=str(self.runner.device),
            dtype=str(self.runner.dtype).removeprefix("torch."),
        )

    @property
    def num_classes(self) -> int:
        """Number of classes K; raises InputError if it was not given and no example has been seen."""
        if self._num_classes is None:
            raise InputError("num_classes", "a number before the first example", "None", "pass num_classes=")
        return self._num_classes

    def infer_classes(self, x: Numbers | LabelledImages) -> None:
        """Set an unknown number of classes to the number of logits that the model returns for the first example.

        Args:
            x: the examples, or their data set.

        Raises:
            InputError, InputTypeError: x holds no example, or is not a batch of floats.
            ModelError: the model does not return logits.

        >>> smoother = RandomizedSmoothing(torch.nn.Linear(4, 3), sigma=0.5)
        >>> smoother.infer_classes(torch.zeros(1, 4))
        >>> smoother.num_classes
        3
        """
        if self._num_classes is None:
            x = x.read([0])[0] if isinstance(x, LabelledImages) else self._floats(x)
            if x.dim() < 2 or not x.numel():
                raise InputError(
                    "x", "a batch [B, ...] of examples, at least one", shape_text(x.shape), "or pass num_classes="
                )
            self._num_classes = self.runner.count_classes(x)
            self.sampler = self._make_sampler()

    def on_grid_of(self, x: Tensor | LabelledImages) -> RandomizedSmoothing:
        """Return a smoother with the grid detected from x if ``grid="auto"``, and this smoother otherwise.

        The number of classes is inferred if it was not given. If x is on none of the usual grids, or if its grid is too
        fine for sigma, the returned smoother has no grid, and a warning is logged the first time.

        Args:
            x: all examples that one smoothed classifier is to classify, or their data set. Pass all of them, because
                the grid detected from a part of them may be a different one, which would define another classifier.
        """
        self.infer_classes(x)
        if self.grid != "auto":
            return self
        smoother = copy.copy(self)
        if isinstance(x, LabelledImages):
            smoother.grid = x.grid
        else:
            x = self._floats(x)
            smoother.grid = find_grid(x) if x.dtype in (torch.float32, torch.float64) else None
        reason = "no usual grid found in the images"
        try:
            smoother.sampler = smoother._make_sampler()
        except InputError:  # too many steps for the noise
            reason = f"the grid of the images, {smoother.grid}, is too fine for sigma {self.sigma:g}"
            smoother.grid = None
            smoother.sampler = smoother._make_sampler()
        if smoother.grid is None and not self.runner.warned_no_grid:
            self.runner.warned_no_grid = True
            logger.warning(
                "%s: guarantee real, which idealises the noise as real-valued; name the step with grid= (--grid), or "
                "pass grid=None (--grid none)",
                reason,
            )
        return smoother

    def _make_sampler(self) -> Sampler:
        step = self.grid if isinstance(self.grid, Fraction) else None
        return Sampler(
            self.runner, self._num_classes, self.sigma, self.noise, seed=self.seed, normalize=self.normalize, grid=step
        )

    def predict(self, x: Numbers, n: int, alpha: float = 0.001, *, index: int | None = None) -> int:
        """Predict the class of the smoothed classifier at one example, or ``ABSTAIN``.

        The prediction is wrong with probability at most alpha. The base classifier votes on n samples. The two classes
        with the most votes are compared by the two-sided binomial test of p = 1/2 (Hung and Fithian, 2019). Without a
        grid, samples without a winner count as a separate class. On a grid, all of them are counted for the runner-up,
        because a sample with noise in the tails may belong to any class. If more samples have no winner than vote for
        any class, the prediction is ``ABSTAIN``.

        Args:
            x: one example, [...] (no batch dimension).
            n: number of samples, at least 1.
            alpha: probability that the prediction is wrong, in (0, 1).
            index: image index from which the noise is derived, in [0, 2**32); each example of a data set needs an index
                of its own. By default, the noise is derived from seed, shape and values; see the class.

        Raises:
            InputError: an argument is invalid, as for ``certify_batch``.
        """
        indices = None if index is None else [integer("index", index, 0, WORDS - 1)]
        x = one_example(self._floats(x, "predict_dataset"))
        return int(self._predict(x, n, alpha, indices, one_example=True).prediction[0])

    def certify(
        self,
        x: Numbers,
        n0: int = 100,
        n: int = 100_000,
        alpha: float = 0.001,
        batch_size: int | None = None,
        *,
        index: int | None = None,
    ) -> tuple[int, float]:
        """Return the class and certified radius of one example, or (``ABSTAIN``, 0.0).

        Args:
            x: one example, [...] (no batch dimension).
            n0: samples that select the class, at least 1.
            n: samples that bound the class's probability, at least 1.
            alpha: probability that the certificate is wrong, in (0, 1).
            batch_size: rows per forward pass in this call; default: that of the smoother.
            index: image index from which the noise is derived, in [0, 2**32). By default, the noise is derived from
                seed, shape and values; see the class.

        Raises:
            InputError: an argument is invalid, as for ``certify_batch``.
        """
        indices = None if index is None else [integer("index", index, 0, WORDS - 1)]
        before = self.runner.given_batch_size
        if batch_size is not None:
            self.runner.set_batch_size(batch_size)
        try:
            x = one_example(self._floats(x))
            result = self._certify(x, n0, n, alpha, indices, one_example=True)
        finally:
            self.runner.set_batch_size(before)
        return int(result.prediction[0]), float(result.radius[0])

    def certify_batch(
        self,
        x: Numbers,
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
        """Certify B examples; samples of several examples share full batches, and counts stay on the device.

        Args:
            x: [B, ...], float, finite. If the model is float32 or 16-bit and x is float64, the values of x must be
                float32 numbers. The reason is that a certificate for a rounded image does not cover the original image.
                With a grid, x is float32 or float64, and each value is the float nearest to a multiple of the step.
            n0: samples that select the class, at least 1.
            n: fresh samples that bound the class's probability, at least 1.
            alpha: probability that a certificate is wrong, in (0, 1).
            indices: image index from which each example's noise is derived, in [0, 2**32). By default, the noise is
                derived from seed, shape and values; see the class.
            radii: radii of interest for ``Certificates.certified``, none of them negative; "sequential" needs one or
                more radii.
            method: "fixed" draws n samples for every example; "sequential" draws samples until every radius is decided,
                at most n (``pyrobust.smoothing.sequential.CertificationRule``).
            hybrid: share of alpha in [0, 1) that "sequential" reserves for a Clopper-Pearson bound at n samples;
                default 0.01. With a larger share, such as 0.5, more images are certified near the largest radius that n
                samples can prove.
            two_class: whether "sequential" also bounds the other classes from above, with half of alpha; Gaussian noise
                only.
            progress: True for a progress bar on the terminal, or a function of (samples done, total samples).

        Returns:
            The certificates.

        Raises:
            InputError: x is not finite, is not on the grid or has no batch dimension; a number is out of range;
                ``indices`` has another length than x; or ``num_classes`` differs from the number of logits.
            InputTypeError: the images are integers, 16-bit images are combined with a given grid, or a count is not an
                integer.
            ModelError: the model does not return logits, or its logits for a row are seen to depend on other rows or on
                chance (`RowDependenceError`). With a grid, it is also raised if the model needs kernels that are not
                deterministic, or does not fit in memory at the batch size.
        """
        radii = certified_radii(method, radii)
        check_sampling(method, hybrid=hybrid, two_class=two_class)
        x = self._floats(x)
        if method == SEQUENTIAL:
            n0, n, alpha = samples("n0", n0), samples("n", n), probability("alpha", alpha)
            smoother = self.on_grid_of(x)
            sampler = smoother.sampler
            x, which = smoother.examples(x, indices)
            rule = smoother.rule(
                radii=radii, n=n, alpha=alpha, hybrid=hybrid, two_class=two_class, delta=sampler.delta(x.shape[1:])
            )
            from .sequential_batches import certify_sequentially

            return certify_sequentially(sampler, rule, n0, x, which, progress)
        return self._certify(x, n0, n, alpha, indices=indices, radii=radii, progress=progress)

    def _certify(
        self,
        x: Tensor,
        n0: int,
        n: int,
        alpha: float,
        indices: Sequence[int] | Tensor | None,
        radii: tuple[float, ...] = (),
        progress: bool | Progress = False,
        *,
        one_example: bool = False,
    ) -> Certificates:
        n0, n, alpha = samples("n0", n0), samples("n", n), probability("alpha", alpha)
        smoother = self.on_grid_of(x)
        x, which = smoother.examples(x, indices)
        return certify_fixed(
            smoother.sampler, x, which, n0, n=n, alpha=alpha, radii=radii, progress=progress, one_example=one_example
        )

    def predict_batch(
        self,
        x: Numbers,
        *,
        n: int,
        alpha: float = 0.001,
        indices: Sequence[int] | Tensor | None = None,
        progress: bool | Progress = False,
    ) -> Predictions:
        """Predict the classes of B examples at once, see ``predict``.

        Args:
            x: [B, ...], float, finite; see ``certify_batch``.
            n: samples per example, at least 1.
            alpha: probability that a prediction is wrong, in (0, 1).
            indices: image index from which each example's noise is derived; default: the noise is derived from the
                values of the example.
            progress: True for a progress bar on the terminal, or a function of (samples done, total samples).

        Returns:
            The predictions.

        Raises:
            InputError, InputTypeError, ModelError: as for ``certify_batch``.
        """
        return self._predict(self._floats(x, "predict_dataset"), n, alpha, indices, progress)

    def _predict(
        self,
        x: Tensor,
        n: int,
        alpha: float,
        indices: Sequence[int] | Tensor | None,
        progress: bool | Progress = False,
        *,
        one_example: bool = False,
    ) -> Predictions:
        n, alpha = samples("n", n), probability("alpha", alpha)
        smoother = self.on_grid_of(x)
        sampler = smoother.sampler
        x, which = smoother.examples(x, indices)
        with reporting(progress, len(x) * n) as report:
            (counts,) = sampler.votes(x, which, [("predict", n)], report, one_example=one_example)
        delta = joint_delta(sampler.delta(x.shape[1:]), n)
        prediction, p_value = decide(counts, alpha, delta=delta, tails=sampler.grid is not None)
        return Predictions(
            **sampler.described(which),
            indices=which.indices,
            prediction=prediction,
            p_value=p_value,
            counts=counts,
            n=n,
            alpha=alpha,
            delta=delta,
        )

    def votes(
        self, x: Numbers, *, n: int, stage: str = "estimate", indices: Sequence[int] | Tensor | None = None
    ) -> npt.NDArray[np.int64]:
        """Count the base classifier's votes under noise; certificates and predictions are computed from these votes.

        Args:
            x: [B, ...], float, finite.
            n: samples per example, at least 1.
            stage: purpose of the samples, see ``pyrobust.ops.sample_noise``; no two stages share a draw. Certificates
                use "select" and "estimate".
            indices: image index from which each example's noise is derived; default: the noise is derived from the
                values of the example.

        Returns:
            [B, K + 1], int64; every row sums to n, and column K counts the samples without a winner.

        Raises:
            InputError, InputTypeError, ModelError: as for ``certify_batch``.
        """
        n = samples("n", n)
        x = self._floats(x)
        smoother = self.on_grid_of(x)
        x, which = smoother.examples(x, indices)
        return smoother.sampler.votes(x, which, [(stage, n)], lambda done: None)[0]

    def examples(self, x: Numbers, indices: Sequence[int] | Tensor | None = None) -> tuple[Tensor, ImageNoise]:
        """Validate and convert examples for sampling.

        Args:
            x: [B, ...], float, finite; see ``certify_batch``.
            indices: image index from which each example's noise is derived; default: the noise is derived from the
                values of the example.

        Returns:
            The examples, and an ``ImageNoise``. The examples have the dtype of the noise. On a grid, they are int32
            multiples of the grid step.

        Raises:
            InputError, InputTypeError: as for ``certify_batch``.
        """
        x = self._floats(x)
        self.infer_classes(x)
        num_channels = None if self.normalize is None else len(self.normalize[0])
        if self.sigma > 1 and x.numel():
            from pyrobust.scale import warn_of_wide_noise

            warn_of_wide_noise(self.sigma, float(x.min()), float(x.max()))
        return checked_examples(x, indices, self.runner, num_channels, self.sampler.grid, self.seed)

    def _floats(self, x: Any, sets: str = "certify_dataset") -> Tensor:
        """Return a tensor, an array or a list as a float tensor."""
        return float_tensor("x", x, sets, self.runner.list_dtype)

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
        """Build the rule of a sequential certification; errors as for ``certify_batch``.

        Args:
            radii: radii to be decided, at least one.
            n: largest number of samples per example.
            alpha: probability that a certificate is wrong, in (0, 1).
            hybrid: share of alpha in [0, 1) reserved for a Clopper-Pearson bound at n samples; default 0.01.
            two_class: whether to bound the other classes, too; Gaussian noise only.
            delta: bound on the total variation distance between drawn and exact noise of one example; see
                ``sampler.delta``.

        Returns:
            The rule.
        """
        radii, share = certified_radii(SEQUENTIAL, radii), SHARE_AT_END if hybrid is None else hybrid
        from .sequential import CertificationRule

        return CertificationRule(
            radii,
            self.num_classes,
            self.sigma,
            self.noise,
            norm=self.norm,
            n=n,
            alpha=alpha,
            hybrid=share,
            two_class=two_class,
            delta=delta,
        )
