"""Base classes of kinds: for runs of smoothed classifiers, and for runs with adversarial examples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyrobust.late import numpy as np
from pyrobust.option import DTYPE, MODEL_PANEL, SEED, Option
from pyrobust.runs.kinds import values
from pyrobust.runs.kinds.columns import Array
from pyrobust.runs.kinds.kind import Contradictions, Kind, NamedRate, Parameter, Parameters, Shown, Table
from pyrobust.runs.kinds.values import are_settings, finite, is_grid_step, is_normalization, is_shape, is_word, one_of
from pyrobust.runs.kinds.words import NORMS

if TYPE_CHECKING:
    from pyrobust.runs.reader import Header
    from pyrobust.runs.run import Run

#: Tolerance for the last digits, in which versions of scipy differ; for radii, relative to sigma.
TOLERANCE = 1e-9
#: Heading of the options of smoothing.
SMOOTHING_PANEL = "Smoothing"
#: Descriptions of the columns p_A and p lower.
P_A = "Share of the noisy samples that voted for the predicted class"
P_LOWER = "Proved lower bound of p_A, at level alpha."


class Smoothed(Kind):
    """Runs of a smoothed classifier."""

    statuses = ("ok", "abstain")
    smoothed = True

    num_classes = Parameter(
        values.count,
        option=Option("Number of classes. Default: length of the model's output.", "K", "count", MODEL_PANEL),
    )
    normalize = Parameter(
        is_normalization,
        option=Option(
            "Mean and standard deviation per channel, applied after the noise: 0.5,0.4,0.4/0.2,0.2,0.2, or imagenet or "
            "cifar10.",
            "MEAN/STD",
            "channels",
            MODEL_PANEL,
        ),
    )
    sigma = Parameter(
        finite(lambda value: value > 0),
        option=Option(
            "Standard deviation of the noise in every pixel, in the unit of the pixels.",
            "S",
            "real",
            SMOOTHING_PANEL,
            required=True,
        ),
    )
    noise = Parameter(
        is_word,
        option=Option(
            "Noise distribution: gaussian for l2 radii, uniform or laplace for l1.",
            form="choice",
            panel=SMOOTHING_PANEL,
            default="gaussian",
            choices=("gaussian", "uniform", "laplace"),
        ),
    )
    norm = Parameter(is_word)
    grid = Parameter(
        is_grid_step,
        group="grid",
        option=Option(
            "Step of the pixel values, such as 1/255, for certificates that hold in floating point. auto: detect it, "
            "for Gaussian noise. none: idealise the noise as real-valued.",
            "STEP",
            "step",
            SMOOTHING_PANEL,
            default="auto",
            none="none",
        ),
    )
    n = Parameter(values.count, option=Option("Samples per image.", "N", "integer", SMOOTHING_PANEL, default=100_000))
    alpha = Parameter(
        values.alpha,
        option=Option("Highest probability that a result is wrong.", "A", "real", SMOOTHING_PANEL, default=0.001),
    )
    seed = Parameter(values.seed, option=SEED)
    dtype = Parameter(is_word, option=DTYPE)
    delta = Parameter(finite(lambda value: 0 < value <= 1), group="grid")

    def faults(self, parameters: Parameters, table: Table) -> Iterator[tuple[str, Any]]:
        abstained = table["prediction"] < 0
        yield "a status that contradicts the prediction", ((table["status"] == "abstain") == abstained).all()
        if self.certified == "radius":
            yield "a radius out of range", not (abstained & (table["radius"] > 0)).any()

    def reference(self, parameters: Parameters) -> float:
        return float(parameters["sigma"])

    def failures(self, run: Run) -> int:
        return run.count_invalid_votes()

    def method_of(self, parameters: Parameters) -> str:
        return f"{parameters['noise']} smoothing{' (sequential)' if self.sampled_by_votes else ''}"

    def promises(self, header: Header) -> Iterator[str]:
        parameters = header.parameters
        yield from self._claim(parameters)
        yield (
            f"They speak of the smoothed classifier, the network under {parameters['noise']} noise of sigma "
            f"{parameters['sigma']:g}, not of the network alone."
        )
        if header.guarantee == "grid":
            yield (
                f"The noise lies on the grid of {parameters['grid']}, so the guarantee covers floating-point "
                f"arithmetic, in batches of {parameters['batch_size']:,} on {parameters['device']}."
            )
        else:
            yield "The noise is idealised as real numbers, the usual practice: its rounding is not covered."

    def _claim(self, parameters: Parameters) -> Iterator[str]:
        yield (
            f"A radius r certifies: no change of the input for which {NORMS[parameters['norm']]} r changes the "
            f"prediction of the smoothed classifier. Each certificate is wrong with probability at most "
            f"{parameters['alpha']:g} over the noise that was drawn."
        )


def abstentions(run: Run, alpha: float) -> NamedRate:
    """Return the rate of abstentions."""
    from pyrobust.metrics import estimate_rate

    return NamedRate("abstained", estimate_rate(int((run.table["prediction"] < 0).sum()), len(run), alpha))


def smoothed_classifier(parameters: Parameters) -> str:
    """Describe the smoothed classifier of a run."""
    return f"Smoothed classifier, {parameters['noise']} noise of sigma {parameters['sigma']:g}"


def guarantee_of(header: Header) -> str:
    """Describe the guarantee of a run of a smoothed classifier."""
    step = header.parameters.get("grid")
    if not step:
        return f"guarantee {header.guarantee}"
    return (
        f"guarantee grid: sound in floating point on the grid of {step}, in batches of "
        f"{header.parameters['batch_size']}"
    )


def seeded(parameters: Parameters, budget: str, confidence: str) -> str:
    """Return one line with the budget, the seed, and the confidence in the results of a smoothed classifier."""
    return f"{budget}, seed {parameters['seed']}; {confidence}"


def check_votes(run: Run, bound: str) -> Contradictions:
    """Yield images whose votes contradict the stored class, or the certified radius in the column ``bound``."""
    from pyrobust.smoothing.batches import fixed_results

    parameters, table = run.parameters, run.table
    values: dict[str, Any] = {name: parameters[name] for name in ("alpha", "sigma", "noise", "norm")}
    expected = fixed_results(
        run.histogram("counts0"), run.histogram("counts"), **values, delta=parameters.get("delta", 0.0)
    )
    radius = expected["radius"]
    if bound == "lower":  # a sandwich bounds the distance to misclassification, which is 0 where the class is wrong
        radius = np.where(expected["prediction"] == table["label"], radius, 0.0)
    excess, tolerance = table[bound] - radius, TOLERANCE * (parameters["sigma"] + radius)
    words = "lower bound" if bound == "lower" else bound
    yield "above-votes", excess > tolerance, f"{words} larger than its votes prove"
    yield "derived", excess < -tolerance, f"{words} smaller than its votes prove"
    if bound == "radius":
        differs = np.abs(table["p_lower"] - expected["p_lower"]) > TOLERANCE
        yield "derived", differs, "p_lower differs from the bound that the votes give"
    differs = table["prediction"] != expected["prediction"]
    yield "derived", differs, "prediction differs from the class that the votes give"


class WithExamples(Kind):
    """Runs of an attack, whose adversarial examples may be kept."""

    settings = Parameter(are_settings)
    examples = Parameter(one_of(False, True))
    shape = Parameter(is_shape)
    example_dtype = Parameter(one_of("float32"))

    def check(self, parameters: Any) -> None:
        super().check(parameters)
        if "box" not in parameters:
            return
        fits = list(np.shape(parameters["box"])) == parameters["shape"]
        if not fits or parameters["norm"] != "linf" or "grid" in parameters:
            raise ValueError("parameter box: expected the shape of the inputs, norm linf and no grid")

    def without_examples(self, parameters: Parameters) -> str:
        return "one made with keep_examples=False"


def votes_for_class(run: Run) -> Array:
    """Return the votes for the class that the n0 samples select, 0 for abstentions."""
    top = run.histogram("counts0")[:, :-1].argmax(axis=1)
    votes = run.histogram("counts")[np.arange(len(top)), top]
    return np.where(run.table["prediction"] < 0, 0, votes)


def unmoved(run: Run, distance: str) -> tuple[str, Array, str]:
    """Flag correctly classified images for which an attack claims an adversarial example at distance 0."""
    return (
        "derived",
        (run.table[distance] == 0) & run.correct,
        "broken at distance 0, at which the prediction is the label",
    )


def checked_examples(run: Run) -> None:
    """Raise FileFormatError for kept examples with NaN, of another shape or outside the clip range."""
    if run.parameters["examples"]:
        run.examples()


def adversarial_classes(adversarial: Array, fooled: Array) -> Shown:
    """Return the class of each adversarial example, NaN where there is none."""
    classes = np.where(fooled & (adversarial >= 0), adversarial, np.nan).astype(np.float64)
    return "x_adv class", "Prediction at the adversarial example.", classes
