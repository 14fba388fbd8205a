"""What this package itself carries about engines: TOML beside their adapters, `engines/*/facts/`, each file read once.

The one place in the pure rooms that reads a file: its contents are as constant as code.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from itertools import chain

import msgspec

Names = tuple[str, ...]


class EngineMetrics(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Names on an engine's page by what they count, today's name first; histograms by their buckets."""

    tokens: Names = ()
    # First tokens where they are counted, since tokens are counted as they come; else finished requests.
    requests: Names = ()
    prompt_tokens: Names = ()
    drafts: Names = ()
    steps: Names = ()
    drafted: Names = ()
    accepted: Names = ()
    # How many drafts were accepted as far as each position, from 0 on.
    accepted_at: Names = ()
    preemptions: Names = ()
    prefix_queries: Names = ()
    prefix_hits: Names = ()
    # Seconds spent decoding.
    decode_s: Names = ()
    # How full a server is at the moment: requests running and waiting, its KV cache as a share.
    running: Names = ()
    waiting: Names = ()
    kv_used: Names = ()
    accepted_length: Names = ()
    k: Names = ()
    ttft: Names = ()
    # Not the time between outputs: with speculation one of those carries several tokens.
    tpot: Names = ()


class MetricsFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One engine's metrics.toml; `metrics` is its table of names by release, where there is one."""

    engine: str
    prefix: str  # of its metrics on its own page
    page: EngineMetrics
    has_model: bool = False
    elsewhere: str = ""
    metrics: dict[str, object] | None = None


class CounterNames(msgspec.Struct, frozen=True, kw_only=True):
    """What one engine calls the counters of a study; None is what it does not export."""

    engine: str
    tokens: str
    drafts: str
    drafted: str
    accepted: str
    accepted_at: str
    running: str
    waiting: str
    # Answers begun; without them an answer's first token counts as a step.
    requests: str | None = None
    kv_used: str | None = None
    prefix_queries: str | None = None
    prefix_hits: str | None = None
    ttft: str | None = None
    tpot: str | None = None
    # Seconds spent decoding, where there is no histogram of times per token.
    decode_s: str | None = None
    # Whether series say which model they are of, under `model_name`.
    has_model: bool = False


@cache
def engine_facts(path: str) -> dict[str, object]:
    """The document at `path`, such as "vllm/facts/flags.toml"."""
    return tomllib.loads((files("speclift.engines") / path).read_text(encoding="utf-8"))


@cache
def metrics_of_engines() -> tuple[MetricsFile, ...]:
    """Of every engine whose page can be read. ValueError, with the file, for what is not meant to be there."""
    found = []
    for folder in sorted(files("speclift.engines").iterdir(), key=lambda folder: folder.name, reverse=True):
        facts = folder / "facts"
        for file in sorted(facts.iterdir(), key=lambda file: file.name) if facts.is_dir() else ():
            if file.name.endswith("metrics.toml"):
                path = f"{folder.name}/facts/{file.name}"
                try:
                    found.append(msgspec.convert(engine_facts(path), MetricsFile))
                except msgspec.ValidationError as error:
                    raise ValueError(f"{path}: {error}") from error
    return tuple(found)


def metrics_of(engine: str) -> MetricsFile:
    return next(file for file in metrics_of_engines() if file.engine == engine)


@cache
def metric_names() -> EngineMetrics:
    """The names of all engines together."""
    pages = [engine.page for engine in metrics_of_engines()]
    fields = EngineMetrics.__struct_fields__
    return EngineMetrics(
        **{field: tuple(chain.from_iterable(getattr(page, field) for page in pages)) for field in fields}
    )
