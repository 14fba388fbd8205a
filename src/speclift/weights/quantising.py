"""A GGUF file in another quantisation: made once, kept in the user's cache, refused by name where it would be no good.

The plain types are made here with the gguf package; llama.cpp's mixes (q4_k_m and the like) by a llama-quantize, where
there is one.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from speclift.core.errors import ModelError, unknown_name
from speclift.core.quantities import size
from speclift.core.units import Bytes
from speclift.weights.gguf_file import (
    ModelInfo,
    check_gguf,
    inspect_gguf,
    load_gguf_package,
    shard_paths,
    write_gguf,
)
from speclift.weights.gguf_header import TENSOR_TYPES, Header, Tensor, aligned, open_gguf, tensor_bytes

# Type -> its id, and general.file_type for a file that is mostly of it (llama_ftype in include/llama.h).
PLAIN_TYPES = {
    "f16": (1, 1), "bf16": (30, 32), "q8_0": (8, 7), "q5_1": (7, 9), "q5_0": (6, 8), "q4_1": (3, 3), "q4_0": (2, 2),
}  # fmt: skip
# Of llama-quantize, with the bits of a weight that most tensors get.
MIXED_TYPES = {
    "q6_k": 6.6, "q5_k_m": 5.7, "q5_k_s": 5.5, "q4_k_m": 4.9, "q4_k_s": 4.6, "iq4_nl": 4.5, "iq4_xs": 4.25,
    "q3_k_l": 4.3, "q3_k_m": 3.9, "q3_k_s": 3.5, "q2_k": 3.2,
}  # fmt: skip
TOOL = "llama-quantize"
TOOL_LINES_SHOWN = 5
# Left free beside what is made: a full disk breaks more than this.
SPARE_BYTES: Bytes = 100_000_000
# The rows of a matrix that are worked on at a time have about as many values.
CHUNK_ELEMENTS = 1 << 22
_ROUTERS = re.compile(r"ffn_gate_inp")
_Q8_0 = PLAIN_TYPES["q8_0"][0]


def quantised_path(source: Path, quantisation: str, directory: Path, *, digest: str) -> Path:
    """Where the file is kept, made or not; the source itself where it is of that type already. UsageError or
    ModelError where nothing good can come of it. `digest` tells sources of one name apart."""
    name = quantisation.lower()
    if name not in PLAIN_TYPES and name not in MIXED_TYPES:
        raise unknown_name(what="GGUF quantisation", seen=quantisation, allowed=(*PLAIN_TYPES, *MIXED_TYPES))
    info = inspect_gguf(source)
    if info.quantisation.lower() == name:
        return source
    if _bits(name) >= _source_bits(info):
        raise ModelError(
            f"{source.name} is mostly {info.quantisation} already: as {name} it would be larger and no better.",
            hint=f"give --draft an F16 or Q8_0 file of the same model, or leave {name} out of --draft-quant",
        )
    if len(shard_paths(source)) > 1:
        raise ModelError(
            f"{source.name} is split over several files, which are not quantised here.",
            hint="merge them first: llama-gguf-split --merge",
        )
    told = hashlib.sha256(digest.encode()).hexdigest()[:12]
    return directory / f"{source.stem}-{name}-{told}.gguf"


def quantise(source: Path, quantisation: str, destination: Path, *, say: Callable[[str], None]) -> None:
    """Nothing is done where the file is there and whole. It appears whole or not at all."""
    name = quantisation.lower()
    if destination == source or _is_whole(destination):
        return
    needed = _needed_bytes(source, name)
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(destination.parent).free
        if free < needed + SPARE_BYTES:
            raise ModelError(
                f"{source.name} as {name} needs {size(needed)}, and {destination.parent} has {size(free)} free.",
                hint="make room, or put the cache elsewhere with SPECLIFT_CACHE",
            )
        say(f"making {name} of {source.name}, about {size(needed)}: {destination}")
        partial = destination.with_name(f".{destination.name}.{secrets.token_hex(4)}.partial")
        try:
            if name in PLAIN_TYPES:
                _write_plain(source, name, partial)
            else:
                _run_tool(source, name, partial)
            check_gguf(partial)
            partial.replace(destination)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise ModelError(
            f"{destination} cannot be written: {error.strerror or error}.",
            hint="put the cache elsewhere with SPECLIFT_CACHE",
        ) from error


def _is_whole(path: Path) -> bool:
    try:
        check_gguf(path)
    except ModelError:
        return False
    return True


def _bits(name: str) -> float:
    return MIXED_TYPES[name] if name in MIXED_TYPES else _bits_of(PLAIN_TYPES[name][0])


def _bits_of(type_id: int) -> float:
    _, block_elements, block_bytes = TENSOR_TYPES[type_id]
    return 8.0 * block_bytes / block_elements


def _source_bits(info: ModelInfo) -> float:
    by_name = {name: 8.0 * block_bytes / elements for name, elements, block_bytes in TENSOR_TYPES.values()}
    if info.quantisation not in by_name:
        raise ModelError(
            f"{info.path.name} is mostly of {info.quantisation}, which is not read here.",
            hint="give --draft an F16 or Q8_0 file of the same model",
        )
    return by_name[info.quantisation]


def _needed_bytes(source: Path, name: str) -> Bytes:
    with open_gguf(source) as header:
        if name in MIXED_TYPES:
            return int(sum(tensor.elements for tensor in header.tensors) * (_bits(name) + 0.5) / 8)
        types = _types(header, PLAIN_TYPES[name][0])
        sizes = (tensor_bytes(types(tensor), tensor.elements) for tensor in header.tensors)
        return header.fields_end + sum(aligned(each, header.alignment) + 100 for each in sizes)


def _types(header: Header, type_id: int) -> Callable[[Tensor], int]:
    """Which type each tensor gets: matrices that are finer now. The output matrix, and the embeddings where they serve
    as one, stay at 8 bits: it is what llama-quantize protects, too."""
    names = {tensor.name for tensor in header.tensors}
    output = "output.weight" if "output.weight" in names else "token_embd.weight"

    def type_of(tensor: Tensor) -> int:
        wanted = _Q8_0 if tensor.name == output and _bits_of(type_id) < _bits_of(_Q8_0) else type_id
        _, block_elements, _ = TENSOR_TYPES[wanted]
        is_matrix = len(tensor.shape) > 1 and tensor.name.endswith(".weight")
        if not is_matrix or _ROUTERS.search(tensor.name) or tensor.shape[0] % block_elements:
            return tensor.type_id
        is_finer = tensor.type_id in TENSOR_TYPES and _bits_of(tensor.type_id) > _bits_of(wanted)
        return wanted if is_finer else tensor.type_id

    return type_of


def _write_plain(source: Path, name: str, destination: Path) -> None:
    quants, types = load_gguf_package()
    type_id, file_type = PLAIN_TYPES[name]
    with open_gguf(source) as header, destination.open("xb") as output:
        write_gguf(
            header,
            output,
            type_of=_types(header, type_id),
            convert=lambda tensor, wanted: _converted(header, tensor, wanted, quants, types),
            file_type=file_type,
        )
        _settle(output)


def _settle(output: BinaryIO) -> None:
    output.flush()
    os.fsync(output.fileno())


def _converted(header: Header, tensor: Tensor, wanted: int, quants: ModuleType, types: Any) -> bytes:
    """A few rows at a time: a matrix in 32 bits may be larger than the memory."""
    import numpy as np

    row = tensor.shape[0]
    rows_at_once = max(1, CHUNK_ELEMENTS // row)
    row_bytes = tensor_bytes(tensor.type_id, row)
    parts = []
    for start in range(0, tensor.elements // row, rows_at_once):
        # A copy: a view would keep the file's mapping from being closed.
        begin = tensor.start + start * row_bytes
        end = min(begin + rows_at_once * row_bytes, tensor.start + tensor.size_bytes)
        rows = np.frombuffer(header.data[begin:end], dtype=np.uint8).reshape(-1, row_bytes)
        try:
            values = quants.dequantize(rows, types(tensor.type_id))
            parts.append(quants.quantize(values, types(wanted)).tobytes())
        except NotImplementedError:
            raise ModelError(
                f"{tensor.name} is {tensor.type_name}, which the gguf package does not read.",
                hint="give an F16 or Q8_0 file of the same model",
            ) from None
    return b"".join(parts)


def _run_tool(source: Path, name: str, destination: Path) -> None:
    tool = shutil.which(TOOL)
    if tool is None:
        raise ModelError(
            f"{name} is one of llama.cpp's mixes, which {TOOL} makes, and it is not on the PATH.",
            hint=f"put it there (it comes with llama.cpp), or choose one of {', '.join(PLAIN_TYPES)}",
        )
    command = [tool, "--allow-requantize", str(source), str(destination), name.upper()]
    result = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if result.returncode != 0 or not destination.exists():
        tail = " ".join((result.stderr + result.stdout).strip().splitlines()[-TOOL_LINES_SHOWN:])
        raise ModelError(
            f"{TOOL} failed on {source.name}: {tail[-400:] or 'no reason given'}", hint=f"see {tool} --help"
        )
