"""A user's own serving command as the beginning of a study: read as lint reads it, taken as the target.

What it asks to draft with becomes the arm `yours`, the same command without that the baseline.
"""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from speclift.core.address import without_secrets
from speclift.core.errors import SpecliftError, UsageError
from speclift.core.quantities import printable
from speclift.core.speculation import (
    Combined,
    DraftModel,
    Head,
    NGram,
    Off,
    Speculation,
    Suffix,
    draft_length,
    drafters_of,
    method_name,
)
from speclift.core.user_command import OwnLine, hidden_words, name_of
from speclift.engines.kind import engine_kind
from speclift.linter.command import Foreign
from speclift.linter.judge import read_servers
from speclift.linter.report import LintReport
from speclift.linter.rewriting import NewSpeculation, rewritings, unified
from speclift.linter.user_command import OwnServer, own_server
from speclift.planner.heads import SIZED_HEADS
from speclift.verbs.lint import dialects_for, lint
from speclift.verdict.judgement import OwnLineChange, Served

# So many lines say what was translated; lint shows the rest.
NOTES_SHOWN = 5
# Fields of PlanAsk by those of ServerSettings.
PLANNED = {
    "tp": "tp",
    "pp": "pp",
    "context_tokens": "context",
    "max_num_seqs": "max_num_seqs",
    "token_budget": "token_budget",
    "target_quant": "target_quant",
    "kv_type_k": "kv_dtype",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """Settings of an Ask by their flat names, and what was understood, in a few lines."""

    settings: Mapping[str, object]
    said: tuple[str, ...]
    # The same for plan.
    planned: Mapping[str, object]


def from_line(command: str | Sequence[str], *, engine: str | None = None) -> dict[str, object]:
    """Settings for decide, tune, measure and verify: `speclift.decide(**speclift.from_line("llama-server -m M …"))`."""
    return dict(brought(command, engine=engine).settings)


def brought(
    command: str | Sequence[str] | None,
    *,
    engine: str | None = None,
    programs: Mapping[str, object] = MappingProxyType({}),
) -> Brought:
    """`programs` are those that the user named beside the line: --vllm-python, --llama-server."""
    if not command or (isinstance(command, str) and not command.strip()):
        raise UsageError("the line is empty", hint="speclift decide -- vllm serve MODEL …")
    # What goes wrong from here on is said without the secrets.
    words = [word.strip("'\"") for word in command.split()] if isinstance(command, str) else command
    hidden_words(words)
    read_by = dialects_for(None).engines
    asked = engine if engine in read_by else None
    report = lint(command, engine=asked)
    version = _release_of(report, programs)
    if version is not None:
        report = lint(command, engine=report.engine, engine_version=version)
    dialects = dialects_for(None if version is None else report.engine)
    server = own_server(report, dialects, command, version=version)
    if engine is not None and engine != server.engine:
        raise UsageError(
            f"--engine {engine} was given, and the line starts {server.title}",
            hint="leave --engine out: the line says it",
        )
    program, remark = engine_kind(server.engine).own_program(server.program, server.line)
    for name, value in server.secrets:
        # The servers inherit it from here; the study does not hold it.
        os.environ.setdefault(name, value)
    speculation = server.parts.speculation
    yours = {} if isinstance(speculation, Off) else {"yours": speculation}
    settings = {
        "engine": server.engine,
        "model": server.parts.model,
        **server.parts.settings,
        "line": server.line,
        **yours,
        **program,
    }
    return Brought(
        settings=settings,
        said=tuple(map(without_secrets, _understood(server, remark))),
        planned=_plan_settings(server),
    )


def _release_of(report: LintReport, programs: Mapping[str, object]) -> str | None:
    """Of the engine that will run it: its image's, or the one that is installed; None where neither tells."""
    if not report.release:
        return None
    kind = engine_kind(report.engine)
    if report.image and kind.dialect is not None:
        return kind.dialect.image_release(report.image)
    return None if report.others else kind.own_release(report.program, programs)


def _plan_settings(server: OwnServer) -> dict[str, object]:
    """What the line says of a deployment, by the fields of PlanAsk."""
    parts, said = server.parts, server.parts.settings
    found: dict[str, object] = {"engine": server.engine, "target": parts.model}
    for field, planned in PLANNED.items():
        if field in said:
            found[planned] = said[field]
    tensor, pipeline = said.get("tp", 1), said.get("pp", 1)
    if isinstance(tensor, int) and isinstance(pipeline, int):
        found["gpus"] = tensor * pipeline
    if parts.utilisation is not None:
        found["utilisation"] = parts.utilisation
    return found | _planned_drafting(parts.speculation)


def _planned_drafting(speculation: Speculation) -> dict[str, object]:
    drafters = drafters_of(speculation)
    if not drafters:
        return {}
    found: dict[str, object] = {"ks": (draft_length(speculation),)}
    models = tuple(drafter.model for drafter in drafters if isinstance(drafter, DraftModel))
    head = next((each for each in drafters if isinstance(each, Head) and each.kind in SIZED_HEADS), None)
    if models:
        found["drafts"] = models
    elif head is not None:
        found["methods"] = (head.kind,)
        found["drafts"] = () if head.model is None else (head.model,)
    return found


def _understood(server: OwnServer, remark: str) -> Iterator[str]:
    line, parts = server.line, server.parts
    yield f"your line: {server.title}, model {printable(str(parts.model))}"
    match parts.speculation:
        case Off():
            yield "its speculation: none; the search's arms are compared with it"
        case DraftModel() | NGram() | Suffix() | Head() | Combined() as drafter:
            model = getattr(drafter, "model", None)
            by = f" by {printable(model)}" if model else ""
            yield f"its speculation (arm yours): {method_name(drafter)}{by}, up to {draft_length(drafter)} tokens"
    kept = shlex.join(line.words(without=dialects_for(server.engine).of(server.engine).listening))
    if kept:
        yield f"kept in every arm: {printable(kept)}"
    if line.wrapper and not line.launcher:
        yield f"left out where speclift launches it: {printable(shlex.join(line.wrapper))}"
    if remark:
        yield remark
    for note in server.notes[:NOTES_SHOWN]:
        yield f"note: {printable(note)}"
    if len(server.notes) > NOTES_SHOWN:
        yield f"and {len(server.notes) - NOTES_SHOWN} more notes: speclift lint shows them"


def changed_line(line: OwnLine, engine: str, recommended: Served, speculation: Speculation) -> OwnLineChange:
    """The user's text with the speculation that is recommended, in its own format where that can be done."""
    dialect = dialects_for(engine).of(engine)
    words = itertools.dropwhile(
        lambda word: not (word.startswith("-") and dialect.is_speculation(name_of((word,)))),
        shlex.split(recommended.forms["command"]),
    )
    wanted = NewSpeculation(words=tuple(words), config=recommended.config)
    for after in _rewritten(line.text, engine, wanted):
        if _says(after, engine, line, speculation):
            break
    else:
        # Where the text cannot be edited: the same server as a command.
        after = recommended.forms["command"]
    return OwnLineChange(before=line.text, after=after, diff=unified(line.text, after))


def _rewritten(text: str, engine: str, wanted: NewSpeculation) -> Iterator[str]:
    dialects = dialects_for(engine)
    (pasted,) = read_servers(text, dialects)
    if not isinstance(pasted, Foreign):
        yield from rewritings(text, pasted, dialects.of(engine), wanted)


def _says(text: str, engine: str, line: OwnLine, speculation: Speculation) -> bool:
    """Whether a text, read again, is this server with this speculation, and today's engine takes it as it stands."""
    try:
        report = lint(text, engine=engine)
        again = own_server(report, dialects_for(engine), text)
    except SpecliftError:
        return False
    return report.ok and again.line.flags == line.flags and again.parts.speculation == speculation
