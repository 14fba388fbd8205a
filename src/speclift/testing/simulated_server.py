"""What a fake server would answer to a body, at once and without a server: for many answers in little time. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from speclift.core.document import Json
from speclift.testing.fake_corruption import Around, corrupt
from speclift.testing.fake_dialect import Reply, read_body
from speclift.testing.fake_truth import Truth, corruption_of, other_choices, script_for


def simulated_answer(
    truth: Truth, body: Mapping[str, object], around: Around, *, is_chat: bool = True
) -> dict[str, Json]:
    """The JSON of the whole answer; UsageError where the server would refuse it."""
    ask, form = read_body(dict(body), is_chat=is_chat)
    script = script_for(truth, ask, in_flight=around.streams)
    reply = Reply(truth, script, replace(form, stream=False), id="simulated", created=0, prompt_s=0.0)
    reply.others = other_choices(truth, ask)
    kind = corruption_of(truth, ask, around)
    if kind is not None:
        token = script.bursts[script.middle].start
        corrupted = corrupt(kind, reply.words, ask.words, ask.prompt, middle=token, other=around.other)
        if corrupted is not None:
            reply.corrupt(corrupted)
    return reply.whole(decode_s=0.0)
