"""What a pasted command is today, in every form its engine takes, and what got lost on the way. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from speclift.linter.pasted import Pasted
from speclift.linter.shell_words import quote


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """`source` are the words of the command as a shell reads them. `notes` say which part has no equivalent and what
    comes closest. `yaml` is a file for vllm serve --config, or a container service where the engine reads no such
    file."""

    argv: tuple[str, ...]
    source: tuple[str, ...]
    python: str
    yaml: str
    notes: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        return " ".join(self.source)


def shell_source(
    pasted: Pasted, argv: Sequence[str], environment: Iterable[tuple[str, str]]
) -> tuple[str, ...]:
    """Variables, then the words. A variable that the words themselves use must be set by a command before them."""
    used = set(re.findall(r"\$\{?(\w+)", " ".join(pasted.expansions.pieces)))
    leading = []
    for name, value in environment:
        said = f"{name}={quote(value, pasted.expansions)}"
        leading.append(f"export {said};" if name in pasted.exported and name in used else said)
    return (*leading, *(quote(word, pasted.expansions) for word in argv))
