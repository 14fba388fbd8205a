"""The gate asks the same prompts in every way that traffic reaches a server, and the edges of the protocol."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from speclift.core.traffic import Message, Request
from speclift.core.units import Tokens
from speclift.lossless.answers import Answer

# The likeliest tokens asked for at each position; OpenAI's servers allow 20, and a fault is rarely among 10.
LISTED = 10
FOLLOW_UP = "Say the same in other words."
EDGE_TOKENS = 24
# Edges that are kinds of the soak's traffic as well, under its names.
EDGE_KINDS = {"stop string": "stop", "JSON schema": "schema", "logit_bias": "bias"}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "bridges": {"type": "integer"}},
    "required": ["city", "bridges"],
    "additionalProperties": False,
}
SCHEMA_PROMPT = "Give a city with rivers and how many bridges it has, as JSON with the keys city and bridges."


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One request of the gate. Answers to the same `case` are compared with each other."""

    case: str
    request: Request
    temperature: float
    seed: int
    stream: bool = False
    # Log-probabilities of this many tokens per position.
    listed: int = 0
    wants_ids: bool = False
    # Body fields beyond the usual ones, such as stop or logit_bias.
    settings: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """How much is asked; the verb's is full, decide's is quick."""

    name: str
    prompts: int
    tokens: Tokens
    # Prompts asked again whole (not streamed) and in a second turn.
    whole: int
    turns: int
    batch: int
    sampled_prompts: int
    sampled_tokens: Tokens
    detect: float
    with_edges: bool
    # Kinds of requests that are not asked at all: a server may end over one that it does not know.
    leaves_out: frozenset[str] = frozenset()


FULL = Depth(
    name="full",
    prompts=24,
    tokens=64,
    whole=6,
    turns=4,
    batch=4,
    sampled_prompts=32,
    sampled_tokens=64,
    detect=0.02,
    with_edges=True,
)
QUICK = Depth(
    name="quick",
    prompts=8,
    tokens=48,
    whole=2,
    turns=2,
    batch=4,
    sampled_prompts=12,
    sampled_tokens=48,
    detect=0.05,
    with_edges=False,
)


def question_seed(study_seed: int, case: str) -> int:
    digest = hashlib.sha256(f"gate:{study_seed}:{case}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def greedy_questions(requests: Sequence[Request], depth: Depth, *, seed: int) -> tuple[Question, ...]:
    return tuple(
        Question(
            case=request.id,
            request=replace(request, max_tokens=min(request.max_tokens, depth.tokens)),
            temperature=0.0,
            seed=question_seed(seed, request.id),
        )
        for request in requests[: depth.prompts]
    )


def sampled_questions(
    requests: Sequence[Request], temperatures: Sequence[float], depth: Depth, *, seed: int
) -> tuple[Question, ...]:
    """Prompts and temperatures in turn; a prompt that comes round again gets another seed."""
    questions = []
    for index in range(depth.sampled_prompts):
        if not requests or not temperatures:
            break
        request = requests[index % len(requests)]
        temperature = temperatures[index % len(temperatures)]
        case = f"{request.id} T={temperature:g} #{index}"
        questions.append(
            Question(
                case=case,
                request=replace(request, max_tokens=min(request.max_tokens, depth.sampled_tokens)),
                temperature=temperature,
                seed=question_seed(seed, case),
                wants_ids=True,
            )
        )
    return tuple(questions)


def second_turns(
    questions: Sequence[Question], answers: Sequence[Answer], count: int
) -> tuple[Question, ...]:
    """The conversation goes on: the baseline's own answer and a follow-up, so that every server gets the same."""
    texts = {answer.case: answer.text for answer in answers if answer.is_ok}
    chats = [q for q in questions if q.request.messages and texts.get(q.case)]
    return tuple(
        replace(
            question,
            case=f"{question.case}, second turn",
            request=replace(
                question.request,
                messages=(
                    *question.request.messages,
                    Message(role="assistant", content=texts[question.case]),
                    Message(role="user", content=FOLLOW_UP),
                ),
            ),
        )
        for question in chats[:count]
    )


# Edges


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A corner of the protocol. `expects` is checked on the arm's answer beside the comparison."""

    name: str
    question: Question
    # Text that must not appear, most tokens allowed, whether the answer must fit SCHEMA.
    forbidden: str = ""
    tokens_max: Tokens | None = None
    is_schema: bool = False
    # A sampled answer cannot be compared; whether the setting is taken at all can.
    is_sampled: bool = False


def edges(
    questions: Sequence[Question], answers: Sequence[Answer], *, leaves_out: frozenset[str] = frozenset()
) -> tuple[Edge, ...]:
    answered = {answer.case: answer for answer in answers if answer.is_ok and answer.text.strip()}
    held = [question for question in questions if question.case in answered]
    corners = _edges(held[0], answered[held[0].case]) if held else ()
    return tuple(edge for edge in corners if EDGE_KINDS.get(edge.name) not in leaves_out)


def _edges(question: Question, answer: Answer) -> Iterator[Edge]:
    base = replace(question, request=replace(question.request, max_tokens=EDGE_TOKENS))
    stop = _stop_word(answer.text)
    if stop:
        yield _edge("stop string", base, (("stop", [stop]),), forbidden=stop)
    for limit in (1, 2, 7):
        short = replace(base, request=replace(base.request, max_tokens=limit))
        yield _edge(f"max_tokens {limit}", short, (), tokens_max=limit)
    schema = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
    schema_question = replace(
        base,
        request=replace(
            base.request, prompt=None, messages=(Message(role="user", content=SCHEMA_PROMPT),), max_tokens=64
        ),
    )
    yield replace(_edge("JSON schema", schema_question, (("response_format", schema),)), is_schema=True)
    if answer.ids:
        # The first token of the plain answer is forbidden, so that the setting must show.
        yield _edge("logit_bias", base, (("logit_bias", {str(answer.ids[0]): -100}),))
    # At temperature 0 engines drop it; vLLM refuses it under speculation above (0.32).
    yield replace(_edge("min_p", replace(base, temperature=1.0), (("min_p", 0.2),)), is_sampled=True)


def _edge(
    name: str,
    question: Question,
    settings: tuple[tuple[str, object], ...],
    *,
    forbidden: str = "",
    tokens_max: Tokens | None = None,
) -> Edge:
    changed = replace(question, case=f"edge: {name}", settings=settings)
    return Edge(name=name, question=changed, forbidden=forbidden, tokens_max=tokens_max)


def _stop_word(text: str) -> str:
    """A word from the middle of the answer that does not stand in its first third."""
    words = text.split()
    candidates = [word for word in words[len(words) // 3 :] if len(word) > 3 and word.isalnum()]
    early = " ".join(words[: len(words) // 3])
    return next((word for word in candidates if word not in early), "")
