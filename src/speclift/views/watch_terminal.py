"""watch on a terminal: a calm screen while it goes on, a few lines where there is no terminal."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from speclift.core.live import LivePercentiles, Payoff, Watched
from speclift.core.quantities import duration, number, printable, seconds, share

STYLES = {
    Payoff.PAYS: "bold green",
    Payoff.DOES_NOT_PAY: "bold red",
    Payoff.UNSURE: "bold yellow",
    Payoff.NO_TRAFFIC: "dim",
}
UNREACHABLE = "unreachable"
WORST_FIRST = (
    UNREACHABLE,
    *(payoff.value for payoff in (Payoff.DOES_NOT_PAY, Payoff.UNSURE, Payoff.NO_TRAFFIC, Payoff.PAYS)),
)
BARS = "▁▂▃▄▅▆▇█"
# As many looks as a sparkline has places; events that stay in sight.
KEPT_LOOKS = 240
KEPT_EVENTS = 6
URL_CHARACTERS = 48


class _Kept:
    """One server as the screen remembers it."""

    def __init__(self) -> None:
        self.lengths: deque[float | None] = deque(maxlen=KEPT_LOOKS)
        self.tokens: deque[float | None] = deque(maxlen=KEPT_LOOKS)
        self.running: deque[float | None] = deque(maxlen=KEPT_LOOKS)
        self.events: deque[str] = deque(maxlen=KEPT_EVENTS)
        self.last: Watched | None = None

    def take(self, watched: Watched) -> None:
        length = watched.accepted_length
        self.lengths.append(None if length is None else length.value)
        self.tokens.append(watched.tokens_s)
        self.running.append(watched.running)
        moment = watched.at[11:19]
        self.events.extend(f"{moment} {event.value}" for event in watched.events)
        if self.last is not None and self.last.verdict is not watched.verdict:
            self.events.append(f"{moment} {self.last.verdict.value} → {watched.verdict.value}")
        self.last = watched


class WatchScreen:
    """One server in full, several as a table, the worst first."""

    def __init__(self) -> None:
        self._servers: dict[str, _Kept] = {}
        self._noted = ""

    def note(self, words: str) -> None:
        """Shows a line beside the answers."""
        self._noted = printable(words, limit=400)

    def take(self, watched: Watched) -> None:
        self._servers.setdefault(watched.url, _Kept()).take(watched)

    def endings(self) -> Iterable[RenderableType]:
        """The last answer of each server, for when the screen is gone."""
        for server in self._servers.values():
            if server.last is not None:
                yield plain_lines(server.last)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        servers = list(self._servers.values())
        if not servers:
            yield Text("first look taken; the next one in an interval", style="dim")
        elif len(servers) == 1:
            yield from _one_server(servers[0], width=options.max_width)
        else:
            yield from _several(servers, width=options.max_width, height=options.max_height)
        if self._noted:
            yield Text(self._noted, style="dim")
        yield Text("Ctrl-C ends", style="dim")


def plain_lines(watched: Watched) -> RenderableType:
    """The answer of one look."""
    answer = watched.answer
    head = Text.assemble(
        (watched.at[11:19], "dim"),
        " ",
        (printable(watched.url, limit=URL_CHARACTERS), "dim"),
        " ",
        (answer.sentence, _style(watched)),
    )
    reasons = [Padding(Text(reason), (0, 0, 0, 2), expand=False) for reason in answer.because]
    events = ", ".join(event.value for event in watched.events)
    marks = [Padding(Text(f"seen: {events}", style="yellow"), (0, 0, 0, 2), expand=False)] if events else []
    commands = []
    if answer.next is not None:
        commands.append(
            Padding(Text(f"next: {printable(answer.next.command, limit=4000)}"), (0, 0, 0, 2), expand=False)
        )
    return Group(head, *reasons, *marks, *commands)


def sparkline(values: Sequence[float | None], *, width: int, low: float | None = None) -> str:
    """The newest at the right; a gap where nothing is known. `low` is the value of the lowest bar."""
    shown = list(values)[-width:]
    present = [value for value in shown if value is not None]
    if not present:
        return ""
    floor = min(present) if low is None else min(low, *present)
    span = max(present) - floor
    if span <= 0:
        return "".join(" " if value is None else BARS[3] for value in shown)
    return "".join(" " if value is None else BARS[min(7, int((value - floor) / span * 8))] for value in shown)


def _one_server(kept: _Kept, *, width: int) -> Iterable[RenderableType]:
    watched = kept.last
    assert watched is not None
    answer = watched.answer
    who = " ".join(filter(None, (watched.engine, watched.version, watched.model)))
    yield Text(f"{printable(watched.url, limit=width - 2)}  {printable(who, limit=width)}", style="dim")
    yield Text()
    yield Text(answer.sentence, style=_style(watched))
    for reason in answer.because:
        yield Padding(Text(f"· {reason}"), (0, 0, 0, 1), expand=False)
    if answer.next is not None:
        yield Padding(
            Text(f"next: {printable(answer.next.command, limit=4000)}", style="bold"),
            (0, 0, 0, 1),
            expand=False,
        )
    yield Text()
    yield _facts(watched, kept, width=width)
    if kept.events:
        yield Text()
        yield Text("  ".join(kept.events), style="yellow")
    yield Text()


def _facts(watched: Watched, kept: _Kept, *, width: int) -> Table:
    places = max(10, min(60, width - 44))
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, style="cyan")
    point = watched.break_even
    table.add_row("accepted length", length_words(watched), sparkline(kept.lengths, width=places, low=1.0))
    table.add_row(
        "break-even", "–" if point is None else f"{point.accepted_length:.2f} ({point.source.value})", ""
    )
    table.add_row("acceptance rate", share(watched.acceptance_rate), "")
    if watched.per_position:
        shown = " ".join(share(position) for position in watched.per_position[:8])
        table.add_row("by position", shown + (" …" if len(watched.per_position) > 8 else ""), "")
    table.add_row("tokens/s", number(watched.tokens_s, 0), sparkline(kept.tokens, width=places, low=0.0))
    running = f"{number(watched.running, 0)} running, {number(watched.waiting, 0)} waiting"
    table.add_row("requests", running, sparkline(kept.running, width=places, low=0.0))
    table.add_row("TTFT", _times(watched.ttft_s), "")
    table.add_row("TPOT", _times(watched.tpot_s), "")
    table.add_row("KV cache used", share(watched.kv_used), "")
    table.add_row("prefix hits", share(watched.prefix_hit_rate), "")
    table.add_row("window", duration(watched.window_s), "")
    return table


def _several(kept: Sequence[_Kept], *, width: int, height: int) -> Iterable[RenderableType]:
    servers = [(server.last, server) for server in kept if server.last is not None]
    servers.sort(key=lambda pair: (WORST_FIRST.index(_word(pair[0])), pair[0].url))
    counted = Counter(_word(last) for last, _ in servers)
    yield Text("  ".join(f"{counted[word]} {word}" for word in WORST_FIRST if counted[word]), style="bold")
    yield Text()
    yield _server_table(servers[: max(1, height - 6)], places=min(40, width - 78))
    if len(servers) > max(1, height - 6):
        yield Text(f"{len(servers) - max(1, height - 6)} more", style="dim")


def _server_table(servers: Sequence[tuple[Watched, _Kept]], *, places: int) -> Table:
    """The curve only where there is room for one."""
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True, min_width=12)
    table.add_column(no_wrap=True, ratio=1)
    for _ in range(4):
        table.add_column(no_wrap=True)
    titles = ("", "server", "accepted length", "needs", "running", "")
    table.add_row(*(Text(title, style="dim") for title in titles))
    for last, server in servers:
        point = last.break_even
        table.add_row(
            Text(_word(last), style=_style(last)),
            Text(printable(last.url.partition("://")[2], limit=URL_CHARACTERS)),
            length_words(last),
            "–" if point is None else f"{point.accepted_length:.2f}",
            number(last.running, 0),
            Text(sparkline(server.lengths, width=places, low=1.0) if places >= 8 else "", style="cyan"),
        )
    return table


def _word(watched: Watched) -> str:
    return UNREACHABLE if watched.unreachable else watched.verdict.value


def length_words(watched: Watched) -> str:
    length = watched.accepted_length
    return "–" if length is None else f"{length.value:.2f} [{length.low:.2f}, {length.high:.2f}]"


def _times(times: LivePercentiles) -> str:
    named = (("mean", times.mean), ("p50", times.p50), ("p95", times.p95), ("p99", times.p99))
    return "  ".join(f"{name} {seconds(value)}" for name, value in named if value is not None) or "–"


def _style(watched: Watched) -> str:
    return "bold red" if watched.unreachable else STYLES[watched.verdict]
