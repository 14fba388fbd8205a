"""What an arm does by temperature, whether the study swept it or each prompt brought its own."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from speclift.core.records import Phase, Record
from speclift.core.results import TEMPERATURE_DASH, AtTemperature, Comparison, Evidence, Part
from speclift.core.speculation import draft_limit
from speclift.statistics.balance import Stratum
from speclift.statistics.cells import acceptance, accepted_length

# More temperatures than these are cut into buckets; 0.5 and 0.7 are S4's limits.
TEMPERATURES_MAX = 5
TEMPERATURE_BUCKETS = (0.0, 0.5, 0.7, 1.0)


def at_temperatures(records: Sequence[Record], arms: Iterable[Evidence]) -> tuple[AtTemperature, ...]:
    """Speedup and acceptance of every arm side by side, the lowest temperature first; empty where there is but one."""
    return tuple(row for whole in arms for row in _at_temperatures(records, whole))


def _at_temperatures(records: Iterable[Record], whole: Evidence) -> Iterator[AtTemperature]:
    by_setting: dict[Stratum, list[Record]] = defaultdict(list)
    for record in records:
        place = record.place
        if place.arm == whole.arm.name and place.phase is Phase.MEASURED and record.is_ok:
            by_setting[Stratum(place.segment, place.load, place.temperature)].append(record)
    groups = list(temperature_groups(list(by_setting)))
    if len(groups) < 2:
        return
    parts = {(part.part, part.label): part for part in whole.parts}
    is_by_segment = repeat_segments(list(by_setting))

    def compared(label: str, settings: set[Stratum]) -> Comparison | None:
        # A cut that only repeats the segments is theirs.
        return next(
            (parts.get((Part.SEGMENT, setting.segment)) for setting in settings if is_by_segment),
            parts.get((Part.TEMPERATURE, label)),
        )

    def row(label: str, settings: set[Stratum]) -> AtTemperature:
        members = [record for setting in settings for record in by_setting[setting]]
        comparison = compared(label, settings)
        return AtTemperature(
            arm=whole.arm.name,
            temperature=label,
            speedup=None if comparison is None else comparison.speedup.interval,
            acceptance_rate=acceptance(members),
            accepted_length=accepted_length(members, limit=draft_limit(whole.arm.speculation)),
            requests=len(members),
            prompts=len({record.place.request_id for record in members}),
        )

    yield from (row(label, settings) for label, settings in groups)


def temperature_groups(present: Sequence[Stratum]) -> Iterator[tuple[str, set[Stratum]]]:
    """One group per temperature; where there are many, per bucket, named by the lowest and highest in it."""
    known = {setting.temperature for setting in present if setting.temperature is not None}
    is_bucketed = len(known) > TEMPERATURES_MAX
    groups: dict[float, list[Stratum]] = defaultdict(list)
    for setting in present:
        if setting.temperature is not None:
            groups[_bucket(setting.temperature) if is_bucketed else setting.temperature].append(setting)
    for _, members in sorted(groups.items()):
        inside = [setting.temperature for setting in members if setting.temperature is not None]
        ends = dict.fromkeys(_temperature_label(edge(inside)) for edge in (min, max))
        yield TEMPERATURE_DASH.join(ends), set(members)


def repeat_segments(present: Sequence[Stratum]) -> bool:
    """Whether every segment has its own temperature, so that a cut by one is a cut by the other."""
    both = {(setting.segment, setting.temperature) for setting in present}
    return len(both) == len({segment for segment, _ in both}) == len({temperature for _, temperature in both})


def temperature_bucket(temperature: float | None) -> str:
    """Of one request, in a word: `0`, `0-0.5`, `0.5-0.7`, `0.7-1`, `over 1`; `unsaid` where the server's own holds."""
    if temperature is None or math.isnan(temperature):
        return "unsaid"
    edge = _bucket(temperature)
    if edge <= 0:
        return "0"
    below = max(lower for lower in TEMPERATURE_BUCKETS if lower < edge)
    return f"over {below:g}" if edge == math.inf else f"{below:g}-{edge:g}"


def _bucket(temperature: float) -> float:
    return next((edge for edge in TEMPERATURE_BUCKETS if temperature <= edge), math.inf)


def _temperature_label(temperature: float) -> str:
    """Short where that is exact: a ceiling is read back from it."""
    short = f"{temperature:g}"
    return short if float(short) == temperature else repr(temperature)
