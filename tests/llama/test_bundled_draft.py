"""The draft that comes with the package, on the target it was made for; that its output is the target's is said by
test_lossless.py."""

from __future__ import annotations

from pathlib import Path

import pytest

import speclift

pytestmark = [pytest.mark.llama, pytest.mark.timeout(600)]

DRAFT = "smollm2-135m-draft"
SEGMENTS = ("chat", "code-writing", "creative", "json-extraction", "passage-qa", "summarise")


@pytest.mark.long
def test_its_guesses_are_accepted_on_every_kind_of_text(embedded_model: Path, tmp_path: Path) -> None:
    document = speclift.measure(
        model=str(embedded_model),
        drafts=(DRAFT,),
        ks=(4,),
        segments=SEGMENTS,
        temperatures=(0.0,),
        requests=12,
        max_tokens=32,
        launches=1,
        threads=1,
        study=tmp_path / "study",
    )
    lengths = {
        cell["segment"]: cell["accepted_length"]["value"]
        for cell in document["cells"]
        if cell["arm"] == "draft-k4" and cell["accepted_length"] is not None
    }
    assert lengths.keys() == {*SEGMENTS, "all"}
    # The bars that the model card states on all prompts, at two prompts each and cut answers.
    assert lengths["all"] > 2.0, lengths
    assert min(lengths.values()) > 1.5, lengths
