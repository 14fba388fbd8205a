"""Drafters whose truth is known, and an engine made of a formula: what the tuner's tests search over."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from speclift.core.arm import Arm, baseline_arm
from speclift.core.speculation import Drafter, DraftModel, Head, NGram
from speclift.core.traffic import Concurrency, Load
from speclift.search.counts import RequestCounts
from speclift.search.problem import CellResult, JobResult, Problem, SearchJob, Settings
from speclift.search.search import Search
from speclift.search.space import Candidate, with_k

# 28 requests of SpecDecode-Bench (arXiv 2601.11580): accepted tokens of a draft started at every output position.
EXTRACT = Path(__file__).parent / "acceptance_extract.jsonl"

HEAD: Drafter = Head(kind="eagle", model="head")
DRAFT: Drafter = DraftModel(model="tiny")
LOOKUP: Drafter = NGram()
LOADS: tuple[Load, ...] = tuple(Concurrency(streams=streams) for streams in (1, 4, 16, 64))


def extract(drafter: str) -> dict[str, list[int]]:
    rows = [json.loads(line) for line in EXTRACT.read_text(encoding="utf-8").splitlines()]
    return {row["id"]: row[drafter] for row in rows}


def walked(
    request_id: str, acceptable: Sequence[int], k: int, *, tpot_s: float | None = None
) -> RequestCounts:
    """From each start accept min(a, k) tokens and skip one."""
    accepted, place = [], 0
    while place < len(acceptable):
        taken = min(acceptable[place], k, len(acceptable) - 1 - place)
        accepted.append(taken)
        place += taken + 1
    return RequestCounts(
        request_id=request_id,
        tokens=sum(accepted) + len(accepted),
        steps=len(accepted),
        accepted=tuple(accepted),
        drafted=(k,) * len(accepted),
        tpot_s=tpot_s,
    )


def runs_ahead(is_right: Sequence[bool]) -> list[int]:
    """At every position, how many right tokens follow: what a drafter that sees the text alone gets accepted."""
    ahead, row = 0, []
    for right in reversed(is_right):
        ahead = ahead + 1 if right else 0
        row.append(ahead)
    return row[::-1]


def text_only(random: np.random.Generator, *, tokens: int = 200) -> list[int]:
    """Easy and hard stretches, as in real texts."""
    is_easy = bool(random.random() < 0.5)
    right = []
    for _ in range(tokens):
        is_easy = is_easy if random.random() < 0.9 else not is_easy
        right.append(bool(random.random() < (0.9 if is_easy else 0.4)))
    return runs_ahead(right)


def length_of(requests: Sequence[RequestCounts]) -> float:
    return sum(request.tokens for request in requests) / sum(request.steps for request in requests)


def candidates(drafters: Mapping[str, Drafter], ks: Sequence[int]) -> tuple[Candidate, ...]:
    arms = [Candidate(arm=baseline_arm())]
    for name, template in drafters.items():
        arms += [
            Candidate(arm=Arm(name=f"{name}-k{k}", speculation=with_k(template, k)), drafter=name) for k in ks
        ]
    return tuple(arms)


class FormulaEngine:
    """Step time by a formula, acceptance by texts drawn once; a run adds noise of its own seed."""

    def __init__(
        self,
        *,
        step_s: Callable[[Candidate, int], float] | None = None,
        noise_sd: float = 0.004,
        seed: int = 0,
        launch_s: float = 30.0,
    ) -> None:
        random = np.random.default_rng(seed)
        self.texts = {f"r{number}": text_only(random) for number in range(32)}
        self._random = np.random.default_rng((seed, 1))
        self._step_s = step_s or plain_step_s
        self._noise_sd = noise_sd
        self.launch_s = launch_s
        self.failing: dict[str, str] = {}

    def true_rate(self, candidate: Candidate, load: Load) -> float:
        assert isinstance(load, Concurrency)
        length = 1.0
        if candidate.k:
            length = length_of([walked(name, text, candidate.k) for name, text in self.texts.items()])
        return length / self._step_s(candidate, load.streams)

    def best(self, problem: Problem, load: Load) -> float:
        return max(self.true_rate(candidate, load) for candidate in problem.candidates)

    def run(self, problem: Problem, job: SearchJob) -> JobResult:
        candidate = problem.candidate(job.candidate)
        if job.candidate in self.failing:
            return JobResult(job=job, launch_s=self.launch_s, failure=self.failing[job.candidate])
        return JobResult(
            job=job, launch_s=self.launch_s, cells=tuple(self._cell(candidate, load) for load in job.loads)
        )

    def _cell(self, candidate: Candidate, load: Load) -> CellResult:
        assert isinstance(load, Concurrency)
        seconds = self._step_s(candidate, load.streams) * math.exp(
            self._noise_sd * float(self._random.standard_normal())
        )
        requests = []
        for name, text in self.texts.items():
            if candidate.k:
                counts = walked(name, text, candidate.k)
                tpot_s = seconds * counts.steps / counts.tokens
                requests.append(walked(name, text, candidate.k, tpot_s=tpot_s))
            else:
                tokens = len(text)
                requests.append(
                    RequestCounts(
                        request_id=name, tokens=tokens, steps=tokens, without_draft=tokens, tpot_s=seconds
                    )
                )
        wall_s = sum(request.steps for request in requests) * seconds / load.streams
        return CellResult(load=load, requests=tuple(requests), wall_s=wall_s)


def plain_step_s(candidate: Candidate, batch: int) -> float:
    """Memory bound at first, compute bound from about 100 tokens on; drafting costs a twelfth of a step each."""
    tokens = batch * (1 + candidate.k)
    drafting = 0.0 if candidate.is_baseline else 0.04 + 0.08 * candidate.k
    return 0.01 * (0.1 + max(0.85, 0.009 * tokens) + 0.4 * min(0.85, 0.009 * tokens) + drafting)


def problem_of(
    drafters: Mapping[str, Drafter] | None = None,
    *,
    ks: Sequence[int] = (1, 2, 3, 4, 6, 8),
    loads: tuple[Load, ...] = LOADS,
    weights: tuple[float, ...] = (),
    settings: Settings | None = None,
) -> Problem:
    return Problem(
        candidates=candidates(drafters or {"draft": DRAFT, "eagle": HEAD}, ks),
        loads=loads,
        weights=weights,
        settings=settings or Settings(),
    )


def finish(search: Search, engine: FormulaEngine) -> Search:
    for _ in range(200):
        if search.finished:
            return search
        search = search.tell(engine.run(search.problem, search.ask()[0]))
    raise AssertionError("the search does not end")
