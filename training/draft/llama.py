"""A Llama in plain PyTorch: small enough to read, with the two things the distillation needs, hidden states for a
batch of texts and sampling for thousands of texts at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    vocabulary: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    feed_forward: int
    head_width: int = 64
    eps: float = 1e-5
    theta: float = 100_000.0


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        queries, keys = shape.heads * shape.head_width, shape.kv_heads * shape.head_width
        self.attention_norm = nn.Parameter(torch.ones(shape.width))
        self.q = nn.Linear(shape.width, queries, bias=False)
        self.k = nn.Linear(shape.width, keys, bias=False)
        self.v = nn.Linear(shape.width, keys, bias=False)
        self.o = nn.Linear(queries, shape.width, bias=False)
        self.mlp_norm = nn.Parameter(torch.ones(shape.width))
        self.gate = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.up = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.down = nn.Linear(shape.feed_forward, shape.width, bias=False)

    def forward(
        self,
        x: Tensor,
        turn: tuple[Tensor, Tensor],
        cache: Tensor | None = None,
        at: int = 0,
        mask: Tensor | None = None,
    ) -> Tensor:
        rows, length, _ = x.shape
        normed = F.rms_norm(x, (x.shape[-1],), self.attention_norm.to(x.dtype), self.shape.eps)
        q = _turned(self.q(normed).view(rows, length, self.shape.heads, -1).transpose(1, 2), turn)
        k = _turned(self.k(normed).view(rows, length, self.shape.kv_heads, -1).transpose(1, 2), turn)
        v = self.v(normed).view(rows, length, self.shape.kv_heads, -1).transpose(1, 2)
        if cache is not None:
            cache[0, :, :, at : at + length] = k
            cache[1, :, :, at : at + length] = v
        if length == 1 and cache is not None:
            mixed = self._one_token(q, cache, at, mask)
        else:
            group = self.shape.heads // self.shape.kv_heads
            mixed = F.scaled_dot_product_attention(
                q,
                k.repeat_interleave(group, 1),
                v.repeat_interleave(group, 1),
                attn_mask=mask,
                is_causal=mask is None,
            )
        x = x + self.o(mixed.transpose(1, 2).reshape(rows, length, -1))
        normed = F.rms_norm(x, (x.shape[-1],), self.mlp_norm.to(x.dtype), self.shape.eps)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))

    def _one_token(self, q: Tensor, cache: Tensor, at: int, mask: Tensor | None) -> Tensor:
        """Attention of one new token per row. The queries that share a key head stand as so many positions, so that
        the cache is read once; its length is a multiple of 8, which the fast kernel wants."""
        rows, kv_heads, _, width = cache.shape[1:]
        until = -(-(at + 1) // 8) * 8
        together = q.reshape(rows, kv_heads, -1, width)
        seen = (
            None if mask is None else mask[:, None, None, :until].expand(-1, kv_heads, together.shape[2], -1)
        )
        mixed = F.scaled_dot_product_attention(
            together, cache[0, :, :, :until], cache[1, :, :, :until], attn_mask=seen
        )
        return mixed.reshape(rows, self.shape.heads, 1, width)


class Llama(nn.Module):
    """Input and output share one embedding."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Parameter(torch.randn(shape.vocabulary, shape.width) * 0.02)
        self.stack = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.Parameter(torch.ones(shape.width))

    def hidden(
        self, tokens: Tensor, cache: Tensor | None = None, at: int = 0, mask: Tensor | None = None
    ) -> Tensor:
        """States that the embedding turns into logits. Rows are padded at the end (no mask) or the start (mask)."""
        x = F.embedding(tokens, self.embedding)
        if torch.is_autocast_enabled(tokens.device.type):
            x = x.to(torch.bfloat16)
        turn = _turn(self.shape, at, tokens.shape[1], tokens.device, x.dtype)
        for number, layer in enumerate(self.stack):
            x = layer(x, turn, None if cache is None else cache[number], at, mask)
        return F.rms_norm(x, (x.shape[-1],), self.norm.to(x.dtype), self.shape.eps)

    @torch.no_grad()
    def sample(
        self, prompts: Sequence[Sequence[int]], temperatures: Sequence[float], *, max_tokens: int, end: int
    ) -> list[list[int]]:
        """Answers, without the end token where one was said; a row that is told to stop late ends at `max_tokens`."""
        device = self.embedding.device
        rows, width = len(prompts), max(map(len, prompts))
        tokens = torch.tensor(
            [[end] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=device
        )
        empty = torch.tensor([width - len(prompt) for prompt in prompts], device=device)
        length = -(-(width + max_tokens) // 8) * 8
        places = torch.arange(length, device=device)
        # What may not be seen: places before the prompt, and those not written yet.
        pad = torch.zeros(rows, length, device=device, dtype=self.embedding.dtype)
        pad.masked_fill_((places < empty[:, None]) | (places >= width), -torch.inf)
        shape = self.shape
        cache = torch.zeros(
            shape.layers,
            2,
            rows,
            shape.kv_heads,
            length,
            shape.head_width,
            device=device,
            dtype=self.embedding.dtype,
        )
        state = self._prefill(tokens, pad, cache)
        heat = torch.tensor(temperatures, device=device)[:, None]
        said = torch.full((rows, max_tokens), end, device=device)
        ended = torch.zeros(rows, dtype=torch.bool, device=device)
        for place in range(max_tokens):
            chosen = _chosen((state @ self.embedding.T).float(), heat).masked_fill(ended, end)
            said[:, place] = chosen
            ended |= chosen == end
            if place + 1 == max_tokens or (place % 16 == 15 and bool(ended.all())):
                break
            pad[:, width + place] = 0
            state = self.hidden(chosen[:, None], cache, width + place, pad)[:, 0]
        return [row[: row.index(end)] if end in row else row for row in said.tolist()]

    def _prefill(self, tokens: Tensor, pad: Tensor, cache: Tensor, rows_at_once: int = 512) -> Tensor:
        width = tokens.shape[1]
        causal = torch.ones(width, width, dtype=torch.bool, device=tokens.device).tril()
        itself = torch.eye(width, dtype=torch.bool, device=tokens.device)
        last = []
        for start in range(0, len(tokens), rows_at_once):
            part = slice(start, start + rows_at_once)
            # A padded place sees itself, so that no row of the softmax is empty.
            mask = (causal & (pad[part, None, :width] == 0)) | itself
            last.append(self.hidden(tokens[part], cache[:, :, part], 0, mask[:, None])[:, -1])
        return torch.cat(last)


def _chosen(logits: Tensor, heat: Tensor) -> Tensor:
    """The likeliest where the temperature is 0, else a draw (the largest of Gumbel-shifted logits)."""
    noise = -torch.empty_like(logits).exponential_().log_()
    return torch.where(heat > 0, logits / heat.clamp(min=1e-3) + noise, logits).argmax(-1)


def _turn(
    shape: Shape, at: int, length: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    half = torch.arange(0, shape.head_width, 2, device=device) / shape.head_width
    angles = torch.outer(torch.arange(at, at + length, device=device), shape.theta**-half)
    angles = torch.cat([angles, angles], -1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def _turned(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    left, right = x.chunk(2, -1)
    return x * turn[0] + torch.cat([-right, left], -1) * turn[1]


# A layer's tensors here and in a Hugging Face folder; GGUF has the same matrices under other names.
LAYER_NAMES = {
    "attention_norm": ("input_layernorm.weight", "attn_norm.weight"),
    "q.weight": ("self_attn.q_proj.weight", "attn_q.weight"),
    "k.weight": ("self_attn.k_proj.weight", "attn_k.weight"),
    "v.weight": ("self_attn.v_proj.weight", "attn_v.weight"),
    "o.weight": ("self_attn.o_proj.weight", "attn_output.weight"),
    "mlp_norm": ("post_attention_layernorm.weight", "ffn_norm.weight"),
    "gate.weight": ("mlp.gate_proj.weight", "ffn_gate.weight"),
    "up.weight": ("mlp.up_proj.weight", "ffn_up.weight"),
    "down.weight": ("mlp.down_proj.weight", "ffn_down.weight"),
}


def read_target(path: Path) -> Llama:
    """The target as llama.cpp runs it: quantised weights, multiplied out."""
    from gguf import GGUFReader
    from gguf.quants import dequantize

    reader = GGUFReader(path)

    def field(name: str) -> float:
        return float(reader.fields[f"llama.{name}"].contents())

    tensors = {tensor.name: tensor for tensor in reader.tensors}
    width = int(field("embedding_length"))
    shape = Shape(
        vocabulary=int(tensors["token_embd.weight"].shape[1]),
        width=width,
        layers=int(field("block_count")),
        heads=int(field("attention.head_count")),
        kv_heads=int(field("attention.head_count_kv")),
        feed_forward=int(field("feed_forward_length")),
        head_width=width // int(field("attention.head_count")),
        eps=field("attention.layer_norm_rms_epsilon"),
        theta=field("rope.freq_base"),
    )

    def weights(name: str) -> Tensor:
        tensor = tensors[name]
        return torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))

    state = {"embedding": weights("token_embd.weight"), "norm": weights("output_norm.weight")}
    for layer in range(shape.layers):
        for own, (_, theirs) in LAYER_NAMES.items():
            values = weights(f"blk.{layer}.{theirs}")
            if own in {"q.weight", "k.weight"}:
                heads = shape.heads if own.startswith("q") else shape.kv_heads
                values = _halves(values, heads)
            state[f"stack.{layer}.{own}"] = values
    model = Llama(shape)
    model.load_state_dict(state)
    return model


def _halves(weights: Tensor, heads: int) -> Tensor:
    """GGUF has the two halves of a rotated head by turns; here, as in Hugging Face folders, one follows the other."""
    rows, columns = weights.shape
    return weights.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)
