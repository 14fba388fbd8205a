"""What stands in a study for text that is not kept: a hash, by which equal texts are still equal.

Nothing of a prompt or an answer can be read from it. Two facts about an answer are kept beside the hash because a
verdict needs them: whether there was any text, and whether it ended in a loop.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace

from msgspec import structs

from speclift.core.errors import StudyError
from speclift.core.records import Record
from speclift.core.results import Finding, inform
from speclift.core.traffic import Request
from speclift.statistics.loops import is_looping
from speclift.studies.format import dumps

NOT_KEPT = "text not kept"
# So often the hash stands there instead of a text that loops, which makes it loop as well.
LOOP_TIMES = 6
FINISH_REASONS = frozenset(
    {"stop", "length", "tool_calls", "function_call", "content_filter", "abort", "error", "cancelled"}
)
_NUMBERS = re.compile(r"[0-9eE.,:;/ +-]{0,80}")
# The part of an error that is ours: a status, or the name of an error of the network.
_OWN_WORDS = re.compile(r"\d{3}|[A-Za-z]{1,32}(Error|Refused|Timeout)")


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def stand_in(text: str) -> str:
    if not text:
        return ""
    digest = f"sha256:{digest_of(text)} "
    return digest * (LOOP_TIMES if is_looping(text) else 1)


def request_stand_in(request: Request) -> Request:
    said = {"messages": asdict(request)["messages"], "prompt": request.prompt}
    if request.answer_format is not None:
        said["answer_format"] = request.answer_format
    return replace(request, messages=(), prompt=stand_in(dumps(said)), response=None, answer_format=None)


def record_stand_in(record: Record) -> Record:
    """Whatever a server may say in words of its own is left out."""
    reason = record.finish_reason
    return replace(
        record,
        text=stand_in(record.text),
        error=error_stand_in(record.error),
        finish_reason=reason if reason is None or reason in FINISH_REASONS else NOT_KEPT,
        refused=tuple(
            each if _NUMBERS.fullmatch(each.said) else structs.replace(each, said=NOT_KEPT)
            for each in record.refused
        ),
    )


def error_stand_in(error: str) -> str:
    """Servers quote in their errors what they were sent."""
    head = error.partition(":")[0].strip()
    if not error:
        return ""
    return f"{head}: {NOT_KEPT}" if _OWN_WORDS.fullmatch(head) else NOT_KEPT


def finding_stand_in(finding: Finding) -> Finding:
    """Its own sentence; what follows on further lines is the tail of an engine's log."""
    return replace(finding, message=finding.message.partition("\n")[0])


def with_texts(kept: Sequence[Request], given: Iterable[Request]) -> tuple[Request, ...]:
    """The requests of a study without text, with the text of a workload that holds the same ones."""
    by_id = {request.id: request for request in given}
    found = []
    for request in kept:
        own = by_id.get(request.id)
        if own is None or request_stand_in(own).prompt != request.prompt:
            raise StudyError(
                f"the study has no texts (--no-text), and its prompt {request.id!r} is not in the given prompts",
                hint="use --resume with the original --prompts file",
            )
        found.append(
            replace(request, messages=own.messages, prompt=own.prompt, answer_format=own.answer_format)
        )
    return tuple(found)


def no_text_finding() -> Finding:
    return inform(
        "no-text",
        "prompts and answers were not stored (--no-text): they cannot be shown, replayed or verified again",
        then="measure without --no-text to store them",
    )


def budget_finding(words: Sequence[str]) -> Finding:
    return inform(
        "budget-spent",
        "; ".join(dict.fromkeys(words)),
        then="the verdict uses what was measured; continue with --resume and a longer --budget",
    )
