"""An engine is a folder: ours are found beside each other, somebody else's by an entry point."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from running import speclift
from speclift.core.arm import ServerSettings
from speclift.core.engine_spec import EngineSpec
from speclift.core.errors import UsageError
from speclift.core.speculation import DraftModel, NGram
from speclift.engines.kind import ANY_KS, EngineKind, engine_kind, engine_names
from speclift.engines.protocol import Engine

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
    class PlainKind(EngineKind):
        def build(self, spec: EngineSpec, settings: ServerSettings, *, version: str | None) -> Engine:
            raise AssertionError("nothing is built")

    kind = PlainKind()
    assert kind.ks(NGram()) == kind.ks(DraftModel(model="d")) == ANY_KS
    assert kind.methods_at((), ()) == ("ngram",)
    assert kind.model_path("some/name", say=print, fetches=True) == "some/name"


def install(folder: Path, source: str) -> dict[str, str]:
    """A package with an engine named tiny as pip would leave it, and the environment that sees it."""
    (folder / "tiny_engine.py").write_text(source)
    metadata = folder / "tiny_engine-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-engine\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[speclift.engines]\ntiny = tiny_engine:KIND\n")
    return {**os.environ, "PYTHONPATH": str(folder)}


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("KIND = 3", "it is no EngineKind"),
        ("import no_such_module", "No module named 'no_such_module'"),
        ("KIND = (", "'(' was never closed"),
        ("", "module 'tiny_engine' has no attribute 'KIND'"),
    ],
)
def test_one_that_does_not_load_is_named_and_breaks_nothing_else(
    tmp_path: Path, source: str, why: str
) -> None:
    environment = install(tmp_path, source)
    asked = speclift("decide", "--engine", "tiny", cwd=tmp_path, environment=environment)
    assert asked.code == 1
    assert f"the engine tiny (tiny_engine:KIND) cannot be used: {why}" in " ".join(asked.stderr.split())
    planned = speclift(
        *("plan", "--target", "llama-3.1-70b", "--gpu", "h100-80gb", "--gpus", 4, "--json"),
        cwd=tmp_path,
        environment=environment,
    )
    assert planned.document["engine"] == "vllm"
    judged = speclift(
        "lint", "--json", "--", "llama-server", "-m", "m.gguf", cwd=tmp_path, environment=environment
    )
    assert (judged.code, judged.document["engine"]) == (0, "llamacpp")


def test_one_of_somebody_elses_decides_without_an_edit_here(tmp_path: Path) -> None:
    environment = install(tmp_path, TINY)
    result = speclift(
        *("decide", "--engine", "tiny", "--requests", 8, "--max-tokens", 8, "--launches", 1, "--json"),
        *("--segment", "chat", "--temperature", 0, "--verify", "off"),
        *("--engine-arg", "ttft_s=0.002", "--engine-arg", "tpot_s=0.0005"),
        cwd=tmp_path,
        environment=environment,
    )
    assert result.code in (0, 3, 4, 5), result.stderr
    assert result.document["provenance"]["engine_version"] == "tiny 7"
    assert {cell["arm"] for cell in result.document["cells"]} == {"baseline", "ngram-k2"}
