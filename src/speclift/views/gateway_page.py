"""The gateway as a web page: what goes where and what it gains, then who serves it and what moved. Made whole on the
server, from the JSON alone. Pure."""

from __future__ import annotations

from dataclasses import replace

from speclift.core.documents import BoundsDocument
from speclift.core.quantities import duration, number, seconds, share
from speclift.core.routing import ServerPool
from speclift.core.units import Seconds
from speclift.routing.learning import BLOCK_ROWS, BLOCK_S
from speclift.views.charts import Forest, ratio_forest
from speclift.views.gateway_document import GatewayDocument, GatewayTimesDocument, SegmentInPoolDocument
from speclift.views.page_templates import page_template
from speclift.views.watch_page import PageFrame

SHIFTS_SHOWN = 12
# In a word each, as people say it.
REASONS = {
    "policy": "the policy",
    "canary": "the canary",
    "learned": "what live traffic taught",
    "load": "the load",
    "session": "a conversation's prefix",
    "down": "a pool that was down",
    "switched": "the switch",
    "counters-against": "the servers' own counters",
}


def gateway_page(document: GatewayDocument, frame: PageFrame, *, up_s: Seconds) -> str:
    return page_template("gateway.html").render(
        frame=frame,
        d=document,
        tone=gateway_tone(document),
        facts=_facts(document, up_s),
        forest=_forest(document),
        compared_every=(f"{BLOCK_S / 60:.0f} minutes", f"{BLOCK_ROWS:,}"),
        unknown=[each["segment"] for each in document["segments"] if each["e2e"] is None],
        rows=[_row(each) for each in document["by_pool"]],
        shifts=document["shifts"][:SHIFTS_SHOWN],
        reasons=[
            (REASONS.get(word, word), count)
            for word, count in sorted(document["reasons"].items(), key=lambda each: -each[1])
        ],
    )


def gateway_tone(document: GatewayDocument) -> str:
    """Of what the watch calls its answers."""
    if not any(server["up"] for server in document["servers"]):
        return "unreachable"
    if document["plain_only"] or document["against_spec"]:
        return "does-not-pay"
    if document["spec_share"] is None:
        return "no-traffic"
    decided = {_judged(each["e2e"]) for each in document["segments"] if each["e2e"] is not None}
    is_paying = "pays" in decided and "loses" not in decided
    return "pays" if is_paying else "unsure"


def _judged(bounds: BoundsDocument, _: float = 1.0) -> str:
    low, high = bounds["low"], bounds["high"]
    if low is not None and low > 1:
        return "pays"
    return "loses" if high is not None and high < 1 else "unclear"


def _forest(document: GatewayDocument) -> Forest | None:
    known = [
        (
            f"{each['segment']}, {share(each['spec_share'])} to spec",
            f", {each['compared']} compared",
            each["e2e"],
        )
        for each in document["segments"]
    ]
    found = ratio_forest(
        [(label, more, bounds) for label, more, bounds in known if bounds is not None], 1.0, _judged
    )
    # What is required is equal speed, which has a line of its own.
    return None if found is None else replace(found, bar=None)


def _facts(document: GatewayDocument, up_s: Seconds) -> list[tuple[str, str]]:
    switch = "everything to plain" if document["plain_only"] else "routing"
    canary = share(document["canary"]) if document["canary"] else "none"
    return [
        ("on the speculative pool", share(document["spec_share"])),
        ("requests", f"{document['requests']}, {document['failed']} failed"),
        ("switch", switch),
        ("policy", document["policy"] or "none: everything to spec"),
        ("canary", canary + (", may leave the policy" if document["learn"] else "")),
        ("retries", str(document["retries"])),
        ("up for", duration(up_s)),
        ("seen", f"{document['at'][:10]} {document['at'][11:19]} UTC"),
    ]


def _row(each: SegmentInPoolDocument) -> tuple[str, str, tuple[str, ...]]:
    return each["segment"], each["pool"].value, _cells(each)


def _cells(each: SegmentInPoolDocument) -> tuple[str, ...]:
    return (
        str(each["requests"]),
        str(each["failed"]),
        *(_times(each["ttft_s"]), _times(each["tpot_s"]), _times(each["e2e_s"])),
        share(each["acceptance_rate"]) if each["pool"] is ServerPool.SPEC else "–",
        number(each["output_tokens"] / each["requests"], 0) if each["requests"] else "–",
    )


def _times(times: GatewayTimesDocument) -> str:
    if times["p50"] is None:
        return "–"
    half, most = seconds(times["p50"]), seconds(times["p95"])
    value, _, unit = half.partition(" ")
    return f"{value} / {most}" if most.endswith(f" {unit}") else f"{half} / {most}"
