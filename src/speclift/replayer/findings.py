"""What a reader of a replay must know beside its numbers, each with the next thing to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from speclift.core.results import Finding, inform, warn
from speclift.replayer.methods import DrafterSetting, LogDrafters
from speclift.replayer.result import LogCounts

# Below this many requests an interval over requests is wide and its coverage poor.
REQUESTS_MIN = 30


def replay_findings(
    log: LogCounts,
    settings: Sequence[DrafterSetting],
    known: Sequence[LogDrafters],
    *,
    first_fault: str,
    tokenizer: str | None,
) -> tuple[Finding, ...]:
    return (
        *_skipped(log, first_fault),
        *_sampling(log),
        *_refused(log, settings),
        *_tokens(log, tokenizer),
        *(found for each in known for found in each.findings(_of(each, settings))),
        *_few(log),
    )


def _of(engine: LogDrafters, settings: Sequence[DrafterSetting]) -> list[DrafterSetting]:
    return [setting for setting in settings if setting.engine == engine.engine]


def _skipped(log: LogCounts, first_fault: str) -> Iterator[Finding]:
    if log.no_response:
        yield warn(
            "no-response",
            f"{log.no_response} of {log.requests} requests have no response and were left out",
            then="log 'response' or 'response_token_ids'; failed requests need none",
        )
    if log.no_generation:
        yield inform(
            "no-generation",
            f"{log.no_generation} of {log.requests} logged requests failed or are no generation",
            then="nothing to do: only answers can be replayed",
        )
    if log.unreadable:
        yield warn(
            "unreadable",
            f"{log.unreadable} of {log.requests} entries could not be read; the first: {first_fault}",
            then="if there are many, the result may not represent your traffic",
        )


def _sampling(log: LogCounts) -> Iterator[Finding]:
    if log.sampled:
        yield inform(
            "sampled",
            f"{log.sampled} of {log.replayed} answers were sampled (temperature above 0): they "
            "represent the sampling settings of the log only",
            then="replay a log with the settings that you will serve",
        )
    if log.temperature_unknown:
        yield inform(
            "temperature-unknown",
            f"{log.temperature_unknown} of {log.replayed} answers have no temperature in the log",
            then="the counts are valid only for the settings that produced them",
        )


def _refused(log: LogCounts, settings: Sequence[DrafterSetting]) -> Iterator[Finding]:
    for engine in sorted({setting.engine for setting in settings} & log.refused.keys()):
        refused = log.refused[engine]
        if not refused.requests:
            continue
        names = ", ".join(f"{name} {count}" for name, count in sorted(refused.parameters.items()))
        yield warn(
            "refused-sampling",
            f"with speculation {engine} rejects {refused.requests} of {log.replayed} requests (HTTP 400) "
            f"({names})",
            then="route them to a server without speculation, or drop the parameters",
        )


def _tokens(log: LogCounts, tokenizer: str | None) -> Iterator[Finding]:
    if tokenizer is None:
        return
    yield inform(
        "tokenizer",
        f"text was tokenized with {tokenizer}; the served model may have used other tokens",
        then="give the served model's tokenizer with --tokenizer, or log response_token_ids and prompt_token_ids",
    )
    if log.prompts.get("joined"):
        yield warn(
            "chat-template",
            f"{log.prompts['joined']} prompts are messages joined by line breaks: the tokenizer has "
            "no chat template for them",
            then="give --tokenizer a GGUF file or a folder with the model's chat template",
        )


def _few(log: LogCounts) -> Iterator[Finding]:
    if log.replayed < REQUESTS_MIN:
        yield warn(
            "few-requests",
            f"{log.replayed} requests: with fewer than {REQUESTS_MIN} the intervals are unreliable",
            then="replay more of the log",
        )
