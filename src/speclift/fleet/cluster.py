"""A Ray cluster as speclift sees it: joined or started, its nodes with what they have, calls to one of them.

The only module that imports Ray, and only when somebody said `--on ray`: Ray is an extra. Ray's own errors end here, as
FleetErrors that name the node.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Generic, TypeVar, cast

from speclift import __version__
from speclift.core.errors import FleetError, OperatingError
from speclift.core.fleet import FleetAddress
from speclift.core.units import Bytes, Seconds

# Ray tells its makers nothing of a study, and prints nothing between our own lines.
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_COLOR_PREFIX": "0",
    "RAY_enable_metrics_collection": "0",
}
REACHED_WITHIN_S = 5.0
# A worker takes seconds to start on an idle node; one that waits longer waits for somebody else's work to end.
WORKER_LIMIT_S: Seconds = 60.0
# Records are handed over as they arrive; what lies in the object store is small.
OBJECT_STORE_BYTES: Bytes = 100 * 2**20

# What Ray adds to a reason and tells nobody anything.
NUMBERED = re.compile(r"(Node Id|node_id|ID)s?[:=] ?[0-9a-f]{8,}")

Worker = TypeVar("Worker")
Told = TypeVar("Told")


class NodeLost(FleetError):
    """The machine, or the worker on it, is gone; what it had sent is kept."""

    def __init__(self, node: str, why: str) -> None:
        super().__init__(f"node {node} was lost: {why}")
        self.node = node


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNode:
    """One machine that is alive, by a name that tells it apart from the others."""

    name: str
    id: str
    cpus: float
    gpus: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """What has to be the same on every node for its records to mean the same."""

    speclift: str
    ray: str
    python: str

    def differences(self, other: Versions) -> list[str]:
        pairs = (("speclift", self.speclift, other.speclift), ("Ray", self.ray, other.ray))
        ours, theirs = (each.python.rpartition(".")[0] for each in (self, other))
        return [
            f"{name} {there or 'none'} instead of {here}" for name, here, there in pairs if here != there
        ] + ([f"Python {theirs} instead of {ours}"] if ours != theirs else [])


class RemoteWorker(Generic[Worker]):
    """An object of ours that lives in a process on a node, and is called from here."""

    def __init__(self, ray: ModuleType, handle: object, node: ClusterNode) -> None:
        self._ray, self._handle, self.node = ray, handle, node
        self._begun: object | None = None

    def call(self, method: str, *arguments: object, limit_s: Seconds | None = None) -> object:
        """Waits for the answer; FleetError where none comes in time, NodeLost where none can come."""
        exceptions = self._ray.exceptions
        try:
            return self._ray.get(getattr(self._handle, method).remote(*arguments), timeout=limit_s)
        except exceptions.GetTimeoutError as error:
            raise FleetError(
                f"node {self.node.name} gave no answer within {limit_s:.0f} s",
                hint="is its CPU or GPU taken by other work on the cluster? see `ray status`",
            ) from error
        except exceptions.RayTaskError as error:
            raise _cause_of(error) from error
        except exceptions.RayError as error:
            raise NodeLost(self.node.name, first_line(error)) from error

    async def stream(self, method: str, *arguments: object) -> AsyncIterator[object]:
        """What a generator on the node yields, as it comes."""
        exceptions = self._ray.exceptions
        calling = getattr(self._handle, method).options(num_returns="streaming")
        try:
            async for reference in calling.remote(*arguments):
                yield await reference
        except exceptions.RayTaskError as error:
            raise _cause_of(error) from error
        except exceptions.RayError as error:
            raise NodeLost(self.node.name, first_line(error)) from error

    def begin(self, method: str) -> None:
        """Without waiting for it; `settle` does."""
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._begun = getattr(self._handle, method).remote()

    def settle(self, limit_s: Seconds) -> None:
        """Until what was begun has ended, one way or the other, or the time is up."""
        if self._begun is not None:
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.wait([self._begun], timeout=limit_s)

    def kill(self) -> None:
        with contextlib.suppress(self._ray.exceptions.RayError, ValueError):
            self._ray.kill(self._handle, no_restart=True)


class Cluster:
    """Joined, until the block of `joined` ends."""

    def __init__(self, ray: ModuleType, address: str) -> None:
        self._ray = ray
        self.address = address

    def nodes(self) -> tuple[ClusterNode, ...]:
        """Those that are alive, by name. Machines that share a name are told apart by Ray's own number."""
        try:
            alive = [node for node in self._ray.nodes() if node["Alive"]]
        except (self._ray.exceptions.RayError, ConnectionError, RuntimeError) as error:
            raise FleetError(
                f"the head node at {self.address} does not answer: {first_line(error)}"
            ) from error
        names = [str(node["NodeName"]) for node in alive]
        found = [
            ClusterNode(
                name=name if names.count(name) == 1 else f"{name}-{node['NodeID'][:6]}",
                id=str(node["NodeID"]),
                cpus=float(node["Resources"].get("CPU", 0.0)),
                gpus=float(node["Resources"].get("GPU", 0.0)),
            )
            for name, node in zip(names, alive, strict=True)
        ]
        return tuple(sorted(found, key=lambda node: node.name))

    def free(self, node: ClusterNode) -> tuple[float, float] | None:
        """CPUs and GPUs that nobody holds at the moment; None where Ray does not say."""
        per_node = getattr(self._ray._private.state, "available_resources_per_node", None)
        if per_node is None:
            return None
        left = per_node().get(node.id, {})
        return float(left.get("CPU", 0.0)), float(left.get("GPU", 0.0))

    def worker(
        self,
        made: Callable[[], Worker],
        node: ClusterNode,
        *,
        cpus: float,
        gpus: float,
        at_once: int = 4,
    ) -> RemoteWorker[Worker]:
        """One on this node and no other, with so much of what Ray shares out; it ends when this process does."""
        remote = self._ray.remote(made).options(
            num_cpus=cpus,
            num_gpus=gpus,
            max_concurrency=at_once,
            max_restarts=0,
            scheduling_strategy=self._affinity(node),
        )
        return RemoteWorker(self._ray, remote.remote(), node)

    def call_on_each(
        self, nodes: Sequence[ClusterNode], function: Callable[[], Told]
    ) -> Mapping[str, Told | None]:
        """By node; None where it gave no answer in time. For small questions: it takes nothing of the node."""
        remote = self._ray.remote(function)
        asked = {
            node.name: remote.options(num_cpus=0, scheduling_strategy=self._affinity(node)).remote()
            for node in nodes
        }
        ready, _ = self._ray.wait(list(asked.values()), num_returns=len(asked), timeout=WORKER_LIMIT_S)
        return {
            name: cast(Told, self._answer(name, reference)) if reference in ready else None
            for name, reference in asked.items()
        }

    def _answer(self, node: str, reference: object) -> object:
        exceptions = self._ray.exceptions
        try:
            return self._ray.get(reference)
        except exceptions.RayTaskError as error:
            raise FleetError(f"node {node} cannot run Python of ours: {first_line(error)}") from error
        except exceptions.RayError as error:
            raise NodeLost(node, first_line(error)) from error

    def _affinity(self, node: ClusterNode) -> object:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node.id, soft=False)


@contextmanager
def joined(address: FleetAddress) -> Iterator[Cluster]:
    """A cluster that was started here ends with the block; one that was joined stays."""
    os.environ.update({name: value for name, value in QUIET.items() if name not in os.environ})
    ray = _ray()
    with _own_signal_handlers():
        where = _initialised(ray, address)
    _print_nothing()
    try:
        yield Cluster(ray, where)
    finally:
        with contextlib.suppress(OSError), _own_signal_handlers():
            ray.shutdown()


def require_alike(cluster: Cluster, nodes: Sequence[ClusterNode]) -> None:
    """FleetError that names the nodes with another speclift, Ray or Python; their records would not be comparable."""
    ours = Versions(speclift=__version__, ray=_ray().__version__, python=platform.python_version())
    faults = []
    for name, found in cluster.call_on_each(nodes, _versions_there()).items():
        if found is None:
            faults.append(f"node {name} gave no answer within {WORKER_LIMIT_S:.0f} s")
        elif unlike := ours.differences(Versions(**found)):
            faults.append(f"node {name} has {', '.join(unlike)}")
    if faults:
        raise FleetError("; ".join(faults), hint="install the same versions on every node of the cluster")


def _versions_there() -> Callable[[], dict[str, str]]:
    """A function that travels whole: a node without speclift can run it and say so."""

    def versions() -> dict[str, str]:
        import platform
        from importlib.metadata import PackageNotFoundError, version

        found = {"python": platform.python_version()}
        for name in ("speclift", "ray"):
            try:
                found[name] = version(name)
            except PackageNotFoundError:
                found[name] = ""
        return found

    versions.__module__ = "__main__"
    return versions


def first_line(error: BaseException) -> str:
    """Ray's errors go on for pages; the sentence that says why is enough, without Ray's own numbers."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    because = [
        line for line in lines if line.startswith(("The actor died because", "The node", "The actor is"))
    ]
    line = (because or lines or [type(error).__name__])[0]
    return NUMBERED.sub("", line).strip().rstrip(".")[:300]


def _cause_of(error: BaseException) -> BaseException:
    """An error of ours that was raised on a node is raised here as it was."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, OperatingError) else error


def _ray() -> ModuleType:
    try:
        import ray
    except ImportError as error:
        raise FleetError("--on ray needs Ray", hint="pip install 'speclift[ray]'") from error
    return cast(ModuleType, ray)


def _initialised(ray: ModuleType, address: FleetAddress) -> str:
    quiet = {"logging_level": "CRITICAL", "log_to_driver": False}
    if address.head is not None:
        _require_reachable(*address.head)
    where = "auto" if address.head is None else f"{address.head[0]}:{address.head[1]}"
    try:
        return str(ray.init(address=where, **quiet).address_info["gcs_address"])
    except ConnectionError as error:
        if address.head is not None:
            raise FleetError(
                f"no Ray cluster answers at {where}: {first_line(error)}",
                hint="give the address that `ray start --head` printed",
            ) from error
    except (RuntimeError, ValueError, OSError) as error:
        # Among them: another version of Ray or Python there, in Ray's own words.
        raise FleetError(f"cannot join the Ray cluster at {where}: {first_line(error)}") from error
    started = ray.init(include_dashboard=False, object_store_memory=OBJECT_STORE_BYTES, **quiet)
    return str(started.address_info["gcs_address"])


def _require_reachable(host: str, port: int) -> None:
    """Ray itself would try for a minute."""
    try:
        with socket.create_connection((host, port), timeout=REACHED_WITHIN_S):
            return
    except OSError as error:
        raise FleetError(
            f"no Ray cluster answers at {host}:{port}: {error.strerror or error}",
            hint="give the address that `ray start --head` printed, such as ray:10.0.0.1:6379",
        ) from error


@contextmanager
def _own_signal_handlers() -> Iterator[None]:
    """Ray takes SIGTERM for itself; Ctrl-C and SIGTERM are ours to heed (bench/interrupts.py)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)


def _print_nothing() -> None:
    """What Ray says of a lost node goes past its own log level to the terminal; we say it ourselves, in a line."""
    try:
        from ray._private.ray_logging import global_worker_stdstream_dispatcher as printed
    except ImportError:
        return
    for name, _ in list(printed.handlers):
        printed.remove_handler(name)
