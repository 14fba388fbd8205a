"""What a pasted command is today, in every form its engine takes, and what got lost on the way. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """`notes` say which part has no equivalent and what comes closest. `yaml` is a file for vllm serve --config,
    or a container service where the engine reads no such file."""

    argv: tuple[str, ...]
    command: str
    python: str
    yaml: str
    notes: tuple[str, ...] = ()
