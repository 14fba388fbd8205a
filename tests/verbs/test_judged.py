"""What a study's folder keeps of its verdict: by whom it is read, and when it is judged anew."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from running import Cli
from simulated import by_streams, quiet_truth
from speclift.studies.study import Study
from speclift.studies.verdict_file import VERDICT_FILE
from speclift.verbs import judge as judging
from speclift.verbs.judged import prices_of, verdict_of
from written import write_study

# Of llama-server: eight requests at once, every step with two tokens drafted and one of them accepted.
PAGE = """# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 8
"""


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_study(Path("study"), quiet_truth(by_streams({1: 2.0, 4: 1.2, 16: 0.8})), rounds=2)


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The studies that were judged, each time one was."""
    seen: list[Path] = []
    judge = judging.judge_and_keep

    def counting(study: Study, **settings: object) -> object:
        seen.append(study.path)
        return judge(study, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(judging, "judge_and_keep", counting)
    return seen


def test_it_is_judged_once_and_read_from_then_on(
    study: Path, judged: list[Path], cli: Cli, typed: Callable[[str], None]
) -> None:
    first = cli("compare", "study", "--json").document
    assert cli("compare", "study", "--json").document == first
    assert cli("report", "study").code == 0
    assert cli("export", "study", "--to", "gateway").code == 0
    typed(PAGE)
    assert cli("watch", "-", "--study", "study").code == 5
    assert judged == [Path("study")]


def test_nobody_else_may_read_it(study: Path) -> None:
    verdict_of(study)
    assert (study / VERDICT_FILE).stat().st_mode & 0o777 == 0o600


def test_other_goals_are_judged_anew_and_kept(study: Path, judged: list[Path], cli: Cli) -> None:
    usual = cli("compare", "study", "--json").document
    strict = cli("compare", "study", "--min-speedup", "3", "--json").document
    assert (strict["goals"]["min_speedup"], strict["verdict"]) == (3, "do-not-ship")
    assert cli("compare", "study", "--min-speedup", "3", "--json").document == strict
    assert len(judged) == 2
    # Those of the study itself hold for whoever asks for no others.
    assert cli("compare", "study", "--json").document == usual
    assert len(judged) == 3


def test_what_was_measured_since_is_judged(study: Path, judged: list[Path]) -> None:
    before = verdict_of(study)
    with Study.open(study, writing=True) as opened:
        opened.limit_block(0, 1)
    assert verdict_of(study) == before
    assert len(judged) == 2


@pytest.mark.parametrize("text", ["", "{", "[]", '{"database": {"written_ns": 0, "size": 0}}'])
def test_a_file_that_is_none_is_written_anew(study: Path, judged: list[Path], text: str) -> None:
    before = verdict_of(study)
    (study / VERDICT_FILE).write_text(text)
    assert verdict_of(study) == before
    assert len(judged) == 2


def test_another_version_judges_for_itself(study: Path, judged: list[Path]) -> None:
    verdict_of(study)
    path = study / VERDICT_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), "speclift": "0.0.1"}))
    prices_of(study)
    assert len(judged) == 2


def test_whoever_watches_by_a_study_that_was_judged_loads_nothing_that_judges(study: Path) -> None:
    verdict_of(study)
    code = "import sys; from speclift.cli.main import main; sys.argv = ['speclift', *sys.argv[1:]]; main()"
    loaded = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code, "watch", "-", "--study", "study"],
        input=PAGE,
        capture_output=True,
        text=True,
        check=False,
    ).stderr
    assert "speclift.verbs.judged" in loaded
    for name in ("speclift.verbs.judge\n", "speclift.verdict.rules\n", "speclift.bench.run\n"):
        assert name not in loaded
