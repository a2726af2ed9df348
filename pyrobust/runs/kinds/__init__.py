"""The kinds of runs: for each a class that declares its parameters and columns, and what its results mean."""

# In the order in which messages list them.
# isort: off
from pyrobust.runs.kinds.certify import Certify, Sequential
from pyrobust.runs.kinds.predict import Predict
from pyrobust.runs.kinds.verify import Verify
from pyrobust.runs.kinds.sandwich import Sandwich, SmoothedSandwich
from pyrobust.runs.kinds.attack import Attack, CertifiedFirst, Minimum
from pyrobust.runs.kinds.kind import KINDS, Kind, kind_of, named

__all__ = [
    "KINDS",
    "Attack",
    "CertifiedFirst",
    "Certify",
    "Kind",
    "Minimum",
    "Predict",
    "Sandwich",
    "Sequential",
    "SmoothedSandwich",
    "Verify",
    "kind_of",
    "named",
]
