"""Which tensors does a safetensors file hold, and how many bytes are they? Reads the header alone."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from speclift.core.errors import ModelError
from speclift.core.json_reading import need_list, need_object, need_whole
from speclift.core.units import Bytes

DOWNLOAD_AGAIN = "download the file again; it is damaged or incomplete"
# The format's own limit on its header (safetensors 0.5, MAX_HEADER_SIZE).
HEADER_BYTES_MAX = 100_000_000
_LENGTH_BYTES = 8
_WHOLE_PARAMETERS = frozenset({"F64", "F32", "F16", "BF16"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: Bytes

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def is_unquantised(self) -> bool:
        """One stored number is one parameter."""
        return self.dtype in _WHOLE_PARAMETERS


def read_safetensors(path: Path) -> tuple[StoredTensor, ...]:
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
            if size < _LENGTH_BYTES or not 2 <= length <= min(HEADER_BYTES_MAX, size - _LENGTH_BYTES):
                raise ModelError(
                    f"{path} is not a safetensors file: its header would be {length} bytes of {size}.",
                    hint=_hint(path),
                )
            raw = stream.read(length)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}.", hint="check the path") from error
    try:
        header = json.loads(raw)
    except ValueError as error:
        raise ModelError(f"{path} has a header that is not JSON: {error}.", hint=DOWNLOAD_AGAIN) from error
    if not isinstance(header, dict):
        raise ModelError(f"{path} has a header that is no object.", hint=DOWNLOAD_AGAIN)
    tensors = tuple(
        _tensor(path, name, entry, size - _LENGTH_BYTES - length)
        for name, entry in header.items()
        if name != "__metadata__"
    )
    if not tensors:
        raise ModelError(f"{path} contains no tensors.", hint=DOWNLOAD_AGAIN)
    return tensors


def _hint(path: Path) -> str:
    with path.open("rb") as stream:
        start = stream.read(24)
    if start.startswith(b"version https://git-lfs"):
        return "this is a Git LFS pointer; fetch the file itself with 'git lfs pull'"
    return DOWNLOAD_AGAIN


def _tensor(path: Path, name: str, entry: object, data_bytes: Bytes) -> StoredTensor:
    try:
        fields = need_object(entry)
        start, end = map(need_whole, need_list(fields["data_offsets"]))
        shape = tuple(map(need_whole, need_list(fields["shape"])))
        dtype = str(fields["dtype"])
        is_sound = all(number >= 0 for number in (*shape, start)) and start <= end
    except (TypeError, KeyError, ValueError):
        is_sound, end = False, 0
    if not is_sound:
        raise ModelError(f"{path} is damaged: tensor {name!r} has no place in it.", hint=DOWNLOAD_AGAIN)
    if end > data_bytes:
        raise ModelError(
            f"{path} is truncated: tensor {name} ends at byte {end} of {data_bytes}.", hint=DOWNLOAD_AGAIN
        )
    return StoredTensor(name=name, dtype=dtype, shape=shape, size_bytes=end - start)
