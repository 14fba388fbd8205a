"""The verbs from Python: the same answers as typed, as values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from changes import slower

import speclift
from recorded import RECORDED, recorded_study
from running import Cli

LOG = RECORDED / "documents" / "log.jsonl"


def test_a_plan_says_what_the_command_says(cli: Cli) -> None:
    plan = speclift.plan(target="llama-3.1-8b", drafts=("llama-3.2-1b",), gpu="h200", ks=(3,))
    document = cli(
        "plan", "--target", "llama-3.1-8b", "--draft", "llama-3.2-1b", "--gpu", "h200", "--k", 3, "--json"
    )
    assert plan.fits is document.document["fits"] is True


def test_what_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(speclift.SpecliftError, match="h2000"):
        speclift.plan(target="llama-3.1-8b", gpu="h2000")


def test_lint_returns_its_findings() -> None:
    report = speclift.lint("vllm serve m --speculative-model d --num-speculative-tokens 5")
    assert not report.ok
    assert speclift.lint(["vllm", "serve", "m"]).ok


def test_a_log_is_replayed(cli: Cli) -> None:
    replayed = speclift.replay([LOG], ks=(3,), ngrams=(3,))
    assert replayed.log.replayed == 12


def test_a_study_is_compared(cli: Cli, tmp_path: Path) -> None:
    study = recorded_study("faster", tmp_path)
    judgement = speclift.compare([study])
    assert judgement.verdict.decision == cli("compare", "faster", "--json").document["verdict"] == "ship"
    slow = recorded_study("by-load", tmp_path, slower(3))
    assert speclift.compare([slow]).verdict.decision == "do-not-ship"


def test_a_study_is_exported(cli: Cli, tmp_path: Path) -> None:
    study = recorded_study("faster", tmp_path)
    exported = speclift.export(study, to="prometheus-rules")
    document = cli("export", "faster", "--to", "prometheus-rules", "--json").document
    assert {file.name: file.text for file in exported.files} == {
        f["name"]: f["text"] for f in document["files"]
    }


def test_a_line_is_read_as_settings() -> None:
    settings = speclift.from_line('vllm serve org/model -tp 2 --speculative-config \'{"method":"mtp"}\'')
    assert settings["engine"] == "vllm"


def test_a_study_is_measured_while_somebody_looks_on(threads: None, tmp_path: Path) -> None:
    class Looking(speclift.Observer):
        def __init__(self) -> None:
            self.launches: list[str] = []

        def launching(self, arm: str, round_index: int) -> None:
            self.launches.append(arm)

    observer = Looking()
    ask = speclift.Ask(
        engine="fake", segments=("chat",), requests=4, max_tokens=8, launches=1, methods=("ngram",), ks=(2,),
        study=tmp_path / "s", verify="off",
    )  # fmt: skip
    verdict = speclift.decide(ask, observer)
    assert isinstance(verdict, speclift.Verdict)
    assert observer.launches == ["baseline", "ngram-k2"]
    assert verdict.decision in ("ship", "ship-on-conditions", "do-not-ship", "inconclusive")


def test_what_is_exported_is_what_is_named() -> None:
    assert json.dumps(sorted(speclift.__all__)) == json.dumps(list(speclift.__all__))
    assert all(hasattr(speclift, name) for name in speclift.__all__)
    with pytest.raises(AttributeError, match="absent"):
        _ = speclift.absent
