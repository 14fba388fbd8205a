from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from speclift.weights.models import FULL_HASH_BYTES_MAX, fingerprint, models_directory


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECLIFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


class TestCacheDirectory:
    @pytest.mark.parametrize(
        ("environment", "expected"),
        [
            ({"SPECLIFT_CACHE": "/a", "XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/a/models"),
            ({"SPECLIFT_CACHE": "~/b", "HOME": "/h"}, "/h/b/models"),
            ({"SPECLIFT_CACHE": "", "XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/speclift/models"),
            ({"XDG_CACHE_HOME": "relative", "HOME": "/h"}, "/h/.cache/speclift/models"),
            ({"HOME": "/h"}, "/h/.cache/speclift/models"),
        ],
    )
    def test_the_first_variable_that_says_something_wins(
        self, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: str
    ) -> None:
        for name in ("SPECLIFT_CACHE", "XDG_CACHE_HOME", "HOME"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)

        assert models_directory() == Path(expected)


class TestFingerprint:
    def test_it_is_the_sha_256_of_the_file(self, tmp_path: Path, cache: Path) -> None:
        (tmp_path / "model").write_bytes(b"abc")

        assert fingerprint(tmp_path / "model") == _sha256(tmp_path / "model")

    def test_it_is_remembered_by_size_and_modification_time(self, tmp_path: Path, cache: Path) -> None:
        path = tmp_path / "model"
        path.write_bytes(b"one")
        first, status = fingerprint(path), path.stat()
        path.write_bytes(b"two")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        unnoticed = fingerprint(path)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))

        assert unnoticed == first
        assert fingerprint(path) == _sha256(path) != first

    @pytest.mark.parametrize("content", ["", "{", "[]", '{"PATH": 3}', '{"PATH": {"size": 3}}', "\x00"])
    def test_an_unusable_memory_is_ignored(self, tmp_path: Path, cache: Path, content: str) -> None:
        path = tmp_path / "model"
        path.write_bytes(b"one")
        cache.mkdir(parents=True)
        (cache / "fingerprints.json").write_text(content.replace("PATH", str(path)))

        assert fingerprint(path) == _sha256(path)

    @pytest.mark.slow
    def test_above_a_gibibyte_the_size_and_both_ends_are_hashed(self, tmp_path: Path, cache: Path) -> None:
        seen = {}
        for name, size_bytes, offset in (
            ("as it was", FULL_HASH_BYTES_MAX + 1, None),
            ("changed in the middle", FULL_HASH_BYTES_MAX + 1, FULL_HASH_BYTES_MAX // 2),
            ("changed at the start", FULL_HASH_BYTES_MAX + 1, 0),
            ("changed at the end", FULL_HASH_BYTES_MAX + 1, FULL_HASH_BYTES_MAX),
            ("longer", FULL_HASH_BYTES_MAX + 2, None),
        ):
            path = tmp_path / name
            with path.open("wb") as stream:
                stream.truncate(size_bytes)
                if offset is not None:
                    stream.seek(offset)
                    stream.write(b"x")
            seen[name] = fingerprint(path)

        assert all(value.startswith("partial:") for value in seen.values())
        assert seen["as it was"] == seen["changed in the middle"]
        assert len(set(seen.values())) == 4
