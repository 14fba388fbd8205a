"""Findings from what the answers themselves cannot mean: numbers that no server can honestly report. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from speclift.core.records import NO_TEXT_FOR_IT, Record
from speclift.core.results import Finding, Level, fail, warn

# Answers whose tokens were not sent as text: a few may be a model's whim (special tokens), more are the server's habit.
UNSEEN_SHARE = 0.05
# Different things said that a message shows.
SHOWN_MAX = 3
# Fewer steps apart are the ends of answers.
STEPS_SHARE = 0.05


def check_answers(records: Sequence[Record]) -> Iterator[Finding]:
    """FAIL is of no arm alone: a study in which a server reports what cannot be supports no verdict. What is said in a
    warm-up is said all the same, though nothing of it is used."""
    by_arm: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_arm[record.place.arm].append(record)
    for arm, members in by_arm.items():
        yield from _impossible(arm, members)
        yield from _unseen(arm, members)
        yield from _steps_disagree(arm, members)


def _impossible(arm: str, members: Sequence[Record]) -> Iterator[Finding]:
    concerned = [r for r in members if any(each.rule != NO_TEXT_FOR_IT for each in r.refused)]
    if concerned:
        said = Counter(each.rule for r in concerned for each in r.refused if each.rule != NO_TEXT_FOR_IT)
        shown = [
            f"{_example(concerned, rule)} ({times} times)" for rule, times in said.most_common(SHOWN_MAX)
        ]
        yield fail(
            "impossible-counts",
            f"{arm}: {len(concerned)} of {len(members)} answers report impossible numbers: "
            f"{'; '.join(shown)}; they are not used",
            then="the server or a gateway counts wrongly, so there is no verdict: fix it, or measure the engine "
            "directly",
        )


def _unseen(arm: str, members: Sequence[Record]) -> Iterator[Finding]:
    concerned = [r for r in members if any(each.rule == NO_TEXT_FOR_IT for each in r.refused)]
    if concerned:
        is_habit = len(concerned) > UNSEEN_SHARE * len(members)
        yield Finding(
            check="unseen-tokens",
            level=Level.FAIL if is_habit else Level.WARN,
            message=f"{arm}: {len(concerned)} of {len(members)} answers count more tokens than their text has bytes "
            f"({_example(concerned, NO_TEXT_FOR_IT)}): hidden tokens cannot be timed, so these counts are not used",
            next_step="let the server send all tokens it counts, including reasoning, or turn hidden reasoning off",
            arm=None if is_habit else arm,
        )


def _steps_disagree(arm: str, members: Sequence[Record]) -> Iterator[Finding]:
    """Steps as the chunks tell them, against tokens less accepted drafts."""
    both = [r for r in members if r.steps and r.decode_steps]
    in_chunks = sum(len(r.steps or ()) for r in both)
    in_drafts = sum(r.decode_steps or 0 for r in both)
    if in_chunks > (1 + STEPS_SHARE) * in_drafts:
        yield warn(
            "steps-disagree",
            f"{arm}: by their chunks {len(both)} answers took {in_chunks} decode steps, by their draft counts "
            f"{in_drafts}: the server sends what a step gives token by token, so steps are counted by the drafts",
            then="measure without whatever splits the chunks: then each count is held against the other",
            arm=arm,
        )


def _example(records: Sequence[Record], rule: str) -> str:
    return next(each.said for record in records for each in record.refused if each.rule == rule)
