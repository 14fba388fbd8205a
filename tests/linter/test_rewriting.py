"""The user's own text with another speculation in it: nothing else changes, whatever its format."""

from __future__ import annotations

import pytest

from speclift.core.arm import Arm, ServerSettings
from speclift.core.engine_spec import EngineSpec
from speclift.core.speculation import DraftModel, NGram, Off, Speculation
from speclift.engines.build import build_engine
from speclift.verbs.user_command import brought, changed_line
from speclift.verdict.judgement import OwnLineChange, Served

CONFIG = '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}'
TEXTS = {
    "a script": f"""#!/bin/bash
# keeps its comments, --speculative-config or not
export CUDA_VISIBLE_DEVICES=0
vllm serve org/m \\
    --tensor-parallel-size 2 \\
    --speculative-config '{CONFIG}' \\
    --max-model-len 8192 > log.txt 2>&1
""",
    "one line": f"vllm serve org/m --speculative-config '{CONFIG}' --max-model-len 8192",
    "one line without": "vllm serve org/m --max-model-len 8192",
    "old flags": "vllm serve org/m --speculative-model org/d --num-speculative-tokens 5 --max-model-len 8192",
    "a program": """from vllm import LLM

llm = LLM(
    model="org/m",  # größer
    speculative_config={
        "method": "ngram",
        "num_speculative_tokens": 5,
        "prompt_lookup_max": 4,
    },
    max_model_len=8192,
)
""",
    "a short program": 'from vllm import LLM\nllm = LLM("org/m", max_model_len=8192)\n',
    "a config": """# ours
model: org/m
speculative-config:
  method: ngram
  num_speculative_tokens: 5
  prompt_lookup_max: 4
max-model-len: 8192
""",
    "a compose file": f"""services:
  llm:
    image: vllm/vllm-openai:v0.32.0
    ports: ["8000:8000"]
    command:
      - --model
      - org/m
      - --speculative-config
      - '{CONFIG}'
      - --max-model-len
      - "8192"
    restart: always
""",
    "a deployment": f"""apiVersion: apps/v1
kind: Deployment
metadata: {{name: llm}}
spec:
  template:
    spec:
      containers:
        - name: vllm
          image: vllm/vllm-openai:v0.32.0
          command: ["vllm", "serve", "org/m"]
          args: ["--max-model-len", "8192", "--speculative-config", '{CONFIG}']
""",
    "a unit": """[Unit]
Description=llm

[Service]
ExecStart=/usr/bin/llama-server -m /t.gguf -md /d.gguf --spec-type draft-simple --spec-draft-n-max 8 --port 80
Restart=always
""",
}
RECOMMENDED: dict[str, Speculation] = {
    "none": Off(),
    "look-up": NGram(k=3, n=2, n_min=2),
    "a draft": DraftModel(model="org/small 'one'", k=2),
}


def changed(text: str, speculation: Speculation) -> OwnLineChange:
    found = brought(text).settings
    line, engine = found["line"], str(found["engine"])
    settings = ServerSettings(model=str(found["model"]), line=line)  # type: ignore[arg-type]
    spec = EngineSpec(kind=engine, settings=settings, version=f"{engine} 0.32.0")
    built = build_engine(spec)
    arm = Arm(name="best", speculation=speculation)
    served = Served(forms=built.configurations(arm), config=built.config(arm))
    assert settings.line is not None
    return changed_line(settings.line, engine, served, speculation)


@pytest.mark.slow
@pytest.mark.parametrize("recommended", RECOMMENDED)
@pytest.mark.parametrize("name", TEXTS)
def test_says_what_is_recommended_in_its_own_format(name: str, recommended: str) -> None:
    text, speculation = TEXTS[name], RECOMMENDED[recommended]
    if name == "a unit" and isinstance(speculation, NGram):
        speculation = NGram(k=7, n=4)  # llama.cpp has no shortest window
    change = changed(text, speculation)

    again = brought(change.after).settings
    assert again.get("yours", Off()) == speculation
    assert again["line"].flags == brought(text).settings["line"].flags  # type: ignore[attr-defined]
    # What is not about speculation stays: first and last line, comments, indentation.
    kept = [line for line in text.splitlines() if "pecul" not in line and "spec-" not in line]
    outside = [line for line in kept if not any(key in line for key in ("ngram", "lookup", "}", CONFIG))]
    if len(text.splitlines()) > 1 and name not in ("a deployment", "a short program"):
        assert [line for line in outside if line.rstrip(" \\,") not in change.after] == []


def test_a_line_that_no_longer_runs_is_given_as_todays() -> None:
    change = changed(
        "vllm serve org/m --speculative-model org/d --num-speculative-tokens 5 --swap-space 4", Off()
    )
    assert "--swap-space" not in change.after
    assert change.after.startswith("vllm serve org/m")


def test_the_difference_is_shown_flag_by_flag() -> None:
    change = changed(TEXTS["one line"], Off())
    removed = [line for line in change.diff.splitlines()[2:] if line.startswith("-")]
    assert len(removed) == 1
    assert "--speculative-config" in removed[0]
