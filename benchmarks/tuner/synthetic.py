"""What does the tuner cost and lose against a grid? Synthetic engines with recorded acceptance.

    python benchmarks/tuner/synthetic.py --acceptance FILE.jsonl.gz... [--engines 40] [--seed 0] [--small-tiles]
                                         [--at-once 4]

31 arms (none, and three drafters at k = 1..10) x 9 loads. The grid measures every cell in three launches of every
arm; the tuner measures what its search asks for. Both pay for starts, and both choose an arm for every load; regret
is what that arm loses against the truly best one. --small-tiles: engines like a CPU, whose kernels take four or eight
tokens at once. --at-once: so many jobs run before the first of them is told, as on that many machines; the same
engines are then searched one job at a time too, and against_sequential is what the first search took of the engine
time of the second. Engine i has seed --seed + i. Intervals are 95 %, by resampling engines.
accepted_length_error is the mean relative error of the predicted accepted length at every k that was not run.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from synthetic_engine import DRAFTERS, KS, Floats, Recorded, SyntheticEngine, read_recorded, walk_file

from speclift.bench.search_plan import cell_prompts
from speclift.core.arm import Arm, baseline_arm
from speclift.search.conclusion import conclude
from speclift.search.predictor import AcceptanceRun, accepted_lengths
from speclift.search.problem import JobResult, Problem, Settings
from speclift.search.search import Search, start
from speclift.search.selection import GRID_REPEATS, GRID_REQUESTS_MIN
from speclift.search.space import Candidate, sees_text_alone, with_k

NEAR = 0.02
BOOTSTRAP = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One engine: seconds of engine time and the regret at each load, grid and tuner."""

    grid_s: float
    tuner_s: float
    grid_regret: tuple[float, ...]
    tuner_regret: tuple[float, ...]
    static_regret: tuple[float, ...]
    launches: int
    blocks: int
    interval_cover: float


def candidates() -> tuple[Candidate, ...]:
    arms = [Candidate(arm=baseline_arm())]
    for name, template in DRAFTERS.items():
        arms += [
            Candidate(arm=Arm(name=f"{name}-k{k}", speculation=with_k(template, k)), drafter=name) for k in KS
        ]
    return tuple(arms)


def truth(engine: SyntheticEngine, arms: Sequence[Candidate]) -> Floats:
    rates = [
        [math.log(engine.true_rate(arm.drafter or "", arm.k, load)) for load in engine.loads] for arm in arms
    ]
    return np.array(rates)


def grid(engine: SyntheticEngine, arms: Sequence[Candidate]) -> Floats:
    """Mean log rate of every cell over the repeats, each a fresh launch, arm after arm."""
    scores = np.zeros((len(arms), len(engine.loads)))
    for _ in range(GRID_REPEATS):
        for row, arm in enumerate(arms):
            _, effect = engine.launch()
            for column, load in enumerate(engine.loads):
                requests = max(GRID_REQUESTS_MIN, cell_prompts(load))
                seconds, chosen, _ = engine.run(arm.drafter or "", arm.k, load, effect, requests=requests)
                walked = engine.walk_of(arm.drafter or "", arm.k)
                length = walked.tokens[chosen].sum() / walked.steps[chosen].sum()
                scores[row, column] += math.log(length / seconds) / GRID_REPEATS
    return scores


def tune(engine: SyntheticEngine, arms: tuple[Candidate, ...], settings: Settings) -> Search:
    search = start(Problem(candidates=arms, loads=engine.loads, experts=engine.experts, settings=settings))
    while not search.finished:
        told = []
        for job in search.ask()[: settings.at_once]:
            arm = search.problem.candidate(job.candidate)
            launch_s, effect = engine.launch()
            cells = tuple(engine.cell(arm.drafter or "", arm.k, load, effect) for load in job.loads)
            told.append(JobResult(job=job, cells=cells, launch_s=launch_s))
        # All of them were under way when the first was told.
        for result in told:
            search = search.tell(result)
    return search


def trial(files: Sequence[Recorded], seed: int, settings: Settings, *, small_tiles: bool = False) -> Trial:
    arms = candidates()
    engine = SyntheticEngine(files, seed=seed, small_tiles=small_tiles)
    true = truth(engine, arms)
    best = true.max(axis=0)
    scores = grid(engine, arms)
    grid_s = engine.clock_s
    search = tune(engine, arms, settings)
    posterior, conclusion = search.posterior(), conclude(search)
    assert posterior is not None
    assert conclusion is not None
    names = [arm.name for arm in arms]
    rows = [names.index(choice.candidate) for choice in conclusion.choices]
    columns = np.arange(len(engine.loads))
    static = int(true.mean(axis=1).argmax())
    places = [arms.index(candidate) for candidate in posterior.candidates]
    sd = np.sqrt(np.array([np.diag(matrix) for matrix in posterior.covariance])).T
    return Trial(
        grid_s=grid_s,
        tuner_s=search.spent_s,
        grid_regret=tuple(-np.expm1(true[scores.argmax(axis=0), columns] - best)),
        tuner_regret=tuple(-np.expm1(true[rows, columns] - best)),
        static_regret=tuple(-np.expm1(true[static] - best)),
        launches=len(search.results),
        blocks=search.blocks,
        interval_cover=float(np.mean(np.abs(posterior.mean - true[places]) < 1.96 * sd)),
    )


def length_errors(files: Sequence[Recorded], settings: Settings) -> dict[str, dict[str, float]]:
    """Predicted against counted accepted length at every k that was not run, on the same requests."""
    found: dict[str, dict[str, float]] = {}
    for name in ("eagle", "ngram"):
        alone = sees_text_alone(DRAFTERS[name])
        errors = []
        for recorded in files:
            walks = {k: walk_file(recorded, name, k) for k in KS}
            long = min(settings.k_long, max(KS))
            ran = [long] if alone else [settings.k_short[0], long]
            runs = [AcceptanceRun(k=k, requests=walks[k].requests) for k in ran]
            curve = accepted_lengths(runs, KS, prefix_only=alone)
            errors += [abs(curve.at(k).length.value / walks[k].length - 1) for k in KS if k not in ran]
        found[name] = {"max": max(errors), "mean": float(np.mean(errors))}
    return found


def low_high(values: Floats) -> list[float]:
    """Of the mean over engines."""
    random = np.random.default_rng(0)
    means = values[random.integers(len(values), size=(BOOTSTRAP, len(values)))].mean(axis=1)
    return [round(float(bound), 5) for bound in np.percentile(means, [2.5, 97.5])]


def regret(rows: Sequence[Sequence[float]]) -> dict[str, object]:
    table = np.array(rows)
    return {
        "within_2pct": round(float((table < NEAR).mean()), 4),
        "within_2pct_interval": low_high((table < NEAR).mean(axis=1)),
        "mean_regret": round(float(table.mean()), 5),
        "mean_regret_interval": low_high(table.mean(axis=1)),
        "p95_regret": round(float(np.percentile(table, 95)), 5),
        "max_regret": round(float(table.max()), 5),
    }


def against(sequential: Sequence[Trial], trials: Sequence[Trial]) -> dict[str, object]:
    """Two searches of the same engines."""
    ratios = np.array([one.tuner_s / other.tuner_s for one, other in zip(trials, sequential, strict=True)])
    total = sum(each.tuner_s for each in trials) / sum(each.tuner_s for each in sequential)
    return {
        "engine_time_ratio": round(total, 4),
        "engine_time_ratio_interval": low_high(ratios),
        "engine_time_ratio_max": round(float(ratios.max()), 4),
        "launches": round(float(np.mean([each.launches for each in sequential])), 1),
        "sequential": regret([each.tuner_regret for each in sequential]),
    }


def summary(trials: Sequence[Trial], lengths: dict[str, dict[str, float]]) -> dict[str, object]:
    tuner = regret([each.tuner_regret for each in trials])
    return {
        "cost_ratio": round(sum(t.tuner_s for t in trials) / sum(t.grid_s for t in trials), 5),
        "within_2pct": tuner["within_2pct"],
        "mean_regret": tuner["mean_regret"],
        "accepted_length_error": {name: round(error["mean"], 5) for name, error in lengths.items()},
        "accepted_length_error_max": {name: round(error["max"], 5) for name, error in lengths.items()},
        "engine_cost_ratio_interval": low_high(np.array([t.tuner_s / t.grid_s for t in trials])),
        "tuner": tuner,
        "grid": regret([each.grid_regret for each in trials]),
        "best_static": regret([each.static_regret for each in trials]),
        "tuner_hours": round(sum(t.tuner_s for t in trials) / len(trials) / 3600, 3),
        "grid_hours": round(sum(t.grid_s for t in trials) / len(trials) / 3600, 3),
        "cost_ratio_max": round(max(t.tuner_s / t.grid_s for t in trials), 5),
        "launches": round(float(np.mean([t.launches for t in trials])), 1),
        "blocks": round(float(np.mean([t.blocks for t in trials])), 2),
        "interval_coverage": round(float(np.mean([t.interval_cover for t in trials])), 4),
        "engines": len(trials),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--acceptance", nargs="+", type=Path, required=True)
    parser.add_argument("--engines", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--small-tiles", action="store_true")
    parser.add_argument("--at-once", type=int, default=1, help="jobs of the search at a time")
    options = parser.parse_args()
    if options.engines < 1 or options.seed < 0:
        parser.error("--engines must be at least 1 and --seed at least 0")
    files = [read_recorded(path) for path in options.acceptance]
    begun = time.perf_counter()

    def trials_at_once(jobs: int) -> list[Trial]:
        seeds = range(options.seed, options.seed + options.engines)
        settings = Settings(at_once=jobs)
        return [trial(files, seed, settings, small_tiles=options.small_tiles) for seed in seeds]

    trials = trials_at_once(options.at_once)
    document = summary(trials, length_errors(files, Settings()))
    if options.at_once > 1:
        document["against_sequential"] = against(trials_at_once(1), trials)
    document |= {
        "files": [recorded.name for recorded in files],
        "seed": options.seed,
        "seconds": round(time.perf_counter() - begun, 1),
    }
    if options.json:
        print(json.dumps(document))
    else:
        for name, value in document.items():
            print(f"{name:28} {value}")


if __name__ == "__main__":
    main()
