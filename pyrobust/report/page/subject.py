"""Contents of a page about one classifier on one data set: bounds on each example's robust radius, and the sources."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pyrobust.auditing.findings import AuditFinding
from pyrobust.evaluation import Run
from pyrobust.metrics import Rate, estimate_rate
from pyrobust.metrics.radii import usual_radii
from pyrobust.metrics.survival import SurvivalCurve
from pyrobust.report.page.pictures import Pictures
from pyrobust.runs.kinds.kind import Bound

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PageColumn:
    """An additional column of the table of examples.

    Attributes:
        name: heading.
        about: what the column holds, in one sentence.
        values: [N], numbers (NaN for a missing value) or text.
    """

    name: str
    about: str
    values: npt.NDArray[np.int64] | _Floats | tuple[str, ...]


@dataclass(frozen=True)
class PageSource:
    """A file from which results of a subject come: what was run, in words, and how to repeat the run.

    Attributes:
        name: name of the file.
        guarantees: sentences that state the guarantees of the results.
        facts: names and values of parameters, hashes and versions.
        command: the command line that started the run; "" if it is not stored.
        findings: findings of the auditor; None if the file was not audited.
    """

    name: str
    guarantees: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    command: str
    findings: tuple[AuditFinding, ...] | None


@dataclass(frozen=True, eq=False)
class PageSubject:
    """One classifier on one data set.

    Attributes:
        name: name for headings, distinct on a page.
        smoothed: whether the classifier is smoothed rather than the network itself.
        model, data: display names; "" if not known.
        data_sha256: hash of the data; "" if not known.
        norm: norm of all radii; "" without radii.
        index, label, prediction: [N], int64; prediction -1 means an abstention or a largest logit that is not finite.
        counted: [N], bool, whether an example counts as certified at radius 0.
        lower, upper: bounds of the robust radius; ``lower`` is None if nothing was certified, ``upper`` if nothing was
            attacked.
        columns: additional columns of the table of examples.
        survival: survival curve of p_A; None unless the classifier is smoothed and its votes are known.
        sources: the files from which the results come, at least one.
        crossings: data-set indices where the lower bound is not below the upper one, so one of the two bounds is false.
        adversarial: for each data-set index with a known adversarial example, the run that found the nearest one.
        pictures: pictures of the examples; None if there are none, for the reason in ``no_pictures``.
        alpha: probability that a given interval misses the true value.
        asked: radii that were requested of a run with bounds from both sides. For other runs, the requested radii are
            the ``marks`` of the bounds.
        headline: the radius for which the top of the page gives rates; see `with_common_radius`.
        chosen: radii of the tables; if empty, the tables have the subject's own radii.
    """

    name: str
    smoothed: bool
    model: str
    data: str
    data_sha256: str
    norm: str
    index: npt.NDArray[np.int64]
    label: npt.NDArray[np.int64]
    prediction: npt.NDArray[np.int64]
    counted: npt.NDArray[np.bool_]
    lower: Bound | None
    upper: Bound | None
    columns: tuple[PageColumn, ...]
    survival: SurvivalCurve | None
    sources: tuple[PageSource, ...]
    crossings: tuple[int, ...] = ()
    adversarial: Mapping[int, Run] = field(default_factory=dict)
    pictures: Pictures | None = None
    no_pictures: str = ""
    alpha: float = 0.05
    asked: tuple[float, ...] = ()
    headline: float = 0.0
    chosen: tuple[float, ...] = ()
    _rates: dict[int, Rate] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.index)

    @cached_property
    def correct(self) -> npt.NDArray[np.bool_]:
        """Whether each prediction equals the label; false for abstentions."""
        correct: npt.NDArray[np.bool_] = (self.prediction == self.label) & (self.prediction >= 0)
        return correct

    @property
    def findings(self) -> list[AuditFinding]:
        """Findings of the auditor on all files, faults first."""
        findings = [finding for source in self.sources for finding in source.findings or ()]
        return sorted(findings, key=lambda finding: finding.severity != "fault")

    @property
    def faults(self) -> int:
        """Number of faults; all crossings of the bounds count as one fault."""
        return sum(finding.severity == "fault" for finding in self.findings) + bool(self.crossings)

    def rate(self, count: int) -> Rate:
        """Return ``count`` as a share of all examples, with its interval; each count's rate is computed only once."""
        if count not in self._rates:
            self._rates[count] = estimate_rate(count, len(self), self.alpha)
        return self._rates[count]

    @property
    def clean(self) -> Rate:
        """Share of correct predictions."""
        return self.rate(int(self.correct.sum()))

    def certified(self, radius: float) -> npt.NDArray[np.bool_]:
        """Whether each example is correct and certified at a radius."""
        if self.lower is None:
            return np.zeros(len(self), dtype=bool)
        certified: npt.NDArray[np.bool_] = self.counted & (self.lower.radius >= radius)
        return certified

    def broken(self, radius: float) -> npt.NDArray[np.bool_]:
        """Whether each example is misclassified or has a known adversarial example within a radius."""
        broken: npt.NDArray[np.bool_] = ~self.correct
        return broken if self.upper is None else broken | (self.upper.radius <= radius)

    def attacked_within(self, radius: float) -> bool:
        """Whether attacks looked for adversarial examples up to a radius."""
        return self.upper is not None and radius <= self.upper.limit

    def proofs_tried(self, radius: float) -> bool:
        """Whether proofs could reach a radius; proofs at given radii reach at most the largest of these radii."""
        return self.lower is not None and (not self.lower.marks or radius <= max(self.lower.marks))

    def outcome(self, radius: float) -> list[str]:
        """Name the state of each example at a radius, such as "certified" or "undecided"."""
        certified, broken = self.certified(radius), self.broken(radius)
        status = "not broken" if self.lower is None and self.upper is not None else "undecided"
        if self.lower is None and self.upper is None:
            status = "correct"
        words = []
        for i in range(len(self)):
            if not self.correct[i]:
                words.append("wrong" if self.prediction[i] >= 0 else "abstained" if self.smoothed else "no class")
            elif certified[i] and not (broken[i] and self.upper is not None):
                words.append("certified")
            elif certified[i]:
                words.append("crossing")
            else:
                words.append("broken" if broken[i] else status)
        return words

    @cached_property
    def radii(self) -> list[float]:
        """Return the radii for tables.

        They are the chosen radii, if any. Otherwise, they are the radii at which the runs decided the bounds, or twelve
        of these if there are more. If there are no such radii either, they are round numbers that cover most examples.
        """
        if self.chosen:
            return list(self.chosen)
        marks = sorted({mark for bound in self.bounds for mark in bound.marks})
        if marks:
            return _thinned(marks)
        return sorted({*usual_radii(self.reach), *self.asked})

    @cached_property
    def reach(self) -> float:
        """Radius up to which figures are drawn."""
        radii = [0.0, *self.asked, self.headline]
        if self.lower is not None:
            radii += [float(self.lower.radius[self.counted].max(initial=0.0)), *self.lower.marks]
        if self.upper is not None:
            finite = np.sort(self.upper.radius[np.isfinite(self.upper.radius)])
            # A few very large distances would leave no room for the other examples.
            radii += [float(finite[math.ceil(0.98 * len(finite)) - 1])] if len(finite) else []
            radii += [*self.upper.marks, *([self.upper.limit] if math.isfinite(self.upper.limit) else [])]
        return max(radii)

    @property
    def bounds(self) -> list[Bound]:
        """The bounds that the subject has, the lower bound first."""
        return [bound for bound in (self.lower, self.upper) if bound is not None]

    @cached_property
    def order(self) -> npt.NDArray[np.int64]:
        """Positions of the examples, beginning with the least robust.

        Correctly classified examples are ordered by the upper bound, then by the lower bound. Misclassified examples
        are ordered by the certified radius of the wrong class, largest first.
        """
        key = np.zeros(len(self)) if self.upper is None else self.upper.radius
        lower = np.zeros(len(self)) if self.lower is None else self.lower.radius
        wrong = ~self.correct
        main, second = (lower, key) if self.upper is None else (key, lower)
        order: npt.NDArray[np.int64] = np.lexsort(
            (
                self.index,
                np.where(wrong, -lower, second),
                np.where(wrong, self.prediction < 0, main),
                ~wrong,
            )
        )
        return order


def with_common_radius(subjects: Sequence[PageSubject], radii: Sequence[float] = ()) -> list[PageSubject]:
    """Give all subjects of one norm the same headline radius, since rates at different radii are not comparable.

    Args:
        subjects: subjects of any kind.
        radii: radii of the tables. The first radius above 0 is the headline radius. If no radii are given, the headline
            radius is one of the runs' radii, or a round number.

    Returns:
        The subjects, in order.
    """
    headlines: dict[str, float] = {}
    for norm in dict.fromkeys(subject.norm for subject in subjects):
        group = [subject for subject in subjects if subject.norm == norm and subject.bounds]
        headline = next((radius for radius in radii if radius > 0), 0.0) if radii else None
        headlines[norm] = (_common_radius(group) if headline is None else headline) if group else 0.0
    return [
        replace(subject, headline=headlines[subject.norm] if subject.bounds else 0.0, chosen=tuple(sorted(set(radii))))
        for subject in subjects
    ]


def _common_radius(subjects: Sequence[PageSubject]) -> float:
    """Choose a radius at which the most bounds were decided, within the attacks' limits if possible, or a round one."""
    bounds = [bound for subject in subjects for bound in subject.bounds]
    decided = [set(bound.marks) for bound in bounds if bound.marks]
    decided += [set(subject.asked) for subject in subjects if subject.asked]
    limit = min(bound.limit for bound in bounds)
    marks = set().union(*decided)
    marks = {mark for mark in marks if 0 < mark <= limit} or marks
    if marks:
        count = {mark: sum(mark in radii for radii in decided) for mark in sorted(marks)}
        modes = [mark for mark in count if count[mark] == max(count.values())]
        return modes[(len(modes) - 1) // 2]
    medians = []
    for subject in subjects:
        positive = [bound.radius[(bound.radius > 0) & np.isfinite(bound.radius)] for bound in subject.bounds]
        medians += [float(np.median(values)) for values in positive if len(values)][:1]
    if not medians:
        return 0.0
    # At the smallest of the medians, every subject has examples on both sides.
    rounds = [radius for radius in usual_radii(max(subject.reach for subject in subjects)) if radius > 0]
    return max((radius for radius in rounds if radius <= min(medians)), default=rounds[0])


def _thinned(values: Sequence[float], limit: int = 12) -> list[float]:
    """Return at most ``limit`` values, chosen evenly, including both ends."""
    if len(values) <= limit:
        return list(values)
    indices = np.linspace(0, len(values) - 1, limit).round().astype(int)
    return [values[index] for index in indices.tolist()]
