from __future__ import annotations

from pathlib import Path

import pytest

from scraped import check_on
from speclift.core.arm import Arm, ServerSettings
from speclift.core.speculation import NGram
from speclift.engines.vllm.engine import Vllm

pytestmark = [pytest.mark.vllm, pytest.mark.prometheus, pytest.mark.slow, pytest.mark.timeout(600)]


def test_exported_rules_and_panels_have_data_on_a_real_vllm(
    vllm_python: str, hugging_face_model: Path, tmp_path: Path
) -> None:
    settings = ServerSettings(
        model=str(hugging_face_model),
        context_tokens=512,
        threads=1,
        prefix_cache=True,
        engine_args=("--enforce-eager",),
    )
    engine = Vllm(settings, python=vllm_python)

    check_on(engine, Arm(name="ngram", speculation=NGram(k=5, n=3)), settings, folder=tmp_path)
