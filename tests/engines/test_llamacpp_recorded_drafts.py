"""What llama.cpp b11549 drafted and accepted, recorded from the embedded server, counted again by replay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speclift.engines.llamacpp.drafters import LlamaCppDrafters
from speclift.replayer.counts import LoggedAnswer, batch_of
from speclift.replayer.methods import replay_of, settings_for

RECORDED = json.loads(
    (Path(__file__).parents[1] / "recorded" / "llamacpp-b11549-ngram-drafts.json").read_text("utf-8")
)
ANSWERS = [
    LoggedAnswer(
        prompt=np.array(each["prompt_token_ids"]),
        response=np.array(each["response_token_ids"]),
        segment="any",
        budget=each["max_tokens"],
    )
    for each in RECORDED["answers"]
]


@pytest.mark.parametrize("run", RECORDED["runs"], ids=lambda run: run["drafter"])
def test_every_request_drafts_and_accepts_what_the_server_did(run: dict[str, Any]) -> None:
    variant, n, k = run["drafter"].split(",")
    (setting,) = settings_for(
        (f"ngram:{variant}",), (LlamaCppDrafters(),), engine=None, ks=(int(k),), ngrams=(int(n or 1),)
    )
    (counts,) = replay_of(setting).counts(batch_of(ANSWERS), ANSWERS)

    assert counts.drafted.tolist() == run["drafted"]
    assert counts.accepted.tolist() == run["accepted"]
    assert counts.drafting.sum() == run["drafting"]


def test_the_record_covers_every_llama_cpp_drafter_and_an_answer_that_ended_by_itself() -> None:
    variants = {run["drafter"].split(",")[0] for run in RECORDED["runs"] if sum(run["accepted"])}

    assert variants == {"simple", "map-k", "map-k4v", "mod", "cache"}
    assert {"limit", "eos"} <= {each["stop"] for each in RECORDED["answers"]}


def test_what_a_slot_remembers_is_kept_between_batches() -> None:
    (setting,) = settings_for(("ngram:map-k",), (LlamaCppDrafters(),), engine=None, ks=(5,), ngrams=(2,))
    whole = replay_of(setting).counts(batch_of(ANSWERS), ANSWERS)[0]
    split = replay_of(setting)
    parts = [split.counts(batch_of([each]), [each])[0] for each in ANSWERS]
    fresh = [replay_of(setting).counts(batch_of([each]), [each])[0] for each in ANSWERS]

    assert [int(part.accepted[0]) for part in parts] == whole.accepted.tolist()
    assert [int(part.accepted[0]) for part in fresh] != whole.accepted.tolist()
