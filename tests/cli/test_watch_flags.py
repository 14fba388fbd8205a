"""watch as a service on the command line: what is refused before anything is watched, and the settings file."""

from __future__ import annotations

from pathlib import Path

import pytest

from running import Cli
from speclift.cli.watching import FLAGS, read_watch_file
from speclift.core.errors import UsageError
from speclift.live.ask import Listening
from speclift.verbs.watch_plan import WatchTarget

URL = "http://127.0.0.1:9"
LONG = "a-token-that-is-long-enough"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--listen", "0.0.0.0:9400"), "wants a token"),
        (("--listen", "[::]:9400"), "wants a token"),
        (("--listen", "127.0.0.1"), "an address and a port"),
        (("--listen", "127.0.0.1:99999"), "an address and a port"),
        (("--listen", "0.0.0.0:0", "--token-env", "NOT_SET_ANYWHERE"), "NOT_SET_ANYWHERE"),
        (("--listen", "0.0.0.0:0", "--token-env", "SHORT"), "can be guessed"),
        (("--token-env", "LONG"), "--token-env goes with --listen"),
        (("--webhook-key-env", "LONG"), "--webhook-key-env goes with --webhook"),
        (("--webhook", "http://127.0.0.1:9", "--webhook-key-env", "NOT_SET_ANYWHERE"), "NOT_SET_ANYWHERE"),
        (("--once", "--listen", "127.0.0.1:0"), "--once"),
        (("--once", "--webhook", "http://127.0.0.1:9"), "--once"),
        (("--config", "none.toml"), "none.toml"),
    ],
)
def test_what_is_refused(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], said: str
) -> None:
    monkeypatch.setenv("SHORT", "tiny")
    monkeypatch.setenv("LONG", LONG)
    result = cli("watch", URL, *flags)
    assert result.code == 2
    assert said in result.stderr
    assert LONG not in result.stderr


@pytest.mark.slow
def test_a_service_without_a_terminal_says_only_what_changes(cli: Cli, tmp_path: Path) -> None:
    result = cli(
        *("watch", URL, "--listen", "127.0.0.1:0", "--history", tmp_path / "w.db"),
        *("--interval", "100ms", "--window", "1s", "--for", "450ms"),
    )
    assert result.stdout.count("Unreachable") == 1


class TestTheFile:
    def written(self, tmp_path: Path, text: str) -> Path:
        path = tmp_path / "watch.toml"
        path.write_text(text)
        return path

    def test_says_what_the_flags_say(self, tmp_path: Path) -> None:
        path = self.written(
            tmp_path,
            """
            urls = ["http://a:1"]
            interval = "5s"
            break_even = 2
            listen = "127.0.0.1:9400"
            history = "/var/lib/x.db"
            for = "1h"
            [[server]]
            url = "https://b"
            api_key_env = "KEY"
            """,
        )
        targets, values = read_watch_file(path, FLAGS)
        assert targets == (WatchTarget(url="http://a:1"), WatchTarget(url="https://b", api_key_env="KEY"))
        assert values == {
            "interval_s": 5.0,
            "break_even": 2,
            "listen": Listening(host="127.0.0.1", port=9400),
            "history": Path("/var/lib/x.db"),
            "for_s": 3600.0,
        }

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("intervall = '5s'", "interval"),
            ("[server]\nurl = 'http://a'", "two brackets"),
            ("[[server]]\nkey = 'x'", "url and api_key_env"),
            ("[[server]]\nurl = 'http://a'\napi_key = 'x'", "url and api_key_env"),
            ("[[server]]\nurl = 5", "Expected `str`, got `int`"),
            ("= 5", "is not TOML"),
        ],
    )
    def test_what_is_wrong_is_named(self, tmp_path: Path, text: str, said: str) -> None:
        with pytest.raises(UsageError, match=said) as raised:
            read_watch_file(self.written(tmp_path, text), FLAGS)
        assert "watch.toml" in str(raised.value)
