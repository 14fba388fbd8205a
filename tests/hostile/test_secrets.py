"""Keys and passwords reach the server they are for, and nothing and nobody else."""

from __future__ import annotations

import asyncio
import base64
import sys
from pathlib import Path

import pytest
from server import COMPLETIONS, METRICS, MODELS, SLOTS, HostileServer, answers, redirects
from watched import SMALL, attach

from running import Cli, Result
from speclift.core.arm import ServerSettings, baseline_arm
from speclift.core.engine_spec import EngineSpec
from speclift.core.errors import UsageError
from speclift.core.user_command import hidden_words, revealed_words
from speclift.engines.deployment import deployment_of
from speclift.engines.process import ServerProcess

KEY = "open-sesame-4711"
PASSWORD = "hunter-4711"
PAIR = base64.b64encode(f"me:{PASSWORD}".encode()).decode()
KEYED = ("--api-key-env", "SERVER_KEY")

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def server_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_KEY", KEY)


def everything_kept(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def assert_kept_nowhere(secret: str, folder: Path, *results: Result) -> None:
    assert secret.encode() not in everything_kept(folder)
    assert all(secret not in result.stdout + result.stderr for result in results)


# Redirects

PATHS = [MODELS, METRICS, SLOTS, COMPLETIONS, "/version", "/props", "/server_info", "/get_server_info"]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_key_follows_no_redirect_to_another_server(status: int, cli: Cli) -> None:
    with HostileServer() as thief:
        away = {path: redirects(f"{thief.url}{path}", status=status) for path in PATHS}
        with HostileServer(away) as server:
            result = cli("measure", *attach(server.url), *KEYED, *SMALL, "--study", "s")
    assert result.code == 1
    assert thief.asked == []
    assert f"answered {status}: moved to {thief.url}{MODELS}" in " ".join(result.stderr.split())
    assert "redirects to another server are not followed" in result.stderr


@pytest.mark.parametrize("path", PATHS[1:])
def test_no_page_of_a_server_leads_to_another(path: str, cli: Cli, tmp_path: Path) -> None:
    told = {"/props": answers({"build_info": "b1"})}
    with HostileServer() as thief, HostileServer({**told, path: redirects(f"{thief.url}{path}")}) as server:
        cli("measure", *attach(server.url), *KEYED, *SMALL, "--study", "s")
    assert thief.asked == []
    assert_kept_nowhere(KEY, tmp_path)


def test_within_one_server_a_redirect_is_followed_without_a_key_and_not_with_one(cli: Cli) -> None:
    listed = answers({"data": [{"id": "m"}]})
    moved = {MODELS: redirects("/v1/models/"), "/v1/models/": listed}
    with HostileServer(moved) as server:
        keyed = cli("measure", *attach(server.url), *KEYED, *SMALL, "--study", "keyed")
        assert server.asked_for("/v1/models/") == []
        plain = cli("measure", *attach(server.url), *SMALL, "--study", "plain")
        assert server.asked_for("/v1/models/")
    assert (keyed.code, plain.code) == (1, 0), plain.stderr
    assert "redirects are not followed with a key" in keyed.stderr


def test_a_redirect_in_a_circle_ends(cli: Cli) -> None:
    with HostileServer({MODELS: redirects(MODELS)}) as server:
        result = cli("measure", *attach(server.url), *SMALL, "--study", "s")
    assert result.code == 1
    assert "redirects too often" in result.stderr


@pytest.mark.parametrize(
    "location", ["", "http://[::1", "ftp://h/", "//", "http://h:x/", "\xff", "x" * 60_000]
)
def test_a_redirect_to_what_is_no_address_is_a_message(location: str, cli: Cli) -> None:
    with HostileServer({MODELS: redirects(location)}) as server:
        result = cli("measure", *attach(server.url), *SMALL, "--study", "s")
    assert result.code == 1, result.stderr
    assert server.url in result.stderr
    assert len(result.stderr) < 1000


# Secrets in addresses


def with_secrets(url: str) -> str:
    return url.replace("http://", f"http://me:{PASSWORD}@") + f"/v1?key={KEY}"


@pytest.mark.slow
def test_a_user_and_a_key_in_the_address_work_and_are_kept_nowhere(cli: Cli, tmp_path: Path) -> None:
    with HostileServer() as server, HostileServer() as drafting:
        urls = attach(with_secrets(server.url), with_secrets(drafting.url))
        metrics = f"--baseline-metrics-url={with_secrets(server.url)}&format=text"
        result = cli("decide", *urls, metrics, *SMALL, "--json", "--study", "s")
        assert result.code in {0, 3, 4, 5}, result.stderr
        assert {cell["failed"] for cell in result.document["cells"]} == {0}
        for talk in (*server.asked, *drafting.asked):
            assert talk.headers["authorization"] == f"Basic {PAIR}"
            assert f"key={KEY}" in talk.target
        shown = f"http://me:***@127.0.0.1:{server.port}?key=***"
        assert ["attach", shown] in [list(command) for command in result.document["provenance"]["commands"]]
        reported = cli("report", "s", "--out", "page.html")
    for secret in (KEY, PASSWORD, PAIR):
        assert_kept_nowhere(secret, tmp_path, result, reported)


def test_what_would_be_done_shows_no_secret(cli: Cli) -> None:
    result = cli("decide", *attach(with_secrets("http://h:81"), "http://h:82"), *SMALL, "--dry-run")
    assert result.code == 0, result.stderr
    assert "attach 'http://me:***@h:81?key=***'" in result.stdout


@pytest.mark.slow
def test_a_study_goes_on_when_the_secret_is_given_again_and_says_so_when_not(
    cli: Cli, tmp_path: Path
) -> None:
    from speclift.core import address

    with HostileServer() as server:
        first = cli("measure", *attach(with_secrets(server.url)), *SMALL, "--study", "s")
        assert first.code == 0, first.stderr
        address._known.clear()  # as in another process
        without = cli("measure", "--resume", "--study", "s")
        assert without.code == 2
        assert "a study stores no secrets" in without.stderr
        assert "with its secret again, with --resume" in without.stderr
        shown = cli("compare", "s")
        assert "Traceback" not in shown.stderr
        again = cli("measure", "--resume", "--study", "s", "--baseline-url", with_secrets(server.url))
        assert again.code == 0, again.stderr
    assert_kept_nowhere(KEY, tmp_path, first, without, shown, again)


@pytest.mark.slow
def test_a_study_file_may_hold_a_secret_and_the_study_does_not(cli: Cli, tmp_path: Path) -> None:
    with HostileServer() as server:
        text = f'engine = "attach"\nbaseline_url = "{with_secrets(server.url)}"\n'
        Path("speclift.toml").write_text(text)
        result = cli("measure", *SMALL, "--study", "s")
        flagged = cli("measure", "--baseline-url", server.url, *SMALL, "--study", "t")
    assert (result.code, flagged.code) == (0, 0), result.stderr
    assert_kept_nowhere(KEY, tmp_path / "s", result)
    assert_kept_nowhere(KEY, tmp_path / "t", flagged)


@pytest.mark.parametrize("code", [401, 500])
@pytest.mark.parametrize("path", [MODELS, COMPLETIONS])
def test_a_server_that_repeats_the_key_does_not_get_it_kept(
    code: int, path: str, cli: Cli, tmp_path: Path
) -> None:
    echo = answers({"error": {"message": f"not a key of ours: {KEY}"}}, status=code)
    with HostileServer({path: echo}) as server:
        result = cli("measure", *attach(server.url), *KEYED, *SMALL, "--study", "s")
    assert result.code == 1
    assert f"{code}: not a key of ours: ***" in " ".join(result.stderr.split())
    assert_kept_nowhere(KEY, tmp_path, result)


@pytest.mark.parametrize("end", ["\r", "\n", "\r\n", " ", "\x1b", "\u00e9"])
def test_a_key_that_no_header_can_carry_is_refused_and_not_shown(
    end: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVER_KEY", KEY + end)
    with HostileServer() as server:
        result = cli("measure", *attach(server.url), *KEYED, *SMALL, "--study", "s")
        assert server.asked == []
    assert result.code == 2
    assert "the key in SERVER_KEY has an invalid character" in result.stderr
    assert_kept_nowhere(KEY, tmp_path, result)


@pytest.mark.parametrize(
    "url",
    [
        "foo",
        "http://[::1",
        "127.0.0.1:8000",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:x",
        "ftp://h",
        "http://a b",
        "",
    ],
)
@pytest.mark.parametrize("flag", ["--baseline-url", "--spec-url", "--baseline-metrics-url"])
@pytest.mark.parametrize("verb", ["decide", "measure"])
def test_what_is_no_address_is_wrong_usage(verb: str, flag: str, url: str, cli: Cli) -> None:
    result = cli(verb, "--engine", "attach", "--baseline-url", "http://127.0.0.1:9", f"{flag}={url}")
    assert result.code == 2, result.stderr
    assert f"{flag} is not a server's address" in result.stderr


def test_an_address_that_is_refused_keeps_its_password(cli: Cli, tmp_path: Path) -> None:
    for url in (f"http://me:{PASSWORD}@h:port", f"me:{PASSWORD}@h", f"http://me:{PASSWORD}/x@h"):
        result = cli("measure", "--engine", "attach", "--baseline-url", url)
        assert result.code == 2
        assert_kept_nowhere(PASSWORD, tmp_path, result)


# In a server's own words

SECRET = "sk-4711-sesame"


@pytest.mark.parametrize(
    "words",
    [
        f"--engine llamacpp --engine-arg=--api-key --engine-arg={SECRET}",
        f"--engine llamacpp --engine-arg=--api-key={SECRET}",
        f"--engine llamacpp --engine-arg --api-key --engine-arg {SECRET}",
        f"-- vllm serve m --hf_token={SECRET}",
        f"-- vllm serve m --hf_token {SECRET}",
        f"-- vllm serve m --api_key={SECRET}",
        f"-- vllm serve m --hf-tok {SECRET}",
        f"-- vllm serve m --otlp-traces-endpoint http://u:{SECRET}@h/",
        f'-- vllm serve m --lora-modules {{"name":"x","path":"http://u:{SECRET}@h/x"}}',
        f"-- vllm serve s3://key:{SECRET}@bucket/m",
        f"-- env -i AWS_SECRET_ACCESS_KEY={SECRET} vllm serve m",
        f"-- env -u HOME HF_TOKEN={SECRET} vllm serve m",
    ],
)
def test_a_secret_among_the_servers_words_is_shown_nowhere(words: str, cli: Cli) -> None:
    for extra in ((), ("--json",)):
        result = cli("decide", "--dry-run", "--method", "ngram", "--k", "3", *extra, *words.split(" "))
        assert result.code == 0, result.stderr
        assert SECRET not in result.stdout + result.stderr
        assert ("llamacpp" if "llamacpp" in words else "vllm") in result.stdout


@pytest.mark.parametrize(
    "line", [f"vllm serve m --hf_token={SECRET} --unheard-of", f"vllm serve --api-key {SECRET}"]
)
def test_a_line_that_is_refused_keeps_its_secret(line: str, cli: Cli) -> None:
    for verb in ("decide", "plan"):
        result = cli(verb, "--", *line.split())
        assert result.code != 0
        assert SECRET not in result.stdout + result.stderr


def test_an_emptied_environment_is_told(cli: Cli) -> None:
    for words in (["env -i A=1 vllm serve m"], ["--", *["env", "-i", "A=1", "vllm", "serve", "m"]]):
        assert "env -i is left out" in " ".join(cli("lint", *words).stderr.split())


def test_a_server_is_started_with_the_secret_and_its_log_is_left_without(tmp_path: Path) -> None:
    typed = (
        "--api-key",
        SECRET,
        f"--endpoint=http://u:{SECRET}@h/?x=1",
        "--served-model-name",
        "s3://k:***@b/m",
    )
    shown = hidden_words(typed)
    assert SECRET not in " ".join(shown)
    seen = tmp_path / "argv"
    script = f"import pathlib, sys; print(sys.argv, flush=True); pathlib.Path({str(seen)!r}).write_text(repr(sys.argv))"

    async def launch() -> ServerProcess:
        log = tmp_path / "log"
        process = await ServerProcess.start(
            (sys.executable, "-c", script, *shown), base_url="http://h", log=log
        )
        while not (seen.is_file() and seen.read_text()):
            await asyncio.sleep(0.02)
        await process.stop()
        return process

    process = asyncio.run(launch())
    assert seen.read_text() == repr(["-c", *typed])
    assert SECRET not in process.log.read_text()
    assert "--api-key" in process.log.read_text()


def test_a_secret_that_is_in_no_study_has_to_be_given_again() -> None:
    with pytest.raises(UsageError, match="secret in --api-k is unknown") as raised:
        revealed_words(["vllm", "--api-k", "***"])
    assert "--resume" in raised.value.hint


def test_what_is_exported_reads_its_secrets_from_variables() -> None:
    words = ("--api_key", SECRET, f"--hf_token={SECRET}", "--block-size", "16")
    settings = ServerSettings(model="m", engine_args=words)
    assert SECRET not in repr(settings)
    deployment = deployment_of(
        EngineSpec(kind="vllm", settings=settings), baseline_arm(), version="vllm 0.32.0"
    )
    assert deployment is not None
    assert set(deployment.secrets) == {"VLLM_API_KEY", "HF_TOKEN"}
    flags = " ".join(deployment.flags)
    assert "--block-size 16" in flags
    assert not any(left in flags for left in (SECRET, "***", "api_key", "hf_token"))
