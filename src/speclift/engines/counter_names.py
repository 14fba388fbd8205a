"""Which counters does the engine of a study export, under which names in its version? By the engines' own tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from speclift.core.counter_names import CounterNames
from speclift.core.engine_totals import PER_POSITION, PREFIX_HITS, PREFIX_QUERIES
from speclift.core.errors import UsageError
from speclift.core.records import Launch
from speclift.engines.kind import engine_kind
from speclift.engines.live_metrics import (
    ACCEPTED_LIVE,
    DECODE_S,
    DRAFTED_LIVE,
    DRAFTS,
    KV_USED_LIVE,
    PREFIXES,
    REQUESTS,
    RUNNING_LIVE,
    TOKENS,
    TPOT,
    TTFT,
    WAITING_LIVE,
    Names,
)
from speclift.engines.named import engine_names

_MODEL = re.compile(r'[,{]model_name="((?:[^"\\]|\\.)*)"')
SUFFIXES = ("_total", "_bucket", "_count")
# Their series carry the name of the model.
WITH_MODEL = ("vllm:", "sglang:")


def counter_names(kind: str, version: str, launches: Iterable[Launch]) -> CounterNames | None:
    """By what the study's own servers exported, whoever started them, else by its engine; None where nobody is known to
    count drafts."""
    prefix = _prefix_of(kind, launches)
    if prefix is None:
        return None
    is_exported = _exported(prefix, version)

    def name(names: Names) -> str | None:
        return next((one for one in names if one.startswith(prefix) and is_exported(one)), None)

    needed = {
        "tokens": name(TOKENS),
        "drafts": name(DRAFTS),
        "drafted": name(DRAFTED_LIVE),
        "accepted": name(ACCEPTED_LIVE),
        "accepted_at": name(PER_POSITION),
        "running": name(RUNNING_LIVE),
        "waiting": name(WAITING_LIVE),
    }
    found = {field: one for field, one in needed.items() if one is not None}
    if len(found) < len(needed):
        return None
    return CounterNames(
        engine=PREFIXES[prefix],
        **found,
        requests=name(REQUESTS),
        kv_used=name(KV_USED_LIVE),
        prefix_queries=name(PREFIX_QUERIES),
        prefix_hits=name(PREFIX_HITS),
        ttft=name(TTFT),
        tpot=name(TPOT),
        decode_s=name(DECODE_S),
        has_model=prefix in WITH_MODEL,
    )


def labelled_model(launches: Iterable[Launch]) -> str:
    """The model that the study's servers named in their counters; empty where none, or not all alike, did."""
    found = {
        match[1] for launch in launches for key in launch.counters.values for match in _MODEL.finditer(key)
    }
    return found.pop().replace('\\"', '"').replace("\\\\", "\\") if len(found) == 1 else ""


def _prefix_of(kind: str, launches: Iterable[Launch]) -> str | None:
    """As the counters begin that servers of the study showed."""
    exported = [key for launch in launches for key in launch.counters.values]
    for prefix, engine in PREFIXES.items():
        if engine == kind or any(key.startswith(prefix) for key in exported):
            return prefix
    return None


def _exported(prefix: str, version: str) -> Callable[[str], bool]:
    """By the engine's own table; a version that is not in it is taken to be the newest."""
    engine = PREFIXES[prefix]
    dialect = engine_kind(engine).dialect if engine in engine_names() else None
    metrics = None if dialect is None else dialect.metrics
    if dialect is None or metrics is None:
        return lambda _: True
    table, newest = metrics.table, dialect.newest
    tokens = next(name for name in TOKENS if name.startswith(prefix))
    try:
        release = dialect.parse_release(version)
    except UsageError:
        release = newest
    if not table.holds(_bare(tokens, prefix), release):
        release = newest
    return lambda name: table.holds(_bare(name, prefix), release)


def _bare(name: str, prefix: str) -> str:
    bare = name.removeprefix(prefix)
    return next((bare.removesuffix(suffix) for suffix in SUFFIXES if bare.endswith(suffix)), bare)
