"""What lint found, as the JSON document of `lint --json`. Pure."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

from speclift.core.documents import AnswerDocument, answer_document
from speclift.core.typed_json import Keywords
from speclift.linter.answer import lint_answer
from speclift.linter.findings import Status, dotted
from speclift.linter.judge import LintReport


class LintFindingDocument(TypedDict):
    flag: Annotated[str, Keywords(description="As the user spelt it; speculative_config.KEY for a key.")]
    status: Status
    message: str
    replacement: str | None
    changed_in: Annotated[str | None, Keywords(description="The release that changed it.")]
    source: Annotated[str, Keywords(description="The engine's file, issue or pull request.")]


class TranslationDocument(TypedDict):
    """For the newest release known."""

    version: str
    argv: list[str]
    command: str
    python: str
    yaml: str
    notes: Annotated[list[str], Keywords(description="What has no equivalent, and what comes closest.")]


class ServerDocument(TypedDict):
    """One server of the text."""

    engine: str
    version: Annotated[
        str,
        Keywords(description="The release that was judged: 0.32.0, b11549; empty for an engine not read."),
    ]
    findings: list[LintFindingDocument]
    translated: Annotated[
        TranslationDocument | None,
        Keywords(
            description="Null where nothing starts a server, or where the text does not tell what it starts."
        ),
    ]
    notes: list[str]


class LintDocument(TypedDict):
    schema: Literal[1]
    engine: str
    version: Annotated[
        str,
        Keywords(description="The release that was judged: 0.32.0, b11549; empty for an engine not read."),
    ]
    ok: Annotated[
        bool,
        Keywords(
            description="No finding but ok and risky ones, here and in others; the exit code is then 0, else 4."
        ),
    ]
    findings: list[LintFindingDocument]
    translated: Annotated[
        TranslationDocument | None,
        Keywords(
            description="Null where nothing starts a server, or where the text does not tell what it starts."
        ),
    ]
    notes: list[str]
    # Not in documents of speclift 0.2.
    answer: NotRequired[AnswerDocument]
    others: NotRequired[
        Annotated[
            list[ServerDocument],
            Keywords(description="The other servers of the text; those with speculation come first."),
        ]
    ]


def lint_document(report: LintReport) -> LintDocument:
    first = _server(report)
    return {
        "schema": 1,
        "engine": first["engine"],
        "version": first["version"],
        "ok": report.ok,
        "answer": answer_document(lint_answer(report)),
        "findings": first["findings"],
        "translated": first["translated"],
        "notes": first["notes"],
        "others": [_server(other) for other in report.others],
    }


def _server(report: LintReport) -> ServerDocument:
    translated = report.translated
    return {
        "engine": report.engine,
        "version": report.version,
        "findings": [
            {
                "flag": finding.flag,
                "status": finding.status,
                "message": finding.message,
                "replacement": finding.replacement,
                "changed_in": finding.changed_in,
                "source": finding.source,
            }
            for finding in report.findings
        ],
        "translated": None
        if translated is None
        else {
            "version": dotted(report.newest),
            "argv": list(translated.argv),
            "command": translated.command,
            "python": translated.python,
            "yaml": translated.yaml,
            "notes": list(translated.notes),
        },
        "notes": list(report.notes),
    }
