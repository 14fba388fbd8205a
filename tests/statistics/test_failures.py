"""Causes of failed requests: told apart, counted, with what came and what to do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from samples import record
from speclift.core.records import Outcome, Record
from speclift.statistics.failures import Cause, causes_of, told

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


def test_only_three_are_told_and_the_others_counted() -> None:
    errors = [f"{status}: no" for status in (400, 401, 403, 404, 500)]
    assert told(causes_of(failed(Outcome.HTTP_ERROR, *errors))).splitlines()[-1] == "  2 x 2 other causes"


def test_what_came_is_one_line_and_cut() -> None:
    (cause,) = causes_of(failed(Outcome.HTTP_ERROR, "500: a\nb\r\n" + "c" * 10_000))
    assert cause.example.startswith("500: a b ccc")
    assert len(cause.example) < 210


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("401: no", "--api-key-env"),
        ("429: slow down", "limits the request rate"),
        ("503: busy", "server's log"),
    ],
)
def test_the_hint_is_for_the_status(error: str, words: str) -> None:
    (cause,) = causes_of(failed(Outcome.HTTP_ERROR, error))
    assert words in cause.hint


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.OK])
def test_every_outcome_has_a_hint(outcome: Outcome) -> None:
    assert Cause(outcome=outcome, count=1, example="").hint
    assert str(Cause(outcome=outcome, count=1, example="")).endswith("no details")
