"""Causes of failed requests: told apart, counted, with what came and what to do."""

from __future__ import annotations

from dataclasses import replace

from samples import record
from speclift.core.records import Outcome, Record
from speclift.statistics.failures import causes_of

RECORD = record()


def failed(outcome: Outcome, *errors: str) -> list[Record]:
    return [replace(RECORD, outcome=outcome, error=error) for error in errors]


def test_alike_is_what_begins_alike_and_the_most_frequent_comes_first() -> None:
    causes = causes_of(
        [
            RECORD,
            *failed(Outcome.DISCONNECTED, "ConnectionResetError: [Errno 104] reset"),
            *failed(
                Outcome.HTTP_ERROR, "429: request 17 is too many", "429: request 18 is too many", "500: boom"
            ),
        ]
    )
    assert [str(cause) for cause in causes] == [
        "2 x http-error: 429: request 17 is too many",
        "1 x disconnected: ConnectionResetError: [Errno 104] reset",
        "1 x http-error: 500: boom",
    ]


def test_what_came_is_one_line_and_cut() -> None:
    (cause,) = causes_of(failed(Outcome.HTTP_ERROR, "500: a\nb\r\n" + "c" * 10_000))
    assert cause.example.startswith("500: a b ccc")
    assert len(cause.example) < 210
