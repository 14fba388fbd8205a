"""A pasted serving command as a target: what is speculation, what is the server's own, what is refused."""

from __future__ import annotations

import json
import shlex

import pytest

from speclift.core.arm import Arm, ServerSettings
from speclift.core.errors import UsageError, WillNotRun
from speclift.core.speculation import (
    Combined,
    DraftModel,
    Head,
    NGram,
    Off,
    Speculation,
    Suffix,
)
from speclift.core.user_command import hidden_words
from speclift.engines.llamacpp import flags as llama_flags
from speclift.engines.vllm import flags as vllm_flags
from speclift.linter.user_command import OwnServer, own_server
from speclift.verbs.lint import dialects_for, lint


def taken(line: str) -> OwnServer:
    words = shlex.split(line)
    return own_server(lint(words), dialects_for(None), words)


NGRAM = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 2}'

LINES: dict[str, tuple[str, str, Speculation, str]] = {
    "vllm without speculation": ("vllm serve org/m -tp 2", "org/m", Off(), "-tp 2"),
    "vllm with a draft": (
        "vllm serve org/m --speculative-config "
        '\'{"method": "draft_model", "model": "org/d", "num_speculative_tokens": 5}\' --port 9',
        "org/m",
        DraftModel(model="org/d", k=5),
        "--port 9",
    ),
    "vllm's flags of 2024": (
        "python -m vllm.entrypoints.openai.api_server --model org/m --speculative-model org/d "
        "--num-speculative-tokens 3 --seed 1",
        "org/m",
        DraftModel(model="org/d", k=3),
        "--seed 1",
    ),
    "vllm with look-up": (
        f"vllm serve org/m --speculative-config '{NGRAM}'",
        "org/m",
        NGram(k=4, n=3, n_min=2),
        "",
    ),
    "vllm's own window": (
        "vllm serve org/m -sc.method=ngram -sc.num_speculative_tokens=4".replace(
            "-sc", "--speculative-config"
        ),
        "org/m",
        NGram(k=4, n=5, n_min=5),
        "",
    ),
    "vllm with a head": (
        'vllm serve org/m --speculative-config \'{"method":"eagle3","model":"org/h","num_speculative_tokens":2}\'',
        "org/m",
        Head(kind="eagle3", k=2, model="org/h"),
        "",
    ),
    "vllm with suffixes": (
        'vllm serve org/m --speculative-config \'{"method":"suffix","num_speculative_tokens":16}\'',
        "org/m",
        Suffix(k=16),
        "",
    ),
    "vllm with a key of its own": (
        'vllm serve org/m --speculative-config \'{"method":"draft_model","model":"org/d",'
        '"num_speculative_tokens":2,"quantization":"fp8","draft_sample_method":"probabilistic"}\'',
        "org/m",
        DraftModel(model="org/d", k=2, sampling="probabilistic", extra=(("quantization", '"fp8"'),)),
        "",
    ),
    "llama.cpp as it was written for years": (
        "llama-server -m t.gguf -md d.gguf --draft-max 16 --draft-min 4 -ngl 99 -c 4096",
        "t.gguf",
        DraftModel(model="d.gguf", k=16, k_min=4),
        "-ngl 99 -c 4096",
    ),
    "llama.cpp's defaults": (
        "llama-server -m t.gguf --spec-type ngram-simple",
        "t.gguf",
        NGram(k=48, n=12),
        "-m t.gguf",
    ),
    "llama.cpp with two drafters": (
        "llama-server -m t.gguf -md d.gguf --spec-type ngram-map-k,draft-simple --spec-draft-n-max 8 "
        "--spec-ngram-map-k-size-n 4",
        "t.gguf",
        Combined(parts=(NGram(variant="map-k", k=48, n=4), DraftModel(model="d.gguf", k=8))),
        "",
    ),
    "llama.cpp with settings of its own": (
        "llama-server -m t.gguf -md d.gguf --spec-type draft-simple --spec-draft-threads 2 --spec-draft-ngl 10",
        "t.gguf",
        DraftModel(model="d.gguf", k=3, gpu_layers=10, extra=(("spec-draft-threads", '"2"'),)),
        "",
    ),
    "llama.cpp's modular look-up": (
        "llama-server -m t.gguf --spec-type ngram-mod",
        "t.gguf",
        NGram(variant="mod", k=64, n=24, extra=(("spec-ngram-mod-n-min", '"48"'),)),
        "",
    ),
    "a container": (
        f"docker run --gpus all -p 8000:8000 vllm/vllm-openai:v0.32.0 --model org/m --speculative-config '{NGRAM}'",
        "org/m",
        NGram(k=4, n=3, n_min=2),
        "--model org/m",
    ),
}


class TestTaking:
    @pytest.mark.parametrize("name", LINES)
    def test_model_speculation_and_the_rest(self, name: str) -> None:
        line, model, speculation, kept = LINES[name]
        server = taken(line)
        assert server.parts.model == model
        assert server.parts.speculation == speculation
        assert kept in " ".join(server.line.words())
        dialect = dialects_for(server.engine).of(server.engine)
        assert not any(dialect.is_speculation(word) for word in server.line.words() if word.startswith("-"))

    @pytest.mark.parametrize(
        ("line", "error"),
        [
            ("vllm serve", WillNotRun),
            ("vllm serve m --bogus 3", WillNotRun),
            ("vllm serve m extra", WillNotRun),
            ("vllm serve m --speculative-config '{not json'", WillNotRun),
            ("vllm serve YOUR_MODEL", WillNotRun),
            ("python -m sglang.launch_server --model-path m", WillNotRun),
            ("llama-server -m t.gguf --draft-max 3 --no-such-flag", WillNotRun),
            ('vllm serve m --speculative-config \'{"method":"mlp_speculator","model":"d"}\'', WillNotRun),
            ("llama-server -m t.gguf --spec-type draft-simple", WillNotRun),
            ("llama-server -m t.gguf -md d --spec-type draft-simple,no-such", WillNotRun),
            ("llama-server -m t.gguf -md d --spec-type draft-simple --spec-synth-rates 0.5", UsageError),
        ],
    )
    def test_what_cannot_be_launched_is_refused_and_never_guessed(
        self, line: str, error: type[Exception]
    ) -> None:
        with pytest.raises(error):
            taken(line)


class TestSecrets:
    def test_are_hidden_wherever_they_stand(self) -> None:
        server = taken("HF_TOKEN=hf_abcdef vllm serve org/m --api-key sk-12345678 --port 3")
        assert "sk-12345678" not in repr(server.line)
        assert "hf_abcdef" not in repr(server.line)
        assert server.secrets == (("HF_TOKEN", "hf_abcdef"),)
        assert "--api-key *** --port 3" in " ".join(server.line.words())

    def test_a_token_for_the_hub_is_handed_on_by_its_variable_and_never_as_stars(self) -> None:
        for line in (
            "vllm serve org/m --hf-token hf_abcdef",
            "llama-server -hf org/m --hf-token hf_abcdef",
            "llama-server -hf org/m -hft hf_abcdef",
        ):
            server = taken(line)
            assert server.secrets == (("HF_TOKEN", "hf_abcdef"),)
            settings = ServerSettings(model="org/m", line=server.line)
            version = vllm_flags.parse_version("vllm 0.32.0")
            flags = (
                vllm_flags.server_flags(settings, port=1, version=version)
                if server.engine == "vllm"
                else llama_flags.server_flags(settings, port=1)
            )
            assert "***" not in flags

    @pytest.mark.parametrize(
        ("words", "shown"),
        [
            (["--api-key", "x"], ("--api-key", "***")),
            (["--api-key=x"], ("--api-key=***",)),
            (["--api-key", "one", "two", "--port", "1"], ("--api-key", "***", "***", "--port", "1")),
            (["OPENAI_API_KEY=x", "a"], ("OPENAI_API_KEY=***", "a")),
            (["--port", "1"], ("--port", "1")),
            ([], ()),
        ],
    )
    def test_in_words(self, words: list[str], shown: tuple[str, ...]) -> None:
        assert hidden_words(words) == shown


class TestLaunching:
    """The user's own flags, an address of ours, and what measuring needs."""

    def test_vllm_gets_nothing_but_its_line(self) -> None:
        server = taken("vllm serve org/m -tp 2 --host 0.0.0.0 --port 9 --api-key k --served-model-name s")
        settings = ServerSettings(model="org/m", line=server.line, tp=2)
        version = vllm_flags.parse_version("vllm 0.32.0")
        assert vllm_flags.server_flags(settings, port=7, version=version) == (
            *("--model", "org/m", "-tp", "2", "--served-model-name", "s"),
            *("--host", "127.0.0.1", "--port", "7"),
            *("--no-enable-prefix-caching", "--disable-uvicorn-access-log"),
        )
        assert vllm_flags.served_name(settings) == "s"

    def test_a_setting_given_before_the_line_wins(self) -> None:
        line = taken("vllm serve org/m --max-model-len 8192 --port 1").line
        settings = ServerSettings(model="org/m", line=line, context_tokens=4096, target_quant="fp8")
        assert vllm_flags.own_line(line, settings).flags == (
            ("--port", "1"),
            ("--max-model-len", "4096"),
            ("--quantization", "fp8"),
        )

    def test_llama_server_gets_nothing_but_its_line(self) -> None:
        line = taken("llama-server -m t.gguf -c 4096 --host 0.0.0.0 --port 9 --api-key k -fa on").line
        settings = ServerSettings(model="t.gguf", line=line)
        assert llama_flags.server_flags(settings, port=7) == (
            *("-m", "t.gguf", "-c", "4096", "-fa", "on"),
            *("--host", "127.0.0.1", "--port", "7", "--metrics", "--slots"),
        )


SPECULATIONS = {
    "vllm": [
        Off(),
        NGram(k=4, n=3, n_min=2),
        NGram(k=1, n=1, n_min=1),
        NGram(variant="gpu", k=8, n=5, n_min=5),
        Suffix(k=24),
        DraftModel(model="org/d", k=7),
        DraftModel(model="./d 'x'", k=1, sampling="probabilistic", kv_type_k="fp8", kv_type_v="fp8"),
        Head(kind="mtp", k=2),
        Head(kind="eagle", k=5, model="org/h", extra=(("quantization", '"fp8"'),)),
    ],
    "llamacpp": [
        Off(),
        NGram(k=15, n=8),
        NGram(variant="map-k", k=9, n=3, min_hits=2),
        NGram(variant="mod", k=64, n=24),
        NGram(variant="cache"),
        DraftModel(model="d.gguf", k=16, k_min=4, p_min=0.25, gpu_layers=3, device="CUDA1"),
        DraftModel(model="d.gguf", k=3, extra=(("spec-draft-threads", '"2"'),)),
        Head(kind="mtp", k=2),
        Combined(parts=(NGram(n=3, k=5), DraftModel(model="d.gguf", k=5))),
    ],
}


@pytest.mark.parametrize(
    ("engine", "speculation"), [(engine, each) for engine, found in SPECULATIONS.items() for each in found]
)
def test_what_an_arm_is_launched_with_is_read_back_as_that_arm(engine: str, speculation: Speculation) -> None:
    arm = Arm(name="yours", speculation=speculation)
    if engine == "vllm":
        config = vllm_flags.speculative_config(arm)
        words = ["--speculative-config", json.dumps(config)] if config else []
        line = ["vllm", "serve", "org/m", *words]
    else:
        line = ["llama-server", "-m", "t.gguf", *llama_flags.speculation_flags(arm)]
    again = own_server(lint(line), dialects_for(None), line)
    assert again.parts.speculation == speculation
    assert again.line.flags == (() if engine == "vllm" else (("-m", "t.gguf"),))
