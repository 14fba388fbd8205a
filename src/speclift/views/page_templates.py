"""Templates of pages: text is escaped by the template engine, and made visible where it could act on its reader
(control and bidirectional characters), wherever a template prints it. The field's words are explained at the end of a
page and linked from where they are first used: the short form of docs/glossary.md, a page works offline.
"""

from __future__ import annotations

import shlex
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from speclift.core.answer import command_time
from speclift.core.quantities import number, printable, ratio_words, seconds, share

NAME_CHARACTERS = 64
LINE_CHARACTERS = 4000


@cache
def page_template(name: str) -> Template:
    """Reading it takes as long as all the rest of a report."""
    environment = Environment(
        loader=PackageLoader("speclift.views"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible,
    )
    environment.filters.update(
        seconds=seconds,
        share=share,
        number=number,
        name=lambda text: printable(text, limit=NAME_CHARACTERS),
        ratio=ratio_words,
        command_time=command_time,
        shell=shlex.join,
    )
    return environment.get_template(name)


def _visible(value: object) -> object:
    """Whatever a template prints: text of others shows what it hides."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    if len(value) <= LINE_CHARACTERS and value.isascii() and value.isprintable():
        return value
    return "\n".join(printable(line, limit=LINE_CHARACTERS) for line in value.splitlines())


# By the name of its place on the page: the word, and what it means.
GLOSSARY: dict[str, tuple[str, str]] = {
    "baseline": (
        "Baseline",
        "The server without any speculative setting, as you would run it otherwise. Every speedup is against it.",
    ),
    "arm": (
        "Arm",
        "One server configuration in a comparison: the baseline, or one way of drafting with its k.",
    ),
    "draft": ("Draft", "Tokens guessed ahead, which the target model then checks in one step."),
    "k": ("k, draft length", "The most tokens drafted per step."),
    "acceptance-rate": (
        "Acceptance rate",
        "Accepted tokens divided by drafted tokens. It falls as k grows, so rates at different k cannot be compared.",
    ),
    "accepted-length": (
        "Accepted length",
        "Output tokens per decode step, at least 1: the accepted ones and the one that the target adds. "
        "It is the speedup per token if drafting and verifying cost nothing.",
    ),
    "ttft": ("TTFT", "Time to first token, from the intended send time. Speculation does not shorten it."),
    "tpot": ("TPOT", "Time per output token after the first. This is what speculation can shorten."),
    "e2e": ("E2E", "End-to-end time of a request, from the intended send time to its last token."),
    "interval": (
        "Confidence interval",
        "The range in brackets, 1.07x [1.00, 1.15]. Intervals made this way hold the true value in about 95 of 100 "
        "studies; verdicts look at its ends, not at its middle.",
    ),
    "segment": ("Segment", "One kind of request, such as chat or summarise."),
    "load": (
        "Load",
        "How much is asked at once. c=8: eight requests in flight, the next is sent when one ends. 4 req/s: requests "
        "arrive at that rate, whatever the server does.",
    ),
    "launch": (
        "Launch",
        "One start of a server. The same configuration differs from start to start, so each is launched several times.",
    ),
    "lossless": ("Lossless", "Speculation changes how fast the output comes, not what it is."),
    "break-even": ("Break-even", "The accepted length above which an arm is faster than the baseline."),
}


class TermLinks:
    """Links a word to its explanation where one page first uses it."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def __call__(self, name: str, words: str | None = None) -> Markup:
        shown = words if words is not None else GLOSSARY[name][0]
        if name in self._used:
            return Markup("{}").format(shown)
        self._used.add(name)
        return Markup('<a class="term" href="#term-{}">{}</a>').format(name, shown)
