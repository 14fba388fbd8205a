"""The built-in tables of well-known model shapes and GPUs, each row with its source, read as package data."""

from __future__ import annotations

import difflib
import functools
import json
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from msgspec import field

from speclift.core.document import Document, read
from speclift.core.errors import UsageError
from speclift.core.hardware import Device
from speclift.core.model_shape import ModelShape
from speclift.planner.config_shape import shape_from_config

NEAREST_SHOWN = 3
_GIB = 1 << 30
# What publishers add to a name without changing the shape.
_DECORATION = re.compile(r"[-_](instruct|chat|it|hf|base|pt|bf16|gguf|text)(?=$|[-_])")


class CatalogueModel(Document, frozen=True, kw_only=True):
    name: str
    hugging_face_id: str = field(name="hf")
    family: str
    tokenizer: str
    # As published; the tests hold the shape to it.
    parameters: int
    aliases: tuple[str, ...]
    config: dict[str, Any]
    source: str

    def shape(self) -> ModelShape:
        return shape_from_config(
            self.config, name=self.name, source=self.source, family=self.family, tokenizer=self.tokenizer
        )


class _Gpu(Document, frozen=True, kw_only=True):
    name: str
    title: str
    nominal_gb: float
    memory_gib: float
    bandwidth_gb_s: float
    tflops_16: float
    tflops_8: float
    tflops_4: float
    link_gb_s: float
    link_latency_us: float
    aliases: tuple[str, ...]
    # Names its driver gives.
    nvml: tuple[str, ...]
    source: str

    def device(self) -> Device:
        return Device(
            name=self.name,
            title=self.title,
            nominal_bytes=round(self.nominal_gb * 1e9),
            memory_bytes=round(self.memory_gib * _GIB),
            bandwidth_bytes_s=self.bandwidth_gb_s * 1e9,
            flops_16=self.tflops_16 * 1e12,
            flops_8=self.tflops_8 * 1e12,
            flops_4=self.tflops_4 * 1e12,
            link_bytes_s=self.link_gb_s * 1e9,
            link_latency_s=self.link_latency_us * 1e-6,
            source=self.source,
        )


@functools.cache
def catalogue_models() -> tuple[CatalogueModel, ...]:
    return read(tuple[CatalogueModel, ...], json.loads(_table("models.json"))["models"])


@functools.cache
def _gpus() -> tuple[_Gpu, ...]:
    return read(tuple[_Gpu, ...], json.loads(_table("gpus.json"))["gpus"])


def catalogue_gpus() -> tuple[Device, ...]:
    return tuple(gpu.device() for gpu in _gpus())


def find_model(reference: str) -> CatalogueModel | None:
    """By name, alias or Hugging Face id, whatever case and whichever of its variants."""
    wanted = _squeezed(reference)
    for model in catalogue_models():
        known = (model.name, model.hugging_face_id, *model.aliases)
        if wanted in {_squeezed(each) for each in known}:
            return model
    return None


@functools.cache
def _shapes() -> tuple[tuple[CatalogueModel, ModelShape], ...]:
    return tuple((model, model.shape()) for model in catalogue_models())


def recognise(shape: ModelShape) -> CatalogueModel | None:
    """The catalogue row with this shape and, where several have it, the one whose name is nearest."""
    same = [
        model
        for model, own in _shapes()
        if own.layers == shape.layers
        and (own.hidden, own.heads, own.vocabulary) == (shape.hidden, shape.heads, shape.vocabulary)
        and own.kv == shape.kv
    ]
    names = [model.name for model in same]
    near = difflib.get_close_matches(_plain(shape.name), names, n=1, cutoff=0.0)
    return next((model for model in same if model.name in near), None)


def find_gpu(reference: str) -> Device:
    """By name, alias or the name its driver gives."""
    wanted = _plain(reference)
    for gpu in _gpus():
        if _squeezed(reference) in {
            _squeezed(name) for name in (gpu.name, gpu.title, *gpu.aliases, *gpu.nvml)
        }:
            return gpu.device()
    names = [gpu.name for gpu in _gpus()]
    aliases = {_plain(alias): gpu.name for gpu in _gpus() for alias in gpu.aliases}
    nearest = _nearest(wanted, {name: name for name in names} | aliases)
    raise UsageError(
        f"unknown GPU {reference!r}.{nearest}", hint=f"known: {', '.join(names)}; or cpu for this machine"
    )


def unknown_model(reference: str) -> UsageError:
    known = {
        _plain(each): model.name for model in catalogue_models() for each in (model.name, *model.aliases)
    }
    names = ", ".join(model.name for model in catalogue_models())
    return UsageError(
        f"unknown model {reference!r}.{_nearest(_plain(reference), known)}",
        hint="give a Hugging Face folder, an id in the local Hugging Face cache, a .gguf file, "
        f"or one of the catalogue: {names}",
    )


def _nearest(wanted: str, known: Mapping[str, str]) -> str:
    near = difflib.get_close_matches(wanted, known, n=NEAREST_SHOWN, cutoff=0.45)
    names = list(dict.fromkeys(known[each] for each in near))
    return f" Did you mean {_or(names)}?" if names else ""


def _or(names: list[str]) -> str:
    quoted = [repr(name) for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"


def _plain(reference: str) -> str:
    """meta-llama/Meta-Llama-3.1-70B-Instruct and 'Llama 3.1 70B' are both llama-3.1-70b."""
    word = reference.strip().rstrip("/").rpartition("/")[2].lower()
    word = re.sub(r"[\s_]+", "-", word).removeprefix("meta-").removeprefix("nvidia-")
    while (shorter := _DECORATION.sub("", word)) != word:
        word = shorter
    return word


def _squeezed(reference: str) -> str:
    """'Qwen 2.5 72B' is qwen2.5-72b: nobody agrees on where the hyphens go."""
    return _plain(reference).replace("-", "")


def _table(name: str) -> str:
    return files("speclift.weights").joinpath("catalogue", name).read_text(encoding="utf-8")
