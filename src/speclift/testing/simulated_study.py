"""What would a study record if the truth were known? The records a real one would store, without an engine.

log TPOT = prompt's level + launch + residual - log speedup of the arm on this prompt: what compare.py assumes,
plus what it must survive (drift, failures, arms that share the baseline). Queueing is not simulated.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from speclift.core.records import Outcome, Place, Record
from speclift.core.traffic import Concurrency, Load
from speclift.core.units import Seconds, Tokens

Floats = NDArray[np.float64]
# Segment, load and temperature to what holds there on average over prompts: a speedup, or the share of slow requests.
SpeedupOf = Callable[[str, Load, float | None], float]
ShareOf = Callable[[str, Load, float | None], float]


def no_change(segment: str, load: Load, temperature: float | None) -> float:  # noqa: ARG001
    return 1.0


def none_slow(segment: str, load: Load, temperature: float | None) -> float:  # noqa: ARG001
    return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmTruth:
    """How an arm differs from the baseline; with these defaults not at all."""

    speedup: SpeedupOf = no_change
    # Spread of the prompts' own log speedups around that of their segment, load and temperature.
    prompt_sd: float = 0.0
    drafted_per_step: Tokens = 0
    acceptance: float = 0.0
    failed_share: float = 0.0
    # The tail: requests that take `slow_times` as long per token as they usually would.
    slow_share: ShareOf = none_slow
    slow_times: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyTruth:
    """`launch_sd` is one server start's on the log scale, `residual_sd` one request's: a ratio has both twice."""

    arms: Mapping[str, ArmTruth] = field(default_factory=dict)
    tpot_s: Seconds = 0.010
    ttft_s: Seconds = 0.050
    output_tokens: Tokens = 64
    prompt_level_sd: float = 0.20
    launch_sd: float = 0.02
    residual_sd: float = 0.06
    # Of a fleet: how much machines differ in pace, which pairs cancel, and in what an arm gains on them.
    node_level_sd: float = 0.0
    node_sd: float = 0.0
    # The machine's log slowdown from the first record to the last.
    drift: float = 0.0
    reports_drafts: bool = True
    # So that an arm's speedup is the same in every metric; a real drafter leaves the first token as it is.
    gains_first_token: bool = True


def simulate_study(
    places: Sequence[Place], truth: StudyTruth, random: np.random.Generator
) -> tuple[Record, ...]:
    """One record per place, in the order given, which is the order of measurement."""
    log_tpot, gain = _log_tpot(places, truth, random)
    log_ttft = random.normal(0.0, truth.residual_sd, len(places)) - gain * truth.gains_first_token
    ttft_s = truth.ttft_s * np.exp(log_ttft)
    failed_share = np.array([_arm(truth, place).failed_share for place in places])
    fails = random.random(len(places)) < failed_share
    decode_s = np.exp(log_tpot) * (truth.output_tokens - 1)
    starts = _start_times(places, ttft_s + decode_s)
    return tuple(
        _record(place, truth, start_s=start_s, ttft_s=first_s, decode_s=rest_s, fails=fail)
        for place, start_s, first_s, rest_s, fail in zip(
            places, starts, ttft_s.tolist(), decode_s.tolist(), fails.tolist(), strict=True
        )
    )


def true_speedup(places: Iterable[Place], truth: StudyTruth, arm: str) -> float:
    """What a study at these places estimates: prompts weigh the same, and so do loads and temperatures."""
    segments: dict[str, str] = {}
    moments: dict[tuple[Load, float | None], None] = {}
    for place in places:
        segments[place.request_id] = place.segment
        moments[(place.load, place.temperature)] = None
    speedup = truth.arms[arm].speedup
    logs = [np.log(speedup(segment, *moment)) for segment in segments.values() for moment in moments]
    return float(np.exp(np.mean(logs)))


def _log_tpot(
    places: Sequence[Place], truth: StudyTruth, random: np.random.Generator
) -> tuple[Floats, Floats]:
    """With what of it is the arm's gain."""
    level, prompt = _draws([place.request_id for place in places], truth.prompt_level_sd, random)
    launch, _ = _draws([place.launch for place in places], truth.launch_sd, random)
    node = _indices([place.node for place in places])
    # One machine draws nothing: studies of one are the same whether or not there could be others.
    pace = random.normal(0.0, truth.node_level_sd, node.max() + 1)[node] if node.any() else 0.0
    residual = random.normal(0.0, truth.residual_sd, len(places))
    drift = truth.drift * np.linspace(0.0, 1.0, len(places))
    gain = np.zeros(len(places))
    names = np.array([place.arm for place in places])
    for name, arm in truth.arms.items():
        here = names == name
        own = random.normal(0.0, arm.prompt_sd, prompt.max() + 1)[prompt[here]] if arm.prompt_sd else 0.0
        of_node = random.normal(0.0, truth.node_sd, node.max() + 1)[node[here]] if truth.node_sd else 0.0
        gain[here] = own + of_node + _gains([place for place in places if place.arm == name], arm, random)
    return np.log(truth.tpot_s) + level + launch + pace + residual + drift - gain, gain


def _gains(places: Sequence[Place], arm: ArmTruth, random: np.random.Generator) -> Floats:
    """Of one arm, where prompts and machines are alike: by segment, load and temperature, less its slow requests."""
    settings = [(place.segment, place.load, place.temperature) for place in places]
    known = {setting: np.log(arm.speedup(*setting)) for setting in set(settings)}
    gain = np.array([known[setting] for setting in settings], dtype=np.float64)
    if arm.slow_times != 1.0:
        shares = {setting: arm.slow_share(*setting) for setting in set(settings)}
        is_slow = random.random(len(settings)) < np.array([shares[setting] for setting in settings])
        gain -= np.log(arm.slow_times) * is_slow
    return gain


def _indices(labels: Sequence[Hashable]) -> NDArray[np.intp]:
    index = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    return np.array([index[label] for label in labels], dtype=np.intp)


def _draws(
    labels: Sequence[Hashable], sd: float, random: np.random.Generator
) -> tuple[Floats, NDArray[np.intp]]:
    """One draw per distinct label, spread over the labels, and the labels as indices."""
    numbers = _indices(labels)
    return random.normal(0.0, sd, len(set(labels)))[numbers], numbers


def _start_times(places: Sequence[Place], duration_s: Floats) -> list[Seconds]:
    """Turns one after another; within a turn as many streams as the load says, or one request each 1/rate."""
    starts: list[Seconds] = []
    now, index = 0.0, 0
    for _, turn in groupby(places, key=lambda place: (place.launch, place.block, place.phase)):
        members = list(turn)
        load = members[0].load
        end = now
        free = [now] * (load.streams if isinstance(load, Concurrency) else 0)
        for number, _place in enumerate(members):
            start = heapq.heappop(free) if isinstance(load, Concurrency) else now + number / load.per_s
            finish = start + float(duration_s[index])
            if isinstance(load, Concurrency):
                heapq.heappush(free, finish)
            starts.append(start)
            end = max(end, finish)
            index += 1
        now = end
    return starts


def _record(
    place: Place,
    truth: StudyTruth,
    *,
    start_s: Seconds,
    ttft_s: Seconds,
    decode_s: Seconds,
    fails: bool,
) -> Record:
    if fails:
        return Record(
            place=place,
            outcome=Outcome.HTTP_ERROR,
            intended_s=start_s,
            sent_s=start_s,
            end_s=start_s + ttft_s,
            error="500: simulated",
        )
    drafted, accepted = _draft_counts(_arm(truth, place), truth.output_tokens)
    end_s = start_s + ttft_s + decode_s
    return Record(
        place=place,
        outcome=Outcome.OK,
        intended_s=start_s,
        sent_s=start_s,
        end_s=end_s,
        first_token_s=start_s + ttft_s,
        last_token_s=end_s,
        prompt_tokens=100,
        output_tokens=truth.output_tokens,
        finish_reason="length",
        drafted=drafted if truth.reports_drafts else None,
        accepted=accepted if truth.reports_drafts else None,
    )


def _draft_counts(arm: ArmTruth, output_tokens: Tokens) -> tuple[Tokens, Tokens]:
    """Drafted and accepted of one request: each step drafts the same and adds one token of its own."""
    decoded = output_tokens - 1
    steps = decoded / (1.0 + arm.acceptance * arm.drafted_per_step)
    accepted = int(decoded - steps)
    return max(accepted, round(steps * arm.drafted_per_step)), accepted


def _arm(truth: StudyTruth, place: Place) -> ArmTruth:
    return truth.arms.get(place.arm, ArmTruth())
