"""From what the user typed to a model with shape, weights and tokens: file, folder, Hugging Face cache, catalogue."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from speclift.core.errors import ModelError, UsageError
from speclift.core.model_shape import ModelShape, ParameterCounts, Weights
from speclift.planner.memory import Placed
from speclift.planner.precision import PRECISIONS, nominal_bytes, precision_named, weights_in
from speclift.planner.tokens import TokenComparison, TokenText, compare_tokens, identical
from speclift.weights import hf_folder, models
from speclift.weights.catalogue_files import (
    CatalogueModel,
    catalogue_models,
    find_model,
    recognise,
    unknown_model,
)
from speclift.weights.gguf_file import read_gguf_model, read_vocabulary

# S1: at least three times fewer parameters. More than a few offers are no help.
OFFERED_RATIO_MIN, OFFERED_MAX = 3.0, 3


# What publishers end an id with, for the format that its weights are in already.
_ID_ENDINGS = {
    "fp8": "fp8", "fp8-dynamic": "fp8", "fp8-block": "fp8", "awq": "awq", "awq-int4": "awq", "awq-4bit": "awq",
    "gptq": "gptq", "gptq-int4": "gptq", "gptq-4bit": "gptq", "gptq-int8": "int8", "int4": "int4", "int8": "int8",
    "w4a16": "int4", "w8a8": "int8", "quantized.w4a16": "int4", "quantized.w8a8": "int8", "4bit": "int4",
    "8bit": "int8", "bnb-4bit": "nf4", "nvfp4": "nvfp4", "mxfp4": "mxfp4",
}  # fmt: skip
# A size given by hand: 123B, 7.5b, 350M, 235B-A22B.
_SIZE = re.compile(r"(\d{1,4}(?:\.\d{1,3})?)\s*([bm])(?:-a(\d{1,3}(?:\.\d{1,3})?)b)?", re.IGNORECASE)
SIZE_LARGEST = 5e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A model as found, before a precision was chosen for it."""

    reference: str
    shape: ModelShape
    # Of the files; None where there are none and the format's rules have to do.
    weights: Weights | None
    gguf: Path | None = None
    folder: Path | None = None
    # Equal digests are equal vocabularies.
    digest: str | None = None
    # What was assumed of a model that nobody could read; empty where nothing was.
    assumption: str = ""
    # False where it is a shape without weights that an engine could be told to load.
    is_nameable: bool = True

    @property
    def kind(self) -> str:
        return "gguf" if self.gguf else "hugging-face" if self.folder else "catalogue"


def find_source(reference: str, *, prefers_gguf: bool) -> Source:
    if not reference.strip():
        raise UsageError("no model was given", hint="--target takes a folder, a .gguf file, an id or a name")
    path = _path(reference)
    if path.is_dir():
        return _from_folder(path, reference)
    if path.is_file():
        return _from_folder(path.parent, str(path.parent)) if path.name == "config.json" else _from_gguf(path)
    if path.suffix.lower() == ".gguf" or reference.startswith((".", "/", "~")):
        return _from_gguf(path)  # says what is wrong with it, and which file is near
    cached = hf_folder.hub_folder(reference)
    if cached is not None:
        return _from_folder(cached, reference, name=reference)
    entry = find_model(reference)
    if entry is None and (quantised := _quantised_id(reference)) is not None:
        return quantised
    if entry is None and (sized := _sized(reference)) is not None:
        return sized
    if entry is None:
        raise unknown_model(reference)
    if prefers_gguf and (own := _own_gguf(reference)) is not None:
        return replace(_from_gguf(own), reference=reference)
    return _from_catalogue(entry)


def _path(reference: str) -> Path:
    try:
        return Path(reference).expanduser()
    except RuntimeError as error:
        raise ModelError(f"{reference}: there is no such home directory.", hint="check the path") from error


def _quantised_id(reference: str) -> Source | None:
    """org/Llama-3.1-70B-Instruct-AWQ: the catalogue's shape in the format that the id ends with."""
    for ending in sorted(_ID_ENDINGS, key=len, reverse=True):
        base = reference[: -len(ending) - 1]
        if reference[-len(ending) - 1 :].lower() not in (f"-{ending}", f"_{ending}", f".{ending}"):
            continue
        precision = _ID_ENDINGS[ending]
        if (entry := find_model(base)) is not None:
            shape = replace(entry.shape(), precision=precision)
            return Source(reference=reference, shape=shape, weights=None, is_nameable="/" in reference)
        if (sized := _sized(base)) is not None:
            return replace(sized, reference=reference, shape=replace(sized.shape, precision=precision))
    return None


def _sized(reference: str) -> Source | None:
    """A model of which only the size is known: 123B. The catalogue's nearest one with as many layers as that takes."""
    match = _SIZE.fullmatch(reference.strip())
    if match is None:
        return None
    wanted = float(match[1]) * (1e9 if match[2].lower() == "b" else 1e6)
    active = None if match[3] is None else float(match[3]) * 1e9
    if not 1e6 <= wanted <= SIZE_LARGEST or (active is not None and not 1e6 <= active <= wanted):
        raise UsageError(
            f"{reference!r} is no size of a model", hint="such as 123B, or 235B-A22B with its active part"
        )
    shapes = [entry.shape() for entry in catalogue_models()]
    # Heads that split over any usual group: a guess is no reason to refuse one.
    alike = [shape for shape in shapes if shape.is_moe == (active is not None) and shape.heads % 16 == 0]
    nearest = min(alike, key=lambda shape: abs(math.log(shape.parameters.total / wanted)))
    shape = _stretched(nearest, wanted, active)
    shown = f"{reference.strip()}: only its size is known"
    assumption = (
        f"{shown}; assumed to be built like {nearest.name} with {shape.layers} layers in 16 bits"
        if active is None
        else f"{shown}; assumed to be built like {nearest.name} with {shape.layers} layers in 16 bits, "
        f"{shape.experts_per_token} of {shape.experts} experts per token"
    )
    return Source(
        reference=reference.strip(), shape=shape, weights=None, assumption=assumption, is_nameable=False
    )


def _stretched(shape: ModelShape, wanted: float, active: float | None) -> ModelShape:
    """With layers added or taken, then every matrix scaled by the little that is left."""
    counts = shape.parameters
    inner = counts.linear + counts.experts + counts.other
    ends = counts.embedding + counts.head
    layers = max(1, round(shape.layers * max(wanted - ends, wanted / 2) / inner))
    scale = wanted / (ends + inner * layers / shape.layers)
    grown = scale * layers / shape.layers
    parameters = ParameterCounts(
        embedding=round(counts.embedding * scale),
        head=round(counts.head * scale),
        linear=round(counts.linear * grown),
        experts=round(counts.experts * grown),
        other=round(counts.other * grown),
    )
    per_token = shape.experts_per_token
    if active is not None:
        fixed = parameters.linear + (parameters.head or parameters.embedding)
        per_token = round((active - fixed) / max(1, parameters.experts) * shape.experts)
        per_token = min(max(1, per_token), shape.experts)
    kv_layers = sum(each.layers for each in shape.kv)
    kv = tuple(
        replace(each, layers=max(1, round(each.layers * layers / max(1, kv_layers)))) for each in shape.kv
    )
    return replace(
        shape,
        name=f"{wanted / 1e9:g}B model",
        layers=layers,
        parameters=parameters,
        kv=kv,
        experts_per_token=per_token,
        precision="bf16",
        max_positions=0,  # unknown
        mtp_layers=0,
        family="",
        tokenizer=None,
        source="a size given by hand",
    )


def _own_gguf(reference: str) -> Path | None:
    """The file that speclift's own cache holds under this name."""
    held = [model.path for model in models.list_models() if model.name == reference and model.is_cached]
    return held[0] if held else None


def _from_gguf(path: Path) -> Source:
    shape, weights, digest = read_gguf_model(path)
    known = recognise(shape)
    return Source(
        reference=str(path),
        shape=replace(
            shape,
            family=known.family if known else shape.family,
            tokenizer=known.tokenizer if known else None,
        ),
        weights=weights,
        gguf=path,
        digest=digest or None,
    )


def _from_folder(folder: Path, reference: str, *, name: str | None = None) -> Source:
    shape, weights = hf_folder.read_hf_model(folder, name=name or folder.resolve().name)
    known = recognise(shape)
    return Source(
        reference=reference,
        shape=replace(
            shape,
            family=known.family if known else shape.family,
            tokenizer=known.tokenizer if known else None,
        ),
        weights=weights if weights.is_from_file else None,
        folder=folder,
        digest=hf_folder.tokenizer_digest(folder),
    )


def _from_catalogue(entry: CatalogueModel) -> Source:
    return Source(reference=entry.hugging_face_id, shape=entry.shape(), weights=None)


def place(source: Source, quantisation: str | None, *, flag: str) -> Placed:
    """The model in the asked precision, else in the one its files are in."""
    if quantisation is not None and source.gguf is not None:
        raise UsageError(
            f"{flag} cannot change {source.gguf.name}: a GGUF file has fixed types",
            hint=f"leave {flag} out, or give a model name instead of the file",
        )
    stored = source.shape.precision
    if quantisation is None and source.weights is not None:
        weights = source.weights
        nominal = nominal_bytes(source.shape.parameters.total, PRECISIONS[stored]) if stored in PRECISIONS else (
            weights.total
        )  # fmt: skip
        return Placed(shape=source.shape, weights=weights, nominal_bytes=nominal)
    precision = precision_named(quantisation or stored, flag=flag)
    weights = weights_in(source.shape, precision)
    if precision.name == stored and source.weights is not None:
        weights = source.weights
    nominal = nominal_bytes(source.shape.parameters.total, precision)
    return Placed(shape=source.shape, weights=weights, nominal_bytes=nominal)


def compare_sources(target: Source, draft: Source) -> TokenComparison | None:
    """Token by token where both come with their tokens."""
    if target.kind == draft.kind and target.digest is not None and target.digest == draft.digest:
        return identical(target.shape.vocabulary)
    ours, theirs = _tokens(target), _tokens(draft)
    if ours is None or theirs is None:
        return None
    return compare_tokens(ours, theirs)


def _tokens(source: Source) -> tuple[TokenText | None, ...] | None:
    if source.gguf is not None:
        return read_vocabulary(source.gguf).tokens if source.digest else None
    return hf_folder.read_tokens(source.folder) if source.folder is not None else None


def offered_drafts(target: ModelShape, *, without: Sequence[ModelShape]) -> tuple[Source, ...]:
    """Smaller models of the same family and tokenizer that the catalogue knows, largest first."""
    sizes = {shape.parameters.total for shape in without}
    found = [
        _from_catalogue(entry)
        for entry in catalogue_models()
        if target.tokenizer == entry.tokenizer
        and entry.family == target.family
        and entry.parameters not in sizes
        and entry.parameters * OFFERED_RATIO_MIN <= target.parameters.total
    ]
    # Of releases with one shape the newest, which stands last.
    distinct = {source.shape.parameters.total: source for source in found}
    return tuple(sorted(distinct.values(), key=lambda source: -source.shape.parameters.total))[:OFFERED_MAX]
