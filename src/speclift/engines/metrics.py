"""An engine's metrics page: its totals, what it says of this moment, and the names a study's engine exports. Pure.

Which names mean what is data: the metrics.toml of each engine's facts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from io import StringIO

import msgspec

from speclift.core.engine_facts import CounterNames, MetricsFile, Names, metric_names, metrics_of_engines
from speclift.core.engine_totals import TOTAL_MAX, USED
from speclift.core.errors import EngineError, UsageError
from speclift.core.live import Buckets, LiveTotals, MetricsReading
from speclift.core.quantities import printable
from speclift.core.records import Counters, Launch
from speclift.core.units import Seconds
from speclift.engines.named import known_dialects

# vLLM's page has some 2,000 samples for each engine core (0.32); a page of far more is no engine's.
SAMPLES_MAX = 100_000
_SAMPLE = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]*)(\{[^}]*\})?\s+([^\s]+)")

# A label begins where no word goes on: looked for at every letter, a long word would take its square in time.
_LABEL = re.compile(r'(?<!\w)(\w+)="([^"]*)"')


def labels_of(name: str) -> dict[str, str]:
    """The labels that a sample's name carries."""
    return dict(_LABEL.findall(name))


def parse_counters(text: str) -> Counters:
    """Every finite sample by name, labels kept as written; comments and broken lines are skipped. EngineError for
    more than an engine has."""
    values: dict[str, float] = {}
    for line in StringIO(text):
        match = _SAMPLE.match(line)
        if match is None:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        # Of what is used, also what cannot be a total: whoever reads it refuses it by name.
        if math.isfinite(value) or match[1] in USED:
            values[match[1] + (match[2] or "")] = value
        if len(values) > SAMPLES_MAX:
            raise EngineError(
                f"the metrics page has more than {SAMPLES_MAX:,} samples, more than any engine has",
                hint="give the engine's own page with --baseline-metrics-url and --spec-metrics-url",
            )
    return Counters(values=values)


# What a page says of this moment


NAMES = metric_names()
STARTED: Names = ("process_start_time_seconds",)
# Each engine by how its metrics begin on its own page.
PREFIXES: Mapping[str, str] = {engine.prefix: engine.engine for engine in metrics_of_engines()}
# One engine's page has some dozens of these for each of its cores and models.
LIVE_SAMPLES_MAX = 20_000
POSITIONS_MAX = 256
SHOWN_CHARACTERS = 80
_POSITION = re.compile(r'(?:^|[,{])position="(\d{1,3})"', re.ASCII)
_LE = re.compile(r'(?:^|[,{])le="([^"]{1,24})"')
_MODEL = re.compile(r'(?:^|[,{])model_name="([^"]{1,200})"')


@dataclass(frozen=True, slots=True)
class _Samples:
    """Values by name, each with its labels."""

    by_name: Mapping[str, list[tuple[str, float]]]

    def first(self, names: Names) -> list[tuple[str, float]]:
        return next((self.by_name[name] for name in names if name in self.by_name), [])

    def total(self, names: Names) -> float | None:
        """Summed over engines and models behind one page; None where nobody counts it, or counts what cannot be."""
        values = [value for _, value in self.first(names)]
        possible = all(0 <= value <= TOTAL_MAX for value in values)  # not of NaN
        return sum(values) if values and possible else None

    def mean(self, names: Names) -> float | None:
        values = [value for _, value in self.first(names) if 0 <= value <= TOTAL_MAX]
        return sum(values) / len(values) if values else None

    def most(self, names: Names) -> float | None:
        values = [value for _, value in self.first(names) if 0 <= value <= TOTAL_MAX]
        return max(values, default=None)


def read_page(text: str, *, at_s: Seconds, wall_s: Seconds) -> MetricsReading:
    """EngineError where this is no page of an engine that we know."""
    samples = _samples(text)
    engine = _engine(samples, text)
    k = samples.most(NAMES.k)
    return MetricsReading(
        at_s=at_s,
        wall_s=wall_s,
        engine=engine,
        model=_model(samples),
        started_s=samples.most(STARTED),
        running=samples.total(NAMES.running),
        waiting=samples.total(NAMES.waiting),
        kv_used=_share(samples.most(NAMES.kv_used)),
        k=int(k) if k is not None and k <= POSITIONS_MAX else None,
        accepted_length=samples.mean(NAMES.accepted_length),
        totals=_totals(samples),
    )


def _totals(samples: _Samples) -> LiveTotals:
    return LiveTotals(
        tokens=samples.total(NAMES.tokens),
        requests=samples.total(NAMES.requests),
        drafts=samples.total(NAMES.drafts),
        drafted=samples.total(NAMES.drafted),
        accepted=samples.total(NAMES.accepted),
        accepted_at=_by_position(samples.first(NAMES.accepted_at)),
        steps=samples.total(NAMES.steps),
        prompt_tokens=samples.total(NAMES.prompt_tokens),
        prefix_queries=samples.total(NAMES.prefix_queries),
        prefix_hits=samples.total(NAMES.prefix_hits),
        decode_s=samples.total(NAMES.decode_s),
        ttft=_buckets(samples, NAMES.ttft),
        tpot=_buckets(samples, NAMES.tpot),
    )


@cache
def _wanted() -> re.Pattern[str]:
    """Only lines that are read: an engine's page has thousands of others, and there may be hundreds of servers. Each
    with the end of the line before it, which is looked for three times as fast as a line's beginning."""
    read = (
        *(getattr(NAMES, field) for field in NAMES.__struct_fields__),
        STARTED,
        _sums(NAMES.ttft),
        _sums(NAMES.tpot),
    )
    names = sorted({name for group in read for name in group}, key=len, reverse=True)
    return re.compile(rf"\n({'|'.join(map(re.escape, names))})(?:\{{(.{{0,2000}})\}})?[ \t]+(\S{{1,40}})")


def _samples(text: str) -> _Samples:
    by_name: dict[str, list[tuple[str, float]]] = {}
    for count, match in enumerate(_wanted().finditer(f"\n{text}")):
        if count >= LIVE_SAMPLES_MAX:
            raise EngineError(
                f"the metrics page has more than {LIVE_SAMPLES_MAX:,} samples of one kind of engine",
                hint="give the address of one server, not of what collects many",
            )
        try:
            value = float(match[3])
        except ValueError:
            value = math.nan
        by_name.setdefault(match[1], []).append((match[2] or "", value))
    return _Samples(by_name)


def _engine(samples: _Samples, text: str) -> str:
    for name in samples.by_name:
        for prefix, engine in PREFIXES.items():
            if name.startswith(prefix):
                return engine
    for prefix, engine in PREFIXES.items():
        if re.search(rf"^{re.escape(prefix)}", text, re.MULTILINE):
            raise EngineError(
                f"the page is {engine}'s, but counts no tokens",
                hint="is statistics logging off (--disable-log-stats)?",
            )
    looks_like = "HTML" if "<html" in text[:2000].lower() else "metrics of something else"
    seen = printable(text.strip().partition("\n")[0], limit=SHOWN_CHARACTERS)
    raise EngineError(
        f"no metrics of vLLM, llama.cpp, SGLang or TensorRT-LLM: {looks_like}, beginning {seen!r}"
        if text.strip()
        else "the metrics page is empty",
        hint="give the address whose /metrics shows them; llama-server needs --metrics, SGLang --enable-metrics",
    )


def _model(samples: _Samples) -> str | None:
    for labels, _ in samples.first(NAMES.tokens):
        match = _MODEL.search(labels)
        if match is not None:
            return match[1]
    return None


def _share(value: float | None) -> float | None:
    return value if value is not None and value <= 1 else None


def _by_position(found: list[tuple[str, float]]) -> tuple[float, ...]:
    """Empty where a position is missing or its count cannot be."""
    by_position: dict[int, float] = {}
    for labels, value in found:
        position = _POSITION.search(labels)
        if position is None or not 0 <= value <= TOTAL_MAX:
            return ()
        index = int(position[1])
        by_position[index] = by_position.get(index, 0.0) + value
    if sorted(by_position) != list(range(len(by_position))) or len(by_position) > POSITIONS_MAX:
        return ()
    return tuple(by_position[index] for index in range(len(by_position)))


@lru_cache(maxsize=64)
def _kept_once(bounds: tuple[float, ...]) -> tuple[float, ...]:
    """The same for every page that has them: a watch keeps some thousand pages."""
    return bounds


def _buckets(samples: _Samples, names: Names) -> Buckets | None:
    by_bound: dict[float, float] = {}
    for bound, value in _bounded(samples.first(names)):
        if math.isnan(bound) or not 0 <= value <= TOTAL_MAX:
            return None
        by_bound[bound] = by_bound.get(bound, 0.0) + value
    bounds = _kept_once(tuple(sorted(by_bound)))
    counts = tuple(by_bound[bound] for bound in bounds)
    if not bounds or bounds[-1] != math.inf or list(counts) != sorted(counts):
        return None
    return Buckets(bounds=bounds, counts=counts, sum=samples.total(_sums(names)))


def _bounded(found: list[tuple[str, float]]) -> Iterator[tuple[float, float]]:
    for labels, value in found:
        bound = _LE.search(labels)
        try:
            yield float(bound[1]) if bound is not None else math.nan, value
        except ValueError:
            yield math.nan, value


def _sums(buckets: Names) -> Names:
    return tuple(name.removesuffix("_bucket") + "_sum" for name in buckets)


# What a study's engine exports

# Without them nobody is known to count drafts.
_NEEDED = ("tokens", "drafts", "drafted", "accepted", "accepted_at", "running", "waiting")
_MODEL_LABEL = re.compile(r'[,{]model_name="((?:[^"\\]|\\.)*)"')
SUFFIXES = ("_total", "_bucket", "_count")


def counter_names(kind: str, version: str, launches: Iterable[Launch]) -> CounterNames | None:
    """By what the study's own servers exported, whoever started them, else by its engine; None where nobody is known to
    count drafts."""
    engine = _engine_of(kind, launches)
    if engine is None:
        return None
    is_exported = _exported(engine, version)
    names = {
        field: next((name for name in getattr(engine.page, field) if is_exported(name)), None)
        for field in CounterNames.__struct_fields__
        if field in engine.page.__struct_fields__
    }
    if any(names[field] is None for field in _NEEDED):
        return None
    return msgspec.convert({"engine": engine.engine, "has_model": engine.has_model, **names}, CounterNames)


def labelled_model(launches: Iterable[Launch]) -> str:
    """The model that the study's servers named in their counters; empty where none, or not all alike, did."""
    found = {
        match[1]
        for launch in launches
        for key in launch.counters.values
        for match in _MODEL_LABEL.finditer(key)
    }
    return found.pop().replace('\\"', '"').replace("\\\\", "\\") if len(found) == 1 else ""


def _engine_of(kind: str, launches: Iterable[Launch]) -> MetricsFile | None:
    """As the counters begin that servers of the study showed."""
    exported = [key for launch in launches for key in launch.counters.values]
    for engine in metrics_of_engines():
        if engine.engine == kind or any(key.startswith(engine.prefix) for key in exported):
            return engine
    return None


def _exported(engine: MetricsFile, version: str) -> Callable[[str], bool]:
    """By the engine's own table; a version that is not in it is taken to be the newest."""
    dialect = next((dialect for dialect in known_dialects() if dialect.engine == engine.engine), None)
    metrics = None if dialect is None else dialect.metrics
    if dialect is None or metrics is None:
        return lambda _: True
    table, newest = metrics.table, dialect.newest
    try:
        release = dialect.parse_release(version)
    except UsageError:
        release = newest
    if not table.holds(_bare(engine.page.tokens[0], engine.prefix), release):
        release = newest
    return lambda name: table.holds(_bare(name, engine.prefix), release)


def _bare(name: str, prefix: str) -> str:
    bare = name.removeprefix(prefix)
    return next((bare.removesuffix(suffix) for suffix in SUFFIXES if bare.endswith(suffix)), bare)
