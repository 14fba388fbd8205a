"""What doctor found, for a terminal: facts in groups, the noise of the machine, what to do next."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from speclift.core.doctor import Doctor, LoadGenerator, Milliseconds, Noise, PromptsNeeded
from speclift.core.quantities import printable, seconds, size

LABEL_WIDTH = 18

Rows = Sequence[tuple[str, str]]


def machine_view(facts: Doctor) -> RenderableType:
    host, late = facts.host, facts.timer_late_ms
    load = " ".join(f"{value:.1f}" for value in host.load_average)
    threads = facts.threads_for_the_engine
    parts = [
        _section(
            f"speclift {facts.speclift}",
            [(part.replace("_", "-"), found) for part, found in facts.engines.items()],
        ),
        _section(
            "This machine",
            [
                ("CPU", f"{host.cpu}, {_count(host.cores, 'core')}"),
                ("engine threads", f"{threads} (the rest is left to the load generator)"),
                ("memory", size(host.memory_bytes)),
                *(("GPU", gpu) for gpu in host.gpus or ["none found"]),
                ("system", f"{host.system}, Python {host.python}"),
                ("CPU governor", host.governor or "unknown"),
                ("load average", f"{load} over 1, 5 and 15 minutes"),
                ("timers", f"late by {late.p50 or 0.0:.2f} ms at P50, {late.p99 or 0.0:.2f} ms at P99"),
            ],
        ),
        _section(
            "Models and space",
            [
                *facts.models.items(),
                ("model cache", f"{facts.cache}, {size(facts.cache_free_bytes)} free"),
                ("this folder", f"{size(facts.study_folder_free_bytes)} free for studies"),
            ],
        ),
        *_client(facts.client),
        *_noise(facts.noise),
        _section("Next", [(step.command, step.why) for step in facts.next_steps], are_commands=True),
    ]
    return Group(*parts)


def _noise(noise: Noise) -> list[RenderableType]:
    title = "Noise of this machine"
    servers = noise.servers_ratio
    if servers is None:
        then = f"; run: {noise.next_step}" if noise.next_step else ""
        return [_section(title, [("not measured", (noise.why or "").rstrip(".") + then)])]
    rows = [
        (
            "measured",
            f"{noise.pairs} pairs of {noise.tokens_per_answer}-token answers from two identical servers, "
            f"{noise.wall_s or 0.0:.0f} s, {seconds(noise.tpot_s_p50)} per token",
        ),
        (
            "one request",
            f"varies by {noise.request_log_sd:.1%} between repeats of the same prompt"
            if isinstance(noise.request_log_sd, float)
            else "unknown: no prompt was sent twice",
        ),
        ("a pair in turn", f"varies by {noise.paired_log_sd:.1%} when the servers take turns"),
        (
            "the two servers",
            f"{servers.value:.2f}x [{servers.low:.2f}, {servers.high:.2f}] measured, 1.00x is correct",
        ),
    ]
    return [_section(title, rows), _prompts_needed(noise.prompts_needed)]


def _client(client: LoadGenerator | None) -> list[RenderableType]:
    if client is None:
        return []
    title = "Load generator"
    ceiling = client.ceiling
    if ceiling is None:
        return [_section(title, [("not measured", f"{client.why}; run: {client.next_step}")])]
    names = ("load", "TTFT error", "TPOT error", "sent late", "read late", "core")
    table = Table.grid(padding=(0, 2))
    for name in names:
        table.add_column(justify="left" if name == "load" else "right", no_wrap=True)
    table.add_row(*(Text(name, style="dim") for name in names))
    for level in client.levels:
        table.add_row(
            level.load.label + (f", {level.lost} lost" if level.lost else ""),
            _pair(level.ttft_error_ms),
            _pair(level.tpot_error_ms),
            _pair(level.send_lag_ms),
            f"{level.read_lag_p99_ms:.2f}",
            f"{level.cpu_share:.0%}",
        )
    note = Text(
        "Milliseconds at P50 / P99, measured with a server that knows its own times. On Linux, reading late does "
        "not change a time stamp.",
        style="dim",
    )
    rows = [
        (
            "one process",
            f"about {ceiling.tokens_per_s:,} tokens/s or {ceiling.requests_per_s:,} short requests/s "
            "at 80% of a core; for more add --workers",
        )
    ]
    return [
        Group(Text(title, style="bold"), Padding(Group(table, note), (0, 0, 0, 2), expand=False)),
        _rows(rows),
    ]


def _pair(errors: Milliseconds) -> str:
    return " / ".join("–" if error is None else f"{error:.2f}" for error in (errors.p50, errors.p99))


def _prompts_needed(needed: Sequence[PromptsNeeded]) -> RenderableType:
    table = Table.grid(padding=(0, 3))
    table.add_column(min_width=LABEL_WIDTH)
    for _ in needed:
        table.add_column(justify="right")
    table.add_row("to detect a speedup of", *(f"{entry.speedup:g}x" for entry in needed))
    table.add_row("prompts needed", *(Text(f"{entry.prompts:,}", style="bold") for entry in needed))
    note = Text(
        "At 95 % confidence and 80 % power, if all prompts gain equally; otherwise more are needed.",
        style="dim",
    )
    return Padding(Group(table, note), (0, 0, 1, 2), expand=False)


def _section(title: str, rows: Rows, *, are_commands: bool = False) -> RenderableType:
    return Group(Text(title, style="bold"), _rows(rows, are_commands=are_commands))


def _rows(rows: Rows, *, are_commands: bool = False) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan" if are_commands else "dim", min_width=LABEL_WIDTH, no_wrap=not are_commands)
    table.add_column(overflow="fold")
    for label, value in rows:
        table.add_row(Text(printable(label)), Text(printable(value, limit=400)))
    return Padding(table, (0, 0, 1, 2), expand=False)


def _count(number: int | None, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
