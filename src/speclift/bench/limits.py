"""Numbers so large that nobody means them: refused before a plan of that size is built."""

from __future__ import annotations

from collections.abc import Sequence

from speclift.bench.ask import Ask
from speclift.client.client import require_descriptors
from speclift.core.errors import UsageError
from speclift.core.speculation import K_MAX

# Far above any use, and small enough that a plan of this size still fits into memory and its numbers into a study.
LAUNCHES_MAX = 1_000
WORKERS_MAX = 256
THREADS_MAX = 4_096
REQUESTS_MAX = 100_000
RATE_MAX = 1_000_000
TOKENS_MAX = 100_000_000
# What vLLM takes as a 32-bit number.
COUNT_MAX = 2**31 - 1
SEED_MAX = 2**63 - 1


def require_sane(ask: Ask) -> None:
    for flag, values, most in _bounded(ask):
        for value in values:
            if value is not None and not value <= most:
                raise UsageError(f"{flag} takes at most {most:,}, saw {_shown(value)}")
    if ask.seed < 0:
        raise UsageError(f"--seed takes 0 or more, saw {_shown(ask.seed)}")
    for streams in ask.concurrency:
        require_descriptors(streams, ask.workers)


def _bounded(ask: Ask) -> tuple[tuple[str, Sequence[float | None], int], ...]:
    return (
        ("--k", ask.ks, K_MAX),
        ("--launches", (ask.launches,), LAUNCHES_MAX),
        ("--workers", (ask.workers,), WORKERS_MAX),
        ("--threads", (ask.server.threads,), THREADS_MAX),
        ("--requests", (ask.requests,), REQUESTS_MAX),
        ("--qps", ask.qps, RATE_MAX),
        ("--max-tokens", (ask.max_tokens,), TOKENS_MAX),
        ("--context", (ask.server.context_tokens,), TOKENS_MAX),
        ("--token-budget", ask.token_budgets, TOKENS_MAX),
        ("--gpu-layers", (ask.server.gpu_layers,), COUNT_MAX),
        ("--tp", (ask.server.tp,), COUNT_MAX),
        ("--draft-tp", ask.draft_tps, COUNT_MAX),
        ("--pp", (ask.server.pp,), COUNT_MAX),
        ("--max-num-seqs", (ask.server.max_num_seqs,), COUNT_MAX),
        ("--seed", (ask.seed,), SEED_MAX),
    )


def _shown(value: float) -> str:
    """Python does not print whole numbers of thousands of digits."""
    return f"{value:,}" if isinstance(value, float) or value.bit_length() < 128 else "a far larger number"
