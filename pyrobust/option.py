"""Options of the command line, each declared beside the run parameter or sweep setting that it sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

#: What the text of an option is: one of several words ("choice"), or one of them or module:callable ("name"); an
#: integer of at least 1 ("count"); any number, including NaN ("real"), a finite number of at least 0 ("number"), or
#: several such numbers with commas between them ("numbers"); LOW:HIGH ("range"); the step of a grid ("step"); or
#: MEAN/STD by channel ("channels").
Form: TypeAlias = Literal[
    "text",
    "choice",
    "name",
    "flag",
    "integer",
    "count",
    "real",
    "number",
    "numbers",
    "range",
    "step",
    "channels",
    "file",
]

MODEL_PANEL = "Model and data"
PERTURBATION_PANEL = "Perturbation"
IMAGES_PANEL = "Images"
RUN_PANEL = "Run"


@dataclass(frozen=True)
class Option:
    """An option of the command line.

    Attributes:
        help: its help text.
        metavar: name of its value in the help. By default, the help shows the choices.
        form: kind of value, such as "count" or "range".
        panel: heading under which the help lists it.
        name: the option without its dashes. By default, this is the name of the parameter.
        default: its value if the option is not given; None for no default.
        required: whether it has to be given.
        choices: the words to choose from, for an option of the form "choice" or "name".
        any_case: whether the choices may be written in upper or lower case.
        none: the text that stands for None.
        complete: function for shell completion, called with the beginning of a text; it returns the texts that may
            follow from it. By default, the text is completed to one of the choices.
    """

    help: str
    metavar: str = ""
    form: Form = "text"
    panel: str = RUN_PANEL
    name: str = ""
    default: Any = None
    required: bool = False
    choices: tuple[str, ...] = ()
    any_case: bool = False
    none: str | None = None
    complete: Callable[[str], list[str]] | None = None


SEED = Option("Random seed.", "N", "integer", default=0)
CLIP = Option(
    "Range of valid pixel values; none for no limits.",
    "LOW:HIGH",
    "range",
    PERTURBATION_PANEL,
    default="0:1",
    none="none",
)
DTYPE = Option(
    "Number format of the forward passes. Default: the model's own.",
    form="choice",
    choices=("float32", "float64", "bfloat16", "float16"),
)
