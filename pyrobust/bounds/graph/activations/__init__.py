"""The table of activations: one row per elementwise function, with everything that an engine needs to bound it."""

# the names are for the engines, not for users: no __all__
from pyrobust.bounds.graph.activations import (  # noqa: F401 - each adds its rows
    kernels,
    parametric,
    periodic,
    piecewise,
    powers,
    smooth,
)
from pyrobust.bounds.graph.activations.table import (
    ACTIVATIONS as ACTIVATIONS,
)
from pyrobust.bounds.graph.activations.table import (
    LARGEST as LARGEST,
)
from pyrobust.bounds.graph.activations.table import (
    ActivationRow as ActivationRow,
)
from pyrobust.bounds.graph.activations.table import (
    Differentiable as Differentiable,
)
from pyrobust.bounds.graph.activations.table import (
    LinearRelaxation as LinearRelaxation,
)
from pyrobust.bounds.graph.activations.table import (
    RelaxationRule as RelaxationRule,
)
from pyrobust.bounds.graph.activations.table import (
    Rounding as Rounding,
)
from pyrobust.bounds.graph.activations.table import (
    required as required,
)
from pyrobust.bounds.graph.activations.table import (
    row_from_rule as row_from_rule,
)
from pyrobust.bounds.graph.activations.table import (
    row_of as row_of,
)
