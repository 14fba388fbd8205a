"""What the gateway is asked, each flag with its field."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from speclift.core.errors import UsageError
from speclift.core.flags import Flag, Reading, read_duration_s
from speclift.core.units import Seconds
from speclift.live.ask import Listening, read_listening

POOLS, ROUTING, SERVICE, RECORD = "Servers", "Where requests go", "As a service", "What is kept"
CANARY_MAX = 0.5
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
        tuple[str, ...], Flag("A server that speculates; repeatable.", POOLS, "URL", names=("--spec",))
    ] = ()
    plain: Annotated[
        tuple[str, ...],
        Flag("A server launched without speculation; repeatable.", POOLS, "URL", names=("--plain",)),
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
