from __future__ import annotations

import re
from pathlib import Path

import pytest

from progress import CACHE_KEY, Progress

SLEEPY = """
import time, pytest

@pytest.mark.parametrize("number", range(4))
def test_short(number): pass

def test_long(): time.sleep(0.2)
"""


CONFTEST = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from progress import Progress

def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Progress(config))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "workers", [(), pytest.param(("-n", "1"), marks=pytest.mark.slow)], ids=["one process", "xdist"]
)
def test_a_run_ends_with_all_done_and_keeps_what_took_long(
    workers: tuple[str, ...], pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(test_sleepy=SLEEPY)
    pytester.makeconftest(CONFTEST)
    result = pytester.runpytest_subprocess("-q", "-o", "console_output_style=classic", *workers)
    assert result.ret == 0
    assert re.search(r"^5/5 tests, 0:\d\d gone$", result.stdout.str(), re.MULTILINE), result.stdout.str()
    assert "...." not in result.stdout.str()
    kept = pytester.path / ".pytest_cache" / "v" / CACHE_KEY
    assert "test_long" in kept.read_text()
    assert "test_short" not in kept.read_text()


@pytest.mark.slow
def test_a_failure_is_named_at_once_and_counted(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_wrong="def test_right(): pass\ndef test_wrong(): assert False")
    pytester.makeconftest(CONFTEST)
    result = pytester.runpytest_subprocess("-q", "-o", "console_output_style=classic")
    assert result.ret == 1
    shown = result.stdout.str().splitlines()
    assert shown[0] == "FAILED test_wrong.py::test_wrong"
    assert any(line.startswith("2/2 tests, 1 failed, ") for line in shown), shown


def test_an_estimate_goes_by_the_last_run(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pytestconfig.cache is not None
    monkeypatch.setattr(pytestconfig.cache, "get", lambda *_: {"long": 9.0, "short": 1.0})
    progress = Progress(pytestconfig)
    progress._expect(["long", "short"])
    progress._to_come.remove("short")
    progress._done_s, progress._to_come_s = 1.0, 9.0
    progress._began_s -= 2.0
    assert progress.line() == "1/2 tests, 0:02 gone, about 0:18 left"
