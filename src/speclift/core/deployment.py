"""One server as it is to run in production: what a study measured, with nothing of it left to defaults of the day."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerImage:
    reference: str
    # What starts the server in it; empty: the same words as outside.
    program: tuple[str, ...] = ()
    # What a reader has to know before they rely on the reference; empty where it is exact.
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Secrets are named and never told: whoever runs it has their values in the environment."""

    arm: str
    engine: str
    engine_version: str
    model: str
    # What starts the server, and its flags without where it listens.
    wrapper: tuple[str, ...] = ()
    program: tuple[str, ...]
    flags: tuple[str, ...]
    host: str
    port: int
    health: str
    variables: tuple[tuple[str, str], ...] = ()
    secrets: tuple[str, ...] = ()
    # The one of them that callers have to show; empty where anybody may ask.
    api_key: str = ""
    # On the machine of the study: models and drafts that are no names on a hub.
    files: tuple[str, ...] = ()
    gpus: int = 0
    # None where none is known that holds this version.
    image: ContainerImage | None = None
    # Whether `program` starts a container by itself.
    is_container: bool = False

    def words(self, *, host: str | None = None) -> tuple[str, ...]:
        """The whole command, listening where it did unless told otherwise."""
        return (*self.wrapper, *self.program, *self.flags, *self.listening(host or self.host))

    def listening(self, host: str) -> tuple[str, ...]:
        # `docker run` says by itself where its container listens.
        return () if self.is_container else ("--host", host, "--port", str(self.port))
