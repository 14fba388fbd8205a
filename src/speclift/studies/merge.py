"""Pool studies: only where engine, settings, model, prompts and machine agree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import combinations

from speclift.core.errors import StudyError
from speclift.core.records import Record
from speclift.studies.study import Study

# Launch and round numbers of the next study start above those of the one before.
LAUNCH_STRIDE = 1_000_000
VERSION = "engine_version"


def _require_whole(study: Study, records: Sequence[Record]) -> None:
    """An answer that began has an end; only an edited or damaged record has the one without the other."""
    for record in records:
        if record.is_ok and record.first_token_s is not None and record.last_token_s is None:
            raise StudyError(
                f"cannot read the study at {study.path}: a record of {record.place.arm} has a first token and no last",
                hint="if it was edited or damaged, restore it from a copy or start a new study",
            )


def merged_records(studies: Sequence[Study]) -> tuple[Record, ...]:
    """All records. Studies that share an arm extend each other by rounds; where one has the baseline and the
    other the arms, their rounds pair up as they are numbered."""
    for first, other in combinations(studies, 2):
        _require_like(first, other)
    records: list[Record] = []
    rounds_seen: dict[str, int] = defaultdict(int)
    for index, study in enumerate(studies):
        own = study.records()
        _require_whole(study, own)
        shift = max((rounds_seen[record.place.arm] for record in own), default=0)
        for record in own:
            place = replace(
                record.place,
                launch=record.place.launch + index * LAUNCH_STRIDE,
                round=record.place.round + shift,
            )
            records.append(replace(record, place=place))
        for record in own:
            arm, rounds = record.place.arm, record.place.round + shift + 1
            rounds_seen[arm] = max(rounds_seen[arm], rounds)
    return tuple(records)


def _require_like(first: Study, other: Study) -> None:
    if first.path.resolve() == other.path.resolve():
        raise StudyError(f"{other.path} is given twice", hint="give each study once")
    unlike = list(_differences(first, other))
    if unlike:
        raise StudyError(
            f"{first.path} and {other.path} were measured in different environments: {'; '.join(unlike)}",
            hint="measure both in one study",
        )


def is_upgrade(first: Study, other: Study) -> bool:
    """Whether the same was measured on two versions of the engine, and nothing else differs."""
    ours, theirs = first.provenance, other.provenance
    is_other_version = ours.engine_version != theirs.engine_version
    return is_other_version and not list(_differences(first, other, skipped={VERSION}))


def _differences(first: Study, other: Study, *, skipped: Collection[str] = ()) -> Iterator[str]:
    ours, theirs = first.provenance.environment(), other.provenance.environment()
    yield from _unlike_fields(ours, theirs, skipped=skipped)
    our_plan, their_plan = first.plan, other.plan
    # The model is known by its hash; slots follow the heaviest load, so other loads may have others.
    free = {"model"} if set(our_plan.loads) & set(their_plan.loads) else {"model", "slots"}
    yield from _unlike_fields(asdict(first.engine.settings), asdict(other.engine.settings), skipped=free)
    yield from _unlike_fields(
        {f"arm {arm.name}": arm.speculation for arm in our_plan.arms},
        {f"arm {arm.name}": arm.speculation for arm in their_plan.arms},
    )
    requests = {request.id: asdict(request) for request in our_plan.requests}
    for request in their_plan.requests:
        if request.id in requests:
            found = list(_unlike_fields(requests[request.id], asdict(request)))
            if found:
                yield f"request {request.id}: {'; '.join(found)}"
                return  # the others differ alike


def _unlike_fields(
    ours: Mapping[str, object], theirs: Mapping[str, object], *, skipped: Collection[str] = ()
) -> Iterator[str]:
    for key, value in ours.items():
        if key in theirs and value != theirs[key] and key not in skipped:
            yield f"{key}: {value} / {theirs[key]}"
