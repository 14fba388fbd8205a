"""Text as a browser or a terminal pastes it, made plain: prompts, curly quotes, joined lines. Pure.

Each repair is said in a note, because the text that is judged is then no longer quite the one that was pasted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

_FENCE = re.compile(r"\A\s*(?:```|~~~)[^\n]*\n(.*?)(?:\n\s*(?:```|~~~)[^\n]*)?\s*\Z", re.DOTALL)
_PYTHON_PROMPT = re.compile(r"^[ \t]*(?:>>>|\.\.\.)(?:[ \t]|$)", re.MULTILINE)
# (venv) me@host:~/models$ vllm serve …; a bare $ is the shell reader's to take off.
_PROMPT = re.compile(
    r"^[ \t]*(?:\([\w.-]+\)[ \t]+)?(?:[\w.-]+@[\w.-]+[: ]\S*[$#%]|PS [A-Z]:\S*>|[❯➜%])[ \t]+(?=\S)",
    re.MULTILINE,
)
_ENVIRONMENT_PROMPT = re.compile(r"^[ \t]*\([\w.-]+\)[ \t]+(?=\$[ \t])", re.MULTILINE)
_SECOND_PROMPT = re.compile(r"(\\[ \t]*\n)[ \t]*>[ \t]+")
_NOTEBOOK = re.compile(r"^[ \t]*(?:%%(?:bash|sh)\b[^\n]*|!(?=[\w./]))", re.MULTILINE)
# A line's end that became a blank; Windows' own ^ only before a flag, since a ^ means little elsewhere.
_JOINED = re.compile(r"(?<=\s)(?:\\[ \t]+(?=\S)|\\[ \t]*\Z|\^[ \t]+(?=-))")
_BLANKS = re.compile("[\u00a0\u2000-\u200a\u202f\u205f\u3000]")
_CURLY_DOUBLE = re.compile("[“”„‟]")
_CURLY_SINGLE = re.compile("[‘’‚‛]")


def made_plain(text: str) -> tuple[str, tuple[str, ...]]:
    """The text a shell or an interpreter was given, and what had to be repaired to get there."""
    notes: list[str] = []
    for repair, note in _REPAIRS:
        repaired = repair(text)
        if repaired != text:
            notes.append(note)
            text = repaired
    return text, tuple(notes)


def words_made_plain(words: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """The same for what a shell has split already: it makes one word of `\\ --flag`, blank and all."""
    plain = [word.lstrip() if word.lstrip().startswith("-") else word for word in words]
    plain = [word for word in plain if not word or word.strip()]
    return plain, () if plain == list(words) else (_JOINED_NOTE,)


def _unfenced(text: str) -> str:
    match = _FENCE.match(text)
    return text if match is None else match[1]


def _without_prompts(text: str) -> str:
    if re.search(r"^[ \t]*>>>[ \t]", text, re.MULTILINE):
        return _PYTHON_PROMPT.sub("", text)
    text = _ENVIRONMENT_PROMPT.sub("", _SECOND_PROMPT.sub(r"\1", text))
    return _NOTEBOOK.sub("", _PROMPT.sub("", text))


def _straight(text: str) -> str:
    """Who has both kinds means the curly ones as characters; an odd single one is an apostrophe."""
    if '"' not in text:
        text = _CURLY_DOUBLE.sub('"', text)
    is_paired = len(_CURLY_SINGLE.findall(text)) % 2 == 0
    return _CURLY_SINGLE.sub("'", text) if is_paired and "'" not in text else text


_JOINED_NOTE = "a \\ before a blank was read as the end of a line, as it was before the paste"
_REPAIRS: tuple[tuple[Callable[[str], str], str], ...] = (
    (_unfenced, "the fence around the code is left out"),
    (_without_prompts, "prompts at the beginning of lines are left out"),
    (_straight, "curly quotes were read as straight ones"),
    (lambda text: _BLANKS.sub(" ", text), "blanks that a shell does not take for blanks were read as blanks"),
    (lambda text: _JOINED.sub("", text), _JOINED_NOTE),
)
