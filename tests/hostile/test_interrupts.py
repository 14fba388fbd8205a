"""Ctrl-C and SIGTERM end every state within five seconds, however early and however often they come."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from stalling import stalled, stalling_server

import speclift.weights
from processes import eventually, heeds, processes_with
from running import finish, start

# Promised are five seconds; the machine may be busy.
WITHIN_S = 20.0
SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Each case is a process of its own that is ended at another moment: some of each kind are among the fast tests.
slow = pytest.mark.slow


@pytest.fixture
def mark() -> str:
    """A truth that only this test's engines carry on their command lines."""
    return f"ttft_s=0.00{random.SystemRandom().randrange(1, 10**8)}"


def fake(mark: str, *truths: str) -> list[str]:
    words = ("--engine", "fake", "--engine-arg", mark)
    return [*words, *(word for truth in truths for word in ("--engine-arg", truth))]


def end_and_time(
    process: subprocess.Popen[str], number: signal.Signals, *, times: int = 1
) -> tuple[int, str]:
    begun_s = time.monotonic()
    for _ in range(times):
        if process.poll() is None:
            process.send_signal(number)
        time.sleep(0.05)
    result = finish(process)
    assert time.monotonic() - begun_s < WITHIN_S
    return result.code, result.stderr


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("after_s", [0.0, pytest.param(0.05, marks=slow)])
def test_python_itself_ends_before_a_line_of_ours_is_run(
    after_s: float, number: signal.Signals, tmp_path: Path
) -> None:
    with start(["plan", "--target", "llama-3.1-8b", "--gpu", "h200"], cwd=tmp_path) as process:
        time.sleep(after_s)
        code, stderr = end_and_time(process, number)
    # Until our first line was run, Python itself tells where it was interrupted.
    assert "Traceback" not in stderr or stderr.rstrip().endswith("KeyboardInterrupt")
    # SIGINT in Python's own start is its KeyboardInterrupt, 1 where it strikes while the interpreter is set up.
    assert code in {130, -number, 1, 0, 4}, stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize(
    ("verb", "after_s"),
    [
        *(("decide", after_s) for after_s in (0.0, 0.1, 0.3, 0.6)),
        ("doctor", 0.1),
        ("doctor", 0.6),
        ("plan", 0.3),
    ],
)
def test_a_start_that_is_interrupted_ends_at_once(
    verb: str, after_s: float, number: signal.Signals, tmp_path: Path, mark: str
) -> None:
    """Imports take most of that time; what they raise when they are torn apart must not be seen."""
    words = {
        "decide": [*fake(mark, "tpot_s=0.05"), "--requests", "24"],
        "doctor": [],
        "plan": ["--target", "llama-3.1-8b", "--draft", "llama-3.2-1b", "--gpu", "h200"],
    }
    with start([verb, *words[verb]], cwd=tmp_path) as process:
        # Python itself takes some moments before a line of ours is run, and heeds SIGINT alone.
        eventually(lambda: heeds(process.pid, signal.SIGTERM), what="its first line was run")
        time.sleep(after_s)
        code, stderr = end_and_time(process, number)
    assert "Traceback" not in stderr
    # A plan may be ready by then, and Python on its way out without our handler.
    ends = {130} | ({0, 4, -number} if verb == "plan" else set())
    assert code in ends, stderr
    eventually(lambda: processes_with(mark) == {}, what="no engine is left")


@slow
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("truths", [("never_ready=1",), ("tpot_s=0.05",)], ids=["launching", "measuring"])
def test_five_presses_end_as_one_does(
    truths: Sequence[str], number: signal.Signals, tmp_path: Path, mark: str
) -> None:
    arguments = ["decide", *fake(mark, *truths), "--requests", "24", "--study", "s"]
    with start(arguments, cwd=tmp_path) as process:
        eventually(lambda: len(processes_with(mark)) >= 2, what="a guardian and its engine")
        time.sleep(0.5)
        code, stderr = end_and_time(process, number, times=5)
    assert code == 130
    assert "Traceback" not in stderr
    assert "speclift decide --resume --study s" in stderr
    assert processes_with(mark) == {}


STALLS: dict[str, dict[str, tuple[str, ...]]] = {
    "models hang": {"hanging": ("/v1/models",)},
    "models drip": {"dripping": ("/v1/models",)},
    "metrics drip": {"dripping": ("/metrics",)},
    "requests hang": {"hanging": ("/v1/chat", "/v1/completions")},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "stall", "number"),
    [
        *(("decide", stall, signal.SIGINT) for stall in STALLS),
        *(("verify", stall, signal.SIGTERM) for stall in STALLS),
    ],
)
def test_a_server_that_stalls_does_not_keep_a_signal_from_working(
    verb: str, stall: str, number: signal.Signals, tmp_path: Path
) -> None:
    with stalling_server(**STALLS[stall]) as url:
        urls = ["--engine", "attach", "--baseline-url", url, "--spec-url", url]
        with start([verb, *urls, "--requests", "4"], cwd=tmp_path) as process:
            eventually(lambda: stalled.is_set() or process.poll() is not None, what="it stalls")
            if process.poll() is not None:
                pytest.skip("it ended by itself: nothing of what stalls was asked for")
            time.sleep(0.3)
            code, stderr = end_and_time(process, number)
    assert code == 130
    assert "Traceback" not in stderr


@slow
def test_an_engine_that_ignores_sigterm_is_ended_in_time(tmp_path: Path) -> None:
    """As a user's own program in llama-server's place."""
    binary = tmp_path / "llama-server"
    binary.write_text(
        f"#!{sys.executable}\nimport signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if '--version' in sys.argv: print('version: 1'); raise SystemExit\n"
        "time.sleep(600)\n"
    )
    binary.chmod(0o755)
    (bundled,) = Path(speclift.weights.__file__).parent.glob("bundled/*.gguf")
    model = tmp_path / "m.gguf"
    model.symlink_to(bundled)
    arguments = ["measure", "--llama-server", binary, "--model", model, "--method", "off"]
    with start([*arguments, "--requests", "2"], cwd=tmp_path) as process:
        eventually(lambda: len(processes_with(str(model))) >= 3, what="speclift, a guardian and the engine")
        code, stderr = end_and_time(process, signal.SIGINT)
    assert code == 130, stderr
    assert "Traceback" not in stderr
    assert processes_with(str(model)) == {}


def handlers() -> Iterator[object]:
    return (signal.getsignal(number) for number in SIGNALS)


def test_a_python_caller_gets_its_own_handlers_back() -> None:
    from speclift.bench.interrupts import run_until_signal

    async def nothing() -> str:
        assert all(callable(handler) for handler in handlers())
        return "done"

    before = list(handlers())
    assert run_until_signal(nothing()) == "done"
    assert list(handlers()) == before
