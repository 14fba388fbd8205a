"""A study that is judged while it is measured: when it is looked at, what each look may spend of the error, and what is
still worth measuring after it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from speclift.core.results import CONFIDENCE, TEMPERATURE_DASH, Part
from speclift.core.traffic import Load

# Of the error, for the look at what there is when nothing more will be measured; the looks on the way share the rest.
LAST_LOOK_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class InterimPlan:
    """One at the end of each lap. `sizes` are the laps', as shares of the study's requests; `shares` what their looks
    may spend of the error. Shares do not fall: what was settled on old data stays so at a later look."""

    sizes: tuple[float, ...]
    shares: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.sizes) != len(self.shares) or not all(0 < size <= 1 for size in self.sizes):
            raise ValueError(
                f"looks need a size in (0, 1] and a share each, saw {self.sizes} and {self.shares}"
            )
        if sum(self.shares[:-1]) > 1 - LAST_LOOK_SHARE + 1e-9 or list(self.shares) != sorted(self.shares):
            raise ValueError(f"looks may not spend more than the error, nor less than before: {self.shares}")

    def level(self, lap: int) -> float:
        """The confidence of what is said at the end of a lap."""
        return _level(self.shares[min(lap, len(self.shares) - 1)])


LAST_LEVEL = 1.0 - (1.0 - CONFIDENCE) * LAST_LOOK_SHARE


def _level(share: float) -> float:
    return 1.0 - (1.0 - CONFIDENCE) * share


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """A part of the traffic as a comparison names it."""

    part: Part
    label: str

    def admits(self, segment: str, load: Load, temperature: float | None) -> bool:
        if self.part is Part.SEGMENT:
            return segment == self.label
        if self.part is Part.LOAD:
            return load.label == self.label
        if self.part is Part.TEMPERATURE:
            low, _, high = self.label.partition(TEMPERATURE_DASH)
            return temperature is not None and float(low) <= temperature <= float(high or low)
        return True


EVERYTHING = Scope(part=Part.ALL, label="all")
# By arm, what of the traffic is still worth measuring on it; an arm that is missing is done with.
Wanted: TypeAlias = Mapping[str, tuple[Scope, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class InterimDecision:
    """What is wanted of each arm from here on; of each of which less than everything is, why; and whether launches
    leave enough open that the next lap is worth servers started anew."""

    wanted: Wanted
    because: Mapping[str, str] = field(default_factory=dict)
    needs_launch: bool = True

    @property
    def is_settled(self) -> bool:
        return not self.wanted


def at_everything(arms: Iterable[str]) -> InterimDecision:
    return InterimDecision(wanted=dict.fromkeys(arms, (EVERYTHING,)))
