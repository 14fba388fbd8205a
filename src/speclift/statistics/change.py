from __future__ import annotations
from dataclasses import dataclass
from speclift.core.live import Increment


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    at_s: float
    before: float
    after: float


class ChangeWatch:
    def follow(self, increment: Increment) -> Change | None:
        return None

    def forget(self) -> None:
        pass
