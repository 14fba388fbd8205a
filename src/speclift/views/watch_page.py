"""watch as a web page: the answer now, what led to it, and how it went; several servers as a list, the worst first.
Made on the server, whole, for every look: nothing of what servers say is put together in the browser. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from speclift.core.live import KeptLook, Payoff
from speclift.core.quantities import duration, number, seconds, share
from speclift.core.units import Seconds
from speclift.views.page_templates import page_template
from speclift.views.watch_charts import Baseline, Span, TimeMark, time_marks, watch_charts
from speclift.views.watch_document import LivePercentilesDocument, WatchDocument

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownServer:
    """One server of the page, with what it did in the time that is shown."""

    document: WatchDocument
    looks: Sequence[KeptLook]
    span: Span
    hours: int
    baseline: Baseline | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedServer:
    link: str
    tone: str
    title: str
    document: WatchDocument

    @property
    def length(self) -> str:
        return length_words(self.document)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFrame:
    """What a page needs beside what it shows."""

    nonce: str
    every_s: Seconds
    version: str


def watch_page(shown: ShownServer, frame: PageFrame, *, is_of_several: bool) -> str:
    """Of one server."""
    document = shown.document
    marks = time_marks(shown.looks, shown.span)
    return page_template("watch.html").render(
        frame=frame,
        title=title_of(document),
        tone=tone_of(document),
        d=document,
        is_of_several=is_of_several,
        facts=facts(document),
        charts=watch_charts(shown.looks, shown.span, shown.baseline),
        baseline=shown.baseline,
        marks=_listed(marks),
        hours=[(words, hours == shown.hours, link(document["url"], hours)) for hours, words in HOURS.items()],
        servers=[],
    )


def watch_list(documents: Sequence[WatchDocument], frame: PageFrame) -> str:
    """Of several servers, or of none that was looked at yet."""
    ordered = sorted(documents, key=badness)
    counts = [(title_of(each), tone_of(each)) for each in ordered]
    summary = [(counts.count(kind), *kind) for kind in dict.fromkeys(counts)]
    return page_template("watch.html").render(
        frame=frame,
        title=_summary(summary[0][2], summary[0][0], len(ordered)) if summary else "No look taken yet",
        tone=summary[0][2] if summary else "no-traffic",
        d=None,
        summary=summary,
        servers=[
            ListedServer(
                link=link(each["url"], None), tone=tone_of(each), title=title_of(each), document=each
            )
            for each in ordered
        ],
    )


def _summary(tone: str, count: int, of: int) -> str:
    """The worst of them, in a sentence."""
    sentence = SENTENCES[tone].format(f"all {of} servers" if count == of else f"{count} of {of} servers")
    return sentence[0].upper() + sentence[1:]


def badness(document: WatchDocument) -> tuple[bool, int, str]:
    return document["unreachable"] is None, WORST_FIRST.index(document["verdict"]), document["url"]


def tone_of(document: WatchDocument) -> str:
    return UNREACHABLE if document["unreachable"] is not None else document["verdict"].value


def title_of(document: WatchDocument) -> str:
    return "Unreachable" if document["unreachable"] is not None else TITLES[document["verdict"]]


def link(url: str, hours: int | None) -> str:
    return "/?" + urlencode({"server": url} | ({} if hours is None else {"hours": str(hours)}))


def length_words(document: WatchDocument) -> str:
    length = document["accepted_length"]
    return "–" if length is None else f"{length['value']:.2f} [{length['low']:.2f}, {length['high']:.2f}]"


def facts(document: WatchDocument) -> list[tuple[str, str]]:
    """Those that are known."""
    point = document["break_even"]
    positions = document["per_position"]
    shown = " ".join(share(each) for each in positions[:POSITIONS_SHOWN])
    wanted = [
        ("accepted length", length_words(document)),
        ("break-even", "–" if point is None else f"{point['accepted_length']:.2f} ({point['source'].value})"),
        ("acceptance rate", share(document["acceptance_rate"])),
        ("by draft position", shown + (" …" if len(positions) > POSITIONS_SHOWN else "") or "–"),
        ("tokens/s", number(document["tokens_s"], 0)),
        ("requests", f"{number(document['running'], 0)} running, {number(document['waiting'], 0)} waiting"),
        ("TTFT", _times(document["ttft_s"])),
        ("TPOT", _times(document["tpot_s"])),
        ("KV cache used", share(document["kv_used"])),
        ("prefix hits", share(document["prefix_hit_rate"])),
        ("window", duration(document["window_s"]) if document["window_s"] else "–"),
        ("looked at", f"{document['at'][:10]} {document['at'][11:19]} UTC"),
    ]
    return [(name, words) for name, words in wanted if words not in ("–", "– running, – waiting")]


def _times(times: LivePercentilesDocument) -> str:
    if times["mean"] is not None:
        return f"{seconds(times['mean'])} mean"
    named = (("p50", times["p50"]), ("p95", times["p95"]), ("p99", times["p99"]))
    return ", ".join(f"{name} {seconds(value)}" for name, value in named if value is not None) or "–"


def _listed(marks: Sequence[TimeMark]) -> list[TimeMark]:
    """The newest first."""
    return list(reversed(marks[-MARKS_SHOWN:]))
