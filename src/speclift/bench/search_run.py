"""The search at work: asks, has a job run, keeps what came of it, tells. Killed, it goes on from what is kept."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Protocol, Self

from speclift.bench.live import ArmFailed, LiveArm, Servers
from speclift.bench.observer import Observer
from speclift.bench.run import arrival_seed
from speclift.bench.search_plan import CONFIRMED_LAUNCHES, JOBS, SIZES, cell_prompts
from speclift.bench.time_limit import to_the_end
from speclift.client.client import Order
from speclift.core.arm import Arm, baseline_arm
from speclift.core.deadline import Deadline
from speclift.core.document import Document, plain_object, read
from speclift.core.engine_totals import ACCEPTED, engine_total
from speclift.core.errors import EngineError, SpecliftError, StudyError
from speclift.core.records import Counters, Phase, Record
from speclift.core.traffic import Concurrency, Load, Rate, Request, repeated_prompts
from speclift.core.units import Seconds
from speclift.search.counts import RequestCounts, request_counts
from speclift.search.problem import CALIBRATING, CellResult, JobResult, Purpose, SearchJob
from speclift.search.search import Search, SearchPhase
from speclift.studies.study import Study

# The baseline beside the search: after how many requests it is asked, and where its records stand.
PACED_REQUESTS = 3
PACE_BLOCK = -3
PACE_ROUND = 0
ALONE = Concurrency(streams=1)
# Before the first cell of a load some requests are timed, to know how many of them a cell has time for.
SIZING_BLOCK = -2
# Of a job whose server did not come up: it has no records.
NO_LAUNCH = -1
CELL_REQUESTS_MIN = 4


class CellEntry(Document, frozen=True, kw_only=True):
    """One cell as it was run."""

    block: int
    load: Load
    wall_s: Seconds
    # What the baseline beside it took per token meanwhile; null where none could run there.
    pace_s: Seconds | None = None
    # Time that the baseline was asked in; not the arm's.
    pacing_s: Seconds = 0.0


class JobEntry(Document, frozen=True, kw_only=True):
    """What the search's study keeps of a finished job; its records are kept as those of any launch."""

    job: int
    candidate: str
    launch: int
    spent_s: Seconds
    launch_s: Seconds
    failure: str
    cells: tuple[CellEntry, ...]


class _JobEntries(Document, frozen=True, kw_only=True):
    jobs: tuple[JobEntry, ...] = ()


class ArmRunner(Protocol):
    """Where a job is run: here on this machine; elsewhere is for whoever implements it."""

    async def expect(self, jobs: Sequence[tuple[SearchJob, Arm]]) -> None:
        """These come next, in this order, whatever the first of them shows: their servers may start together."""
        ...

    async def run(self, job: SearchJob, arm: Arm, requests: Sequence[Request]) -> JobResult:
        """One launch, every load of the job. A server that fails is a JobResult that says so, not an exception."""
        ...


@dataclass(slots=True)
class _Started:
    """A server before its turn."""

    stack: AsyncExitStack
    # None until it is up, and where it failed.
    live: LiveArm | None = None
    failure: str = ""
    # Its share of the time in which several started.
    launch_s: Seconds = 0.0


class LocalRunner:
    """Launches on this machine and keeps every record in the search's study as it arrives.

    Jobs follow one another, and a machine that others use is not the same from one to the next. Where two servers fit
    side by side, a baseline stays up through the search and answers one prompt every few requests: its pace then takes
    the machine's moods out of every cell. Servers may start together; only one at a time is measured.
    """

    def __init__(
        self,
        study: Study,
        servers: Servers,
        *,
        cell_limit_s: Seconds | None = None,
        is_paced: bool = False,
        at_once: int = 1,
        fits: Callable[[tuple[Arm, ...]], bool] = lambda _: True,
    ) -> None:
        """`cell_limit_s`: about how long a cell may take; it sets how many requests the cells of a load have.
        `at_once`: how many servers of jobs that are known beforehand start together, as far as `fits` says that
        they do beside a baseline."""
        self._study = study
        self._servers = servers
        self._cell_limit_s = cell_limit_s
        self._is_paced = is_paced
        self._at_once, self._fits = at_once, fits
        self._waiting: dict[int, _Started] = {}
        self._pacer: LiveArm | None = None
        self._stack = AsyncExitStack()
        plan = study.plan
        self._temperatures, self._loads, self._seed = plan.temperatures, plan.loads, plan.seed

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            if self._is_paced:
                self._pacer = await self._servers.bring_up(
                    baseline_arm(), round_index=PACE_ROUND, loads=(ALONE,), stack=stack
                )
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        waiting, self._waiting = list(self._waiting.values()), {}
        for started in waiting:
            await to_the_end(started.stack.aclose())
        await to_the_end(self._stack.aclose())

    @property
    def doing(self) -> str:
        return self._servers.doing

    async def expect(self, jobs: Sequence[tuple[SearchJob, Arm]]) -> None:
        if self._waiting:
            return
        group = jobs[: self._at_once]
        while len(group) > 1 and not self._fits((baseline_arm(), *(arm for _, arm in group))):
            group = group[:-1]
        if len(group) < 2:
            return
        begun_s = time.monotonic()
        self._waiting = {job.id: _Started(stack=AsyncExitStack()) for job, _ in group}
        try:
            async with asyncio.TaskGroup() as starting:
                for job, arm in group:
                    starting.create_task(self._start(job, arm, self._waiting[job.id]))
        except ExceptionGroup as failures:
            operating = failures.subgroup(SpecliftError)
            raise operating.exceptions[0] if operating is not None else failures from None
        for started in self._waiting.values():
            started.launch_s = (time.monotonic() - begun_s) / len(group)

    async def _start(self, job: SearchJob, arm: Arm, started: _Started) -> None:
        self._servers.failures.pop(arm.name, None)
        started.live = await self._servers.bring_up(
            arm, round_index=job.id, loads=job.loads, stack=started.stack
        )
        started.failure = self._servers.failures.get(arm.name, "")

    async def run(self, job: SearchJob, arm: Arm, requests: Sequence[Request]) -> JobResult:
        begun_s = time.monotonic()
        taken: list[CellEntry] = []
        started = self._waiting.pop(job.id, None)
        if is_new := started is None:
            started = _Started(stack=AsyncExitStack())
        try:
            if is_new:
                await self._start(job, arm, started)
            if (live := started.live) is not None:
                with contextlib.suppress(ArmFailed):
                    for block, load in enumerate(job.loads):
                        count = await self._size(live, job, load, requests)
                        taken.append(await self._cell(live, job, block, requests[:count]))
        finally:
            await to_the_end(started.stack.aclose())
        took_s = started.launch_s + time.monotonic() - begun_s
        entry = JobEntry(
            job=job.id,
            candidate=job.candidate,
            launch=NO_LAUNCH if started.live is None else started.live.launch,
            spent_s=took_s,
            launch_s=took_s - math.fsum(cell.wall_s + cell.pacing_s for cell in taken),
            failure=started.failure or self._servers.failures.get(arm.name, ""),
            cells=tuple(taken),
        )
        keep_jobs(self._study, (*finished_jobs(self._study), entry))
        return stored_result(job, entry, self._study, is_baseline=arm.is_baseline)

    async def _cell(
        self, live: LiveArm, job: SearchJob, block: int, requests: Sequence[Request]
    ) -> CellEntry:
        load = job.loads[block]
        paces: list[Seconds] = []
        begun_s, pacing_s = time.monotonic(), 0.0
        # A load of several streams must build up and is not cut into pieces.
        size = PACED_REQUESTS if self._pacer is not None and load == ALONE else len(requests)
        pieces = [requests[start : start + size] for start in range(0, len(requests), size)]
        # The same arrivals in every job of a load.
        seed = arrival_seed(self._seed, 0, self._loads.index(load))
        for piece in [*pieces, ()]:  # once more after the last
            paced_s = time.monotonic()
            paces += await self._pace(job, requests[0])
            pacing_s += time.monotonic() - paced_s
            if piece:
                orders = self._orders(live, job, block, load, piece)
                await self._servers.take(live, orders, load, block=block, seed=seed)
        return CellEntry(
            block=block,
            load=load,
            wall_s=time.monotonic() - begun_s - pacing_s,
            pace_s=math.exp(math.fsum(map(math.log, paces)) / len(paces)) if paces else None,
            pacing_s=pacing_s,
        )

    async def _pace(self, job: SearchJob, request: Request) -> list[Seconds]:
        if self._pacer is None:
            return []
        orders = self._orders(self._pacer, job, PACE_BLOCK, ALONE, [request], phase=Phase.WARMUP)
        records = await self._servers.take(self._pacer, orders, ALONE, block=PACE_BLOCK, seed=0)
        return [record.tpot_s for record in records if record.is_ok and record.tpot_s]

    async def _size(self, live: LiveArm, job: SearchJob, load: Load, requests: Sequence[Request]) -> int:
        """How many requests a cell of this load has: settled once, by the first launch that meets it, and kept."""
        most = len(requests)
        if isinstance(load, Concurrency) and len(self._loads) > 1:
            most = min(most, cell_prompts(load))
        if self._cell_limit_s is None:
            return most
        sizes: dict[str, int] = self._study.kept(SIZES) or {}
        label = load.label
        if label not in sizes:
            if isinstance(load, Rate):
                fitting = self._cell_limit_s * load.per_s
                fewest = CELL_REQUESTS_MIN
            else:
                few = requests[: load.streams]
                orders = self._orders(live, job, SIZING_BLOCK, load, few, phase=Phase.WARMUP)
                begun_s = time.monotonic()
                await self._servers.take(live, orders, load, block=SIZING_BLOCK, seed=0)
                fitting = len(few) * self._cell_limit_s / (time.monotonic() - begun_s)
                fewest = max(CELL_REQUESTS_MIN, 2 * load.streams)
            sizes[label] = min(most, max(fewest, math.floor(fitting)))
            self._study.keep(SIZES, sizes)
        return sizes[label]

    def _orders(
        self,
        live: LiveArm,
        job: SearchJob,
        block: int,
        load: Load,
        requests: Sequence[Request],
        *,
        phase: Phase = Phase.MEASURED,
    ) -> list[Order]:
        orders = []
        for number, request in enumerate(requests):
            temperature = self._temperatures[number % len(self._temperatures)]
            own = request if temperature is None else replace(request, temperature=temperature)
            place = live.place(round_index=job.id, block=block, load=load, request=own, phase=phase)
            orders.append(Order(request=own, place=place))
        return orders


def keep_jobs(study: Study, entries: Sequence[JobEntry]) -> None:
    study.keep(JOBS, plain_object(_JobEntries(jobs=tuple(entries))))


def finished_jobs(study: Study) -> tuple[JobEntry, ...]:
    try:
        return read(_JobEntries, study.kept(JOBS) or {}).jobs
    except ValueError as error:
        raise StudyError(
            f"the stored search in {study.path} is damaged: {error}", hint="start a new study"
        ) from error


def spent_s(study: Study) -> Seconds:
    """What the finished jobs took, the baseline beside them included."""
    return math.fsum(entry.spent_s for entry in finished_jobs(study))


def stored_result(job: SearchJob, entry: JobEntry, study: Study, *, is_baseline: bool) -> JobResult:
    """A job's result as the study holds it: the same whether it just ran or ran before the machine went down."""
    totals = _totals_by_block(study, entry.launch)
    own = [
        record
        for record in study.records()
        if record.place.launch == entry.launch and record.place.phase is Phase.MEASURED
    ]
    reference_s, first = _reference_pace_s(study), repeated_prompts(study.plan.requests)
    cells, unanswered = [], ""
    for cell, load in zip(entry.cells, job.loads, strict=False):
        asked = [record for record in own if record.place.block == cell.block]
        answered = [record for record in asked if record.is_ok]
        if 2 * len(answered) < len(asked):
            # The few that were answered do not say how fast the others would have been.
            unanswered = f"{len(asked) - len(answered)} of {len(asked)} requests failed at {load.label}"
            continue
        counted = totals.get(cell.block, Counters())
        factor = _pace_factor(reference_s, cell.pace_s)
        counts = tuple(_counts(answered, counted, first, is_baseline=is_baseline, factor=factor))
        if counts:
            batch = _in_flight(answered) if isinstance(load, Rate) else None
            cells.append(CellResult(load=load, requests=counts, wall_s=cell.wall_s, batch=batch))
    failure = entry.failure or unanswered
    failure = failure or ("" if cells else "no answer reported its output tokens and draft tokens")
    return JobResult(job=job, cells=tuple(cells), launch_s=entry.launch_s, failure=failure)


def _totals_by_block(study: Study, launch: int) -> dict[int, Counters]:
    """What the engine counted; a paced cell is several turns of one block."""
    totals: dict[int, Counters] = {}
    for turn in study.turn_totals():
        if turn.launch == launch:
            totals[turn.block] = totals.get(turn.block, Counters()).plus(turn.counters)
    return totals


def _pace_factor(reference_s: Seconds | None, pace_s: Seconds | None) -> float:
    """From this cell's time to what it would have been at the reference's pace; 1 where either is not known."""
    return reference_s / pace_s if reference_s and pace_s else 1.0


def _reference_pace_s(study: Study) -> Seconds | None:
    """Of the first cell: every other one is told as if the machine had gone on at that pace."""
    paces = (cell.pace_s for entry in finished_jobs(study) for cell in entry.cells)
    return next((pace for pace in paces if pace), None)


def replayed(search: Search, study: Study) -> Search:
    """The search as far as the study has results for what it asks; an unfinished job is asked again."""
    kept = {(entry.job, entry.candidate): entry for entry in finished_jobs(study)}
    while True:
        known = [job for job in search.ask() if (job.id, job.candidate) in kept]
        if not known:
            return search
        job = known[0]
        is_baseline = search.problem.candidate(job.candidate).is_baseline
        entry = kept[job.id, job.candidate]
        search = search.tell(stored_result(job, entry, study, is_baseline=is_baseline))


async def run_search(
    search: Search,
    runner: ArmRunner,
    requests: Sequence[Request],
    *,
    observer: Observer,
    deadline_s: Seconds | None = None,
    ends: Deadline | None = None,
    latest: Deadline | None = None,
    clock: Callable[[], Seconds] = time.monotonic,
) -> Search:
    """Until the search has enough, or its own part of the time, up to `deadline_s` of `clock`, is spent; as many jobs
    at a time as the search was set to, of those that it asks for before any of them is told. Before `ends` what was
    found is to be confirmed; `latest` is the end of everything, until when what there is nothing to choose without may
    take."""
    while jobs := search.ask():
        left_s = None if deadline_s is None else deadline_s - clock()
        if left_s is not None and not _has_time(search, jobs, left_s):
            return search
        until = ends if _has_compared(search) else latest or ends
        if until is not None and not until.has(_needed_s(search, jobs[:1]) + _confirming_s(search)):
            return search
        following = [(job, search.problem.candidate(job.candidate).arm) for job in jobs]
        under_way = following[: search.problem.settings.at_once]
        for number, (job, _) in enumerate(under_way):
            observer.searching(job, done=len(search.results) + number, left_s=left_s)
        await runner.expect([each for each in following if each[0].purpose in CALIBRATING])
        for result in await _all_run(runner, under_way, requests):
            # One that failed may have taken others of the same arm along.
            search = search.tell(result) if result.job in search.pending else search
    _require_compared(search)
    return search


async def _all_run(
    runner: ArmRunner, jobs: Sequence[tuple[SearchJob, Arm]], requests: Sequence[Request]
) -> list[JobResult]:
    """In the order they were asked for; the first error ends the others."""
    if len(jobs) == 1:
        return [await runner.run(*jobs[0], requests)]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(runner.run(job, arm, requests)) for job, arm in jobs]
    except ExceptionGroup as failures:
        operating = failures.subgroup(SpecliftError)
        raise operating.exceptions[0] if operating is not None else failures from None
    return [task.result() for task in tasks]


def _require_compared(search: Search) -> None:
    if any(each.stage == "failed" for each in search.eliminated) and not _has_compared(search):
        raise EngineError(
            "every speculative arm failed", hint="see their logs in the study, under search/logs"
        )


def _has_compared(search: Search) -> bool:
    """Whether any speculative arm has been measured."""
    return any(
        result.cells and not search.problem.candidate(result.job.candidate).is_baseline
        for result in search.results
    )


def _has_time(search: Search, jobs: Sequence[SearchJob], left_s: Seconds) -> bool:
    """For the next launch, or for all of a race; the baseline and a run of every way of drafting may take more than
    the search's part of the time, because without them there is nothing to choose by."""
    if search.phase is SearchPhase.LONG:
        return True
    if not any(result.cells for result in search.results):
        return left_s > 0
    return _needed_s(search, jobs if jobs[0].purpose is Purpose.RACE else jobs[:1]) <= left_s


def _needed_s(search: Search, jobs: Sequence[SearchJob]) -> Seconds:
    """By what launches and cells have taken so far; 0 before the first."""
    launches = [result.launch_s for result in search.results if result.cells]
    cells = [cell.wall_s for result in search.results for cell in result.cells]
    if not cells:
        return 0.0
    launch_s, cell_s = sum(launches) / len(launches), sum(cells) / len(cells)
    return sum(launch_s + cell_s * len(job.loads) for job in jobs)


def _confirming_s(search: Search) -> Seconds:
    """A launch of the baseline and of the winner, without which nothing is published."""
    launches = [result.launch_s for result in search.results if result.cells]
    return CONFIRMED_LAUNCHES * max(launches, default=0.0)


def _counts(
    records: Sequence[Record],
    counted: Counters,
    first: Mapping[str, str],
    *,
    is_baseline: bool,
    factor: float,
) -> Iterator[RequestCounts]:
    """Where an engine tells no request's drafts, the turn's total is shared among its requests by their length.

    A prompt that the file repeats counts as its `first` request.
    """
    told = [record for record in records if record.output_tokens is not None and record.output_tokens > 1]
    decoded = sum((record.output_tokens or 0) - 1 for record in told)
    total = engine_total(counted, ACCEPTED)
    for record in told:
        tokens = record.output_tokens or 0
        accepted = 0 if is_baseline else record.accepted
        if accepted is None and total is None:
            continue
        if accepted is None:
            accepted = round((total or 0.0) * (tokens - 1) / decoded)
        yield request_counts(
            first.get(record.place.request_id, record.place.request_id),
            output_tokens=tokens,
            steps=None if record.steps is None else record.told_steps,
            accepted=accepted,
            tpot_s=None if record.tpot_s is None else record.tpot_s * factor,
        )


def _in_flight(records: Sequence[Record]) -> float:
    """Mean number of requests being served over the turn."""
    span_s = max(record.end_s for record in records) - min(record.sent_s for record in records)
    return max(1.0, sum(record.end_s - record.sent_s for record in records) / max(span_s, 1e-9))
