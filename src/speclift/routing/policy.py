"""A policy: the requests that may go to servers that speculate, up to which load, and a kept prefix's worth. Pure.

A policy is what its TOML file says: these types are the file's, its published schema and what is read. What is wrong in
one is said all at once; what would make things worse is named by `faults`.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from types import UnionType
from typing import Any, Literal, get_args, get_origin

import msgspec

from speclift.core.errors import UsageError, unknown_name
from speclift.core.quantities import printable
from speclift.core.results import Decision
from speclift.core.routing import SEGMENT_FIELD, RequestFeatures, ServerPool
from speclift.core.units import Bytes, Seconds, Tokens

SCHEMA: Literal[1] = 1
# Of requests that match no segment.
ELSEWHERE = "elsewhere"
SHIPS = (Decision.SHIP, Decision.SHIP_ON_CONDITIONS)
# What no part of the traffic may fall below where something ships: the contract's floor.
SPEEDUP_MIN = 0.97
# How long a prefix is taken to stay in a server's cache: OpenAI keeps one for five to ten minutes of silence.
KEEP_S: Seconds = 300.0
# Of what a request may wait for a look at its prompt.
REPETITION_LIMIT_MS = 2.0
# A policy of a thousand segments has less.
FILE_BYTES_MAX: Bytes = 1 << 20
SHOWN_CHARACTERS = 60
HINT = "speclift export STUDY --to gateway writes a policy to begin with"
WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


class PolicyPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file."""


class CountedLoad(StrEnum):
    """Whose requests under way are the load: the server's own, or those of both pools where they share a machine."""

    SERVER = "server"
    ALL = "all"


class PolicySource(PolicyPart, frozen=True, kw_only=True):
    """The study that a policy is from, and what was judged there."""

    study: str
    arm: str
    engine: str
    engine_version: str
    model: str
    verdict: Decision
    metric: str
    written: str
    # Whether it ships on traffic of every kind, load apart: then, and only then, elsewhere may be spec.
    is_for_all_traffic: bool = False


class LoadLimit(PolicyPart, frozen=True, kw_only=True):
    """Requests under way at a server that speculates, the new one among them: above `leave` it goes to plain, and from
    `back` down the next ones return. None: there is no limit."""

    leave: int | None = None
    back: int | None = None
    counted: CountedLoad = CountedLoad.SERVER
    # The most requests under way at which it was measured to pay.
    pays_to: float | None = None

    @property
    def returns_at(self) -> int | None:
        return self.back if self.back is not None or self.leave is None else back_of(self.leave)


def back_of(leave: int) -> int:
    """Lower by the standard deviation of what is under way where requests come at random, so that chance alone rarely
    leads from one to the other and back."""
    return max(1, leave - math.ceil(math.sqrt(leave)))


class PrefixWorth(PolicyPart, frozen=True, kw_only=True):
    """The time saved by a server that has read a conversation's beginning, and how long it keeps that."""

    saves_s_per_1000_tokens: Seconds = 0.0
    keep_s: Seconds = KEEP_S


class RepetitionLook(PolicyPart, frozen=True, kw_only=True):
    """The look-up drafter that is tried on prompts, as `--method` says it, and how long that may take."""

    engine: str
    drafter: str
    limit_ms: float = REPETITION_LIMIT_MS


class SegmentRule(PolicyPart, frozen=True, kw_only=True):
    """Conditions that all have to hold; bounds are part of what they bound. What a request does not say is within no
    bounds, but no response_format is "text"."""

    temperature_min: float | None = None
    temperature_max: float | None = None
    max_tokens_min: Tokens | None = None
    max_tokens_max: Tokens | None = None
    prompt_characters_min: int | None = None
    prompt_characters_max: int | None = None
    repetition_min: float | None = None
    repetition_max: float | None = None
    turns_min: int | None = None
    turns_max: int | None = None
    response_format: str | None = None
    tools: bool | None = None
    path: str | None = None
    model: str | None = None
    # As "name: value", the name in lower case; without a value it has to be there.
    header: str | None = None

    @property
    def is_empty(self) -> bool:
        return self == SegmentRule()

    def holds(self, features: RequestFeatures) -> bool:
        return all(self._within(name, getattr(features, name)) for name in BOUNDED) and self._is_alike(
            features
        )

    def _within(self, name: str, value: float | None) -> bool:
        low, high = self.bounds(name)
        if low is None and high is None:
            return True
        return value is not None and (low is None or low <= value) and (high is None or value <= high)

    def bounds(self, name: str) -> tuple[float | None, float | None]:
        return getattr(self, f"{name}_min"), getattr(self, f"{name}_max")

    def _is_alike(self, features: RequestFeatures) -> bool:
        return (
            self.response_format in (None, features.response_format or "text")
            and self.tools in (None, features.has_tools)
            and self.path in (None, features.path)
            and self.model in (None, features.model)
            and (self.header is None or _has_field(features, self.header))
        )

    def takes_all_of(self, other: SegmentRule) -> bool:
        """True if this rule holds for whatever the other holds for."""
        return all(
            (low is None or (other_low is not None and other_low >= low))
            and (high is None or (other_high is not None and other_high <= high))
            for (low, high), (other_low, other_high) in (
                (self.bounds(name), other.bounds(name)) for name in BOUNDED
            )
        ) and all(getattr(self, name) in (None, getattr(other, name)) for name in EXACT)

    def words(self) -> str:
        """The conditions as the file says them."""
        conditions = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return ", ".join(f"{name} = {_plain(value)}" for name, value in conditions if value is not None)


# Features with a lower and an upper bound.
BOUNDED = ("temperature", "max_tokens", "prompt_characters", "repetition", "turns")
EXACT = ("response_format", "tools", "path", "model", "header")
# Of these nothing is below: an upper bound under it can never hold.
LOWEST = {"temperature": 0.0, "max_tokens": 0, "prompt_characters": 0, "repetition": 0.0, "turns": 1}
REPETITION_MAX = 1.0


def _has_field(features: RequestFeatures, header: str) -> bool:
    name, _, wanted = (part.strip() for part in header.partition(":"))
    seen = features.fields.get(name.lower())
    return seen is not None and (not wanted or seen.strip() == wanted)


def _plain(value: object) -> str:
    return (
        repr(value)
        if isinstance(value, str)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value).lower()
    )


class PolicySegment(PolicyPart, frozen=True, kw_only=True):
    """A class of requests, the pool it goes to, and what was measured of it; None was not."""

    name: str
    pool: ServerPool
    # plain / spec of the study's metric with its interval, over so many prompts.
    speedup: float | None = None
    low: float | None = None
    high: float | None = None
    prompts: int | None = None
    # What a request takes from the plain server on average.
    e2e_s: Seconds | None = None
    # Of spec: the highest temperature at which it was measured to pay.
    max_temperature: float | None = None
    # In place of the policy's own.
    leave: int | None = None
    back: int | None = None
    # Of the study's prompts, the share that rules made without them send to the right pool.
    sorted_right: float | None = None
    # One of these has to hold; without any the segment is reached by the header alone.
    when: tuple[SegmentRule, ...] = ()

    @property
    def is_measured(self) -> bool:
        return self.low is not None and self.high is not None

    @property
    def gain_s(self) -> Seconds | None:
        """The time that spec saves of a request; None if it was not measured."""
        if self.speedup is None or self.e2e_s is None or self.speedup <= 0:
            return None
        return self.e2e_s * (1.0 - 1.0 / self.speedup)


class Policy(PolicyPart, frozen=True, kw_only=True):
    """A policy of `speclift gateway --policy FILE`, as TOML. Unknown keys are refused; what is not said was not
    measured."""

    schema: Literal[1]
    elsewhere: ServerPool = ServerPool.PLAIN
    source: PolicySource | None = None
    load: LoadLimit = LoadLimit()
    prefix: PrefixWorth = PrefixWorth()
    repetition: RepetitionLook | None = None
    # In the order in which they are tried.
    segments: tuple[PolicySegment, ...] = msgspec.field(name="segment", default=())

    @property
    def is_measured(self) -> bool:
        return self.source is not None

    def segment(self, name: str) -> PolicySegment | None:
        return next((segment for segment in self.segments if segment.name == name), None)

    def limit_of(self, segment: PolicySegment | None) -> LoadLimit:
        if segment is None or segment.leave is None:
            return self.load
        return LoadLimit(leave=segment.leave, back=segment.back, counted=self.load.counted)


def faults(policy: Policy) -> Iterator[str]:
    """Why this policy must not be followed, one fact each, with what to do; nothing where it may be."""
    yield from _source_faults(policy)
    yield from _name_faults(policy)
    yield from _load_faults("load", policy.load, policy.load.pays_to)
    yield from _amount_faults(policy)
    for segment in policy.segments:
        yield from _segment_faults(segment)
        if segment.leave is not None or segment.back is not None:
            limit = LoadLimit(leave=segment.leave, back=segment.back)
            yield from _load_faults(f"segment {segment.name!r}", limit, policy.load.pays_to)
        for rule in segment.when:
            yield from _rule_faults(segment.name, rule)
    yield from _order_faults(policy)


def _source_faults(policy: Policy) -> Iterator[str]:
    if policy.source is None:
        return
    verdict, study = policy.source.verdict, printable(policy.source.study)
    if verdict is Decision.OUTPUT_CHANGED:
        yield f"study {study}: speculation changed the output: repair that first; speclift verify shows where"
        return
    spec = [segment.name for segment in policy.segments if segment.pool is ServerPool.SPEC]
    if verdict not in SHIPS and spec:
        yield (
            f"study {study} is {verdict.value}, so nothing may go to spec, but {', '.join(map(repr, spec))} would: "
            'say pool = "plain"; --learn finds out on live traffic'
        )
    if policy.elsewhere is ServerPool.SPEC and not (policy.source.is_for_all_traffic and verdict in SHIPS):
        yield (
            f'elsewhere = "spec", but study {study} is {verdict.value} and does not ship on all traffic: '
            'say elsewhere = "plain"'
        )


def _name_faults(policy: Policy) -> Iterator[str]:
    seen: set[str] = set()
    for segment in policy.segments:
        if not segment.name.strip() or segment.name == ELSEWHERE:
            yield f"segment {segment.name!r}: this is no name for a segment: choose another"
        if segment.name in seen:
            yield f"segment {segment.name!r} stands there twice: give each a name of its own"
        seen.add(segment.name)


def _amount_faults(policy: Policy) -> Iterator[str]:
    amounts = {
        "prefix.saves_s_per_1000_tokens": policy.prefix.saves_s_per_1000_tokens,
        "prefix.keep_s": policy.prefix.keep_s,
        "load.pays_to": policy.load.pays_to,
        "repetition.limit_ms": None if policy.repetition is None else policy.repetition.limit_ms,
    }
    for name, amount in amounts.items():
        if amount is not None and amount < 0:
            yield f"{name} = {amount:g} is less than nothing"


def _segment_faults(segment: PolicySegment) -> Iterator[str]:
    place = f"segment {segment.name!r}"
    figures = (segment.low, segment.speedup, segment.high)
    present = [figure for figure in figures if figure is not None]
    if present != sorted(present) or any(figure <= 0 for figure in present):
        yield f"{place}: low <= speedup <= high does not hold: copy them from the study"
    if (segment.low is None) != (segment.high is None):
        yield f"{place}: an interval needs both low and high"
    if segment.pool is ServerPool.SPEC and segment.low is not None and segment.high is not None:
        measured = f"measured {segment.low:.2f}x to {segment.high:.2f}x"
        if segment.high < 1.0:
            yield f'{place}: speculation is slower there ({measured}): say pool = "plain"'
        elif segment.low < SPEEDUP_MIN:
            yield (
                f"{place}: speculation was not shown to be no slower there ({measured}, it takes at least "
                f'{SPEEDUP_MIN}x): say pool = "plain", or measure more prompts of it'
            )


def _load_faults(place: str, limit: LoadLimit, pays_to: float | None) -> Iterator[str]:
    if limit.leave is not None and limit.leave < 1:
        yield f'{place}: leave = {limit.leave} lets nothing through: say pool = "plain" for that'
    if limit.back is not None and limit.leave is None:
        yield f"{place}: back = {limit.back} without leave: say both, or none"
    if limit.back is not None and limit.leave is not None and not 1 <= limit.back <= limit.leave:
        yield f"{place}: back = {limit.back} must lie in 1..leave = {limit.leave}"
    if pays_to is not None and (limit.leave is None or limit.leave > pays_to):
        above = "there is no leave" if limit.leave is None else f"leave = {limit.leave}"
        yield (
            f"{place}: {above}, but speculation was measured to pay up to {pays_to:g} requests under way: "
            f"say leave = {max(1, math.floor(pays_to))}, or measure higher loads"
        )


def _order_faults(policy: Policy) -> Iterator[str]:
    """Rules that come too late: whatever they take was taken before."""
    before: list[tuple[str, SegmentRule]] = []
    for segment in policy.segments:
        for rule in segment.when:
            first = next((name for name, other in before if other.takes_all_of(rule)), None)
            if first is not None:
                yield (
                    f"segment {segment.name!r}: its rule {rule.words()!r} can never hold: {first!r} stands before it "
                    "and takes all of that: change their order, or leave the rule out"
                )
            before.append((segment.name, rule))


def _rule_faults(name: str, rule: SegmentRule) -> Iterator[str]:
    place = f"segment {name!r}"
    if rule.is_empty:
        yield f"{place}: a rule without conditions takes every request: give it one, or say elsewhere"
    for feature in BOUNDED:
        low, high = rule.bounds(feature)
        lowest = LOWEST[feature]
        if low is not None and high is not None and low > high:
            yield f"{place}: {feature}_min = {low:g} is above {feature}_max = {high:g}: no request is between"
        elif high is not None and high < lowest:
            yield f"{place}: {feature}_max = {high:g} can never hold: {feature} is at least {lowest:g}"
    if rule.repetition_min is not None and rule.repetition_min > REPETITION_MAX:
        yield f"{place}: repetition_min = {rule.repetition_min:g} can never hold: it is a share, at most 1"
    if rule.path is not None and not rule.path.startswith("/"):
        yield f"{place}: path = {rule.path!r} can never hold: a path begins with /"
    if rule.header is not None and rule.header.partition(":")[0].strip().lower() == SEGMENT_FIELD:
        yield f"{place}: the header {SEGMENT_FIELD} names segments by itself: leave this rule out"


def read_policy(data: bytes, *, name: str) -> Policy:
    """UsageError with every fault, one on each line, where it cannot be read or would make things worse."""
    wrong: list[str] = []
    policy: Policy | None = _part(Policy, _table(data, name), "", wrong)
    wrong = wrong or ([] if policy is None else list(faults(policy)))
    if wrong or policy is None:
        raise UsageError("\n".join([f"{name} cannot be followed:", *wrong]), hint=HINT)
    return policy


def _table(data: bytes, name: str) -> Mapping[str, object]:
    if len(data) > FILE_BYTES_MAX:
        raise UsageError(f"{name} is larger than {FILE_BYTES_MAX >> 20} MiB: it is no policy", hint=HINT)
    try:
        return tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not UTF-8 at byte {error.start}", hint=HINT) from error
    except (ValueError, RecursionError) as error:  # also of a number of thousands of digits
        raise UsageError(f"{name} is not TOML: {printable(str(error))}", hint=HINT) from error


def _part(kind: type[Any], table: Mapping[str, object], at: str, wrong: list[str]) -> Any:
    """The table as a `kind`; None, and why among `wrong`, where a field is missing or not what it should be."""
    by_key = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    before, values = len(wrong), {}
    for key, value in table.items():
        if key in by_key:
            values[by_key[key].name] = _value(by_key[key].type, value, f"{at}.{key}" if at else key, wrong)
        else:
            nearest = unknown_name(what=f"key of {at or 'a policy'}", seen=printable(key), allowed=by_key)
            wrong.append(f"{nearest} ({nearest.hint})")
    missing = [key for key, field in by_key.items() if field.required and key not in table]
    if "schema" in missing:
        wrong.append(f"schema = {SCHEMA} is what this speclift reads: it is missing")
    wrong += [f"{at}: {key} is missing" for key in missing if key != "schema"]
    return kind(**values) if len(wrong) == before else None


def _value(kind: Any, value: object, at: str, wrong: list[str]) -> object:
    """A table or a list of tables part by part; anything else as msgspec reads it."""
    if isinstance(kind, UnionType):
        (kind,) = (part for part in get_args(kind) if part is not type(None))
    if get_origin(kind) is tuple and isinstance(value, list):
        of = get_args(kind)[0]
        return tuple(_value(of, entry, _entry(at, place, entry), wrong) for place, entry in enumerate(value))
    if isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, PolicyPart):
        return _part(kind, value, at, wrong)
    try:
        if not isinstance(value, float) or math.isfinite(value):
            return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        pass
    wrong.append(f"{_wanted(kind, at)}saw {_shown(value)}")
    return None


def _wanted(kind: Any, at: str) -> str:
    if get_origin(kind) is Literal:
        return f"schema = {SCHEMA} is what this speclift reads: "
    if get_origin(kind) is tuple:
        return f"{at} takes a list of tables: [[{at}]], "
    if issubclass(kind, PolicyPart):
        return f"{at} takes a table: [{at}], "
    words = WORDS.get(kind) or " or ".join(f'"{member.value}"' for member in kind)
    return f"{at} takes {words}, "


def _entry(at: str, place: int, entry: object) -> str:
    """The table's place by its name, if it has one: nobody counts tables."""
    name = entry.get("name") if isinstance(entry, dict) else None
    return f"{at} {printable(name, limit=SHOWN_CHARACTERS)!r}" if isinstance(name, str) else f"{at}[{place}]"


def _shown(value: object) -> str:
    return printable(repr(value), limit=SHOWN_CHARACTERS)


def policy_toml(policy: Policy, *, remarks: Mapping[str, Sequence[str]] | None = None) -> str:
    """`remarks` are comments: under "" those at the head, under a segment's name those above it."""
    above = remarks or {}
    blocks = [
        [*_comments(above.get("", ())), f"schema = {SCHEMA}", _line("elsewhere", policy.elsewhere)],
        *(
            _named(f"[{name}]", part)
            for name in ("source", "load", "prefix", "repetition")
            if (part := getattr(policy, name)) is not None
        ),
        *(_segment(segment, above.get(segment.name, ())) for segment in policy.segments),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _segment(segment: PolicySegment, remarks: Sequence[str]) -> list[str]:
    head = [*_comments(remarks), *_named("[[segment]]", segment)]
    return [
        line
        for block in (head, *(_named("[[segment.when]]", rule) for rule in segment.when))
        for line in block
    ]


def _named(name: str, part: PolicyPart) -> list[str]:
    """Without what is as it is where nothing is said."""
    values = ((field, getattr(part, field)) for field in part.__struct_fields__)
    return [name, *(_line(field, value) for field, value in values if not isinstance(value, tuple | None))]


def _line(name: str, value: object) -> str:
    return f"{name} = {_literal(value)}"


def _literal(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{"".join(_escaped(character) for character in value)}"'
    return repr(value)


def _escaped(character: str) -> str:
    """Whatever could end the text, or act in a terminal that shows the file, as its number."""
    if character in '"\\':
        return f"\\{character}"
    if 0xD800 <= ord(character) <= 0xDFFF:
        return "\N{REPLACEMENT CHARACTER}"  # half of a pair is no character, and has no form in TOML
    if character == " " or (character.isprintable() and not character.isspace()):
        return character
    return f"\\U{ord(character):08X}"


def _comments(lines: Iterable[str]) -> list[str]:
    return [f"# {printable(line)}" for line in lines]
