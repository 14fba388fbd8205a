"""One part of a log counted: entries to answers, answers to what every drafter would have had accepted.

Parts are counted on their own, here or on other machines, and merged: the counts are whole numbers and nothing in them
hangs on where a part begins, so any cut of a log gives the same result, bit for bit. Drafters that remember are the
exception, and go over the parts in the order of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from speclift.bench.ask import ReplayAsk
from speclift.core.arm import EMBEDDED_MODEL
from speclift.core.errors import UsageError, unknown_name
from speclift.core.json_reading import as_object
from speclift.core.results import Finding, warn
from speclift.core.units import Tokens
from speclift.engines.kind import usable_kinds
from speclift.replayer.counts import UNLIMITED, LoggedAnswer, batch_of
from speclift.replayer.estimates import LogTotals, StepCost
from speclift.replayer.logged import Logged, UnreadableEntry, logged
from speclift.replayer.methods import DrafterSetting, LogDrafters, Replay, replay_of, settings_for
from speclift.replayer.result import (
    LogCounts,
    PromptSource,
    RefusedRequests,
    ReplayedSegment,
    replayed_segment,
)
from speclift.studies.log_files import LogEntry, read_log, shown_address
from speclift.weights.tokenizer_files import Tokenizer, joined, load_tokenizer
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
# Of the parts of a log, how many are named in a message.
NAMED_MAX = 3

Progress = Callable[[LogCounts], None]


def log_drafters() -> tuple[LogDrafters, ...]:
    """Of every engine whose drafters can be replayed."""
    offered = (kind.log_drafters() for kind in usable_kinds())
    return tuple(drafters for drafters in offered if drafters is not None)


def asked_settings(ask: ReplayAsk, known: Sequence[LogDrafters]) -> tuple[DrafterSetting, ...]:
    """In the same order wherever it is called: machines speak of drafters by their number."""
    return settings_for(ask.methods, known, engine=ask.engine, ks=ask.ks, ngrams=ask.ngrams)


@dataclass(slots=True)
class ShardTotals:
    """What some parts of a log came to. Places are (number of the part, place in it)."""

    log: LogCounts = field(default_factory=LogCounts)
    # By engine, of those that refuse any.
    refused: dict[str, RefusedRequests] = field(default_factory=dict)
    # By the number of the drafter.
    totals: dict[int, LogTotals] = field(default_factory=dict)
    # Where each segment that was replayed first appeared, and the names of all that there are.
    segments: dict[str, tuple[int, int]] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    # The first fault of every part that has one.
    faults: dict[int, str] = field(default_factory=dict)
    # Of every part, the tokens of answers that were compared with the tokenizer: how many, and how many agree.
    compared: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    tokenizer: str | None = None

    def merge(self, other: ShardTotals) -> None:
        """Of other parts; in any order."""
        self.log.merge(other.log)
        for engine, refused in other.refused.items():
            self.refused.setdefault(engine, RefusedRequests()).merge(refused)
        for number, totals in other.totals.items():
            if number in self.totals:
                self.totals[number].merge(totals)
            else:
                self.totals[number] = totals
        for name, place in other.segments.items():
            self.segments[name] = min(place, self.segments.get(name, place))
        self.seen |= other.seen
        require_few_segments(self.seen)
        self.faults |= other.faults
        self.compared |= other.compared
        self.tokenizer = self.tokenizer or other.tokenizer

    @property
    def first_fault(self) -> str:
        return self.faults[min(self.faults)] if self.faults else ""

    @property
    def tokenizer_name(self) -> str | None:
        """None where no text had to be cut into tokens."""
        return self.tokenizer if any(source != "ids" for source in self.log.prompts) else None

    def results(
        self, settings: Sequence[DrafterSetting], costs: Sequence[StepCost] = ()
    ) -> tuple[ReplayedSegment, ...]:
        names = sorted(self.segments, key=self.segments.__getitem__)
        return tuple(
            replayed_segment(setting, estimate, costs)
            for number, setting in enumerate(settings)
            for estimate in self.totals[number].estimates(names)
        )

    def findings(self) -> Iterator[Finding]:
        pairs = [pair for number in sorted(self.compared) for pair in self.compared[number]][:COMPARED_MAX]
        tokens, same = (sum(column) for column in zip(*pairs, strict=True)) if pairs else (0, 0)
        if tokens and same < SAME_TOKENS_MIN * tokens:
            yield warn(
                "other-vocabulary",
                f"the logged token ids are not those of {self.tokenizer}: "
                f"{same / tokens:.0%} agree with the logged text",
                then="omit --tokenizer if token ids are logged, or give the served model's tokenizer",
            )

    def require_replayed(self, shards: Sequence[str], segments: Sequence[str]) -> None:
        log = self.log
        if log.replayed:
            return
        names = ", ".join(map(shown_address, shards[:NAMED_MAX]))
        names += f" and {len(shards) - NAMED_MAX} more" if len(shards) > NAMED_MAX else ""
        if segments and log.other_segment:
            raise unknown_name(what="segment", seen=sorted(segments)[0], allowed=sorted(self.seen))
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


def require_few_segments(names: set[str]) -> None:
    if len(names) > SEGMENTS_MAX:
        raise UsageError(
            f"the log names more than {SEGMENTS_MAX:,} segments",
            hint="a segment is a class of requests, such as chat or summarise; put ids into 'id'",
        )


class ShardCounter:
    """Counts one part of a log after the other. A drafter that remembers goes on from one to the next."""

    def __init__(self, ask: ReplayAsk, numbers: Sequence[int] | None = None) -> None:
        """`numbers`: of the drafters that take part; all, where none are given."""
        self._ask = ask
        self._known = log_drafters()
        settings = asked_settings(ask, self._known)
        chosen = range(len(settings)) if numbers is None else numbers
        self._drafters: list[tuple[int, DrafterSetting, Replay]] = [
            (number, settings[number], replay_of(settings[number])) for number in chosen
        ]
        self._tokenizer = _Tokenizing(ask.tokenizer)

    def count(self, shard: str, number: int, progress: Progress | None = None) -> ShardTotals:
        """`progress` is told what this part came to so far. UsageError where it cannot be read."""
        totals = ShardTotals()
        for index, setting, _ in self._drafters:
            totals.totals[index] = LogTotals(setting.ks, all_name=ALL)
        reader = _Reader(shard, number, totals, self._tokenizer, self._ask.segments, self._known)
        for answers in _batches(reader.answers()):
            self._add(answers, totals, number)
            if progress is not None:
                progress(totals.log)
        for each in totals.totals.values():
            each.trim()
        return totals

    def _add(self, answers: Sequence[LoggedAnswer], totals: ShardTotals, number: int) -> None:
        batch = batch_of(answers)
        for answer in answers:
            totals.segments.setdefault(answer.segment, (number, len(totals.segments)))
        names = list(totals.segments)
        places = {name: place for place, name in enumerate(names)}
        segments = np.array([places[answer.segment] for answer in answers], dtype=np.int64)
        prompts = np.array([answer.prompt_hash for answer in answers], dtype=np.int64)
        for index, _, drafter in self._drafters:
            totals.totals[index].add(drafter.counts(batch, answers), segments, names, prompts)


class _Tokenizing:
    """The tokenizer, read when it is first needed; a wrong name is said before an hour of reading."""

    def __init__(self, reference: str | None) -> None:
        self.is_given = reference is not None
        self._reference = reference
        self._loaded: Tokenizer | None = None
        if reference is not None:
            self.load()

    def load(self) -> Tokenizer:
        if self._loaded is None:
            self._loaded = load_tokenizer(self._reference or EMBEDDED_MODEL)
        return self._loaded


class _Reader:
    """Entries of one part to answers, counting what is left out and why."""

    def __init__(
        self,
        shard: str,
        number: int,
        totals: ShardTotals,
        tokenizing: _Tokenizing,
        segments: Sequence[str],
        engines: Sequence[LogDrafters],
    ) -> None:
        self._shard, self._number, self._totals = shard, number, totals
        self._engines = engines
        self._tokenizing = tokenizing
        self._segments = frozenset(segments)

    def answers(self) -> Iterator[LoggedAnswer]:
        for entry in read_log(self._shard):
            answer = self._answer(entry)
            if answer is not None:
                yield answer

    def _answer(self, entry: LogEntry) -> LoggedAnswer | None:
        log = self._totals.log
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
            self._totals.faults.setdefault(self._number, f"{entry.where}: {error}")
            if log.unreadable >= UNREADABLE_AT_START_MAX and log.replayed == 0:
                self._totals.require_replayed((self._shard,), tuple(self._segments))
            return None
        self._count(request, answer)
        return answer

    def _note_segment(self, name: str) -> None:
        self._totals.seen.add(name)
        require_few_segments(self._totals.seen)

    def _count(self, request: Logged, answer: LoggedAnswer) -> None:
        log = self._totals.log
        log.replayed += 1
        log.tokens += answer.tokens
        if request.temperature is None:
            log.temperature.unknown += 1
        elif request.temperature == 0:
            log.temperature.greedy += 1
        else:
            log.temperature.sampled += 1
        for engine in self._engines:
            refused = engine.refused(request.params)
            if refused is not None:
                self._totals.refused.setdefault(engine.engine, RefusedRequests()).add(refused)

    def _tokenised(self, request: Logged) -> LoggedAnswer:
        # Whether an entry's ids are held against the tokenizer hangs on the entry alone: others before it say nothing.
        needs = request.prompt_ids is None or request.response_ids is None
        tokenizer = self._tokenizing.load() if needs or self._tokenizing.is_given else None
        if tokenizer is not None:
            self._totals.tokenizer = tokenizer.name
        prompt, source = _prompt_ids(request, tokenizer)
        response = self._response_ids(request, tokenizer)
        if not response:
            raise UnreadableEntry("the response has no tokens")
        prompts = self._totals.log.prompts
        prompts[source] = prompts.get(source, 0) + 1
        return LoggedAnswer(
            prompt=np.array(prompt, dtype=np.int64),
            response=np.array(response, dtype=np.int64),
            segment=request.segment,
            budget=_budget(request, len(response)),
        )

    def _response_ids(self, request: Logged, tokenizer: Tokenizer | None) -> Sequence[int]:
        if request.response_ids is not None:
            if tokenizer is not None and request.response:
                self._compare(request.response, request.response_ids, tokenizer)
            return _within(request.response_ids, tokenizer)
        assert tokenizer is not None
        ids = tokenizer.encoder.encode(request.response or "", parse_special=False)
        if ids and tokenizer.eos_id is not None and _ended_by_itself(request, len(ids)):
            ids.append(tokenizer.eos_id)
        return ids

    def _compare(self, text: str, ids: Sequence[int], tokenizer: Tokenizer) -> None:
        compared = self._totals.compared.setdefault(self._number, [])
        if len(compared) < COMPARED_MAX:
            ours = tokenizer.encoder.encode(text, parse_special=False)
            compared.append((len(ours), sum(one == other for one, other in zip(ours, ids, strict=False))))


def _prompt_ids(request: Logged, tokenizer: Tokenizer | None) -> tuple[Sequence[int], PromptSource]:
    if request.prompt_ids is not None:
        return _within(request.prompt_ids, tokenizer), "ids"
    assert tokenizer is not None
    source: PromptSource = "plain"
    text = request.prompt
    if text is None:
        text = tokenizer.template.render(request.messages) if tokenizer.template else None
        source = "template" if text is not None else "joined"
    ids = tokenizer.encoder.encode(
        joined(request.messages) if text is None else text, parse_special=source == "template"
    )
    if tokenizer.bos_id is not None and ids[:1] != [tokenizer.bos_id]:
        ids.insert(0, tokenizer.bos_id)
    return ids, source


def _within(ids: Sequence[int], tokenizer: Tokenizer | None) -> Sequence[int]:
    """Beside a tokenizer, ids must be its own: a prompt and a response of two vocabularies never match."""
    if tokenizer is not None and ids and max(ids) >= tokenizer.encoder.size:
        raise UnreadableEntry(
            f"token id {max(ids)} is beyond the {tokenizer.encoder.size:,} of {tokenizer.name}"
        )
    return ids


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
