"""vLLM's facts (facts/*.toml) as tables, and what follows from several of their rows. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from speclift.core.engine_facts import engine_facts
from speclift.linter.rows import Release, tables_of

_FLAGS = tables_of(engine_facts("vllm/facts/flags.toml"), engine="vLLM", where="vllm/facts/flags.toml")
FLAGS, QUANTISATIONS, LOAD_FORMATS_GONE, VARIABLES = (
    _FLAGS[name] for name in ("flags", "quantisations", "load_formats", "variables")
)
_KEYS = tables_of(engine_facts("vllm/facts/keys.toml"), engine="vLLM", where="vllm/facts/keys.toml")
KEYS, METHODS = _KEYS["keys"], _KEYS["methods"]

NEWEST = FLAGS.newest
CONFIG_FLAG = FLAGS.config_flag
# Of the HTTP server, so that LLM(...) does not take them (class EngineArgs, 0.32).
FRONT_END = frozenset(f"--{name}" for name in FLAGS.groups["front-end"].split())
# Where it listens and who may ask: a launch of ours has its own.
LISTENING = frozenset(f"--{name}" for name in FLAGS.groups["listening"].split())

CONFIG = KEYS.source
K, SCHEDULE = "num_speculative_tokens", "num_speculative_tokens_per_batch_size"
K_MAX = int(KEYS[K].high or 0)
# Before it speculation was a set of flags: --speculative-model and its kin.
CONFIG_SINCE = FLAGS[CONFIG_FLAG].since
# 0.8.2 had both; 0.8.3 dropped the flags.
OLD_FLAGS_GONE: Release = (0, 8, 3)
SCHEDULE_SINCE, SYNTHETIC_SINCE = KEYS[SCHEDULE].since, KEYS["synthetic_acceptance_rates"].since
DRAFT_MODEL_BACK = METHODS["draft_model"].since
V0_GONE: Release = (0, 10, 0)  # the V0 engine's speculative decoding went with it
CPU_SPECULATION_SINCE: Release = (0, 20, 0)  # the CPU worker asserted speculation off up to 0.19


def same_bits(quantisation: str) -> str | None:
    """The name under which the newest vLLM has what a gone quantisation did; None where nothing does the same."""
    gone = QUANTISATIONS.find(quantisation)
    name = "" if gone is None else (gone.replacement or "").partition(";")[0]
    row = QUANTISATIONS.find(name)
    return name if row is not None and row.gone is None else None


def closest(quantisation: str) -> str:
    row = QUANTISATIONS.find(quantisation)
    return (row and row.replacement) or "a checkpoint quantised for vLLM, whose config says how"


def schedule_fault(schedule: object) -> str | None:
    """What is wrong with a k-by-batch-size schedule; None where vLLM takes it."""
    if isinstance(schedule, Mapping):
        return "a list of [first, last, k], not an object (the schema changed before its first release)"
    if not isinstance(schedule, (list, tuple)) or not schedule:
        return f"a list of [first, last, k] that is not empty, saw {schedule!r}"
    wrong = next((said for said in map(_range_fault, schedule) if said is not None), None)
    if wrong is not None:
        return wrong
    ranges = sorted(tuple(entry) for entry in schedule)  # as vLLM does
    if ranges[0][0] != 1:
        return f"the first range starts at batch size 1, saw {ranges[0][0]}"
    for before, after in pairwise(ranges):
        if after[0] <= before[1]:
            return f"ranges overlap: {list(before)} and {list(after)}"
    return None


def _range_fault(entry: object) -> str | None:
    if not isinstance(entry, (list, tuple)) or len(entry) != 3:
        return f"each entry is [first, last, k], saw {entry!r}"
    if not all(isinstance(number, int) and not isinstance(number, bool) for number in entry):
        return f"each entry holds whole numbers, saw {entry!r}"
    first, last, k = entry
    if first < 1 or last < first or k < 0:
        return f"1 <= first <= last and k >= 0, saw {entry!r}"
    return None
