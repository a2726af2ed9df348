"""How guesses are moved and corrected before they are proved."""

from __future__ import annotations

from typing import Final

MARGIN: Final = 2.0**-40
"""How far a guess is moved to the safe side before it is proved, relative to min(p, 1 - p), or to |z| for the normal.

9e-13: above the usual error of the guess, so that one proof is enough, and far below anything visible in a radius.
Soundness does not rest on it, tightness does: what is returned lies within 4 margins and 8 units in the last place of
the exact bound.
"""

MAX_NEWTON: Final = 100
"""Corrections of a guess before the trivial bound is returned."""
