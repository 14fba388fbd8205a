"""The soak on servers whose faults are known, on virtual time: how many requests it takes to find each, and how often a
clean server raises an alarm. Answers are the fake server's own and are read by the soak's own detectors; which requests
go wrong is drawn anew for each soak. Distribution shifts are in benchmarks/lossless.py: that is the gate's test.
"""

from __future__ import annotations

import heapq
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from statistics import median
from typing import NamedTuple

from speclift.core.document import Json
from speclift.core.records import AnswerChoice, ToolCall
from speclift.core.units import Seconds
from speclift.lossless.gate import SoakFault, SoakResult
from speclift.lossless.soak.faults import HeldAgainst, observe
from speclift.lossless.soak.prompts import SoakDialect, nonce_for
from speclift.lossless.soak.rates import PROMISED, PROVEN, Tally, judge_tallies
from speclift.lossless.soak.traffic import SoakKind, SoakTraffic, soak_traffic
from speclift.lossless.soak.values import Exposure, SoakAnswer, SoakRequest, Stage
from speclift.testing.fake_corruption import Around, Corruption, character_id
from speclift.testing.fake_truth import Truth
from speclift.testing.simulated_server import simulated_answer
from trials import trial_options

SHARES = (0.005, 0.02, 0.10)
EXPOSED = (100, 300, 600)
# Each launch: alone, at 4 and at 16 streams, alone again.
LAUNCH = ((1, 30), (4, 400), (16, 1200), (1, 30))
LAUNCHES_MAX = 12
TOKEN_S, FIRST_S = 0.02, 0.2
# At 2 % of 300 exposed requests a fault of one answer is found at least this often, and no clean soak raises an alarm.
POWER_MIN, FALSE_ALARMS_MAX = 0.95, 0
# What a small model does by itself under any server, in clean soaks: the same in both arms.
OWN_FAULTS: Mapping[SoakFault, float] = {
    SoakFault.BROKEN_OFF: 0.02,
    SoakFault.REPEATED: 0.15,
    SoakFault.ALTERED: 0.3,
    SoakFault.BROKEN_TEXT: 0.05,
    SoakFault.OTHER_TEXT: 0.3,
    SoakFault.HUNG: 0.01,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A fault and where it strikes."""

    name: str
    corruption: Corruption
    fault: SoakFault
    streams_above: int = 0
    after: int = 0
    launch: int = 0
    on_join: bool = False
    with_tools: bool = False

    @property
    def is_promise(self) -> bool:
        """Seen in one answer for certain; the others have to be more frequent than the baseline's."""
        return self.fault in PROMISED | PROVEN

    def meets(self, sent: Sent) -> bool:
        return (
            sent.streams > self.streams_above
            and sent.before >= self.after
            and self.launch in (0, sent.launch)
            # With others beside it, prompts join all the time.
            and (sent.streams > 1 or not self.on_join)
            and (sent.turn.kind == SoakKind.AGENT or not self.with_tools)
        )


LEAK, SPECIAL = Corruption.LEAKED_TOKEN, SoakFault.SPECIAL_TOKEN
CASES = (
    Case(name="leaked tokens", corruption=LEAK, fault=SPECIAL),
    Case(name="leaked tokens, above 8 streams", corruption=LEAK, fault=SPECIAL, streams_above=8),
    Case(name="leaked tokens, after 300 requests", corruption=LEAK, fault=SPECIAL, after=300),
    Case(name="leaked tokens, with tools", corruption=LEAK, fault=SPECIAL, with_tools=True),
    Case(name="leaked tokens, second launch", corruption=LEAK, fault=SPECIAL, launch=2),
    Case(name="leaked tokens, when a prompt joins", corruption=LEAK, fault=SPECIAL, on_join=True),
    Case(name="another request's text", corruption=Corruption.CROSS_TALK, fault=SoakFault.CROSS_TALK),
    Case(name="text after a stop string", corruption=Corruption.TEXT_AFTER_STOP, fault=SoakFault.AFTER_STOP),
    Case(name="token limit ignored", corruption=Corruption.BUDGET_IGNORED, fault=SoakFault.BUDGET),
    Case(name="invalid JSON", corruption=Corruption.INVALID_JSON, fault=SoakFault.INVALID_JSON),
    Case(
        name="broken arguments of tools", corruption=Corruption.INVALID_JSON, fault=SoakFault.TOOL_ARGUMENTS
    ),
    Case(name="forbidden tokens", corruption=Corruption.BANNED_TOKEN, fault=SoakFault.BANNED_TOKEN),
    Case(name="ends without a reason", corruption=Corruption.TRUNCATED, fault=SoakFault.TRUNCATED),
    Case(name="copies that end early", corruption=Corruption.BROKEN_OFF, fault=SoakFault.BROKEN_OFF),
    Case(name="copies with other words", corruption=Corruption.OTHER_WORDS, fault=SoakFault.ALTERED),
    Case(name="spans repeated", corruption=Corruption.REPEATED_SPAN, fault=SoakFault.REPEATED),
    Case(name="bytes that are no text", corruption=Corruption.BROKEN_TEXT, fault=SoakFault.BROKEN_TEXT),
)


# The answers, once

EXPOSURE = Exposure(
    arm="spec",
    launch=1,
    stage=Stage.DURING,
    sent_s=0.0,
    ended_s=1.0,
    streams=1,
    streams_max=1,
    before=0,
    joined=0,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One request with what its clean answer could show, and what each corruption of it shows."""

    kind: str
    tokens: int
    exposed: frozenset[SoakFault]
    broken: Mapping[Corruption, frozenset[SoakFault]]


Session = tuple[Turn, ...]


def whole_traffic() -> SoakTraffic:
    banned = ((character_id("7"), "7"),)
    traffic = soak_traffic(seed=11, dialect=SoakDialect.LLAMACPP, banned=banned, honours_seeds=True)
    # The fake server has no grammars, and whoever leaves shows little.
    return traffic.without([SoakKind.GRAMMAR, SoakKind.LEAVING, SoakKind.LATE])


def pool_of(slots: int) -> list[Session]:
    traffic = whole_traffic()
    nonces = {nonce_for(traffic.seed, slot) for slot in range(slots + 1)}
    return [tuple(turns_of(traffic, slot, nonces)) for slot in range(slots)]


def turns_of(traffic: SoakTraffic, slot: int, nonces: set[str]) -> Iterator[Turn]:
    request: SoakRequest | None = traffic.opening(slot)
    other = traffic.opening(slot + 1).body
    while request is not None:
        clean = answered(request, "", other)
        held = HeldAgainst(nonces=nonces)
        seen = observe(request, clean, held)
        assert not any(each.is_faulty for each in seen), seen
        yield Turn(
            kind=request.kind,
            tokens=clean.tokens or 1,
            exposed=frozenset(each.fault for each in seen) | {SoakFault.OTHER_TEXT},
            broken={kind: frozenset(shown(request, kind, other, held)) for kind in Corruption},
        )
        request = traffic.following(request, clean)


def shown(request: SoakRequest, kind: Corruption, other: str, held: HeldAgainst) -> list[SoakFault]:
    return [each.fault for each in observe(request, answered(request, kind, other), held) if each.is_faulty]


def answered(request: SoakRequest, corruption: str, other: str) -> SoakAnswer:
    around = Around(streams=1, before=0, joined=1, other=other)
    data = simulated_answer(Truth(k=4, corruption=corruption), json.loads(request.body), around)
    told = json.loads(json.dumps(data))
    return SoakAnswer(
        index=request.index,
        exposure=EXPOSURE,
        choices=tuple(choice_of(choice) for choice in told["choices"]),
        tokens=told["usage"]["completion_tokens"],
    )


def choice_of(choice: Mapping[str, Json]) -> AnswerChoice:
    message = json.loads(json.dumps(choice["message"]))
    reason = choice["finish_reason"]
    return AnswerChoice(
        text=message["content"] or "",
        finish_reason=reason if isinstance(reason, str) else None,
        thoughts=message.get("reasoning_content", ""),
        calls=tuple(ToolCall(**call["function"]) for call in message.get("tool_calls", ())),
    )


# A soak on virtual time


class Sent(NamedTuple):
    """One request on its way."""

    slot: int
    turn: Turn
    launch: int
    streams: int
    before: int
    ended_s: Seconds


def soak(pool: Sequence[Session], draws: random.Random) -> Iterator[Sent]:
    """Requests with what was going on, launch after launch; each slot is fresh."""
    now, slot = 0.0, 0
    for launch in range(1, LAUNCHES_MAX + 1):
        before = 0
        for streams, requests in LAUNCH:
            free = [now] * streams
            end = before + requests
            while before < end:
                sent_s = heapq.heappop(free)
                for turn in pool[int(draws.random() * len(pool))]:
                    took_s = FIRST_S + TOKEN_S * turn.tokens
                    yield Sent(slot, turn, launch, streams, before, sent_s + took_s)
                    before, sent_s = before + 1, sent_s + took_s
                heapq.heappush(free, sent_s)
                slot += 1
            now = max(free)


class Count:
    """A tally of sessions that grows; all answers of a session come one after the other."""

    def __init__(self) -> None:
        self._slot = -1
        self._faults, self._answers = 0, 0
        self._exposed, self._faulty, self._share = 0, 0, 0.0

    def add(self, slot: int, *, is_faulty: bool) -> None:
        if slot != self._slot:
            self._close()
            self._slot = slot
        self._answers += 1
        self._faults += is_faulty

    def _close(self) -> None:
        if self._answers:
            self._exposed += 1
            self._faulty += self._faults > 0
            self._share += self._faults / self._answers
        self._faults = self._answers = 0

    def tally(self) -> Tally:
        """With the session that is still under way."""
        self._close()
        self._slot = -1
        return Tally(faulty=self._faulty, exposed=self._exposed, faulty_once=int(self._share + 1e-9))


@dataclass(slots=True)
class Found:
    """In how many soaks that came so far it was found."""

    soaks: int = 0
    found: int = 0


def detection(
    case: Case, share: float, pool: Sequence[Session], soaks: int
) -> tuple[dict[int, Found], Seconds]:
    """By number of exposed requests; and when it is first seen, at the median."""
    counts = {exposed: Found() for exposed in EXPOSED}
    times: list[Seconds] = []
    for number in range(soaks):
        arm, open_slots, last, first_s = Count(), 0, -1, None
        targets = list(EXPOSED)
        draws = random.Random(f"{case.name} {share} {number}")
        for sent in soak(pool, draws):
            breaks = case.fault in sent.turn.broken[case.corruption]
            if case.fault not in sent.turn.exposed and not breaks:
                continue
            is_open = breaks and case.meets(sent)
            is_faulty = is_open and draws.random() < share
            arm.add(sent.slot, is_faulty=is_faulty)
            first_s = sent.ended_s if is_faulty and first_s is None else first_s
            open_slots += is_open and sent.slot != last
            last = sent.slot if is_open else last
            if open_slots >= targets[0]:
                tally = arm.tally()
                # The control answered the same requests, and none of them wrong.
                result = judge_tallies(case.fault, tally, replace(tally, faulty=0, faulty_once=0))
                counts[targets[0]].soaks += 1
                counts[targets[0]].found += result is SoakResult.FOUND
                targets.pop(0)
            if not targets:
                break
        if first_s is not None:
            times.append(first_s)
    return counts, median(times) if times else float("nan")


def clean_alarms(pool: Sequence[Session], soaks: int, requests: int) -> int:
    """Soaks with an alarm although both arms are the same server with the same small model."""
    alarms = 0
    for number in range(soaks):
        draws = random.Random(f"clean {number}")
        arm, control = (clean_side(pool, draws, requests) for _ in range(2))
        results = {judge_tallies(fault, arm[fault], control[fault]) for fault in SoakFault}
        alarms += SoakResult.FOUND in results
    return alarms


def clean_side(pool: Sequence[Session], draws: random.Random, requests: int) -> dict[SoakFault, Tally]:
    counts = {fault: Count() for fault in SoakFault}
    for sent in islice(soak(pool, draws), requests):
        for fault in sent.turn.exposed:
            own = OWN_FAULTS.get(fault, 0.0)
            counts[fault].add(sent.slot, is_faulty=own > 0 and draws.random() < own)
    return {fault: count.tally() for fault, count in counts.items()}


def main() -> int:
    options = trial_options(str(__doc__), soaks=200, clean=2000, pool=400)
    pool = pool_of(options.pool)
    print(
        f"found, of {options.soaks} soaks, once so many requests were exposed: {' / '.join(map(str, EXPOSED))}"
    )
    print(
        "| fault | " + " | ".join(f"{share:.1%} of requests" for share in SHARES) + " | first seen at 2 % |"
    )
    print("|---|" + "---|" * (len(SHARES) + 1))
    weak = []
    for case in CASES:
        cells, first = [], ""
        for share in SHARES:
            counts, seconds = detection(case, share, pool, options.soaks)
            shares = [each.found / each.soaks if each.soaks else float("nan") for each in counts.values()]
            cells.append(" / ".join(f"{each:.0%}" for each in shares))
            if share == 0.02:
                first = f"{seconds:.0f} s"
                if case.is_promise and not shares[1] >= POWER_MIN:
                    weak.append(case.name)
        print(f"| {case.name} | " + " | ".join(cells) + f" | {first} |", flush=True)
    alarms = clean_alarms(pool, options.clean, 600)
    print(f"clean soaks of 600 requests with an alarm: {alarms} of {options.clean}")
    if weak:
        print(f"found in less than {POWER_MIN:.0%} at 2 % of {EXPOSED[1]}: {', '.join(weak)}")
    return 1 if weak or alarms > FALSE_ALARMS_MAX else 0


if __name__ == "__main__":
    raise SystemExit(main())
