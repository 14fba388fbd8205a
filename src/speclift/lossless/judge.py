"""The gate's judgement of each arm: every part put together, with the texts that show it side by side."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from speclift.core.arm import Arm
from speclift.core.errors import EngineError, OperatingError
from speclift.core.results import Finding, Level, fail, warn
from speclift.core.speculation import Speculation, Synthetic, method_name
from speclift.core.traffic import Request
from speclift.lossless.answers import (
    Answer,
    Compared,
    Divergence,
    Kind,
    compare,
    hazard,
    is_garbled,
    is_looping,
)
from speclift.lossless.calibration import TokenScore, text_tests
from speclift.lossless.gate import ArmGate, EdgeCheck, Example, Gate, Greedy, Hazard, Result, Sampled, worst
from speclift.lossless.greedy import TOGETHER, Control, divergences, judge_greedy, settled_by_equality
from speclift.lossless.questions import LISTED, SCHEMA, Edge, Question
from speclift.lossless.sampled import (
    if_complete,
    is_identical,
    judge_identity,
    judge_scores,
    judge_texts,
    planned_tokens,
)
from speclift.lossless.soak.schemas import misfit

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


def with_equality(gate: Gate, invariant: Gate) -> Gate:
    """The gate with what servers of batch-invariant kernels settled of it."""
    control = invariant.control.get(TOGETHER)
    if not isinstance(control, Hazard):
        return gate
    settled = {arm.arm: arm.greedy for arm in invariant.arms if arm.greedy.result is not Result.SKIPPED}
    arms, examples = [], []
    for arm in gate.arms:
        shown = gate
        if arm.greedy.result is not Result.SKIPPED and arm.arm in settled:
            greedy = settled_by_equality(arm.greedy, settled[arm.arm], control)
            # Other parts that failed stay failed.
            parts = worst([greedy.result, arm.sampled.result])
            result = Result.FAIL if arm.result is Result.FAIL else parts
            arms.append(replace(arm, greedy=greedy, result=result))
            shown = invariant if greedy.result is Result.FAIL else gate
        else:
            arms.append(arm)
        examples += [example for example in shown.examples if example.arm == arm.arm]
    return replace(
        gate,
        arms=tuple(arms),
        examples=tuple(examples),
        wall_s=gate.wall_s + invariant.wall_s,
        notes=(*gate.notes, "differences at temperature 0 were asked again with batch-invariant kernels"),
    )


@dataclass(slots=True, kw_only=True)
class ServerAnswers:
    """Answers of one server, by way of asking."""

    answers: dict[str, list[Answer]] = field(default_factory=dict)

    def of(self, way: str) -> list[Answer]:
        return self.answers.get(way, [])

    def all(self) -> list[Answer]:
        return [answer for answers in self.answers.values() for answer in answers]


class JudgedEdge(NamedTuple):
    check: EdgeCheck
    divergence: Divergence | None = None


class JudgedArm(NamedTuple):
    gate: ArmGate
    examples: tuple[Example, ...] = ()


def gate_of(judged: Sequence[JudgedArm], *, depth: str, detect: float, control: Control | None) -> Gate:
    return Gate(
        depth=depth,
        detect=detect,
        planned_tokens=planned_tokens(detect),
        control=control.as_document() if control is not None else {},
        arms=tuple(arm.gate for arm in judged),
        examples=tuple(example for arm in judged for example in arm.examples),
    )


def judge_parts(
    arm: Arm,
    *,
    greedy: Greedy,
    divergences: Sequence[Divergence],
    sampled: Sampled,
    edges: Sequence[JudgedEdge],
    told: ServerAnswers,
    baseline: ServerAnswers,
    prompts: Mapping[str, Request],
) -> JudgedArm:
    """`divergences` are those of the greedy part, the worst first."""
    garbled = garbled_finding(arm.name, told, baseline)
    checks = [edge.check for edge in edges]
    findings = [
        *([garbled] if garbled else []),
        *(_edge_finding(arm.name, check) for check in checks if check.result is Result.INCONCLUSIVE),
        *acceptance_findings(arm.name, told),
    ]
    results = [greedy.result, sampled.result]
    results += [Result.FAIL for check in checks if check.result is Result.FAIL]
    results += [Result.FAIL] if garbled and garbled.level is Level.FAIL else []
    gate = ArmGate(
        arm=arm.name,
        method=arm.method,
        result=worst(results),
        greedy=greedy,
        sampled=sampled,
        edges=tuple(checks),
        findings=tuple(findings),
    )
    shown = _shown_cases(divergences, sampled, edges, told)
    return JudgedArm(gate, examples_of(arm.name, shown, told, baseline, prompts))


def lossy_by_design(arm: Arm, settings: Sequence[str]) -> str:
    """Why this arm cannot pass whatever it says; empty for methods that promise the target's distribution."""
    if isinstance(arm.speculation, Synthetic):
        return LOSSY_WORDS["synthetic"]
    words = " ".join([*settings, *(f'"{value}" {key}' for key, value in _extra(arm.speculation))]).lower()
    return next(
        (why for word, why in LOSSY_WORDS.items() if word in words.replace("_", "-") or word in words), ""
    )


def _extra(speculation: Speculation) -> tuple[tuple[str, str], ...]:
    extra: tuple[tuple[str, str], ...] = getattr(speculation, "extra", ())
    return tuple((key, value.strip('"')) for key, value in extra)


def lossy_gate(arm: Arm, why: str) -> JudgedArm:
    finding = fail(
        "lossy-method",
        f"{arm.name} ({method_name(arm.speculation)}) is lossy by design: {why}",
        then="use it only to measure cost, never to serve",
        arm=arm.name,
    )
    return JudgedArm(ArmGate(arm=arm.name, method=arm.method, result=Result.FAIL, findings=(finding,)))


def garbled_finding(arm: str, told: ServerAnswers, baseline: ServerAnswers) -> Finding | None:
    """Loops and word salad, more often than the baseline writes them, in some way of asking: a prompt that loops in
    every way is one prompt, not one more in each."""
    alpha = FAULT_ALPHA / max(1, len(told.answers))
    findings = (
        _faults_beyond(arm, answers, baseline.of(way) or baseline.all(), alpha=alpha)
        for way, answers in told.answers.items()
    )
    return next((finding for finding in findings if finding is not None), None)


def _faults_beyond(
    arm: str, answers: Sequence[Answer], baseline: Sequence[Answer], *, alpha: float
) -> Finding | None:
    texts, theirs = _texts(answers), _texts(baseline)
    for what, shows in (("garbled", is_garbled), ("looping", is_looping)):
        mine = [case for case, text in texts.items() if shows(text)]
        if not mine or not theirs:
            continue
        others = sum(map(shows, theirs.values()))
        table = np.array([[len(mine), len(texts) - len(mine)], [others, len(theirs) - others]])
        from scipy import stats  # half a second, for what hardly ever is

        p_value = float(stats.fisher_exact(table, alternative="greater")[1])
        if p_value < alpha:
            return fail(
                f"{what}-text",
                f"{len(mine)} of {len(texts)} answers are {what}, the baseline's {others} of {len(theirs)} "
                f"(p = {p_value:.1g}); first: {mine[0]}",
                arm=arm,
            )
    return None


def _texts(answers: Sequence[Answer]) -> dict[str, str]:
    """One text of each case: the same prompt and seed again are no further evidence."""
    texts: dict[str, str] = {}
    for answer in answers:
        if answer.is_ok:
            texts.setdefault(answer.case, answer.text)
    return texts


def acceptance_findings(arm: str, told: ServerAnswers) -> list[Finding]:
    """Nothing accepted at all, or everything while sampling: at temperature 0 a good draft may well be always right."""
    findings = []
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
            findings.append(warn("odd-acceptance", message, arm=arm))
    return findings


def _edge_finding(arm: str, edge: EdgeCheck) -> Finding:
    return warn(
        "refused-setting",
        f"{arm}: requests with {edge.name} are {edge.message}",
        then="check whether your traffic uses it before you turn speculation on",
        arm=arm,
    )


def examples_of(
    arm: str,
    shown: Iterable[tuple[str, str, float | None]],
    told: ServerAnswers,
    baseline: ServerAnswers,
    prompts: Mapping[str, Request],
) -> tuple[Example, ...]:
    """The first of the cases to show, each with both texts."""
    theirs = {answer.case: answer for answer in baseline.all()}
    mine = _telling(told.all(), theirs)
    return tuple(
        _example(arm, case, why, prompts, theirs.get(case), mine.get(case), margin=margin)
        for case, why, margin in islice(shown, EXAMPLES_MAX)
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


def _shown_cases(
    divergences: Sequence[Divergence], sampled: Sampled, edges: Sequence[JudgedEdge], told: ServerAnswers
) -> Iterator[tuple[str, str, float | None]]:
    """Cases worth showing, with why and the margin; sampled texts only where they failed."""
    for divergence in divergences:
        yield divergence.case, _why(divergence), divergence.margin
    for edge in edges:
        if edge.divergence is not None:
            yield edge.divergence.case, edge.check.message, edge.divergence.margin
    if sampled.result is Result.FAIL:
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
    prompt = ""
    if request is not None:
        prompt = request.prompt or (request.messages[-1].content if request.messages else "")
    return Example(
        arm=arm,
        case=case,
        why=why,
        prompt=prompt[:EXAMPLE_CHARACTERS],
        baseline=_shown(baseline),
        answer=_shown(answer),
        margin=margin,
    )


def _shown(answer: Answer | None) -> str:
    if answer is None:
        return ""
    return (answer.text if answer.is_ok else f"[{answer.error}]")[:EXAMPLE_CHARACTERS]


def unsettled_gate(arm: Arm, check: str, error: OperatingError) -> JudgedArm:
    """An arm that could not be asked to the end."""
    tail = f"\n{error.log_tail[-600:]}" if isinstance(error, EngineError) and error.log_tail else ""
    finding = Finding(
        check=check,
        level=Level.FAIL if isinstance(error, EngineError) else Level.WARN,
        message=f"{error}{tail}",
        next_step=error.hint,
        arm=arm.name,
    )
    gate = ArmGate(arm=arm.name, method=arm.method, result=Result.INCONCLUSIVE, findings=(finding,))
    return JudgedArm(gate)


# Corners of the protocol


def judge_edge(edge: Edge, baseline: Answer, arm: Answer, *, fault_nats: float) -> JudgedEdge:
    """A corner of the protocol that behaves on the baseline and not on the arm is a fault; one that is refused is
    traffic that speculation shuts out."""

    def judged(result: Result, message: str, divergence: Divergence | None = None) -> JudgedEdge:
        return JudgedEdge(EdgeCheck(name=edge.name, result=result, message=message), divergence)

    if not baseline.is_ok:
        return judged(Result.SKIPPED, f"the baseline rejects it too: {baseline.error[:120]}")
    if not arm.is_ok:
        return judged(Result.INCONCLUSIVE, f"rejected under speculation: {arm.error[:160]}")
    broken = _broken(edge, arm)
    if broken and not _broken(edge, baseline):
        return judged(Result.FAIL, broken)
    divergence = compare(baseline, arm).divergence
    if divergence is None or edge.is_sampled:
        return judged(Result.PASS, "kept")
    margin = divergence.margin
    if margin is not None and margin > fault_nats:
        message = f"differs where the baseline was sure ({margin:.1f} nats)"
        return judged(Result.FAIL, message, divergence)
    why = "at a near-tie" if margin is not None else "the log-probabilities are unknown"
    differs = f"kept; the text differs{' ' if margin is not None else ', '}{why}"
    return judged(Result.PASS, differs, divergence)


def _broken(edge: Edge, answer: Answer) -> str:
    """The rule of the request that the answer breaks; empty where it keeps to it."""
    if edge.forbidden and edge.forbidden in answer.text:
        return f"the stop string {edge.forbidden!r} is in the answer"
    if edge.tokens_max is not None and answer.tokens is not None and answer.tokens > edge.tokens_max:
        return f"{answer.tokens} tokens, limit {edge.tokens_max}"
    if edge.is_schema and answer.finish_reason == "stop" and misfit(answer.text, json.dumps(SCHEMA)):
        return f"does not match the JSON schema: {answer.text[:80]!r}"
    return ""


# What is asked of every server, and what the baseline said to it

ALONE, BATCHED, WHOLE, TURNS, SAMPLED, MORE_SAMPLED, EDGES = (
    "alone",
    "batched",
    "not streamed",
    "second turn",
    "sampled",
    "sampled, more",
    "edges",
)
# Which of the control's hazards each way of asking is held against.
SHAPES = {ALONE: ALONE, WHOLE: ALONE, TURNS: ALONE, BATCHED: BATCHED}


@dataclass(slots=True)
class QuestionSet:
    """Questions and what the first baseline said to it; arms and control get the same questions."""

    greedy: tuple[Question, ...] = ()
    turns: tuple[Question, ...] = ()
    edges: tuple[Edge, ...] = ()
    sampled: tuple[Question, ...] = ()
    more_sampled: tuple[Question, ...] = ()
    told: ServerAnswers = field(default_factory=ServerAnswers)
    scorer_settings: tuple[tuple[str, object], ...] = ()
    ids_listed: int = 0
    can_score: bool = False

    @property
    def listed(self) -> int:
        """Log-probabilities to ask the baseline for: none of one that refuses them or leaves them out."""
        return LISTED if any(answer.said for answer in self.told.of(ALONE)) else 0

    def requests(self) -> dict[str, Request]:
        everything = (
            *self.greedy,
            *self.turns,
            *(e.question for e in self.edges),
            *self.sampled,
            *self.more_sampled,
        )
        return {question.case: question.request for question in everything}


def judge_answers(
    arm: Arm,
    questions: QuestionSet,
    told: ServerAnswers,
    control: Control,
    scores: Mapping[str, Sequence[TokenScore]],
    *,
    detect: float,
    seed: int,
) -> JudgedArm:
    """`scores` of the arm's sampled answers and of the baseline's, by name; empty where nothing could be scored."""
    greedy, parted = Greedy(), list[Divergence]()
    if questions.greedy:
        references = {
            **questions.told.answers,
            BATCHED: questions.told.of(ALONE),
            WHOLE: questions.told.of(ALONE),
        }
        pairs = {
            way: [compare(*pair) for pair in zip(references.get(way, ()), told.of(way), strict=False)]
            for way in SHAPES
        }
        greedy = judge_greedy(pairs, SHAPES, control, detect=detect)
        parted = divergences(pairs, control)
    corners = zip(questions.edges, questions.told.of(EDGES), told.of(EDGES), strict=False)
    return judge_parts(
        arm,
        greedy=greedy,
        divergences=parted,
        sampled=_complete(_sampled(arm, questions, told, scores, detect=detect, seed=seed), questions, told)
        if questions.sampled
        else Sampled(),
        edges=[
            judge_edge(edge, baseline, answer, fault_nats=control.fault_nats)
            for edge, baseline, answer in corners
        ],
        told=told,
        baseline=questions.told,
        prompts=questions.requests(),
    )


def sampled_pairs(questions: QuestionSet, told: ServerAnswers) -> list[Compared]:
    return [compare(*pair) for pair in zip(questions.told.of(SAMPLED), told.of(SAMPLED), strict=False)]


def _sampled(
    arm: Arm,
    questions: QuestionSet,
    told: ServerAnswers,
    scores: Mapping[str, Sequence[TokenScore]],
    *,
    detect: float,
    seed: int,
) -> Sampled:
    pairs = sampled_pairs(questions, told)
    if is_identical(pairs, detect=detect):
        return judge_identity(pairs, detect=detect)
    answered = zip(questions.sampled, questions.told.of(SAMPLED), told.of(SAMPLED), strict=False)
    # A server that says the same whatever the seed has said it once.
    texts = dict.fromkeys(
        (question.request.id, baseline.text, answer.text)
        for question, baseline, answer in answered
        if baseline.is_ok and answer.is_ok
    )
    tests = text_tests([(ours, theirs) for _, ours, theirs in texts], seed=seed)
    arm_scores = scores.get(arm.name)
    if not arm_scores:
        why = (
            "the server gives no log-probabilities"
            if not questions.can_score
            else "the answers could not be scored"
        )
        return judge_texts(tests, detect=detect, identity=hazard(pairs), why_not_scored=why)
    return judge_scores(
        arm_scores, scores["baseline"], detect=detect, identity=hazard(pairs), text_tests=tests
    )


def _complete(sampled: Sampled, questions: QuestionSet, told: ServerAnswers) -> Sampled:
    """No pass where the arm left out what the baseline answered, or of what it alone was asked."""
    shared = zip(questions.sampled, questions.told.of(SAMPLED), told.of(SAMPLED), strict=False)
    held = [(question.request.id, answer) for question, baseline, answer in shared if baseline.is_ok]
    more = zip(questions.more_sampled, told.of(MORE_SAMPLED), strict=False)
    held += [(question.request.id, answer) for question, answer in more]
    answered = [prompt for prompt, answer in held if answer.is_ok]
    return if_complete(sampled, prompts=len(set(answered)), asked=len(held), answered=len(answered))
