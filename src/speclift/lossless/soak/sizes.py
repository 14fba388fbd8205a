"""How long the prompts and answers of a soak are: of full length where an engine has the time for it, shorter where too
few of them would fit into the soak to exclude anything. Pure.

Work is counted in tokens of answers, and a prompt by what it takes to read it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import fmean

from speclift.core.json_reading import as_object
from speclift.core.units import Seconds, Tokens
from speclift.lossless.soak.rates import exposed_needed
from speclift.lossless.soak.traffic import SoakTraffic
from speclift.lossless.soak.values import SoakAnswer, SoakRequest

# Of full length. Below a quarter, answers would end within the first drafts.
SCALES = (1.0, 0.7, 0.5, 0.35, 0.25)
# A token has about four characters, and is read in a quarter of the time in which one is written.
READING = 1 / 16
# Of a body, what a model reads; a schema of the answer is none of it.
PROMPT_KEYS = ("messages", "prompt", "tools")
# What JSON, calls and grammars of the soak's own take; they end by themselves.
SETTLED_TOKENS: Tokens = 48
# More than are needed: some callers leave, some answers are asked for twice.
WANTED_TIMES = 1.3
# Openings whose work is taken for that of all.
LOOKED_AT = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What an engine got done with as many requests at once as the soak sends."""

    work: float
    seconds: Seconds

    @property
    def work_per_s(self) -> float:
        return self.work / self.seconds if self.seconds > 0 else float("inf")


def pace_of(asked: Iterable[tuple[SoakRequest, SoakAnswer]], seconds: Seconds) -> Pace:
    """Of requests that were sent together; refusals are no work."""
    work = (_work(request, answer.tokens or 0) for request, answer in asked if answer.is_whole)
    return Pace(work=sum(work), seconds=seconds)


def slot_s(traffic: SoakTraffic, pace: Pace) -> Seconds:
    """What one request takes on the average, a session with all its turns, while as many others run as may."""
    return expected_work(traffic) / pace.work_per_s if pace.work else 0.0


def scale_for(traffic: SoakTraffic, pace: Pace, *, seconds: Seconds) -> float:
    """The largest at which enough requests for a result are answered in so many seconds; the smallest where at none."""
    if not pace.work:
        return 1.0  # nothing was answered, so that nothing is known
    wanted = WANTED_TIMES * exposed_needed()
    fits = (scale for scale in SCALES if wanted * slot_s(replace(traffic, scale=scale), pace) <= seconds)
    return next(fits, SCALES[-1])


def expected_work(traffic: SoakTraffic) -> float:
    """Of one slot, with all the turns of a session."""
    slots = range(LOOKED_AT)
    openings = ((traffic.opening(slot), traffic.turns(slot)) for slot in slots)
    return fmean(
        _work(request, _expected_tokens(request)) * (turns if request.session else 1)
        for request, turns in openings
    )


def _expected_tokens(request: SoakRequest) -> float:
    promise, most = request.promise, request.promise.tokens_max or 0
    if promise.schema or promise.pattern or promise.tools:
        most = min(most, SETTLED_TOKENS)
    if request.leaves_after_chunks is not None:
        most = min(most, request.leaves_after_chunks)
    return float(most * promise.choices)


def _work(request: SoakRequest, tokens: float) -> float:
    body = as_object(json.loads(request.body))
    read = [body[name] for name in PROMPT_KEYS if name in body]
    return tokens + READING * len(json.dumps(read, ensure_ascii=False))
