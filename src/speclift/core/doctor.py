"""What doctor found on this machine: the document of `doctor --json`."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from speclift.core.document import Document
from speclift.core.results import Estimate
from speclift.core.traffic import Load
from speclift.core.units import Bytes, Seconds


class Host(Document, frozen=True, kw_only=True):
    cpu: str
    cores: int | None
    memory_bytes: Bytes
    system: str
    python: str
    gpus: tuple[str, ...]
    governor: str | None
    load_average: tuple[float, ...]


class Milliseconds(Document, frozen=True, kw_only=True):
    """Null where none is known."""

    p50: float | None
    p99: float | None


class Measured(Document, frozen=True, kw_only=True, omit_defaults=True):
    """Something that was measured, or the reason why it was not and what would help."""

    measured: bool
    why: str | None = None
    next_step: str | None = None
    wall_s: Seconds | None = None


class PromptsNeeded(Document, frozen=True, kw_only=True):
    speedup: float
    prompts: int


class Noise(Measured, frozen=True, kw_only=True, omit_defaults=True):
    """Spreads are standard deviations of log TPOT, so 0.05 reads as 5 %."""

    tokens_per_answer: int | None = None
    pairs: int = 0
    tpot_s_p50: Seconds | None = None
    # One request on one server, from one time to the next; null where no prompt was asked twice.
    request_log_sd: float | UnsetType | None = UNSET
    # The ratio of two requests sent one after the other: what pairing leaves.
    paired_log_sd: float = 0.0
    # First server over second; they are the same, so 1 is the truth.
    servers_ratio: Estimate | None = None
    prompts_needed: tuple[PromptsNeeded, ...] = ()


class ClientLevel(Document, frozen=True, kw_only=True):
    """Errors at one load: measured minus true."""

    load: Load
    requests: int
    lost: int
    ttft_error_ms: Milliseconds
    tpot_error_ms: Milliseconds
    send_lag_ms: Milliseconds
    read_lag_p99_ms: float
    cpu_share: float
    cpu_us_per_token: float
    cpu_us_per_request: float


class ClientCeiling(Document, frozen=True, kw_only=True):
    """What one sending process could do at most."""

    tokens_per_s: int
    requests_per_s: int


class LoadGenerator(Measured, frozen=True, kw_only=True, omit_defaults=True):
    """The load generator against a server that knows its own times."""

    levels: tuple[ClientLevel, ...] = ()
    ceiling: ClientCeiling | None = None


class CommandFor(Document, frozen=True, kw_only=True):
    why: str
    command: str


class Program(Document, frozen=True, kw_only=True):
    """A program or a package of an engine; `note` says how to get it, how it is used, or what is wrong with it."""

    name: str
    found: bool
    where: str | None
    version: str | None
    # What it was built for, such as CPU or CUDA 12.8, where it tells.
    build: str | None
    note: str


class Doctor(Document, frozen=True, kw_only=True, omit_defaults=True):
    schema: Literal[1]
    speclift: str
    # By part, such as a package or a program: which one is there, or what would bring it.
    engines: dict[str, str]
    programs: tuple[Program, ...]
    host: Host
    threads_for_the_engine: int
    timer_late_ms: Milliseconds
    # By name, whether its file is in the cache.
    models: dict[str, str]
    cache: str
    cache_free_bytes: Bytes
    study_folder_free_bytes: Bytes
    # With --client alone.
    client: LoadGenerator | None = None
    noise: Noise
    next_steps: tuple[CommandFor, ...]
