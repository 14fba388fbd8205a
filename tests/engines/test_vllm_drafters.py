"""What vLLM refuses as soon as it speculates."""

from __future__ import annotations

from typing import Any

import pytest

from speclift.engines.vllm.drafters import VllmDrafters


@pytest.mark.parametrize(
    ("params", "names"),
    [
        ({"min_p": 0.05, "logit_bias": {"5": -100}}, ("min_p", "logit_bias")),
        ({"min_p": 0, "logit_bias": {}, "top_p": 0.9}, ()),
        ({"min_p": "0.5"}, ()),
        ({"trace_decode_token_ids": [1]}, ("trace_decode_token_ids",)),
    ],
)
def test_parameters_that_vllm_refuses_under_speculation(
    params: dict[str, Any], names: tuple[str, ...]
) -> None:
    assert VllmDrafters().refused(params) == names
