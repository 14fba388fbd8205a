"""replay: logs in, accepted lengths out, one batch of answers at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from speclift.bench.ask import ReplayAsk
from speclift.core.arm import BASELINE, EMBEDDED_MODEL
from speclift.core.errors import StudyError, UsageError, unknown_name
from speclift.core.flags import assembled
from speclift.core.json_reading import as_object
from speclift.core.results import Finding, Level
from speclift.core.speculation import NGram
from speclift.core.units import Tokens
from speclift.engines.kind import usable_kinds
from speclift.replayer.batch import UNLIMITED, LoggedAnswer, batch_of
from speclift.replayer.estimates import LogTotals
from speclift.replayer.findings import replay_findings
from speclift.replayer.logged import Logged, UnreadableEntry, logged
from speclift.replayer.methods import DrafterSetting, LogDrafters, Replay, replay_of, settings_for
from speclift.replayer.result import DrafterResult, LogCounts, RefusedRequests, ReplayResult
from speclift.replayer.speedup import StepCost, study_costs
from speclift.studies.log_files import LogEntry, read_log
from speclift.studies.study import Study
from speclift.weights.chat import joined
from speclift.weights.tokenizer_files import Tokenizer, load_tokenizer
from speclift.workload.formats import is_gateway_line, request_fields

ALL = "all"
# Large enough that one sort serves many answers, small enough to stay in the cache of a core.
BATCH_TOKENS: Tokens = 1 << 17
# A segment is a class of requests; more are labels of something else and would fill the memory.
SEGMENTS_MAX = 1000
# A file that starts with so many lines of something else is not a log.
UNREADABLE_AT_START_MAX = 1000
# Answers whose ids and text are both logged, compared with the tokenizer.
COMPARED_MAX = 50
SAME_TOKENS_MIN = 0.5
ANSWER_KEYS = ("response", "response_token_ids", "finish_reason")

Progress = Callable[[LogCounts], None]


def replay(
    logs: Sequence[Path | str],
    ask: ReplayAsk | None = None,
    *,
    progress: Progress | None = None,
    **settings: object,
) -> ReplayResult:
    """What n-gram drafters would have had accepted on these logs: `speclift.replay(["requests.jsonl"])`.

    `settings` are the fields of ReplayAsk.
    """
    ask = ask or assembled(ReplayAsk, settings)
    known = log_drafters()
    drafters = settings_for(ask.methods, known, engine=ask.engine, ks=ask.ks, ngrams=ask.ngrams)
    costs = _costs(ask.study, ask.cost)
    reader = _Reader([Path(log) for log in logs], ask.tokenizer, ask.segments, known)
    run = _Run(drafters)
    for answers in _batches(reader.answers()):
        run.add(answers)
        if progress is not None:
            progress(reader.log)
    reader.require_replayed()
    findings = replay_findings(
        reader.log, drafters, known, first_fault=reader.first_fault, tokenizer=reader.tokenizer_name
    )
    return ReplayResult(
        log=reader.log,
        drafters=run.results(),
        tokenizer=reader.tokenizer_name,
        findings=(*reader.findings(), *findings),
        costs=costs,
    )


def log_drafters() -> tuple[LogDrafters, ...]:
    """Of every engine whose drafters can be replayed."""
    offered = (kind.log_drafters() for kind in usable_kinds())
    return tuple(drafters for drafters in offered if drafters is not None)


class _Run:
    """Every drafter over every batch."""

    def __init__(self, settings: Sequence[DrafterSetting]) -> None:
        self._names: dict[str, int] = {}
        self._drafters: list[tuple[DrafterSetting, Replay, LogTotals]] = [
            (setting, replay_of(setting), LogTotals(setting.ks, all_name=ALL)) for setting in settings
        ]

    def add(self, answers: Sequence[LoggedAnswer]) -> None:
        batch = batch_of(answers)
        indices = [self._names.setdefault(answer.segment, len(self._names)) for answer in answers]
        segments, names = np.array(indices, dtype=np.int64), list(self._names)
        prompts = np.array([answer.prompt_hash for answer in answers], dtype=np.int64)
        for _, drafter, totals in self._drafters:
            totals.add(drafter.counts(batch, answers), segments, names, prompts)

    def results(self) -> tuple[DrafterResult, ...]:
        return tuple(
            DrafterResult(setting=setting, segments=totals.estimates())
            for setting, _, totals in self._drafters
        )


class _Reader:
    """Log entries to answers, counting what is left out and why."""

    def __init__(
        self,
        paths: Sequence[Path],
        tokenizer: str | None,
        segments: Sequence[str],
        engines: Sequence[LogDrafters],
    ) -> None:
        self._paths = paths
        self._engines = engines
        self._reference = tokenizer
        self._segments = frozenset(segments)
        self._seen: set[str] = set()
        self._tokenizer: Tokenizer | None = None
        self._same_tokens = self._compared_tokens = self._compared = 0
        self.first_fault = ""
        self.log = LogCounts()

    @property
    def tokenizer_name(self) -> str | None:
        """None where no text had to be cut into tokens."""
        is_used = any(source != "ids" for source in self.log.prompts)
        return self._tokenizer.name if self._tokenizer is not None and is_used else None

    def answers(self) -> Iterator[LoggedAnswer]:
        if self._reference is not None:
            self._tokenizer = load_tokenizer(
                self._reference
            )  # a wrong name is said before an hour of reading
        for path in self._paths:
            for entry in read_log(path):
                answer = self._answer(entry)
                if answer is not None:
                    yield answer

    def _answer(self, entry: LogEntry) -> LoggedAnswer | None:
        log = self.log
        log.requests += 1
        try:
            request = _request(entry)
            if request is None:
                log.no_generation += 1
                return None
            self._note_segment(request.segment)
            if self._segments and request.segment not in self._segments:
                log.other_segment += 1
                return None
            if not request.has_response:
                log.no_response += 1
                return None
            answer = self._tokenised(request)
        except UnreadableEntry as error:
            log.unreadable += 1
            self.first_fault = self.first_fault or f"{entry.where}: {error}"
            if log.unreadable >= UNREADABLE_AT_START_MAX and log.replayed == 0:
                self.require_replayed()
            return None
        self._count(request, answer)
        return answer

    def _note_segment(self, name: str) -> None:
        self._seen.add(name)
        if len(self._seen) > SEGMENTS_MAX:
            raise UsageError(
                f"the log names more than {SEGMENTS_MAX:,} segments",
                hint="a segment is a class of requests, such as chat or summarise; put ids into 'id'",
            )

    def _count(self, request: Logged, answer: LoggedAnswer) -> None:
        log = self.log
        log.replayed += 1
        log.tokens += answer.tokens
        if request.temperature is None:
            log.temperature_unknown += 1
        elif request.temperature == 0:
            log.greedy += 1
        else:
            log.sampled += 1
        for engine in self._engines:
            refused = engine.refused(request.params)
            if refused is not None:
                log.refused.setdefault(engine.engine, RefusedRequests()).add(refused)

    def _tokenised(self, request: Logged) -> LoggedAnswer:
        prompt, source = self._prompt_ids(request)
        response = self._response_ids(request)
        if not response:
            raise UnreadableEntry("the response has no tokens")
        self.log.prompts[source] = self.log.prompts.get(source, 0) + 1
        return LoggedAnswer(
            prompt=np.array(prompt, dtype=np.int64),
            response=np.array(response, dtype=np.int64),
            segment=request.segment,
            budget=_budget(request, len(response)),
        )

    def _prompt_ids(self, request: Logged) -> tuple[Sequence[int], str]:
        if request.prompt_ids is not None:
            return self._within(request.prompt_ids), "ids"
        tokenizer = self._loaded()
        source, text = "plain", request.prompt
        if text is None:
            text = tokenizer.template.render(request.messages) if tokenizer.template else None
            source = "template" if text is not None else "joined"
        ids = tokenizer.encoder.encode(
            joined(request.messages) if text is None else text, parse_special=source == "template"
        )
        if tokenizer.bos_id is not None and ids[:1] != [tokenizer.bos_id]:
            ids.insert(0, tokenizer.bos_id)
        return ids, source

    def _response_ids(self, request: Logged) -> Sequence[int]:
        if request.response_ids is not None:
            if self._tokenizer is not None and request.response and self._compared < COMPARED_MAX:
                self._compare(request.response, request.response_ids)
            return self._within(request.response_ids)
        tokenizer = self._loaded()
        ids = tokenizer.encoder.encode(request.response or "", parse_special=False)
        if ids and tokenizer.eos_id is not None and _ended_by_itself(request, len(ids)):
            ids.append(tokenizer.eos_id)
        return ids

    def _loaded(self) -> Tokenizer:
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self._reference or EMBEDDED_MODEL)
        return self._tokenizer

    def _within(self, ids: Sequence[int]) -> Sequence[int]:
        """Beside a tokenizer, ids must be its own: a prompt and a response of two vocabularies never match."""
        if self._tokenizer is not None and ids and max(ids) >= self._tokenizer.encoder.size:
            raise UnreadableEntry(
                f"token id {max(ids)} is beyond the {self._tokenizer.encoder.size:,} of {self._tokenizer.name}"
            )
        return ids

    def _compare(self, text: str, ids: Sequence[int]) -> None:
        ours = self._loaded().encoder.encode(text, parse_special=False)
        self._compared += 1
        self._compared_tokens += len(ours)
        self._same_tokens += sum(one == other for one, other in zip(ours, ids, strict=False))

    def findings(self) -> Iterator[Finding]:
        if self._compared_tokens and self._same_tokens < SAME_TOKENS_MIN * self._compared_tokens:
            assert self._tokenizer is not None
            yield Finding(
                check="other-vocabulary",
                level=Level.WARN,
                message=f"the logged token ids are not those of {self._tokenizer.name}: "
                f"{self._same_tokens / self._compared_tokens:.0%} agree with the logged text",
                next_step="omit --tokenizer if token ids are logged, or give the served model's tokenizer",
            )

    def require_replayed(self) -> None:
        log = self.log
        if log.replayed:
            return
        names = ", ".join(map(str, self._paths))
        if self._segments and log.other_segment:
            raise unknown_name(what="segment", seen=sorted(self._segments)[0], allowed=sorted(self._seen))
        if log.no_response:
            raise UsageError(
                f"none of the {log.no_response} requests in {names} has a response",
                hint="replay needs 'response' (text) or 'response_token_ids' for each prompt",
            )
        if log.unreadable:
            raise UsageError(f"{names} holds no request that can be read. {self.first_fault}")
        raise UsageError(
            f"{names} holds no requests",
            hint="one JSON object per line, with messages or prompt, and response",
        )


def _request(entry: LogEntry) -> Logged | None:
    """None for what a gateway logged that is no answer; UnreadableEntry for everything that keeps this entry from being
    one."""
    if entry.fault:
        raise UnreadableEntry(entry.fault)
    data = entry.data
    if isinstance(data, dict) and data.get("prompt_token_ids") is not None:
        return logged(data)
    try:
        fields = request_fields(data, where=entry.where)
    except UsageError as error:
        if is_gateway_line(data):
            raise  # a log without text holds nothing to replay
        raise UnreadableEntry(str(error).removeprefix(f"{entry.where}: ")) from error
    if is_gateway_line(data):
        return None if fields is None else logged(fields)
    if fields is None:
        raise UnreadableEntry("a conversation without a human turn")
    # A batch line has its answer beside the body.
    own = {key: value for key in ANSWER_KEYS if (value := as_object(data).get(key)) is not None}
    return logged({**fields, **own})


def _batches(answers: Iterator[LoggedAnswer]) -> Iterator[list[LoggedAnswer]]:
    waiting: list[LoggedAnswer] = []
    size = 0
    for answer in answers:
        waiting.append(answer)
        size += answer.tokens
        if size >= BATCH_TOKENS:
            yield waiting
            waiting, size = [], 0
    if waiting:
        yield waiting


def _ended_by_itself(request: Logged, tokens: Tokens) -> bool:
    """Then the model also wrote its end token, which the text does not show."""
    if request.finish_reason is not None:
        return request.finish_reason != "length"
    return request.max_tokens is None or tokens < request.max_tokens


def _budget(request: Logged, tokens: Tokens) -> Tokens:
    if request.finish_reason == "length":
        return tokens
    return UNLIMITED if request.max_tokens is None else max(request.max_tokens, tokens)


def _costs(study: Path | str | None, cost: float | None) -> tuple[StepCost, ...]:
    if cost is not None and not 0 <= cost < float("inf"):
        raise UsageError(f"--cost is a share of a plain step, such as 0.05, saw {cost}")
    given = () if cost is None else (StepCost(per_token=cost, load=None, source="given"),)
    if study is None:
        return given
    path = Path(study)
    with Study.open(path) as opened:
        arms = [arm.name for arm in opened.plan.arms if isinstance(arm.speculation, NGram)]
        found = study_costs(opened.records(), baseline=BASELINE, arms=arms, source=f"study {path.name}")
    if not found:
        raise StudyError(
            f"{path} has no load with a baseline and an n-gram arm that drafted",
            hint="speclift measure --method ngram --study DIR, or give the cost: --cost 0.05",
        )
    return (*given, *found)
