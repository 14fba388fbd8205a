"""An arm: one engine configuration under test. What all arms share is in ServerSettings."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated

from speclift.core.errors import UsageError
from speclift.core.flags import AUTO_ON_OFF, COMPARED, SERVER, Flag
from speclift.core.speculation import Equalised, Off, Speculation, draft_length, method_name
from speclift.core.units import Bytes, Tokens
from speclift.core.user_command import OwnLine, hidden_words

# The target that llama.cpp is measured with where none is named.
EMBEDDED_MODEL = "smollm2-135m"
BASELINE = "baseline"
CONTROL = "control"
# The speculation of the line that the user brought.
YOURS = "yours"


# Less has no room for a prompt and an answer.
CONTEXT_MIN: Tokens = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    name: str
    speculation: Speculation

    @property
    def is_baseline(self) -> bool:
        return isinstance(self.speculation, Off)

    @property
    def is_control(self) -> bool:
        return isinstance(self.speculation, Equalised)

    @property
    def speculates(self) -> bool:
        return not self.is_baseline and not self.is_control

    @property
    def method(self) -> str:
        return method_name(self.speculation)

    @property
    def k(self) -> int:
        return draft_length(self.speculation)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuShare:
    """What each of several servers on one GPU is told: its KV cache, and which share of the memory must be free when it
    starts."""

    kv_bytes: Bytes
    utilisation: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The part of a launch that is the same for every arm, so that only speculation differs."""

    # As the user says it; in a study, as the engine takes it.
    model: Annotated[
        str,
        Flag(
            "GGUF path or catalogue name; for vllm a Hugging Face folder or id.",
            COMPARED,
            "MODEL",
            names=("--model", "--target"),
        ),
    ] = EMBEDDED_MODEL
    # Requests that are decoded at once: follows from the loads.
    slots: int = 1
    threads: Annotated[
        int | None, Flag("Engine threads; default: all cores but one.", SERVER, "N", low=1)
    ] = None
    context_tokens: Annotated[
        Tokens, Flag("Context tokens per request.", SERVER, "N", names=("--context",), low=CONTEXT_MIN)
    ] = 2048
    gpu_layers: Annotated[int | None, Flag("Target layers on the GPU (llama.cpp).", SERVER, "N")] = None
    kv_type_k: Annotated[str | None, Flag("KV cache type of keys, such as q8_0.", SERVER, "TYPE")] = None
    kv_type_v: Annotated[str | None, Flag("KV cache type of values.", SERVER, "TYPE")] = None
    # One value of what --target-quant and --token-budget say.
    target_quant: str | None = None
    token_budget: Tokens | None = None
    tp: Annotated[int, Flag("Tensor-parallel size (vLLM).", SERVER, "N", low=1)] = 1
    pp: Annotated[int, Flag("Pipeline-parallel size (vLLM).", SERVER, "N", low=1)] = 1
    max_num_seqs: Annotated[int | None, Flag("Max requests per step (vLLM).", SERVER, "N", low=1)] = None
    prefix_cache: Annotated[bool, Flag("Turn prefix caching on (vLLM).", SERVER)] = False
    # None is what the engine does by itself in each arm.
    async_scheduling: Annotated[
        bool | None,
        Flag("auto, on or off (vLLM); auto: vLLM decides for each arm.", SERVER, "WHEN", reading=AUTO_ON_OFF),
    ] = None
    engine_args: Annotated[
        tuple[str, ...],
        Flag("Passed to every arm's server, repeatable.", SERVER, "ARG", names=("--engine-arg",)),
    ] = ()
    # None where a server has the GPU for itself.
    shared_gpu: GpuShare | None = None
    # Kernels whose arithmetic does not depend on what else is in a batch: slower, for comparing texts alone.
    batch_invariant: bool = False
    # The user's own command: then nothing but what is in it, and what measuring needs, is said to the server.
    line: OwnLine | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "engine_args", hidden_words(self.engine_args, has_variables=False))

    def require_only(self, known: tuple[str, ...], *, engine: str) -> None:
        """UsageError where a setting was given that this engine has no word for; silence would change the study."""
        for field in fields(self):
            flag = ENGINE_FLAGS.get(field.name)
            if flag and field.name not in known and getattr(self, field.name) != field.default:
                raise UsageError(f"{flag} is not a setting of {engine}")


# Settings that only some engines have.
ENGINE_FLAGS = {
    name: f"--{name.replace('_', '-')}"
    for name in (
        *("gpu_layers", "target_quant", "token_budget", "tp", "pp"),
        *("max_num_seqs", "prefix_cache", "async_scheduling"),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """All that measure/ may know of a server."""

    base_url: str
    model: str
    api_key: str | None = None
    # Body fields this engine needs for an honest benchmark (llama.cpp: no prompt cache, step counts).
    extra_body: tuple[tuple[str, object], ...] = ()


def baseline_arm() -> Arm:
    return Arm(name=BASELINE, speculation=Off())


def control_arm() -> Arm:
    return Arm(name=CONTROL, speculation=Equalised())
