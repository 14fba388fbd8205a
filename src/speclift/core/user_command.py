"""A server as its user starts it: their own command without speculation, word for word.

Secrets in it never get further than here: `***` stands where one stood. Those of the environment are handed to the
servers by this process alone.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from speclift.core.address import HIDDEN, concealed_within, remember, revealed_within
from speclift.core.errors import UsageError

# What people keep from others, by the name of the variable.
SECRET_VARIABLE = re.compile(r"TOKEN|KEY|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
HUB_TOKEN_FLAGS = frozenset({"--hf-token", "-hft"})
# What both engines read instead of those flags.
HUB_TOKEN = "HF_TOKEN"
SECRET_FLAGS = HUB_TOKEN_FLAGS | {"--api-key"}
# As long as the shortest beginning of either that no other flag of vLLM has (--api-k, --hf-t).
UNAMBIGUOUS = len("--hf-t")
SERVED_NAME = "--served-model-name"
# Of ours: a word for the server.
ENGINE_ARG, END_OF_FLAGS = "--engine-arg", "--"

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


def hidden_words(words: Sequence[str], *, has_variables: bool = True) -> tuple[str, ...]:
    """The words of a command line without the secrets of its flags, variables and addresses, which this process
    remembers for `revealed_words`."""
    shown: list[str] = []
    secret_flag = ""
    for word in _with_hidden_engine_args(words):
        name, equals, value = word.partition("=")
        if secret_flag and not word.startswith("-"):
            shown.append(_hide(secret_flag, word))
            continue
        secret_flag = name if not equals and _gives_secret(name) else ""
        is_variable = has_variables and name.isidentifier() and SECRET_VARIABLE.search(name) is not None
        if equals and value and (is_variable or _gives_secret(name)):
            shown.append(f"{name}={_hide(name, value)}")
        else:
            shown.append(concealed_within(word))
    return tuple(shown)


def revealed_words(words: Sequence[str]) -> tuple[str, ...]:
    """The words to launch, with the secrets that this process took out of them. UsageError where it never had one."""
    values = {name: deque(given) for name, given in _hidden_values.items()}
    told: list[str] = []
    flag = ""
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if word.startswith("-"):
            flag = name
        left = values.get(name if equals else flag)
        if place and words[place - 1] == SERVED_NAME:
            told.append(word)  # requests and metrics repeat it as it stands
        elif word == HIDDEN and left:
            told.append(left.popleft())
        elif equals and value == HIDDEN and left:
            told.append(f"{name}={left.popleft()}")
        else:
            told.append(revealed_within(word))
            if HIDDEN in told[-1]:
                raise UsageError(
                    f"the secret in {flag or name} is unknown: a study stores no secrets",
                    hint="give the same command line again, with --resume",
                )
    return tuple(told)


# In the order in which they were given, by the flag or variable.
_hidden_values: dict[str, list[str]] = {}


def _hide(name: str, value: str) -> str:
    if value != HIDDEN and not value.startswith("$"):
        remember(value)
        values = _hidden_values.setdefault(name, [])
        if value not in values:
            values.append(value)
    return HIDDEN


def _gives_secret(name: str) -> bool:
    """Whether a flag is one of SECRET_FLAGS, with underscores or shortened as argparse takes it."""
    plain = name.replace("_", "-") if name.startswith("--") else name
    return any(
        flag == plain or (len(plain) >= UNAMBIGUOUS and plain.startswith("--") and flag.startswith(plain))
        for flag in SECRET_FLAGS
    )


def _with_hidden_engine_args(words: Sequence[str]) -> list[str]:
    """Flags of ours carry a server's words one by one, so that a secret stands apart from its flag."""
    places: list[tuple[int, str]] = []
    for index, word in enumerate(words):
        if word == END_OF_FLAGS:
            break
        name, equals, value = word.partition("=")
        if name == ENGINE_ARG and equals:
            places.append((index, value))
        elif index and words[index - 1] == ENGINE_ARG:
            places.append((index, word))
    plain = list(words)
    if places:
        hidden = hidden_words([value for _, value in places], has_variables=False)
        for (index, value), shown in zip(places, hidden, strict=True):
            plain[index] = shown if words[index] == value else f"{ENGINE_ARG}={shown}"
    return plain
