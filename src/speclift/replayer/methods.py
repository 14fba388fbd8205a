"""What a replay asks of an engine's n-gram drafters, what users call them, and how each is run over a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from speclift.core.errors import UsageError, unknown_name
from speclift.core.results import Finding
from speclift.core.speculation import HEAD_KINDS, K_MAX
from speclift.core.units import Bytes
from speclift.replayer.counts import Batch, Counts, Drafter, LoggedAnswer, replay_stepwise

PLAIN = "ngram"
SETTINGS = ("k", "min_hits", "n", "n_min")
NEED_A_MODEL = ("draft", "suffix", *HEAD_KINDS)
N_MAX = 256
TABLES_BYTES_MAX = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramDrafter:
    """One drafter under its own name: it looks only at the text so far, or it remembers what came before."""

    method: str
    # One entry of counts per k.
    looks_up: Callable[[Batch, DrafterSetting], list[Counts]] | None = None
    # A new one for one k, of those that carry something from one request to the next.
    makes: Callable[[DrafterSetting, int], Drafter] | None = None
    # Whether it also looks up fewer tokens than n, and whether an n-gram must have been seen some times.
    takes_n_min: bool = False
    takes_min_hits: bool = False
    # It has sizes of its own: nobody chooses k or n.
    own_k: int | None = None
    # Kept for every n and k.
    table_bytes: Bytes = 0

    @property
    def remembers(self) -> bool:
        return self.makes is not None


class LogDrafters:
    """The n-gram drafters of one engine; the first is what plain `ngram` is there."""

    engine: str
    drafters: tuple[NgramDrafter, ...]
    # No step drafts more.
    k_max = K_MAX

    def refused(self, params: Mapping[str, object]) -> tuple[str, ...] | None:
        """Which of a request's parameters it refuses once it speculates; None where it refuses none at all."""
        return None

    def findings(self, settings: Sequence[DrafterSetting]) -> Iterable[Finding]:
        """What a reader must know of these drafters of its own."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterSetting:
    """One drafter to replay at several k. `n` is None for one that has sizes of its own.

    `method` is what the user wrote; plain ngram is ngram:simple on llama.cpp.
    """

    engine: str
    method: str
    drafter: NgramDrafter
    n: int | None
    ks: tuple[int, ...]
    n_min: int | None = None
    min_hits: int = 1

    @property
    def size(self) -> int:
        assert self.n is not None
        return self.n


class Replay(Protocol):
    def counts(self, batch: Batch, answers: Sequence[LoggedAnswer]) -> list[Counts]:
        """One entry per k. Batches must come in the order of the log."""


def settings_for(
    methods: Sequence[str],
    known: Sequence[LogDrafters],
    *,
    engine: str | None,
    ks: Sequence[int],
    ngrams: Sequence[int],
) -> tuple[DrafterSetting, ...]:
    """Every method at every n; a method's own n= and k= win over the lists."""
    engines = {each.engine: each for each in known}
    if engine is not None and engine not in engines:
        raise unknown_name(what="engine", seen=engine, allowed=tuple(engines))
    settings: list[DrafterSetting] = []
    for text in methods:
        name, own = _parsed(text, known)
        runs_on, drafter = _drafter(name, known, engines.get(engine or ""))
        _check_own(text, own, drafter, known)
        chosen_ks = _ks(drafter, own, ks, highest=runs_on.k_max)
        for n in _ngrams(drafter, own, ngrams):
            if n is not None and own.get("n_min", n) > n:
                raise UsageError(f"--method {text}: n_min must lie in 1..n={n}, saw {own['n_min']}")
            setting = DrafterSetting(
                engine=runs_on.engine,
                method=name,
                drafter=drafter,
                n=n,
                ks=chosen_ks,
                n_min=own.get("n_min"),
                min_hits=own.get("min_hits", 1),
            )
            if setting not in settings:
                settings.append(setting)
    _check_tables(settings)
    return tuple(settings)


def replay_of(setting: DrafterSetting) -> Replay:
    drafter = setting.drafter
    if drafter.makes is not None:
        return _Stepwise([drafter.makes(setting, k) for k in setting.ks])
    assert drafter.looks_up is not None
    return _LookUp(setting, drafter.looks_up)


@dataclass(frozen=True, slots=True)
class _LookUp:
    setting: DrafterSetting
    look_up: Callable[[Batch, DrafterSetting], list[Counts]]

    def counts(self, batch: Batch, answers: Sequence[LoggedAnswer]) -> list[Counts]:
        return self.look_up(batch, self.setting)


@dataclass(frozen=True, slots=True)
class _Stepwise:
    drafters: Sequence[Drafter]

    def counts(self, batch: Batch, answers: Sequence[LoggedAnswer]) -> list[Counts]:
        return [replay_stepwise(drafter, answers) for drafter in self.drafters]


def _drafter(
    name: str, known: Sequence[LogDrafters], asked: LogDrafters | None
) -> tuple[LogDrafters, NgramDrafter]:
    """What does this name, and whose it is: the first engine's that has it, where none was asked for."""
    for engine in known if asked is None else (asked,):
        for drafter in engine.drafters:
            if drafter.method == name:
                return engine, drafter
    assert asked is not None  # a name that nobody has was refused as it was parsed
    if name == PLAIN:
        return asked, asked.drafters[0]
    allowed = dict.fromkeys((PLAIN, *(drafter.method for drafter in asked.drafters)))
    raise UsageError(
        f"{name} is not a method of {asked.engine}", hint=f"--engine {asked.engine} has: {', '.join(allowed)}"
    )


def _parsed(text: str, known: Sequence[LogDrafters]) -> tuple[str, dict[str, int]]:
    name, *pairs = (part.strip() for part in text.split(","))
    methods = tuple(dict.fromkeys(drafter.method for engine in known for drafter in engine.drafters))
    if name.partition(":")[0] in NEED_A_MODEL or "+" in name:
        raise UsageError(
            f"--method {name} cannot be replayed: its drafts are not in a log",
            hint=f"replay knows {', '.join(methods)}; for {name}: speclift measure --method {name}",
        )
    if name not in methods:
        raise unknown_name(what="method", seen=name, allowed=methods)
    own: dict[str, int] = {}
    for pair in pairs:
        key, _, value = (word.strip() for word in pair.partition("="))
        if key not in SETTINGS:
            raise unknown_name(what=f"setting in --method {text}", seen=key, allowed=SETTINGS)
        if not value.isascii() or not value.isdigit() or int(value) < 1:
            raise UsageError(f"--method {text}: {key} takes a whole number of at least 1, saw {value!r}")
        own[key] = int(value)
    return name, own


def _check_own(
    text: str, own: Mapping[str, int], drafter: NgramDrafter, known: Sequence[LogDrafters]
) -> None:
    """Settings that this drafter does not read are for others."""
    others = [each for engine in known for each in engine.drafters]
    if "n_min" in own and not drafter.takes_n_min:
        takers = ", ".join(each.method for each in others if each.takes_n_min)
        raise UsageError(f"--method {text}: n_min is for {takers}; this one always looks up n tokens")
    if "min_hits" in own and not drafter.takes_min_hits:
        takers = ", ".join(each.method for each in others if each.takes_min_hits)
        raise UsageError(f"--method {text}: min_hits is for {takers}")


def _check_tables(settings: Sequence[DrafterSetting]) -> None:
    keeping = [setting for setting in settings if setting.drafter.table_bytes]
    if sum(len(setting.ks) * setting.drafter.table_bytes for setting in keeping) > TABLES_BYTES_MAX:
        drafter, tables = keeping[0].drafter, sum(len(setting.ks) for setting in keeping)
        size = f"{drafter.table_bytes >> 20} MiB"
        raise UsageError(
            f"{drafter.method} keeps a table of {size} for every n and k, {tables} of them here",
            hint="give fewer: --k 8,16 --ngram 16",
        )


def _ks(drafter: NgramDrafter, own: Mapping[str, int], ks: Sequence[int], *, highest: int) -> tuple[int, ...]:
    if drafter.own_k is not None:
        return (drafter.own_k,)
    return _within((own["k"],) if "k" in own else ks, flag="--k", highest=highest)


def _ngrams(drafter: NgramDrafter, own: Mapping[str, int], ngrams: Sequence[int]) -> tuple[int | None, ...]:
    if drafter.own_k is not None:
        return (None,)
    return _within((own["n"],) if "n" in own else ngrams, flag="--ngram", highest=N_MAX)


def _within(values: Sequence[int], *, flag: str, highest: int) -> tuple[int, ...]:
    for value in values:
        if not 1 <= value <= highest:
            raise UsageError(f"{flag} takes numbers in 1..{highest}, saw {value}")
    if not values:
        raise UsageError(f"{flag} has no number", hint=f"for example {flag} 2,3,5 or {flag} 1..5")
    return tuple(sorted(set(values)))
