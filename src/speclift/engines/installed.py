"""What of an engine is on this machine, found without importing it: programs asked for their version, packages by name.

A program that somebody has put on the PATH may hang, or say anything, or never stop saying it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from speclift.core.quantities import printable
from speclift.core.units import Bytes, Seconds

# Arms stay up side by side only while all of them fit this share of the memory that is free now.
TOGETHER_MEMORY_SHARE = 0.4


def available_memory_bytes() -> Bytes:
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def default_threads() -> int:
    """One core stays with the load generator: llama.cpp's spin barriers stall when a core is shared
    (2 threads on 2 busy cores gave 0.7-5 tokens/s where 1 thread gave 60-90)."""
    return max(1, min(len(os.sched_getaffinity(0)) - 1, 16))


ANSWER_LIMIT_S: Seconds = 5.0
ANSWER_BYTES = 64_000
_VERSION = re.compile(r"\d[\w.+!-]{0,60}")
_SHEBANG = re.compile(r"#!\s*(?:/usr/bin/env\s+)?(\S*python[\w.]*)")
# uv and pip write this where the path of the interpreter is too long, or has blanks.
_EXEC_LINE = re.compile(r"""'''exec'\s+["']?([^"'\n]*python[\w.]*)["']?\s""")
_ASK_PACKAGES = """
import json, sys
from importlib.metadata import PackageNotFoundError, version
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        pass
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """What the user named; None where the PATH is to be searched."""

    llama_server: str | None = None
    vllm_python: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """One program or package of an engine. Without `where` it was not found, and `note` says how to get it; else
    `note` says what is to know of it."""

    name: str
    where: str | None = None
    version: str | None = None
    build: str | None = None  # what it was built for, where it tells: CPU, CUDA
    note: str = ""

    @property
    def is_found(self) -> bool:
        return self.where is not None

    @property
    def said(self) -> str:
        if self.where is None:
            return f"not found; {self.note}" if self.note else "not found"
        build = f"{self.build} build" if self.build else ""
        head = ", ".join(filter(None, (self.version or "version unknown", build, self.where)))
        return f"{head}; {self.note}" if self.note else head


@dataclass(frozen=True, slots=True)
class ProgramOutput:
    """What a program printed; `fault` says why that is not to be believed, and is empty where it is."""

    text: str
    fault: str = ""


def answer_of(command: Sequence[str], *, limit_s: Seconds | None = None) -> ProgramOutput:
    """Both streams of a program that is stopped, with all it started, after a while or after enough."""
    limit_s = ANSWER_LIMIT_S if limit_s is None else limit_s
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return ProgramOutput("", f"does not start: {printable(str(error), limit=200)}")
    is_late = threading.Event()

    def give_up() -> None:
        is_late.set()
        _stop(process)

    timer = threading.Timer(limit_s, give_up)
    timer.start()
    assert process.stdout is not None
    with process.stdout as output:
        text = output.read(ANSWER_BYTES).decode("utf-8", "replace")
    timer.cancel()
    _stop(process)
    process.wait()
    if is_late.is_set():
        return ProgramOutput("", f"did not answer within {limit_s:g} s")
    return ProgramOutput(text)


def _stop(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def packages_of(python: str, names: Sequence[str]) -> tuple[dict[str, str], str]:
    """Versions of packages in the environment of an interpreter, and why they are not known where they are not."""
    answer = answer_of([python, "-c", _ASK_PACKAGES, *names])
    if answer.fault:
        return {}, f"{python} {answer.fault}"
    try:
        found = json.loads(answer.text.strip().splitlines()[-1])
    except (ValueError, IndexError, RecursionError):
        return {}, f"{python} is no Python that answers"
    if not isinstance(found, dict):
        return {}, f"{python} is no Python that answers"
    return {name: str(text) for name, text in found.items() if _VERSION.fullmatch(str(text))}, ""


def interpreter_of(script: str) -> str | None:
    """The Python that runs a script which a package installed; None where it does not tell."""
    try:
        with Path(script).open("rb") as file:
            head = file.read(1_000).decode("utf-8", "replace")
    except OSError:
        return None
    match = _SHEBANG.match(head) or _EXEC_LINE.search(head)
    return None if match is None else match[1]


def torch_build(version: str | None) -> str | None:
    """What PyTorch was built for: 2.9.0+cu128, 2.9.0+cpu."""
    local = (version or "").partition("+")[2]
    if local.startswith("cu") and local[2:].isdigit():
        return f"CUDA {local[2:-1]}.{local[-1]}"
    if local.startswith("rocm"):
        return f"ROCm {local[4:]}"
    return {"cpu": "CPU", "xpu": "XPU"}.get(local)
