"""From a study to the policy of a gateway: what may go to servers that speculate, and how live requests are told apart.

Whatever the study leaves open falls on the side of plain.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

import msgspec

from speclift.bench.log_counting import log_drafters
from speclift.core.arm import Arm
from speclift.core.errors import StudyError, UsageError
from speclift.core.judged import ROUTING_BAR, StudyPrices
from speclift.core.results import ALL_TRAFFIC, Conditions, Decision
from speclift.core.routing import RequestFeatures, ServerPool
from speclift.core.speculation import NGram, drafters_of, method_name
from speclift.core.traffic import Concurrency, Load, Request
from speclift.core.units import Seconds
from speclift.engines.kind import engine_kind
from speclift.replayer.methods import DrafterSetting, settings_for
from speclift.routing.features import CHAT_PATHS, COMPLETION_PATHS
from speclift.routing.policy import (
    FILE_BYTES_MAX,
    SCHEMA,
    SHIPS,
    SPEEDUP_MIN,
    LoadLimit,
    Policy,
    PolicySegment,
    PolicySource,
    PrefixWorth,
    RepetitionLook,
    SegmentRule,
    back_of,
    read_policy,
)
from speclift.routing.repetition import PromptLook, repeated_share, standing_tokens
from speclift.routing.sorting import FEATURES, SegmentPrompt, SortedPrompts, sorted_prompts
from speclift.studies.outputs import relative
from speclift.studies.study import Study
from speclift.verbs.judged import prices_of

# A bound beyond it is none: too few launches to tell.
UNKNOWN_FROM = 1e6
# Of a plain segment whose speedup is not known: as slow as speculation has been seen to make one (S4).
UNKNOWN_SPEEDUP = 0.5
# Features of the text itself, which a study without text does not know.
OF_TEXT = ("prompt_characters", "repetition")


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPolicy:
    """A policy, and what a reader of its file should know: comments under "" at its head, else above a segment."""

    policy: Policy
    remarks: Mapping[str, tuple[str, ...]]


def load_policy(path: Path, *, learn: bool) -> Policy:
    """Of a study's folder or a policy's file. StudyError or UsageError, with the reasons, where it must not be
    followed; with `learn` a study that allows nothing is where learning begins."""
    policy = policy_of_study(path, learn=learn).policy if path.is_dir() else _of_file(path)
    if policy.source is not None and policy.source.verdict not in SHIPS and not learn:
        raise _allows_nothing(policy.source.study, policy.source.verdict)
    if policy.repetition is not None:
        _drafter_setting(policy.repetition)
    return policy


def policy_of_study(path: Path, *, learn: bool = False) -> StudyPolicy:
    prices = prices_of(path)
    with Study.open(path) as study:
        return policy_from(study, prices, learn=learn)


def policy_from(study: Study, prices: StudyPrices, *, learn: bool = False) -> StudyPolicy:
    """Of an open study and what it was judged to say."""
    facts, name = prices.routing, relative(study.path)
    if facts.verdict is Decision.OUTPUT_CHANGED:
        raise StudyError(
            f"{name}: speculation changed the output, so nothing may be sent to it",
            hint="speclift verify shows where; repair that first",
        )
    if facts.verdict not in SHIPS and not learn:
        raise _allows_nothing(name, facts.verdict)
    if facts.arm is None:
        raise StudyError(
            f"{name} compared no arm with the baseline", hint="speclift compare says what is missing"
        )
    return _Making(study, prices, facts.arm).made()


def prompt_look(policy: Policy | None, clock: Callable[[], Seconds] = time.perf_counter) -> PromptLook | None:
    """What a gateway asks for the repetition in prompts; None where the policy does not need it."""
    if policy is None or policy.repetition is None:
        return None
    look = policy.repetition
    return PromptLook(_drafter_setting(look), clock=clock, limit_s=look.limit_ms / 1000)


def _of_file(path: Path) -> Policy:
    try:
        if path.exists() and not path.is_file():
            # A pipe would be waited for without an end, and could not be read anew.
            raise OSError(f"{path} is no file")
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise UsageError(
            f"cannot read policy {path}: {error.strerror or error}",
            hint="--policy takes a study's folder, or the file that speclift export STUDY --to gateway writes",
        ) from error
    return read_policy(data, name=str(path))


def _allows_nothing(study: str, verdict: Decision) -> StudyError:
    return StudyError(
        f"the study {study} allows nothing on servers that speculate: it shows no part of the traffic to be faster "
        f"there ({verdict.value} already at {ROUTING_BAR:g}x)",
        hint="with --learn the gateway begins with everything at plain and finds out on live traffic",
    )


def _drafter_setting(look: RepetitionLook) -> DrafterSetting:
    """UsageError where no engine has such a drafter, or it looks at more than the text."""
    (setting, *others) = settings_for(
        [look.drafter], log_drafters(), engine=look.engine, ks=(1,), ngrams=(3,)
    )
    if others or setting.drafter.looks_up is None:
        raise UsageError(
            f"[repetition] drafter = {look.drafter!r} remembers earlier requests, so it cannot be tried on a prompt",
            hint="name one that looks at nothing but the text, such as ngram,n=3,k=5",
        )
    return setting


class _Making:
    """One policy from one study."""

    def __init__(self, study: Study, prices: StudyPrices, arm: Arm) -> None:
        self._study, self._prices, self._arm = study, prices, arm
        facts = self._facts = prices.routing
        self._ships = facts.verdict in SHIPS
        self._conditions: Conditions = facts.conditions or ALL_TRAFFIC
        # On what the conditions admit they were measured again; on the rest only all traffic tells.
        self._measured = {**facts.whole, **(facts.admitted if self._ships else {})}
        self._look = _repetition_look(study, self._arm)

    def made(self) -> StudyPolicy:
        names = tuple(dict.fromkeys(request.segment for request in self._study.plan.requests))
        pools = {name: self._pool(name) for name in names}
        found = self._told_apart(pools)
        rules = {} if found is None else _reachable(found)
        policy = Policy(
            schema=SCHEMA,
            elsewhere=ServerPool.SPEC if self._is_all else ServerPool.PLAIN,
            source=self._source(),
            load=self._load(),
            prefix=PrefixWorth(
                saves_s_per_1000_tokens=_rounded(self._facts.prefill_s_per_1000_tokens) or 0.0
            ),
            repetition=self._look if _use_repetition(rules.values()) else None,
            segments=tuple(self._segment(name, pools[name], found, rules.get(name, ())) for name in names),
        )
        return StudyPolicy(policy=policy, remarks=dict(self._remarks(policy, found)))

    @property
    def _is_all(self) -> bool:
        """Whether it ships on traffic of every kind, load apart."""
        conditions = self._conditions
        return self._ships and conditions.segments is None and conditions.max_temperature is None

    def _told_apart(self, pools: Mapping[str, ServerPool]) -> SortedPrompts | None:
        """None where there is nothing to tell apart."""
        told = pools if self._ships else {name: self._promising(name) for name in pools}
        return None if self._is_all or ServerPool.SPEC not in told.values() else self._sorted(told)

    def _pool(self, name: str) -> ServerPool:
        measured = self._measured.get(name)
        admitted = self._conditions.segments is None or name in self._conditions.segments
        is_shown = (
            measured is not None
            and measured.low is not None
            and measured.high is not None
            and measured.low >= SPEEDUP_MIN
            and measured.high >= 1.0
        )
        return ServerPool.SPEC if self._ships and admitted and is_shown else ServerPool.PLAIN

    def _promising(self, name: str) -> ServerPool:
        """Where nothing ships, what learning may come to: told apart, it is learned about by itself."""
        measured = self._measured.get(name)
        return ServerPool.SPEC if measured is not None and measured.value > 1.0 else ServerPool.PLAIN

    def _segment(
        self,
        name: str,
        pool: ServerPool,
        found: SortedPrompts | None,
        rules: tuple[SegmentRule, ...],
    ) -> PolicySegment:
        measured = self._measured.get(name)
        segment = PolicySegment(
            name=name,
            pool=pool,
            e2e_s=_rounded(self._plain_e2e_s(name)),
            max_temperature=self._max_temperature(name) if pool is ServerPool.SPEC else None,
            sorted_right=_rounded(found.segments[name].found) if rules and found is not None else None,
            when=rules,
        )
        if measured is None:
            return segment
        low, high = measured.low, measured.high
        has_interval = low is not None and low > 0 and high is not None and high < UNKNOWN_FROM
        return msgspec.structs.replace(
            segment,
            speedup=_rounded(measured.value),
            low=_rounded(low) if has_interval else None,
            high=_rounded(high) if has_interval else None,
            prompts=measured.prompts,
        )

    def _max_temperature(self, name: str) -> float | None:
        """No higher than it was measured at; None where some of its prompts leave that to the server."""
        asked = [temperature for _, temperature in self._asked(name)]
        known = [temperature for temperature in asked if temperature is not None]
        ceiling = self._conditions.max_temperature
        if len(known) < len(asked):
            return ceiling
        highest = max(known, default=None)
        return highest if ceiling is None or highest is None else min(highest, ceiling)

    def _asked(self, name: str) -> Iterator[tuple[Request, float | None]]:
        for request in self._study.plan.requests:
            if request.segment == name:
                for temperature in self._study.plan.temperatures:
                    yield request, request.temperature if temperature is None else temperature

    def _plain_e2e_s(self, name: str) -> Seconds | None:
        """At the middle of each load, over the loads that the conditions admit."""
        known = [
            plain.e2e_s for plain in self._facts.plain if plain.segment == name and self._admits(plain.load)
        ]
        return fmean(known) if known else None

    def _admits(self, load: Load) -> bool:
        if isinstance(load, Concurrency):
            ceiling: float | None = self._conditions.max_concurrency
            return ceiling is None or load.streams <= ceiling
        return self._conditions.max_qps is None or load.per_s <= self._conditions.max_qps

    def _load(self) -> LoadLimit:
        """Up to the highest load at which it was measured to pay; a request alone is the least there is."""
        if not self._ships:
            return LoadLimit()
        paying = [held.running for held in self._facts.running if self._admits(held.load)]
        pays_to = max(1.0, *paying) if paying else 1.0
        leave = math.floor(pays_to)
        return LoadLimit(leave=leave, back=back_of(leave), pays_to=_rounded(pays_to))

    def _source(self) -> PolicySource:
        provenance = self._study.provenance
        return PolicySource(
            study=relative(self._study.path),
            arm=self._arm.name,
            engine=provenance.engine,
            engine_version=provenance.engine_version,
            model=provenance.model,
            verdict=self._facts.verdict,
            metric=self._prices.goals.metric,
            written=datetime.now(UTC).strftime("%Y-%m-%d"),
            is_for_all_traffic=self._is_all,
        )

    def _sorted(self, pools: Mapping[str, ServerPool]) -> SortedPrompts:
        names = FEATURES if self._study.keeps_text else tuple(n for n in FEATURES if n not in OF_TEXT)
        return sorted_prompts(list(self._prompts(pools)), names=names)

    def _prompts(self, pools: Mapping[str, ServerPool]) -> Iterator[SegmentPrompt]:
        setting = None if self._look is None else _drafter_setting(self._look)
        ceiling = self._conditions.max_temperature
        for name, pool in pools.items():
            speedup = self._measured.get(name)
            for request, temperature in self._asked(name):
                is_hot = ceiling is not None and (temperature is None or temperature > ceiling)
                is_spec = pool is ServerPool.SPEC and not is_hot
                known = None if speedup is None or is_hot else speedup.value if is_spec else speedup.low
                yield SegmentPrompt(
                    segment=name if is_spec or pool is ServerPool.PLAIN else f"{name} at higher temperatures",
                    features=_features(request, temperature, setting),
                    log_speedup=_log(known, is_spec=is_spec),
                    is_spec=is_spec,
                )

    def _remarks(self, policy: Policy, found: SortedPrompts | None) -> Iterator[tuple[str, tuple[str, ...]]]:
        study, verdict = relative(self._study.path), self._facts.verdict
        yield (
            "",
            (
                f"Written by speclift from study {study}: arm {self._arm.name}, verdict {verdict.value}.",
                'Requests go to "spec" or "plain" by the first segment that one of its rules holds for, or that the '
                "header",
                "x-speclift-segment names; docs/gateway.md says what may be edited.",
                'Where both pools share one GPU or machine, their load is one: say counted = "all".',
                *([_sorting_words(found)] if found is not None else []),
            ),
        )
        for segment in policy.segments:
            yield segment.name, tuple(_segment_remarks(segment, policy.elsewhere, found))


def _segment_remarks(
    segment: PolicySegment, elsewhere: ServerPool, found: SortedPrompts | None
) -> Iterator[str]:
    if segment.when and found is not None:
        known = found.segments[segment.name]
        yield (
            f"Of its prompts, rules made without them find {known.found:.0%}; of those that spec makes slower they "
            f"take {known.mistaken:.1%} for it."
        )
    elif segment.pool is not elsewhere:
        yield f"No rule of its own tells it apart: the header x-speclift-segment = {segment.name} does."


def _sorting_words(found: SortedPrompts) -> str:
    return (
        f"Rules made without them send {found.right:.0%} of the study's prompts to the right pool "
        "(sorted_right: of the segment's own)."
    )


def _use_repetition(rules: Iterable[Sequence[SegmentRule]]) -> bool:
    return any(bound is not None for each in rules for rule in each for bound in rule.bounds("repetition"))


def _reachable(found: SortedPrompts) -> dict[str, tuple[SegmentRule, ...]]:
    """Without rules that take nothing which an earlier segment has not taken: to which of them it belongs changes no
    pool."""
    before: list[SegmentRule] = []
    kept: dict[str, tuple[SegmentRule, ...]] = {}
    for name, segment in found.segments.items():
        rules = tuple(rule for rule in segment.rules if not any(each.takes_all_of(rule) for each in before))
        before.extend(rules)
        kept[name] = rules
    return kept


def _repetition_look(study: Study, arm: Arm) -> RepetitionLook | None:
    """Of the arm's own look-up; of one that remembers requests, its engine's plain one of the same sizes. None where
    the arm looks nothing up, or nobody knows how its engine does."""
    kind = study.engine.kind
    drafters = engine_kind(kind).log_drafters()
    own = next((part for part in drafters_of(arm.speculation) if isinstance(part, NGram)), None)
    if own is None or drafters is None:
        return None
    by_name = {drafter.method: drafter for drafter in drafters.drafters}
    drafter = by_name.get(method_name(own), drafters.drafters[0])
    if drafter.looks_up is None:
        drafter = drafters.drafters[0]
    n_min = f",n_min={own.n_min}" if own.n_min is not None and drafter.takes_n_min else ""
    look = RepetitionLook(engine=kind, drafter=f"{drafter.method},n={own.n},k={own.k}{n_min}")
    with suppress(UsageError):
        _drafter_setting(look)
        return look
    return None


def _features(request: Request, temperature: float | None, setting: DrafterSetting | None) -> RequestFeatures:
    texts = [message.content for message in request.messages] or [request.prompt or ""]
    return RequestFeatures(
        path=CHAT_PATHS[0] if request.messages else COMPLETION_PATHS[0],
        is_generation=True,
        temperature=temperature,
        max_tokens=request.max_tokens,
        prompt_characters=sum(map(len, texts)),
        turns=max(1, len(request.messages)),
        repetition=None if setting is None else repeated_share(standing_tokens("\n".join(texts)), setting),
    )


def _log(speedup: float | None, *, is_spec: bool) -> float:
    """What is plain is a loss at best: its rules must not gain from it."""
    known = UNKNOWN_SPEEDUP if speedup is None or speedup <= 0 else speedup
    return math.log(known) if is_spec else min(math.log(known), math.log(SPEEDUP_MIN))


def _rounded(value: float | None) -> float | None:
    """As many digits as a reader wants to see."""
    return None if value is None else float(f"{value:.4g}")
