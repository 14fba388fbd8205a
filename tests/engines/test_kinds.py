"""An engine is a folder: ours are found beside each other, somebody else's by an entry point."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from running import speclift
from speclift.core.errors import UsageError
from speclift.core.speculation import DraftModel, NGram
from speclift.engines.kind import ANY_KS, EngineKind, engine_kind, engine_names

# The whole of an engine that drafts two tokens as the fake does, in one folder.
TINY = """
from speclift.engines.fake.engine import Fake
from speclift.engines.kind import EngineKind


class Tiny(Fake):
    name = "tiny"

    def version(self):
        return "tiny 7"


class TinyKind(EngineKind):
    name = "tiny"
    searches_unasked = False
    default_methods = ("ngram,k=2",)

    def build(self, spec, settings, *, version):
        return Tiny(settings)


KIND = TinyKind()
"""


def test_our_own_are_found_by_their_folders() -> None:
    assert set(engine_names()) == {"attach", "fake", "llamacpp", "vllm"}
    assert {engine_kind(name).name for name in engine_names()} == set(engine_names())


def test_another_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="engine 'vlm'"):
        engine_kind("vlm")


def test_what_an_engine_does_not_say_of_itself_is_what_most_do() -> None:
    kind = EngineKind()
    assert kind.ks(NGram()) == kind.ks(DraftModel(model="d")) == ANY_KS
    assert kind.methods_at((), ()) == ("ngram",)
    assert kind.model_path("some/name", say=print, fetches=True) == "some/name"


def test_one_of_somebody_elses_decides_without_an_edit_here(tmp_path: Path) -> None:
    (tmp_path / "tiny_engine.py").write_text(TINY)
    metadata = tmp_path / "tiny_engine-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-engine\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[speclift.engines]\ntiny = tiny_engine:KIND\n")
    result = speclift(
        *("decide", "--engine", "tiny", "--requests", 8, "--max-tokens", 8, "--launches", 1, "--json"),
        *("--segment", "chat", "--temperature", 0, "--verify", "off"),
        *("--engine-arg", "ttft_s=0.002", "--engine-arg", "tpot_s=0.0005"),
        cwd=tmp_path,
        environment={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert result.code in (0, 3, 4, 5), result.stderr
    assert result.document["provenance"]["engine_version"] == "tiny 7"
    assert {cell["arm"] for cell in result.document["cells"]} == {"baseline", "ngram-k2"}
