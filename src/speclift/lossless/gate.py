"""The gate's answer for each arm: every part put together, with the texts that show it side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from speclift.core.arm import Arm
from speclift.core.errors import EngineError, OperatingError
from speclift.core.results import Finding, Level, fail, warn
from speclift.core.speculation import Speculation, Synthetic, method_name
from speclift.core.traffic import Request
from speclift.lossless.answers import Answer
from speclift.lossless.divergence import Divergence, Kind
from speclift.lossless.edges import EdgeCheck
from speclift.lossless.greedy import Control, Greedy, settled_by_equality
from speclift.lossless.result import Result, worst
from speclift.lossless.sampled import Sampled
from speclift.lossless.soak.outcome import Soak
from speclift.lossless.text_faults import text_faults

SAID = {
    Kind.TOKEN: "another token",
    Kind.ENDED: "ends",
    Kind.LONGER: "goes on",
    Kind.TRUNCATED: "cut off",
    Kind.REFUSED: "no answer",
}
EXAMPLES_MAX = 5
EXAMPLE_CHARACTERS = 600
# A drafter that is never or always right at temperature 1 is more often a fault than a fact (vLLM PR 35548).
ACCEPTED_LOW, ACCEPTED_HIGH = 0.02, 0.995
DRAFTED_MIN = 50
FAULT_ALPHA = 0.001
# Settings that give up the target's own distribution, under the names their engines use: vLLM's synthetic mode,
# typical acceptance (vLLM to 0.9, TensorRT-LLM, Medusa), SGLang's accept thresholds, llama.cpp's synthetic mode.
LOSSY_WORDS = {
    "synthetic": "acceptance is forced: the text is not the model's",
    "spec-synth": "acceptance is forced: the text is not the model's",
    "typical": "typical acceptance keeps draft tokens that the target would reject",
    "posterior": "typical acceptance keeps draft tokens that the target would reject",
    "accept-threshold": "a lower threshold keeps draft tokens that the target would reject",
    "simulate_acc": "acceptance is forced: the text is not the model's",
    '"fly"': "FLy accepts draft tokens that differ from the target's",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One prompt with both outputs."""

    arm: str
    case: str
    why: str
    prompt: str
    baseline: str
    answer: str
    margin: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmGate:
    arm: str
    method: str
    result: Result
    greedy: Greedy | None
    sampled: Sampled | None
    edges: tuple[EdgeCheck, ...] = ()
    findings: tuple[Finding, ...] = ()
    examples: tuple[Example, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    depth: str
    detect: float
    planned_tokens: int
    control: Control | None
    arms: tuple[ArmGate, ...]
    wall_s: float = 0.0
    notes: tuple[str, ...] = ()
    # What load, tools, turns and time did; None where nobody asked for it.
    soak: Soak | None = None

    @property
    def result(self) -> Result:
        return worst([*(arm.result for arm in self.arms), *([self.soak.result] if self.soak else [])])

    @property
    def examples(self) -> tuple[Example, ...]:
        return tuple(example for arm in self.arms for example in arm.examples)


def with_equality(gate: Gate, invariant: Gate) -> Gate:
    """The gate with what servers of batch-invariant kernels settled of it."""
    asked = {arm.arm: arm.greedy for arm in invariant.arms}
    control = invariant.control
    return replace(
        gate,
        arms=tuple(
            arm
            if control is None or (equal := asked.get(arm.arm)) is None or arm.greedy is None
            else _with_greedy(arm, settled_by_equality(arm.greedy, equal, control), invariant)
            for arm in gate.arms
        ),
        wall_s=gate.wall_s + invariant.wall_s,
        notes=(*gate.notes, "differences at temperature 0 were asked again with batch-invariant kernels"),
    )


def _with_greedy(arm: ArmGate, greedy: Greedy, invariant: Gate) -> ArmGate:
    """Other parts that failed stay failed."""
    parts = [greedy.result] if arm.sampled is None else [greedy.result, arm.sampled.result]
    result = Result.FAIL if arm.result is Result.FAIL else worst(parts)
    shown = invariant.examples if greedy.result is Result.FAIL else arm.examples
    return replace(arm, greedy=greedy, result=result, examples=shown)


@dataclass(slots=True, kw_only=True)
class Told:
    """What one server said, by way of asking."""

    answers: dict[str, list[Answer]] = field(default_factory=dict)

    def of(self, way: str) -> list[Answer]:
        return self.answers.get(way, [])

    def all(self) -> list[Answer]:
        return [answer for each in self.answers.values() for answer in each]


def judge_arm(
    arm: Arm,
    *,
    greedy: Greedy | None,
    sampled: Sampled | None,
    edges: Sequence[EdgeCheck],
    told: Told,
    baseline: Told,
    prompts: Mapping[str, Request],
) -> ArmGate:
    garbled = garbled_finding(arm.name, told, baseline)
    findings = [
        *([garbled] if garbled else []),
        *(_edge_finding(arm.name, edge) for edge in edges if edge.result is Result.INCONCLUSIVE),
        *acceptance_findings(arm.name, told),
    ]
    results = [part.result for part in (greedy, sampled) if part is not None]
    results += [Result.FAIL for edge in edges if edge.result is Result.FAIL]
    results += [Result.FAIL] if garbled and garbled.level is Level.FAIL else []
    return ArmGate(
        arm=arm.name,
        method=arm.method,
        result=worst(results),
        greedy=greedy,
        sampled=sampled,
        edges=tuple(edges),
        findings=tuple(findings),
        examples=examples_of(arm.name, greedy, sampled, edges, told, baseline, prompts),
    )


def lossy_by_design(arm: Arm, settings: Sequence[str]) -> str:
    """Why this arm cannot pass whatever it says; empty for methods that promise the target's distribution."""
    if isinstance(arm.speculation, Synthetic):
        return LOSSY_WORDS["synthetic"]
    words = " ".join([*settings, *(f'"{value}" {key}' for key, value in _extra(arm.speculation))]).lower()
    return next(
        (why for word, why in LOSSY_WORDS.items() if word in words.replace("_", "-") or word in words), ""
    )


def _extra(speculation: Speculation) -> tuple[tuple[str, str], ...]:
    found: tuple[tuple[str, str], ...] = getattr(speculation, "extra", ())
    return tuple((key, value.strip('"')) for key, value in found)


def lossy_gate(arm: Arm, why: str) -> ArmGate:
    finding = fail(
        "lossy-method",
        f"{arm.name} ({method_name(arm.speculation)}) is lossy by design: {why}",
        then="use it only to measure cost, never to serve",
        arm=arm.name,
    )
    return ArmGate(
        arm=arm.name, method=arm.method, result=Result.FAIL, greedy=None, sampled=None, findings=(finding,)
    )


def garbled_finding(arm: str, told: Told, baseline: Told) -> Finding | None:
    """Loops and word salad, more often than the baseline writes them, in some way of asking: a prompt that loops in
    every way is one prompt, not one more in each."""
    alpha = FAULT_ALPHA / max(1, len(told.answers))
    found = (
        _faults_beyond(arm, answers, baseline.of(way) or baseline.all(), alpha=alpha)
        for way, answers in told.answers.items()
    )
    return next((finding for finding in found if finding is not None), None)


def _faults_beyond(
    arm: str, answers: Sequence[Answer], baseline: Sequence[Answer], *, alpha: float
) -> Finding | None:
    own, theirs = text_faults(_said(answers)), text_faults(_said(baseline))
    for what, mine, others in (
        ("garbled", own.garbled, theirs.garbled),
        ("looping", own.looping, theirs.looping),
    ):
        if not mine or not theirs.answers:
            continue
        table = np.array([[len(mine), own.answers - len(mine)], [len(others), theirs.answers - len(others)]])
        from scipy import stats  # half a second, for what hardly ever is

        p_value = float(stats.fisher_exact(table, alternative="greater")[1])
        if p_value < alpha:
            return fail(
                f"{what}-text",
                f"{len(mine)} of {own.answers} answers are {what}, the baseline's {len(others)} of "
                f"{theirs.answers} (p = {p_value:.1g}); first: {mine[0]}",
                arm=arm,
            )
    return None


def _said(answers: Sequence[Answer]) -> list[tuple[str, str]]:
    """One text of each case: the same prompt and seed again are no further evidence."""
    return list({answer.case: answer.text for answer in reversed(answers) if answer.is_ok}.items())[::-1]


def acceptance_findings(arm: str, told: Told) -> list[Finding]:
    """Nothing accepted at all, or everything while sampling: at temperature 0 a good draft may well be always right."""
    found = []
    for answers, what, low, high in (
        (told.all(), "almost none", 0.0, ACCEPTED_LOW),
        (told.of("sampled"), "all", ACCEPTED_HIGH, 1.0),
    ):
        drafted = sum(answer.drafted or 0 for answer in answers)
        accepted = sum(answer.accepted or 0 for answer in answers)
        if drafted >= DRAFTED_MIN and low <= accepted / drafted <= high:
            message = (
                f"{arm}: {what} of {drafted} draft tokens were accepted ({accepted / drafted:.1%}): probably the wrong "
                "draft model, or drafts that are not verified"
            )
            found.append(warn("odd-acceptance", message, arm=arm))
    return found


def _edge_finding(arm: str, edge: EdgeCheck) -> Finding:
    return warn(
        "refused-setting",
        f"{arm}: requests with {edge.name} are {edge.message}",
        then="check whether your traffic uses it before you turn speculation on",
        arm=arm,
    )


def examples_of(
    arm: str,
    greedy: Greedy | None,
    sampled: Sampled | None,
    edges: Sequence[EdgeCheck],
    told: Told,
    baseline: Told,
    prompts: Mapping[str, Request],
) -> tuple[Example, ...]:
    """The worst first; sampled texts only where they failed."""
    theirs = {answer.case: answer for answer in baseline.all()}
    mine = _telling(told.all(), theirs)
    return tuple(
        _example(arm, case, why, prompts, theirs.get(case), mine.get(case), margin=margin)
        for case, why, margin in islice(_parted(greedy, sampled, edges, told), EXAMPLES_MAX)
    )


def _telling(answers: Iterable[Answer], theirs: Mapping[str, Answer]) -> dict[str, Answer]:
    """One answer to each case: several ways of asking share it, and the first that differs is the one to show."""
    first: dict[str, Answer] = {}
    differing: dict[str, Answer] = {}
    for answer in answers:
        first.setdefault(answer.case, answer)
        held = theirs.get(answer.case)
        if held is not None and answer.text != held.text:
            differing.setdefault(answer.case, answer)
    return first | differing


def _parted(
    greedy: Greedy | None, sampled: Sampled | None, edges: Sequence[EdgeCheck], told: Told
) -> Iterator[tuple[str, str, float | None]]:
    """Cases worth showing, with why and the margin."""
    for divergence in greedy.examples if greedy is not None else ():
        yield divergence.case, _why(divergence), divergence.margin
    for edge in edges:
        if edge.divergence is not None:
            yield edge.divergence.case, edge.message, edge.divergence.margin
    if sampled is not None and sampled.result is Result.FAIL:
        for answer in told.of("sampled"):
            if answer.is_ok:
                yield (
                    answer.case,
                    "sampled: one of the texts that do not follow the target's probabilities",
                    None,
                )


def _why(divergence: Divergence) -> str:
    where = f"at token {divergence.position}" if divergence.position is not None else "in the text"
    what = SAID[divergence.kind]
    if divergence.margin is None:
        return f"{what} {where}"
    if divergence.margin == float("inf"):
        return f"ends early {where}, without a stop token or the token limit"
    more = "at least " if divergence.is_at_least else ""
    return f"{what} {where}: {more}{divergence.margin:.2f} nats less likely"


def _example(
    arm: str,
    case: str,
    why: str,
    prompts: Mapping[str, Request],
    baseline: Answer | None,
    answer: Answer | None,
    *,
    margin: float | None = None,
) -> Example:
    request = prompts.get(case)
    asked = ""
    if request is not None:
        asked = request.prompt or (request.messages[-1].content if request.messages else "")
    return Example(
        arm=arm,
        case=case,
        why=why,
        prompt=asked[:EXAMPLE_CHARACTERS],
        baseline=_shown(baseline),
        answer=_shown(answer),
        margin=margin,
    )


def _shown(answer: Answer | None) -> str:
    if answer is None:
        return ""
    return (answer.text if answer.is_ok else f"[{answer.error}]")[:EXAMPLE_CHARACTERS]


def unsettled_gate(arm: Arm, check: str, error: OperatingError) -> ArmGate:
    """Of an arm that could not be asked to the end."""
    tail = f"\n{error.log_tail[-600:]}" if isinstance(error, EngineError) and error.log_tail else ""
    finding = Finding(
        check=check,
        level=Level.FAIL if isinstance(error, EngineError) else Level.WARN,
        message=f"{error}{tail}",
        next_step=error.hint,
        arm=arm.name,
    )
    return ArmGate(
        arm=arm.name,
        method=arm.method,
        result=Result.INCONCLUSIVE,
        greedy=None,
        sampled=None,
        findings=(finding,),
    )


# Findings whose messages quote answers and logs.
QUOTING_CHECKS = ("edge", "arm-failed")


def gate_without_text(gate: Gate, *, instead: str) -> Gate:
    """Without the prompts and answers that it shows side by side; `instead` stands where others were quoted."""
    return replace(gate, arms=tuple(_arm_without_text(arm, instead) for arm in gate.arms))


def _arm_without_text(arm: ArmGate, instead: str) -> ArmGate:
    silent = (Result.PASS, Result.SKIPPED)
    return replace(
        arm,
        edges=tuple(
            edge if edge.result in silent else replace(edge, message=f"changed; {instead}")
            for edge in arm.edges
        ),
        findings=tuple(
            replace(finding, message=f"{finding.check}; {instead}")
            if finding.check.startswith(QUOTING_CHECKS)
            else replace(finding, message=finding.message.partition("\n")[0])
            for finding in arm.findings
        ),
        examples=(),
    )
