"""Rules, dashboards and lines that ask for metrics: judged by what the version exports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from metric_texts import DASHBOARD, RULES, TEXTS, MetricText, rules
from running import Cli
from speclift.core.errors import UsageError
from speclift.linter.metrics import selection
from speclift.linter.rows import Status
from speclift.verbs.lint import lint


@pytest.mark.parametrize("case", TEXTS, ids=lambda case: case.name)
def test_what_asks_for_metrics_is_judged_right(case: MetricText) -> None:
    engine = case.engines[0] if case.version else None
    report = lint(case.text, engine=engine, engine_version=case.version)
    seen = {found.flag: found.status.value for found in report.findings if found.status is not Status.OK}
    said = " ".join([*(f"{found.message} {found.replacement}" for found in report.findings), *report.notes])

    assert seen == case.findings
    assert (report.engine, *(other.engine for other in report.others)) == case.engines
    assert report.ok == all(status == "risky" for status in case.findings.values())
    assert [words for words in case.says if words not in said] == []


@pytest.mark.parametrize("case", TEXTS[::7], ids=lambda case: case.name)
def test_its_exit_code_is_the_programs(case: MetricText, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "asked.yml").write_text(case.text, encoding="utf-8")
    version = ("--engine", case.engines[0], "--engine-version", case.version) if case.version else ()
    result = cli("lint", *version, "asked.yml")
    assert result.code == (0 if all(status == "risky" for status in case.findings.values()) else 4)
    if "server" not in case.name:
        assert result.stdout == ""


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(rules("- alert: Down", "  expr: up == 0"), id="other exporters' rules"),
        pytest.param("ps aux | grep vllm", id="a process looked for"),
        pytest.param("pip list | grep -i vllm", id="a package looked for"),
        pytest.param("promtool check rules vllm.yml", id="a file checked"),
    ],
)
def test_what_asks_for_no_metric_of_an_engine_is_not_judged(text: str) -> None:
    with pytest.raises(UsageError):
        lint(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(f"{RULES}\n - alert: [", "line", id="YAML that is none"),
        pytest.param(f"{RULES}\n  - alert: A\n    alert: B", "'alert' is given twice", id="a key twice"),
        pytest.param(json.dumps(DASHBOARD)[:-5], "cannot be read", id="JSON that was cut"),
        pytest.param("groups:\n" + "".join(f"{' ' * deep}a{deep}:\n" for deep in range(1, 60))
                     + " " * 60 + "expr: vllm:prompt_tokens_total", "levels deep", id="too deep"),
    ],
)  # fmt: skip
def test_a_file_of_queries_that_cannot_be_read_is_said_with_its_line(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as error:
        lint(text)
    assert "line" in str(error.value)


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("a", ["a"]),
        ("sum(a) by (b) / on(c) group_left(d) e{f='g', h=~\"i\"}[5m:1m] offset 3d", ["a", "e"]),
        ("sum by (b, c) (a)", ["a"]),
        ("topk(3, a) or vector(1) and bool", ["a"]),
        ('{"a.b", c="d"} > 1e3', ["a.b"]),
        ("rate(a[$__rate_interval]) * ${scale} # b", ["a", "${scale}"]),
        ("count_values('v', a) == inf", ["a"]),
        ("", []),
    ],
)
def test_names_are_told_from_all_else(expression: str, names: list[str]) -> None:
    selected = selection(expression)
    assert (list(selected.names), selected.fault) == (names, "")
