"""Pool studies: only where engine, model, prompts and machine agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from speclift.core.errors import StudyError
from speclift.core.records import Record
from speclift.store.study import Study

# Launch and round numbers of the next study start above those of the one before.
LAUNCH_STRIDE = 1_000_000


def merged_records(studies: Sequence[Study]) -> tuple[Record, ...]:
    """All records. Studies that share an arm extend each other by rounds; where one has the baseline and the
    other the arms, their rounds pair up as they are numbered."""
    first = studies[0]
    for other in studies[1:]:
        _require_like(first, other)
    records: list[Record] = []
    arms_seen: set[str] = set()
    rounds_seen = 0
    for index, study in enumerate(studies):
        own = study.records()
        arms = {record.place.arm for record in own}
        shift = rounds_seen if arms & arms_seen else 0
        for record in own:
            place = replace(
                record.place,
                launch=record.place.launch + index * LAUNCH_STRIDE,
                round=record.place.round + shift,
            )
            records.append(replace(record, place=place))
        arms_seen |= arms
        rounds_seen = max((record.place.round + 1 for record in records), default=0)
    return tuple(records)


def _require_like(first: Study, other: Study) -> None:
    ours, theirs = first.provenance.environment(), other.provenance.environment()
    unlike = [f"{key}: {ours[key]} / {theirs[key]}" for key in ours if ours[key] != theirs[key]]
    if unlike:
        raise StudyError(
            f"{first.path} and {other.path} were measured in unlike environments: {'; '.join(unlike)}",
            hint="a difference between them would not be speculation's; measure both in one study",
        )
