"""llama.cpp: the embedded server or the user's llama-server binary, through one adapter."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from speclift.core.arm import YOURS, Arm, Endpoint, ServerSettings
from speclift.core.errors import EngineError, without_tracebacks
from speclift.core.json_reading import need_objects, need_whole
from speclift.core.results import Finding
from speclift.core.speculation import Combined, DraftModel, Head, Synthetic
from speclift.core.user_command import OwnLine
from speclift.engines.installed import TOGETHER_MEMORY_SHARE, available_memory_bytes
from speclift.engines.llamacpp.dialect.command_line import SERVICE
from speclift.engines.llamacpp.dialect.judgement import CONTEXT_FLAGS, SLOT_FLAGS
from speclift.engines.llamacpp.dialect.tables import LISTENING
from speclift.engines.llamacpp.flags import flag_pairs, own_line, server_flags, speculation_flags
from speclift.engines.llamacpp.server import knows
from speclift.engines.probe import judge_probe, probe_body
from speclift.engines.process import LaunchedServer, ServerProcess, container_start, free_port
from speclift.linter.row_rules import compose_service, python_launch

READY_LIMIT_S = 180.0
# What brings the embedded server along.
INSTALL = "pip install 'speclift[llama]'"
BIND_TRIES = 3
# cache_prompt: a reused prefix would make the second arm's prefill free. timings_per_token: step counts.
HONEST_BODY: tuple[tuple[str, object], ...] = (("cache_prompt", False), ("timings_per_token", True))
# On an abort ggml attaches gdb and prints for seconds unless told not to (b11549).
ENVIRONMENT = {"GGML_NO_BACKTRACE": "1"}
# Weights, their repacked copy and buffers, relative to the file (SmolLM2-135M: 92 MB file, 300 MB resident).
RESIDENT_PER_FILE_BYTE = 3.5
# Of --ctx-size: as long as the model was trained for.
WHOLE_CONTEXT = "0"


class LlamaCpp:
    """Launches llama.cpp. `binary` is a llama-server; without one the embedded xllamacpp is used."""

    name = "llamacpp"
    samples_wrongly = ""
    launches_at_once = 1

    def __init__(
        self, settings: ServerSettings, *, binary: str | None = None, version: str | None = None
    ) -> None:
        """With a `version` it need not be installed here: a container has it, or nothing will be launched."""
        self.settings = settings
        self.model = settings.model
        self._prefix = _prefix(binary) if version is None else (binary or "llama-server",)
        self._binary = binary if version is None else self._prefix[0]
        self._asked_version = version

    def version(self) -> str:
        if self._asked_version is not None:
            return self._asked_version
        if self._binary is None:
            return embedded_version()
        try:
            result = subprocess.run(
                [*self._prefix, "--version"], capture_output=True, text=True, timeout=20, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EngineError(f"{self._binary} --version failed: {error}") from error
        lines = [line for line in (result.stderr + result.stdout).splitlines() if "version" in line]
        return lines[0].strip() if lines else "unknown"

    def command(self, arm: Arm, *, port: int) -> tuple[str, ...]:
        settings, line = self.settings if self._binary else _as_embedded(self.settings), self.settings.line
        if line is not None and line.is_in_container:
            return (
                *line.launcher,
                *container_start(line.start, port=port),
                *server_flags(settings, port=port),
                *speculation_flags(arm),
            )
        launcher = () if line is None else line.launcher
        return (*launcher, *self._prefix, *server_flags(settings, port=port), *speculation_flags(arm))

    def configurations(self, arm: Arm) -> dict[str, str]:
        if self.settings.line is None:
            argv = ("llama-server", *server_flags(self.settings, port=8080), *speculation_flags(arm))
        else:
            line = own_line(self.settings.line, self.settings)
            argv = line.command(line.speculation if arm.name == YOURS else speculation_flags(arm))
        return {
            "command": shlex.join(argv),
            "python": python_launch(argv),
            "yaml": compose_service(argv, name=SERVICE),
        }

    def config(self, arm: Arm) -> dict[str, object]:
        return dict(flag_pairs(speculation_flags(arm)))

    def fits_together(self, arms: tuple[Arm, ...]) -> bool:
        if self.settings.gpu_layers:
            return False  # a second server beside it would change what fits on the GPU
        needed = RESIDENT_PER_FILE_BYTE * sum(
            Path(path).stat().st_size
            for arm in arms
            for path in self._model_files(arm)
            if Path(path).exists()  # a missing draft fails its own arm, at launch
        )
        return needed < TOGETHER_MEMORY_SHARE * available_memory_bytes()

    def _model_files(self, arm: Arm) -> tuple[str, ...]:
        match arm.speculation:
            case DraftModel(model=draft) | Synthetic(inner=DraftModel(model=draft)):
                return (self.model, draft)
            case Head(model=str(head)):
                return (self.model, head)
            case Combined(parts=parts):
                return (self.model, *(part.model for part in parts if isinstance(part, DraftModel)))
            case _:
                return (self.model,)

    def loses_scheduling(self, arm: Arm) -> bool:
        return False

    def risks(self, arms: Sequence[Arm]) -> tuple[Finding, ...]:
        return ()

    async def launch(self, arm: Arm, *, log: Path) -> LaunchedServer:
        own = {} if self.settings.line is None else self.settings.line.variables
        for attempt in range(1, BIND_TRIES + 1):
            port = free_port()
            command = self.command(arm, port=port)
            process = await ServerProcess.start(
                command, base_url=f"http://127.0.0.1:{port}", log=log, env={**ENVIRONMENT, **own}
            )
            try:
                await process.wait_until_ready(path="/health", limit_s=READY_LIMIT_S)
                return await self._verified(arm, process, command)
            except EngineError as error:
                await process.stop()
                # Another program may take the port between our look and the engine's bind.
                if attempt < BIND_TRIES and "bind" in error.log_tail:
                    continue
                if not error.log_tail:
                    error.log_tail = without_tracebacks(process.log_tail())
                raise
            except BaseException:
                await process.stop()
                raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _verified(self, arm: Arm, process: ServerProcess, command: tuple[str, ...]) -> LaunchedServer:
        slots = need_objects(json.loads(await process.get("/slots")))
        speculating = [bool(slot.get("speculative")) for slot in slots]
        if any(is_on != arm.speculates for is_on in speculating):
            raise EngineError(
                f"arm {arm.name} needs {arm.method}, but the server reports speculative={speculating}",
                hint="llama.cpp turns speculation off without an error, often because the draft's vocabulary differs",
                log_tail=process.log_tail(),
            )
        endpoint = Endpoint(base_url=process.base_url, model=self.model, extra_body=HONEST_BODY)
        if arm.speculates:
            body = probe_body(self.model, dict(HONEST_BODY))
            answer = await process.post("/v1/chat/completions", body)
            judge_probe(answer, arm=arm.name, is_forced=isinstance(arm.speculation, Synthetic))
        kv_tokens = sum(need_whole(slot["n_ctx"]) for slot in slots)
        return LaunchedServer(process, endpoint=endpoint, command=command, kv_tokens=kv_tokens)


def _as_embedded(settings: ServerSettings) -> ServerSettings:
    """The user's own line as far as the embedded server takes it, with llama-server's defaults where it has others."""
    if settings.line is None:
        return settings
    line = embedded_line(settings.line)
    if not line.has(*CONTEXT_FLAGS):
        line = line.saying(CONTEXT_FLAGS, WHOLE_CONTEXT)
    if not line.has(*SLOT_FLAGS):
        line = line.saying(SLOT_FLAGS, str(settings.slots))
    return replace(settings, line=line)


def embedded_line(line: OwnLine) -> OwnLine:
    """Without the flags that only a llama-server has."""
    return line.without(lambda name, flag: name not in LISTENING and not knows(flag))


def has_embedded() -> bool:
    return importlib.util.find_spec("xllamacpp") is not None


def embedded_version() -> str:
    return f"xllamacpp {importlib.metadata.version('xllamacpp')}"


def _prefix(binary: str | None) -> tuple[str, ...]:
    if binary is None:
        if not has_embedded():
            raise EngineError(
                "the embedded llama.cpp engine is not installed",
                hint=f"{INSTALL}, or pass --llama-server PATH",
            )
        return (sys.executable, "-m", "speclift.engines.llamacpp.server")
    found = shutil.which(binary)
    if found is None:
        raise EngineError(f"no program at {binary!r}", hint="--llama-server takes the path of llama-server")
    return (found,)
