"""watch: does speculation still pay on servers that are running?"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from speclift.cli.options import Flags, takes
from speclift.cli.screens import Json, screen
from speclift.core.errors import UsageError
from speclift.core.flags import assembled
from speclift.core.quantities import printable
from speclift.live.ask import SERVERS, WatchAsk

if TYPE_CHECKING:
    from speclift.core.live import Watched
    from speclift.verbs.watch_plan import Tell, WatchPlan, WatchTarget

# numpy, scipy and rich are imported where they are used: --help must not wait for them.

DRAWN_EVERY_S = 0.25
STDIN = "-"
# A page of metrics; what is longer is none.
STDIN_BYTES_MAX = 8 << 20
URLS = "Servers, as http://127.0.0.1:8000; several are watched side by side. - reads one page of metrics from stdin."

EXAMPLE = 'urls = ["http://127.0.0.1:8000"], or [[server]] with url = "..." and api_key_env = "..."'

# What was not typed may stand in the file.
FLAGS = Flags(WatchAsk, are_optional=True)


@takes(FLAGS, as_parameter="asked")
def watch_command(
    asked: Mapping[str, object],
    *,
    urls: Annotated[list[str] | None, typer.Argument(metavar="URL…", help=URLS)] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="TOML file with urls and these flags (_ for -), read anew on SIGHUP. Flags win.",
            rich_help_panel=SERVERS,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Does speculation still pay on a running server? Reads its metrics and sends no request of its own. Exit code 0
    pays, 4 does not, 5 unsure or no traffic, 1 unreachable."""
    from speclift.verbs.watch_plan import exit_code

    if STDIN in (urls or ()):
        raise typer.Exit(exit_code(_page_from_stdin(urls or [], assembled(WatchAsk, asked), as_json=as_json)))
    reread = partial(watch_plan, tuple(urls or ()), asked, config)
    raise typer.Exit(exit_code(_watch(reread, has_file=config is not None, as_json=as_json)))


def watch_plan(urls: tuple[str, ...], asked: Mapping[str, object], config: Path | None) -> WatchPlan:
    """The plan that the file and the command line give now; UsageError where one is wrong."""
    from speclift.verbs.watch_plan import WatchPlan, WatchTarget

    targets, values = ((), {}) if config is None else read_watch_file(config, FLAGS)
    if urls:
        targets = tuple(WatchTarget(url=url) for url in urls)
    if not targets:
        raise UsageError(
            "no server to watch was named" if config is None else f"{config} names no server to watch",
            hint="speclift watch http://127.0.0.1:8000",
        )
    return WatchPlan(targets=targets, ask=assembled(WatchAsk, {**values, **asked}))


def read_watch_file(path: Path, flags: Flags) -> tuple[tuple[WatchTarget, ...], dict[str, object]]:
    """The servers that it names, and values by field. UsageError where anything in it is wrong."""
    from speclift.cli.study_file import defaults_of, read_toml, settings_of

    table, parameters = read_toml(path), flags.parameters()
    settings = settings_of(parameters)
    options: dict[str, object] = {parameter.name: None for parameter in parameters}
    paths = {setting.parameter for setting in settings.values() if setting.type is Path}
    for name, value in defaults_of(table, settings, path, more=("urls", "server")).items():
        options[name] = Path(str(value)) if name in paths else value
    return _targets(table, path), flags.given(options)


def _targets(table: Mapping[str, object], path: Path) -> tuple[WatchTarget, ...]:
    from speclift.verbs.watch_plan import WatchTarget

    try:
        urls = msgspec.convert(table.get("urls", []), list[str])
        return (
            *(WatchTarget(url=url) for url in urls),
            *msgspec.convert(table.get("server", []), list[WatchTarget]),
        )
    except msgspec.ValidationError as error:
        raise UsageError(
            f"{path}: urls takes a list of addresses and [[server]], with two brackets, url and api_key_env, all as "
            f"text: {printable(str(error))}",
            hint=EXAMPLE,
        ) from error


def _page_from_stdin(urls: list[str], ask: WatchAsk, *, as_json: bool) -> list[Watched]:
    from speclift.studies.private import read_named
    from speclift.verbs.watch_plan import watch_page

    if len(urls) > 1:
        raise UsageError("- is one page from stdin; no other address goes with it", hint="speclift watch -")
    data = read_named(Path(STDIN), what="", limit_bytes=STDIN_BYTES_MAX)
    text = data.decode("utf-8", "replace")
    return [watch_page(text, ask, place="stdin", tell=_json_line if as_json else _plain)]


def _watch(reread: Callable[[], WatchPlan], *, has_file: bool, as_json: bool) -> list[Watched]:
    from speclift.bench.interrupts import run_until_signal
    from speclift.verbs.watch import watch

    plan = reread()
    ask = plan.ask

    # A service is told to read anew by SIGHUP, whether it has a file or a study; a program in a terminal ends with it.
    heeds = has_file or (ask.listen is not None and not sys.stderr.isatty())

    def run(tell: Tell, say: Callable[[str], None] = _say) -> list[Watched]:
        work = watch(plan, tell=tell, say=say, reread=reread if heeds else None)
        return list(run_until_signal(work).values())

    if as_json:
        return run(_json_line)
    console = screen(stderr=False)
    if ask.listen is not None and not console.is_terminal:
        return run(_Changes().tell)
    if not console.is_terminal or ask.once:
        return run(_plain)
    from rich.live import Live

    from speclift.views.watch_terminal import WatchScreen

    view, drawn_s = WatchScreen(), -math.inf
    try:
        with Live(view, console=console, screen=True, auto_refresh=False) as live:

            def show(watched: Watched) -> None:
                nonlocal drawn_s
                view.take(watched)
                # Hundreds of servers come one after the other, and a screen is read by one.
                if time.monotonic() - drawn_s >= DRAWN_EVERY_S:
                    drawn_s = time.monotonic()
                    live.refresh()

            return run(show, view.note)
    finally:
        # What was last on the screen went with it.
        for ending in view.endings():
            console.print(ending)


class _Changes:
    """A service says where an answer becomes another, and is quiet otherwise: its page has the rest."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[object, ...]] = {}

    def tell(self, watched: Watched) -> None:
        now = watched.verdict, bool(watched.unreachable), watched.events
        is_news = bool(watched.events) or self._last.get(watched.url, ())[:2] != now[:2]
        if is_news and self._last.get(watched.url) != now:
            _plain(watched)
        self._last[watched.url] = now


def _say(words: str) -> None:
    from speclift.core.quantities import printable_lines

    sys.stderr.write(f"{printable_lines(words)}\n")
    sys.stderr.flush()


def _json_line(watched: Watched) -> None:
    """Writes one document and flushes it: a reader acts on it."""
    from speclift.core.document import plain

    sys.stdout.write(json.dumps(plain(watched), ensure_ascii=True, allow_nan=False) + "\n")
    sys.stdout.flush()


def _plain(watched: Watched) -> None:
    from speclift.views.watch_terminal import plain_lines

    screen(stderr=False).print(plain_lines(watched))
    sys.stdout.flush()
