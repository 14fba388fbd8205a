"""Bytes of weights in a precision: nominal as the articles reckon, and by the storage rules of each format. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from speclift.core.errors import unknown_name
from speclift.core.model_shape import ModelShape, ParameterCounts, Weights
from speclift.core.units import Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """`nominal_bits` is the rule of thumb; the others are what a file or a GPU really holds."""

    name: str
    nominal_bits: float
    linear_bits: float
    expert_bits: float
    embedding_bits: float
    head_bits: float
    other_bits: float
    math_bits: int
    note: str
    # A type of llama.cpp's files.
    is_gguf: bool = False


def _plain(name: str, bits: int, math_bits: int, note: str) -> Precision:
    return Precision(
        name=name, nominal_bits=bits, linear_bits=bits, expert_bits=bits, embedding_bits=bits,
        head_bits=bits, other_bits=bits, math_bits=math_bits, note=note,
    )  # fmt: skip


def _gpu(name: str, nominal: float, stored: float, math_bits: int, note: str) -> Precision:
    """vLLM's quantised linear layers: embedding, head, norms and routers stay in 16 bits."""
    return Precision(
        name=name, nominal_bits=nominal, linear_bits=stored, expert_bits=stored, embedding_bits=16,
        head_bits=16, other_bits=16, math_bits=math_bits, note=note,
    )  # fmt: skip


def _gguf(name: str, nominal: float, bits: float, head_bits: float, embedding_bits: float) -> Precision:
    """llama.cpp's quantiser: norms and biases in 32 bits, the head in a type of its own."""
    note = "llama.cpp, src/llama-quant.cpp (b10586): block sizes of ggml-common.h; mixed types by their usual share"
    return Precision(
        name=name, nominal_bits=nominal, linear_bits=bits, expert_bits=bits, embedding_bits=embedding_bits,
        head_bits=head_bits, other_bits=32, math_bits=16, note=note, is_gguf=True,
    )  # fmt: skip


_Q6_K_BITS = 210 * 8 / 256
_GROUP_128 = 4 + 16 / 128  # a 16-bit scale per 128 weights

# S4: BF16 2, INT8 and FP8 1, INT4 0.5 bytes per parameter.
PRECISIONS: dict[str, Precision] = {
    precision.name: precision
    for precision in (
        _plain("fp32", 32, 16, "every tensor in 32 bits"),
        _plain("bf16", 16, 16, "every tensor in 16 bits"),
        _plain("fp16", 16, 16, "every tensor in 16 bits"),
        _gpu("fp8", 8, 8, 8, "one scale per channel or 128 x 128 block, under 0.1 %"),
        _gpu("int8", 8, 8, 8, "W8A8, one scale per channel"),
        _gpu("int4", 4, _GROUP_128, 16, "weight only, groups of 128 with a 16-bit scale"),
        _gpu("gptq", 4, _GROUP_128 + 4 / 128, 16, "groups of 128 with scale and zero point"),
        _gpu("awq", 4, _GROUP_128 + 4 / 128, 16, "groups of 128 with scale and zero point"),
        _gpu("nf4", 4, 4 + 8 / 64 + 32 / (64 * 256), 16, "bitsandbytes, blocks of 64, double quantised scales"),
        _gpu("nvfp4", 4, 4 + 8 / 16, 4, "blocks of 16 with an 8-bit scale"),
        Precision(
            name="mxfp4", nominal_bits=4, linear_bits=16, expert_bits=4 + 8 / 32, embedding_bits=16, head_bits=16,
            other_bits=16, math_bits=16, note="experts in blocks of 32 with an 8-bit scale, all else in 16 bits",
        ),
        _gguf("q4_0", 4, 4.5, _Q6_K_BITS, 4.5),
        _gguf("q4_1", 4, 5.0, _Q6_K_BITS, 5.0),
        _gguf("q5_0", 5, 5.5, _Q6_K_BITS, 5.5),
        _gguf("q5_1", 5, 6.0, _Q6_K_BITS, 6.0),
        _gguf("q8_0", 8, 8.5, 8.5, 8.5),
        _gguf("q6_k", 6, _Q6_K_BITS, _Q6_K_BITS, _Q6_K_BITS),
        # Half of the value and down projections, about a seventh of all weights, are Q6_K.
        _gguf("q4_k_m", 4, 4.5 + (_Q6_K_BITS - 4.5) / 7, _Q6_K_BITS, 4.5),
        _gguf("q5_k_m", 5, 5.5 + (_Q6_K_BITS - 5.5) / 7, _Q6_K_BITS, 5.5),
    )
}  # fmt: skip
_ALIASES = {
    "bfloat16": "bf16", "float16": "fp16", "f16": "fp16", "half": "fp16", "float32": "fp32", "f32": "fp32",
    "w8a8": "int8", "w4a16": "int4", "bitsandbytes": "nf4", "bnb": "nf4", "fp8_e4m3": "fp8", "8bit": "int8",
    "4bit": "int4", "fp4": "nvfp4", "modelopt_fp4": "nvfp4", "autoawq": "awq",
}  # fmt: skip


def precision_named(name: str, *, flag: str = "precision") -> Precision:
    word = name.strip().lower()
    word = _ALIASES.get(word, word)
    if word not in PRECISIONS:
        raise unknown_name(what=flag, seen=name, allowed=PRECISIONS)
    return PRECISIONS[word]


def nominal_bytes(parameters: int, precision: Precision) -> Bytes:
    """Parameters times bytes, as S4 reckons."""
    return round(parameters * precision.nominal_bits / 8)


def weights_in(shape: ModelShape, precision: Precision) -> Weights:
    """By the format's storage rules. Where head and embedding are one tensor it has the wider type."""
    counts: ParameterCounts = shape.parameters
    tied_bits = max(precision.embedding_bits, precision.head_bits)
    embedding_bits = tied_bits if shape.is_tied else precision.embedding_bits
    return Weights(
        precision=precision.name,
        embedding=round(counts.embedding * embedding_bits / 8),
        head=round(counts.head * precision.head_bits / 8),
        linear=round(counts.linear * precision.linear_bits / 8),
        experts=round(counts.experts * precision.expert_bits / 8),
        other=round(counts.other * precision.other_bits / 8),
        math_bits=precision.math_bits,
    )
