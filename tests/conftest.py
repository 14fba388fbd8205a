"""What every test may use: the embedded model, the command line, a hypothesis profile without deadlines."""

from __future__ import annotations

import functools
import gc
import importlib.util
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer.main
from hypothesis import settings
from make_environment import environment

from in_threads import use_threads
from progress import Progress
from ray_nodes import RayCluster, running_cluster
from running import Cli, Decided, Result, called, fake_flags
from speclift.cli.main import main
from speclift.core import address, user_command
from speclift.core.arm import EMBEDDED_MODEL
from speclift.core.errors import ModelError
from speclift.weights import models

# The promises of a suite written once are asserted in these modules, not in test files.
pytest.register_assert_rewrite("attach_contract", "engine_contract", "processes")

# A shell starts background jobs with Ctrl-C ignored, and children inherit that; the tests send it to theirs.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The tests run two thousand commands in their own process; what those are made of is the same each time.
typer.main.get_command = functools.cache(typer.main.get_command)

# A deadline measures the machine, not the code. Few examples for every day; more with --hypothesis-profile=ci, as
# `make test` has it, and --hypothesis-profile=night for whoever has minutes.
settings.register_profile("fast", deadline=None, max_examples=10)
settings.register_profile("ci", deadline=None, max_examples=20)
settings.register_profile("night", deadline=None, max_examples=2000)
settings.load_profile("fast")

pytest_plugins = ["pytester"]


def pytest_configure(config: pytest.Config) -> None:
    """One line instead of a dot for each test; with -v, pytest's own."""
    is_worker = hasattr(config, "workerinput")
    if not is_worker and config.option.verbose <= 0 and not config.option.collectonly:
        config.pluginmanager.register(Progress(config), "progress")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first: the quick ones fill the gaps in the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish() -> None:
    """Ten thousand tests stay in memory: no search for garbage need look through them again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def embedded_model() -> Path:
    """The embedded model from the user's cache; fetched there only where SPECLIFT_FETCH=1 allows it."""
    if importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("the embedded engine is not installed: pip install 'speclift[llama]'")
    try:
        return models.resolve(EMBEDDED_MODEL)
    except ModelError as error:
        if os.environ.get("SPECLIFT_FETCH") == "1":
            return models.fetch(EMBEDDED_MODEL, progress=lambda _text: None)
        pytest.skip(f"{error} SPECLIFT_FETCH=1 lets the tests fetch it.")


@pytest.fixture(scope="session")
def vllm_python() -> str:
    """The interpreter of the environment that `make vllm-env` makes."""
    python = environment() / "bin" / "python"
    if not (environment() / ".can-convert").exists():
        pytest.skip("vLLM's environment is missing: make vllm-env")
    return str(python)


@pytest.fixture(scope="session")
def hugging_face_model(vllm_python: str, embedded_model: Path) -> Path:
    """The embedded model as vLLM reads it, beside vLLM's environment; converted once."""
    folder = environment().with_name(f"{embedded_model.stem}-hugging-face")
    if not folder.exists():
        part = folder.with_name(f"{folder.name}.part-{os.getpid()}")
        script = Path(__file__).parent / "vllm" / "convert_model.py"
        quiet = {**os.environ, "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
        subprocess.run(
            [vllm_python, script, embedded_model, part], check=True, env=quiet, capture_output=True
        )
        part.rename(folder)
    return folder


@pytest.fixture(autouse=True)
def no_secrets_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process hides the secrets that its one command was given; here it runs thousands of commands."""
    monkeypatch.setattr(address, "_known", {})
    monkeypatch.setattr(address, "_secrets", set())
    monkeypatch.setattr(address, "_typed", {})
    monkeypatch.setattr(user_command, "_hidden_values", {})


@pytest.fixture
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake engines and senders as threads, but where times are judged, processes asked for, or engines are real."""
    if not any(map(request.node.get_closest_marker, ("alone", "processes", "llama", "vllm"))):
        use_threads(monkeypatch)


@pytest.fixture
def cli(
    threads: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Cli:
    """Runs one command as a shell would, without paying for the imports each time: in an empty folder, with
    an empty cache, on a wide terminal that is none."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPECLIFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["speclift", *(str(argument) for argument in arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        return Result(code=code, stdout=captured.out, stderr=captured.err)

    return run


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts text on standard input."""

    def put(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode("utf-8", "replace"))))

    return put


@pytest.fixture(scope="session")
def page() -> str:
    """What a vLLM server showed at /metrics."""
    recorded = Path(__file__).parent / "recorded" / "vllm-0.32.0-metrics.txt"
    return recorded.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def cluster() -> Iterator[RayCluster]:
    """A Ray cluster of three nodes on this machine, whose truths differ."""
    with running_cluster() as found:
        yield found


@pytest.fixture(scope="module")
def no_search_for_garbage() -> Iterator[None]:
    """Syntax trees are large and all kept: looking through them for garbage takes longer than making them."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def small() -> list[object]:
    """A study of a second: one launch per arm, four requests each."""
    return ["--segment", "chat", "--requests", 4, "--max-tokens", 12, "--launches", 1, *fake_flags()]


@pytest.fixture(scope="session")
def decided(tmp_path_factory: pytest.TempPathFactory) -> Decided:
    folder = tmp_path_factory.mktemp("decided")
    size = ("--segment", "chat", "--requests", 4, "--max-tokens", 12, "--launches", 1)
    with pytest.MonkeyPatch.context() as patch:
        use_threads(patch)
        result = called("decide", *size, *fake_flags(), "--json", "--study", "s", cwd=folder)
    return Decided(study=folder / "s", result=result)
