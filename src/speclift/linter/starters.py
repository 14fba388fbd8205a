"""Programs that start other programs: sudo, uv run, docker exec. What stands behind others is only a word. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from speclift.linter.containers import CONTAINERS
from speclift.linter.dialect import base_name

_STARTERS = frozenset(
    ("sudo", "doas", "nohup", "exec", "time", "nice", "ionice", "numactl", "taskset", "timeout", "setsid", "stdbuf",
     "env", "xargs", "srun", "mpirun", "mpiexec", "chrt", "command", "ssh", "nsys", "ncu", "strace", "screen", "tmux",
     "systemd-run", "unbuffer", "perf", "flock", "tini", "dumb-init", "uvx", "torchrun", "sh", "bash", "zsh", "dash",
     "su")
)  # fmt: skip
# Those that do it only after one of these words: `uv run` and not `uv pip install`.
_RUNNERS = CONTAINERS | frozenset(
    ("uv", "poetry", "pipenv", "pixi", "conda", "mamba", "micromamba", "pipx", "pdm", "hatch", "apptainer",
     "singularity", "kubectl", "oc")
)  # fmt: skip
_RUNNING = frozenset({"run", "exec", "create"})
# Behind a starter these do something else with the name of an engine.
_OTHER_USES = frozenset(
    ("install", "uninstall", "add", "pip", "pip3", "apt", "apt-get", "brew", "systemctl", "service", "pkill", "kill",
     "killall", "echo", "printf", "which", "cd", "rm", "ls", "grep", "git", "clone", "pull", "stop", "start",
     "restart", "logs", "man", "cat", "build", "push", "tag")
)  # fmt: skip


def may_start(program: str) -> bool:
    return base_name(program) in _STARTERS | _RUNNERS


def passes_on(before: Sequence[str]) -> bool:
    """Whether words before a program are ones that start it."""
    if not before:
        return True
    starter = base_name(before[0])
    is_runner = starter in _RUNNERS and not _RUNNING.isdisjoint(before)
    return (is_runner or starter in _STARTERS) and _OTHER_USES.isdisjoint(before)
