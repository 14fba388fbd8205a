"""Shell source into simple commands and back, without a shell: what only a shell could fill in stays source.

It is read in one pass. Quotes are taken off; `$NAME`, `${…}`, `$(…)`, `$((…))`, backticks and `<(…)` stand in their
word as they were written, and the command remembers them. Nothing is executed. Pure.
"""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from speclift.core.errors import UsageError

_BLANKS = re.compile(r"[ \t\r]+")
_PLAIN = re.compile(r"[^\s'\"\\$`;&|<>()^]+")
_QUOTED = re.compile(r'[^"\\$`]+')
# Blanks after the backslash are a slip of the paste that a shell would not forgive; ^ is cmd's, ` PowerShell's.
_CONTINUATION = re.compile(r"[\\^`][ \t]*\r?\n")
_NAME = re.compile(r"\$(?:[A-Za-z_]\w*|[0-9@*#?$!-])")
_ANSI_TEXT = re.compile(r"\$'(?:[^'\\]++|\\.)*+'", re.DOTALL)
_PROMPT = re.compile(r"\$[ \t]+(?=\S)")
_COMMENT = re.compile(r"#[^\n]*")
_REDIRECTION = re.compile(r"&>>?|<<<|<<-?|<>|>>|>\||[<>]&?")
# <your model>: for a shell two redirections, of which nobody means either.
_PLACEHOLDER = re.compile(r"<[A-Za-z][\w./:|-]*(?: [\w./:|-]+)*>(?=[\s\"'/,]|$)")
_SEPARATOR = re.compile(r"[;&|]+")
_FUNCTION = re.compile(r"\([ \t]*\)")
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=")
# Words of the shell itself that may stand before a command.
KEYWORDS = frozenset(
    {"if", "then", "elif", "else", "while", "until", "do", "!", "{", "}", "done", "fi", "esac"}
)
# Their own syntax has brackets; none of them starts a server.
_BRACKETED = frozenset({"case", "for", "select", "function", "[[", "[", "test"})
_CLOSING = {"(": ")", "{": "}"}


# Raw in a terminal they move the cursor, hide or reorder what follows; as escapes they are the same word.
_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
_HARMLESS = "\n\t\u200d"
# A long command has some hundred; no more are looked at, so that reading stays linear.
WORDS_MAX = 4_000
_LIVE_IN_QUOTES = re.compile(r'["\\$`]')


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansions:
    """The parts that only a shell knows: words that hold some, as they were written, and the pieces."""

    whole: Mapping[str, str] = field(default_factory=dict)
    pieces: tuple[str, ...] = ()

    def holds(self, text: str) -> bool:
        return text in self.whole or any(piece in text for piece in self.pieces)

    def in_order(self) -> tuple[str, ...]:
        """Longest first, so that $MODEL_PATH is not taken for $MODEL."""
        return tuple(sorted(self.pieces, key=len, reverse=True))


NOTHING = Expansions()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellCommand:
    """One simple command. `is_redirected`: what was said about its output is left out."""

    words: tuple[str, ...]
    expansions: Expansions = NOTHING
    is_redirected: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellText:
    """The commands of a text, and the here-documents in it, which are somebody else's input."""

    commands: tuple[ShellCommand, ...]
    documents: tuple[str, ...]


def read_shell(text: str) -> ShellText:
    return _Reader(text).read()


@dataclass(slots=True)
class _Word:
    start: int
    parts: list[str] = field(default_factory=list)
    live: list[str] = field(default_factory=list)
    source: str = ""

    @property
    def said(self) -> str:
        return "".join(self.parts)


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._commands: list[ShellCommand] = []
        self._documents: list[str] = []
        self._delimiters: deque[tuple[str, bool]] = deque()
        self._word: _Word | None = None
        self._subshells = 0
        self._has_cases = False
        self._begin_command()

    def _begin_command(self) -> None:
        self._read: list[_Word] = []
        self._target = ""  # the operator whose target comes next
        self._is_redirected = False

    def read(self) -> ShellText:
        while self._at < len(self._text):
            self._step()
        self._end_command()
        return ShellText(commands=tuple(self._commands), documents=tuple(self._documents))

    def _step(self) -> None:
        character = self._text[self._at]
        if not (self._skip(character) or self._operate(character)):
            self._add(character)

    def _skip(self, character: str) -> bool:
        """Takes what stands between words and commands."""
        text, at = self._text, self._at
        if match := _BLANKS.match(text, at):
            self._end_word()
            self._at = match.end()
        elif character == "\n":
            self._end_command()
            self._at += 1
            self._skip_documents()
        elif (match := _CONTINUATION.match(text, at)) and not (character == "`" and self._word):
            self._end_word()
            self._at = match.end()
        elif self._word is not None:
            return False
        elif character == "#":
            self._at = _end_of(_COMMENT, text, at)
        elif character == "$" and not self._read and (match := _PROMPT.match(text, at)):
            self._at = match.end()
        elif text.startswith("[[ ", at) and {word.said for word in self._read} <= KEYWORDS:
            end = text.find("]]", at)  # a condition, with a syntax of its own
            self._at = len(text) if end < 0 else end + 2
        else:
            return False
        return True

    def _operate(self, character: str) -> bool:
        """Takes an operator."""
        text, at = self._text, self._at
        if text.startswith(("<(", ">("), at):
            self._expand(_closed(text, at + 1))
        elif match := _PLACEHOLDER.match(text, at):
            self._open_word().parts.append(match[0])
            self._at = match.end()
        elif match := _REDIRECTION.match(text, at):
            self._redirect(match)
        elif character == "(":
            self._open_bracket()
        elif character == ")":
            self._close_bracket()
        elif character in ";&|":
            self._end_command()
            self._at = _end_of(_SEPARATOR, text, at)
        else:
            return False
        return True

    # Words

    def _add(self, character: str) -> None:
        text, at = self._text, self._at
        word = self._open_word()
        if character == "'":
            end = text.find("'", at + 1)
            if end < 0:
                raise _unclosed(text, at, "a single quote")
            word.parts.append(text[at + 1 : end])
            self._at = end + 1
        elif character == '"':
            self._add_quoted()
        elif character == "\\":
            word.parts.append(text[at + 1 : at + 2] or "\\")
            self._at += 2
        elif character == "$":
            self._dollar(is_quoted=False)
        elif character == "`":
            self._expand(_closed(text, at))
        else:  # a run of ordinary characters, or a ^ by itself
            end = max(_end_of(_PLAIN, text, at), at + 1)
            word.parts.append(text[at:end])
            self._at = end

    def _add_quoted(self) -> None:
        text, word, opened = self._text, self._open_word(), self._at
        self._at += 1
        while self._at < len(text) and text[self._at] != '"':
            at, character = self._at, text[self._at]
            if character == "$":
                self._dollar(is_quoted=True)
            elif character == "`":
                self._expand(_closed(text, at))
            elif character == "\\":
                following = text[at + 1 : at + 2]
                if following != "\n":
                    word.parts.append(following if following in '"\\$`' else f"\\{following}")
                self._at += 2
            else:
                self._at = _end_of(_QUOTED, text, at)
                word.parts.append(text[at : self._at])
        if self._at >= len(text):
            raise _unclosed(text, opened, "a double quote")
        self._at += 1

    def _dollar(self, *, is_quoted: bool) -> None:
        text, at = self._text, self._at
        if text.startswith(("$(", "${"), at):
            self._expand(_closed(text, at + 1))
        elif match := _NAME.match(text, at) or (None if is_quoted else _ANSI_TEXT.match(text, at)):
            self._expand(match.end())
        else:
            if is_quoted or text[at + 1 : at + 2] != '"':  # $"…" is "…"
                self._open_word().parts.append("$")
            self._at += 1

    def _expand(self, end: int) -> None:
        word = self._open_word()
        piece = self._text[self._at : end]
        word.parts.append(piece)
        word.live.append(piece)
        self._at = end

    def _open_word(self) -> _Word:
        if self._word is None:
            self._word = _Word(start=self._at)
        return self._word

    def _end_word(self) -> None:
        word, self._word = self._word, None
        if word is None:
            return
        if self._target:
            if self._target.startswith("<<") and self._target != "<<<":
                self._delimiters.append((word.said, self._target == "<<-"))
            self._target = ""
            return
        word.source = self._text[word.start : self._at]
        self._read.append(word)

    # Between words

    def _redirect(self, match: re.Match[str]) -> None:
        number = self._word
        if number is not None and not (number.live or number.said.strip("0123456789")):
            self._word = None  # the 2 of 2>&1
        self._end_word()
        self._target = match[0]
        self._is_redirected = True
        self._at = match.end()

    def _open_bracket(self) -> None:
        """A subshell, an array or a function; anywhere else a shell takes none and would not start the command."""
        text, at = self._text, self._at
        before = self._word.said if self._word is not None else ""
        words = [
            word for word in (*(each.said for each in self._read), before) if word and word not in KEYWORDS
        ]
        if _ARRAY.fullmatch(before):
            self._word = None  # NAME=(…): whoever uses it is told that it is not read
            self._at = _closed(text, at)
        elif not words and text.startswith("((", at):
            self._at = _closed(text, at)
        elif len(words) == 1 and (match := _FUNCTION.match(text, at)):
            self._end_word()
            self._begin_command()
            self._at = match.end()
        elif not words or words[0] in _BRACKETED:
            self._end_command()
            self._subshells += 1
            self._at += 1
        else:
            raise _misplaced(text, at)

    def _close_bracket(self) -> None:
        if not self._subshells and not self._has_cases:
            raise _misplaced(self._text, self._at)
        self._end_command()
        self._subshells = max(0, self._subshells - 1)
        self._at += 1

    def _end_command(self) -> None:
        self._end_word()
        words, expansions = _told_apart(self._read)
        if words[:1] == ["function"] and words[2:3] == ["{"]:
            words = words[3:]
        self._has_cases = self._has_cases or "case" in words[:2]
        first = next((index for index, word in enumerate(words) if word not in KEYWORDS), len(words))
        if words[first:]:
            self._commands.append(
                ShellCommand(
                    words=tuple(words[first:]), expansions=expansions, is_redirected=self._is_redirected
                )
            )
        self._begin_command()

    def _skip_documents(self) -> None:
        while self._delimiters:
            delimiter, strips_tabs = self._delimiters.popleft()
            lines: list[str] = []
            while self._at < len(self._text):
                end = self._text.find("\n", self._at)
                end = len(self._text) if end < 0 else end
                line = self._text[self._at : end].rstrip("\r")
                self._at = end + 1
                if (line.lstrip("\t") if strips_tabs else line) == delimiter:
                    break
                lines.append(line)
            self._documents.append("\n".join(lines))


def _told_apart(read: Sequence[_Word]) -> tuple[list[str], Expansions]:
    """The words without their quotes, or as they were written where the text alone would not say what of it is live."""
    pieces = tuple(dict.fromkeys(piece for word in read for piece in word.live))
    if not pieces or len(read) > WORDS_MAX:
        return [word.said for word in read], Expansions(pieces=pieces)
    expansions = Expansions(pieces=pieces)
    holders = [word for word in read if expansions.holds(word.said)]
    written = {word.said: word.source for word in holders}
    if any(not word.live or written[word.said] != word.source for word in holders):
        for word in holders:
            word.parts = [word.source]
        written = {word.source: word.source for word in holders}
    return [word.said for word in read], Expansions(whole=written, pieces=pieces)


def _closed(text: str, opened: int) -> int:
    """The end of what opens here: a bracket, a brace or a backtick, with quotes and others inside it."""
    closings = [_CLOSING.get(text[opened], "`")]
    at = opened + 1
    while at < len(text):
        character, inside = text[at], closings[-1]
        if character == "\\":
            at += 1
        elif character == inside:
            closings.pop()
            if not closings:
                return at + 1
        elif inside == "`":
            pass
        elif text.startswith(("$(", "${"), at):
            at += 1
            closings.append(_CLOSING[text[at]])
        elif character in '"`':
            closings.append(character)
        elif inside != '"' and character == "(":
            closings.append(")")
        elif inside != '"' and character == "'":
            end = text.find("'", at + 1)
            at = len(text) if end < 0 else end
        at += 1
    raise _unclosed(text, opened, f"a {text[opened]}")


def _end_of(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return at if match is None else match.end()


def _misplaced(text: str, at: int) -> UsageError:
    line = text.count("\n", 0, at) + 1
    return UsageError(
        f"this is not a shell command: unexpected {text[at]} in line {line}",
        hint=f"near {text[max(0, at - 30) : at + 30]!r}; quote it, or paste the command alone",
    )


def _unclosed(text: str, at: int, what: str) -> UsageError:
    line = text.count("\n", 0, at) + 1
    return UsageError(
        f"this is not a shell command: {what} in line {line} is never closed",
        hint=f"near {text[at : at + 60]!r}",
    )


# Words back into source: each yields exactly itself, but for what a shell was to fill in all along


def join_words(words: Iterable[str], expansions: Expansions = NOTHING) -> str:
    return " ".join(quote(word, expansions) for word in words)


def quote(word: str, expansions: Expansions = NOTHING) -> str:
    if word in expansions.whole:
        return expansions.whole[word]
    if expansions.pieces and expansions.holds(word):
        return _with_live_pieces(word, expansions.in_order())
    return _escaped(word) if any(map(is_hidden, word)) else shlex.quote(word)


def _with_live_pieces(word: str, pieces: Sequence[str]) -> str:
    """The word in double quotes, where a shell fills in the pieces and nothing else."""
    live = re.compile("|".join(map(re.escape, pieces)))
    parts, at = [], 0
    for match in live.finditer(word):
        parts += [_inert(word[at : match.start()]), match[0]]
        at = match.end()
    return f'"{"".join([*parts, _inert(word[at:])])}"'


def _inert(text: str) -> str:
    return _LIVE_IN_QUOTES.sub(lambda match: f"\\{match[0]}", text)


def is_hidden(character: str) -> bool:
    return character not in _HARMLESS and unicodedata.category(character) in _HIDDEN


def _escaped(word: str) -> str:
    """$'…', in which bash, zsh and ksh read escapes."""
    shown = (_escape(character) for character in word)
    return f"$'{''.join(shown)}'"


def _escape(character: str) -> str:
    if character in "'\\":
        return f"\\{character}"
    if not is_hidden(character):
        return character
    # A byte that is no UTF-8 reaches a program's arguments as one of these surrogates.
    is_byte = "\udc80" <= character <= "\udcff"
    return "".join(
        f"\\x{byte:02x}"
        for byte in character.encode("utf-8", "surrogateescape" if is_byte else "surrogatepass")
    )
