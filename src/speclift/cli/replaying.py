"""replay."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from speclift.cli.options import Json
from speclift.cli.screens import screen
from speclift.core.errors import UsageError

if TYPE_CHECKING:
    from speclift.replayer.result import LogCounts

# numpy, scipy, jinja2 and rich are imported where they are used: --help must not wait for them.

SAID_EVERY_S = 10.0
RANGE_MAX = 1000
DRAFTERS, READING, WORTH = "Drafters", "Reading the log", "What it would be worth"


def _flag(panel: str, help_text: str, metavar: str) -> Any:
    return typer.Option(metavar=metavar, rich_help_panel=panel, help=help_text)


METHOD = "ngram, ngram:gpu (vLLM); ngram:simple, :map-k, :map-k4v, :mod, :cache (llama.cpp). Repeatable."
ENGINE = "Whose plain ngram: vllm (also without this flag) or llamacpp."
TOKENIZER = "GGUF, tokenizer.json or Hugging Face folder; else the embedded model's. Unused for token ids."
STUDY = "Predict speedups with the step cost this study measured."
COST = "Or with this: cost of verifying one drafted token, as a share of a plain step."
LOGS = "JSON lines with responses; OpenAI batch, ShareGPT, gzip as well."


def replay_command(
    logs: Annotated[list[Path], typer.Argument(metavar="LOG", help=LOGS)],
    method: Annotated[list[str] | None, _flag(DRAFTERS, METHOD, "NAME")] = None,
    engine: Annotated[str | None, _flag(DRAFTERS, ENGINE, "NAME")] = None,
    k: Annotated[str, _flag(DRAFTERS, "Draft lengths: 1..16 or 3,5,8.", "N,...")] = "1..16",
    ngram: Annotated[str, _flag(DRAFTERS, "Tokens looked up: 2..5 or 3.", "N,...")] = "2..5",
    tokenizer: Annotated[str | None, _flag(READING, TOKENIZER, "PATH")] = None,
    segment: Annotated[list[str] | None, _flag(READING, "Only this segment, repeatable.", "NAME")] = None,
    study: Annotated[Path | None, _flag(WORTH, STUDY, "DIR")] = None,
    cost: Annotated[float | None, _flag(WORTH, COST, "X")] = None,
    as_json: Json = False,
) -> None:
    """What would n-gram speculation have had accepted on logged traffic? Needs no engine."""
    from speclift.replayer.result import replay_document
    from speclift.verbs.replay import METHODS_DEFAULT, replay

    console = screen(stderr=True)
    result = replay(
        logs,
        methods=tuple(method or METHODS_DEFAULT),
        engine=engine,
        ks=number_list(k, flag="--k"),
        ngrams=number_list(ngram, flag="--ngram"),
        tokenizer=tokenizer,
        segments=tuple(segment or ()),
        study=study,
        cost=cost,
        progress=_Progress(lambda text: console.print(text, style="dim", markup=False)),
    )
    document = replay_document(result)
    if as_json:
        sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=True) + "\n")
        return
    from speclift.views.replay_terminal import replay_view

    console.print(replay_view(document))


def number_list(text: str, *, flag: str) -> tuple[int, ...]:
    """`1,3,5`, `1..16`, or both."""
    found: list[int] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        first, dots, last = (word.strip() for word in part.partition(".."))
        if not first.isdecimal() or not (last.isdecimal() if dots else True):
            raise UsageError(
                f"{flag} takes whole numbers, saw {part!r}", hint=f"for example {flag} 1..8 or {flag} 3,5"
            )
        low, high = int(first), int(last if dots else first)
        if not low <= high <= low + RANGE_MAX:
            raise UsageError(f"{flag}: {part!r} is no range", hint=f"for example {flag} 1..8")
        found += range(low, high + 1)
    if not found:
        raise UsageError(f"{flag} names no number", hint=f"for example {flag} 1..8")
    return tuple(found)


class _Progress:
    """A line now and then: a large log takes minutes."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say
        self._last_s = time.monotonic()

    def __call__(self, log: LogCounts) -> None:
        now_s = time.monotonic()
        if now_s - self._last_s >= SAID_EVERY_S:
            self._last_s = now_s
            self._say(f"{log.replayed:,} requests, {log.tokens:,} tokens so far")
