"""The watch's own metrics: valid whatever servers call themselves, and silent on what is not known."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from msgspec.structs import replace

from speclift.core.live import Event, Payoff, Watched
from speclift.views.exposition import WatchedTotals, watch_exposition
from watch_samples import HOSTILE, STATES, alarm, unreachable, watched

LINE = re.compile(
    r'(?P<name>[a-z_]+)(?:\{(?P<labels>(?:[a-z_]+="(?:[^"\\\n]|\\[\\"n])*",?)*)\})? (?P<value>[-+0-9.e]+|\+Inf)'
)


def totals(of: Watched) -> WatchedTotals:
    return WatchedTotals(watched=of, looks=3, events=dict.fromkeys(Event, 0) | {Event.RESTART: 2}, changes=1)


def samples(*servers: Watched) -> dict[str, float]:
    text = watch_exposition([totals(each) for each in servers], version="1")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for line in lines:
        assert LINE.fullmatch(line), line
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


@pytest.mark.parametrize("state", STATES)
def test_every_state_is_valid(state: str) -> None:
    assert samples(STATES[state]())


def test_what_is_known_has_one_name_for_every_engine() -> None:
    found = samples(watched())
    label = '{server="http://10.0.0.7:8000"}'
    assert found[f"speclift_accepted_length{label}"] == 2.84
    assert (
        found[f"speclift_accepted_length_low{label}"] < 2.84 < found[f"speclift_accepted_length_high{label}"]
    )
    assert found[f"speclift_break_even_accepted_length{label}"] == 1.74
    assert (found[f"speclift_pays{label}"], found[f"speclift_up{label}"]) == (1, 1)
    assert found['speclift_verdict{server="http://10.0.0.7:8000",verdict="pays"}'] == 1
    assert found['speclift_verdict{server="http://10.0.0.7:8000",verdict="unsure"}'] == 0
    assert found['speclift_ttft_seconds{server="http://10.0.0.7:8000",quantile="0.95"}'] == 0.29
    assert found['speclift_events_total{server="http://10.0.0.7:8000",event="restart"}'] == 2


@pytest.mark.parametrize(
    ("of", "pays"),
    [(watched(), 1), (alarm(), 0), (watched(verdict=Payoff.UNSURE), None), (unreachable(), None)],
)
def test_pays_is_absent_where_nobody_knows(of: Watched, pays: float | None) -> None:
    assert samples(of).get(f'speclift_pays{{server="{of.url}"}}') == pays


def test_a_server_that_is_gone_is_down_and_has_no_figures() -> None:
    found = samples(unreachable())
    assert found['speclift_up{server="http://10.0.0.7:8000"}'] == 0
    assert not any(name.startswith(("speclift_accepted_length", "speclift_ttft")) for name in found)


@pytest.mark.parametrize(
    "name", [HOSTILE, 'x"} 1\nspeclift_pays{server="y', "\\", "a\rb\0c", "\ud800", "é" * 5000]
)
def test_hostile_names_stay_inside_their_label(name: str) -> None:
    found = samples(watched(model=name, version=name, url=f"http://h/{name}"))
    assert len(found) == len(samples(watched()))
    text = watch_exposition([totals(watched(model=name))], version="1")
    assert all(line.startswith(("#", "speclift_")) for line in text.splitlines())
    text.encode()


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool on this machine")
def test_promtool_finds_nothing_wrong() -> None:
    servers = [replace(make(), url=f"http://{name}") for name, make in STATES.items()]
    text = watch_exposition([totals(each) for each in [*servers, watched(model=HOSTILE)]], version="1")
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=text, text=True, capture_output=True, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
