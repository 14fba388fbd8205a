"""Lint's report: every server of the text with its findings, the answer, and the document of `lint --json`. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from speclift.core.answer import ShortAnswer, answered
from speclift.core.document import Document
from speclift.linter.row_rules import Translation
from speclift.linter.rows import LintFinding, Release, Status, dotted, has_errors


@dataclass(frozen=True, slots=True, kw_only=True)
class LintReport:
    """`translated` is for `newest`, whichever release was judged; None where nothing starts a server, or where only
    the user knows what it would start. `others` are the other servers of the same text."""

    engine: str
    title: str  # what people call the engine
    release: Release
    newest: Release
    findings: tuple[LintFinding, ...]
    translated: Translation | None
    notes: tuple[str, ...] = ()
    models: tuple[str, ...] = ()  # the target and the draft, as they are named
    unexpanded: tuple[str, ...] = ()  # what only a shell would fill in
    program: tuple[str, ...] = ()  # what starts it, as it was written
    environment: tuple[tuple[str, str], ...] = ()  # variables that are set for it
    image: str = ""  # of a container that starts it by itself
    others: tuple[LintReport, ...] = ()

    @property
    def ok(self) -> bool:
        """Nothing is wrong with any server of the text, and no word of it is unaccounted for."""
        return not has_errors(self.findings) and all(other.ok for other in self.others)

    @property
    def version(self) -> str:
        return dotted(self.release)


# The answer


def lint_answer(report: LintReport) -> ShortAnswer:
    """Speaks of the first server that is not fine. No command comes next: today's line stands beside it,
    and nobody knows yet how long its server takes."""
    servers = (report, *report.others)
    spoken_of = max(servers, key=lambda server: (not server_ok(server), _risky(server.findings) > 0))
    more = f"; {_counted(len(servers) - 1, 'more server')} in the text" if len(servers) > 1 else ""
    return answered(f"{_sentence(spoken_of)}{more}.", _because(spoken_of))


def server_ok(server: LintReport) -> bool:
    return not _wrong(server.findings)


def _sentence(server: LintReport) -> str:
    engine = f"{server.title} {server.version}".rstrip()
    if not server.version:
        return f"{engine} is known by name only: nothing was judged"
    wrong, risky = _wrong(server.findings), _risky(server.findings)
    if wrong and all(found.status is Status.UNREAD for found in server.findings if found.is_error):
        return f"{_counted(wrong, 'place')} could not be read; {engine} may reject the command"
    if wrong:
        today = "; use the translation" if server.translated is not None else ""
        return f"{engine} rejects or ignores {_counted(wrong, 'setting')}{today}"
    if risky:
        return f"{engine} accepts it; {_counted(risky, 'setting')} may not do what you want"
    return f"{engine} accepts it unchanged"


def _because(server: LintReport) -> Iterator[str]:
    errors = [found for found in server.findings if found.is_error]
    risky = [found for found in server.findings if found.status is Status.RISKY]
    for found in (*errors, *risky):
        yield f"{found.flag}: {found.message or found.status}"


def _wrong(findings: Sequence[LintFinding]) -> int:
    return len({found.flag for found in findings if found.is_error})


def _risky(findings: Sequence[LintFinding]) -> int:
    return len({found.flag for found in findings if found.status is Status.RISKY})


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count != 1 else ''}"


# The document

_Version = Annotated[
    str, Meta(description="The release that was judged: 0.32.0, b11549; empty for an engine not read.")
]


class TranslationDocument(Document, frozen=True, kw_only=True):
    """The command for the newest release known."""

    version: str
    argv: tuple[str, ...]
    command: str
    python: str
    yaml: str
    notes: Annotated[tuple[str, ...], Meta(description="What has no equivalent, and what comes closest.")]


_Translated = Annotated[
    TranslationDocument | None,
    Meta(description="Null where nothing starts a server, or where the text does not tell what it starts."),
]


class ServerDocument(Document, frozen=True, kw_only=True):
    """One server of the text."""

    engine: str
    version: _Version
    findings: tuple[LintFinding, ...]
    translated: _Translated
    notes: tuple[str, ...]


class LintDocument(Document, frozen=True, kw_only=True):
    schema: Literal[1] = 1
    engine: str
    version: _Version
    ok: Annotated[
        bool,
        Meta(
            description="No finding but ok and risky ones, here and in others; the exit code is then 0, else 4."
        ),
    ]
    # Not in documents of speclift 0.2.
    answer: ShortAnswer | None = None
    findings: tuple[LintFinding, ...]
    translated: _Translated
    notes: tuple[str, ...]
    others: Annotated[
        tuple[ServerDocument, ...],
        Meta(description="The other servers of the text; those with speculation come first."),
    ] = ()


def lint_document(report: LintReport) -> LintDocument:
    first = _server(report)
    return LintDocument(
        engine=first.engine,
        version=first.version,
        ok=report.ok,
        answer=lint_answer(report),
        findings=first.findings,
        translated=first.translated,
        notes=first.notes,
        others=tuple(map(_server, report.others)),
    )


def _server(report: LintReport) -> ServerDocument:
    today = report.translated
    return ServerDocument(
        engine=report.engine,
        version=report.version,
        findings=report.findings,
        translated=None
        if today is None
        else TranslationDocument(
            version=dotted(report.newest),
            argv=today.argv,
            command=today.command,
            python=today.python,
            yaml=today.yaml,
            notes=today.notes,
        ),
        notes=report.notes,
    )
