"""Which request files are these, and what does each entry say in our own keys?

A file holds JSON lines or one JSON array; an entry is ours, a line of a gateway's access log, an OpenAI batch line or
a ShareGPT conversation.
Both are told by content, never by file name. Values are checked in prompts.py, for every format alike.
"""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from speclift.core.errors import UsageError, unknown_name
from speclift.core.routing import ACCESS_FORMAT, ACCESS_MARK, RequestEnd
from speclift.core.traffic import DEFAULT_MAX_TOKENS
from speclift.core.units import Bytes

# An array is parsed from memory, where text outside Latin-1 takes up to four times its bytes.
DOCUMENT_BYTES_MAX = 1 << 30
SPEAKERS = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "system": "system",
}
_SPACE = re.compile(r"[ \t\n\r]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One request as it stands in the file. `position` is 'line 3', or 'index 2' in an array."""

    position: str
    raw: bytes
    data: object

    @property
    def default_id(self) -> str:
        return self.position.replace(" ", "-")


def read_entries(
    lines: Iterable[bytes], *, source: str, bytes_max: Bytes = DOCUMENT_BYTES_MAX
) -> Iterator[Entry]:
    """Entries in file order; a file whose first character is '[' is one array."""
    rest = iter(lines)
    leading: list[bytes] = []
    for raw in rest:
        leading.append(raw if leading else raw.removeprefix(BOM_UTF8))
        if leading[-1].strip():
            break
    whole = chain(leading, rest)
    if leading and leading[-1].lstrip().startswith(b"["):
        return _array_entries(whole, source, bytes_max)
    return _line_entries(whole, source, bytes_max)


def _line_entries(lines: Iterable[bytes], source: str, bytes_max: Bytes) -> Iterator[Entry]:
    for number, line in enumerate(lines, start=1):
        raw = line.strip()
        if not raw:
            continue
        where = f"{source} line {number}"
        if len(line) > bytes_max:
            raise UsageError(f"{where} is longer than {bytes_max:,} bytes")
        text = _decoded(line.rstrip(), where)  # columns count from the line's own start
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise UsageError(f"{where}, column {error.colno}: not JSON ({error.msg})") from error
        except (RecursionError, ValueError) as error:
            raise _beyond_python(where, error) from error
        yield Entry(position=f"line {number}", raw=raw, data=data)


def _array_entries(lines: Iterable[bytes], source: str, bytes_max: Bytes) -> Iterator[Entry]:
    """One entry is parsed at a time: a whole array of Python objects would need many times its text."""
    text = _decoded(_joined(lines, source, bytes_max), source)
    decode = json.JSONDecoder().raw_decode
    position = _skip_space(text, text.index("[") + 1)
    is_open = not text.startswith("]", position)
    index = 0
    while is_open:
        try:
            data, end = decode(text, position)
        except json.JSONDecodeError as error:
            raise _bad_array(source, text, error.pos, f"index {index} is not JSON ({error.msg})") from error
        except (RecursionError, ValueError) as error:
            raise _beyond_python(f"{source} index {index}", error) from error
        yield Entry(position=f"index {index}", raw=text[position:end].encode("utf-8"), data=data)
        position = _skip_space(text, end)
        is_open = text.startswith(",", position)
        if is_open:
            position = _skip_space(text, position + 1)
            index += 1
        elif not text.startswith("]", position):
            raise _bad_array(source, text, position, f"expected ',' or ']' after index {index}")
    position = _skip_space(text, position + 1)
    if position < len(text):
        raise _bad_array(source, text, position, "the file goes on after the array's end")


def _joined(lines: Iterable[bytes], source: str, bytes_max: Bytes) -> bytes:
    whole = bytearray()
    for line in lines:
        whole += line
        if len(whole) > bytes_max:
            raise UsageError(
                f"{source} is one JSON array of more than {bytes_max:,} bytes",
                hint="JSON lines are read one at a time: jq -c '.[]' FILE > requests.jsonl",
            )
    return bytes(whole)


def _decoded(raw: bytes, where: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}: not UTF-8 at byte {error.start}") from error


def _skip_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position


def _beyond_python(where: str, error: RecursionError | ValueError) -> UsageError:
    """JSON that is right and still cannot be read."""
    fault = "JSON nested too deeply" if isinstance(error, RecursionError) else "a number has too many digits"
    return UsageError(f"{where}: {fault}")


def _bad_array(source: str, text: str, position: int, fault: str) -> UsageError:
    at = json.JSONDecodeError(fault, text, position)
    return UsageError(f"{source} line {at.lineno}, column {at.colno}: {fault}")


def is_gateway_line(data: object) -> bool:
    return isinstance(data, dict) and data.get(ACCESS_MARK) == ACCESS_FORMAT and "end" in data


def request_fields(data: object, *, where: str) -> Mapping[str, object] | None:
    """The entry under our own keys; None where it asks nothing (a conversation without a human turn, a request that a
    gateway passed on unread or that failed)."""
    if not isinstance(data, dict):
        raise UsageError(f"{where}: expected a JSON object, saw {type(data).__name__}")
    if is_gateway_line(data):
        return _from_gateway(data, where)
    said = {key for key in ("messages", "prompt", "conversations", "body") if data.get(key) is not None}
    if said & {"messages", "prompt"}:
        return data
    if "conversations" in said:
        return _from_sharegpt(data, where)
    if "body" in said:
        return _from_batch(data, where)
    raise UsageError(
        f"{where}: needs either 'messages' or 'prompt'",
        hint="OpenAI batch lines have them in 'body', ShareGPT has 'conversations'",
    )


def _from_gateway(data: Mapping[str, object], where: str) -> dict[str, object] | None:
    """The body as it was sent. Its id is its place: a caller may use one twice."""
    if "request" not in data:
        raise UsageError(
            f"{where} is of a gateway's access log without text",
            hint="log prompts and answers too, to a new file: speclift gateway --access-log FILE --log-text",
        )
    body = data["request"]
    if not data.get("is_generation") or data["end"] != RequestEnd.OK or not isinstance(body, dict):
        return None
    own = {key: data.get(key) for key in ("segment", "arrival_s", "finish_reason")}
    # Several answers to one request are logged as one text, which nobody wrote.
    own["response"] = data.get("response") if body.get("n") in (None, 1) else None
    answered = data.get("output_tokens")
    if isinstance(answered, int) and not any(
        body.get(key) for key in ("max_tokens", "max_completion_tokens")
    ):
        # Without a limit of its own it is not to be cut off earlier than it ended.
        own["max_tokens"] = max(answered, DEFAULT_MAX_TOKENS)
    return {**body, **own, "id": None}


def _from_batch(data: Mapping[str, object], where: str) -> dict[str, object]:
    body, url = data["body"], data.get("url", "/v1/chat/completions")
    if not isinstance(body, dict):
        raise UsageError(f"{where}: 'body' must be an object, saw {type(body).__name__}")
    if not isinstance(url, str) or not url.endswith("/completions"):
        raise UsageError(
            f"{where}: only chat and plain completions can be measured, saw url {url!r}",
            hint="allowed: /v1/chat/completions, /v1/completions",
        )
    own = {key: data[key] for key in ("segment", "arrival_s") if key in data}
    return {**body, **own, "id": data.get("custom_id")}


def _from_sharegpt(data: Mapping[str, object], where: str) -> dict[str, object] | None:
    """Everything up to the last human turn is the request; the answer that follows is its response."""
    turns = data["conversations"]
    if not isinstance(turns, list):
        raise UsageError(f"{where}: 'conversations' must be a list, saw {type(turns).__name__}")
    messages = [_turn(turn, f"{where}: conversations[{index}]") for index, turn in enumerate(turns)]
    asked = [index for index, message in enumerate(messages) if message["role"] == "user"]
    if not asked:
        return None
    end = asked[-1] + 1
    answers = [message["content"] for message in messages[end : end + 1] if message["role"] == "assistant"]
    return {**data, "messages": messages[:end], "response": answers[0] if answers else None}


def _turn(turn: object, where: str) -> dict[str, str]:
    if not isinstance(turn, dict) or not isinstance(turn.get("from"), str):
        raise UsageError(f"{where} needs text 'from' and 'value'")
    if not isinstance(turn.get("value"), str):
        raise UsageError(f"{where}: 'value' must be text, saw {type(turn.get('value')).__name__}")
    role = SPEAKERS.get(turn["from"].lower())
    if role is None:
        unknown = unknown_name(what="speaker", seen=turn["from"], allowed=SPEAKERS)
        raise UsageError(f"{where}: {unknown}", hint=unknown.hint)
    return {"role": role, "content": turn["value"]}
