"""A server as its user starts it: their own command without speculation, word for word.

Secrets in it never get further than here: `***` stands where one stood. Those of the environment are handed to the
servers by this process alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from speclift.core.address import HIDDEN, remember

# What people keep from others, by the name of the variable.
SECRET_VARIABLE = re.compile(r"TOKEN|KEY|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
HUB_TOKEN_FLAGS = frozenset({"--hf-token", "-hft"})
# What both engines read instead of those flags.
HUB_TOKEN = "HF_TOKEN"
SECRET_FLAGS = HUB_TOKEN_FLAGS | {"--api-key"}

CONTAINERS = (("docker",), ("podman",), ("nerdctl",))
# They start a program elsewhere; docker and its kind are among them but for `docker run`.
REMOTE = frozenset(
    {
        *("ssh", "srun", "mpirun", "mpiexec", "kubectl", "oc", "apptainer", "singularity", "systemd-run"),
        *("docker", "podman", "nerdctl"),
    }
)
# They give a program its cores, its memory or its priority.
PLACING = (("numactl",), ("taskset",), ("nice",), ("ionice",), ("chrt",))


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnLine:
    """`start` is all that stands before the flags: docker run … image, vllm serve MODEL, llama-server.

    `flags` come in the user's order, each with its values; where the server listens is among them, and the adapters
    leave that out when they launch it.
    """

    start: tuple[str, ...] = ()
    flags: tuple[tuple[str, ...], ...] = ()
    # The engine's own name of each flag, which a user may spell in other ways; empty where they are spelled so.
    names: tuple[str, ...] = ()
    # Programs that start it: sudo, numactl, uv run.
    wrapper: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    # What was pasted, for a comparison with what is recommended.
    text: str = ""
    # The share of the GPU's memory that it may use, where it says so.
    utilisation: float | None = None
    # Words of the engine's own that ask for the speculation of the line; empty where it asks for none.
    speculation: tuple[str, ...] = ()

    @property
    def is_in_container(self) -> bool:
        return self.start[:1] in CONTAINERS and "run" in self.start[1:3]

    @property
    def is_remote(self) -> bool:
        """Whether it runs on a machine, or in a container, that this process cannot start it in."""
        others = {*self.wrapper, *(self.start[:1] if not self.is_in_container else ())}
        return not others.isdisjoint(REMOTE)

    @property
    def launcher(self) -> tuple[str, ...]:
        """What of the wrapper a launch of ours keeps: what changes how fast the server is, or who may ask docker."""
        is_kept = self.is_in_container or self.wrapper[:1] in PLACING
        return self.wrapper if is_kept else ()

    @property
    def variables(self) -> dict[str, str]:
        """To launch with; what is hidden stands in the environment of this process."""
        return {name: value for name, value in self.environment if value != HIDDEN}

    @property
    def named(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Each flag under the engine's own name of it."""
        names = self.names or tuple(name_of(flag) for flag in self.flags)
        return tuple(zip(names, self.flags, strict=True))

    def words(self, *, without: Collection[str] = ()) -> Iterator[str]:
        for name, flag in self.named:
            if name not in without:
                yield from flag

    def has(self, *names: str) -> bool:
        return any(name in names for name, _ in self.named)

    def value(self, *names: str) -> str | None:
        """As an engine takes it: the last one given."""
        given = [flag for name, flag in self.named if name in names]
        if not given:
            return None
        _, equals, value = given[-1][0].partition("=")
        return value if equals else " ".join(given[-1][1:])

    def command(self, words: Sequence[str]) -> tuple[str, ...]:
        """To paste: the whole line with this behind it."""
        variables = (f"{name}={value}" for name, value in self.environment)
        return (*variables, *self.wrapper, *self.start, *self.words(), *words)

    def saying(self, names: Sequence[str], value: str) -> OwnLine:
        """With this value of a flag, where it stood or at the end; the first of its names is the one that is added."""
        kept = [(name, flag) for name, flag in self.named if name not in names]
        spelled = next((name_of(flag) for name, flag in self.named if name in names), names[0])
        return replace(
            self,
            names=(*(name for name, _ in kept), names[0]),
            flags=(*(flag for _, flag in kept), (spelled, value)),
        )

    def without(self, is_left_out: Callable[[str, tuple[str, ...]], bool]) -> OwnLine:
        kept = [(name, flag) for name, flag in self.named if not is_left_out(name, flag)]
        return replace(self, names=tuple(name for name, _ in kept), flags=tuple(flag for _, flag in kept))


def name_of(flag: Sequence[str]) -> str:
    return flag[0].partition("=")[0]


def hidden_words(words: Sequence[str]) -> tuple[str, ...]:
    """The words of a command line without the secrets that flags and variables give."""
    shown: list[str] = []
    is_secret = False
    for word in words:
        name, equals, value = word.partition("=")
        if is_secret and not word.startswith("-"):
            remember(word)
            shown.append(HIDDEN)
            continue
        is_secret = not equals and name in SECRET_FLAGS
        is_assigned = equals and (
            name in SECRET_FLAGS or (name.isidentifier() and SECRET_VARIABLE.search(name))
        )
        if is_assigned:
            remember(value)
        shown.append(f"{name}={HIDDEN}" if is_assigned and value else word)
    return tuple(shown)
