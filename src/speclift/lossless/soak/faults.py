"""Which faults an answer shows, and which it could have shown: only of the latter is a rate worth anything.

What a model writes is not the server's fault: what counts is what the server promised (limits, stop strings, schemas,
bans, its own text), and whatever is not quite that is held against the baseline's rate by `rates.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass

from speclift.core.records import AnswerChoice
from speclift.lossless.answers import is_garbled, is_looping
from speclift.lossless.gate import SoakFault
from speclift.lossless.soak.prompts import NONCE_SHAPE, nonces_in
from speclift.lossless.soak.schemas import is_cut, misfit, misfit_so_far, whole_calls
from speclift.lossless.soak.values import Exposure, FaultSeen, SoakAnswer, SoakRequest, slot_of

# Tokens of chat templates, by family; none of them is a word of any language.
SPECIAL_TOKENS: Mapping[str, tuple[str, ...]] = {
    "ChatML (Qwen, SmolLM2, Yi)": ("<|im_start|>", "<|im_end|>", "<|im_sep|>"),
    "GPT": ("<|endoftext|>", "<|endofprompt|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"),
    "harmony": ("<|start|>", "<|channel|>", "<|message|>", "<|return|>", "<|call|>", "<|constrain|>"),
    "Llama 3": (
        *("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>"),
        *("<|start_header_id|>", "<|end_header_id|>", "<|finetune_right_pad_id|>"),
    ),
    "Llama 4": ("<|eot|>", "<|eom|>", "<|header_start|>", "<|header_end|>"),
    "Llama 2, Mistral": ("[INST]", "[/INST]", "<<SYS>>", "<</SYS>>", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]"),
    "Mistral": (
        "[/AVAILABLE_TOOLS]",
        "[TOOL_RESULTS]",
        "[/TOOL_RESULTS]",
        "[SYSTEM_PROMPT]",
        "[/SYSTEM_PROMPT]",
    ),
    "Gemma": ("<start_of_turn>", "<end_of_turn>", "<bos>", "<eos>", "<pad>"),
    "Phi": ("<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "<|tool_call|>", "<|/tool_call|>"),
    "DeepSeek": (
        *("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"),
        *("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁calls▁end｜>"),
    ),
    "Command": ("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|USER_TOKEN|>"),
    "GLM, Granite": ("<|observation|>", "<|start_of_role|>", "<|end_of_role|>", "<|tool_list|>"),
    "Kimi": ("<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>"),
    "reserved": ("<|padding|>", "<|unused", "<|reserved_special_token", "<unk>", "<|unk|>"),
}
_SPECIAL = re.compile("|".join(re.escape(token) for family in SPECIAL_TOKENS.values() for token in family))
# What the forced end of a thought takes, and how far a server may count otherwise than we ask.
THINKING_SLACK = 16
# Characters before a stop string that show that copying had come to it.
REACHED_CHARACTERS = 6
# So many from either end of a copy tell the place in its text.
TELLING_CHARACTERS = 16
# A copied word group that comes again although the text to copy holds it once.
SPAN_WORDS = 5
SHOWN = 80
# Whether a text loops or is garbled shows in its beginning; a server may send megabytes.
LOOKED_AT = 20_000
# Ends that nobody asked for, as servers call them (vLLM 0.32: abort where it dropped a request, error where it failed).
NO_ENDS = (None, "abort", "error")
# Too busy is not broken: it says so, and the control under the same load may well not.
BUSY = (408, 429, 503)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldAgainst:
    """What an answer is held against beside its own request."""

    # Every nonce that this server was sent, by whomever.
    nonces: Collection[str] = ()
    # What the same server said to the same request when it was asked alone.
    alone: SoakAnswer | None = None


def leaked_tokens(text: str) -> list[str]:
    """Tokens of chat templates in a text, one after the other."""
    return _SPECIAL.findall(text)


def exposed_to(
    request: SoakRequest, answer: SoakAnswer, against: HeldAgainst | None = None
) -> tuple[SoakFault, ...]:
    """The faults that this answer could have shown."""
    held = against or HeldAgainst()
    return tuple(fault for fault, applies in _EXPOSED.items() if applies(request, answer, held))


def faults_of(
    request: SoakRequest, answer: SoakAnswer, against: HeldAgainst | None = None
) -> tuple[FaultSeen, ...]:
    """Each fault once, with what shows it; only faults that the answer is exposed to."""
    return tuple(
        FaultSeen(fault=fault, index=request.index, evidence=evidence)
        for fault, evidence in _looked_for(request, answer, against)
        if evidence
    )


def _looked_for(
    request: SoakRequest, answer: SoakAnswer, against: HeldAgainst | None
) -> Iterator[tuple[SoakFault, str]]:
    held = against or HeldAgainst()
    for fault in exposed_to(request, answer, held):
        yield fault, next(_FOUND[fault](request, answer, held), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakObservation:
    """One answer that could have shown a fault, with the evidence where it did."""

    fault: SoakFault
    index: int
    kind: str
    exposure: Exposure
    evidence: str = ""
    # The user's own prompt that it answers; "" where the prompt is ours.
    prompt_id: str = ""

    @property
    def is_faulty(self) -> bool:
        return bool(self.evidence)

    @property
    def unit(self) -> Hashable:
        """What counts once, its answers being no independent observations: a session, a prompt that is asked again."""
        return self.prompt_id or slot_of(self.index)


def observe(
    request: SoakRequest, answer: SoakAnswer, against: HeldAgainst | None = None
) -> tuple[SoakObservation, ...]:
    """All that one answer says about the faults."""
    return tuple(
        SoakObservation(
            fault=fault,
            index=request.index,
            kind=request.kind,
            exposure=answer.exposure,
            evidence=evidence,
            prompt_id=request.prompt_id,
        )
        for fault, evidence in _looked_for(request, answer, against)
    )


_Exposed = Callable[[SoakRequest, SoakAnswer, HeldAgainst], bool]
_Found = Callable[[SoakRequest, SoakAnswer, HeldAgainst], Iterator[str]]


# Which answers could show it


def _has_text(_: SoakRequest, answer: SoakAnswer, __: HeldAgainst) -> bool:
    """Streams that the caller left count as well: what came until then is text of the server."""
    return any(choice.text or choice.thoughts or choice.calls for choice in answer.choices)


def _has_ended_text(request: SoakRequest, answer: SoakAnswer, held: HeldAgainst) -> bool:
    """For what is compared in frequency: of a stream that the caller left, a faster server had said more, and each of
    its chunks holds more."""
    return not answer.left and _has_text(request, answer, held)


def _could_leak(request: SoakRequest, answer: SoakAnswer, held: HeldAgainst) -> bool:
    """A model that is shown tokens of a template may well write some, and others than those."""
    return not _SPECIAL.search(request.body) and _has_text(request, answer, held)


def _could_pass_stop(request: SoakRequest, answer: SoakAnswer, held: HeldAgainst) -> bool:
    """Whether a prompt of the user's comes to its stop string nobody knows."""
    if not request.promise.stops:
        return False
    if not request.copies:
        return _has_text(request, answer, held)
    return any(_passed_stop(request, choice) or _reached_stop(request, choice) for choice in answer.choices)


def _reached_stop(request: SoakRequest, choice: AnswerChoice) -> bool:
    """The text ends where the copied text has the stop string."""
    ends = [
        request.copies[: request.copies.find(stop)]
        for stop in request.promise.stops
        if stop in request.copies
    ]
    return any(end and choice.text.rstrip().endswith(end[-REACHED_CHARACTERS:].rstrip()) for end in ends)


def _could_end_early(_: SoakRequest, answer: SoakAnswer, __: HeldAgainst) -> bool:
    return answer.is_whole and bool(answer.choices)


def _copies(request: SoakRequest, answer: SoakAnswer, _: HeldAgainst) -> bool:
    return bool(request.copies) and not answer.left and any(choice.text for choice in answer.choices)


def _could_break_off(request: SoakRequest, answer: SoakAnswer, held: HeldAgainst) -> bool:
    return answer.is_whole and not request.promise.stops and _copies(request, answer, held)


def _follows_its_text(request: SoakRequest, answer: SoakAnswer, _: HeldAgainst) -> bool:
    return not answer.left and any(_copied(request, choice.text) for choice in answer.choices)


def _could_mix(request: SoakRequest, answer: SoakAnswer, held: HeldAgainst) -> bool:
    """There is somebody else whose text it could be."""
    return _has_text(request, answer, held) and len(held.nonces) > 1


def _is_constrained(request: SoakRequest, answer: SoakAnswer, _: HeldAgainst) -> bool:
    return any(True for _ in _looks_at_json(request, answer))


def _called_strict_tools(request: SoakRequest, answer: SoakAnswer, _: HeldAgainst) -> bool:
    return request.promise.is_strict and _called_tools(request, answer)


def _called_loose_tools(request: SoakRequest, answer: SoakAnswer, _: HeldAgainst) -> bool:
    return not request.promise.is_strict and _called_tools(request, answer)


def _called_tools(request: SoakRequest, answer: SoakAnswer) -> bool:
    return any(True for _ in _looks_at_calls(request, answer))


def _must_call(request: SoakRequest, answer: SoakAnswer, _: HeldAgainst) -> bool:
    if _called_tools(request, answer):
        return True
    return bool(request.promise.tools) and answer.is_whole and any(_ended(request, answer))


def _ended(request: SoakRequest, answer: SoakAnswer) -> Iterator[AnswerChoice]:
    """Those that the limit did not cut."""
    return (choice for choice in _answered(answer) if not _was_cut(request, answer, choice))


def _answered(answer: SoakAnswer) -> Iterator[AnswerChoice]:
    return (choice for choice in answer.choices if choice.finish_reason not in NO_ENDS)


def _was_cut(request: SoakRequest, answer: SoakAnswer, choice: AnswerChoice) -> bool:
    return is_cut(choice.finish_reason, answer.tokens, request.promise.tokens_max)


def _could_ignore_budget(request: SoakRequest, answer: SoakAnswer, held: HeldAgainst) -> bool:
    promise = request.promise
    if not answer.is_whole or not answer.choices:
        return False
    has_thoughts = any(choice.thoughts for choice in answer.choices) or bool(answer.thinking_tokens)
    return (
        promise.choices > 1
        or promise.tokens_min is not None
        or (promise.thinking_max is not None and has_thoughts)
        or any(choice.finish_reason == "length" for choice in answer.choices)
        or any(_budget(request, answer, held))
    )


def _has_bans(request: SoakRequest, answer: SoakAnswer, held: HeldAgainst) -> bool:
    return bool(request.promise.banned) and _has_text(request, answer, held)


def _was_alone(request: SoakRequest, answer: SoakAnswer, held: HeldAgainst) -> bool:
    """By the same launch: another may well round otherwise, and draw otherwise."""
    alone = held.alone
    if alone is None or alone is answer or not request.is_repeatable:
        return False
    is_same_launch = alone.exposure.launch == answer.exposure.launch
    return is_same_launch and answer.is_whole and alone.is_whole


def _was_asked(_: SoakRequest, answer: SoakAnswer, __: HeldAgainst) -> bool:
    return not answer.left and answer.status not in BUSY


# What shows it


def _special_tokens(_: SoakRequest, answer: SoakAnswer, __: HeldAgainst) -> Iterator[str]:
    for choice in answer.choices:
        for text in (choice.text, choice.thoughts, *(call.arguments for call in choice.calls)):
            for match in _SPECIAL.finditer(text):
                yield f"{match[0]} in {_around(text, match.start())}"


def _after_stop(request: SoakRequest, answer: SoakAnswer, _: HeldAgainst) -> Iterator[str]:
    for choice in answer.choices:
        if evidence := _passed_stop(request, choice):
            yield evidence


def _passed_stop(request: SoakRequest, choice: AnswerChoice) -> str:
    """The stop string itself, or the text goes on behind it as if it had not been there."""
    for stop in request.promise.stops:
        if stop in choice.text:
            return f"{stop!r} in {_around(choice.text, choice.text.index(stop))}"
        before, found, after = request.copies.partition(stop)
        joined = before[-REACHED_CHARACTERS:] + after[:REACHED_CHARACTERS]
        is_telling = found and len(joined) == 2 * REACHED_CHARACTERS and joined not in request.copies
        if is_telling and joined in choice.text:
            return f"goes on behind {stop!r}: {_around(choice.text, choice.text.index(joined))}"
    return ""


def _truncated(_: SoakRequest, answer: SoakAnswer, __: HeldAgainst) -> Iterator[str]:
    for choice in answer.choices:
        if choice.finish_reason in NO_ENDS:
            yield f"{choice.finish_reason or 'no reason'} to end after {_end(choice.text)}"


def _broken_off(request: SoakRequest, answer: SoakAnswer, _: HeldAgainst) -> Iterator[str]:
    for choice in answer.choices:
        if choice.finish_reason == "stop" and _breaks_off(request, choice.text):
            yield f"breaks off: {_end(choice.text)}"


def _altered(request: SoakRequest, answer: SoakAnswer, held: HeldAgainst) -> Iterator[str]:
    """Wrong tokens that are tokens all the same. What is a fault of another name counts there."""
    named = (_special_tokens, _after_stop, _cross_talk, _repeated, _broken)
    for choice in answer.choices:
        said, wanted = _copied(request, choice.text), request.copies
        at = next((i for i, (a, b) in enumerate(zip(said, wanted, strict=False)) if a != b), None)
        if at is not None and not any(any(seen(request, answer, held)) for seen in named):
            yield f"{_around(said, at)} instead of {_around(wanted, at)}"


def _copied(request: SoakRequest, text: str) -> str:
    """From where a copy begins, whatever comes before it; "" where none does. The limit may cut a character in two."""
    start = text.find(request.copies[:TELLING_CHARACTERS]) if request.copies else -1
    return text[start:].rstrip().rstrip("\ufffd") if start >= 0 else ""


def _breaks_off(request: SoakRequest, text: str) -> bool:
    """Its end stands in the text to copy, inside a word or with a span of words to come. How it began does not
    matter: models put a line of their own before a copy."""
    end = text.strip()[-TELLING_CHARACTERS:]
    if len(end) < REACHED_CHARACTERS:
        return False
    _, found, rest = request.copies.rpartition(end)
    is_inside = rest[:1].isalnum() and end[-1].isalnum()
    return bool(found) and (is_inside or len(rest.split()) >= SPAN_WORDS)


def _repeated(request: SoakRequest, answer: SoakAnswer, _: HeldAgainst) -> Iterator[str]:
    """Words that the text to copy holds once stand twice in a row or more often than the rest; or it loops."""
    for choice in answer.choices:
        if is_looping(choice.text[:LOOKED_AT]) and not is_looping(request.copies):
            yield f"loops: {_end(choice.text)}"
        elif span := _span_again(choice.text[:LOOKED_AT], request.copies):
            yield f"again: {span!r}"


def _span_again(text: str, copies: str) -> str:
    """The first group of words that comes again although all that is copied holds it once."""
    words, seen = text.split(), set[str]()
    for start in range(len(words) - SPAN_WORDS + 1):
        span = " ".join(words[start : start + SPAN_WORDS])
        if span in seen and copies.count(span) == 1:
            return span
        seen.add(span)
    return ""


def _cross_talk(request: SoakRequest, answer: SoakAnswer, held: HeldAgainst) -> Iterator[str]:
    for choice in answer.choices:
        for text in (choice.text, choice.thoughts, *(call.arguments for call in choice.calls)):
            for nonce in nonces_in(text):
                # A turn's earlier answers stand in its body: what was wrong there is not wrong here again.
                if nonce in held.nonces and nonce not in request.body:
                    yield f"{nonce}, of another request, in {_around(text, text.index(nonce))}"


def _invalid_json(request: SoakRequest, answer: SoakAnswer, _: HeldAgainst) -> Iterator[str]:
    return filter(None, _looks_at_json(request, answer))


def _looks_at_json(request: SoakRequest, answer: SoakAnswer) -> Iterator[str]:
    """What is wrong with each choice, or "". What the limit cut has to begin as the schema allows; nothing can be said
    of the beginning of what a grammar allows."""
    promise = request.promise
    if not answer.is_whole:
        return
    for choice in _answered(answer):
        was_cut, text, why = _was_cut(request, answer, choice), choice.text, ""
        if promise.schema:
            why = misfit_so_far(text[:LOOKED_AT], promise.schema) if was_cut else misfit(text, promise.schema)
        elif promise.pattern and not was_cut:
            why = "" if re.fullmatch(promise.pattern, text) else "not what the grammar allows"
        else:
            continue
        yield why and f"{why}: {_end(text)}"


def _tool_arguments(request: SoakRequest, answer: SoakAnswer, _: HeldAgainst) -> Iterator[str]:
    return filter(None, _looks_at_calls(request, answer))


def _looks_at_calls(request: SoakRequest, answer: SoakAnswer) -> Iterator[str]:
    """What is wrong with each call, or "". One that the limit cut has to begin as its schema allows."""
    schemas = dict(request.promise.tools)
    if not schemas or not answer.is_whole:
        return
    for choice in _answered(answer):
        whole_count = len(whole_calls(answer, choice, request.promise.tokens_max))
        for place, call in enumerate(choice.calls):
            is_whole, said = place < whole_count, call.arguments
            if not is_whole and not said.strip():
                continue
            if call.name not in schemas:
                yield f"calls {call.name!r}, which it was not given"
                continue
            schema = schemas[call.name]
            why = misfit(said, schema) if is_whole else misfit_so_far(said[:LOOKED_AT], schema)
            yield why and f"{call.name}: {why}: {_end(said)}"


def _no_call(request: SoakRequest, answer: SoakAnswer, _: HeldAgainst) -> Iterator[str]:
    for choice in _ended(request, answer):
        if not choice.calls:
            yield f"no call, although one is required: {_end(choice.text)}"


def _budget(request: SoakRequest, answer: SoakAnswer, _: HeldAgainst) -> Iterator[str]:
    promise, said, count = request.promise, answer.tokens, len(answer.choices)
    if count != promise.choices:
        yield f"{count} choices instead of {promise.choices}"
    if said is not None and promise.tokens_max is not None and said > promise.tokens_max * max(1, count):
        yield f"{said} tokens, at most {promise.tokens_max * max(1, count)} were asked for"
    if said is not None and promise.tokens_min is not None and said < promise.tokens_min:
        yield f"{said} tokens, at least {promise.tokens_min} were asked for"
    if promise.thinking_max is not None:
        # A word takes a token at least: where the server does not count, words say so late but surely.
        words = max((len(choice.thoughts.split()) for choice in answer.choices), default=0)
        thought = answer.thinking_tokens if answer.thinking_tokens is not None else words
        if thought > promise.thinking_max + THINKING_SLACK:
            yield f"{thought} tokens of thought, at most {promise.thinking_max} were asked for"


def _banned(request: SoakRequest, answer: SoakAnswer, _: HeldAgainst) -> Iterator[str]:
    for choice in answer.choices:
        for word in request.promise.banned:
            if word in choice.text:
                yield f"{word!r} in {_around(choice.text, choice.text.index(word))}"


def _broken(request: SoakRequest, answer: SoakAnswer, _: HeldAgainst) -> Iterator[str]:
    ended = tuple(_ended(request, answer))
    for choice in answer.choices:
        # The limit may cut a character in two.
        whole = choice.text if choice in ended else choice.text.rstrip("\ufffd")
        if "\ufffd" in whole and "\ufffd" not in request.body:
            yield f"bytes that are no text: {_around(whole, whole.index(chr(0xFFFD)))}"
        # Our own codes are no words either.
        elif is_garbled(NONCE_SHAPE.sub("code", choice.text[:LOOKED_AT])) and not is_garbled(request.copies):
            yield f"garbled: {_end(choice.text)}"


def _other_text(_: SoakRequest, answer: SoakAnswer, held: HeldAgainst) -> Iterator[str]:
    alone = held.alone.choices if held.alone is not None else ()
    for said, before in zip(answer.choices, alone, strict=False):
        if (said.text, said.calls) != (before.text, before.calls):
            at = next((i for i, (a, b) in enumerate(zip(said.text, before.text, strict=False)) if a != b), 0)
            yield f"{_around(said.text, at)} instead of {_around(before.text, at)}"


def _refused(_: SoakRequest, answer: SoakAnswer, __: HeldAgainst) -> Iterator[str]:
    if answer.error and not answer.is_hung:
        yield _end(answer.error)


def _hung(_: SoakRequest, answer: SoakAnswer, __: HeldAgainst) -> Iterator[str]:
    if answer.is_hung:
        yield answer.error or "no end within its time"


def _around(text: str, at: int) -> str:
    start = max(0, at - SHOWN // 2)
    return repr(text[start : start + SHOWN])


def _end(text: str) -> str:
    return repr(text[-SHOWN:])


_EXPOSED: Mapping[SoakFault, _Exposed] = {
    SoakFault.SPECIAL_TOKEN: _could_leak,
    SoakFault.AFTER_STOP: _could_pass_stop,
    SoakFault.TRUNCATED: _could_end_early,
    SoakFault.BROKEN_OFF: _could_break_off,
    SoakFault.REPEATED: _copies,
    SoakFault.CROSS_TALK: _could_mix,
    SoakFault.INVALID_JSON: _is_constrained,
    SoakFault.TOOL_ARGUMENTS: _called_strict_tools,
    SoakFault.LOOSE_ARGUMENTS: _called_loose_tools,
    SoakFault.NO_CALL: _must_call,
    SoakFault.BUDGET: _could_ignore_budget,
    SoakFault.BANNED_TOKEN: _has_bans,
    SoakFault.ALTERED: _follows_its_text,
    SoakFault.BROKEN_TEXT: _has_ended_text,
    SoakFault.OTHER_TEXT: _was_alone,
    SoakFault.REFUSED: _was_asked,
    SoakFault.HUNG: _was_asked,
}
_FOUND: Mapping[SoakFault, _Found] = {
    SoakFault.SPECIAL_TOKEN: _special_tokens,
    SoakFault.AFTER_STOP: _after_stop,
    SoakFault.TRUNCATED: _truncated,
    SoakFault.BROKEN_OFF: _broken_off,
    SoakFault.REPEATED: _repeated,
    SoakFault.CROSS_TALK: _cross_talk,
    SoakFault.INVALID_JSON: _invalid_json,
    SoakFault.TOOL_ARGUMENTS: _tool_arguments,
    SoakFault.LOOSE_ARGUMENTS: _tool_arguments,
    SoakFault.NO_CALL: _no_call,
    SoakFault.BUDGET: _budget,
    SoakFault.BANNED_TOKEN: _banned,
    SoakFault.ALTERED: _altered,
    SoakFault.BROKEN_TEXT: _broken,
    SoakFault.OTHER_TEXT: _other_text,
    SoakFault.REFUSED: _refused,
    SoakFault.HUNG: _hung,
}
