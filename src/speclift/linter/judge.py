"""Text or words in, judgement and today's command out. The one entry of the package. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace

from speclift.core.errors import UsageError
from speclift.linter.command import Foreign, read_command, read_script
from speclift.linter.dialect import Dialects, engine_imported
from speclift.linter.metric_questions import questions_in
from speclift.linter.pasted import STANDS_IN, Form, Pasted, looks_like_config, placeholders_in
from speclift.linter.report import LintReport
from speclift.linter.row_rules import Translation, shell_environment
from speclift.linter.rows import LintFinding, Release, Status, dotted
from speclift.linter.shell import read_shell
from speclift.linter.sources import (
    is_unit,
    looks_like_python,
    made_plain,
    read_python,
    unit_commands,
    words_made_plain,
)

TEXT_MAX = 1_000_000  # characters; a command, a program or a config is a thousandth of it


def lint_words(words: Sequence[str], dialects: Dialects, *, version: str | None = None) -> LintReport:
    """A command as a shell has already split it."""
    if len(words) == 1 and any(character.isspace() for character in words[0]):
        return lint_text(words[0], dialects, version=version)
    words, repairs = words_made_plain(words)
    server = read_command(words, dialects, release=_release_asked(dialects, version))
    if server is None:
        asked = _asked_by_words(words, dialects)
        if not asked:
            raise _no_engine(words[0] if words else "", dialects)
        return _reported(asked, dialects, version, notes=repairs)
    report = _report(server, dialects, version)
    return replace(report, notes=(*report.notes, *repairs))


def starts_something(word: str, dialects: Dialects) -> bool:
    """True if one word alone is a command, a flag or a metric of an engine."""
    return read_command([word], dialects) is not None or bool(_asked_by_words([word], dialects))


def lint_text(text: str, dialects: Dialects, *, version: str | None = None) -> LintReport:
    """A shell command or script, Python that makes an engine, YAML, JSON, a manifest, a unit; rules, a dashboard or
    whatever else asks for metrics."""
    if len(text) > TEXT_MAX:
        raise UsageError(f"this is {len(text):,} characters long; give a command or a config")
    if not text.strip():
        raise UsageError(
            "there is nothing to lint", hint="speclift lint -- vllm serve MODEL --speculative-model DRAFT"
        )
    if "\0" in text:
        raise UsageError("this is binary data; give a command, Python code or a config")
    text, repairs = made_plain(text)
    return _reported(_read(text, dialects, version), dialects, version, notes=repairs)


def read_servers(
    command: str | Sequence[str], dialects: Dialects, *, version: str | None = None
) -> Sequence[Pasted | Foreign]:
    """The servers of a text, or the one of words, unjudged."""
    if isinstance(command, str):
        return _read(made_plain(command)[0], dialects, version)
    if len(command) == 1 and any(character.isspace() for character in command[0]):
        return read_servers(command[0], dialects, version=version)
    words, _ = words_made_plain(command)
    server = read_command(words, dialects, release=_release_asked(dialects, version))
    return () if server is None else (server,)


def _reported(
    servers: Sequence[Pasted | Foreign], dialects: Dialects, version: str | None, *, notes: Sequence[str]
) -> LintReport:
    ordered = sorted(servers, key=lambda server: not _is_speculative(server, dialects))
    first, *others = (_report(server, dialects, version) for server in ordered)
    return replace(first, notes=(*first.notes, *notes), others=tuple(others))


def _asked_by_words(words: Sequence[str], dialects: Dialects) -> tuple[Pasted, ...]:
    return questions_in(words[0] if len(words) == 1 else shlex.join(words), dialects)[0]


def _is_speculative(server: Pasted | Foreign, dialects: Dialects) -> bool:
    return isinstance(server, Pasted) and dialects.of(server.engine).is_speculative(server)


def _read(text: str, dialects: Dialects, version: str | None) -> Sequence[Pasted | Foreign]:
    """Every server in it, with the metrics that are asked for; at least one of either."""
    release = _release_asked(dialects, version)
    asked_for_metrics, is_file = questions_in(text, dialects)
    try:
        # In a file of queries words that start a server are a title's or a description's.
        is_read = not is_file or _MANIFEST.search(text) is not None
        servers = list(_read_servers(text, dialects, release)) if is_read else []
    except UsageError:
        if not asked_for_metrics:
            raise
        servers = []
    for asked in asked_for_metrics:
        at = next((place for place, each in enumerate(servers) if _is_of(each, asked.engine)), None)
        if at is None:
            servers.append(asked)
        else:
            servers[at] = _with_metrics(servers[at], asked)
    return servers


def _is_of(server: Pasted | Foreign, engine: str) -> bool:
    return isinstance(server, Pasted) and server.engine == engine


def _with_metrics(server: Pasted | Foreign, asked: Pasted) -> Pasted | Foreign:
    assert isinstance(server, Pasted)
    return replace(
        server,
        metrics=asked.metrics,
        notes=(*server.notes, *asked.notes),
        unread=(*server.unread, *asked.unread),
    )


def _read_servers(text: str, dialects: Dialects, release: Release | None) -> Sequence[Pasted | Foreign]:
    """Every server in it; at least one."""
    imported = engine_imported(text)
    if imported is not None and not re.search(r"^\s*(?:from|import)\s+vllm\b", text, re.MULTILINE):
        return [Foreign(engine=imported[0], seen=imported[1])]
    for dialect in dialects.in_question:
        if looks_like_python(text, dialect):
            return read_python(text, dialect)
    if is_unit(text):
        commands, notes = unit_commands(text)
        return _required(_servers_in(commands, dialects, release, notes=notes), text, dialects)
    if _MANIFEST.search(text):
        return _read_manifest(text, dialects, release)
    return _read_source(text, dialects, release)


def _read_source(text: str, dialects: Dialects, release: Release | None) -> Sequence[Pasted | Foreign]:
    """Shell source or a config."""
    fault: UsageError | None = None
    servers: Sequence[Pasted | Foreign] = ()
    try:
        servers = _servers_in(text, dialects, release)
    except UsageError as error:
        fault = error
    if servers:
        return servers
    if looks_like_config(text):
        from speclift.linter.config_file import read_config  # late: a command needs no PyYAML

        try:
            return [read_config(text, dialects)]
        except UsageError as error:
            fault = error
    raise fault or _no_engine(text.strip().splitlines()[0], dialects)


_MANIFEST = re.compile(r"^(?:services|apiVersion):", re.MULTILINE)


def _read_manifest(text: str, dialects: Dialects, release: Release | None) -> Sequence[Pasted | Foreign]:
    from speclift.linter.config_file import (
        NOTE,
        is_manifest,
        manifest_commands,
        read_yaml,  # late: a command needs no PyYAML
    )

    documents = [document for _, document in read_yaml(text)]
    if not is_manifest(documents):
        return _read_source(text, dialects, release)
    servers = [
        server
        for command in manifest_commands(documents, dialects)
        for server in _servers_in(command, dialects, release, notes=(NOTE,))
    ]
    return _required(servers, "this container manifest", dialects)


def _servers_in(
    source: str, dialects: Dialects, release: Release | None, *, notes: tuple[str, ...] = ()
) -> Sequence[Pasted | Foreign]:
    return [
        replace(server, notes=(*server.notes, *notes)) if isinstance(server, Pasted) else server
        for server in read_script(read_shell(source), dialects, release)
    ]


def _required(
    servers: Sequence[Pasted | Foreign], seen: str, dialects: Dialects
) -> Sequence[Pasted | Foreign]:
    if not servers:
        raise _no_engine(seen.strip().splitlines()[0], dialects)
    return servers


def _report(server: Pasted | Foreign, dialects: Dialects, version: str | None) -> LintReport:
    if isinstance(server, Foreign):
        return _unread_report(server)
    dialect = dialects.of(server.engine)
    newest = dialect.newest
    release = newest if version is None else dialect.parse_release(version)
    notes = list(server.notes)
    if release > newest:
        notes.append(
            f"the newest release known here is {dotted(newest)}; {version} was checked as that release"
        )
    findings, translated = dialect.judge(server, release, version=version or "")
    metrics = () if dialect.metrics is None else dialect.metrics.judged(server.metrics, release=release)
    missing = tuple(dict.fromkeys(_missing(server)))
    unread = {found.flag for found in findings if found.status is Status.UNREAD}
    absent = (
        LintFinding(flag=what, status=Status.UNREAD, message=why)
        for what, why in missing
        if what not in unread
    )
    return LintReport(
        engine=server.engine,
        title=dialect.title,
        release=release,
        newest=newest,
        findings=_without_echo((*findings, *_unplaced(server), *absent, *metrics)),
        translated=_told(translated, server, is_missing=bool(missing)) if _starts(server) else None,
        notes=tuple(notes),
        models=dialect.models(server),
        unexpanded=server.expansions.pieces,
        program=server.program,
        environment=tuple(shell_environment(server)),
        image=server.wrapper[-1] if server.wrapper and not server.program else "",
    )


def _unread_report(server: Foreign) -> LintReport:
    other = server.engine
    return LintReport(
        engine=other.engine,
        title=other.title,
        release=(),
        newest=(),
        findings=(other.finding(server.seen),),
        translated=None,
    )


def _starts(pasted: Pasted) -> bool:
    return bool(pasted.settings or pasted.program or pasted.wrapper or pasted.model)


def _told(translated: Translation, pasted: Pasted, *, is_missing: bool) -> Translation | None:
    """No command is guessed if something is missing; Python code goes on knowing its own names."""
    if not is_missing:
        return translated
    return replace(translated, argv=(), source=(), yaml="") if pasted.form is Form.PYTHON else None


def _missing(pasted: Pasted) -> Iterator[tuple[str, str]]:
    yield from pasted.missing
    values = [pasted.model, *(setting.value for setting in pasted.settings), *pasted.stray]
    for value in values:
        if not (isinstance(value, str) and pasted.expansions.holds(value)):
            yield from ((found, STANDS_IN) for found in placeholders_in(value))


def _unplaced(pasted: Pasted) -> Iterator[LintFinding]:
    """Words that no flag takes, and what could not be read: both are errors, for nothing vouches for them."""
    for what, why in pasted.unread:
        yield LintFinding(flag=what, status=Status.UNREAD, message=why)
    for word in pasted.stray:
        if any(placeholder == word for placeholder in placeholders_in(word)):
            continue  # said as such
        if pasted.expansions.holds(word):
            said = "only a shell can expand this; it was copied unchanged, and flags in it are not checked"
            yield LintFinding(flag=word, status=Status.UNREAD, message=said)
        else:
            said = "belongs to no flag; the server would reject the command"
            yield LintFinding(flag=word or "''", status=Status.UNKNOWN, message=said)


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
