"""The engine contract for servers that somebody else started: what attach does otherwise, written once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import ClassVar

import pytest
from engine_contract import EngineContract, port_of

from processes import is_running, listening_addresses
from speclift.core.arm import Arm, ServerSettings, baseline_arm
from speclift.core.engine_spec import AttachSettings
from speclift.core.errors import EngineError
from speclift.core.speculation import Attached
from speclift.engines.attach.kind import Attach
from speclift.engines.process import free_port
from speclift.engines.protocol import Engine, Server


class AttachContract(EngineContract):
    # Who runs at an address; the attached server knows nothing but that.
    hosts: ClassVar[dict[str, Server]] = {}

    @pytest.fixture(scope="class")
    @classmethod
    def host(cls) -> Engine:
        """Given by the subclass: the engine that runs the servers."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def host_arm(cls) -> Arm:
        """Given by the subclass: how that engine speculates."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def hosted(
        cls, host: Engine, host_arm: Arm, runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[dict[str, Server]]:
        """The servers to attach to: a baseline, one that speculates, and a baseline that may be killed."""
        arms = {"baseline": baseline_arm(), "spec": host_arm, "mortal": baseline_arm()}
        logs = tmp_path_factory.mktemp("hosts")
        servers: dict[str, Server] = {}
        try:
            for name, arm in arms.items():
                servers[name] = runner.run(host.launch(arm, log=logs / f"{name}.log"))
            yield servers
        finally:
            for server in servers.values():
                runner.run(server.stop())

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, hosted: dict[str, Server]) -> Engine:
        cls.hosts = {server.endpoint.base_url: server for server in hosted.values()}
        return attach(hosted["baseline"].endpoint.base_url, hosted["spec"].endpoint.base_url)

    @pytest.fixture(scope="class")
    @classmethod
    def mortal(cls, engine: Engine, hosted: dict[str, Server]) -> Engine:
        return attach(hosted["mortal"].endpoint.base_url)

    @pytest.fixture(scope="class")
    @classmethod
    def speculative(cls) -> Arm:
        return Arm(name="spec", speculation=Attached())

    @pytest.fixture(scope="class")
    @classmethod
    def hopeless(cls) -> tuple[Engine, str]:
        return attach(f"http://127.0.0.1:{free_port()}"), "Connection refused"

    def host_of(self, server: Server) -> Server:
        return self.hosts[server.endpoint.base_url]

    def processes_of(self, server: Server) -> list[int]:
        return super().processes_of(self.host_of(server))

    def reason(self, error: EngineError) -> str:
        assert error.log_tail == ""  # there is no log to end
        return str(error)

    def expect_command(self, server: Server) -> None:
        assert server.command == ("attach", server.endpoint.base_url)

    def expect_arms_to_differ(self, plain: tuple[str, ...], speculated: tuple[str, ...]) -> None:
        """By their addresses alone; who started them knows the rest."""
        assert plain[0] == speculated[0] == "attach"
        assert plain[1:] != speculated[1:]

    def expect_configuration(self, engine: Engine, arm: Arm) -> None:
        assert engine.configurations(arm) == {}
        assert engine.config(arm) == {}

    def expect_kv_tokens(self, server: Server) -> None:
        assert server.kv_tokens == self.host_of(server).kv_tokens

    def expect_death(self, death: str) -> None:
        assert death.endswith("refuses connections")

    def expect_after_stop(self, server: Server, pids: list[int]) -> None:
        """Somebody else's server runs on."""
        assert [pid for pid in pids if not is_running(pid)] == []
        assert listening_addresses(port_of(server))
        assert server.death() is None


def attach(baseline_url: str, spec_url: str | None = None) -> Attach:
    return Attach(ServerSettings(model=""), AttachSettings(baseline_url=baseline_url, spec_url=spec_url))
