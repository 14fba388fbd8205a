"""The nodes that take part in a study: found, asked what they are, each with a worker of ours, then given back."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from speclift.bench.observer import Observer
from speclift.core.arm import Arm
from speclift.core.engine_spec import EngineSpec
from speclift.core.errors import FleetError, OperatingError, UsageError
from speclift.core.fleet import FleetAddress, NodeFacts, groups_of
from speclift.core.speculation import DraftModel, drafters_of
from speclift.engines.kind import engine_kind
from speclift.fleet.cluster import (
    WORKER_LIMIT_S,
    Cluster,
    ClusterNode,
    NodeLost,
    RemoteWorker,
    joined,
    require_alike,
)
from speclift.fleet.node import STOP_LIMIT_S, NodeWorker

FREE_WITHIN_S, FREE_POLL_S = 5.0, 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetNeeds:
    """What a node must have to run any arm of a study."""

    spec: EngineSpec
    files: tuple[str, ...]
    gpus: int
    # As the study knows it; empty where the model is a name that only its engine can resolve.
    model_sha256: str


def needs_of(spec: EngineSpec, arms: Sequence[Arm], model_sha256: str) -> FleetNeeds:
    kind = engine_kind(spec.kind)
    if not kind.launches:
        raise UsageError(
            f"--on needs an engine that speclift launches, and {spec.kind} is a server that runs already",
            hint="leave out --on, or choose --engine vllm or llamacpp",
        )
    drafts = [
        each.model for arm in arms for each in drafters_of(arm.speculation) if isinstance(each, DraftModel)
    ]
    named = dict.fromkeys(word for word in (spec.settings.model, *drafts) if word)
    return FleetNeeds(
        spec=spec,
        files=tuple(word for word in named if Path(word).exists()),
        gpus=spec.settings.tp * spec.settings.pp if kind.is_on_gpu(spec) else 0,
        model_sha256=model_sha256,
    )


class Fleet:
    """Workers on nodes, by the node's name. A node that is lost leaves it."""

    def __init__(self, cluster: Cluster, needs: FleetNeeds) -> None:
        self._cluster, self._needs = cluster, needs
        self.workers: dict[str, RemoteWorker[NodeWorker]] = {}
        self.facts: dict[str, NodeFacts] = {}

    @property
    def address(self) -> str:
        return self._cluster.address

    def staff(self, most: int, *, only_alike: bool = False) -> int:
        """At most so many nodes, those that are alike first, or only those; how many more there would be."""
        nodes = self._able(self._cluster.nodes())
        require_alike(self._cluster, nodes)
        self._require_free(nodes)
        for node in nodes:
            # All of its CPUs: whatever else ran there would be measured too.
            self.workers[node.name] = self._cluster.worker(
                NodeWorker, node, cpus=max(1.0, node.cpus), gpus=self._needs.gpus
            )
        self._ask()
        groups = groups_of(self.facts.values())
        by_likeness = [name for group in groups for name in group.names]
        taken = by_likeness[: min(most, len(groups[0].names)) if only_alike else most]
        for name in by_likeness[len(taken) :]:
            self._give_back(name)
        return len(by_likeness) - len(taken)

    def drop(self, name: str) -> None:
        """After its worker or its machine was lost."""
        self.workers.pop(name).kill()

    def stop(self) -> None:
        """Every worker ends what it does, with its servers; one that does not in time is ended. Without a head nobody
        would hear it, and workers end by themselves."""
        if self._cluster.head.is_lost:
            return
        for worker in self.workers.values():
            worker.begin("stop")
        until_s = time.monotonic() + STOP_LIMIT_S
        for name, worker in list(self.workers.items()):
            worker.settle(max(0.0, until_s - time.monotonic()))
            self._give_back(name)

    def _able(self, nodes: Sequence[ClusterNode]) -> list[ClusterNode]:
        able = [node for node in nodes if node.cpus >= 1 and node.gpus >= self._needs.gpus]
        if not able:
            seen = ", ".join(f"{node.name}: {node.cpus:g} CPUs, {node.gpus:g} GPUs" for node in nodes)
            gpus = self._needs.gpus
            wanted = "a CPU" + (f" and {gpus} GPU{'s' if gpus != 1 else ''}" if gpus else "")
            raise FleetError(
                f"no node of the cluster at {self.address} has {wanted} to give ({seen or 'no node is alive'})",
                hint="declare what nodes have with `ray start --num-cpus N --num-gpus N`",
            )
        return able

    def _require_free(self, nodes: Sequence[ClusterNode]) -> None:
        """Workers of a study that has just ended take a moment to go; whatever stays longer is somebody's work."""
        until_s = time.monotonic() + FREE_WITHIN_S
        while faults := [fault for node in nodes if (fault := self._taken(node)) is not None]:
            if time.monotonic() > until_s:
                raise FleetError("; ".join(faults), hint="wait for that work to end: see `ray status`")
            time.sleep(FREE_POLL_S)

    def _taken(self, node: ClusterNode) -> str | None:
        free = self._cluster.free(node)
        if free is None:
            return None
        cpus, gpus = free
        if gpus < self._needs.gpus:
            return (
                f"node {node.name} has {gpus:g} of its {node.gpus:g} GPUs free, {self._needs.gpus} are needed"
            )
        if cpus < node.cpus:
            return f"node {node.name} has {cpus:g} of its {node.cpus:g} CPUs free, a study needs all of them"
        return None

    def _ask(self) -> None:
        """What every node is; all that is wrong is said at once. They have the same time, all of them together."""
        faults: list[OperatingError] = []
        until_s = time.monotonic() + WORKER_LIMIT_S
        for name, worker in self.workers.items():
            try:
                told = worker.call(
                    "facts",
                    name,
                    self._needs.spec,
                    self._needs.files,
                    str(Path.cwd()),
                    limit_s=max(1.0, until_s - time.monotonic()),
                )
            except NodeLost as error:
                faults.append(error)
                continue
            except OperatingError as error:
                faults.append(self._busy(worker.node, error))
                continue
            assert isinstance(told, NodeFacts)
            self.facts[name] = told
            if told.model_sha256 != self._needs.model_sha256:
                faults.append(
                    FleetError(
                        f"node {name} has another model than this machine under {self._needs.spec.settings.model}",
                        hint="models lie under the same path on every node: a shared volume, or a copy on each",
                    )
                )
        if faults:
            hint = next((error.hint for error in faults if error.hint), "")
            raise FleetError("; ".join(str(error) for error in faults), hint=hint)

    def _busy(self, node: ClusterNode, error: OperatingError) -> OperatingError:
        if not isinstance(error, FleetError):
            return error
        wanted = f"{max(1.0, node.cpus):g} CPUs" + (
            f" and {self._needs.gpus} GPUs" if self._needs.gpus else ""
        )
        return FleetError(f"{error}: its {wanted} are not free", hint=error.hint)

    def _give_back(self, name: str) -> None:
        self.workers.pop(name).kill()
        self.facts.pop(name, None)


@contextmanager
def staffed(
    address: FleetAddress, needs: FleetNeeds, *, most: int, observer: Observer, only_alike: bool = False
) -> Iterator[Fleet]:
    """A fleet of at most so many nodes; its workers end with the block, whatever ended it."""
    with joined(address, observer.say) as cluster:
        fleet = Fleet(cluster, needs)
        try:
            spare = fleet.staff(most, only_alike=only_alike)
            names = ", ".join(fleet.workers)
            observer.say(f"measuring on {names}")
            if spare:
                observer.say(
                    f"nodes that stay free: {spare}; a node runs whole launches (--launches N for more)"
                )
            yield fleet
        finally:
            fleet.stop()
