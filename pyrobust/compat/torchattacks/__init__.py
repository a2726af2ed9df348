"""Drop-in replacement for torchattacks (Kim, 2020, "Torchattacks: a PyTorch repository for adversarial attacks").

Change ``import torchattacks`` to ``import pyrobust.compat.torchattacks as torchattacks``. 34 of its 39 classes are
available:

- attacks that end for an example as soon as the model misclassifies it: FGSM, FFGSM, BIM, PGD, PGDL2, EOTPGD, UPGD,
  APGD, APGDT, FAB, Square and AutoAttack;
- attacks that take all their steps on every example: RFGSM, TPGD, MIFGSM, NIFGSM, SINIFGSM, VMIFGSM, VNIFGSM, DIFGSM,
  TIFGSM, PIFGSM, PIFGSMPP, Jitter, PGDRS, PGDRSL2 and SPSA;
- attacks that search for the nearest adversarial example: CW, DeepFool, EADEN and EADL1;
- MultiAttack, VANILA and GN, and ``Attack``, the base class for users' attacks.

Using one of the missing classes (JSMA, LGV, OnePixel, Pixle and SparseFool) raises an error.

Differences:

- attacks of the first group return the first point that fools the model, not the point after the last step, and return
  a misclassified image unchanged. If a variant of PGD fails, it returns the point of highest loss; if FGSM fails, it
  returns the end of its step. In training mode (``set_model_training_mode(model_training=True)``), APGD, APGDT, FAB,
  Square and AutoAttack raise an error, and the other attacks of this group take all steps on every example;
- attacks of the third group raise an error in training mode, too. If they find no adversarial example, they return the
  image itself. An adversarial point is moved farther beyond the decision boundary, to at most twice its distance from
  the image, until rounding, which depends on the batch, cannot undo the misclassification. EADEN and EADL1 refuse kappa
  above 0. After set_return_type("int"), the attacks of this group search only among images with 8-bit levels. Before
  ``save`` with save_type="int", call set_return_type("int"), too, because rounding the images afterwards could undo the
  misclassification;
- AutoAttack has the published budgets (100 steps of each gradient-based attack instead of 10), but ``n_classes`` sets
  the number of target classes, also in L1, where five are published; in APGD, APGDT and FAB, the argument ``steps``
  sets the number of steps;
- random numbers depend on a seed and on the number of images attacked so far. In attacks that have the argument
  ``seed`` in torchattacks, random numbers depend only on the seed and the image's position in the batch. In users' own
  attacks, random targets do not depend on the number of images attacked so far, so they are drawn alike for every
  batch. torch's generators are not touched;
- adversarial images lie exactly inside the ball and [0, 1]; inputs outside [0, 1] are an error, but torchattacks clips
  them. (VANILA and users' own attacks do not check their inputs, and GN clips.) If images are normalized, call
  set_normalization_used;
- set_return_type("int") and save_type="int" round the values of an adversarial image toward those of the clean image.
  If the clean image has 8-bit levels, eps still holds after rounding, with a tolerance of 1e-4/255;
- ``save`` reports distances on the scale of [0, 1];
- every module's training mode is restored.
"""

from __future__ import annotations

from typing import Any

from .all_steps import PGDRS, PGDRSL2, RFGSM, TPGD, Jitter
from .attack import Attack as Attack  # a base class, not an attack, so it is not in __all__, as in torchattacks
from .moves import PIFGSM, PIFGSMPP, SPSA
from .multiattack import MultiAttack
from .nearest import CW, EADEN, EADL1, DeepFool
from .transfer import DIFGSM, MIFGSM, NIFGSM, SINIFGSM, TIFGSM, VMIFGSM, VNIFGSM
from .until_fooled import APGD, APGDT, BIM, EOTPGD, FAB, FFGSM, FGSM, PGD, PGDL2, UPGD, AutoAttack, Square
from .without_model import GN, VANILA

__all__ = [
    "APGD",
    "APGDT",
    "BIM",
    "CW",
    "DIFGSM",
    "EADEN",
    "EADL1",
    "EOTPGD",
    "FAB",
    "FFGSM",
    "FGSM",
    "GN",
    "MIFGSM",
    "NIFGSM",
    "PGD",
    "PGDL2",
    "PGDRS",
    "PGDRSL2",
    "PIFGSM",
    "PIFGSMPP",
    "RFGSM",
    "SINIFGSM",
    "SPSA",
    "TIFGSM",
    "TPGD",
    "UPGD",
    "VANILA",
    "VMIFGSM",
    "VNIFGSM",
    "AutoAttack",
    "DeepFool",
    "Jitter",
    "MultiAttack",
    "Square",
]

#: The classes in ``__all__`` that take attacks instead of a model, under torchattacks' name for this list.
__wrapper__ = ["MultiAttack"]

#: torchattacks' classes that are not available.
NOT_SERVED = (
    "JSMA",
    "LGV",
    "OnePixel",
    "Pixle",
    "SparseFool",
)


def __getattr__(name: str) -> Any:
    if name in NOT_SERVED:
        raise AttributeError(
            f"pyrobust.compat.torchattacks has no {name}: keep torchattacks itself for it; an instance of its class "
            "cannot be part of a MultiAttack here"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
