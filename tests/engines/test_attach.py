"""What attach reads from servers that others started, what it refuses, and what becomes of one that goes away."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from running import Cli, hosted, records_of
from speclift.core.arm import Arm, ServerSettings, baseline_arm
from speclift.core.engine_spec import AttachSettings
from speclift.core.errors import EngineError
from speclift.core.records import Phase
from speclift.core.speculation import Attached
from speclift.engines.attach.kind import Attach, AttachedServer
from speclift.studies.study import Study
from tls_front import certificate, tls_front

SPEC = Arm(name="spec", speculation=Attached())
SIZE = ("--segment", "chat", "--requests", 12, "--max-tokens", 8, "--temperature", 0)
KEY = "open-sesame-4711"
POLL_S = 0.01
VLLM_METRICS = """
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="fp8",enable_prefix_caching="True",num_gpu_blocks="100"} 1.0
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} 7.0
vllm:generation_tokens_created{engine="0",model_name="m"} 1.7e9
"""
DRAFTS = 'vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 0.0\n'
MODELS = {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 4096}]}

Pages = dict[str, Any]


@contextmanager
def serving(pages: Pages) -> Iterator[str]:
    """A server with these pages and no others; what is not text is written as JSON."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = pages.get(self.path)
            self.send_response(404 if page is None else 200)
            self.end_headers()
            self.wfile.write((page if isinstance(page, str) else json.dumps(page)).encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(POLL_S,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def attach(url: str, *, model: str = "", arm: Arm | None = None, **more: str) -> AttachedServer:
    settings = AttachSettings(baseline_url=url, spec_url=url, **more)
    engine = Attach(ServerSettings(model=model), settings)
    return asyncio.run(engine.launch(arm or baseline_arm(), log=Path("unused")))


def version(url: str) -> str:
    return Attach(ServerSettings(model=""), AttachSettings(baseline_url=url)).version()


# Reading


@pytest.mark.parametrize(
    ("pages", "said"),
    [
        ({"/version": {"version": "0.32.0"}}, "vllm 0.32.0"),
        ({"/props": {"build_info": "b11549-abc"}}, "llama.cpp b11549-abc"),
        ({"/server_info": {"version": "0.5.19"}}, "sglang 0.5.19"),
        ({"/get_server_info": {"version": "0.4.6"}}, "sglang 0.4.6"),
        ({}, "unknown"),
        ({"/version": "<html>hello</html>"}, "unknown"),
    ],
)
def test_an_engine_is_known_by_where_it_tells_its_version(pages: Pages, said: str) -> None:
    with serving({"/v1/models": {"data": [{"id": "m"}]}, **pages}) as url:
        assert version(url) == said


def test_vllms_metrics_tell_its_cache_and_what_both_servers_must_have_in_common() -> None:
    with serving({"/v1/models": MODELS, "/version": {"version": "0.24.0"}, "/metrics": VLLM_METRICS}) as url:
        server = attach(url)
        assert server.kv_tokens == 1600
        assert server.settings == {
            "max_seq_len": "4096",
            "kv_cache_dtype": "fp8",
            "enable_prefix_caching": "True",
        }
        # Running totals alone: a gauge or a time of birth in them would be taken for growth.
        assert [name.partition("{")[0] for name in asyncio.run(server.counters()).values] == [
            "vllm:generation_tokens_total"
        ]


# Refusing


def test_a_model_that_is_not_served_is_refused_with_those_that_are() -> None:
    with (
        serving({"/v1/models": MODELS}) as url,
        pytest.raises(EngineError, match="does not serve 'x'") as caught,
    ):
        attach(url, model="x")
    assert caught.value.hint.endswith("one of: m")


@pytest.mark.parametrize("arm", [baseline_arm(), SPEC], ids=lambda arm: arm.name)
def test_swapped_servers_are_refused_before_anything_is_measured(arm: Arm) -> None:
    metrics = VLLM_METRICS + (DRAFTS if arm.is_baseline else "")
    pages = {"/v1/models": MODELS, "/version": {"version": "0.32.0"}, "/metrics": metrics}
    words = "the baseline, but speculates" if arm.is_baseline else "--spec-url, but does not speculate"
    with serving(pages) as url, pytest.raises(EngineError, match=f"given as {words}; are .* swapped"):
        attach(url, arm=arm)


# From the command line


Host = Callable[..., str]


@pytest.fixture
def host() -> Iterator[Host]:
    """Starts a fake server with these truths; its address."""
    with ExitStack() as servers:
        yield lambda *truths: servers.enter_context(hosted(*truths))


@pytest.mark.slow
def test_a_whole_study_on_attached_servers_ends_with_a_verdict_and_says_what_is_unknown(
    host: Host, cli: Cli
) -> None:
    baseline, spec = host("flavour=vllm"), host("flavour=vllm", "k=4", "acceptance=0.9")
    urls = ("--engine", "attach", "--baseline-url", baseline, "--spec-url", f"{spec}/v1")
    result = cli("decide", *urls, *SIZE, "--verify", "off", "--json", "--study", "s")
    assert result.code in {0, 3, 4, 5}, result.stderr
    assert result.document["provenance"]["engine_version"] == "vllm fake-1"
    assert result.document["kv_tokens"]["baseline"] is None
    assert {cell["failed"] for cell in result.document["cells"]} == {0}
    drafting = [cell for cell in result.document["cells"] if cell["arm"] == "spec"]
    assert all(cell["acceptance_rate"]["mean"] > 0.5 for cell in drafting)


@pytest.mark.slow
def test_an_attached_server_that_goes_away_fails_its_arm_and_not_request_after_request(
    host: Host, cli: Cli, tmp_path: Path
) -> None:
    baseline, spec = host(), host("k=4", "crash_after=9")
    urls = ("--engine", "attach", "--baseline-url", baseline, "--spec-url", spec)
    # All of it: where it is settled after a lap the server is asked no more and dies unseen.
    result = cli("decide", *urls, *SIZE, "--fixed", "--study", "s")
    assert result.code == 1
    assert f"spec died: {spec} refuses connections" in result.stderr
    with Study.open(tmp_path / "s") as study:
        assert any("speclift did not start it" in finding.next_step for finding in study.findings())
    measured = [record for record in records_of(tmp_path / "s") if record.place.phase is Phase.MEASURED]
    assert sum(not record.is_ok for record in measured) < 4
    assert all(record.is_ok for record in measured if record.place.arm == "baseline")


@pytest.fixture(scope="module")
def trusted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("the certificate is made with the openssl program")
    return certificate(tmp_path_factory.mktemp("tls"))


@pytest.mark.slow
def test_https_with_a_key_from_the_environment_measures_and_keeps_no_key(
    host: Host, trusted: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVER_KEY", KEY)
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    with tls_front(host("flavour=vllm"), certificate=trusted, key=KEY) as front:
        result = cli(
            *("measure", "--engine", "attach", "--baseline-url", front.url, "--api-key-env", "SERVER_KEY"),
            *(*SIZE, "--json", "--study", "s"),
        )
    assert result.code == 0, result.stderr
    assert {cell["failed"] for cell in result.document["cells"]} == {0}
    assert front.asked.count("/v1/chat/completions") >= 12
    assert "/metrics" in front.asked
    kept = b"".join(path.read_bytes() for path in (tmp_path / "s").rglob("*") if path.is_file())
    assert KEY.encode() not in kept
    assert KEY not in result.stdout + result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "trusts", "words"),
    [
        (KEY, False, ("certificate verify failed", "set SSL_CERT_FILE")),
        ("wrong", True, ("answered 401",)),
    ],
    ids=["a certificate that nobody trusts", "a wrong key"],
)
def test_a_server_that_cannot_be_trusted_or_does_not_trust_us_is_an_operating_error(
    key: str,
    trusts: bool,
    words: tuple[str, ...],
    host: Host,
    trusted: Path,
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SERVER_KEY", key)
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted) if trusts else "")
    with tls_front(host("flavour=vllm"), certificate=trusted, key=KEY) as front:
        result = cli(
            *("measure", "--engine", "attach", "--baseline-url", front.url, "--api-key-env", "SERVER_KEY"),
            *(*SIZE, "--study", "s"),
        )
    assert result.code == 1
    for word in words:
        assert word in " ".join(result.stderr.split())
    assert front.asked == []
