"""Is this a k-by-batch-size schedule that vLLM takes? Pure."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

SCHEDULE = "num_speculative_tokens_per_batch_size"


def schedule_fault(schedule: object) -> str | None:
    """What is wrong with a k-by-batch-size schedule; None where vLLM takes it."""
    if isinstance(schedule, Mapping):
        return "a list of [first, last, k], not an object (the schema changed before its first release)"
    if not isinstance(schedule, (list, tuple)) or not schedule:
        return f"a list of [first, last, k] that is not empty, saw {schedule!r}"
    ranges: list[tuple[int, int, int]] = []
    for entry in schedule:
        if not isinstance(entry, (list, tuple)) or len(entry) != 3:
            return f"each entry is [first, last, k], saw {entry!r}"
        if not all(isinstance(number, int) and not isinstance(number, bool) for number in entry):
            return f"each entry holds whole numbers, saw {entry!r}"
        first, last, k = entry
        if first < 1 or last < first or k < 0:
            return f"1 <= first <= last and k >= 0, saw {entry!r}"
        ranges.append((first, last, k))
    ranges.sort()  # as vLLM does
    if ranges[0][0] != 1:
        return f"the first range starts at batch size 1, saw {ranges[0][0]}"
    for before, after in pairwise(ranges):
        if after[0] <= before[1]:
            return f"ranges overlap: {list(before)} and {list(after)}"
    return None
