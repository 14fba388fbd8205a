"""Where does `--on` say that arms run, which machines took part in a study, and which of them are alike?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from speclift.core.errors import UsageError

RAY = "ray"
CLIENT_SCHEME = "ray://"
HINT = (
    "--on ray joins the cluster of this machine or starts one; --on ray:HOST:PORT joins that of a head node"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetAddress:
    """Of a head node; None is the cluster that this machine belongs to, else one that is started here."""

    head: tuple[str, int] | None = None

    def __str__(self) -> str:
        return "this machine's" if self.head is None else f"{self.head[0]}:{self.head[1]}"


def fleet_address(on: str) -> FleetAddress:
    """UsageError for whatever is not ray or ray:HOST:PORT."""
    kind, colon, rest = on.partition(":")
    if kind != RAY:
        raise UsageError(f"--on {on!r} is no place to run arms", hint=HINT)
    if rest.startswith(("//", CLIENT_SCHEME)):
        raise UsageError(
            f"--on {on!r} names a Ray client, which cannot stream records back",
            hint="run speclift on a machine of the cluster, with --on ray",
        )
    if not rest:
        if colon:
            raise UsageError(f"--on {on!r} lacks the address after the colon", hint=HINT)
        return FleetAddress()
    host, _, port = rest.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(
            f"--on {on!r} needs HOST:PORT of the head node, such as ray:10.0.0.1:6379", hint=HINT
        )
    return FleetAddress(head=(host.strip("[]"), int(port)))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """One machine of a fleet as it was when it joined the study."""

    name: str
    host: Mapping[str, object]
    engine_version: str
    model_sha256: str

    def kind(self) -> tuple[tuple[str, str], ...]:
        """What has to agree before records of two nodes may be pooled."""
        return (
            ("cpu", str(self.host.get("cpu"))),
            ("cores", str(self.host.get("cores"))),
            ("gpus", ", ".join(map(str, _listed(self.host.get("gpus"))))),
            ("engine", self.engine_version),
        )


def _listed(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else []


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """Nodes that are alike, in the order of their names."""

    names: tuple[str, ...]
    kind: tuple[tuple[str, str], ...]

    def unlike(self, other: NodeGroup) -> str:
        """What this group has and the other has not, in words."""
        theirs = dict(other.kind)
        return ", ".join(
            f"{what} {value or 'none'}" for what, value in self.kind if theirs.get(what) != value
        )


def groups_of(nodes: Iterable[NodeFacts]) -> tuple[NodeGroup, ...]:
    """The largest first; of equal size the one with the first name."""
    found: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for node in nodes:
        found.setdefault(node.kind(), []).append(node.name)
    groups = [NodeGroup(names=tuple(sorted(names)), kind=kind) for kind, names in found.items()]
    return tuple(sorted(groups, key=lambda group: (-len(group.names), group.names)))
