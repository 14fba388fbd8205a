"""What doctor found on this machine, as the JSON document of `doctor --json`."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict, final

from speclift.core.documents import LoadDocument


class HostDocument(TypedDict):
    cpu: str
    cores: int | None
    memory_bytes: int
    system: str
    python: str
    gpus: list[str]
    governor: str | None
    load_average: list[float]


class TimerLatenessDocument(TypedDict):
    p50: float
    p99: float


@final
class NotMeasuredDocument(TypedDict):
    measured: Literal[False]
    why: str
    next_step: str


class ServersRatioDocument(TypedDict):
    """Of two identical servers: 1 is the truth."""

    value: float
    low: float
    high: float
    n: int
    method: str
    level: float


class PromptsNeededDocument(TypedDict):
    speedup: float
    prompts: int


@final
class NoiseDocument(TypedDict):
    """Spreads are standard deviations of log TPOT, so 0.05 reads as 5 %."""

    measured: Literal[True]
    wall_s: float
    tokens_per_answer: int
    pairs: int
    tpot_s_p50: float
    request_log_sd: float | None
    paired_log_sd: float
    servers_ratio: ServersRatioDocument
    prompts_needed: list[PromptsNeededDocument]


class ErrorMillisecondsDocument(TypedDict):
    """Null where none is known."""

    p50: float | None
    p99: float | None


class ClientLevelDocument(TypedDict):
    load: LoadDocument
    requests: int
    lost: int
    ttft_error_ms: ErrorMillisecondsDocument
    tpot_error_ms: ErrorMillisecondsDocument
    send_lag_ms: ErrorMillisecondsDocument
    read_lag_p99_ms: float
    cpu_share: float
    cpu_us_per_token: float
    cpu_us_per_request: float


class ClientCeilingDocument(TypedDict):
    tokens_per_s: int
    requests_per_s: int


@final
class ClientDocument(TypedDict):
    """The load generator against a server that knows its own times."""

    measured: Literal[True]
    wall_s: float
    levels: list[ClientLevelDocument]
    ceiling: ClientCeilingDocument


class NextStepDocument(TypedDict):
    why: str
    command: str


class ProgramDocument(TypedDict):
    """A program or a package of an engine; `note` says how to get it, how it is used, or what is wrong with it."""

    name: str
    found: bool
    where: str | None
    version: str | None
    # What it was built for, such as CPU or CUDA 12.8, where it tells.
    build: str | None
    note: str


class DoctorDocument(TypedDict):
    schema: Literal[1]
    speclift: str
    # By part, such as a package or a program: which one is there, or what would bring it.
    engines: dict[str, str]
    programs: list[ProgramDocument]
    host: HostDocument
    threads_for_the_engine: int
    timer_late_ms: TimerLatenessDocument
    # By name, whether its file is in the cache.
    models: dict[str, str]
    cache: str
    cache_free_bytes: int
    study_folder_free_bytes: int
    # With --client alone.
    client: NotRequired[ClientDocument | NotMeasuredDocument]
    noise: NoiseDocument | NotMeasuredDocument
    next_steps: list[NextStepDocument]
