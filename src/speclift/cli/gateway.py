"""gateway: each request to the pool where it is fastest."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from speclift.cli.options import Flags, takes
from speclift.cli.screens import Json
from speclift.core.flags import assembled
from speclift.live.ask import ROUTING, GatewayAsk

# numpy, scipy and rich are imported where they are used: --help must not wait for them.

FLAGS = Flags(GatewayAsk)
# One request; a body that is longer is not read by the gateway either.
STDIN_BYTES_MAX = 4 << 20


@takes(FLAGS, as_parameter="asked")
def gateway_command(
    asked: Mapping[str, object],
    *,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Explain the route of one request, read from stdin: its JSON body, or path, headers and body.",
            rich_help_panel=ROUTING,
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Send each request to the pool where it is fastest: an OpenAI-compatible proxy in front of servers with and
    without speculation. SIGTERM finishes what is under way; SIGUSR1 sends everything to plain, SIGUSR2 routes again."""
    from speclift.bench.interrupts import EXIT_INTERRUPTED
    from speclift.verbs.gateway import run_gateway

    ask = assembled(GatewayAsk, asked)
    if dry_run:
        _explain(ask, as_json=as_json)
        return

    def ready(listening: str, lines: tuple[str, ...]) -> None:
        if as_json:
            sys.stdout.write(json.dumps({"schema": 1, "listen": listening}) + "\n")
            sys.stdout.flush()
        for line in (f"listening on http://{listening}, page at http://{listening}/speclift/", *lines):
            _say(line)

    cut, is_interrupted = run_gateway(ask, ready=ready, say=_say)
    if cut:
        _say(f"{cut} streams were cut off: the time to finish them was over")
    raise typer.Exit(EXIT_INTERRUPTED if is_interrupted else 0)


def _explain(ask: GatewayAsk, *, as_json: bool) -> None:
    from speclift.cli.screens import screen
    from speclift.core.document import plain
    from speclift.studies.private import read_named
    from speclift.verbs.gateway import explained_route
    from speclift.views.gateway_route import route_lines

    data = read_named(Path("-"), what="", limit_bytes=STDIN_BYTES_MAX)
    route = explained_route(ask, data)
    if as_json:
        sys.stdout.write(json.dumps(plain(route), allow_nan=False) + "\n")
        return
    console = screen(stderr=False)
    for line in route_lines(route):
        console.print(line, markup=False, highlight=False)


def _say(words: str) -> None:
    from speclift.core.quantities import printable_lines

    # Whoever read it may be gone, or its disk full: the traffic goes on.
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            sys.stderr.write(f"{printable_lines(words)}\n")
            sys.stderr.flush()
