"""Servers that misbehave: each ends the command with its cause in words, never with a traceback."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
from server import (
    COMPLETIONS,
    MODELS,
    Behaviour,
    HostileServer,
    answers,
    head,
    raw,
    resets,
    streams_events,
    zipped,
)
from watched import SMALL, attach

from running import Cli

LOGIN = "<html><head><style>p {}</style></head><body><p>Please sign in</p></body></html>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What the server does at a path, and words that the user must be told."""

    what: str
    path: str
    behaviour: Behaviour
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.path} {self.what}"


MODEL_CASES = [
    Case(what="is a login page", path=MODELS, behaviour=answers(LOGIN), words=("does not list models",)),
    Case(what="is 500", path=MODELS, behaviour=answers("boom", status=500), words=("answered 500: boom",)),
    Case(what="is reset", path=MODELS, behaviour=resets, words=("did not answer", "reset")),
]
COMPLETION_CASES = [
    Case(what="is 429", path=COMPLETIONS, behaviour=answers("slow down", status=429), words=()),
    Case(what="is reset", path=COMPLETIONS, behaviour=resets, words=()),
    Case(what="is a login page", path=COMPLETIONS, behaviour=answers(LOGIN, kind="text/html"), words=()),
    Case(what="is zipped", path=COMPLETIONS, behaviour=zipped({"id": "m"}), words=()),
    Case(what="is cut in a chunk", path=COMPLETIONS, behaviour=streams_events({}, ends=b""), words=()),
    Case(
        what="says an error",
        path=COMPLETIONS,
        behaviour=streams_events({"error": {"message": "no memory"}}),
        words=(),
    ),
    Case(what="is no HTTP", path=COMPLETIONS, behaviour=raw(b"SSH-2.0-OpenSSH\r\n"), words=()),
    Case(what="ends after its head", path=COMPLETIONS, behaviour=raw(head(content_length=9)), words=()),
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("case", [*MODEL_CASES, *COMPLETION_CASES], ids=str)
def test_a_server_that_misbehaves_is_an_operating_error_with_its_cause(case: Case, cli: Cli) -> None:
    with HostileServer({case.path: case.behaviour}) as server:
        result = cli("measure", *attach(server.url), *SMALL, "--study", "s")
    assert result.code == 1, result.stderr
    said = " ".join(result.stderr.split())
    assert [word for word in case.words if word not in said] == [], result.stderr


@pytest.mark.timeout(60)
def test_a_server_that_behaves_is_measured(cli: Cli) -> None:
    with HostileServer() as server:
        result = cli("measure", *attach(server.url, server.url), *SMALL, "--json", "--study", "s")
    assert result.code == 0, result.stderr
    assert {cell["failed"] for cell in json.loads(result.stdout)["cells"]} == {0}
