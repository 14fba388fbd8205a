"""A Ray cluster as speclift sees it: joined or started, its nodes with what they have, calls to one of them.

The only module that imports Ray, and only when somebody said `--on ray`: Ray is an extra. Ray's own errors end here, as
FleetErrors that name the node.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import re
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Generic, TypeVar, cast

from speclift import __version__
from speclift.core.errors import FleetError, OperatingError
from speclift.core.fleet import FleetAddress, fleet_address
from speclift.core.units import Bytes, Seconds
from speclift.engines.aside import started

# Ray tells its makers nothing of a study, and prints nothing between our own lines.
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_COLOR_PREFIX": "0",
    "RAY_enable_metrics_collection": "0",
}
REACHED_WITHIN_S = 5.0
# What HTTP/2, and so gRPC, begins with (RFC 9113, 3.4), and empty settings. Whoever is alive answers or hangs up.
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
# A worker takes seconds to start on an idle node; one that waits longer waits for somebody else's work to end.
WORKER_LIMIT_S: Seconds = 60.0
# What works on a node says so this often, though there be nothing else to say. One that says nothing for so long hangs,
# or cannot be reached: about as long as Ray takes to give up a node that no longer answers.
PULSE_S: Seconds = 2.0
SILENT_LIMIT_S: Seconds = 30.0
# The head is looked for this often. One that is started again by its operator is back within seconds; after a minute
# without it Ray would end this process in the middle of a word (2.60, rpc_client.h).
HEAD_LOOKED_EVERY_S: Seconds = 1.0
HEAD_LIMIT_S: Seconds = 10.0
# Without its head a cluster keeps whoever says goodbye to it waiting.
GOODBYE_LIMIT_S: Seconds = 3.0
# Records are handed over as they arrive; what lies in the object store is small.
OBJECT_STORE_BYTES: Bytes = 100 * 2**20

# What Ray adds to a reason and tells nobody anything.
NUMBERED = re.compile(r"(Node Id|node_id|ID)s?[:=] ?[0-9a-f]{8,}")

Worker = TypeVar("Worker")
Told = TypeVar("Told")
END = object()


class NodeLost(FleetError):
    """The machine, or the worker on it, is gone; what it had sent is kept."""

    def __init__(self, node: str, why: str) -> None:
        super().__init__(f"node {node} was lost: {why}")
        self.node = node


class HeadWatch:
    """Whether the head is still there, looked at by a thread of its own: everything of Ray's waits for it."""

    def __init__(self, address: str, *, when_lost: Callable[[], object] = lambda: None) -> None:
        host, _, port = address.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        self._when_lost = when_lost
        self._seen_s = time.monotonic()
        self._why = ""
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    @property
    def is_lost(self) -> bool:
        return bool(self._why) and time.monotonic() - self._seen_s > HEAD_LIMIT_S

    def require(self) -> None:
        if self.is_lost:
            raise FleetError(
                f"the head node of the cluster at {self._host}:{self._port} was lost: {self._why}",
                hint="what was measured is kept; start the cluster again and continue with --resume",
            )

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._is_over.set()

    def _look(self) -> None:
        while not self._is_over.wait(HEAD_LOOKED_EVERY_S):
            try:
                _require_reachable(self._host, self._port)
            except FleetError as error:
                self._why = str(error.__cause__)
                if self.is_lost:
                    self._when_lost()
                    return
            else:
                self._seen_s, self._why = time.monotonic(), ""


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

    def __init__(self, ray: ModuleType, handle: object, node: ClusterNode, head: HeadWatch) -> None:
        self._ray, self._handle, self.node, self.head = ray, handle, node, head
        self._begun: object | None = None

    def call(self, method: str, *arguments: object, limit_s: Seconds | None = None) -> object:
        """Waits for the answer; FleetError where none comes in time, NodeLost where none can come."""
        reference = getattr(self._handle, method).remote(*arguments)
        with self._named_errors():
            try:
                return self._ray.get(reference, timeout=limit_s)
            except self._ray.exceptions.GetTimeoutError as error:
                raise FleetError(
                    f"node {self.node.name} gave no answer within {limit_s:.0f} s",
                    hint="is its CPU or GPU taken by other work on the cluster? see `ray status`",
                ) from error

    def call_patiently(self, method: str, *arguments: object) -> object:
        """However long it takes, for as long as the worker answers to `alive` meanwhile."""
        reference = getattr(self._handle, method).remote(*arguments)
        with self._named_errors():
            while not self._ray.wait([reference], timeout=PULSE_S)[0]:
                self.head.require()
                pulse = self._handle.alive.remote()  # type: ignore[attr-defined]
                if not self._ray.wait([pulse], timeout=SILENT_LIMIT_S)[0]:
                    raise self._silent()
            return self._ray.get(reference)

    async def stream(self, method: str, *arguments: object) -> AsyncIterator[object]:
        """What a generator on the node yields, as it comes. It yields at least every PULSE_S, if only something empty,
        which is not passed on."""
        calling = getattr(self._handle, method).options(num_returns="streaming")
        with self._named_errors():
            references = calling.remote(*arguments)
            while (batch := await self._next(references)) is not END:
                if batch:
                    yield batch

    async def _next(self, references: AsyncIterator[object]) -> object:
        """END after the last."""
        heard = asyncio.ensure_future(_value_of_next(references))
        since_s = time.monotonic()
        try:
            while not (await asyncio.wait({heard}, timeout=HEAD_LOOKED_EVERY_S))[0]:
                self.head.require()
                if time.monotonic() - since_s > SILENT_LIMIT_S:
                    raise self._silent()
            self.head.require()
            return heard.result()
        finally:
            heard.cancel()

    def _silent(self) -> NodeLost:
        return NodeLost(self.node.name, f"its worker said nothing for {SILENT_LIMIT_S:.0f} s")

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        exceptions = self._ray.exceptions
        try:
            yield
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
        """By the head, which alone can; where that is lost, workers end by themselves."""
        if self.head.is_lost:
            return
        with contextlib.suppress(self._ray.exceptions.RayError, ValueError, TimeoutError):
            started(lambda: self._ray.kill(self._handle, no_restart=True)).result(GOODBYE_LIMIT_S)


class Cluster:
    """Joined, until the block of `joined` ends. `is_own`: it was started for this command."""

    def __init__(self, ray: ModuleType, address: str, *, is_own: bool) -> None:
        self._ray = ray
        self.address, self.is_own = address, is_own
        self.head = HeadWatch(address)

    @property
    def words(self) -> str:
        names = ", ".join(node.name for node in self.nodes())
        if self.is_own:
            return f"no Ray cluster was named or started on this machine: started one here, of {names} alone"
        return f"joined the Ray cluster at {self.address}: {names}"

    def nodes(self) -> tuple[ClusterNode, ...]:
        """Those that are alive, by name. Machines that share a name are told apart by Ray's own number."""
        try:
            known = started(self._ray.nodes).result(HEAD_LIMIT_S)
        except (self._ray.exceptions.RayError, ConnectionError, RuntimeError, TimeoutError) as error:
            raise FleetError(
                f"the head node at {self.address} does not answer: {first_line(error)}"
            ) from error
        alive = [node for node in known if node["Alive"]]
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
        return RemoteWorker(self._ray, remote.remote(), node, self.head)

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
def joined(address: FleetAddress, say: Callable[[str], object]) -> Iterator[Cluster]:
    """A cluster that was started here ends with the block; one that was joined stays. Which it is, is said."""
    os.environ.update({name: value for name, value in QUIET.items() if name not in os.environ})
    ray = _ray()
    with _own_signal_handlers():
        cluster = _initialised(ray, address)
    _print_nothing()
    try:
        cluster.head.start()
        say(cluster.words)
        yield cluster
    finally:
        cluster.head.end()
        with contextlib.suppress(OSError, TimeoutError), _own_signal_handlers():
            started(ray.shutdown).result(GOODBYE_LIMIT_S)


def head_here() -> str:
    """Where a worker on a node finds the head."""
    return str(_ray().get_runtime_context().gcs_address)


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


def _initialised(ray: ModuleType, address: FleetAddress) -> Cluster:
    quiet = {"logging_level": "CRITICAL", "log_to_driver": False}
    head = address.head or _known_head()
    if head is None:
        own = ray.init("local", include_dashboard=False, object_store_memory=OBJECT_STORE_BYTES, **quiet)
        return Cluster(ray, str(own.address_info["gcs_address"]), is_own=True)
    _require_reachable(*head)
    where = f"{head[0]}:{head[1]}"
    try:
        return Cluster(ray, str(ray.init(where, **quiet).address_info["gcs_address"]), is_own=False)
    except ConnectionError as error:
        raise FleetError(
            f"no Ray cluster answers at {where}: {first_line(error)}",
            hint="give the address that `ray start --head` printed",
        ) from error
    except (RuntimeError, ValueError, OSError) as error:
        # Among them: another version of Ray or Python there, in Ray's own words.
        raise FleetError(f"cannot join the Ray cluster at {where}: {first_line(error)}") from error


def _known_head() -> tuple[str, int] | None:
    """RAY_ADDRESS, as in a job that Ray runs; else the cluster that `ray start` made this machine a part of, if it
    still runs. Not whatever else of Ray's happens to run here: that is somebody's own (`ray.init("auto")` takes it)."""
    named = os.environ.get("RAY_ADDRESS", "")
    if named not in ("", "auto", "local"):
        return fleet_address(f"ray:{named}").head
    from ray._private.utils import read_ray_address

    left = None if named == "local" else read_ray_address()
    if left is None:
        return None
    head = fleet_address(f"ray:{left}").head
    assert head is not None
    try:
        _require_reachable(*head)
    except FleetError:
        return None  # `ray start` leaves the address behind; that cluster has ended
    return head


def _require_reachable(host: str, port: int) -> None:
    """Ray itself would try for a minute, and for ever where the head takes connections and hangs."""
    try:
        with socket.create_connection((host, port), timeout=REACHED_WITHIN_S) as asked:
            asked.sendall(GREETING)
            with contextlib.suppress(ConnectionResetError):
                asked.recv(1)
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


async def _value_of_next(references: AsyncIterator[object]) -> object:
    reference = await anext(references, END)
    return END if reference is END else await cast(Awaitable[object], reference)
