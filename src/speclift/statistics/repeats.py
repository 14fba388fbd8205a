"""Prompts sent more than once in a cell: what that means for each arm, and what of it is not compared.

Every arm sends the same repeats in the same order, so what a server keeps of a prompt helps all alike. A drafter that
remembers earlier answers is the exception: a repeat finds its own answer there, and the baseline has no such memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from speclift.core.arm import Arm
from speclift.core.engine_totals import PREFIX_HITS, engine_total
from speclift.core.records import Launch, Phase, Record
from speclift.core.results import Finding, inform, warn
from speclift.core.speculation import remembers_answers

# Prefix caching as vLLM and SGLang name the setting, and what it says where the cache is off.
_CACHE_OFF = {"enable_prefix_caching": ("false", "0"), "disable_radix_cache": ("true", "1")}


def check_repeats(
    records: Sequence[Record],
    arms: Sequence[Arm],
    *,
    launches: Sequence[Launch] = (),
    reuses_prompts: bool | None = None,
) -> Iterator[Finding]:
    """`reuses_prompts` is what is known of the engine before its servers say anything."""
    measured = [record for record in records if record.place.phase is Phase.MEASURED]
    times = max((record.place.repeat for record in measured), default=0) + 1
    if times == 1:
        return
    prompts = len({record.place.request_id for record in measured})
    sent = len({(record.place.request_id, record.place.repeat) for record in measured})
    yield inform(
        "repeated-prompts",
        f"{prompts} distinct prompts were sent as {sent} requests per cell and launch, each up to {times} "
        "times with its own seed. Every arm sent the same repeats in the same order. "
        f"{_prefix_cache(launches, reuses_prompts)}. Repeats help to measure the tail; they do not count as more "
        "prompts",
        then="more distinct prompts (--prompts) narrow the confidence interval",
    )
    for arm in arms:
        if not remembers_answers(arm.speculation):
            continue
        echoes = sum(is_echo(record, frozenset({arm.name})) for record in measured)
        if echoes:
            yield warn(
                "repeats-remembered",
                f"{arm.name} drafts from its earlier answers, so it already knows the answer to a repeated "
                f"prompt: its {echoes} repeats are not compared",
                then=f"to measure the tail of {sent} requests, give {sent} distinct prompts (--prompts)",
                arm=arm.name,
            )


def _prefix_cache(launches: Sequence[Launch], reuses_prompts: bool | None) -> str:
    """Whether a repeat could skip its prompt: by what was counted, else by what the servers say they run with, else by
    what is known of the engine."""
    said = {
        launch.settings[name].lower() not in off
        for launch in launches
        for name, off in _CACHE_OFF.items()
        if name in launch.settings
    }
    if any((engine_total(launch.counters, PREFIX_HITS) or 0) > 0 for launch in launches) or True in said:
        return "Prefix caching was on: a repeat's TTFT may be shorter than that of a new prompt"
    if False in said or reuses_prompts is False:
        return "Prefix caching was off"
    return (
        "Whether prefix caching was on is unknown: a repeat's TTFT may be shorter than that of a new prompt"
    )


def without_echoes(records: Sequence[Record], arms: Sequence[Arm]) -> Sequence[Record]:
    """The records that may be compared."""
    names = frozenset(arm.name for arm in arms if remembers_answers(arm.speculation))
    return [record for record in records if not is_echo(record, names)]


def is_echo(record: Record, remembering: frozenset[str]) -> bool:
    """A repeat on an arm that may draft it from its own first answer."""
    return record.place.repeat > 0 and record.place.arm in remembering
