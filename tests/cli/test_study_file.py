"""speclift.toml says what the flags say; flags win; what is wrong in it is named with the file."""

from __future__ import annotations

import re
import sys
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from speclift.bench.ask import Ask
from speclift.cli.main import app, main
from speclift.cli.options import STUDY_SETTINGS, takes_ask
from speclift.core.errors import UsageError
from speclift.core.goals import Goals, Slo

USAGE = 2


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def asked(*argv: str) -> Ask:
    """What a measuring verb is handed for this command line and the files around it."""
    heard: list[Ask] = []

    @takes_ask
    def probe(ask: Ask) -> None:
        heard.append(ask)

    application = typer.Typer()
    application.command()(probe)
    CliRunner().invoke(application, argv, catch_exceptions=False)
    (ask,) = heard
    return ask


def complaint(toml: str | bytes, *argv: str) -> UsageError:
    Path("speclift.toml").write_bytes(toml.encode() if isinstance(toml, str) else toml)
    with pytest.raises(UsageError) as caught:
        asked(*argv)
    return caught.value


def exit_code(monkeypatch: pytest.MonkeyPatch, *argv: str) -> int:
    """Of the whole program, errors printed."""
    monkeypatch.setattr(sys, "argv", ["speclift", *argv])
    with pytest.raises(SystemExit) as caught:
        main()
    assert isinstance(caught.value.code, int)
    return caught.value.code


@pytest.mark.slow
@pytest.mark.parametrize(
    ("toml", "field", "value"),
    [
        pytest.param('engine = "fake"', "engine", "fake", id="text"),
        pytest.param('method = ["ngram", "draft"]', "methods", ("ngram", "draft"), id="a repeated flag"),
        pytest.param('method = "ngram"', "methods", ("ngram",), id="a repeated flag said once"),
        pytest.param("k = [1, 3]", "ks", (1, 3), id="numbers as a list"),
        pytest.param("k = 3", "ks", (3,), id="one number"),
        pytest.param('k = "1,3"', "ks", (1, 3), id="numbers as the flag has them"),
        pytest.param("qps = [1, 2.5]", "qps", (1.0, 2.5), id="whole and other numbers"),
        pytest.param("k = []", "ks", (), id="an empty list"),
        pytest.param("max_tokens = 40", "max_tokens", 40, id="a dash in the flag"),
        pytest.param('target = "m.gguf"', "server.model", "m.gguf", id="the flag's other name"),
        pytest.param('prompts = "log.jsonl"', "prompts", Path("log.jsonl"), id="a path"),
        pytest.param("resume = true", "resume", True, id="true"),
        pytest.param("resume = false", "resume", False, id="false"),
        pytest.param('budget = "2m"', "budget_s", 120.0, id="a duration"),
        pytest.param("min_speedup = 2", "goals", Goals(min_speedup=2.0), id="a whole number for a number"),
        pytest.param(
            'slo = ["ttft_p99=1s", "tpot_p50=20ms"]',
            "goals",
            Goals(
                slos=(
                    Slo(metric="ttft", percentile="p99", limit_s=1.0),
                    Slo(metric="tpot", percentile="p50", limit_s=0.02),
                )
            ),
            id="texts with commas as a list",
        ),
    ],
)
def test_a_key_says_what_its_flag_says(here: Path, toml: str, field: str, value: Any) -> None:
    (here / "speclift.toml").write_text(toml)
    assert attrgetter(field)(asked()) == value


@pytest.mark.parametrize(
    ("toml", "argv", "field", "value"),
    [
        pytest.param("seed = 1", ["--seed", "2"], "seed", 2, id="one value"),
        pytest.param("seed = 1", ["--seed", "0"], "seed", 0, id="also where the flag says the default"),
        pytest.param("k = [1, 3]", ["--k", "5"], "ks", (5,), id="a list is replaced"),
        pytest.param(
            'method = ["ngram"]', ["--method", "draft"], "methods", ("draft",), id="a repeated flag does not add"
        ),
        pytest.param('target = "a.gguf"', ["--model", "b.gguf"], "server.model", "b.gguf", id="under either name"),
    ],
)  # fmt: skip
def test_a_flag_wins_over_the_file(here: Path, toml: str, argv: list[str], field: str, value: Any) -> None:
    (here / "speclift.toml").write_text(toml)
    assert attrgetter(field)(asked(*argv)) == value


def test_the_study_remembers_what_the_file_said_and_flags_did_not(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "speclift.toml").write_text(
        'method = ["ngram", "draft"]\nk = [1, 3]\nseed = 4\nresume = true\ntarget = "m"'
    )
    monkeypatch.setattr(sys, "argv", ["speclift", "decide", "--seed", "7"])
    said = "decide --seed 7 --method ngram --method draft --k 1,3 --resume --model m"
    assert asked("--seed", "7").argv == tuple(said.split())


def test_every_flag_of_a_measuring_verb_has_a_key() -> None:
    for verb in ("decide", "measure"):
        page = CliRunner().invoke(app, [verb, "--help"]).stdout
        flags = set(re.findall(r"^  --([a-z-]+)|, --([a-z-]+)", page, flags=re.MULTILINE))
        names = {(first or second).replace("-", "_") for first, second in flags}
        assert names - {"config", "help"} <= set(STUDY_SETTINGS)
        assert {"model", "target", "k", "json", "engine_arg"} <= names


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        pytest.param("engine = 3", "'engine' takes text, saw 3", id="a number for text"),
        pytest.param('engine = ["fake"]', "'engine' takes text, saw ['fake']", id="a list for text"),
        pytest.param("prompts = 3", "'prompts' takes text, saw 3", id="a number for a path"),
        pytest.param('seed = "one"', "'seed' takes a whole number, saw 'one'", id="text for a number"),
        pytest.param("seed = 1.5", "'seed' takes a whole number, saw 1.5", id="half a seed"),
        pytest.param("seed = true", "'seed' takes a whole number, saw true", id="true for a number"),
        pytest.param('min_speedup = "2"', "'min_speedup' takes a number, saw '2'", id="a number in quotes"),
        pytest.param("resume = 1", "'resume' takes true or false, saw 1", id="a number for a switch"),
        pytest.param("method = [1]", "'method' takes text or a list of them, saw 1", id="a number in a list"),
        pytest.param('k = [1, "3"]', "'k' takes a whole number or a list of them, saw '3'", id="text in a list"),
        pytest.param("k = [1.5]", "'k' takes a whole number or a list of them, saw 1.5", id="half a token"),
        pytest.param("k = [[1]]", "'k' takes a whole number or a list of them, saw [1]", id="a list in a list"),
        pytest.param("[engine]\nname = 1", "'engine' takes text, saw a table", id="a table"),
        pytest.param("budget = 10:00:00", "'budget' takes text, saw 10:00:00", id="a time of day"),
    ],
)  # fmt: skip
def test_a_wrong_type_is_refused_with_what_was_seen(toml: str, message: str) -> None:
    assert str(complaint(toml)) == f"speclift.toml: {message}"


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("methd", "method"),
        ("min-speedup", "min_speedup"),
        ("max_token", "max_tokens"),
        ("segments", "segment"),
    ],
)
def test_an_unknown_key_gets_the_nearest_one(key: str, nearest: str) -> None:
    error = complaint(f"{key} = 1")
    assert str(error) == f"unknown key in speclift.toml: {key!r}. Did you mean {nearest!r}?"
    assert error.hint.startswith("allowed: engine, model, target")


@pytest.mark.parametrize(
    ("toml", "shown"),
    [
        pytest.param("methd = 1", "Did you mean 'method'?", id="an unknown key"),
        pytest.param("seed = true", "'seed' takes a whole number", id="a wrong type"),
        pytest.param("launches = 0", "--launches", id="out of range"),
        pytest.param('metric = "ttft"', "unknown metric 'ttft'", id="a wrong name"),
    ],
)
def test_a_wrong_file_ends_with_exit_code_2(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], toml: str, shown: str
) -> None:
    (here / "speclift.toml").write_text(toml)
    assert exit_code(monkeypatch, "decide", "--dry-run", "--json") == USAGE
    said = capsys.readouterr()
    assert shown in said.err
    assert said.out == ""
