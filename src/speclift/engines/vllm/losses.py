"""What vLLM loses against the roofline, by version: fitted to the rows of benchmarks/gpu/records on one H200.

`python benchmarks/plan.py` prints these constants and how well they predict rows that were left out (docs/plan.md).
"""

from __future__ import annotations

from dataclasses import replace

from speclift.arithmetic.cost import EngineLosses
from speclift.core.errors import EngineError, UsageError
from speclift.core.hardware import Device
from speclift.engines.vllm.dialect.config_rules import DRAFT_GRAPHS_SINCE, DRAFT_ON_NEW_RUNNER
from speclift.engines.vllm.flags import parse_version
from speclift.linter.rows import Release
from speclift.planner.prediction import EngineModel

# vllm.config.compilation: graphs are captured for at most 512 tokens unless told otherwise.
GRAPH_TOKENS = 512
_SHARED = EngineLosses(
    bandwidth_share=0.808, compute_share=0.493, narrow_compute_share=0.329, overlap=2.0, step_s=1.18e-3,
    speculation_s=1.58e-3, unscheduled_s=1.19e-3, head_pass_s=43.3e-6, ngram_sequence_s=23.9e-6,
    graph_tokens=GRAPH_TOKENS, ungraphed_layer_s=86.9e-6,
)  # fmt: skip
# A separate draft model runs outside graphs in 0.24 and, by its source, in 0.32's newer runner.
OUTSIDE_GRAPHS = replace(_SHARED, draft_pass_s=0.677e-3, draft_layer_s=0.252e-3)
IN_GRAPHS = replace(_SHARED, draft_pass_s=0.464e-3, draft_layer_s=0.108e-3)

MEASURED = {(0, 24): OUTSIDE_GRAPHS, (0, 26): IN_GRAPHS}
# The newest that was measured stands where no version is named.
NEWEST_MEASURED = "0.26"
# Of rows whose configuration was left out of the fit at least nine of ten lie within this factor; where nothing was
# measured the factor is a judgement.
TRUST_MEASURED, TRUST_ELSEWHERE = 1.4, 2.0

VLLM_CPU = EngineModel(
    losses=EngineLosses(overlap=1.0, step_s=60e-3, speculation_s=20e-3, draft_pass_s=60e-3),
    factor=3.0,
    source="vLLM 0.32's CPU build ran a 135M model at 8-15 tok/s on two cores",
)


def losses_of(version: str) -> EngineLosses:
    is_graphed = DRAFT_GRAPHS_SINCE <= _release(version) < DRAFT_ON_NEW_RUNNER
    return IN_GRAPHS if is_graphed else OUTSIDE_GRAPHS


def model_for(device: Device, version: str | None) -> EngineModel:
    if device.is_cpu:
        return VLLM_CPU
    asked = version or NEWEST_MEASURED
    losses = losses_of(asked)
    is_measured_release = _release(asked)[:2] in MEASURED
    is_measured_device = device.name.startswith("h200-141gb")
    fitted = next(".".join(map(str, release)) for release, own in MEASURED.items() if own is losses)
    source = f"fitted to vLLM {fitted} on one H200"
    if not is_measured_release:
        source += f", not checked on {asked}"
    if not is_measured_device:
        source += ", not checked on this GPU"
    trust = TRUST_MEASURED if is_measured_release and is_measured_device else TRUST_ELSEWHERE
    return EngineModel(losses=losses, factor=trust, source=source, version=asked)


def _release(version: str) -> Release:
    try:
        return parse_version(version).release
    except EngineError as error:
        raise UsageError(f"--engine-version: {error}", hint="such as 0.26.0") from error
