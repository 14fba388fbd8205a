"""The seam every engine passes through. To add an engine: implement Engine and Server, pass tests/contract."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from speclift.core.arm import Arm, Endpoint
from speclift.core.records import Counters, Usage
from speclift.core.results import Finding

if TYPE_CHECKING:  # numpy and scipy, which only the gate needs
    from speclift.lossless.answers import Answer
    from speclift.lossless.calibration import TokenScore
    from speclift.lossless.questions import Question


class Server(Protocol):
    """One launched server."""

    endpoint: Endpoint
    command: tuple[str, ...]
    # Tokens of KV cache the server reports; None where it does not say.
    kv_tokens: int | None
    # What the engine says it really runs with, and what it warned of while it started; empty where it does not.
    settings: dict[str, str]
    notices: tuple[str, ...]

    async def counters(self) -> Counters: ...

    def death(self) -> str | None:
        """None while it lives; otherwise how it ended, with the tail of its log."""
        ...

    def usage(self) -> tuple[Usage, ...]:
        """How full the server was over time, as far as it says so without being asked."""
        ...

    async def sample(self) -> Usage | None:
        """How full it is now; None where it does not say, or tells it in `usage` anyway."""
        ...

    def process_ids(self) -> frozenset[int]:
        """Of the server and what it started; empty where somebody else did."""
        ...

    async def stop(self) -> None: ...


class Engine(Protocol):
    """Knows how one engine is started and asked about itself."""

    name: str
    model: str

    @property
    def samples_wrongly(self) -> str:
        """Why answers above temperature 0 are not to be trusted from this build; empty where they are."""
        ...

    @property
    def launches_at_once(self) -> int:
        """How many servers may start at the same time."""
        ...

    def version(self) -> str: ...

    def command(self, arm: Arm, *, port: int) -> tuple[str, ...]:
        """The exact command speclift would run; port 0 stands for one chosen at launch."""
        ...

    def configurations(self, arm: Arm) -> dict[str, str]:
        """What a user pastes to serve this arm in production: "command" always, "python" and "yaml" where known."""
        ...

    def config(self, arm: Arm) -> dict[str, object]:
        """The speculative settings alone, under the engine's own names."""
        ...

    def fits_together(self, arms: tuple[Arm, ...]) -> bool:
        """True where all arms may stay up at once and be measured request by request in turn."""
        ...

    def loses_scheduling(self, arm: Arm) -> bool:
        """Whether this arm runs without the scheduling ahead that the baseline has by itself."""
        ...

    def risks(self, arms: Sequence[Arm]) -> tuple[Finding, ...]:
        """What is known before any launch to make the arms differ by more than speculation."""
        ...

    async def launch(self, arm: Arm, *, log: Path) -> Server:
        """Start, wait until ready, and prove that speculation is on; EngineError otherwise."""
        ...


class Scorer(Protocol):
    """Asks a server without speculation how likely the tokens are that an arm said."""

    # Body fields that make sampled requests follow the law that is scored.
    settings: tuple[tuple[str, object], ...]
    # What its answers must carry so that they can be scored.
    listed: int
    temperature_max: float

    async def score(self, question: Question, answer: Answer) -> list[TokenScore]:
        """One per token, none where the answer's tokens are not known; EngineError where the server refuses."""
        ...
