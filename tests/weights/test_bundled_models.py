from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from speclift.core.errors import ModelError
from speclift.engines.llamacpp.pairing import compare_vocabularies
from speclift.weights.gguf_file import inspect_gguf, read_vocabulary
from speclift.weights.models import BUNDLED, SMOLLM2_135M_DRAFT, BundledDraft, draft_for, resolve


def test_the_bundled_draft_is_found_by_name_and_small() -> None:
    assert resolve("smollm2-135m-draft") == SMOLLM2_135M_DRAFT.path
    assert SMOLLM2_135M_DRAFT.path.stat().st_size < 20_000_000


def test_it_is_offered_for_its_own_target_alone() -> None:
    assert draft_for("smollm2-135m") is SMOLLM2_135M_DRAFT
    assert draft_for("my-model.gguf") is None


def test_a_damaged_one_is_refused_before_a_server_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = replace(SMOLLM2_135M_DRAFT, sha256_hex="0" * 64)
    monkeypatch.setitem(cast(dict[str, BundledDraft], BUNDLED), damaged.name, damaged)
    with pytest.raises(ModelError, match="missing or damaged"):
        resolve("smollm2-135m-draft")


@pytest.mark.llama
def test_it_splits_text_as_its_target_does(embedded_model: Path) -> None:
    target, draft = read_vocabulary(embedded_model), read_vocabulary(SMOLLM2_135M_DRAFT.path)
    assert compare_vocabularies(target, draft).compatible
    assert inspect_gguf(SMOLLM2_135M_DRAFT.path).architecture == "llama"
