from __future__ import annotations

from pathlib import Path

import pytest

from scraped import check_on
from speclift.core.arm import Arm, ServerSettings
from speclift.core.speculation import NGram
from speclift.engines.llamacpp.engine import LlamaCpp

pytestmark = [pytest.mark.llama, pytest.mark.prometheus, pytest.mark.slow]


def test_exported_rules_and_panels_have_data_on_a_real_llama_cpp(
    embedded_model: Path, tmp_path: Path
) -> None:
    settings = ServerSettings(model=str(embedded_model), context_tokens=512, threads=1)

    check_on(LlamaCpp(settings), Arm(name="ngram", speculation=NGram(k=7, n=3)), settings, folder=tmp_path)
