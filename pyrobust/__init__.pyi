"""The types of the public names, and, when pyrobust runs, the modules that they are imported from."""

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
    minimum_norm_curve as minimum_norm_curve,
    predict_dataset as predict_dataset,
    read_certification_log as read_certification_log,
    robustness_curve as robustness_curve,
    sandwich as sandwich,
    sandwich_dataset as sandwich_dataset,
    verify_dataset as verify_dataset,
)
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
from pyrobust.training import crown_ibp_loss as crown_ibp_loss, ibp_loss as ibp_loss

__version__: Final[str]
ABSTAIN: Final = -1
