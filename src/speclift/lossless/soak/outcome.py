"""What a soak came to, arm by arm: how long, how much was asked, which faults, and the one word for all of it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from speclift.core.results import Finding, Level
from speclift.core.units import Seconds
from speclift.lossless.result import Result, worst
from speclift.lossless.soak.rates import FaultRate, SoakResult, exposed_needed
from speclift.lossless.soak.values import SoakFault

# Any answer could show these: where even of them too few were exposed, the soak was too short to say anything.
SHOWN_BY_ANY = frozenset({SoakFault.SPECIAL_TOKEN, SoakFault.BROKEN_TEXT, SoakFault.REFUSED, SoakFault.HUNG})


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Whether answers given under load follow the target's probabilities, by the gate's own test."""

    result: Result
    message: str
    tokens: int
    tokens_needed: int
    detectable: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakArm:
    """One arm against the control. `requests` and `launches` are its own."""

    arm: str
    method: str
    rates: tuple[FaultRate, ...]
    requests: int
    launches: int
    findings: tuple[Finding, ...] = ()
    # Where the smallest reproduction of a fault was written to.
    scripts: Mapping[SoakFault, str] = field(default_factory=dict)
    # Those of them that were seen again.
    reproduced: frozenset[SoakFault] = frozenset()
    # None where nothing was sampled, or the server cannot tell.
    distribution: Distribution | None = None

    @property
    def found(self) -> tuple[FaultRate, ...]:
        return tuple(rate for rate in self.rates if rate.result is SoakResult.FOUND)

    @property
    def asked(self) -> tuple[FaultRate, ...]:
        """Those that something could have shown."""
        return tuple(rate for rate in self.rates if rate.arm.exposed)

    @property
    def result(self) -> Result:
        is_shifted = self.distribution is not None and self.distribution.result is Result.FAIL
        if self.found or is_shifted or any(finding.level is Level.FAIL for finding in self.findings):
            return Result.FAIL
        return worst(_result_of(rate) for rate in self.rates)


def _result_of(rate: FaultRate) -> Result:
    """Of what few requests can show, few were asked: that is told in its row, and stops no pass. Neither does what the
    baseline does as well."""
    if rate.result is SoakResult.CLEAN:
        return Result.PASS
    is_unknown = rate.fault in SHOWN_BY_ANY and rate.arm.exposed < exposed_needed()
    return Result.INCONCLUSIVE if rate.is_open or is_unknown else Result.SKIPPED


@dataclass(frozen=True, slots=True, kw_only=True)
class Soak:
    seconds: Seconds
    # As asked for.
    planned_s: Seconds
    levels: tuple[int, ...]
    requests: int
    launches: int
    arms: tuple[SoakArm, ...]
    # How many were asked of each kind, and in each stage.
    kinds: Mapping[str, int] = field(default_factory=dict)
    stages: Mapping[str, int] = field(default_factory=dict)
    # Kinds that the baseline refuses, with its words.
    refused_kinds: Mapping[str, str] = field(default_factory=dict)
    # Of full length, for most answers: below 1 where there was no time for more.
    scale: float = 1.0
    # Draft tokens accepted of those drafted, by arm; None where the server does not say.
    acceptance: Mapping[str, float | None] = field(default_factory=dict)
    # Where its answers lie, as one would type it.
    study: str = ""
    # Whether less was asked than the time was meant for, and whether a signal ended it.
    is_partial: bool = False
    is_interrupted: bool = False
    # One that can find faults and is too short to clear anybody: what it leaves open does not count.
    is_short: bool = False

    @property
    def result(self) -> Result:
        result = worst(arm.result for arm in self.arms)
        return Result.SKIPPED if self.is_short and result is Result.INCONCLUSIVE else result

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(finding for arm in self.arms for finding in arm.findings)


def counted(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))
