"""What a server that failed says, made fit for people: short, and without its mark-up. Pure.

Linear in what came: it runs where requests are measured, on whatever somebody chose to send.
"""

from __future__ import annotations

import html
import json

from speclift.core.json_reading import as_text

# Pages say what they are about near their beginning.
READ_BYTES_MAX = 64 * 1024
# Elements whose contents nobody reads.
_UNSEEN = ("script", "style")


def error_text(body: bytes, *, limit: int) -> str:
    """The message of a JSON error, the words of an HTML page, else the text as it is; cut to `limit`."""
    text = body[:READ_BYTES_MAX].decode("utf-8", "replace").strip()
    if text[:1] == "<":
        text = _page_words(text, limit=limit)
    elif text[:1] == "{":
        text = _json_message(text) or text
    return text[:limit]


def parse_json(text: str | bytes) -> object:
    """ValueError for whatever cannot be read: nested too deeply or with endless digits, too."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def error_message(found: object) -> str:
    """OpenAI's shape ({"error": {"message": ...}}), vLLM's older and FastAPI's; '' for any other."""
    if not isinstance(found, dict):
        return ""
    error = found.get("error", found)
    message = error.get("message") or error.get("detail") if isinstance(error, dict) else error
    return as_text(message) or ""


def _json_message(text: str) -> str:
    try:
        return error_message(parse_json(text))
    except ValueError:
        return ""


def _page_words(text: str, *, limit: int) -> str:
    """Without tags, scripts and styles. An element that never ends takes the rest of the page with it."""
    words: list[str] = []
    length = place = 0
    lowered = text.lower()
    # Entities are longer than what they stand for: so much text is enough for `limit` characters of words.
    while place < len(text) and length < 4 * limit:
        start = text.find("<", place)
        start = len(text) if start < 0 else start
        piece = text[place : min(start, place + 4 * limit)].split()
        words += piece
        length += sum(map(len, piece)) + len(piece)
        unseen = next((name for name in _UNSEEN if lowered.startswith(name, start + 1)), None)
        end = lowered.find(f"</{unseen}", start) if unseen else start
        close = text.find(">", end) if end >= 0 else -1
        place = len(text) if close < 0 else close + 1
    return " ".join(html.unescape(" ".join(words)[: 4 * limit]).split())
