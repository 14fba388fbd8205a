"""One server of a pasted text, taken apart: what is speculation, what is the server's own. Pure.

It is read from its translation, so that flags of any age come out as today's engine takes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from speclift.core.address import without_secrets
from speclift.core.errors import UsageError, WillNotRun
from speclift.core.own_line import CONTAINERS, OwnLine, hidden_words
from speclift.linter.command import Foreign, read_command
from speclift.linter.dialect import Dialects
from speclift.linter.findings import LintFinding, Status
from speclift.linter.judge import LintReport, lint_words
from speclift.linter.pasted import Pasted, Setting, TakenApart
from speclift.linter.row_rules import shown

# So many findings say what is wrong; lint shows all.
FINDINGS_SHOWN = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnServer:
    """What a verb that measures takes from a pasted line."""

    engine: str
    title: str
    line: OwnLine
    parts: TakenApart
    program: tuple[str, ...]
    # What had to be translated or repaired, for the user to see.
    notes: tuple[str, ...]
    # Variables whose values nobody may read later.
    secrets: tuple[tuple[str, str], ...] = ()


def own_server(report: LintReport, dialects: Dialects, *, text: str) -> OwnServer:
    """UsageError where the text does not say which server is meant; WillNotRun where the engine would refuse it."""
    if report.others:
        servers = (report, *report.others)
        raise UsageError(
            f"this text starts {len(servers)} servers: {', '.join(server.title for server in servers)}",
            hint="give one of them: cut the text down, or put its command after --",
        )
    pasted = _today(report, dialects)
    dialect = dialects.of(report.engine)
    parts = dialect.taken_apart(pasted)
    if parts.model is None:
        raise WillNotRun(
            f"this {report.title} command names no model", hint="put the model in, as the server takes it"
        )
    line = _line(pasted, parts, report.environment, text)
    return OwnServer(
        engine=report.engine,
        title=report.title,
        line=line,
        parts=parts,
        program=report.program,
        notes=_notes(report),
        secrets=tuple(pair for pair in report.environment if pair not in line.environment),
    )


def _line(pasted: Pasted, parts: TakenApart, environment: Sequence[tuple[str, str]], text: str) -> OwnLine:
    flags = [(setting.name, hidden_words(_words(setting))) for setting in pasted.settings]
    kept = tuple(words for name, words in flags if not _is_named(name, parts.names))
    asked = tuple(word for name, words in flags if _is_named(name, parts.names) for word in words)
    variables = hidden_words([f"{name}={value}" for name, value in environment])
    before = hidden_words(pasted.wrapper)
    at = next((index for index, word in enumerate(before) if (word,) in CONTAINERS), len(before))
    return OwnLine(
        wrapper=before[:at],
        start=(*before[at:], *pasted.program, *(() if pasted.model is None else (pasted.model,))),
        flags=kept,
        environment=tuple(_split(word) for word in variables),
        text=without_secrets(text),
        speculation=asked,
        utilisation=parts.utilisation,
    )


def _today(report: LintReport, dialects: Dialects) -> Pasted:
    """The command as its engine takes it today; WillNotRun with the findings where it does not."""
    errors = [finding for finding in report.findings if finding.is_error]
    translated = report.translated
    _require_whole(report)
    if translated is None or not translated.argv:
        raise _refused(report, errors)
    wrong = _unsettled(errors, lint_words(translated.argv, dialects))
    if wrong:
        raise _refused(report, wrong)
    pasted = read_command(translated.argv, dialects)
    if pasted is None or isinstance(pasted, Foreign):
        raise _refused(report, errors)
    return pasted


def _unsettled(errors: Sequence[LintFinding], again: LintReport) -> list[LintFinding]:
    """What the translation does not settle: what is unknown or clashes is not in it as it was meant, and nobody knows
    what that was. `again` is the translation, read as the user's text was."""
    guessed = [
        finding
        for finding in errors
        if finding.status in (Status.UNKNOWN, Status.UNREAD)
        or (finding.status is Status.CONFLICT and finding.replacement is None)
    ]
    return [*guessed, *(finding for finding in again.findings if finding.is_error and finding not in guessed)]


def _require_whole(report: LintReport) -> None:
    """All that is needed to start it is in the text."""
    if report.unexpanded:
        raise UsageError(
            f"only a shell knows what {report.unexpanded[0]} stands for", hint="put the value in its place"
        )
    if not report.release:
        raise WillNotRun(
            f"this starts {report.title}, which speclift cannot launch",
            hint="start it with and without speculation, and compare: --engine attach --baseline-url … --spec-url …",
        )


def _refused(report: LintReport, errors: Sequence[LintFinding]) -> WillNotRun:
    said = [f"{finding.flag}: {finding.message}" for finding in errors[:FINDINGS_SHOWN]]
    if len(errors) > FINDINGS_SHOWN:
        said.append(f"and {len(errors) - FINDINGS_SHOWN} more")
    version = f" {report.version}" if report.version else ""
    head = f"{report.title}{version} would not run this"
    return WillNotRun(
        "\n  ".join([f"{head}:", *said] if said else [head]), hint="speclift lint shows all of it"
    )


def _notes(report: LintReport) -> tuple[str, ...]:
    changed = [
        f"{finding.flag}: {finding.message}" + (f" -> {finding.replacement}" if finding.replacement else "")
        for finding in report.findings
        if finding.status is not Status.OK
    ]
    translated = report.translated
    return tuple(
        dict.fromkeys([*report.notes, *changed, *(translated.notes if translated is not None else ())])
    )


def _words(setting: Setting) -> tuple[str, ...]:
    if setting.is_one_word:
        return (f"{setting.spelled}={shown(setting.value)}",)
    return (setting.spelled, *_values(setting.value))


def _values(value: object) -> Iterator[str]:
    if isinstance(value, list):
        yield from (shown(entry) for entry in value)
    elif value is not None:
        yield shown(value)


def _is_named(name: str, names: frozenset[str]) -> bool:
    """A key after a dot belongs to its flag."""
    return name.partition(".")[0] in names


def _split(assignment: str) -> tuple[str, str]:
    name, _, value = assignment.partition("=")
    return name, value
