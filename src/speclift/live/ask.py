"""The flags of watch and gateway, each with its field."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from speclift.core.errors import UsageError
from speclift.core.flags import Flag, Reading, read_duration_s
from speclift.core.units import Seconds

TIMES, WORTH, SERVERS, SERVICE = "Times", "When it pays", "Servers", "As a service"
ROUTING, RECORD = "Where requests go", "What is kept"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
INTERVAL_MIN_S, INTERVAL_MAX_S = 0.1, 3600.0
WINDOW_MAX_S = 24 * 3600.0
CANARY_MAX = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """The address of a service; port 0 is any that is free."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        return self.host in LOOPBACK


def read_listening(text: str, flag: str) -> Listening:
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise UsageError(
            f"{flag} takes an address and a port, saw {text[:80]!r}", hint=f"{flag} 127.0.0.1:9400"
        )
    return Listening(host=host, port=int(port))


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchAsk:
    interval_s: Annotated[
        Seconds,
        Flag(
            "Time between two looks at a server; default 15s.",
            TIMES,
            "15s",
            names=("--interval",),
            reading=Reading(read_duration_s, default="15s"),
        ),
    ] = 15.0
    window_s: Annotated[
        Seconds,
        Flag(
            "The answer is about the last so many minutes; default 10m.",
            TIMES,
            "10m",
            names=("--window",),
            reading=Reading(read_duration_s, default="10m"),
        ),
    ] = 600.0
    for_s: Annotated[
        Seconds | None,
        Flag("Stop after this time.", TIMES, "1h", names=("--for",), reading=Reading(read_duration_s)),
    ] = None
    once: Annotated[bool, Flag("Two looks one interval apart, one answer, and stop.", TIMES)] = False
    study: Annotated[
        Path | None, Flag("Hold it against the break-even that this study measured.", WORTH, "DIR")
    ] = None
    arm: Annotated[
        str | None, Flag("The study's arm that is running; default: its winner.", WORTH, "NAME")
    ] = None
    break_even: Annotated[
        float | None, Flag("Accepted length from which on it pays, where you know it.", WORTH, "X")
    ] = None
    api_key_env: Annotated[
        str | None,
        Flag("Environment variable with the key that the servers want for /metrics.", SERVERS, "VAR"),
    ] = None
    listen: Annotated[
        Listening | None,
        Flag(
            "Serve a page, /metrics and JSON there while watching; port 0 takes any. Loopback, or with --token-env.",
            SERVICE,
            "HOST:PORT",
            reading=Reading(read_listening),
        ),
    ] = None
    token_env: Annotated[
        str | None,
        Flag("Environment variable with the token that whoever asks has to know.", SERVICE, "VAR"),
    ] = None
    history: Annotated[
        Path | None,
        Flag(
            "File of what was seen; default with --listen: speclift/watch.db in your state folder.",
            SERVICE,
            "FILE",
        ),
    ] = None
    webhook: Annotated[
        str | None,
        Flag("POST the document there when the answer changes, or a server is gone or back.", SERVICE, "URL"),
    ] = None
    webhook_key_env: Annotated[
        str | None,
        Flag("Environment variable with the key that signs what is posted.", SERVICE, "VAR"),
    ] = None

    def __post_init__(self) -> None:
        if not INTERVAL_MIN_S <= self.interval_s <= INTERVAL_MAX_S:
            raise UsageError(f"--interval must be between 0.1s and 1h, saw {self.interval_s:g}s")
        if not self.interval_s <= self.window_s <= WINDOW_MAX_S:
            raise UsageError(
                f"--window must be between --interval and 24h, saw {self.window_s:g}s with an interval of "
                f"{self.interval_s:g}s"
            )
        if self.break_even is not None and not 1 <= self.break_even <= 1000:
            raise UsageError(
                f"--break-even is an accepted length of at least 1, saw {self.break_even:g}",
                hint="1 + accepted / drafts; a study measures it: --study DIR",
            )
        if self.break_even is not None and self.study is not None:
            raise UsageError("--break-even and --study were both given", hint="give one of them")
        self._check_service()
        if self.once and self.for_s is not None:
            raise UsageError("--once and --for were both given", hint="give one of them")

    def _check_service(self) -> None:
        listen = self.listen
        if listen is not None and not listen.is_loopback and self.token_env is None:
            raise UsageError(
                f"--listen {listen.host} can be reached from other machines and wants a token",
                hint="export WATCH_TOKEN=$(openssl rand -hex 24), then --token-env WATCH_TOKEN; or listen on 127.0.0.1",
            )
        for flag, value, needed, is_given in (
            ("--token-env", self.token_env, "--listen", listen is not None),
            ("--webhook-key-env", self.webhook_key_env, "--webhook", self.webhook is not None),
        ):
            if value is not None and not is_given:
                raise UsageError(f"{flag} goes with {needed}", hint=f"give {needed} too, or leave {flag} out")
        if self.once and (listen is not None or self.webhook is not None):
            raise UsageError("--once looks once; --listen and --webhook go on", hint="leave --once out")


USUAL_PLACE = Listening(host="127.0.0.1", port=8900)


def read_share(text: str, flag: str) -> float:
    """5% or 0.05."""
    number = text.removesuffix("%").strip()
    try:
        share = float(number) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share <= CANARY_MAX:
        raise UsageError(
            f"{flag} is a share from 0% to {CANARY_MAX:.0%}, saw {text[:40]!r}", hint=f"{flag} 5%"
        )
    return share


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayAsk:
    spec: Annotated[
        tuple[str, ...], Flag("A server that speculates; repeatable.", SERVERS, "URL", names=("--spec",))
    ] = ()
    plain: Annotated[
        tuple[str, ...],
        Flag("A server launched without speculation; repeatable.", SERVERS, "URL", names=("--plain",)),
    ] = ()
    policy: Annotated[
        Path | None,
        Flag(
            "What goes where: a study, or the file that export --to gateway made of it. Without one everything goes to "
            "--spec, and --plain is asked where that does not answer. Read anew on SIGHUP.",
            ROUTING,
            "STUDY|FILE",
        ),
    ] = None
    canary: Annotated[
        float,
        Flag(
            "Share of the requests that goes to the other pool, to keep measuring both on live traffic; default 0%.",
            ROUTING,
            "5%",
            reading=Reading(read_share, default="0%"),
        ),
    ] = 0.0
    learn: Annotated[
        bool,
        Flag("Let live traffic also show that something pays which the study did not allow.", ROUTING),
    ] = False
    listen: Annotated[
        Listening,
        Flag(
            "Where callers connect; port 0 takes any. Loopback, or with --token-env.",
            SERVICE,
            "127.0.0.1:8900",
            reading=Reading(read_listening, default="127.0.0.1:8900"),
        ),
    ] = USUAL_PLACE
    token_env: Annotated[
        str | None, Flag("Environment variable with the key that callers have to send.", SERVICE, "VAR")
    ] = None
    api_key_env: Annotated[
        str | None, Flag("Environment variable with the key that the servers want.", SERVICE, "VAR")
    ] = None
    drain_s: Annotated[
        Seconds,
        Flag(
            "At the end, time for streams that are under way; default 60s.",
            SERVICE,
            "60s",
            names=("--drain",),
            reading=Reading(read_duration_s, default="60s"),
        ),
    ] = 60.0
    access_log: Annotated[
        Path | None, Flag("A line of JSON for every request, without its text.", RECORD, "FILE")
    ] = None
    log_text: Annotated[
        bool,
        Flag(
            "With prompts and answers, for replay and decide --prompts. Whoever reads it reads them.", RECORD
        ),
    ] = False

    def __post_init__(self) -> None:
        if not self.spec or not self.plain:
            missing = "--spec" if not self.spec else "--plain"
            raise UsageError(
                f"no server was named with {missing}",
                hint="speclift gateway --spec http://127.0.0.1:8000 --plain http://127.0.0.1:8001",
            )
        if self.learn and not self.canary:
            raise UsageError(
                "--learn needs requests to learn from",
                hint="--canary 5% sends every twentieth to the other pool",
            )
        if self.log_text and self.access_log is None:
            raise UsageError(
                "--log-text goes with --access-log", hint="--access-log requests.jsonl --log-text"
            )
        if not self.listen.is_loopback and self.token_env is None:
            raise UsageError(
                f"--listen {self.listen.host} can be reached from other machines and wants a token",
                hint="export GATEWAY_TOKEN=$(openssl rand -hex 24), then --token-env GATEWAY_TOKEN",
            )
