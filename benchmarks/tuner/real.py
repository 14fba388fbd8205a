"""Does the tuner find what the whole grid finds, on a real engine, and at what part of its time?

    python benchmarks/tuner/real.py [--repeats 3] [--prompts 24] [--json]

Every arm on the embedded llama.cpp first, interleaved and repeated on fresh launches; then a search over the same arms
on as many prompts. The grid judges: how far its best arm is ahead of the search's choice, by decoded tokens per second
over all prompts. From the grid's longest run of each method also follows the accepted length at every other k, which
the grid measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import speclift
from speclift.core.records import Phase, Record
from speclift.search.counts import request_counts
from speclift.search.predictor import AcceptanceRun, accepted_lengths
from speclift.studies.study import Study

DRAFT = "smollm2-135m-draft"
SEGMENTS = ("verbatim-rewrite", "code-editing", "json-extraction", "chat")
# By method: what it is called in arm names, how it is written, and the k to try.
METHODS = {
    "ngram-n4": ("ngram,n=4,k={k}", (5, 7, 11, 15)),
    "ngram-n7": ("ngram,n=7,k={k}", (7, 11, 15)),
    "draft": ("draft,k={k}", (1, 2, 3, 5, 7)),
}


def measured(study: Path) -> list[Record]:
    with Study.open(study) as opened:
        return [
            record for record in opened.records() if record.is_ok and record.place.phase is Phase.MEASURED
        ]


def rates(records: Sequence[Record]) -> dict[str, float]:
    """Decoded tokens per second of decoding, of one stream, by arm."""
    tokens: dict[str, int] = defaultdict(int)
    seconds: dict[str, float] = defaultdict(float)
    for record in records:
        if record.first_token_s is not None and record.last_token_s is not None and record.output_tokens:
            tokens[record.place.arm] += record.output_tokens - 1
            seconds[record.place.arm] += record.last_token_s - record.first_token_s
    return {arm: tokens[arm] / seconds[arm] for arm in tokens}


def length_errors(records: Sequence[Record], arms: dict[str, tuple[str, int]]) -> dict[str, list[float]]:
    """Predicted from the longest run over measured, less 1, by method and shorter k."""
    runs: dict[str, dict[int, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        if record.place.arm in arms and record.output_tokens and record.steps is not None:
            method, k = arms[record.place.arm]
            runs[method][k].append(
                request_counts(
                    record.place.request_id, output_tokens=record.output_tokens, steps=record.steps
                )
            )
    errors = {}
    for method, by_k in runs.items():
        longest = max(by_k)
        shorter = sorted(set(by_k) - {longest})
        curve = accepted_lengths(
            [AcceptanceRun(k=longest, requests=tuple(by_k[longest]))], shorter, prefix_only=True
        )
        errors[method] = [
            curve.at(k).length.value / (sum(r.tokens for r in by_k[k]) / sum(r.steps for r in by_k[k])) - 1
            for k in shorter
        ]
    return errors


def run(folder: Path, *, repeats: int, prompts: int, threads: int) -> dict[str, Any]:
    written = {(name, k): text.format(k=k) for name, (text, ks) in METHODS.items() for k in ks}
    shared: dict[str, Any] = {
        "methods": tuple(written.values()),
        "drafts": (DRAFT,),
        "segments": SEGMENTS,
        "temperatures": (0.0,),
        "max_tokens": 64,
        "threads": threads,
    }
    begun = time.monotonic()
    speclift.measure(**shared, requests=prompts, launches=repeats, study=folder / "grid")
    grid_s = time.monotonic() - begun
    document = speclift.tune(**shared, requests=2 * prompts, launches=1, verify="off", study=folder / "tune")
    tuning: Any = document["tuning"]
    records = measured(folder / "grid")
    found = rates(records)
    with Study.open(folder / "grid") as grid:
        by_speculation = {str(arm.speculation): arm.name for arm in grid.plan.arms}
        arms = {
            arm.name: (f"{arm.method}-n{getattr(arm.speculation, 'n', 0)}", arm.k)
            for arm in grid.plan.arms
            if not arm.is_baseline
        }
    with Study.open(folder / "tune") as study:
        chosen = next(arm for arm in study.plan.arms if arm.name == tuning["winner"])
    choice = by_speculation[str(chosen.speculation)]
    best = max(found, key=lambda arm: found[arm])
    errors = length_errors(records, arms)
    return {
        "arms": len(found),
        "grid_best": best,
        "tuner_choice": choice,
        "behind": 1 - found[choice] / found[best],
        "grid_s": grid_s,
        "search_s": tuning["spent_s"],
        "time_ratio": tuning["spent_s"] / grid_s,
        "launches": len(tuning["jobs"]),
        "accepted_length_error": {method: max(map(abs, each)) for method, each in errors.items()},
        "speedups": {arm: rate / found["baseline"] for arm, rate in sorted(found.items())},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = run(Path(folder), repeats=options.repeats, prompts=options.prompts, threads=options.threads)
    if options.json:
        json.dump(found, sys.stdout, indent=1)
        return
    print(f"grid: {found['arms']} arms, {found['grid_s']:.0f} s, best {found['grid_best']}")
    print(
        f"tuner: {found['launches']} launches, {found['search_s']:.0f} s ({found['time_ratio']:.2f} of the grid), ",
        end="",
    )
    print(f"chose {found['tuner_choice']}, {100 * found['behind']:.1f} % behind the grid's best")
    for method, error in found["accepted_length_error"].items():
        print(f"accepted length of {method} at other k: off by at most {100 * error:.2f} %")
    for arm, speedup in found["speedups"].items():
        print(f"  {arm:24s} {speedup:.2f}x")


if __name__ == "__main__":
    main()
