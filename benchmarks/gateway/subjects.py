"""What is measured: proxies as processes that say where they listen; each stands before the same two upstreams."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from environments import cache, environment_python

HERE = Path(__file__).parent
SOURCE = HERE.parent.parent / "src"
# The src folder of an earlier version, to be measured beside this one.
EARLIER = os.environ.get("SPECLIFT_EARLIER", "")
LITELLM_ENVIRONMENT = "litellm-1.106.2"
# As driver.c sends it: LiteLLM does not start without one.
LITELLM_KEY = "sk-loopback-benchmark-of-a-gateway-0000"
PATIENCE_S = 90.0
# The product takes uvloop where it is installed; None in its place is how Python says that it is not.
PRODUCT_ON = {
    "uvloop": "import sys, uvloop; from speclift.__main__ import main; sys.exit(main())",
    "asyncio": "import sys; sys.modules['uvloop'] = None; from speclift.__main__ import main; sys.exit(main())",
}
Ports = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    process: subprocess.Popen[bytes]
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """`start` is given the upstreams' ports and a folder; None: callers go to the upstreams themselves."""

    title: str
    start: Callable[[Ports, Path], Started] | None


@contextmanager
def running(subject: Subject, ports: Ports, folder: Path) -> Iterator[Started | None]:
    if subject.start is None:
        yield None
        return
    started = subject.start(ports, folder)
    try:
        yield started
    finally:
        started.process.terminate()
        try:
            started.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            started.process.kill()
            started.process.wait()


def _nginx(ports: Ports, folder: Path) -> Started:
    port = free_port()
    upstreams = "\n".join(f"        server 127.0.0.1:{each};" for each in ports)
    text = (HERE / "nginx.conf").read_text().replace("FOLDER", str(folder))
    config = folder / "nginx.conf"
    config.write_text(text.replace("LISTEN", str(port)).replace("UPSTREAMS", upstreams))
    return _listening(
        ["nginx", "-c", str(config), "-e", str(folder / "nginx.err")], port, folder, dict(os.environ)
    )


def _litellm(ports: Ports, folder: Path) -> Started:
    port = free_port()
    models = [
        {
            "model_name": "reference",
            "litellm_params": {
                "model": "openai/reference",
                "api_base": f"http://127.0.0.1:{each}/v1",
                "api_key": "none",
            },
        }
        for each in ports
    ]
    config = folder / "litellm.yaml"  # JSON is YAML
    config.write_text(json.dumps({"model_list": models, "litellm_settings": {"telemetry": False}}))
    program = environment_python(LITELLM_ENVIRONMENT).with_name("litellm")
    command = [
        str(program), "--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"
    ]  # fmt: skip
    own = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MASTER_KEY": LITELLM_KEY}
    return _listening(command, port, folder, {**os.environ, **own})


def _product(loop: str, source: str = str(SOURCE)) -> Callable[[Ports, Path], Started]:
    def start(ports: Ports, folder: Path) -> Started:
        spec, plain = ports
        command = [
            sys.executable, "-c", PRODUCT_ON[loop], "gateway", "--spec", f"http://127.0.0.1:{spec}",
            "--plain", f"http://127.0.0.1:{plain}", "--listen", "127.0.0.1:0", "--json",
        ]  # fmt: skip
        return _announced(command, folder, {**os.environ, "PYTHONPATH": source})

    return start


SUBJECTS = {
    "direct": Subject(title="direct access", start=None),
    "nginx": Subject(title="nginx, one worker", start=_nginx),
    "litellm": Subject(title="LiteLLM proxy", start=_litellm),
    "speclift": Subject(title="speclift gateway, uvloop", start=_product("uvloop")),
    "speclift-asyncio": Subject(title="speclift gateway, asyncio", start=_product("asyncio")),
    "earlier": Subject(title="an earlier gateway, uvloop", start=_product("uvloop", EARLIER)),
    "earlier-asyncio": Subject(title="an earlier gateway, asyncio", start=_product("asyncio", EARLIER)),
}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _announced(command: list[str], folder: Path, environment: dict[str, str]) -> Started:
    """A program that prints one JSON line with the address it listens on."""
    with (folder / "subject.err").open("wb") as errors:
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors)
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{command[1:4]} ended: {(folder / 'subject.err').read_text()[-800:]}")
    return Started(process=process, port=int(json.loads(line)["listen"].rpartition(":")[2]))


def _listening(command: list[str], port: int, folder: Path, environment: dict[str, str]) -> Started:
    """A program that listens where it was told, at some point."""
    log = folder / "subject.err"
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=environment, cwd=folder, stdout=out, stderr=subprocess.STDOUT)
    patience = time.monotonic() + PATIENCE_S
    while time.monotonic() < patience and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return Started(process=process, port=port)
        time.sleep(0.1)
    process.kill()
    raise RuntimeError(f"{command[0]} does not listen: {log.read_text()[-800:]}")


def driver_folder() -> Path:
    return cache() / "gateway-benchmark"
