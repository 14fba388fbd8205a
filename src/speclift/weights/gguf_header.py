"""Reads the header of a GGUF file: its fields and where its tensors lie.

Memory-mapped, so a file of many gigabytes costs the same as a small one. Parsed here rather than with the
gguf package: its reader takes 2 s for a vocabulary of 49,152 tokens and, given the counts of a damaged file,
goes on past the end of it.
"""

from __future__ import annotations

import difflib
import math
import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from speclift.core.errors import ModelError
from speclift.core.units import Bytes
from speclift.planner.tokens import TokenText

DOWNLOAD_AGAIN = "download the file again; it is damaged or incomplete"

# llama.cpp b10586, ggml/src/gguf.cpp: version 1 is refused, 3 is the newest; 2 and 3 share their layout.
SUPPORTED_VERSIONS = (2, 3)
ALIGNMENT_DEFAULT = 32
# A page; files in use have 32 or 64.
ALIGNMENT_MAX = 4096
DIMENSION_COUNT_MAX = 4
# Far above any model; they keep a damaged count from filling the memory.
DIMENSION_MAX = 1 << 30
LAYERS_MAX = 1 << 12

# Value type ids of ggml/include/gguf.h.
_INTEGER_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 10: "Q", 11: "q"}
_SCALAR_FORMATS = _INTEGER_FORMATS | {6: "f", 7: "?", 12: "d"}
STRING = 8
_ARRAY = 9
_LENGTH = struct.Struct("<Q")

# Tensor types: id -> name, elements per block, bytes per block (ggml/include/ggml.h, ggml-common.h).
TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18),
}  # fmt: skip

_WRONG_MAGIC_HINTS = (
    (b"version https://git-lfs", "this is a Git LFS pointer; fetch the file itself with 'git lfs pull'"),
    (b"<", "this looks like a web page; download the file itself, not the page about it"),
    (b"PK\x03\x04", "this looks like a PyTorch or zip file; convert the model to GGUF first"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    name: str
    shape: tuple[int, ...]
    type_id: int
    start: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> Bytes:
        return tensor_bytes(self.type_id, self.elements)

    @property
    def type_name(self) -> str:
        return TENSOR_TYPES[self.type_id][0] if self.type_id in TENSOR_TYPES else f"type {self.type_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """Arrays are located, not read: a vocabulary is decoded only when somebody asks for it."""

    item_type: int
    count: int
    start: int
    end: int


FieldValue: TypeAlias = int | float | str | Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    path: Path
    data: mmap.mmap
    fields: dict[str, FieldValue]
    positions: dict[str, int]
    fields_end: int
    alignment: int
    tensors: tuple[Tensor, ...]

    def text(self, key: str) -> str:
        value = self.fields.get(key, "")
        return value if isinstance(value, str) else ""

    def number(self, key: str) -> int | None:
        value = self.fields.get(key)
        return value if isinstance(value, int) else None

    def positive(self, key: str, *, maximum: int = DIMENSION_MAX) -> int:
        value = self.number(key) or 0
        if not 0 < value <= maximum:
            seen = self.fields.get(key, "missing")
            raise ModelError(
                f"{self.path} does not describe a language model: {key} is {seen}.",
                hint="give the GGUF file of the language model, not of a projector or adapter",
            )
        return value

    def per_layer(self, key: str, *, layers: int) -> tuple[int, ...]:
        value = self.fields.get(key)
        if isinstance(value, Array) and value.item_type in _INTEGER_FORMATS:
            cursor = _Cursor(path=self.path, data=self.data, position=value.start)
            return cursor.unpack(f"{value.count}{_INTEGER_FORMATS[value.item_type]}")
        number = self.number(key)
        return () if number is None else (number,) * layers

    def texts(self, array: Array) -> tuple[TokenText, ...]:
        cursor = _Cursor(path=self.path, data=self.data, position=array.start)
        return tuple(_decoded(cursor.string()) for _ in range(array.count))


@contextmanager
def open_gguf(path: Path) -> Iterator[Header]:
    try:
        _refuse_what_is_no_file(path)
        stream = path.open("rb")
    except OSError as error:
        raise ModelError(
            f"{path} cannot be read: {error.strerror}.", hint="check the path and its permissions"
        ) from error
    with stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        yield _parse(path, data)


def _refuse_what_is_no_file(path: Path) -> None:
    if path.is_dir():
        inside = ", ".join(sorted(entry.name for entry in path.glob("*.gguf"))[:3])
        hint = f"give one of the files in it: {inside}" if inside else "give the path of a .gguf file"
        raise ModelError(f"{path} is a directory, not a GGUF file.", hint=hint)
    if not path.exists():
        beside = [entry.name for entry in path.parent.glob("*.gguf")]
        near = difflib.get_close_matches(path.name, beside, n=1)
        hint = (
            f"did you mean {path.with_name(near[0])}?" if near else "give the path of an existing .gguf file"
        )
        raise ModelError(f"{path} does not exist.", hint=hint)
    if path.stat().st_size == 0:
        raise ModelError(f"{path} is empty.", hint=DOWNLOAD_AGAIN)


def _parse(path: Path, data: mmap.mmap) -> Header:
    _refuse_foreign_format(path, data)
    cursor = _Cursor(path=path, data=data, position=8)
    tensor_count, field_count = cursor.unpack("2Q")
    fields: dict[str, FieldValue] = {}
    positions: dict[str, int] = {}
    for _ in range(field_count):
        key = cursor.string().decode(errors="replace")
        (type_id,) = cursor.unpack("I")
        positions[key] = cursor.position
        fields[key] = cursor.value(type_id)
    fields_end = cursor.position
    alignment = fields.get("general.alignment", ALIGNMENT_DEFAULT)
    if not isinstance(alignment, int) or not 0 < alignment <= ALIGNMENT_MAX:
        raise cursor.damaged(f"its alignment is {alignment}")
    listed = [cursor.tensor() for _ in range(tensor_count)]
    data_start = aligned(cursor.position, alignment)
    return Header(
        path=path,
        data=data,
        fields=fields,
        positions=positions,
        fields_end=fields_end,
        alignment=alignment,
        tensors=tuple(replace(tensor, start=data_start + tensor.start) for tensor in listed),
    )


def _refuse_foreign_format(path: Path, data: mmap.mmap) -> None:
    if data[:4] != b"GGUF":
        hint = next(
            (hint for start, hint in _WRONG_MAGIC_HINTS if data[: len(start)] == start),
            "give a model in GGUF format",
        )
        raise ModelError(f"{path} is not a GGUF file: it starts with {data[:4]!r}, not b'GGUF'.", hint=hint)
    number = int.from_bytes(data[4:8], "little")
    if number in SUPPORTED_VERSIONS:
        return
    if len(data) >= 8 and number & 0xFFFF == 0:
        raise ModelError(f"{path} was written for big-endian machines.", hint="convert the model again here")
    raise ModelError(
        f"{path} has GGUF version {number}; versions 2 and 3 are supported.",
        hint="convert the model again with a current llama.cpp",
    )


@dataclass(slots=True, kw_only=True)
class _Cursor:
    """A reading position that never goes past the end, whatever the counts in a damaged file say."""

    path: Path
    data: mmap.mmap
    position: int

    def damaged(self, what: str) -> ModelError:
        return ModelError(f"{self.path} is damaged: {what}.", hint=DOWNLOAD_AGAIN)

    def advance(self, size: int) -> int:
        start = self.position
        if size > len(self.data) - start:
            raise ModelError(
                f"{self.path} is truncated: its header goes on beyond the end of the file "
                f"at byte {len(self.data)}.",
                hint=DOWNLOAD_AGAIN,
            )
        self.position += size
        return start

    def unpack(self, layout: str) -> tuple[Any, ...]:
        layout = f"<{layout}"
        return struct.unpack_from(layout, self.data, self.advance(struct.calcsize(layout)))

    def string(self) -> bytes:
        start = self.skip_string()
        return self.data[start : self.position]

    def skip_string(self) -> int:
        (length,) = _LENGTH.unpack_from(self.data, self.advance(_LENGTH.size))
        return self.advance(length)

    def skip_strings(self, count: int) -> None:
        """As skip_string, without its calls: a vocabulary with its merges has half a million of them."""
        data, position, length_at = self.data, self.position, _LENGTH.unpack_from
        last_length = len(data) - _LENGTH.size
        for _ in range(count):
            if position > last_length:
                break
            position += _LENGTH.size + length_at(data, position)[0]
        else:
            self.advance(position - self.position)
            return
        self.advance(len(data))  # says that the file is truncated

    def value(self, type_id: int) -> FieldValue:
        if type_id in _SCALAR_FORMATS:
            scalar: int | float = self.unpack(_SCALAR_FORMATS[type_id])[0]
            return scalar
        if type_id == STRING:
            return self.string().decode(errors="replace")
        if type_id != _ARRAY:
            raise self.damaged(f"a field has the unknown type {type_id}")
        item_type, count = self.unpack("IQ")
        start = self.position
        if item_type in _SCALAR_FORMATS:
            self.advance(count * struct.calcsize(_SCALAR_FORMATS[item_type]))
        elif item_type == STRING:
            self.skip_strings(count)
        else:
            raise self.damaged(f"an array holds values of the unknown type {item_type}")
        return Array(item_type=item_type, count=count, start=start, end=self.position)

    def tensor(self) -> Tensor:
        """As listed: `start` counts from the beginning of the tensor data."""
        name = self.string().decode(errors="replace")
        (dimension_count,) = self.unpack("I")
        if dimension_count > DIMENSION_COUNT_MAX:
            raise self.damaged(f"tensor {name!r} has {dimension_count} dimensions")
        shape = self.unpack(f"{dimension_count}Q")
        type_id, start = self.unpack("IQ")
        return Tensor(name=name, shape=shape, type_id=type_id, start=start)


def _decoded(raw: bytes) -> TokenText:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def tensor_bytes(type_id: int, elements: int) -> Bytes:
    # A type newer than the table cannot be measured, and is no reason to refuse a file an engine may know.
    _, block_elements, block_bytes = TENSOR_TYPES.get(type_id, ("", 1, 0))
    return -(-elements // block_elements) * block_bytes


def aligned(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment
