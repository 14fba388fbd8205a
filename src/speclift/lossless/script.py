"""What the gate asks of every server, what the baseline said to it, and how an arm asked the same is judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from speclift.core.arm import Arm
from speclift.core.traffic import Request
from speclift.lossless.calibration import TokenScore
from speclift.lossless.divergence import Compared, compare
from speclift.lossless.edges import judge_edge
from speclift.lossless.gate import ArmGate, Told, judge_arm
from speclift.lossless.greedy import Control, judge_greedy
from speclift.lossless.questions import LISTED, Edge, Question
from speclift.lossless.rates import hazard
from speclift.lossless.sampled import (
    Sampled,
    if_complete,
    is_identical,
    judge_identity,
    judge_scores,
    judge_texts,
)
from speclift.lossless.two_sample import text_tests

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
class Script:
    """What is asked and what the first baseline said to it; arms and control get the same questions."""

    greedy: tuple[Question, ...] = ()
    turns: tuple[Question, ...] = ()
    edges: tuple[Edge, ...] = ()
    sampled: tuple[Question, ...] = ()
    more_sampled: tuple[Question, ...] = ()
    told: Told = field(default_factory=Told)
    scorer_settings: tuple[tuple[str, object], ...] = ()
    ids_listed: int = 0
    can_score: bool = False

    @property
    def listed(self) -> int:
        """Log-probabilities to ask the baseline for: none of one that refuses them or leaves them out."""
        return LISTED if any(answer.said for answer in self.told.of(ALONE)) else 0

    def requests(self) -> dict[str, Request]:
        asked = (
            *self.greedy,
            *self.turns,
            *(e.question for e in self.edges),
            *self.sampled,
            *self.more_sampled,
        )
        return {question.case: question.request for question in asked}


def judge_told(
    arm: Arm,
    script: Script,
    told: Told,
    control: Control,
    scores: Mapping[str, Sequence[TokenScore]],
    *,
    detect: float,
    seed: int,
) -> ArmGate:
    """`scores` of the arm's sampled answers and of the baseline's, by name; empty where nothing could be scored."""
    greedy = None
    if script.greedy:
        references = {**script.told.answers, BATCHED: script.told.of(ALONE), WHOLE: script.told.of(ALONE)}
        pairs = {
            way: [compare(*pair) for pair in zip(references.get(way, ()), told.of(way), strict=False)]
            for way in SHAPES
        }
        greedy = judge_greedy(pairs, SHAPES, control, detect=detect)
    asked = zip(script.edges, script.told.of(EDGES), told.of(EDGES), strict=False)
    return judge_arm(
        arm,
        greedy=greedy,
        sampled=_complete(_sampled(arm, script, told, scores, detect=detect, seed=seed), script, told)
        if script.sampled
        else None,
        edges=[
            judge_edge(edge, baseline, answer, fault_nats=control.fault_nats)
            for edge, baseline, answer in asked
        ],
        told=told,
        baseline=script.told,
        prompts=script.requests(),
    )


def sampled_pairs(script: Script, told: Told) -> list[Compared]:
    return [compare(*pair) for pair in zip(script.told.of(SAMPLED), told.of(SAMPLED), strict=False)]


def _sampled(
    arm: Arm,
    script: Script,
    told: Told,
    scores: Mapping[str, Sequence[TokenScore]],
    *,
    detect: float,
    seed: int,
) -> Sampled:
    pairs = sampled_pairs(script, told)
    if is_identical(pairs, detect=detect):
        return judge_identity(pairs, detect=detect)
    asked = zip(script.sampled, script.told.of(SAMPLED), told.of(SAMPLED), strict=False)
    # A server that says the same whatever the seed has said it once.
    texts = dict.fromkeys(
        (question.request.id, baseline.text, answer.text)
        for question, baseline, answer in asked
        if baseline.is_ok and answer.is_ok
    )
    tests = text_tests([(ours, theirs) for _, ours, theirs in texts], seed=seed)
    found = scores.get(arm.name)
    if not found:
        why = (
            "the server gives no log-probabilities"
            if not script.can_score
            else "the answers could not be scored"
        )
        return judge_texts(tests, detect=detect, identity=hazard(pairs), why_not_scored=why)
    return judge_scores(found, scores["baseline"], detect=detect, identity=hazard(pairs), text_tests=tests)


def _complete(sampled: Sampled, script: Script, told: Told) -> Sampled:
    """No pass where the arm left out what the baseline answered, or of what it alone was asked."""
    shared = zip(script.sampled, script.told.of(SAMPLED), told.of(SAMPLED), strict=False)
    held = [(question.request.id, answer) for question, baseline, answer in shared if baseline.is_ok]
    more = zip(script.more_sampled, told.of(MORE_SAMPLED), strict=False)
    held += [(question.request.id, answer) for question, answer in more]
    answered = [prompt for prompt, answer in held if answer.is_ok]
    return if_complete(sampled, prompts=len(set(answered)), asked=len(held), answered=len(answered))
