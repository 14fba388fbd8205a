"""watch: does speculation still pay on servers that are running?"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from speclift.cli.options import Flags, Json, takes
from speclift.cli.screens import screen
from speclift.core.errors import UsageError
from speclift.core.flags import assembled
from speclift.live.ask import WatchAsk

if TYPE_CHECKING:
    from speclift.core.answer import ShortAnswer
    from speclift.core.live import Watched

# numpy, scipy and rich are imported where they are used: --help must not wait for them.

STDIN = "-"
# A page of metrics; what is longer is none.
STDIN_CHARACTERS_MAX = 8 << 20
URLS = "Servers, as http://127.0.0.1:8000; several are watched side by side. - reads one page of metrics from stdin."


@takes(Flags(WatchAsk), as_parameter="asked")
def watch_command(
    asked: Mapping[str, object],
    *,
    urls: Annotated[list[str], typer.Argument(metavar="URL…", help=URLS)],
    as_json: Json = False,
) -> None:
    """Does speculation still pay on a running server? Reads its metrics and sends no request of its own. Exit code 0
    pays, 4 does not, 5 unsure or no traffic, 1 unreachable."""
    from speclift.verbs.watch import exit_code

    ask = assembled(WatchAsk, asked)
    judge = _page_from_stdin if STDIN in urls else _watch
    raise typer.Exit(exit_code(judge(urls, ask, as_json=as_json)))


def _page_from_stdin(urls: list[str], ask: WatchAsk, *, as_json: bool) -> list[Watched]:
    from speclift.verbs.watch import watch_page

    if len(urls) > 1:
        raise UsageError("- is one page from stdin; no other address goes with it", hint="speclift watch -")
    text = sys.stdin.buffer.read(STDIN_CHARACTERS_MAX + 1).decode("utf-8", "replace")
    if len(text) > STDIN_CHARACTERS_MAX:
        raise UsageError(
            f"stdin has more than {STDIN_CHARACTERS_MAX >> 20} MiB: no page of metrics is that long"
        )
    return [watch_page(text, ask, place="stdin", tell=_json_line if as_json else _plain)]


def _watch(urls: list[str], ask: WatchAsk, *, as_json: bool) -> list[Watched]:
    from speclift.bench.interrupts import run_until_signal
    from speclift.verbs.watch import watch
    from speclift.views.watch_terminal import WatchScreen

    if as_json:
        return list(run_until_signal(watch(urls, ask, tell=_json_line)).values())
    console = screen(stderr=True)
    if not console.is_terminal or ask.once:
        return list(run_until_signal(watch(urls, ask, tell=_plain)).values())
    from rich.live import Live

    view = WatchScreen()
    try:
        with Live(view, console=console, screen=True, auto_refresh=False) as live:

            def show(watched: Watched, answer: ShortAnswer) -> None:
                view.take(watched, answer)
                live.refresh()

            return list(run_until_signal(watch(urls, ask, tell=show)).values())
    finally:
        # What was last on the screen went with it.
        for ending in view.endings():
            console.print(ending)


def _json_line(watched: Watched, answer: ShortAnswer) -> None:
    """At once: whoever reads it acts on it."""
    from speclift.views.watch_document import watch_document

    document = watch_document(watched, answer)
    sys.stdout.write(json.dumps(document, ensure_ascii=True, allow_nan=False) + "\n")
    sys.stdout.flush()


def _plain(watched: Watched, answer: ShortAnswer) -> None:
    from speclift.views.watch_terminal import plain_lines

    screen(stderr=True).print(plain_lines(watched, answer))
