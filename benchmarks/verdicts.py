"""Are the verdicts right? Whole runs of `speclift decide` on pairs of fake servers with known truth, counted.

    python benchmarks/verdicts.py [--aa 200] [--pairs 200] [--seed 1]

Every run is the command itself: servers, clients, study, verdict. A/A pairs draft without gain, in designs a user
would make (own temperatures, few prompts, one launch). Random pairs have any speedup. Prompts are unlike for good,
requests and launches vary. Exits 1 where an A/A pair ships, over 1 % of verdicts are wrong, under 93 % of intervals
cover the truth (less two standard errors), or under 95 % of the pairs without gain and with 24 prompts or more are
told not to ship. 400 runs take about 40 minutes on two idle cores.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from speclift.testing.fake_truth import Truth, true_speedup
from trials import SEGMENTS, trial_options

BAR = 1.3
K = 4
# The first token and two full steps. Slow enough that the machine's own delays are small beside them.
TOKENS = 11
TPOT_S, TTFT_S = 0.006, 0.03
RATIOS = (0.8, 1.0, 1.0, 1.0, 1.1, 1.2, 1.4, 1.6, 2.0)
LIMIT_S = 300
COVERED_MIN, WRONG_MAX, NOT_SHIPPED_MIN = 0.93, 0.01, 0.95
SHIPS = ("ship", "ship-on-conditions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two servers and the study of them."""

    ratio: float
    prompts: int
    streams: int
    launches: int
    temperatures: str
    prompt_sd: float
    noise_sd: float
    launch_sd: float
    seed: int

    @property
    def step_cost(self) -> float:
        """Every draft is accepted, so that a step says K + 1 tokens; its cost makes the ratio what it should be."""
        return ((K + 1) / self.ratio - 1) / K

    @property
    def truth(self) -> float:
        """Of answers as short as these, whose last step says fewer."""
        plain = Truth(tpot_s=TPOT_S, ttft_s=TTFT_S)
        spec = replace(plain, k=K, acceptance=1.0, step_cost=self.step_cost)
        return true_speedup(plain, spec, tokens=TOKENS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    pair: Pair
    truth: float
    verdict: str
    low: float | None
    value: float | None
    high: float | None

    @property
    def is_wrong(self) -> bool:
        if self.verdict in SHIPS:
            return self.truth < BAR
        return self.verdict == "do-not-ship" and self.truth >= BAR

    @property
    def covers(self) -> bool | None:
        """None where the study could not say how much it varies."""
        return None if self.low is None or self.high is None else self.low <= self.truth <= self.high


def aa_pairs(count: int, random: np.random.Generator) -> Iterator[Pair]:
    """The ratio is 1 for answers of this length, to within a thousandth."""
    for _ in range(count):
        yield _drawn(random, ratio=_ratio_for(1.0), prompts=(2, 3, 6, 8, 12, 24), launches=(1, 1, 3))


def random_pairs(count: int, random: np.random.Generator) -> Iterator[Pair]:
    for _ in range(count):
        ratio = _ratio_for(float(random.choice(RATIOS)))
        yield _drawn(random, ratio=ratio, prompts=(6, 12, 24, 48, 96), launches=(1, 3))


def _ratio_for(truth: float) -> float:
    """The ratio of long answers that gives this truth for short ones."""
    low, high = 0.1, float(K + 1)
    for _ in range(60):
        middle = (low + high) / 2
        pair = Pair(
            ratio=middle, prompts=1, streams=1, launches=1, temperatures="one",
            prompt_sd=0, noise_sd=0, launch_sd=0, seed=0,
        )  # fmt: skip
        low, high = (middle, high) if pair.truth < truth else (low, middle)
    return (low + high) / 2


def _drawn(
    random: np.random.Generator, *, ratio: float, prompts: tuple[int, ...], launches: tuple[int, ...]
) -> Pair:
    return Pair(
        ratio=ratio,
        prompts=int(random.choice(prompts)),
        streams=int(random.choice((1, 2, 4, 8))),
        launches=int(random.choice(launches)),
        temperatures=str(random.choice(("one", "by segment", "own"))),
        prompt_sd=float(random.choice((0.05, 0.2, 0.3))),
        noise_sd=float(random.choice((0.02, 0.1))),
        launch_sd=float(random.choice((0.0, 0.02))),
        seed=int(random.integers(1, 1_000_000)),
    )


def run(pair: Pair) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        prompts = Path(folder) / "prompts.jsonl"
        prompts.write_text("\n".join(json.dumps(line) for line in _prompts(pair)) + "\n")
        done = subprocess.run(
            [sys.executable, "-m", "speclift", "decide", *_flags(pair), "--prompts", str(prompts), "--json"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    if done.returncode not in (0, 3, 4, 5):
        raise RuntimeError(f"{pair}\nended with {done.returncode}:\n{done.stderr[-2000:]}")
    document: dict[str, Any] = json.loads(done.stdout)
    speedup = document["speedup"] or {}
    low, value, high = (speedup.get(name) for name in ("low", "value", "high"))
    return Outcome(pair=pair, truth=pair.truth, verdict=document["verdict"], low=low, value=value, high=high)


def _prompts(pair: Pair) -> Iterator[dict[str, Any]]:
    for number in range(pair.prompts):
        segment = number % len(SEGMENTS)
        temperature = {"one": 0.0, "by segment": 0.4 * segment, "own": round(number / pair.prompts, 3)}
        yield {
            "id": f"p{number}",
            "prompt": f"study {pair.seed}, prompt {number}",
            "segment": SEGMENTS[segment],
            "temperature": temperature[pair.temperatures],
        }


def _flags(pair: Pair) -> list[str]:
    truths = {
        "tpot_s": TPOT_S,
        "ttft_s": TTFT_S,
        "noise_sd": pair.noise_sd,
        "launch_sd": pair.launch_sd,
        "seed": pair.seed,
        "spec.prompt_sd": pair.prompt_sd,
        "spec.acceptance": 1.0,
        "spec.step_cost": pair.step_cost,
    }
    return [
        # The truth is known per token.
        *("--metric", "tpot"),
        *("--engine", "fake", "--method", "ngram", "--k", str(K), "--max-tokens", str(TOKENS)),
        *("--launches", str(pair.launches), "--concurrency", str(pair.streams), "--verify", "off"),
        *("--min-speedup", str(BAR), "--requests", str(pair.prompts), "--study", "study"),
        *(word for name, value in truths.items() for word in ("--engine-arg", f"{name}={value}")),
    ]


def main() -> None:
    options = trial_options(str(__doc__), seed=1, aa=200, pairs=200, at_once=2)
    random = np.random.default_rng(options.seed)
    drawn = {"A/A": aa_pairs(options.aa, random), "random": random_pairs(options.pairs, random)}
    outcomes: dict[str, list[Outcome]] = {}
    with ThreadPoolExecutor(options.at_once) as pool:
        for kind, pairs in drawn.items():
            outcomes[kind] = []
            for outcome in pool.map(run, list(pairs)):
                outcomes[kind].append(outcome)
                print(f"{kind:6s} {_line(outcome)}", flush=True)
    broken = [*_broken_aa(outcomes["A/A"]), *_broken(outcomes["random"])]
    for kind, each in outcomes.items():
        print(f"{kind}: {_summary(each)}")
    print("\n".join(f"BROKEN: {line}" for line in broken) or "every promise holds")
    sys.exit(bool(broken))


def _line(outcome: Outcome) -> str:
    pair = outcome.pair
    interval = "unknown" if outcome.low is None else f"[{outcome.low:.2f}, {outcome.high:.2f}]"
    marks = ("  WRONG" if outcome.is_wrong else "") + ("  not covered" if outcome.covers is False else "")
    return (
        f"truth {outcome.truth:.2f}  {outcome.value or math.nan:.2f} {interval:<14} {outcome.verdict:<18} "
        f"{pair.prompts:2d} prompts {pair.launches} launches c={pair.streams} {pair.temperatures:<10} "
        f"sd {pair.prompt_sd:.2f} {pair.noise_sd:.2f} {pair.launch_sd:.2f}{marks}"
    )


def _summary(outcomes: list[Outcome]) -> str:
    verdicts = Counter(outcome.verdict for outcome in outcomes)
    known = [outcome.covers for outcome in outcomes if outcome.covers is not None]
    told = ", ".join(f"{verdict} {count}" for verdict, count in verdicts.most_common())
    wrong = sum(outcome.is_wrong for outcome in outcomes)
    return f"{told}; {wrong} wrong; {sum(known)} of {len(known)} intervals cover"


def _broken_aa(outcomes: list[Outcome]) -> Iterator[str]:
    shipped = sum(outcome.verdict in SHIPS for outcome in outcomes)
    if shipped:
        yield f"{shipped} of {len(outcomes)} A/A pairs shipped"


def _broken(outcomes: list[Outcome]) -> Iterator[str]:
    if not outcomes:
        return
    wrong = sum(outcome.is_wrong for outcome in outcomes)
    if wrong > WRONG_MAX * len(outcomes):
        yield f"{wrong} of {len(outcomes)} verdicts are wrong"
    known = [outcome.covers for outcome in outcomes if outcome.covers is not None]
    share = sum(known) / len(known)
    if share < COVERED_MIN - 2 * math.sqrt(share * (1 - share) / len(known)):
        yield f"{share:.1%} of {len(known)} intervals cover the truth"
    idle = [o.verdict for o in outcomes if o.pair.prompts >= 24 and abs(o.truth - 1.0) < 0.01]
    if idle and idle.count("do-not-ship") < NOT_SHIPPED_MIN * len(idle):
        yield f"{idle.count('do-not-ship')} of {len(idle)} pairs without gain were told not to ship"


if __name__ == "__main__":
    main()
