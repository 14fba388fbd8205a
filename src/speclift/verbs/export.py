"""export: what a study found, as files for what runs in production: deployments, rules, dashboards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from speclift.core.arm import Arm, baseline_arm
from speclift.core.deployment import Deployment
from speclift.core.errors import StudyError, UsageError, unknown_name
from speclift.core.quantities import ratio
from speclift.core.records import Launch
from speclift.core.results import Conditions, Decision, over_temperatures
from speclift.core.units import Seconds
from speclift.engines.deployment import deployment_of
from speclift.engines.kind import engine_kind, usable_kinds
from speclift.engines.metrics import counter_names, labelled_model
from speclift.routing.policy import policy_toml
from speclift.studies.outputs import relative, write_result
from speclift.studies.study import Study
from speclift.verbs.gateway_policy import policy_from
from speclift.verbs.judged import break_evens_of, judged_study
from speclift.verdict.document import JudgedStudy, VerdictDocument
from speclift.verdict.rules import ALL, PROMPTS_MIN
from speclift.views.deploying import (
    COMPOSE_FILE,
    KUBERNETES_FILE,
    SCRIPT_FILE,
    SERVER_UNIT,
    WATCH_UNIT,
    DeploymentText,
    compose_text,
    kubernetes_text,
    script_text,
    server_unit_text,
    watch_unit_text,
)
from speclift.views.gateway_deploying import (
    GATEWAY_COMPOSE_FILE,
    GATEWAY_KUBERNETES_FILE,
    POLICY_FILE,
    GatewayText,
    gateway_compose_text,
    gateway_kubernetes_text,
    gateway_units,
)
from speclift.views.grafana import DASHBOARD_FILE, dashboard_text
from speclift.views.monitoring import Monitoring
from speclift.views.prometheus_rules import RULES_FILE, TESTS_FILE, rules_text, tests_text

WINDOW_S: Seconds = 600.0
# Ten scrapes of a tenth of a second: no Prometheus asks more often.
WINDOW_MIN_S: Seconds = 1.0
# Of a window, how long something must hold before it is an alert: half of it, so that one bad half is none.
HOLD_SHARE = 0.5
# A server that drafted within the last day is one that should.
MEMORY_S: Seconds = 86_400.0
GATEWAY = "gateway"
# Of a study file, whose study is not measured yet (verbs/export_job.py).
JOB_FORMATS = ("kubernetes-job", "ray-job", "slurm")
SHIPS = (Decision.SHIP, Decision.SHIP_ON_CONDITIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedFile:
    name: str
    text: str
    # Written beside the file that was asked for, where that goes into a folder.
    is_beside: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    format: str
    files: tuple[ExportedFile, ...]

    @property
    def asked_for(self) -> tuple[ExportedFile, ...]:
        return tuple(file for file in self.files if not file.is_beside)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """An open study, what it was judged to say, and what was asked of it."""

    study: Study
    judged: JudgedStudy
    # Of a gateway, where any gain is enough, another than the study's own.
    verdict: Decision
    winner: str | None
    conditions: Conditions | None
    arm: str | None
    window_s: Seconds
    memory_s: Seconds


def export(
    study: Path,
    *,
    to: str,
    arm: str | None = None,
    window_s: Seconds = WINDOW_S,
    memory_s: Seconds = MEMORY_S,
) -> Exported:
    """`arm` where another than the winner is wanted, or the verdict is not to ship. `window_s` is what rules and panels
    look back over, `memory_s` how long they remember that a server drafted."""
    formats = _formats()
    if to in JOB_FORMATS:
        raise UsageError(
            f"--to {to} runs a study that is not measured yet, and {study} is not a study file",
            hint=f"speclift export speclift.toml --to {to}",
        )
    if to not in formats:
        raise unknown_name(what="format", seen=to, allowed=format_names())
    if window_s < WINDOW_MIN_S:
        raise UsageError(f"--window must be at least {WINDOW_MIN_S:g}s, saw {window_s:g}s")
    judged = judged_study(study)
    document, routing = judged.document, judged.routing
    winner = None if document.winner is None else document.winner.arm
    with Study.open(study) as opened:
        source = _Source(
            study=opened,
            judged=judged,
            verdict=routing.verdict if to == GATEWAY else document.verdict,
            winner=routing.winner if to == GATEWAY else winner,
            conditions=routing.conditions if to == GATEWAY else document.conditions,
            arm=arm,
            window_s=window_s,
            memory_s=memory_s,
        )
        return Exported(format=to, files=formats[to](source))


def write_exported(exported: Exported, out: str) -> tuple[Path, ...]:
    """Into a folder all of it, into a file what was asked for; UsageError where that is more than one. What is not
    there yet is a folder where its name has no ending: each of these files has one."""
    path = Path(out)
    is_folder = path.is_dir() or out.endswith("/") or (not path.exists() and not path.suffix)
    if not is_folder and len(exported.asked_for) > 1:
        raise UsageError(
            f"--to {exported.format} gives {len(exported.asked_for)} files, but {out} is one",
            hint="give a folder: --out deploy/",
        )
    texts = {path: exported.asked_for[0].text}
    if is_folder:
        texts = {path / file.name: file.text for file in exported.files}
    for target, text in texts.items():
        write_result(target, text)
    return tuple(texts)


Writer = Callable[[_Source], tuple[ExportedFile, ...]]


def _formats() -> Mapping[str, Writer]:
    servings = (kind.serving for kind in usable_kinds() if kind.serving is not None)
    own = {serving: _serving(serving) for serving in sorted(servings, reverse=True)}
    return {
        **own,
        "compose": lambda source: _one(COMPOSE_FILE, compose_text(_deployed(source))),
        "kubernetes": lambda source: _one(KUBERNETES_FILE, kubernetes_text(_deployed(source))),
        "systemd": _units,
        "prometheus-rules": _rules,
        "grafana": lambda source: _one(DASHBOARD_FILE, dashboard_text(_monitored(source))),
        GATEWAY: _gateway,
    }


def format_names() -> tuple[str, ...]:
    """Of studies, then of study files."""
    return (*_formats(), *JOB_FORMATS)


def _one(name: str, text: str) -> tuple[ExportedFile, ...]:
    return (ExportedFile(name=name, text=text),)


def _serving(serving: str) -> Writer:
    def write(source: _Source) -> tuple[ExportedFile, ...]:
        own = engine_kind(source.study.engine.kind).serving
        if own is not None and own != serving:
            raise StudyError(
                f"{source.judged.document.study} was measured on {source.judged.document.provenance.engine_version}",
                hint=f"export it with --to {own}",
            )
        return _one(SCRIPT_FILE, script_text(_deployed(source)))

    return write


def _units(source: _Source) -> tuple[ExportedFile, ...]:
    text = _deployed(source)
    watch = watch_unit_text(text, study=str(source.study.path.resolve()))
    return (
        ExportedFile(name=SERVER_UNIT, text=server_unit_text(text)),
        ExportedFile(name=WATCH_UNIT, text=watch),
    )


def _rules(source: _Source) -> tuple[ExportedFile, ...]:
    facts = _monitored(source)
    return (
        ExportedFile(name=RULES_FILE, text=rules_text(facts)),
        ExportedFile(name=TESTS_FILE, text=tests_text(facts), is_beside=True),
    )


def _gateway(source: _Source) -> tuple[ExportedFile, ...]:
    """The policy; in a folder also how both pools and the gateway are deployed, as far as that is known."""
    if source.arm not in (None, source.winner):
        raise UsageError(
            f"--arm {source.arm}: a policy is what the verdict allows, and that is about the winner"
            f"{'' if source.winner is None else f', {source.winner}'}",
            hint="leave --arm out",
        )
    made = policy_from(source.study, source.judged)
    files, missing = _gateway_deployments(source, policy_toml(made.policy, remarks=made.remarks))
    remarks = {**made.remarks, "": (*made.remarks[""], *missing)}
    policy = ExportedFile(name=POLICY_FILE, text=policy_toml(made.policy, remarks=remarks))
    return (policy, *files)


def _gateway_deployments(source: _Source, policy: str) -> tuple[list[ExportedFile], list[str]]:
    """The files, and for each that cannot be made the reason."""
    try:
        plain = _deployed_as(source, baseline_arm())
        text = GatewayText(spec=_deployed(source), plain=plain, policy=policy)
        units = gateway_units(text)
    except StudyError as error:
        return [], [f"No files to deploy it with: {error}."]
    files = [ExportedFile(name=name, text=unit, is_beside=True) for name, unit in units.items()]
    try:
        files += [
            ExportedFile(name=GATEWAY_COMPOSE_FILE, text=gateway_compose_text(text), is_beside=True),
            ExportedFile(name=GATEWAY_KUBERNETES_FILE, text=gateway_kubernetes_text(text), is_beside=True),
        ]
    except StudyError as error:
        return files, [f"No files for containers: {error}."]
    return files, []


def _deployed(source: _Source) -> DeploymentText:
    return _deployed_as(source, _deployed_arm(source))


def _deployed_as(source: _Source, arm: Arm) -> DeploymentText:
    study, document = source.study, source.judged.document
    server = None
    if engine_kind(study.engine.kind).serving is not None:
        server = deployment_of(study.engine, arm, version=document.provenance.engine_version)
    if server is None:
        raise StudyError(
            f"{document.study} does not know how its servers are started in production "
            f"(engine {study.engine.kind})",
            hint="prometheus-rules and grafana can be exported of it",
        )
    return DeploymentText(server=server, head=tuple(_head(source, server)))


def _deployed_arm(source: _Source) -> Arm:
    """The winner, or the arm that was named on purpose; StudyError where the verdict is not to ship."""
    arms = {arm.name: arm for arm in source.study.plan.arms if not arm.is_control}
    if source.arm is not None:
        if source.arm not in arms:
            raise unknown_name(what="arm of this study", seen=source.arm, allowed=tuple(arms))
        return arms[source.arm]
    if source.verdict not in SHIPS or source.winner is None:
        raise StudyError(
            f"the verdict on {source.judged.document.study} is {source.verdict.value}, so there is no winner to deploy",
            hint=f"name an arm to export it all the same: --arm {' | '.join(arms)}",
        )
    return arms[source.winner]


def _head(source: _Source, server: Deployment) -> list[str]:
    speedups = (
        f"{evens.metric} {ratio(evens.speedup)}"
        for evens in source.judged.arms
        if evens.arm.name == server.arm and evens.speedup is not None
    )
    measured = next(speedups, "not compared")
    conditions = source.conditions
    return [
        f"Written by speclift from study {source.judged.document.study}: arm {server.arm}, {measured}, "
        f"verdict {source.verdict.value}.",
        f"Measured on {server.engine_version}, model {server.model}; "
        "other versions break even elsewhere: measure again before an upgrade.",
        *([f"It pays only on: {_condition_words(conditions)}."] if conditions is not None else []),
    ]


def _condition_words(conditions: Conditions) -> str:
    said = {
        "segments": conditions.segments and ", ".join(conditions.segments),
        "concurrency at most": conditions.max_concurrency,
        "requests per second at most": conditions.max_qps,
        "temperature at most": conditions.max_temperature,
    }
    return "; ".join(f"{words} {value}" for words, value in said.items() if value is not None)


def _monitored(source: _Source) -> Monitoring:
    study, judged = source.study, source.judged
    evens = break_evens_of(judged, source.arm)
    launches = [launch for launch, _ in study.launches()]
    names = counter_names(study.engine.kind, evens.engine_version, launches)
    if names is None or not evens.loads:
        missing = "its engine exports no counters of drafts" if names is None else "no drafts were counted"
        raise StudyError(
            f"{judged.document.study} has no accepted length to break even at: {missing}",
            hint="measure an arm that drafts, on an engine that counts drafts",
        )
    return Monitoring(
        names=names,
        evens=evens,
        model=_served_model(study, launches),
        study=relative(study.path),
        tokens_min=PROMPTS_MIN * _tokens_per_answer(judged.document, evens.arm),
        window_s=source.window_s,
        hold_s=source.window_s * HOLD_SHARE,
        memory_s=max(source.memory_s, source.window_s),
    )


def _served_model(study: Study, launches: Iterable[Launch]) -> str:
    """As series can say it: a label is UTF-8. Servers that were there already may have said it themselves alone."""
    served = engine_kind(study.engine.kind).served_model(study.engine.settings) or labelled_model(launches)
    return served.encode("utf-8", "replace").decode("utf-8")


def _tokens_per_answer(document: VerdictDocument, arm: Arm) -> float:
    """As fewer answers than the prompts under which nothing ships say nothing, so do fewer tokens than theirs."""
    means = [
        cell.output_tokens_mean
        for cell in over_temperatures(document.cells)
        if cell.arm == arm.name and cell.segment == ALL and cell.output_tokens_mean is not None
    ]
    return fmean(means) if means else 1.0
