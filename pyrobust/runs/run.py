"""Reading runs."""

from __future__ import annotations

import dataclasses
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from pyrobust.checks import non_negatives, positive, summary
from pyrobust.errors import FileFormatError, InputError, InputTypeError, MissingExtraError
from pyrobust.metrics import Rate, estimate_rate
from pyrobust.runs.examples import read_examples
from pyrobust.runs.parameters import chosen_indices
from pyrobust.runs.reader import (
    Header,
    connect_readonly,
    read_columns,
    read_header,
    read_histograms,
)
from pyrobust.runs.row_checks import check_table
from pyrobust.runs.schema import COMMON, LAYOUTS
from pyrobust.runs.verdicts import decode_verdicts

if TYPE_CHECKING:
    import pandas as pd

_DTYPES = {"INTEGER": np.int64, "REAL": np.float64, "TEXT": np.str_}


class Run:
    """The results of a sweep, read from its file when they are asked for.

    A run can be read while it is being written; it then shows what was committed when it was opened.

    Args:
        source: the file, or a connection to the run.
        path: the file that a connection is to; None for a run in memory.

    Raises:
        FileFormatError: the file is missing, damaged, of another program or of a newer version.
        StoreError: it cannot be opened.

    >>> from pyrobust.evaluation import certify_dataset
    >>> from pyrobust.smoothing import RandomizedSmoothing
    >>> from pyrobust.zoo import load_data, load_model
    >>> smoother = RandomizedSmoothing(load_model("zoo:digits-smooth-0.25"), 10, sigma=0.25)
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "digits.db")
    ...     _ = certify_dataset(smoother, load_data("digits"), n=1000, max_images=4, out=path)
    ...     run = Run(path)
    ...     run.table["index"], run.certified_accuracy([0.0, 10.0])
    (array([0, 1, 2, 3]), array([1., 0.]))
    """

    def __init__(
        self, source: str | os.PathLike[str] | sqlite3.Connection, path: str | os.PathLike[str] | None = None
    ) -> None:
        self._source = source if isinstance(source, sqlite3.Connection) else Path(source)
        file = self._source if isinstance(self._source, Path) else path
        #: The file; None for a run in memory.
        self.path = None if file is None else Path(file)
        with self._open() as (connection, where):
            header = read_header(connection, where)
        if header is None:
            raise FileFormatError(f"{where}: an empty database, not a run of pyrobust; name another file")
        #: Kind, parameters, hashes, guarantee and versions.
        self.header: Header = header

    @property
    def kind(self) -> str:
        """What was computed: "certify", "predict", "attack" or "verify"."""
        return self.header.kind

    @property
    def parameters(self) -> dict[str, Any]:
        """What the run was asked for, by name."""
        return self.header.parameters

    @property
    def expected(self) -> range:
        """The data-set indices that the run is to cover."""
        return chosen_indices(self.parameters)

    @property
    def complete(self) -> bool:
        """Whether all of them are there."""
        return len(self) == len(self.expected)

    def __len__(self) -> int:
        return len(self.table["index"])

    def __repr__(self) -> str:
        path = None if self.path is None else str(self.path)
        return summary(self, kind=self.kind, images=len(self), expected=len(self.expected), path=path)

    @cached_property
    def table(self) -> dict[str, npt.NDArray[Any]]:
        """Columns by name, rows in the order of the index; `histogram` and `examples` have what is larger.

        ``index``, ``label`` and ``prediction`` (-1: abstained) int64; ``status`` "ok" or "abstain"; ``seconds``
        float64; then ``p_lower`` and ``radius`` (0.0 where abstained), or ``p_value``, float64. Of an attack:
        ``prediction`` of the image itself and ``adversarial``, that of x_adv (-1: no finite largest logit);
        ``broken_by``, the attack that fooled the model, "clean" where it was wrong from the start and "" where it
        withstood; ``distance``, ‖x_adv − x‖ in the attack's norm, float64, NaN where the model withstood, for there no
        adversarial example was found. Of a verification: ``radius``, the largest
        that was proved (of the given epsilons, where there are any), 0.0 where none was; ``verdicts``, ``stages`` and
        ``margins`` are text, for `verdicts`. Of a sequential certification also ``samples``, of selection and sequence;
        ``p_upper``, which holds in nine of ten cases and certifies nothing; ``rival_upper``, of two_class; and
        ``undecided``, a digit for each of ``parameters["radii"]``, 1 where n samples did not decide it.
        """
        layout = self.header.layout
        columns = COMMON | LAYOUTS[layout]
        names = [name for name in columns if not name.startswith("counts") and name != "x_adv"]
        with self._open() as (connection, where):
            found = read_columns(connection, where, layout, names)
            table = {name: np.array(found[name], dtype=_DTYPES[columns[name].split()[0]]) for name in names}
            table = {"index": table.pop("idx"), **table}
            check_table(layout, self.parameters, table, where)
        return table

    def histogram(self, name: str = "counts") -> npt.NDArray[np.int64]:
        """The votes of each image.

        Args:
            name: "counts", or "counts0" for those that selected the class.

        Returns:
            int64 [N, K+1]; the last column holds the votes without a winner, such as NaN.

        Raises:
            InputError: this kind of run has no such histogram.
            FileFormatError: the file is damaged.
        """
        layout = self.header.layout
        if not name.startswith("counts") or name not in LAYOUTS[layout]:
            kept = ", ".join(column for column in LAYOUTS[layout] if column.startswith("counts"))
            raise InputError(f"histogram: name: expected one of {kept}, got {name!r}")
        classes, total = self.parameters["num_classes"], self.parameters["n0" if name == "counts0" else "n"]
        if layout == "sequential" and name == "counts":
            total = self.table["samples"] - self.parameters["n0"]
        with self._open() as (connection, where):
            counts = read_histograms(connection, where, layout, name, classes)
        if not (counts.sum(axis=1) == total).all():
            votes = "as many votes as samples" if layout == "sequential" else f"{total} votes"
            raise FileFormatError(f"{where}: damaged: column {name}: expected {votes} for each image; do not use it")
        return counts

    def certified_accuracy(self, radii: Sequence[float]) -> npt.NDArray[np.float64]:
        """The share of images whose prediction is right and certified at each radius.

        Args:
            radii: in the unit of the input; a radius R counts at r where R >= r.

        Returns:
            float64 [len(radii)].

        Raises:
            InputError: the run holds predictions, or no image yet.
            InputTypeError: radii that are not numbers.
        """
        if "radius" not in LAYOUTS[self.header.layout]:
            raise InputError(
                f"certified_accuracy: expected a run of kind certify or verify, got {self.kind}; it has no radii"
            )
        if not len(self):
            raise InputError("certified_accuracy: the run holds no image yet; go on with it first")
        # A verification with radius 0 has proved nothing, not even of the image itself.
        proved = self.right & ((self.table["radius"] > 0) | (self.kind != "verify"))
        radius = self.table["radius"][proved]
        return np.array([(radius >= r).sum() / len(self) for r in non_negatives("radii", radii, infinite=True)])

    def clean_accuracy(self, alpha: float = 0.05) -> Rate:
        """The share of images whose prediction is right, ``float(rate)``, with its confidence interval.

        Args:
            alpha: probability that the interval misses, in (0, 1).

        Returns:
            Rate.

        Raises:
            InputError: the run holds no image yet, or alpha is out of range.
        """
        if not len(self):
            raise InputError("clean_accuracy: the run holds no image yet; go on with it first")
        return estimate_rate(int(self.right.sum()), len(self), alpha)

    def verified_accuracy(self, epsilon: float, alpha: float = 0.05) -> Rate:
        """The share of images that are verified at epsilon, ``float(rate)``, with its confidence interval.

        Args:
            epsilon: positive; verified is what was proved at it or at a larger one.
            alpha: probability that the interval misses, in (0, 1).

        Returns:
            Rate.

        Raises:
            InputError: the run is no verification or holds no image yet, or a value is out of range.
        """
        self._expect("verified_accuracy", "verify")
        epsilon = positive("epsilon", epsilon)
        if not len(self):
            raise InputError("verified_accuracy: the run holds no image yet; go on with it first")
        return estimate_rate(int((self.right & (self.table["radius"] >= epsilon)).sum()), len(self), alpha)

    def verdicts(self, epsilon: float) -> dict[str, npt.NDArray[Any]]:
        """What is known of each image at one of the run's epsilons.

        Args:
            epsilon: one of ``parameters["epsilons"]``.

        Returns:
            ``verdict``, "verified", "falsified" or "unknown"; ``stage``, which settled it: "forward", "attack" or a
            method, "" where unknown; ``margin``, float64, the least proved margin of the last method that was tried,
            NaN where none was. All [N].

        Raises:
            InputError: the run is no verification, or of other epsilons.
        """
        self._expect("verdicts", "verify")
        epsilons = self.parameters["epsilons"] or []
        if float(epsilon) not in epsilons:
            there = ", ".join(map(repr, epsilons)) or "none, for it has radii"
            raise InputError(f"epsilon: expected one of the run's, {there}; got {epsilon}")
        column = epsilons.index(float(epsilon))
        return {name: values[:, column] for name, values in decode_verdicts(self.table, len(epsilons)).items()}

    def robust_accuracy(self, alpha: float = 0.05) -> Rate:
        """The share of images that withstood the attack, ``float(rate)``, with its confidence interval.

        Args:
            alpha: probability that the interval misses, in (0, 1).

        Returns:
            Rate.

        Raises:
            InputError: the run is no attack or holds no image yet, or alpha is out of range.
        """
        robust = self.robust
        if not len(self):
            raise InputError("robust_accuracy: the run holds no image yet; go on with it first")
        return estimate_rate(int(robust.sum()), len(self), alpha)

    def examples(self, indices: Sequence[int] | None = None) -> Tensor:
        """The adversarial examples.

        Args:
            indices: data-set indices, in any order; default: all images of the run, in the order of the table.

        Returns:
            float32 [n, C, H, W]; where the image withstood, the last word of the attack, within epsilon as all. Of a
            verification, the counterexample at the smallest epsilon that has one, elsewhere the image itself.

        Raises:
            InputError: the run is no attack, was made without keeping them, or does not have an image.
            InputTypeError: indices that are not integers.
            FileFormatError: the file is damaged.
        """
        if not self.parameters.get("examples"):
            kinds = ("attack", "verify")
            what = "is of kind " + self.kind if self.kind not in kinds else "was made without them"
            raise InputError(f"examples: expected a run that holds adversarial examples; this one {what}")
        there = self.table["index"]
        wanted = there if indices is None else np.asarray(indices)
        if wanted.ndim != 1 or (wanted.size and not np.issubdtype(wanted.dtype, np.integer)):
            raise InputTypeError(f"indices: expected a sequence of integers, got {wanted.dtype} {wanted.shape}")
        absent = np.setdiff1d(wanted, there)
        if len(absent):
            raise InputError(f"indices: expected images of the run, got {int(absent[0])}, which it does not have")
        return self._examples([int(index) for index in wanted])

    @property
    def right(self) -> npt.NDArray[np.bool_]:
        """Whether each prediction is the label; an abstention is not."""
        right: npt.NDArray[np.bool_] = (self.table["prediction"] == self.table["label"]) & (
            self.table["prediction"] >= 0
        )
        return right

    @property
    def robust(self) -> npt.NDArray[np.bool_]:
        """Whether the model is right about each image, and about its adversarial example.

        Raises:
            InputError: the run is no attack.
        """
        self._expect("robust", "attack")
        robust: npt.NDArray[np.bool_] = self.right & (self.table["adversarial"] == self.table["label"])
        return robust

    def to_dict(self) -> dict[str, Any]:
        """Header and table as plain lists, numbers and strings."""
        return dataclasses.asdict(self.header) | {name: column.tolist() for name, column in self.table.items()}

    def to_pandas(self) -> pd.DataFrame:
        """The table as a data frame with the header in ``attrs``.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise MissingExtraError("to_pandas: pandas is not installed: pip install pandas") from error
        frame = pd.DataFrame(self.table)
        frame.attrs = dataclasses.asdict(self.header)
        return frame

    def _examples(self, indices: list[int]) -> Tensor:
        with self._open() as (connection, where):
            return read_examples(connection, where, self.parameters, indices)

    def _expect(self, what: str, kind: str) -> None:
        if self.kind != kind:
            raise InputError(f"{what}: expected a run of kind {kind}, got {self.kind}")

    @contextmanager
    def _open(self) -> Iterator[tuple[sqlite3.Connection, Path]]:
        if isinstance(self._source, sqlite3.Connection):
            yield self._source, self.path or Path("(in memory)")
            return
        with closing(connect_readonly(self._source)) as connection:
            yield connection, self._source
