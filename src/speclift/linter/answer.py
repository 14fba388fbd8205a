"""What lint found, as somebody reads it who wants to serve with that line. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from speclift.core.answer import ShortAnswer, answered
from speclift.linter.findings import LintFinding, Status
from speclift.linter.judge import LintReport


def lint_answer(report: LintReport) -> ShortAnswer:
    """Of all servers of the text, the first that is not fine. No command comes next: today's line stands beside it,
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
