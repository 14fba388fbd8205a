"""The gate from what a study recorded anyway: every measured answer of an arm against the baseline's to the same
request and seed. Costs nothing; what it cannot settle, the servers are asked for (bench/gate_study.py)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec import structs

from speclift.core.arm import BASELINE, Arm
from speclift.core.json_reading import as_object
from speclift.core.records import Phase, Record
from speclift.core.results import Finding, fail, is_complete
from speclift.core.traffic import Request, repeated_prompts
from speclift.lossless.answers import Answer, Compared, compare, hazard
from speclift.lossless.calibration import text_tests
from speclift.lossless.gate import Gate, Greedy, Result, Sampled, SoakFault, SoakResult
from speclift.lossless.greedy import Control, control_of, divergences, judge_greedy
from speclift.lossless.judge import (
    JudgedArm,
    ServerAnswers,
    gate_of,
    judge_parts,
    lossy_by_design,
    lossy_gate,
)
from speclift.lossless.questions import QUICK
from speclift.lossless.sampled import if_complete, is_identical, judge_identity, judge_texts
from speclift.lossless.soak.faults import leaked_tokens
from speclift.lossless.soak.rates import Tally, judge_tallies
from speclift.lossless.soak.schemas import is_cut, misfit, promised_format, value_misfit

NOT_SCORED = "a study stores no probabilities; run speclift verify to score them"


class Key(NamedTuple):
    """Same request, same seed, same place in the plan, but for the arm and the launch."""

    load: str
    block: int
    request: str
    temperature: float
    repeat: int

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0


class _Pair(NamedTuple):
    """The answer of the arm, and the baseline of the same round to the same request."""

    key: Key
    reference: Answer
    answer: Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Fresh:
    """References asked for again, with log-probabilities, and what the baseline's own noise was there."""

    references: Mapping[str, Answer]
    noise: tuple[float, ...] = ()


def gate_from_records(
    records: Sequence[Record],
    arms: Sequence[Arm],
    requests: Iterable[Request],
    *,
    settings: Sequence[str] = (),
    fresh: Fresh | None = None,
    seed: int = 0,
) -> Gate:
    """`fresh` are new references to the prompts that part, so that their margins are known."""
    prompts = {request.id: request for request in requests}
    answers = _by_arm(records, repeated_prompts(prompts.values()))
    baseline = answers.get(BASELINE, {})
    control = _control(baseline, fresh)
    judged = []
    for arm in arms:
        why = lossy_by_design(arm, settings)
        arm_answers = answers.get(arm.name, {})
        judged.append(
            lossy_gate(arm, why) if why else _arm(arm, arm_answers, baseline, control, fresh, prompts, seed)
        )
    depth = "records" if fresh is None else QUICK.name
    again = " and new baseline answers with log-probabilities" if fresh else ""
    gate = gate_of(judged, depth=depth, detect=QUICK.detect, control=control)
    return structs.replace(gate, notes=(f"from the study's own answers{again}",))


def parted_requests(gate: Gate) -> tuple[str, ...]:
    """Requests whose greedy answers differ and whose margins are not known yet."""
    return tuple(dict.fromkeys(case for arm in gate.arms for case in arm.greedy.without_margin))


def needs_more_control(gate: Gate) -> bool:
    """True where more of the baseline against itself could tell what differences beyond its noise are."""
    return any(arm.greedy.is_open_by_arithmetic and arm.greedy.wide > 0 for arm in gate.arms)


Held = dict[Key, Answer]


def _by_arm(records: Iterable[Record], first: Mapping[str, str]) -> dict[str, dict[int, Held]]:
    """Answers by arm and round; requests at a temperature that nobody knows cannot be compared. A prompt that the
    file repeats is the case of its `first` request."""
    answers: dict[str, dict[int, Held]] = defaultdict(lambda: defaultdict(dict))
    for record in records:
        place = record.place
        if place.phase is not Phase.MEASURED or place.temperature is None:
            continue
        key = Key(place.load.label, place.block, place.request_id, place.temperature, place.repeat)
        answers[place.arm][place.round][key] = Answer(
            case=first.get(place.request_id, place.request_id),
            text=record.text,
            finish_reason=record.finish_reason,
            tokens=record.output_tokens,
            drafted=record.drafted,
            accepted=record.accepted,
            error="" if record.is_ok else record.error or record.outcome.value,
        )
    return answers


def _control(baseline: Mapping[int, Held], fresh: Fresh | None) -> Control:
    """The baseline against itself: each later round against the first, each load against the first load that asked the
    same, and all of them against new references."""
    pairs: dict[str, list[Compared]] = defaultdict(list)
    rounds = [baseline[index] for index in sorted(baseline)]
    seen: set[tuple[str, str, str]] = set()
    again = [
        (key.load, rounds[0][key], later[key])
        for later in rounds[1:]
        for key in _greedy_keys(rounds[0], later)
    ]
    again += [pair for held in rounds for pair in _over_loads(held)]
    for load, first, second in again:
        if _is_new(seen, load, first, second):
            pairs[load].append(compare(_reference(first, fresh), second))
    if fresh is not None and rounds:
        for key, answer in rounds[0].items():
            if key.is_greedy and answer.is_ok and answer.case in fresh.references:
                pairs[key.load].append(compare(fresh.references[answer.case], answer))
    return control_of(pairs, fresh.noise if fresh else ())


def _over_loads(held: Held) -> Iterator[tuple[str, Answer, Answer]]:
    """Pairs of what was said to a prompt at one load and at the next: the same server, batches of another size."""
    first: dict[str, Answer] = {}
    for key, answer in held.items():
        if not key.is_greedy or not answer.is_ok:
            continue
        earlier = first.setdefault(answer.case, answer)
        if earlier is not answer:
            yield key.load, earlier, answer


def _is_new(seen: set[tuple[str, str, str]], load: str, reference: Answer, answer: Answer) -> bool:
    """The same two texts from another launch are one observation, not two: servers repeat themselves."""
    pair = (f"{load} {reference.case}", reference.text, answer.text)
    is_new = pair not in seen
    seen.add(pair)
    return is_new


def _greedy_keys(first: Held, second: Held) -> list[Key]:
    return [
        key for key in first if key.is_greedy and key in second and first[key].is_ok and second[key].is_ok
    ]


def _reference(answer: Answer, fresh: Fresh | None) -> Answer:
    """The new reference where there is one: it knows margins."""
    again = fresh.references.get(answer.case) if fresh else None
    return answer if again is None else again


def _arm(
    arm: Arm,
    own: Mapping[int, Held],
    baseline: Mapping[int, Held],
    control: Control,
    fresh: Fresh | None,
    prompts: Mapping[str, Request],
    seed: int,
) -> JudgedArm:
    asked = _answered_by_baseline(own, baseline)
    compared = _compared(asked, fresh)
    told, theirs = ServerAnswers(), ServerAnswers()
    for key, reference, answer in compared:
        way = key.load if key.is_greedy else "sampled"
        told.answers.setdefault(way, []).append(answer)
        theirs.answers.setdefault(way, []).append(reference)
    # A part of the traffic that the baseline answered and the arm did not is not a part that passed.
    parts = {key.is_greedy for held in baseline.values() for key, plain in held.items() if plain.is_ok}
    pairs = _greedy_pairs(compared)
    judged = judge_parts(
        arm,
        greedy=_greedy_part(asked, pairs, control) if True in parts else Greedy(),
        divergences=divergences(pairs, control),
        sampled=_sampled_part(asked, compared, seed) if False in parts else Sampled(),
        edges=(),
        told=told,
        baseline=theirs,
        prompts=prompts,
    )
    faults = recorded_faults(
        arm.name,
        _answers_to_both(own, answered=baseline),
        _answers_to_both(baseline, answered=own),
        prompts,
    )
    if not faults:
        return judged
    findings = (*judged.gate.findings, *faults)
    return judged._replace(gate=structs.replace(judged.gate, findings=findings, result=Result.FAIL))


def _answers_to_both(held: Mapping[int, Held], *, answered: Mapping[int, Held]) -> Iterator[Answer]:
    """The answers to what both were asked in the same round."""
    for index, answers in held.items():
        other = answered.get(index, {})
        yield from (answer for key, answer in answers.items() if key in other)


def _answered_by_baseline(own: Mapping[int, Held], baseline: Mapping[int, Held]) -> list[_Pair]:
    """Pairs of what the arm was asked and the baseline of the same round answered."""
    return [
        _Pair(key, reference, answer)
        for index, held in own.items()
        for key, answer in held.items()
        if (reference := baseline.get(index, {}).get(key)) is not None and reference.is_ok
    ]


def _compared(asked: Iterable[_Pair], fresh: Fresh | None) -> list[_Pair]:
    """Pairs that both answered, each pair of texts once; at temperature 0 against the new reference where there is
    one."""
    seen: set[tuple[str, str, str]] = set()
    return [
        pair._replace(reference=_reference(pair.reference, fresh)) if pair.key.is_greedy else pair
        for pair in asked
        if pair.answer.is_ok
        and _is_new(seen, f"{pair.key.load} {pair.key.temperature}", pair.reference, pair.answer)
    ]


def _greedy_pairs(compared: Iterable[_Pair]) -> dict[str, list[Compared]]:
    """Pairs at temperature 0 by load."""
    pairs: dict[str, list[Compared]] = defaultdict(list)
    for key, reference, answer in compared:
        if key.is_greedy:
            pairs[key.load].append(compare(reference, answer))
    return pairs


def _greedy_part(asked: Iterable[_Pair], pairs: Mapping[str, Sequence[Compared]], control: Control) -> Greedy:
    judged = judge_greedy(pairs, {load: load for load in pairs}, control, detect=QUICK.detect)
    answered = [pair.answer.is_ok for pair in asked if pair.key.is_greedy]
    return _if_complete(judged, asked=len(answered), answered=sum(answered))


def _sampled_part(asked: Iterable[_Pair], compared: Iterable[_Pair], seed: int) -> Sampled:
    pairs = [(reference, answer) for key, reference, answer in compared if not key.is_greedy]
    prompts = len({reference.case for reference, _ in pairs})
    answered = [pair.answer.is_ok for pair in asked if not pair.key.is_greedy]
    return if_complete(_sampled(pairs, seed), prompts=prompts, asked=len(answered), answered=sum(answered))


def _if_complete(greedy: Greedy, *, asked: int, answered: int) -> Greedy:
    """The part, or no pass: a stray request may fail in a study, but the others do not stand for many."""
    if is_complete(asked=asked, used=answered):
        return greedy
    result = greedy.result if greedy.result is Result.FAIL else Result.INCONCLUSIVE
    why = f"{asked - answered} of {asked} requests that the baseline answered failed"
    return structs.replace(
        greedy, result=result, refused=asked - answered, message=f"{why}; the rest: {greedy.message}"
    )


def _sampled(pairs: Sequence[tuple[Answer, Answer]], seed: int) -> Sampled:
    compared = [compare(*pair) for pair in pairs]
    if is_identical(compared, detect=QUICK.detect):
        return judge_identity(compared, detect=QUICK.detect)
    # One pair per prompt: a server that honours the seed says the same at every launch.
    texts = list({r.case: (r.text, answer.text) for r, answer in reversed(pairs)}.values())
    return structs.replace(
        judge_texts(
            text_tests(texts, seed=seed),
            detect=QUICK.detect,
            identity=hazard(compared),
            why_not_scored=NOT_SCORED,
        ),
        tokens=sum(answer.tokens or 0 for _, answer in pairs),
    )


CHECKS = {
    SoakFault.SPECIAL_TOKEN: ("special-token", "hold a token of the chat template"),
    SoakFault.AFTER_STOP: ("text-after-stop", "hold a text at which they had to stop"),
    SoakFault.INVALID_JSON: ("invalid-json", "are not the JSON that was asked for"),
    SoakFault.TOOL_ARGUMENTS: ("tool-arguments", "call a tool with arguments that do not fit"),
    SoakFault.LOOSE_ARGUMENTS: ("tool-arguments", "call a tool with arguments that do not fit"),
}
QUOTED = 80


def recorded_faults(
    arm: str, own: Iterable[Answer], theirs: Iterable[Answer], prompts: Mapping[str, Request]
) -> list[Finding]:
    """Findings of what the arm's answers show more often than the baseline's; a prompt counts once however often it
    was sent."""
    mine, others = _seen(own, prompts), _seen(theirs, prompts)
    findings = []
    for fault, (check, words) in CHECKS.items():
        arm_tally, control = _tally(mine[fault]), _tally(others[fault])
        if judge_tallies(fault, arm_tally, control) is not SoakResult.FOUND:
            continue
        case, evidence = next((case, shown) for case, shown in mine[fault].items() if shown)
        findings.append(
            fail(
                f"{check}-recorded",
                f"answers to {arm_tally} prompts {words}, the baseline's to {control}; first: {case}"
                f"\n{evidence[:QUOTED]}",
                then="speclift verify --soak 10m: how often, under which load, and a script that shows it",
                arm=arm,
            )
        )
    return findings


_Seen = dict[SoakFault, dict[str, str]]


def _seen(answers: Iterable[Answer], prompts: Mapping[str, Request]) -> _Seen:
    """The cases by fault that could show it, with what shows it or ""."""
    evidence_of: _Seen = {fault: {} for fault in CHECKS}
    for answer in answers:
        if not answer.is_ok or not answer.text:
            continue
        request = prompts.get(answer.case)
        for fault, evidence in _faults(answer, request):
            evidence_of[fault][answer.case] = evidence_of[fault].get(answer.case) or evidence
    return evidence_of


def _faults(answer: Answer, request: Request | None) -> Iterator[tuple[SoakFault, str]]:
    # A model that is shown tokens of a template may well write some, and others than those.
    if request is None or not leaked_tokens(_asked(request)):
        leaked = leaked_tokens(answer.text)
        yield SoakFault.SPECIAL_TOKEN, leaked[0] if leaked else ""
    if request is None or request.answer_format is None:
        return
    promised = promised_format(request.answer_format)
    if answer.finish_reason == "tool_calls" and promised.tools:
        was_cut = is_cut(answer.finish_reason, answer.tokens, request.max_tokens)
        evidence = calls_misfit(answer.text, dict(promised.tools), was_cut=was_cut)
        if evidence is not None:
            yield (SoakFault.TOOL_ARGUMENTS if promised.is_strict else SoakFault.LOOSE_ARGUMENTS), evidence
    elif promised.stops:
        # Where it stops is the end of JSON as well.
        yield SoakFault.AFTER_STOP, next((stop for stop in promised.stops if stop in answer.text), "")
    elif answer.finish_reason == "stop" and promised.schema is not None:
        yield SoakFault.INVALID_JSON, misfit(answer.text, promised.schema)


def _asked(request: Request) -> str:
    """Everything that the prompt holds."""
    return (request.prompt or "") + "\n".join(message.content for message in request.messages)


def calls_misfit(text: str, tools: Mapping[str, str], *, was_cut: bool = False) -> str | None:
    """The misfit of a record's text, where calls stand as name and arguments one after the other, behind what else
    was said. In a text that the limit cut, only what came before its end can be wrong; None where no call was whole
    by then."""
    starts = [place for name in tools if (place := text.find(f"{name}{{")) >= 0]
    if not starts:
        return None if was_cut else "no call that can be read"
    rest, reader, fine = text[min(starts) :], json.JSONDecoder(), None if was_cut else ""
    while rest:
        name = max((name for name in tools if rest.startswith(f"{name}{{")), key=len, default="")
        if not name:
            return fine if was_cut else f"what follows a call is none: {rest[:QUOTED]!r}"
        try:
            value, end = reader.raw_decode(rest, len(name))
        except (ValueError, RecursionError) as error:
            return fine if was_cut else f"{name}: not JSON: {error}"
        if why := value_misfit(value, as_object(json.loads(tools[name])), where=""):
            return f"{name}: {why}"
        rest, fine = rest[end:].strip(), ""
    return fine


def _tally(cases: Mapping[str, str]) -> Tally:
    faulty = sum(bool(evidence) for evidence in cases.values())
    return Tally(faulty=faulty, exposed=len(cases), answers=len(cases), faulty_once=faulty)
