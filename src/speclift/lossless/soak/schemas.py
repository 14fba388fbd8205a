"""Does a text fit its JSON schema? The part of JSON Schema that the soak's own traffic uses, and no more."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from speclift.core.json_reading import as_list, as_object, as_objects, as_text, as_whole
from speclift.core.records import AnswerChoice, ToolCall
from speclift.core.units import Tokens
from speclift.lossless.soak.values import SoakAnswer

_KINDS: Mapping[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}
_CLOSING = {"{": "}", "[": "]"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PromisedFormat:
    """The format that a request's own `response_format`, `tools` and `stop` ask of its answer."""

    # As JSON; "{}" where any JSON will do, None where any text.
    schema: str | None
    # By name, each with the JSON schema of its arguments, as JSON.
    tools: tuple[tuple[str, str], ...]
    must_call: bool
    # Whether every tool is strict: only then has the server promised that arguments fit. vLLM (0.32) leaves the others'
    # to the model, even where it forces the call.
    is_strict: bool
    stops: tuple[str, ...]


@cache
def promised_format(answer_format: str) -> PromisedFormat:
    format_object = as_object(json.loads(answer_format))
    wanted = as_object(format_object.get("response_format"))
    schema: str | None = None
    if wanted.get("type") == "json_object":
        schema = "{}"
    elif wanted.get("type") == "json_schema":
        schema = json.dumps(as_object(as_object(wanted.get("json_schema")).get("schema")))
    functions = [as_object(tool.get("function")) for tool in as_objects(format_object.get("tools"))]
    tools = (
        (as_text(entry.get("name")) or "", json.dumps(entry.get("parameters") or {})) for entry in functions
    )
    choice, stop = format_object.get("tool_choice"), format_object.get("stop")
    stops = (as_text(entry) for entry in (as_list(stop) if isinstance(stop, list) else [stop]))
    return PromisedFormat(
        schema=schema,
        tools=tuple(tool for tool in tools if tool[0]),
        must_call=choice == "required" or isinstance(choice, dict),
        is_strict=all(entry.get("strict") is True for entry in functions),
        stops=tuple(entry for entry in stops if entry),
    )


def read_json(text: str) -> object:
    """ValueError where it is none; NaN and Infinity are Python's, not JSON's."""
    try:
        value: object = json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value


def _refuse(word: str) -> object:
    raise ValueError(f"{word} is no JSON")


def is_json(text: str) -> bool:
    try:
        read_json(text)
    except ValueError:
        return False
    return True


def misfit(text: str, schema: str) -> str:
    """Why the text is not what the schema (as JSON) allows; "" where it is."""
    try:
        value = read_json(text)
    except ValueError as error:
        return f"not JSON: {error}"
    return value_misfit(value, json.loads(schema))


def misfit_so_far(text: str, schema: str) -> str:
    """Why nothing that begins with this text is what the schema allows; "" where something may be. The last value may
    go on and is not looked at."""
    if text.lstrip()[:1] not in ("{", "["):
        could_be_json = text.lstrip()[:1] in ("", *'"-0123456789tfn')
        return "" if could_be_json else "not JSON"
    try:
        value = read_json(closed(text))
    except ValueError as error:
        return f"not JSON: {error}"
    return value_misfit(value, json.loads(schema), is_whole=False)


def closed(text: str) -> str:
    """A beginning of JSON up to its last whole value, with the brackets that are open there closed."""
    still_open: list[str] = []
    end = 0
    is_string = is_escaped = False
    for place, letter in enumerate(text):
        if is_string:
            is_string = is_escaped or letter != '"'
            is_escaped = letter == "\\" and not is_escaped
        elif letter == '"':
            is_string = True
        elif letter in "{[,]}":
            if letter in "{[":
                still_open.append(_CLOSING[letter])
            elif letter != "," and still_open:
                still_open.pop()
            end = place if letter == "," else place + 1
    goes_on_behind_its_end = not still_open and text[end:].strip()
    return text if goes_on_behind_its_end else text[:end] + "".join(reversed(still_open))


def value_misfit(
    value: object, schema: Mapping[str, object], *, where: str = "", is_whole: bool = True
) -> str:
    """Why a value is not what the schema allows, "" where it is; of one that is not whole, nothing is missing yet."""
    named, kind, allowed = where or "the answer", schema.get("type"), schema.get("enum")
    if isinstance(kind, str) and not _is_kind(value, kind):
        return f"{named} is no {kind}"
    is_settled = is_whole or not isinstance(value, dict | list)
    if isinstance(allowed, list) and is_settled and not any(_is_same(value, other) for other in allowed):
        return f"{named} is none of those allowed"
    if isinstance(value, dict):
        return _object_misfit(value, schema, where=where, is_whole=is_whole)
    if isinstance(value, list):
        return _list_misfit(value, schema, where=where, is_whole=is_whole)
    return ""


def _list_misfit(value: list[object], schema: Mapping[str, object], *, where: str, is_whole: bool) -> str:
    least, most = as_whole(schema.get("minItems")) or 0, as_whole(schema.get("maxItems"))
    if (is_whole and len(value) < least) or (most is not None and len(value) > most):
        return f"{where or 'the answer'} has {len(value)} entries"
    items = as_object(schema.get("items"))
    inside = (
        value_misfit(entry, items, where=f"{where}[{place}]", is_whole=is_whole)
        for place, entry in enumerate(value)
    )
    return next(filter(None, inside), "")


def _object_misfit(
    value: Mapping[str, object], schema: Mapping[str, object], *, where: str, is_whole: bool
) -> str:
    properties = as_object(schema.get("properties"))
    missing = [name for name in as_list(schema.get("required")) if name not in value]
    if missing and is_whole:
        return f"{missing[0]} is missing"
    is_closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
    if is_closed and (foreign := sorted(set(value) - set(properties))):
        return f"{foreign[0]!r} is not allowed"
    inside = (
        value_misfit(
            value[name], as_object(properties[name]), where=f"{where}.{name}".lstrip("."), is_whole=is_whole
        )
        for name in value
        if name in properties
    )
    return next(filter(None, inside), "")


def _is_same(value: object, allowed: object) -> bool:
    return value == allowed and type(value) is type(allowed)


def _is_kind(value: object, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean" or kind not in _KINDS
    is_whole = kind == "integer" and isinstance(value, float) and value.is_integer()
    return kind not in _KINDS or is_whole or isinstance(value, _KINDS[kind])


NO_ARGUMENTS = "{}"


def is_cut(finish_reason: str | None, tokens: Tokens | None, limit: Tokens | None) -> bool:
    """vLLM says tool_calls even where the limit ended it in the middle of a call (seen with 0.26)."""
    is_at_limit = limit is not None and tokens is not None and tokens >= limit
    return finish_reason == "length" or (finish_reason == "tool_calls" and is_at_limit)


def whole_calls(answer: SoakAnswer, choice: AnswerChoice, limit: Tokens | None) -> tuple[ToolCall, ...]:
    """Those that came to their end: the next one had begun, or nothing can follow."""
    calls = choice.calls
    was_cut = is_cut(choice.finish_reason, answer.tokens, limit)
    return calls[:-1] if was_cut and calls and not _has_ended(calls[-1]) else calls


def _has_ended(call: ToolCall) -> bool:
    """vLLM also says {} where arguments had not begun."""
    return is_json(call.arguments) and call.arguments.strip() != NO_ARGUMENTS
