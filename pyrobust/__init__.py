"""Certified and empirical robustness of PyTorch classifiers, with native kernels.

The names of ``pyrobust.__all__`` are the public API; ``pyrobust.metrics`` has the metrics, ``pyrobust.ops`` has the
kernels and ``pyrobust.compat`` has drop-in replacements for other libraries' APIs. Each name is imported when it is
first used.
"""

import os
import sys

from pyrobust.environment import prepare_cublas, prepare_threads
from pyrobust.late import import_lazily

# Type checkers read the imports of this block, Python reads the table below; a test compares the two.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from pyrobust.attacks import (
        APGD as APGD,
        BIM as BIM,
        BPDA as BPDA,
        DDN as DDN,
        EAD as EAD,
        EOT as EOT,
        FAB as FAB,
        FGSM as FGSM,
        FMN as FMN,
        PGD as PGD,
        SPSA as SPSA,
        AdaptedAttack as AdaptedAttack,
        AdversarialAttack as AdversarialAttack,
        AdversarialPatch as AdversarialPatch,
        AutoAttack as AutoAttack,
        CarliniWagner as CarliniWagner,
        DeepFool as DeepFool,
        Diagnosis as Diagnosis,
        HopSkipJump as HopSkipJump,
        MinimumNorm as MinimumNorm,
        MinimumNormEnsemble as MinimumNormEnsemble,
        SigmaZero as SigmaZero,
        Square as Square,
        TransferAttack as TransferAttack,
        UniversalPerturbation as UniversalPerturbation,
        diagnose as diagnose,
        minimum_norm as minimum_norm,
    )
    from pyrobust.bounds import (
        BoundedModel as BoundedModel,
        BoundOptions as BoundOptions,
        Bounds as Bounds,
        LipschitzBound as LipschitzBound,
        Verdicts as Verdicts,
        compute_ibp_bounds as compute_ibp_bounds,
        lipschitz_bound as lipschitz_bound,
    )
    from pyrobust.errors import PyrobustError as PyrobustError
    from pyrobust.evaluation import (
        CertificationLog as CertificationLog,
        RobustnessCurve as RobustnessCurve,
        Run as Run,
        Sandwich as Sandwich,
        SweepSettings as SweepSettings,
        attack_dataset as attack_dataset,
        audit as audit,
        calculate_empirical_robustness as calculate_empirical_robustness,
        certified_accuracy_ibp as certified_accuracy_ibp,
        certify_dataset as certify_dataset,
        compute_certified_accuracy as compute_certified_accuracy,
        compute_robustness_curve as compute_robustness_curve,
        predict_dataset as predict_dataset,
        read_certification_log as read_certification_log,
        sandwich_dataset as sandwich_dataset,
        verify_dataset as verify_dataset,
    )
    from pyrobust.evaluation.minimum_norm_curve import minimum_norm_curve as minimum_norm_curve
    from pyrobust.evaluation.robustness_curve import robustness_curve as robustness_curve
    from pyrobust.evaluation.sandwich import sandwich as sandwich
    from pyrobust.metrics import (
        BinaryProvableAvgRobustness as BinaryProvableAvgRobustness,
        BinaryProvableRobustAccuracy as BinaryProvableRobustAccuracy,
        CategoricalProvableAvgRobustness as CategoricalProvableAvgRobustness,
        CategoricalProvableRobustAccuracy as CategoricalProvableRobustAccuracy,
        SurvivalCurve as SurvivalCurve,
        average_certified_radius as average_certified_radius,
        certification_gap as certification_gap,
        certified_accuracy as certified_accuracy,
        survival_curve as survival_curve,
    )
    from pyrobust.ops import (
        project_l1_ball as project_l1_ball,
        project_l1_ball_box as project_l1_ball_box,
        project_l2_ball as project_l2_ball,
        project_linf_ball as project_linf_ball,
        project_simplex as project_simplex,
    )
    from pyrobust.smoothing import (
        Certificates as Certificates,
        Predictions as Predictions,
        RandomizedSmoothing as RandomizedSmoothing,
        certified_radius as certified_radius,
    )
    from pyrobust.training import (
        crown_ibp_loss as crown_ibp_loss,
        ibp_loss as ibp_loss,
    )

    __version__: str

ABSTAIN: "Final" = -1
"""The prediction that stands for an abstention, where no class could be certified: -1."""

__all__ = import_lazily(
    __name__,
    {
        "pyrobust.attacks": """
            APGD BIM BPDA DDN EAD EOT FAB FGSM FMN PGD SPSA AdaptedAttack AdversarialAttack AdversarialPatch AutoAttack
            CarliniWagner DeepFool Diagnosis HopSkipJump MinimumNorm MinimumNormEnsemble SigmaZero Square TransferAttack
            UniversalPerturbation diagnose minimum_norm
        """,
        "pyrobust.bounds": """
            BoundedModel BoundOptions Bounds LipschitzBound Verdicts compute_ibp_bounds lipschitz_bound
        """,
        "pyrobust.errors": "PyrobustError",
        "pyrobust.evaluation": """
            CertificationLog RobustnessCurve Run Sandwich SweepSettings attack_dataset audit
            calculate_empirical_robustness certified_accuracy_ibp certify_dataset compute_certified_accuracy
            compute_robustness_curve predict_dataset read_certification_log sandwich_dataset verify_dataset
        """,
        "pyrobust.evaluation.minimum_norm_curve": "minimum_norm_curve",
        "pyrobust.evaluation.robustness_curve": "robustness_curve",
        "pyrobust.evaluation.sandwich": "sandwich",
        "pyrobust.metrics": """
            BinaryProvableAvgRobustness BinaryProvableRobustAccuracy CategoricalProvableAvgRobustness
            CategoricalProvableRobustAccuracy SurvivalCurve average_certified_radius certification_gap
            certified_accuracy survival_curve
        """,
        "pyrobust.ops": "project_l1_ball project_l1_ball_box project_l2_ball project_linf_ball project_simplex",
        "pyrobust.smoothing": "Certificates Predictions RandomizedSmoothing certified_radius",
        "pyrobust.training": "crown_ibp_loss ibp_loss",
    },
    "ABSTAIN __version__",
)


def __getattr__(name: str) -> object:
    """Return the version or the native module, the two lazy attributes that are not in the table of lazy imports."""
    if name == "__version__":
        from importlib.metadata import version

        globals()[name] = version("pyrobust")
        return globals()[name]
    if name == "_C":  # imported after torch, whose libraries it links to; in a clone this may be the installed module
        from pyrobust.ops import native

        return native._C  # type: ignore[attr-defined]  # not a name of that module
    raise AttributeError(name)


# torch's libraries read these variables once, when torch is loaded or computes its first product.
prepare_cublas(os.environ)
if "torch" not in sys.modules:
    prepare_threads(os.environ)
