"""The kinds of runs: for each a class that declares its parameters and columns, and what its results mean."""

# In the order in which messages list them.
# isort: off
from pyrobust.runs.kinds.certify import Certify as Certify, Sequential as Sequential
from pyrobust.runs.kinds.predict import Predict as Predict
from pyrobust.runs.kinds.verify import Verify as Verify
from pyrobust.runs.kinds.sandwich import Sandwich as Sandwich, SmoothedSandwich as SmoothedSandwich
from pyrobust.runs.kinds.attack import Attack as Attack, CertifiedFirst as CertifiedFirst, Minimum as Minimum
from pyrobust.runs.kinds.kind import KINDS as KINDS, Kind as Kind, kind_of as kind_of, named as named
