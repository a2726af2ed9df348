"""Settings of one call of an engine."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Query:
    """How bounds are computed; the fields are those of ``BoundOptions``."""

    method: str
    sound: bool
    semantics: str
    memory_limit: int | None
