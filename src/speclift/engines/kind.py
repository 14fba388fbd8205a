"""What is true of one engine before any of its servers runs: what it drafts with, what it refuses, how it is built.

One per folder, its `KIND`. A package of somebody else's adds an engine by naming its own in the entry-point group
`speclift.engines`. What an engine does not say of itself is what most engines do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from speclift.core.arm import Arm, Endpoint, ServerSettings
from speclift.core.deployment import ContainerImage
from speclift.core.drafting import Drafting, Template, drafting_of
from speclift.core.engine_spec import EngineSpec
from speclift.core.errors import OperatingError, unknown_name
from speclift.core.speculation import K_MAX, NGram
from speclift.core.units import Seconds
from speclift.core.user_command import OwnLine
from speclift.engines.installed import Installed, Programs
from speclift.engines.named import engine_names, loaded, not_usable, points
from speclift.engines.protocol import Engine, Scorer
from speclift.linter.dialect import Dialect
from speclift.lossless.soak.prompts import SoakDialect
from speclift.planner.request import EngineTerms

if TYPE_CHECKING:  # numpy, which only replay needs
    from speclift.replayer.methods import LogDrafters

ANY_KS = (1, 2, 3, 4, 5, 6, 7, 8)


class EngineKind(ABC):
    name: str
    # What a launch is taken to last until one was seen.
    launch_guess_s: Seconds = 60.0
    # False where the servers are somebody else's: they have one launch, however often they are asked.
    launches = True
    # Whether `decide` searches where nobody named a method.
    searches_unasked = True
    # Its servers come with speclift, so that any machine can be measured with them.
    is_embedded = False
    # What is measured where nothing was named and nothing is searched, and what in a quick look.
    default_methods: tuple[str, ...] = ("ngram,k=4",)
    quick_methods: tuple[str, ...] = ()
    # No step drafts more.
    k_max = K_MAX
    # Whether a prompt that is sent again, as we send it, may find its beginning in a cache; None: its servers tell.
    reuses_prompts: bool | None = None
    # Draft lengths that a search tries, where they are not ANY_KS.
    usual_ks: ClassVar[Mapping[Drafting, tuple[int, ...]]] = MappingProxyType({})

    # Whether a request with a seed is answered alike whatever else the server does.
    honours_seeds = False

    # None: plan cannot count its memory, and does not plan it.
    plan_terms: EngineTerms | None = None
    # None: it has no command line that lint could judge.
    dialect: Dialect | None = None
    # The setting of a drafter that takes k by batch size; None: every step drafts up to the same k.
    schedule_key: str | None = None

    # What `export --to` calls its command line; None: it is nothing that one deploys.
    serving: str | None = None
    # Where its servers listen and say that they are ready, unless told otherwise.
    port = 8000
    health = "/health"
    # Variables that its servers read in place of a flag with a secret.
    secret_flags: ClassVar[Mapping[str, str]] = MappingProxyType({})
    # Flags without which a server cannot be watched.
    watched_with: tuple[str, ...] = ()

    def program_of(self, words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What of a command starts the server, and what it is told."""
        return tuple(words[:1]), tuple(words[1:])

    def served_model(self, settings: ServerSettings) -> str:
        """What requests and metrics call the model."""
        return settings.model

    def image(self, version: str, *, on_gpu: bool) -> ContainerImage | None:
        """The container image that holds this version; None where none is known."""
        return None

    def parts(self) -> dict[str, str]:
        """What of it is on this machine, for doctor, where `installed` does not tell."""
        return {self.name: f"in the package {type(self).__module__.partition('.')[0]}"}

    def installed(self, programs: Programs) -> tuple[Installed, ...]:
        """Its programs and packages on this machine, for doctor: which, where, or how to get them."""
        return ()

    def install_command(self) -> str:
        """What to type so that its servers can be launched here; empty where they can."""
        return ""

    def own_program(self, program: Sequence[str], line: OwnLine) -> tuple[dict[str, object], str]:
        """What a pasted line starts, as settings of an Ask, and what has to be said about it."""
        return {}, ""

    def own_release(self, program: Sequence[str], programs: Mapping[str, object]) -> str | None:
        """The release that would run a pasted line here; None where it is not installed. `programs` are those that
        the user named beside it."""
        return None

    @abstractmethod
    def build(self, spec: EngineSpec, settings: ServerSettings, *, version: str | None) -> Engine:
        """`version` where it is known already, as of a study that was measured on another machine."""

    def side_by_side(self, spec: EngineSpec, arms: Sequence[Arm]) -> EngineSpec:
        """The same servers, each told what it may take now that all of them are to be up at once."""
        return spec

    def model_path(self, reference: str, *, say: Callable[[str], None], fetches: bool) -> str:
        """What `--model` or `--draft` says, as this engine takes it. Without `fetches` nothing is downloaded."""
        return reference

    def is_on_hub(self, server: ServerSettings) -> bool:
        """Whether the engine finds the model by itself, so that its name is no path."""
        return False

    def draft_file(
        self, model: str, quantisation: str, *, say: Callable[[str], None], fetches: bool
    ) -> str | None:
        """The draft in another quantisation, as a file of its own that is made where `fetches`; None: the engine
        quantises as it loads, and is told by a key."""
        return None

    def drafters(self, model: str) -> tuple[Template, ...]:
        """What a search tries where no method is named. `model` is the target as it was asked for."""
        return (NGram(),)

    def installed_drafters(self, spec: EngineSpec) -> tuple[Template, ...]:
        """What a search tries beside them where the version and the packages that would run here have it."""
        return ()

    def ks(self, template: Template) -> tuple[int, ...]:
        return self.usual_ks.get(drafting_of(template), ANY_KS)

    def methods_at(self, methods: tuple[str, ...], ks: Sequence[int]) -> tuple[str, ...]:
        """What was named, with what its author left open chosen so that it drafts at these k. Of nothing: look-up."""
        return methods or ("ngram",)

    def cpu_tile(self, spec: EngineSpec) -> int | None:
        """Where its servers are known to run on a CPU: how many tokens their kernels take at once, 1 if that is not
        known. None elsewhere."""
        return None

    def is_on_gpu(self, spec: EngineSpec) -> bool:
        """Whether its servers are known to run on a GPU."""
        return False

    def never_drafts(self, arm: Arm) -> str | None:
        """Why an arm would start and never draft; None where it would."""
        return None

    def log_drafters(self) -> LogDrafters | None:
        """Its n-gram drafters as it does them, for replay; None where it has none of its own."""
        return None

    async def scorer(self, endpoint: Endpoint) -> Scorer | None:
        """How a server, whoever's it is, tells its own probabilities where it does so as this engine's do; None, or
        EngineError, where trying shows that it does not."""
        return None

    def batch_invariant(self, spec: EngineSpec) -> EngineSpec | None:
        """The same servers with kernels whose arithmetic does not depend on what else is in a batch, so that the same
        text comes out whatever the load; None where engine, version or machine has none."""
        return None

    def soak_dialect(self, version: str) -> SoakDialect:
        """Whose names its servers take for what OpenAI's API does not have; `version` is what an engine says it is."""
        return SoakDialect.OPENAI

    def under_load(self, settings: ServerSettings, *, streams: int) -> ServerSettings:
        """The same server for a soak with so many streams: prompts may be cached, and where the engine can do with
        little room for them, it has to make do."""
        return settings

    def check_pairs(self, arms: Sequence[Arm], target: str) -> None:
        """ModelError where a draft cannot serve this target."""
        return


@cache
def engine_kind(name: str) -> EngineKind:
    if name not in points():
        raise unknown_name(what="engine", seen=name, allowed=engine_names())
    point = points()[name]
    kind = loaded(point)
    if not isinstance(kind, EngineKind):
        raise not_usable(point, f"expected an EngineKind, saw {type(kind).__name__}")
    return kind


def usable_kinds() -> Iterator[EngineKind]:
    """A package that does not load is told where its engine is asked for; to all else it is not there."""
    for name in engine_names():
        try:
            yield engine_kind(name)
        except OperatingError:
            continue
