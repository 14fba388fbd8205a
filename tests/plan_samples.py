"""Models and devices that the tests of plan share, taken from the catalogue."""

from __future__ import annotations

from speclift.core.hardware import Device
from speclift.core.model_shape import KvLayers, ModelShape, ParameterCounts
from speclift.planner.memory import Placed
from speclift.planner.precision import nominal_bytes, precision_named, weights_in
from speclift.weights.catalogue_files import find_gpu, find_model

H200 = find_gpu("h200")


def shape(name: str) -> ModelShape:
    found = find_model(name)
    assert found is not None
    return found.shape()


def placed(name: str, precision: str = "bf16") -> Placed:
    return placed_shape(shape(name), precision)


def placed_shape(model: ModelShape, precision: str = "bf16") -> Placed:
    chosen = precision_named(precision)
    return Placed(
        shape=model,
        weights=weights_in(model, chosen),
        nominal_bytes=nominal_bytes(model.parameters.total, chosen),
    )


def small_shape(*kv: KvLayers, layers: int = 30) -> ModelShape:
    """SmolLM2-135M's attention unless told otherwise."""
    own = kv or (KvLayers(layers=layers, heads=3, key_length=64, value_length=64),)
    counts = ParameterCounts(embedding=28_311_552, head=0, linear=3_538_944 * layers, experts=0, other=35_136)
    return ModelShape(
        name="small", architecture="llama", layers=layers, hidden=576, intermediate=1536, heads=9,
        vocabulary=49_152, max_positions=8192, parameters=counts, kv=own,
    )  # fmt: skip


def cpu(memory_bytes: int = 24 << 30) -> Device:
    return Device(
        name="cpu", title="a CPU", nominal_bytes=memory_bytes, memory_bytes=memory_bytes,
        bandwidth_bytes_s=20e9, flops_16=160e9, is_cpu=True,
    )  # fmt: skip
