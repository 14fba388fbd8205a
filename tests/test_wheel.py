"""What `pip install speclift` would leave: a wheel, built without the network, in an environment of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import speclift
from running import Result, fake_flags

ROOT = Path(__file__).parent.parent
PACKAGED = ("pyproject.toml", "README.md", "LICENSE")
# Minutes of a busy machine at most: nothing is compiled or fetched.
LIMIT_S = 300

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def run(*words: object, cwd: Path) -> Result:
    """Outside the clone, so that only what was installed is found."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=LIMIT_S,
        check=False,
    )
    return Result(code=done.returncode, stdout=done.stdout, stderr=done.stderr)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: what an earlier build left in the clone must not get into it."""
    folder = tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", folder / "clone" / "src", ignore=ignored)
    for name in PACKAGED:
        shutil.copy(ROOT / name, folder / "clone" / name)
    quiet = ("--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", "--no-build-isolation")
    built = run(sys.executable, "-m", "pip", "wheel", *quiet, "-w", folder, folder / "clone", cwd=folder)
    assert built.code == 0, built.stderr
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`speclift` of a fresh environment that has the wheel and, by a path file, what it depends on."""
    folder = tmp_path_factory.mktemp("installed")
    assert run(sys.executable, "-m", "venv", "--without-pip", "venv", cwd=folder).code == 0
    python = folder / "venv" / "bin" / "python"
    quiet = ("--quiet", "--disable-pip-version-check", "--no-index", "--no-deps")
    installed = run(sys.executable, "-m", "pip", "--python", python, "install", *quiet, wheel, cwd=folder)
    assert installed.code == 0, installed.stderr
    asked = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder)
    # Path files of that folder are not read, so that the clone installed there stays unseen.
    (Path(asked.stdout.strip()) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python.with_name("speclift")


def test_every_file_of_the_package_is_in_it(wheel: Path) -> None:
    packed = set(zipfile.ZipFile(wheel).namelist())
    package = ROOT / "src" / "speclift"
    files = {
        path.relative_to(ROOT / "src").as_posix()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert files - packed == set()
    for folder in ("weights/bundled", "weights/catalogue", "workload/bundled", "views/templates"):
        assert [name for name in packed if name.startswith(f"speclift/{folder}/")], folder


def test_its_version_is_the_one_that_the_program_tells(wheel: Path, program: Path, tmp_path: Path) -> None:
    assert wheel.name.startswith(f"speclift-{speclift.__version__}-")
    assert run(program, "--version", cwd=tmp_path).stdout == f"speclift {speclift.__version__}\n"


def test_it_runs_from_where_it_was_installed(program: Path, tmp_path: Path) -> None:
    listed = json.loads(run(program, "models", "list", "--json", cwd=tmp_path).stdout)
    for draft in listed["bundled_drafts"]:
        path = Path(draft["path"])
        assert path.is_relative_to(program.parents[1])
        assert path.is_file()


def test_it_plans(program: Path, tmp_path: Path) -> None:
    planned = run(program, "plan", "--target", "llama-3.1-8b", "--gpu", "h200", "--json", cwd=tmp_path)
    assert planned.code == 0, planned.stderr
    assert planned.document["speclift"] == speclift.__version__


def test_it_measures_with_its_own_prompts_and_writes_the_page(program: Path, tmp_path: Path) -> None:
    size = ("--segment", "chat", "--requests", 4, "--max-tokens", 12, "--launches", 1, "--no-verify")
    decided = run(program, "decide", *size, *fake_flags(), "--out", "report.html", cwd=tmp_path)
    assert decided.code in (0, 3, 4, 5), decided.stderr
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
