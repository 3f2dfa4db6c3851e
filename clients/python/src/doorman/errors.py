"""The exceptions of this package."""
from __future__ import annotations

from ._calls import Acquired


class Refused(Exception):
    """A hold or a reservation was refused. `decision` says by whom, and why."""

    def __init__(self, decision: Acquired) -> None:
        reason = decision.reason or f"by the {decision.by}"
        super().__init__(f"refused: {reason}" + (f" ({decision.limit})" if decision.limit else ""))
        self.decision = decision
