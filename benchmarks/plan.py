"""How far does `plan` lie from what was measured? Each configuration is left out, the rest fitted, its rows predicted.

`python benchmarks/plan.py [FILE ...]` reads the rows under benchmarks/gpu/records, or the files that are named. It
prints how many of the rows left out lie inside the interval that plan states, how wide that is, the worst misses,
AISimulate's figures for the same cells, and the constants that the fit on all rows gives.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from speclift.arithmetic.cost import Drafting, DraftPasses, EngineLosses, LookUp, step_s
from speclift.engines.vllm.planning import GRAPH_TOKENS, model_for
from speclift.planner.config_shape import shape_from_config
from speclift.planner.memory import Placed
from speclift.planner.precision import nominal_bytes, precision_named, weights_in
from speclift.planner.prediction import Acceptance, Assumed, EngineModel, Lengths, Predictor, forward_model
from speclift.weights.catalogue_files import find_gpu, find_model

RECORDS = Path(__file__).parent / "gpu" / "records"
H200 = find_gpu("h200")
VERSIONS = ("0.24", "0.26")
# Drafters in the rows, by the name of their shape: a model, and how it drafts.
HEADS, PARALLEL = ("eagle-head",), ("llama-1b-parallel",)
# Shapes in the rows: the catalogue's name, and what was changed in its config.
CATALOGUE: dict[str, tuple[str, dict[str, object]]] = {
    "llama-8b": ("llama-3.1-8b", {}),
    "llama-70b": ("llama-3.1-70b", {}),
    "llama-1b": ("llama-3.2-1b", {}),
    "llama-1b-parallel": ("llama-3.2-1b", {}),
    "wide-4-layers": ("llama-3.1-8b", {"num_hidden_layers": 4, "tie_word_embeddings": True}),
    "eagle-head": ("llama-3.1-8b", {"num_hidden_layers": 1}),
    "smollm": ("smollm2-135m", {}),
}
SCENARIOS = {
    "8b-1b": ("llama-8b", "llama-1b"),
    "70bfp8-8b": ("llama-70b fp8", "llama-8b"),
    "8b": ("llama-8b", ""),
}
VARIANTS = {
    "draft": "llama-1b",
    "draft-ahead": "llama-1b",
    "draft-parallel": "llama-1b-parallel",
    "draft-wide": "wide-4-layers",
    "eagle-v1": "eagle-head",
    "eagle-v2": "eagle-head",
}
# What plan does not model, and why such rows are no test of it.
LEFT_ASIDE = {
    "draft-eager": "the drafter was told not to compile",
    "per-batch-size": "k changes with the load",
}
# AISimulate (PyPI) asked for the same cells with its defaults: target, drafter, k, then loads 1, 16 and 64.
AISIMULATE = {
    ("llama-8b", "llama-1b", 5): (1.62, 1.66, 1.30),
    ("llama-8b", "llama-1b", 1): (1.40, 1.45, 1.42),
    ("llama-8b", "ngram", 5): (3.60, 3.48, 2.27),
    ("llama-70b fp8", "llama-8b", 4): (1.97, 1.72, 0.88),
}
AISIMULATE_LOADS = (1, 16, 64)
COVERAGE_WANTED, SPREAD_WANTED = 0.90, 2.0
WORST_SHOWN = 6
# How tightly a constant is held to where the fit starts: one standard deviation is a factor e^0.5.
PRIOR_SD, ROW_SD = 0.5, 0.12


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured cell; `drafter` is empty where nothing drafts."""

    version: str
    target: str
    drafter: str
    k: int
    concurrency: int
    acceptance: Acceptance
    tpot_s: float
    context: int
    # Whether the server prepared the next step meanwhile, as vLLM does unless told otherwise.
    is_scheduled_ahead: bool = True
    baseline: Row | None = None

    @property
    def configuration(self) -> tuple[str, str, str, int]:
        return self.version, self.target, self.drafter, self.k

    @property
    def speedup(self) -> float:
        assert self.baseline is not None
        return self.baseline.tpot_s / self.tpot_s


# --- reading


def read_rows(paths: Sequence[Path]) -> tuple[list[Row], list[str]]:
    rows: list[Row] = []
    aside: list[str] = []
    for path in paths:
        content = path.read_bytes()
        text = gzip.decompress(content) if path.suffix == ".gz" else content
        lines = [json.loads(line) for line in text.splitlines()]
        if "scenario" in lines[0]:
            own = list(_offline(lines, path))
        elif "variant" in lines[0]:
            own = list(_loop(lines, aside))
        else:
            own = list(_study(lines, aside))
        rows += _with_baselines(own, aside)
    return rows, aside


def _with_baselines(rows: Sequence[Row], aside: list[str]) -> Iterator[Row]:
    plain = {(row.target, row.concurrency): row for row in rows if row.k == 0}
    for row in rows:
        found = plain.get((row.target, row.concurrency))
        if row.k == 0 or found is not None:
            yield replace(row, baseline=found if row.k else None)
        else:
            aside.append(f"{row.drafter} at {row.concurrency} (no baseline was measured there)")


def _offline(lines: Iterable[dict[str, Any]], path: Path) -> Iterator[Row]:
    """vLLM's offline engine, 256 prompt and 128 output tokens; the version stands in the file's name."""
    version = _short(path.name.partition("vllm-")[2])
    for line in lines:
        target, draft = SCENARIOS[line["scenario"]]
        yield Row(
            version=version,
            target=target,
            drafter="" if line["k"] == 0 else "ngram" if line["method"] == "ngram" else draft,
            k=line["k"],
            concurrency=line["concurrency"],
            acceptance=Assumed(rate=line["alpha"]),
            tpot_s=line["tpot_s_p50"],
            context=320,
        )


def _loop(lines: Iterable[dict[str, Any]], aside: list[str]) -> Iterator[Row]:
    """Rows of vLLM's offline engine in a loop: the time of a step at each batch size."""
    for line in lines:
        variant = line["variant"]
        if variant in LEFT_ASIDE:
            aside += [f"{variant} ({LEFT_ASIDE[variant]})"] * len(line["cells"])
            continue
        for cell in line["cells"]:
            yield Row(
                version=_short(line["vllm"]),
                target="llama-8b",
                drafter="" if variant == "baseline" else VARIANTS[variant],
                k=0 if variant == "baseline" else line["k"],
                concurrency=cell["concurrency"],
                acceptance=Assumed(rate=line["alpha"]),
                tpot_s=cell["tpot_s"],
                context=320,
            )


def _study(lines: Sequence[dict[str, Any]], aside: list[str]) -> Iterator[Row]:
    """A study that benchmarks/gpu/keep.py kept: P50 of the time per token of every arm and load."""
    version = _short(lines[0]["engine_version"].removeprefix("vllm "))
    target = "smollm" if "smollm" in lines[0]["model"] else "llama-8b"
    launches = {line["id"]: line for line in lines if line["kind"] == "launch"}
    cells: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        if line["kind"] == "record" and line["outcome"] == "ok" and line["output_tokens"] > 1:
            cells[(line["arm"], json.loads(line["load"])["concurrency"])].append(line)
    for (arm, concurrency), records in cells.items():
        if "per-batch-size" in arm:
            aside.append(f"{arm[:20]}... ({LEFT_ASIDE['per-batch-size']})")
            continue
        settings = dict(launches[records[0]["launch"]]["settings"])
        yield Row(
            version=version,
            target=target,
            drafter=_drafter_of(arm),
            k=int(found.group(1)) if (found := re.search(r"-k(\d+)", arm)) else 0,
            concurrency=concurrency,
            acceptance=Assumed(rate=0.8) if "synthetic" in arm else _counted(lines, records),
            tpot_s=float(np.median([_tpot_s(record) for record in records])),
            context=round(
                float(np.mean([record["prompt_tokens"] + record["output_tokens"] / 2 for record in records]))
            ),
            is_scheduled_ahead=settings.get("async_scheduling") != "disabled",
        )


def _drafter_of(arm: str) -> str:
    for word, drafter in (("ngram", "ngram"), ("eagle", "eagle-head"), ("parallel", "llama-1b-parallel")):
        if word in arm:
            return drafter
    return "llama-1b" if "draft" in arm else ""


def _tpot_s(record: dict[str, Any]) -> float:
    return float((record["last_token_s"] - record["first_token_s"]) / (record["output_tokens"] - 1))


def _counted(lines: Sequence[dict[str, Any]], records: Sequence[dict[str, Any]]) -> Acceptance:
    """Tokens per step as the engine counted them in the turns of these records."""
    turns = {(record["launch"], record["block"]) for record in records}
    accepted = generated = 0.0
    for line in lines:
        if line["kind"] == "turn" and (line["launch"], line["block"]) in turns:
            for name, count in line["counters"]["values"].items():
                accepted += count if name.startswith("vllm:spec_decode_num_accepted_tokens_total") else 0
                generated += count if name.startswith("vllm:generation_tokens_total") else 0
    length = generated / (generated - accepted) if generated else 1.0
    return Lengths(by_k=dict.fromkeys(range(1, 33), length), label="counted", source="the engine's counters")


def _short(version: str) -> str:
    return ".".join(version.split(".")[:2])


# --- predicting


def placed(name: str) -> Placed:
    word, _, precision = name.partition(" ")
    known, changed = CATALOGUE[word]
    entry = find_model(known)
    assert entry is not None
    shape = shape_from_config({**entry.config, **changed}, name=word, source=entry.source)
    chosen = precision_named(precision or "bf16")
    return Placed(
        shape=shape,
        weights=weights_in(shape, chosen),
        nominal_bytes=nominal_bytes(shape.parameters.total, chosen),
    )


def predictor(row: Row, engine: EngineModel) -> Predictor:
    drafting: Drafting = LookUp()
    if row.drafter not in ("", "ngram"):
        drafting = DraftPasses(
            model=forward_model(placed(row.drafter), H200, parallel=1, kv_value_bytes=2),
            is_head=row.drafter in HEADS,
            is_parallel=row.drafter in PARALLEL,
        )
    return Predictor(
        target=forward_model(placed(row.target), H200, parallel=1, kv_value_bytes=2),
        drafting=drafting,
        engine=engine,
        context=row.context,
    )


class Bench:
    """Rows with their predictors, built once: the fit evaluates them thousands of times."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self.predictors = {id(row): predictor(row, model_for(H200, row.version)) for row in rows}

    def plain_s(self, row: Row, losses: EngineLosses) -> float:
        plain = row.baseline or row
        own = self.predictors[id(row)]
        step = step_s(own.target, concurrency=row.concurrency, context=row.context, losses=losses)
        return step + (0.0 if plain.is_scheduled_ahead else losses.unscheduled_s)

    def speedup(self, row: Row, losses: EngineLosses) -> float:
        own = self.predictors[id(row)]
        step = step_s(
            own.target,
            concurrency=row.concurrency,
            context=row.context,
            k=row.k,
            drafting=own.drafting,
            losses=losses,
        )
        return row.acceptance.length(row.k) * self.plain_s(row, losses) / step

    def interval(self, row: Row, losses: EngineLosses, factor: float) -> tuple[float, float, float]:
        """As plan states it, against the baseline that was measured."""
        own = replace(
            self.predictors[id(row)],
            engine=EngineModel(losses=losses, factor=factor, source="refitted"),
        )
        value = self.speedup(row, losses)
        stated = own.best(row.concurrency, row.acceptance, [row.k]).speedup
        against = value / stated.value
        return value, stated.low * against, stated.high * against


# --- fitting

# Constants by version, and those that all versions share.
SHARED = ("bandwidth_share", "compute_share", "narrow_compute_share", "step_s", "speculation_s", "unscheduled_s",
          "head_pass_s", "ngram_sequence_s", "ungraphed_layer_s")  # fmt: skip
BY_VERSION = ("draft_pass_s", "draft_layer_s")


# Where a fit starts and what weakly holds it: round guesses, chosen after a first look at the same rows. Constants that
# no row speaks of stay here.
START = EngineLosses(
    bandwidth_share=0.75, compute_share=0.6, narrow_compute_share=0.35, overlap=2.0, step_s=1e-3, speculation_s=1e-3,
    unscheduled_s=1e-3, draft_pass_s=0.5e-3, draft_layer_s=0.15e-3, head_pass_s=0.05e-3, ngram_sequence_s=40e-6,
    graph_tokens=GRAPH_TOKENS, ungraphed_layer_s=0.15e-3,
)  # fmt: skip


def fit(bench: Bench, rows: Sequence[Row]) -> dict[str, EngineLosses]:
    """Least squares of logarithms: speedups of what drafts, steps of what does not."""
    first = np.log(
        [getattr(START, name) for name in SHARED]
        + [getattr(START, name) for _ in VERSIONS for name in BY_VERSION]
    )

    def losses_at(logs: np.ndarray) -> dict[str, EngineLosses]:
        values: list[Any] = [float(value) for value in np.exp(logs)]
        shared = dict(zip(SHARED, values, strict=False))
        found = {}
        for place, version in enumerate(VERSIONS):
            begin = len(SHARED) + place * len(BY_VERSION)
            own = dict(zip(BY_VERSION, values[begin:], strict=False))
            found[version] = replace(START, **shared, **own)
        return found

    def errors(logs: np.ndarray) -> np.ndarray:
        losses = losses_at(logs)
        found = [
            np.log(bench.speedup(row, losses[row.version]) / row.speedup)
            if row.k
            else np.log(bench.plain_s(row, losses[row.version]) / row.tpot_s)
            for row in rows
        ]
        return np.concatenate([np.array(found) / ROW_SD, (logs - first) / PRIOR_SD])

    shares = [name.endswith("share") for name in SHARED] + [False] * (len(first) - len(SHARED))
    upper = np.where(shares, 0.0, np.inf)
    return losses_at(least_squares(errors, first, bounds=(-np.inf, upper), loss="soft_l1").x)


# --- printing


def main(paths: Sequence[Path]) -> int:
    rows, aside = read_rows(paths)
    bench = Bench(rows)
    drafted = [row for row in rows if row.k]
    factor = model_for(H200, VERSIONS[-1]).factor
    predicted: dict[int, tuple[float, float, float]] = {}
    for configuration in sorted({row.configuration for row in drafted}):
        refitted = fit(bench, [row for row in rows if row.configuration != configuration])
        for row in drafted:
            if row.configuration == configuration:
                predicted[id(row)] = bench.interval(row, refitted[row.version], factor)
    lines = [
        f"{len(rows)} rows of {len(paths)} files: {len(drafted)} that draft, in "
        f"{len({row.configuration for row in drafted})} configurations; {len(aside)} left aside: "
        + "; ".join(sorted(set(aside)))
    ]
    inside = [predicted[id(row)][1] <= row.speedup <= predicted[id(row)][2] for row in drafted]
    spread = float(np.median([predicted[id(row)][2] / predicted[id(row)][1] for row in drafted]))
    for version in VERSIONS:
        of_version = [hit for hit, row in zip(inside, drafted, strict=True) if row.version == version]
        lines.append(f"vLLM {version}: {sum(of_version)} of {len(of_version)} rows left out lie inside")
    coverage = sum(inside) / len(inside)
    lines += [
        f"coverage {coverage:.1%} (wanted {COVERAGE_WANTED:.0%}), median high/low {spread:.2f} "
        f"(wanted at most {SPREAD_WANTED:g}), factor {factor:g}",
        "",
        "worst misses (configuration, concurrency: measured, predicted, interval)",
        *_worst(drafted, predicted),
        "",
        "beside AISimulate (vLLM 0.24, acceptance 0.8): measured, plan with the configuration left out, AISimulate",
        *_beside(drafted, predicted),
        "",
        "constants fitted to all rows",
        *_constants(fit(bench, rows)),
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0 if coverage >= COVERAGE_WANTED and spread <= SPREAD_WANTED else 1


def _worst(rows: Sequence[Row], predicted: dict[int, tuple[float, float, float]]) -> Iterator[str]:
    def miss(row: Row) -> float:
        return float(abs(np.log(predicted[id(row)][0] / row.speedup)))

    for row in sorted(rows, key=miss, reverse=True)[:WORST_SHOWN]:
        value, low, high = predicted[id(row)]
        version, target, drafter, k = row.configuration
        yield (
            f"  {version} {target} + {drafter} k={k}, {row.concurrency}: {row.speedup:.2f}x, "
            f"{value:.2f}x [{low:.2f}, {high:.2f}], off by {np.exp(miss(row)):.2f}"
        )


def _beside(rows: Sequence[Row], predicted: dict[int, tuple[float, float, float]]) -> Iterator[str]:
    errors: dict[str, list[float]] = defaultdict(list)
    for (target, drafter, k), figures in AISIMULATE.items():
        for load, figure in zip(AISIMULATE_LOADS, figures, strict=True):
            cell = ("0.24", target, drafter, k)
            same = [row for row in rows if row.configuration == cell and row.concurrency == load]
            if not same:
                continue
            measured = float(np.exp(np.mean([np.log(row.speedup) for row in same])))
            value = predicted[id(same[0])][0]
            errors["plan"].append(abs(np.log(value / measured)))
            errors["AISimulate"].append(abs(np.log(figure / measured)))
            yield f"  {target} + {drafter} k={k}, {load}: {measured:.2f}x, {value:.2f}x, {figure:.2f}x"
    for name, found in errors.items():
        median, most = np.exp(np.median(found)), np.exp(max(found))
        yield f"  {name}: off by a factor {median:.2f} in the median, {most:.2f} at most"


def _constants(fitted: dict[str, EngineLosses]) -> Iterator[str]:
    for field in fields(EngineLosses):
        values = [getattr(fitted[version], field.name) for version in VERSIONS]
        yield f"  {field.name:22}" + "  ".join(f"{value:.4g}" for value in values)


if __name__ == "__main__":
    named = [Path(argument) for argument in sys.argv[1:]]
    raise SystemExit(main(named or sorted(RECORDS.glob("*.jsonl*"))))
