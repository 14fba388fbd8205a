"""How the draft learns from the target: losses on whole distributions, without ever keeping one.

The logits of a batch would fill the card, so each piece of them is turned into its slope and dropped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from llama import Llama, Shape

POSITIONS_AT_ONCE = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How one student learns."""

    name: str
    shape: Shape
    # The share of training after which forward KL has given way to total variation; None: never.
    distance_from: float | None = None
    # The power that the target's distribution is raised to: above 1 for a draft that serves greedy text.
    sharpness: float = 1.0
    muon: bool = False
    rate: float = 3e-3


@dataclass(slots=True)
class Student:
    recipe: Recipe
    model: Llama
    optimisers: list[torch.optim.Optimizer]
    curve: list[dict[str, float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """One conversation: prompt and answer, and how many of its tokens are prompt."""

    kind: str
    tokens: npt.NDArray[np.uint16]
    prompt_length: int
    temperature: float


def new_student(recipe: Recipe, target: Llama, seed: int) -> Student:
    torch.manual_seed(seed)
    model = Llama(recipe.shape)
    shape = recipe.shape
    for layer in model.stack:
        for name, weights in layer.named_parameters():
            if weights.ndim == 2:
                nn.init.normal_(weights, std=weights.shape[1] ** -0.5)
                if name in {"o.weight", "down.weight"}:
                    weights.data.mul_((2 * shape.layers) ** -0.5)
    model.embedding.data = _principal(target.embedding.detach().float(), shape.width)
    model.to(target.embedding.device)
    matrices = [weights for layer in model.stack for weights in layer.parameters() if weights.ndim == 2]
    others = [weights for weights in model.parameters() if all(weights is not matrix for matrix in matrices)]
    adam: list[dict[str, object]] = [{"params": others, "lr": recipe.rate / 2, "weight_decay": 0.0}]
    optimisers: list[torch.optim.Optimizer] = []
    if recipe.muon:
        optimisers.append(Muon(matrices, lr=0.02))
    else:
        adam.append({"params": matrices, "lr": recipe.rate, "weight_decay": 0.02})
    optimisers.append(torch.optim.AdamW(adam, betas=(0.9, 0.95), eps=1e-10, fused=True))
    return Student(recipe=recipe, model=model, optimisers=optimisers)


def _principal(embedding: Tensor, width: int) -> Tensor:
    """The target's embedding in fewer dimensions: a start that already knows which tokens are alike."""
    _, _, directions = torch.linalg.svd(embedding - embedding.mean(0), full_matrices=False)
    reduced = embedding @ directions[:width].T
    return reduced * (0.05 / reduced.std())


@torch.compile(dynamic=False)
def _slope(
    logits: Tensor, target: Tensor, weight: Tensor, kl: Tensor, sharpness: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Of kl x KL(target || draft) + (1 - kl) x total variation in the draft's logits; the share that would be
    accepted; whether both would say the same token."""
    q = logits.float().softmax(-1)
    sharp = (target.float() * sharpness).softmax(-1)
    below = (q < sharp).float()
    variation = q * ((q * below).sum(-1, keepdim=True) - below)
    slope = weight[:, None] * (kl * (q - sharp) + (1 - kl) * variation)
    overlap = torch.minimum(q, target.float().softmax(-1)).sum(-1)
    same = (logits.argmax(-1) == target.argmax(-1)).float()
    return slope.to(logits.dtype), overlap, same


def learn(
    student: Student, target: Llama, batch: tuple[Tensor, Tensor], progress: float
) -> tuple[Tensor, Tensor]:
    """One step. Returns the accepted share and the agreement on the last positions looked at."""
    tokens, weights = batch
    places = weights.flatten().nonzero()[:, 0]
    with torch.no_grad():
        known = target.hidden(tokens).flatten(0, 1)
    with torch.autocast(tokens.device.type, torch.bfloat16):
        state = student.model.hidden(tokens).flatten(0, 1)
    slopes = torch.zeros_like(state)
    head_slopes = torch.zeros_like(student.model.embedding)
    head = student.model.embedding.detach().to(torch.bfloat16)
    kl, sharpness = _mixture(student.recipe, progress, weights)
    weights = weights.flatten() / weights.sum()
    for start in range(0, len(places), POSITIONS_AT_ONCE):
        part = places[start : start + POSITIONS_AT_ONCE]
        short = POSITIONS_AT_ONCE - len(part)
        filled = torch.cat([part, part.new_zeros(short)])
        weight = torch.cat([weights[part], weights.new_zeros(short)])
        own = state.detach()[filled]
        slope, overlap, same = _slope(own @ head.T, known[filled] @ target.embedding.T, weight, kl, sharpness)
        slopes.index_add_(0, filled, slope @ head)
        head_slopes += (slope.T @ own).float()
    state.backward(slopes)
    embedding = student.model.embedding
    embedding.grad = head_slopes if embedding.grad is None else embedding.grad + head_slopes
    _step(student, progress)
    return overlap[: len(part)].mean(), same[: len(part)].mean()


def _mixture(recipe: Recipe, progress: float, like: Tensor) -> tuple[Tensor, Tensor]:
    # All KL at first (total variation teaches nothing while the two hardly overlap), a tenth of it to the end.
    kl = 1.0 if recipe.distance_from is None else max(0.1, 1 - progress / recipe.distance_from)
    return like.new_tensor(kl), like.new_tensor(recipe.sharpness)


def _step(student: Student, progress: float) -> None:
    pace = min(1.0, progress / 0.02 + 0.01) * (0.5 * (1 + math.cos(math.pi * progress)) * 0.98 + 0.02)
    nn.utils.clip_grad_norm_(student.model.parameters(), 1.0)
    for optimiser in student.optimisers:
        for group in optimiser.param_groups:
            group.setdefault("full_rate", group["lr"])
            group["lr"] = group["full_rate"] * pace
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)


class Muon(torch.optim.Optimizer):
    """Momentum whose every update is made orthogonal, for the matrices of the layers (Jordan et al., 2024)."""

    def __init__(self, matrices: Sequence[Tensor], *, lr: float, momentum: float = 0.95) -> None:
        super().__init__(list(matrices), {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for matrix in group["params"]:
                state = self.state[matrix]
                if "speed" not in state:
                    state["speed"] = torch.zeros_like(matrix)
                state["speed"].lerp_(matrix.grad, 1 - group["momentum"])
                update = _orthogonal(matrix.grad.lerp(state["speed"], group["momentum"]))
                matrix.add_(update, alpha=-group["lr"] * max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5)


def _orthogonal(matrix: Tensor, rounds: int = 5) -> Tensor:
    """Newton-Schulz iteration towards the nearest orthogonal matrix."""
    x = matrix.bfloat16()
    flip = x.shape[0] > x.shape[1]
    x = x.T if flip else x
    x = x / (x.norm() + 1e-7)
    for _ in range(rounds):
        square = x @ x.T
        x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
    return (x.T if flip else x).to(matrix.dtype)


def batches(
    texts: Sequence[Text], *, tokens_at_once: int, seed: int, device: torch.device, prompt_weight: float
) -> Iterator[tuple[Tensor, Tensor]]:
    """For ever: texts of like length together, padded at the end; a place weighs what predicting its successor does."""
    order = sorted(range(len(texts)), key=lambda number: len(texts[number].tokens))
    draw = torch.Generator().manual_seed(seed)
    groups: list[list[int]] = [[]]
    for number in order:
        if groups[-1] and (len(groups[-1]) + 1) * len(texts[number].tokens) > tokens_at_once:
            groups.append([])
        groups[-1].append(number)
    while True:
        for place in torch.randperm(len(groups), generator=draw).tolist():
            chosen = [texts[number] for number in groups[place]]
            width = max(len(text.tokens) for text in chosen)
            tokens = np.zeros((len(chosen), width), dtype=np.int64)
            weights = np.zeros((len(chosen), width), dtype=np.float32)
            for row, text in enumerate(chosen):
                tokens[row, : len(text.tokens)] = text.tokens
                weights[row, : text.prompt_length - 1] = prompt_weight
                weights[row, text.prompt_length - 1 : len(text.tokens) - 1] = 1.0
            yield torch.from_numpy(tokens).to(device), torch.from_numpy(weights).to(device)


def save_texts(texts: Sequence[Text], path: Path) -> None:
    np.savez(
        path,
        tokens=np.concatenate([text.tokens for text in texts]),
        lengths=[len(text.tokens) for text in texts],
        prompt_lengths=[text.prompt_length for text in texts],
        temperatures=[text.temperature for text in texts],
        kinds=[text.kind for text in texts],
    )


def load_texts(path: Path) -> list[Text]:
    with np.load(path) as kept:
        rows = zip(kept["kinds"], kept["prompt_lengths"], kept["temperatures"], strict=True)
        pieces = np.split(kept["tokens"], np.cumsum(kept["lengths"])[:-1])
        return [
            Text(kind=str(kind), tokens=piece, prompt_length=int(length), temperature=float(temperature))
            for piece, (kind, length, temperature) in zip(pieces, rows, strict=True)
        ]


@torch.no_grad()
def agreement(model: Llama, texts: Sequence[Text], rows_at_once: int = 64) -> list[list[bool]]:
    """For every answer, at every place, whether the model's likeliest token is the one that was said."""
    device = model.embedding.device
    found = []
    with torch.autocast(device.type, torch.bfloat16):
        head = model.embedding.to(torch.bfloat16)
        for start in range(0, len(texts), rows_at_once):
            chosen = texts[start : start + rows_at_once]
            tokens = torch.zeros(
                len(chosen), max(len(text.tokens) for text in chosen), dtype=torch.long, device=device
            )
            for row, text in enumerate(chosen):
                tokens[row, : len(text.tokens)] = torch.from_numpy(text.tokens.astype(np.int64))
            states = model.hidden(tokens)
            for row, text in enumerate(chosen):
                answer = slice(text.prompt_length - 1, len(text.tokens) - 1)
                said = (states[row, answer] @ head.T).argmax(-1)
                found.append((said == tokens[row, text.prompt_length : len(text.tokens)]).tolist())
    return found


def accepted_length(answers: Sequence[Sequence[bool]], k: int) -> float:
    """Tokens per step of greedy speculation: a step says what was drafted right, up to k, and one token more."""
    steps = said = 0
    for answer in answers:
        # The first token comes with the prompt.
        place = 1
        while place < len(answer):
            right = 0
            while right < k and place + right < len(answer) and answer[place + right]:
                right += 1
            place += right + 1
            steps += 1
        said += max(0, len(answer) - 1)
    return said / max(1, steps)
