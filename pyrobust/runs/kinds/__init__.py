"""The kinds of runs: each has a class that declares its parameters, its columns and the meaning of its results.

Every module of this folder is imported, so that the classes of all kinds are in ``KINDS``.
"""

from importlib import import_module as _import_module
from pkgutil import iter_modules as _iter_modules

from pyrobust.runs.kinds.kind import KINDS as KINDS
from pyrobust.runs.kinds.kind import Kind as Kind
from pyrobust.runs.kinds.kind import kind_of as kind_of
from pyrobust.runs.kinds.kind import named as named

for _module in _iter_modules(__path__, f"{__name__}."):
    _import_module(_module.name)
