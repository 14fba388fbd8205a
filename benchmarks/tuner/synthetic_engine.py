"""A made-up engine with recorded acceptance: its true step time, its noise, and what a launch of it measures.

The truth is not of the family that the tuner fits: memory and compute overlap by a fixed share, token counts are padded
to graph sizes and to tiles of a width that the fit does not know, a kernel switches, clocks throttle, experts are
routed in clumps, draft passes have a floor of launch time, and every cell has an irregularity of its own.

With `small_tiles` it is like a CPU: compute counts from the first token on, is not padded to graph sizes, and is paid
by tiles of four or eight tokens, what is left over of a step by the token or as one tile more.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from speclift.bench.search_plan import cell_prompts
from speclift.core.speculation import Drafter, DraftModel, Head, NGram
from speclift.core.traffic import Concurrency, Load
from speclift.search.cost import Experts
from speclift.search.counts import RequestCounts
from speclift.search.problem import CellResult

Floats = NDArray[np.float64]

OUTPUT_CAP = 255  # decoded tokens: an answer of 256 without the first
KS = tuple(range(1, 11))
LOADS = tuple(Concurrency(streams=streams) for streams in (1, 2, 4, 8, 16, 32, 64, 128, 256))
# What a CPU is asked.
SMALL_LOADS = tuple(Concurrency(streams=streams) for streams in (1, 2, 3, 4, 6, 8))
DRAFTERS: dict[str, Drafter] = {
    "eagle": Head(kind="eagle", model="head"),
    "ngram": NGram(variant="simple"),
    "draft": DraftModel(model="small"),
}
# How often an n-gram finds nothing to copy where what it would copy is wrong.
PLAIN_SHARES = (0.3, 0.5, 0.7)
# What runs of the same cell differ by.
RUN_SD, LAUNCH_SD, DRIFT_SD = 0.008, 0.005, 0.012
# How far a step time strays from any smooth form, dense and with experts: chosen so that the tuner's fit, given 9 of 42
# cells of one drafter with this noise, misses the others by what fits to published tables did (SGLang PR 22246: dense
# 1.7-2.4 % on average and 5-6 % at worst, experts 3 % and 9-10 %). Here: dense 1.9 % and 7 %, experts 2.9 % and 9 %.
IRREGULAR_SD = {False: 0.012, True: 0.020}
KERNEL_SWITCH = {False: 0.08, True: 0.16}
# Share of the compute time that is paid for whole tiles of 64 or 128 tokens. vLLM 0.24 on an H200 in the shape of
# Llama 3.1 8B, KV reads taken off: a token costs 13 us between 16 and 64 tokens a step and 21 us between 80 and 320
# (n-gram look-ups included), so about 0.4 of what it costs there is not seen within a tile.
TILE_SHARE = (0.2, 0.6)
TILES = (64, 128)
# Of engines like a CPU: tokens whose compute takes as long as reading the weights does, and how much dearer a token is
# that no tile holds (llama.cpp, two x86 cores, Q4_0: 0.25 over all layers; kernels alone up to 1).
SMALL_RIDGE = (1.2, 8.0)
SMALL_TILES = (4, 8)
SMALL_EXTRA = (0.15, 0.9)
REQUEST_SD = 0.02
WARM_UP_S = 3.0
GRAPH_SIZES = (1, 2, 4, *range(8, 513, 8))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Requests of one file: how many drafted tokens would be accepted at every output position, per drafter."""

    name: str
    ids: tuple[str, ...]
    accepted: dict[str, tuple[tuple[int, ...], ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """All requests of a file at one k."""

    requests: tuple[RequestCounts, ...]
    tokens: Floats
    steps: Floats
    # Of the whole file.
    length: float
    drafted: float
    # Share of the steps that draft.
    drafting: float


def read_recorded(path: Path) -> Recorded:
    """JSON lines with `id`, `eagle` and `ngram`; gzip or plain."""
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
    rows = [json.loads(line) for line in text.splitlines() if line.strip()]
    rows = [row for row in rows if row.get("eagle") and row.get("ngram")]
    if not rows:
        raise SystemExit(f"{path}: no requests with both 'eagle' and 'ngram'")
    accepted = {name: tuple(tuple(row[name][:OUTPUT_CAP]) for row in rows) for name in ("eagle", "ngram")}
    return Recorded(name=path.name, ids=tuple(str(row["id"]) for row in rows), accepted=accepted)


def walk(accepted: Sequence[int], k: int, plain: Sequence[bool] | None = None) -> tuple[list[int], int]:
    """From each start accept min(a, k), then skip one; `plain` marks where nothing would be drafted."""
    steps, without, place = [], 0, 0
    while place < len(accepted):
        taken = min(accepted[place], k, len(accepted) - 1 - place)
        if plain is not None and taken == 0 and plain[place]:
            without += 1
        else:
            steps.append(taken)
        place += taken + 1
    return steps, without


def walk_file(recorded: Recorded, drafter: str, k: int, *, plain_share: float = 0.0) -> Walk:
    """`plain_share` of the positions where nothing is accepted are such that nothing was drafted either."""
    return _walk_rows(recorded.ids, recorded.accepted[drafter], k, plain_share)


# Engines with the same file share what does not differ.
@lru_cache(maxsize=200)
def _walk_rows(ids: tuple[str, ...], rows: tuple[tuple[int, ...], ...], k: int, plain_share: float) -> Walk:
    requests = []
    random = np.random.default_rng(0)
    for number, accepted in enumerate(rows):
        plain = (random.random(len(accepted)) < plain_share).tolist() if plain_share else None
        steps, without = walk(accepted, k, plain)
        requests.append(
            RequestCounts(
                request_id=ids[number],
                tokens=sum(steps) + len(steps) + without,
                steps=len(steps) + without,
                without_draft=without,
                accepted=tuple(steps),
                drafted=(k,) * len(steps),
            )
        )
    return _walk_of(tuple(requests))


def _walk_of(requests: tuple[RequestCounts, ...]) -> Walk:
    tokens = np.array([float(request.tokens) for request in requests])
    steps = np.array([float(request.steps) for request in requests])
    drafted = sum(sum(request.drafted) for request in requests) / steps.sum()
    return Walk(
        requests=requests,
        tokens=tokens,
        steps=steps,
        length=float(tokens.sum() / steps.sum()),
        drafted=drafted,
        drafting=1.0 - sum(request.without_draft for request in requests) / float(steps.sum()),
    )


def with_draft_model(recorded: Recorded, random: np.random.Generator) -> Recorded:
    """A third drafter that sees the text alone: right where the head's first guess is, but for gains and slips."""
    gains, slips = random.uniform(0.0, 0.35), random.uniform(0.0, 0.12)
    rows = []
    for accepted in recorded.accepted["eagle"]:
        is_right = np.array(accepted) > 0
        chance = random.random(len(is_right))
        is_right = np.where(is_right, chance > slips, chance < gains)
        ahead, row = 0, []
        for right in is_right[::-1]:
            ahead = ahead + 1 if right else 0
            row.append(ahead)
        rows.append(tuple(row[::-1]))
    return Recorded(name=recorded.name, ids=recorded.ids, accepted=recorded.accepted | {"draft": tuple(rows)})


class SyntheticEngine:
    """True times, and runs of cells that show them through noise that drifts with the clock."""

    def __init__(self, files: Sequence[Recorded], *, seed: int, small_tiles: bool = False) -> None:
        random = np.random.default_rng(seed)
        self.loads = SMALL_LOADS if small_tiles else LOADS
        self._random = np.random.default_rng((seed, 1))
        self.recorded = with_draft_model(files[int(random.integers(len(files)))], random)
        # In which order the requests are sent.
        self.order = random.permutation(len(self.recorded.ids))
        share = float(random.choice(PLAIN_SHARES))
        self.walks = {
            (name, k): walk_file(self.recorded, name, k, plain_share=share if name == "ngram" else 0.0)
            for name in DRAFTERS
            for k in KS
        }
        self.baseline = _walk_of(
            tuple(
                RequestCounts(request_id=request_id, tokens=len(row), steps=len(row), without_draft=len(row))
                for request_id, row in zip(self.recorded.ids, self.recorded.accepted["eagle"], strict=True)
            )
        )
        self._draw_costs(random)
        self.small_tile = 0
        if small_tiles:
            self._draw_small_tiles(np.random.default_rng((seed, 2)))
        self.restart_s = random.uniform(40.0, 90.0)
        self.clock_s = 0.0
        self._drift_tau_s = random.uniform(600.0, 2400.0)
        self._drift, self._drift_at = DRIFT_SD * random.standard_normal(), 0.0
        self._irregular = {
            (name, k, load): IRREGULAR_SD[self.experts is not None] * random.standard_normal()
            for name, k in [("", 0), *self.walks]
            for load in self.loads
        }

    def _draw_costs(self, random: np.random.Generator) -> None:
        def log_uniform(low: float, high: float) -> float:
            return math.exp(random.uniform(math.log(low), math.log(high)))

        self.unit_s = log_uniform(0.004, 0.02)
        self.overhead = random.uniform(0.05, 0.25)
        self.ridge = log_uniform(60, 400)
        self.overlap = random.uniform(0.3, 0.95)
        self.kv_per_sequence = log_uniform(5e-4, 8e-3)
        self.tile_share, self.tile = random.uniform(*TILE_SHARE), int(random.choice(TILES))
        self.switch_at, self.switch = log_uniform(6, 64), random.uniform(-1.0, 1.0)
        self.throttle, self.throttle_at = random.uniform(0.0, 0.06), log_uniform(64, 512)
        self.eager = random.uniform(0.0, 0.12)
        self.tax, self.tax_token = random.uniform(0.01, 0.08), log_uniform(5e-5, 6e-4)
        self.experts = (
            Experts(count=int(random.choice([8, 64, 128])), per_token=2) if random.random() < 0.35 else None
        )
        if self.experts is not None:
            self.experts = Experts(count=self.experts.count, per_token=2 if self.experts.count == 8 else 8)
        self.switch *= KERNEL_SWITCH[self.experts is not None]
        self.expert_share, self.clump = random.uniform(0.6, 0.9), random.uniform(0.6, 1.0)
        self.draft_pass = {"eagle": log_uniform(0.02, 0.10), "draft": log_uniform(0.05, 0.30)}
        self.draft_knee = {"eagle": log_uniform(32, 256), "draft": log_uniform(32, 256)}
        self.lookup, self.lookup_sequence = random.uniform(0.0, 0.08), log_uniform(1e-4, 2e-3)

    def _draw_small_tiles(self, random: np.random.Generator) -> None:
        self.small_tile, self.pads = int(random.choice(SMALL_TILES)), bool(random.random() < 0.3)
        self.small_extra = 1.0 if self.pads else random.uniform(*SMALL_EXTRA)
        self.ridge = math.exp(random.uniform(*np.log(SMALL_RIDGE)))
        self.experts, self.switch = None, 0.0

    def step_s(self, drafter: str, k: int, load: Load) -> float:
        """The truth. `drafter` '' is the baseline."""
        assert isinstance(load, Concurrency)
        batch = load.streams
        walked = self.walk_of(drafter, k)
        tokens = batch * (1.0 + (walked.drafted if drafter else 0.0))
        forward = self._forward(tokens, batch)
        if self.small_tile and drafter:
            # Every sequence drafts by itself or does not.
            chances = [
                math.comb(batch, many) * walked.drafting**many * (1.0 - walked.drafting) ** (batch - many)
                for many in range(batch + 1)
            ]
            forward = sum(
                chance * self._forward(batch + many * k, batch)
                for many, chance in enumerate(chances)
                if chance > 1e-9
            )
        total = self.overhead + forward
        if drafter:
            total += self.tax + self.tax_token * tokens
        if drafter == "ngram":
            total += self.lookup + self.lookup_sequence * batch
        elif drafter:
            one = self.draft_pass[drafter] * max(1.0, (0.6 + 0.4 * batch / self.draft_knee[drafter]))
            total += one * (k + 0.3)
        return self.unit_s * total * math.exp(self._irregular[drafter, k, load])

    def _forward(self, tokens: float, batch: int) -> float:
        """One pass of the target over so many tokens, what is not in a graph included."""
        padded = next((size for size in GRAPH_SIZES if size >= tokens), None)
        eager = 0.0 if padded is not None or self.small_tile else self.eager
        paid = float(padded) if padded is not None and not self.small_tile else tokens
        weights = 1.0
        if self.experts is not None:
            missed = 1.0 - self.experts.per_token / self.experts.count
            touched = 1.0 - missed ** (tokens**self.clump)
            weights = (1 - self.expert_share) + self.expert_share * touched / (1.0 - missed)
        memory = weights + self.kv_per_sequence * batch
        if self.small_tile:
            rest = tokens % self.small_tile
            spilled = -rest % self.small_tile if self.pads else rest
            compute = (tokens + self.small_extra * spilled) / self.ridge
        else:
            tiled = self.tile * math.ceil(paid / self.tile)
            compute = ((1 - self.tile_share) * paid + self.tile_share * tiled) / self.ridge
        if paid > self.switch_at:
            compute *= 1.0 + self.switch
        forward = max(memory, compute) + (1.0 - self.overlap) * min(memory, compute)
        return eager + forward * (1.0 + self.throttle / (1.0 + (self.throttle_at / paid) ** 3))

    def walk_of(self, drafter: str, k: int) -> Walk:
        return self.walks[drafter, k] if drafter else self.baseline

    def true_rate(self, drafter: str, k: int, load: Load) -> float:
        """Tokens per second and stream over the whole file."""
        return self.walk_of(drafter, k).length / self.step_s(drafter, k, load)

    def launch(self) -> tuple[float, float]:
        """Seconds it took, and the log of what this start does to all its cells."""
        self.clock_s += self.restart_s
        return self.restart_s, LAUNCH_SD * float(self._random.standard_normal())

    def run(
        self, drafter: str, k: int, load: Load, launch_effect: float, *, requests: int
    ) -> tuple[float, NDArray[np.int64], float]:
        """Step time as shown, which requests were sent, and seconds it took."""
        assert isinstance(load, Concurrency)
        chosen = self.order[np.arange(requests) % len(self.order)]
        noise = RUN_SD * self._random.standard_normal() + launch_effect + self._drifted()
        seconds = self.step_s(drafter, k, load) * math.exp(noise)
        wall_s = WARM_UP_S + seconds * float(self.walk_of(drafter, k).steps[chosen].sum()) / load.streams
        self.clock_s += wall_s
        return seconds, chosen, wall_s

    def cell(self, drafter: str, k: int, load: Load, launch_effect: float) -> CellResult:
        """The same as records, of as many requests as `tune` sends: each with its counts and its time."""
        assert isinstance(load, Concurrency)
        seconds, chosen, wall_s = self.run(drafter, k, load, launch_effect, requests=cell_prompts(load))
        walked = self.walk_of(drafter, k)
        noise = np.exp(REQUEST_SD * self._random.standard_normal(len(chosen)))
        times = seconds * walked.steps / walked.tokens
        requests = tuple(
            _timed(walked.requests[place], float(times[place] * factor))
            for place, factor in zip(chosen, noise, strict=True)
        )
        return CellResult(load=load, requests=requests, wall_s=wall_s)

    def _drifted(self) -> float:
        kept = math.exp(-(self.clock_s - self._drift_at) / self._drift_tau_s)
        fresh = math.sqrt(1.0 - kept * kept) * DRIFT_SD * float(self._random.standard_normal())
        self._drift, self._drift_at = kept * self._drift + fresh, self.clock_s
        return self._drift


def _timed(request: RequestCounts, tpot_s: float) -> RequestCounts:
    return RequestCounts(
        request_id=request.request_id,
        tokens=request.tokens,
        steps=request.steps,
        without_draft=request.without_draft,
        accepted=request.accepted,
        drafted=request.drafted,
        tpot_s=tpot_s,
    )
