"""watch as a web page: the answer now, what led to it, and how it went over time; several servers as a list, the worst
first. Made on the server, whole, for every look: nothing of what servers say is put together in the browser. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from statistics import median
from urllib.parse import urlencode

from speclift.core.live import Event, KeptLook, LivePercentiles, Payoff, Watched
from speclift.core.quantities import duration, number, seconds, share
from speclift.core.units import Seconds
from speclift.views.charts import AREA_WIDTH_PX, Scale, Tick, fitting_ticks, joined
from speclift.views.page_templates import page_template

HOURS = {1: "1 h", 6: "6 h", 24: "24 h", 168: "7 d", 720: "30 d"}
WORST_FIRST = (Payoff.DOES_NOT_PAY, Payoff.UNSURE, Payoff.NO_TRAFFIC, Payoff.PAYS)
TITLES = {
    Payoff.PAYS: "Pays",
    Payoff.DOES_NOT_PAY: "Does not pay",
    Payoff.UNSURE: "Unsure",
    Payoff.NO_TRAFFIC: "No traffic",
}
UNREACHABLE = "unreachable"
# Of so many of all.
SENTENCES = {
    UNREACHABLE: "{} cannot be reached",
    Payoff.DOES_NOT_PAY.value: "Speculation does not pay on {}",
    Payoff.UNSURE.value: "Unsure whether speculation pays on {}",
    Payoff.NO_TRAFFIC.value: "No traffic on {}",
    Payoff.PAYS.value: "Speculation pays on {}",
}
MARKS_SHOWN = 12
POSITIONS_SHOWN = 8
HOUR_S, DAY_S = 3600.0, 24 * 3600.0
# Distances between the times under a chart, the first that leaves few enough.
TIME_STEPS_S = (
    60.0,
    300.0,
    900.0,
    1800.0,
    HOUR_S,
    3 * HOUR_S,
    6 * HOUR_S,
    12 * HOUR_S,
    DAY_S,
    2 * DAY_S,
    7 * DAY_S,
)
TIMES_MAX = 6
CHART_HEIGHT_PX = 140.0
LABEL_HEIGHT_PX = 16.0
VALUES_MAX = 4
# Two looks further apart than so many usual distances have nothing drawn between them.
GAP_DISTANCES = 3.5
MARKS_MAX = 60
_TONES = {
    Payoff.PAYS.value: "pays",
    Payoff.DOES_NOT_PAY.value: "loses",
    Event.UNREACHABLE.value: "loses",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Times without speculation at the load nearest to that of now, as a study measured them."""

    ttft_p50_s: float | None
    ttft_p95_s: float | None
    tpot_p50_s: float | None
    tpot_p95_s: float | None
    load: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLine:
    """`lines` and `bands` as SVG writes points, x and y in percent; `style` is a colour, `is_limit` one to be held
    against."""

    name: str
    style: str
    lines: tuple[str, ...]
    bands: tuple[str, ...] = ()
    is_limit: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeMark:
    """Something that happened, in percent from the left."""

    x: float
    words: str
    style: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeChart:
    title: str
    lines: tuple[TimeLine, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    marks: tuple[TimeMark, ...]


@dataclass(frozen=True, slots=True)
class _Drawn:
    """One line before it has a place: its values, and the bounds around them where there are some."""

    name: str
    style: str
    value: Callable[[KeptLook], float | None]
    low: Callable[[KeptLook], float | None] | None = None
    high: Callable[[KeptLook], float | None] | None = None
    is_limit: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFrame:
    """The frame of a page: nonce, refresh, version."""

    nonce: str
    every_s: Seconds
    version: str


def watch_page(
    watched: Watched,
    looks: Sequence[KeptLook],
    frame: PageFrame,
    *,
    span: Scale,
    hours: int,
    baseline: Baseline | None,
    is_of_several: bool,
) -> str:
    """The page of one server; `looks` are those of the span."""
    return page_template("watch.html").render(
        frame=frame,
        title=title_of(watched),
        tone=tone_of(watched),
        d=watched,
        is_of_several=is_of_several,
        facts=facts(watched),
        charts=watch_charts(looks, span, baseline),
        baseline=baseline,
        # The newest first.
        marks=time_marks(looks, span)[: -MARKS_SHOWN - 1 : -1],
        hours=[(words, wanted == hours, link(watched.url, wanted)) for wanted, words in HOURS.items()],
        servers=[],
    )


def watch_list(servers: Sequence[Watched], frame: PageFrame) -> str:
    """The page of several servers, or of none that was looked at yet."""
    ordered = sorted(servers, key=badness)
    counts = [(title_of(server), tone_of(server)) for server in ordered]
    summary = [(counts.count(kind), *kind) for kind in dict.fromkeys(counts)]
    return page_template("watch.html").render(
        frame=frame,
        title=_summary(summary[0][2], summary[0][0], len(ordered)) if summary else "No look taken yet",
        tone=summary[0][2] if summary else "no-traffic",
        d=None,
        summary=summary,
        servers=[
            {
                "link": link(server.url, None),
                "tone": tone_of(server),
                "title": title_of(server),
                "length": length_words(server),
                "document": server,
            }
            for server in ordered
        ],
    )


def _summary(tone: str, count: int, of: int) -> str:
    """The worst of them, in a sentence."""
    sentence = SENTENCES[tone].format(f"all {of} servers" if count == of else f"{count} of {of} servers")
    return sentence[0].upper() + sentence[1:]


def badness(watched: Watched) -> tuple[bool, int, str]:
    return watched.unreachable is None, WORST_FIRST.index(watched.verdict), watched.url


def tone_of(watched: Watched) -> str:
    return UNREACHABLE if watched.unreachable is not None else watched.verdict.value


def title_of(watched: Watched) -> str:
    return "Unreachable" if watched.unreachable is not None else TITLES[watched.verdict]


def link(url: str, hours: int | None) -> str:
    return "/?" + urlencode({"server": url} | ({} if hours is None else {"hours": str(hours)}))


def length_words(watched: Watched) -> str:
    length = watched.accepted_length
    return "–" if length is None else f"{length.value:.2f} [{length.low:.2f}, {length.high:.2f}]"


def facts(watched: Watched) -> list[tuple[str, str]]:
    """Those that are known."""
    point = watched.break_even
    positions = watched.per_position
    shown = " ".join(share(position) for position in positions[:POSITIONS_SHOWN])
    wanted = [
        ("accepted length", length_words(watched)),
        ("break-even", "–" if point is None else f"{point.accepted_length:.2f} ({point.source.value})"),
        ("acceptance rate", share(watched.acceptance_rate)),
        ("by draft position", shown + (" …" if len(positions) > POSITIONS_SHOWN else "") or "–"),
        ("tokens/s", number(watched.tokens_s, 0)),
        ("requests", f"{number(watched.running, 0)} running, {number(watched.waiting, 0)} waiting"),
        ("TTFT", time_words(watched.ttft_s)),
        ("TPOT", time_words(watched.tpot_s)),
        ("KV cache used", share(watched.kv_used)),
        ("prefix hits", share(watched.prefix_hit_rate)),
        ("window", duration(watched.window_s) if watched.window_s else "–"),
        ("looked at", f"{watched.at[:10]} {watched.at[11:19]} UTC"),
    ]
    return [(name, words) for name, words in wanted if words not in ("–", "– running, – waiting")]


def time_words(times: LivePercentiles) -> str:
    if times.mean is not None:
        return f"{seconds(times.mean)} mean"
    named = (("p50", times.p50), ("p95", times.p95), ("p99", times.p99))
    return ", ".join(f"{name} {seconds(value)}" for name, value in named if value is not None) or "–"


def watch_charts(looks: Sequence[KeptLook], span: Scale, baseline: Baseline | None) -> list[TimeChart]:
    """Without those of which nothing is known."""
    rate = [_Drawn("accepted of drafted", "s4", _of("acceptance_rate"))]
    requests = [_Drawn("running", "s1", _of("running")), _Drawn("waiting", "s2", _of("waiting"))]
    tokens = [_Drawn("tokens/s", "s1", _of("tokens_s"))]
    wanted = (
        _chart("Accepted length against break-even", looks, span, _lengths(), _plain_number, floor=1.0),
        _chart("Time to first token", looks, span, _times("ttft", baseline), seconds),
        _chart("Time per output token", looks, span, _times("tpot", baseline), seconds),
        _chart("Acceptance rate", looks, span, rate, share),
        _chart("Tokens per second", looks, span, tokens, _plain_number),
        _chart("Requests", looks, span, requests, _plain_number),
    )
    return [chart for chart in wanted if chart is not None]


def time_marks(looks: Sequence[KeptLook], span: Scale) -> tuple[TimeMark, ...]:
    """The newest, where there are too many."""
    marked = [look for look in looks if look.marks][-MARKS_MAX:]
    return tuple(
        TimeMark(
            x=span(look.at_s),
            words=f"{moment(look.at_s)} {', '.join(mark.replace('-', ' ') for mark in look.marks)}",
            style=next((_TONES[mark] for mark in look.marks if mark in _TONES), "base"),
        )
        for look in marked
    )


def moment(at_s: Seconds) -> str:
    return datetime.fromtimestamp(at_s, tz=UTC).strftime("%m-%d %H:%M:%S")


def _lengths() -> list[_Drawn]:
    return [
        _Drawn("accepted length, with its interval", "s1", _of("accepted_length"), _of("low"), _of("high")),
        _Drawn("break-even", "pays", _of("break_even"), is_limit=True),
    ]


def _times(name: str, baseline: Baseline | None) -> list[_Drawn]:
    drawn = [
        _Drawn("p50" if name == "ttft" else "p50, or the mean", "s1", _of(f"{name}_p50_s")),
        _Drawn("p95", "s2", _of(f"{name}_p95_s")),
    ]
    for percentile, style in (("p50", "s1"), ("p95", "s2")):
        value = getattr(baseline, f"{name}_{percentile}_s", None)
        if value is not None:
            drawn.append(_Drawn(f"{percentile} without speculation", style, _always(value), is_limit=True))
    return drawn


def _always(value: float) -> Callable[[KeptLook], float | None]:
    return lambda _: value


def _of(field: str) -> Callable[[KeptLook], float | None]:
    def value(look: KeptLook) -> float | None:
        figure = getattr(look, field)
        return figure if isinstance(figure, float) and math.isfinite(figure) else None

    return value


def _chart(
    title: str,
    looks: Sequence[KeptLook],
    span: Scale,
    drawn: Sequence[_Drawn],
    words: Callable[[float], str],
    *,
    floor: float = 0.0,
) -> TimeChart | None:
    seen = [
        value
        for line in drawn
        if not line.is_limit
        for look in looks
        if (value := line.value(look)) is not None
    ]
    if not seen:
        return None
    limits = [
        value for line in drawn if line.is_limit for look in looks if (value := line.value(look)) is not None
    ]
    ticks = _values(floor, max(*seen, *limits, floor + 1e-6) if limits else max(*seen, floor + 1e-6))
    y = Scale(low=ticks[0], high=ticks[-1])
    return TimeChart(
        title=title,
        lines=tuple(_line(line, looks, span, y) for line in drawn),
        x_ticks=_time_ticks(span),
        y_ticks=fitting_ticks(
            [(value, words(value) if value else "0") for value in (ticks[0], ticks[-1], *ticks[1:-1])],
            y,
            CHART_HEIGHT_PX,
            LABEL_HEIGHT_PX,
        ),
        marks=time_marks(looks, span),
    )


def _values(low: float, high: float) -> list[float]:
    """Round numbers from `low` to beyond `high`."""
    rough = (high - low) / VALUES_MAX
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(size * power for size in (1, 2, 2.5, 5, 10) if size * power >= rough * (1 - 1e-9))
    count = max(1, math.ceil((high - low) / step - 1e-9))
    return [low + step * index for index in range(count + 1)]


def _line(drawn: _Drawn, looks: Sequence[KeptLook], x: Scale, y: Scale) -> TimeLine:
    runs = list(_runs(looks, drawn.value))
    bands = []
    if drawn.low is not None and drawn.high is not None:
        for run in runs:
            bounds = [
                (look, low, high) for look in run if (low := drawn.low(look)) and (high := drawn.high(look))
            ]
            upper = [(x(look.at_s), 100 - y(high)) for look, _, high in bounds]
            lower = [(x(look.at_s), 100 - y(low)) for look, low, _ in reversed(bounds)]
            bands.append(joined([*upper, *lower]))
    return TimeLine(
        name=drawn.name,
        style=drawn.style,
        lines=tuple(
            joined((x(look.at_s), 100 - y(drawn.value(look) or 0.0)) for look in run) for run in runs
        ),
        bands=tuple(bands),
        is_limit=drawn.is_limit,
    )


def _runs(looks: Sequence[KeptLook], value: Callable[[KeptLook], float | None]) -> Iterator[list[KeptLook]]:
    """Looks that follow each other and of which it is known."""
    distances = [later.at_s - earlier.at_s for earlier, later in pairwise(looks)]
    widest_s = GAP_DISTANCES * median(distances) if distances else 0.0
    run: list[KeptLook] = []
    for look in looks:
        is_apart = bool(run) and look.at_s - run[-1].at_s > widest_s
        if run and (is_apart or value(look) is None):
            yield run
            run = []
        if value(look) is not None:
            run.append(look)
    if run:
        yield run


def _time_ticks(span: Scale) -> tuple[Tick, ...]:
    length_s = span.high - span.low
    step_s = next((step for step in TIME_STEPS_S if length_s / step <= TIMES_MAX), TIME_STEPS_S[-1])
    first = math.ceil(span.low / step_s)
    count = int((span.high - first * step_s) / step_s) + 1
    form = "%m-%d" if step_s >= DAY_S else "%H:%M"
    times = [(first + index) * step_s for index in range(max(0, count))]
    wanted = [(at_s, datetime.fromtimestamp(at_s, tz=UTC).strftime(form)) for at_s in times]
    return fitting_ticks(wanted, span, AREA_WIDTH_PX)


def _plain_number(value: float) -> str:
    if value >= 10_000:
        return f"{value / 1000:g}k"
    return number(value, 0) if value >= 100 else f"{value:.3g}"
