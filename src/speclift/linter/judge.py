"""Text or words in, judgement and today's command out. The one entry of the package. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from speclift.core.errors import UsageError
from speclift.linter.command import assignments, read_command, read_program
from speclift.linter.dialect import Dialect, Dialects
from speclift.linter.findings import LintFinding, Release, Status, dotted, has_errors
from speclift.linter.pasted import Form, Pasted
from speclift.linter.python_code import looks_like_python, read_python
from speclift.linter.shell import ShellCommand, ShellText, read_shell
from speclift.linter.translation import Translation

TEXT_MAX = 1_000_000  # characters; a command, a program or a config is a thousandth of it


@dataclass(frozen=True, slots=True, kw_only=True)
class LintReport:
    """`translated` is for `newest`, whichever release was judged; None where nothing starts a server."""

    engine: str
    title: str  # what people call the engine
    release: Release
    newest: Release
    findings: tuple[LintFinding, ...]
    translated: Translation | None
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not has_errors(self.findings)

    @property
    def version(self) -> str:
        return dotted(self.release)


def lint_words(words: Sequence[str], dialects: Dialects, *, version: str | None = None) -> LintReport:
    """A command as a shell has already split it."""
    if len(words) == 1 and any(character.isspace() for character in words[0]):
        return lint_text(words[0], dialects, version=version)
    pasted = read_command(words, dialects, release=_release_asked(dialects, version))
    pasted = pasted or _metrics_alone(" ".join(words), dialects.known)
    if pasted is None:
        raise _no_engine(words[0] if words else "", dialects)
    return _report(pasted, dialects, version)


def starts_something(word: str, dialects: Dialects) -> bool:
    """Whether one word alone is a command, a flag or a metric of an engine."""
    return (read_command([word], dialects) or _metrics_alone(word, dialects.known)) is not None


def lint_text(text: str, dialects: Dialects, *, version: str | None = None) -> LintReport:
    """A shell command or script, Python that makes an engine, YAML, JSON, or a metric's name."""
    if len(text) > TEXT_MAX:
        raise UsageError(f"this is {len(text):,} characters long; give a command or a config")
    if not text.strip():
        raise UsageError(
            "there is nothing to lint", hint="speclift lint -- vllm serve MODEL --speculative-model DRAFT"
        )
    if "\0" in text:
        raise UsageError("this is binary data; give a command, Python code or a config")
    pasted = _read(text, dialects, version)
    names = dialects.of(pasted.engine).metrics
    metrics = () if names is None else names.found_in(text)
    return _report(replace(pasted, metrics=metrics), dialects, version)


def _read(text: str, dialects: Dialects, version: str | None) -> Pasted:
    for dialect in dialects.in_question:
        if looks_like_python(text, dialect):
            return read_python(text, dialect)
    fault: UsageError | None = None
    try:
        shell = read_shell(text)
    except UsageError as error:
        shell, fault = None, error
    pasted = None if shell is None else _read_shell(shell, dialects, _release_asked(dialects, version))
    if pasted is not None:
        return pasted
    if _looks_like_config(text):
        from speclift.linter.config_file import read_config  # late: a command needs no PyYAML

        try:
            return read_config(text, dialects)
        except UsageError as error:
            fault = error
    query = _metrics_alone(text, dialects.in_question)  # or a rule, or a dashboard
    if query is not None:
        return query
    raise fault or _no_engine(text.strip().splitlines()[0], dialects)


def _metrics_alone(text: str, dialects: Sequence[Dialect]) -> Pasted | None:
    for dialect in dialects:
        metrics = () if dialect.metrics is None else dialect.metrics.found_in(text)
        if metrics:
            return Pasted(engine=dialect.engine, form=Form.COMMAND, settings=(), metrics=metrics)
    return None


def _read_shell(shell: ShellText, dialects: Dialects, release: Release | None) -> Pasted | None:
    """The first server that is started, with what the commands around it say about it."""
    found: list[tuple[ShellCommand, Pasted]] = []
    before: list[tuple[str, str]] = []
    pieces: list[str] = []
    for command in shell.commands:
        environment, words = assignments(command.words)
        if not words:
            before += environment
            pieces += command.expansions.pieces if environment else ()
            continue
        pasted = read_program(words, environment, dialects, release=release, expansions=command.expansions)
        if pasted is not None:
            found.append((command, pasted))
    if not found:
        # A script that is only written down: cat > run.sh <<EOF
        inner = (_read_shell(read_shell(document), dialects, release) for document in shell.documents)
        return next((pasted for pasted in inner if pasted is not None), None)
    command, pasted = found[0]
    live = tuple(dict.fromkeys([*pasted.expansions.pieces, *pieces]))
    notes = ("redirections are left out of the translation",) if command.is_redirected else ()
    return replace(
        pasted,
        environment=(*before, *pasted.environment),
        exported=frozenset(name for name, _ in before),
        expansions=replace(pasted.expansions, pieces=live),
        notes=(*pasted.notes, *notes),
        unread=(*pasted.unread, *_other_servers(len(found) - 1)),
    )


def _other_servers(count: int) -> Iterator[tuple[str, str]]:
    if count:
        said = "more server commands are in this text" if count > 1 else "more server command is in this text"
        yield f"{count} {said}", "only the first is judged: lint them one by one"


def _looks_like_config(text: str) -> bool:
    first = next(
        (line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")), ""
    )
    return text.lstrip().startswith(("{", "[", "---")) or ":" in first


def _report(pasted: Pasted, dialects: Dialects, version: str | None) -> LintReport:
    dialect = dialects.of(pasted.engine)
    newest = dialect.newest
    release = newest if version is None else dialect.parse_release(version)
    notes = list(pasted.notes)
    if release > newest:
        notes.append(
            f"the newest release known here is {dotted(newest)}; {version} was checked as that release"
        )
    findings, translated = dialect.judge(pasted, release, version=version or "")
    metrics = () if dialect.metrics is None else dialect.metrics.judged(pasted.metrics, release=release)
    return LintReport(
        engine=pasted.engine,
        title=dialect.title,
        release=release,
        newest=newest,
        findings=_without_echo((*findings, *_unplaced(pasted), *metrics)),
        translated=translated if _starts(pasted) else None,
        notes=tuple(notes),
    )


def _starts(pasted: Pasted) -> bool:
    return bool(pasted.settings or pasted.program or pasted.wrapper or pasted.model)


def _unplaced(pasted: Pasted) -> Iterator[LintFinding]:
    """Words that no flag takes, and what could not be read: both are errors, for nothing vouches for them."""
    for what, why in pasted.unread:
        yield LintFinding(flag=what, status=Status.UNREAD, message=why)
    for word in pasted.stray:
        if pasted.expansions.holds(word):
            said = "only a shell can expand this; it was copied unchanged, and flags in it are not checked"
            yield LintFinding(flag=word, status=Status.UNREAD, message=said)
        else:
            said = "belongs to no flag; the server would reject the command"
            yield LintFinding(flag=word, status=Status.UNKNOWN, message=said)


def _without_echo(findings: Sequence[LintFinding]) -> tuple[LintFinding, ...]:
    """Without the "ok" of a flag that something else is said about, and without repeats."""
    spoken_for = {found.flag for found in findings if found.status is not Status.OK}
    kept = (found for found in findings if found.status is not Status.OK or found.flag not in spoken_for)
    return tuple(dict.fromkeys(kept))


def _release_asked(dialects: Dialects, version: str | None) -> Release | None:
    return None if dialects.asked is None or version is None else dialects.asked.parse_release(version)


def _no_engine(seen: str, dialects: Dialects) -> UsageError:
    ways = [way for dialect in dialects.known for way in dialect.examples or dialect.programs]
    return UsageError(
        f"{seen[:80]!r} starts no known engine",
        hint=f"{', '.join(ways)}; --engine {' or '.join(dialects.engines)} accepts flags without a command",
    )
