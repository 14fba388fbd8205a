"""The shape of a language model, as far as memory and step time depend on it."""

from __future__ import annotations

from dataclasses import dataclass

from speclift.core.units import Bytes, Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCounts:
    """Parameters by the part they play. `head` is 0 where the output head is the embedding (tied)."""

    embedding: int
    head: int
    # Matrices of attention and of dense or shared feed-forward parts: what quantisation shrinks.
    linear: int
    # All routed experts of all layers.
    experts: int
    # Norms, biases, routers and the like, which formats leave in 16 or 32 bits.
    other: int

    @property
    def total(self) -> int:
        return self.embedding + self.head + self.linear + self.experts + self.other


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLayers:
    """Layers that keep keys and values alike. A latent cache (MLA) has one head and no values of its own."""

    layers: int
    heads: int
    key_length: int
    value_length: int
    # Tokens that a sliding window keeps; None keeps all.
    window: Tokens | None = None
    is_latent: bool = False

    @property
    def values_per_token(self) -> int:
        """Numbers one layer stores per token."""
        return self.heads * (self.key_length + self.value_length)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    name: str
    architecture: str
    layers: int
    hidden: int
    # Widest feed-forward layer that one token passes through, experts taken together.
    intermediate: int
    heads: int
    vocabulary: int
    max_positions: Tokens
    parameters: ParameterCounts
    kv: tuple[KvLayers, ...]
    # Recurrent layers keep a state per sequence instead of keys and values per token.
    state_bytes_per_sequence: Bytes = 0
    experts: int = 0
    experts_per_token: int = 0
    # Layers beyond these that were trained to guess further tokens (MTP); 0 where the config names none.
    mtp_layers: int = 0
    # What the published weights are stored in.
    precision: str = "bf16"
    # Models of one family share tokenizer and training; the tokenizer's name where it is known.
    family: str = ""
    tokenizer: str | None = None
    source: str = ""

    @property
    def is_moe(self) -> bool:
        return self.experts > 0

    @property
    def is_tied(self) -> bool:
        return self.parameters.head == 0

    @property
    def active_parameters(self) -> int:
        """Parameters one token is multiplied with: the embedding is looked up, not multiplied."""
        head = self.parameters.embedding if self.is_tied else self.parameters.head
        share = self.experts_per_token / self.experts if self.experts else 0.0
        return self.parameters.linear + head + round(self.parameters.experts * share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Bytes of a model's weights in one precision, by the part they play."""

    precision: str
    embedding: Bytes
    head: Bytes
    linear: Bytes
    experts: Bytes
    other: Bytes
    # Bits the matrix units multiply with: 16, 8 or 4.
    math_bits: int
    # Read from the file's own headers, or reckoned from the shape by the rules of the format.
    is_from_file: bool = False

    @property
    def total(self) -> Bytes:
        return self.embedding + self.head + self.linear + self.experts + self.other

    @property
    def read_every_step(self) -> Bytes:
        """What each forward pass reads whatever the batch; routed experts come on top."""
        return self.linear + self.other + (self.head or self.embedding)
