"""Finds the faults that an answer shows, and those that it could have shown: only of the latter is a rate worth
anything.

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
from speclift.lossless.soak.values import Exposure, SoakAnswer, SoakRequest, slot_of

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
    """Everything that an answer is held against beside its own request."""

    # Every nonce that this server was sent, by whomever.
    nonces: Collection[str] = ()
    # What the same server said to the same request when it was asked alone.
    alone: SoakAnswer | None = None


def leaked_tokens(text: str) -> list[str]:
    """Tokens of chat templates in a text, one after the other."""
    return _SPECIAL.findall(text)


def looked_at(
    request: SoakRequest, answer: SoakAnswer, against: HeldAgainst | None = None
) -> dict[SoakFault, str]:
    """The faults that this answer could have shown, each with what shows it; "" where nothing does."""
    look = _Look(request, answer, against or HeldAgainst())
    return {
        fault: next(evidence(look), "") for fault, (applies, evidence) in _DETECTORS.items() if applies(look)
    }


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
        """The unit that counts once, its answers being no independent observations: a session, a prompt that is asked
        again."""
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
        for fault, evidence in looked_at(request, answer, against).items()
    )


class _Look:
    """One answer, looked at for every fault: which of them it could have shown, and what shows each."""

    def __init__(self, request: SoakRequest, answer: SoakAnswer, held: HeldAgainst) -> None:
        self.request, self.answer, self.held = request, answer, held
        self.promise = request.promise
        # Streams that the caller left count as well: what came until then is text of the server.
        self.has_text = any(choice.text or choice.thoughts or choice.calls for choice in answer.choices)
        # For what is compared in frequency: of a stream that the caller left, a faster server had said more, and each
        # of its chunks holds more.
        self.has_ended_text = self.has_text and not answer.left
        self.copies = bool(request.copies) and not answer.left and any(each.text for each in answer.choices)
        self.answered = [choice for choice in answer.choices if choice.finish_reason not in NO_ENDS]
        # Those that the limit did not cut.
        self.ended = [choice for choice in self.answered if not self.was_cut(choice)]
        self.json_misfits = list(self._json_misfits())
        self.call_misfits = list(self._call_misfits())

    def was_cut(self, choice: AnswerChoice) -> bool:
        return is_cut(choice.finish_reason, self.answer.tokens, self.promise.tokens_max)

    def copied(self, text: str) -> str:
        """The text from where a copy begins; "" where none does. The limit may cut a character in two."""
        copies = self.request.copies
        start = text.find(copies[:TELLING_CHARACTERS]) if copies else -1
        return text[start:].rstrip().rstrip("\ufffd") if start >= 0 else ""

    def texts(self) -> Iterator[str]:
        for choice in self.answer.choices:
            yield from (choice.text, choice.thoughts, *(call.arguments for call in choice.calls))

    # Which answers could show it

    def could_pass_stop(self) -> bool:
        """True unless it is known that the answer never came to a stop string: of the user's prompts it is not."""
        if not self.promise.stops or not self.request.copies:
            return bool(self.promise.stops) and self.has_text
        return any(self.passed_stop(choice) or self._reached_stop(choice) for choice in self.answer.choices)

    def _reached_stop(self, choice: AnswerChoice) -> bool:
        """True where the text ends where the copied text has the stop string."""
        copies = self.request.copies
        ends = [copies[: copies.find(stop)] for stop in self.promise.stops if stop in copies]
        return any(end and choice.text.rstrip().endswith(end[-REACHED_CHARACTERS:].rstrip()) for end in ends)

    def must_call(self) -> bool:
        return bool(
            self.call_misfits or (self.promise.tools and self.answer.is_whole and self.ended),
        )

    def could_ignore_budget(self) -> bool:
        promise, choices = self.promise, self.answer.choices
        if not self.answer.is_whole or not choices:
            return False
        has_thoughts = any(choice.thoughts for choice in choices) or bool(self.answer.thinking_tokens)
        return (
            promise.choices > 1
            or promise.tokens_min is not None
            or (promise.thinking_max is not None and has_thoughts)
            or any(choice.finish_reason == "length" for choice in choices)
            or any(self.budget())
        )

    def was_alone(self) -> bool:
        """True where the same launch was asked alone: another may well round otherwise, and draw otherwise."""
        alone = self.held.alone
        if alone is None or alone is self.answer or not self.request.is_repeatable:
            return False
        is_same_launch = alone.exposure.launch == self.answer.exposure.launch
        return is_same_launch and self.answer.is_whole and alone.is_whole

    def was_asked(self) -> bool:
        return not self.answer.left and self.answer.status not in BUSY

    # What shows it

    def special_tokens(self) -> Iterator[str]:
        for text in self.texts():
            for match in _SPECIAL.finditer(text):
                yield f"{match[0]} in {_around(text, match.start())}"

    def after_stop(self) -> Iterator[str]:
        return filter(None, map(self.passed_stop, self.answer.choices))

    def passed_stop(self, choice: AnswerChoice) -> str:
        """The stop string itself, or the text goes on behind it as if it had not been there."""
        for stop in self.promise.stops:
            if stop in choice.text:
                return f"{stop!r} in {_around(choice.text, choice.text.index(stop))}"
            before, stands, after = self.request.copies.partition(stop)
            joined = before[-REACHED_CHARACTERS:] + after[:REACHED_CHARACTERS]
            is_telling = len(joined) == 2 * REACHED_CHARACTERS and joined not in self.request.copies
            if stands and is_telling and joined in choice.text:
                return f"goes on behind {stop!r}: {_around(choice.text, choice.text.index(joined))}"
        return ""

    def truncated(self) -> Iterator[str]:
        for choice in self.answer.choices:
            if choice.finish_reason in NO_ENDS:
                yield f"{choice.finish_reason or 'no reason'} to end after {_end(choice.text)}"

    def broken_off(self) -> Iterator[str]:
        """A copy whose end stands in the text to copy, inside a word or with a span of words to come. How it began does
        not matter: models put a line of their own before a copy."""
        for choice in self.answer.choices:
            end = choice.text.strip()[-TELLING_CHARACTERS:]
            if choice.finish_reason != "stop" or len(end) < REACHED_CHARACTERS:
                continue
            _, stands, rest = self.request.copies.rpartition(end)
            is_inside = rest[:1].isalnum() and end[-1].isalnum()
            if stands and (is_inside or len(rest.split()) >= SPAN_WORDS):
                yield f"breaks off: {_end(choice.text)}"

    def altered(self) -> Iterator[str]:
        """Wrong tokens that are tokens all the same. What is a fault of another name counts there."""
        others = (self.special_tokens, self.after_stop, self.cross_talk, self.repeated, self.broken)
        for choice in self.answer.choices:
            copy, wanted = self.copied(choice.text), self.request.copies
            at = next((i for i, (a, b) in enumerate(zip(copy, wanted, strict=False)) if a != b), None)
            if at is not None and not any(any(shown()) for shown in others):
                yield f"{_around(copy, at)} instead of {_around(wanted, at)}"

    def repeated(self) -> Iterator[str]:
        """Words that the text to copy holds once stand twice in a row or more often than the rest; or it loops."""
        for choice in self.answer.choices:
            if is_looping(choice.text[:LOOKED_AT]) and not is_looping(self.request.copies):
                yield f"loops: {_end(choice.text)}"
            elif span := _span_again(choice.text[:LOOKED_AT], self.request.copies):
                yield f"again: {span!r}"

    def cross_talk(self) -> Iterator[str]:
        for text in self.texts():
            for nonce in nonces_in(text):
                # A turn's earlier answers stand in its body: what was wrong there is not wrong here again.
                if nonce in self.held.nonces and nonce not in self.request.body:
                    yield f"{nonce}, of another request, in {_around(text, text.index(nonce))}"

    def _json_misfits(self) -> Iterator[str]:
        """The misfit of each choice, or "". Text that the limit cut has to begin as the schema allows; nothing can be
        said of the beginning of what a grammar allows."""
        promise = self.promise
        for choice in self.answered if self.answer.is_whole else ():
            was_cut, text, why = self.was_cut(choice), choice.text, ""
            if promise.schema:
                beginning = text[:LOOKED_AT]
                why = misfit_so_far(beginning, promise.schema) if was_cut else misfit(text, promise.schema)
            elif promise.pattern and not was_cut:
                why = "" if re.fullmatch(promise.pattern, text) else "not what the grammar allows"
            else:
                continue
            yield why and f"{why}: {_end(text)}"

    def _call_misfits(self) -> Iterator[str]:
        """The misfit of each call, or "". One that the limit cut has to begin as its schema allows."""
        schemas = dict(self.promise.tools)
        for choice in self.answered if schemas and self.answer.is_whole else ():
            whole_count = len(whole_calls(self.answer, choice, self.promise.tokens_max))
            for place, call in enumerate(choice.calls):
                is_whole, arguments = place < whole_count, call.arguments
                if not is_whole and not arguments.strip():
                    continue
                if call.name not in schemas:
                    yield f"calls {call.name!r}, which it was not given"
                    continue
                schema = schemas[call.name]
                beginning = arguments[:LOOKED_AT]
                why = misfit(arguments, schema) if is_whole else misfit_so_far(beginning, schema)
                yield why and f"{call.name}: {why}: {_end(arguments)}"

    def invalid_json(self) -> Iterator[str]:
        return filter(None, self.json_misfits)

    def wrong_arguments(self) -> Iterator[str]:
        return filter(None, self.call_misfits)

    def no_call(self) -> Iterator[str]:
        for choice in self.ended:
            if not choice.calls:
                yield f"no call, although one is required: {_end(choice.text)}"

    def budget(self) -> Iterator[str]:
        promise, tokens, count = self.promise, self.answer.tokens, len(self.answer.choices)
        if count != promise.choices:
            yield f"{count} choices instead of {promise.choices}"
        if tokens is not None and promise.tokens_max is not None:
            most = promise.tokens_max * max(1, count)
            if tokens > most:
                yield f"{tokens} tokens, at most {most} were asked for"
        if tokens is not None and promise.tokens_min is not None and tokens < promise.tokens_min:
            yield f"{tokens} tokens, at least {promise.tokens_min} were asked for"
        if promise.thinking_max is not None:
            # A word takes a token at least: where the server does not count, words say so late but surely.
            words = max((len(choice.thoughts.split()) for choice in self.answer.choices), default=0)
            counted = self.answer.thinking_tokens
            thought = words if counted is None else counted
            if thought > promise.thinking_max + THINKING_SLACK:
                yield f"{thought} tokens of thought, at most {promise.thinking_max} were asked for"

    def banned(self) -> Iterator[str]:
        for choice in self.answer.choices:
            for word in self.promise.banned:
                if word in choice.text:
                    yield f"{word!r} in {_around(choice.text, choice.text.index(word))}"

    def broken(self) -> Iterator[str]:
        for choice in self.answer.choices:
            # The limit may cut a character in two.
            whole = choice.text if choice in self.ended else choice.text.rstrip("\ufffd")
            if "\ufffd" in whole and "\ufffd" not in self.request.body:
                yield f"bytes that are no text: {_around(whole, whole.index(chr(0xFFFD)))}"
            # Our own codes are no words either.
            elif is_garbled(NONCE_SHAPE.sub("code", choice.text[:LOOKED_AT])) and not is_garbled(
                self.request.copies
            ):
                yield f"garbled: {_end(choice.text)}"

    def other_text(self) -> Iterator[str]:
        alone = self.held.alone.choices if self.held.alone is not None else ()
        for now, before in zip(self.answer.choices, alone, strict=False):
            if (now.text, now.calls) != (before.text, before.calls):
                pairs = enumerate(zip(now.text, before.text, strict=False))
                at = next((i for i, (a, b) in pairs if a != b), 0)
                yield f"{_around(now.text, at)} instead of {_around(before.text, at)}"

    def refused(self) -> Iterator[str]:
        if self.answer.error and not self.answer.is_hung:
            yield _end(self.answer.error)

    def hung(self) -> Iterator[str]:
        if self.answer.is_hung:
            yield self.answer.error or "no end within its time"


def _span_again(text: str, copies: str) -> str:
    """The first group of words that comes again although all that is copied holds it once."""
    words, seen = text.split(), set[str]()
    for start in range(len(words) - SPAN_WORDS + 1):
        span = " ".join(words[start : start + SPAN_WORDS])
        if span in seen and copies.count(span) == 1:
            return span
        seen.add(span)
    return ""


def _around(text: str, at: int) -> str:
    start = max(0, at - SHOWN // 2)
    return repr(text[start : start + SHOWN])


def _end(text: str) -> str:
    return repr(text[-SHOWN:])


# Whether an answer could have shown a fault, and what shows it.
_DETECTORS: Mapping[SoakFault, tuple[Callable[[_Look], bool], Callable[[_Look], Iterator[str]]]] = {
    # A model that is shown tokens of a template may well write some, and others than those.
    SoakFault.SPECIAL_TOKEN: (
        lambda look: look.has_text and not _SPECIAL.search(look.request.body),
        _Look.special_tokens,
    ),
    SoakFault.AFTER_STOP: (_Look.could_pass_stop, _Look.after_stop),
    SoakFault.TRUNCATED: (lambda look: look.answer.is_whole and bool(look.answer.choices), _Look.truncated),
    SoakFault.BROKEN_OFF: (
        lambda look: look.copies and look.answer.is_whole and not look.promise.stops,
        _Look.broken_off,
    ),
    SoakFault.REPEATED: (lambda look: look.copies, _Look.repeated),
    # There has to be somebody else whose text it could be.
    SoakFault.CROSS_TALK: (lambda look: look.has_text and len(look.held.nonces) > 1, _Look.cross_talk),
    SoakFault.INVALID_JSON: (lambda look: bool(look.json_misfits), _Look.invalid_json),
    SoakFault.TOOL_ARGUMENTS: (
        lambda look: look.promise.is_strict and bool(look.call_misfits),
        _Look.wrong_arguments,
    ),
    SoakFault.LOOSE_ARGUMENTS: (
        lambda look: not look.promise.is_strict and bool(look.call_misfits),
        _Look.wrong_arguments,
    ),
    SoakFault.NO_CALL: (_Look.must_call, _Look.no_call),
    SoakFault.BUDGET: (_Look.could_ignore_budget, _Look.budget),
    SoakFault.BANNED_TOKEN: (lambda look: look.has_text and bool(look.promise.banned), _Look.banned),
    SoakFault.ALTERED: (
        lambda look: not look.answer.left and any(look.copied(each.text) for each in look.answer.choices),
        _Look.altered,
    ),
    SoakFault.BROKEN_TEXT: (lambda look: look.has_ended_text, _Look.broken),
    SoakFault.OTHER_TEXT: (_Look.was_alone, _Look.other_text),
    SoakFault.REFUSED: (_Look.was_asked, _Look.refused),
    SoakFault.HUNG: (_Look.was_asked, _Look.hung),
}
