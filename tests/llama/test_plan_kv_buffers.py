"""plan's KV buffers against the ones llama.cpp allocates: the same to the hundredth of a MiB its log shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from speclift.engines.llamacpp.planning import kv_buffer_bytes
from speclift.weights.gguf_file import read_gguf_model

pytestmark = pytest.mark.llama

# In a process of its own, as the product runs it; one answered request before the end lets it stop cleanly.
SCRIPT = """
import sys, urllib.request, xllamacpp as x
path, context, slots, kind = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
p = x.CommonParams()
p.model.path, p.n_ctx, p.n_parallel, p.kv_unified = path, context * slots, slots, False
p.fit_params, p.warmup, p.verbosity, p.cpuparams.n_threads = False, False, 4, 1
p.cache_type_k = p.cache_type_v = getattr(x.ggml_type, "GGML_TYPE_" + kind.upper())
server = x.Server(p)
urllib.request.urlopen(server.listening_address + "/slots").read()
"""


@pytest.mark.parametrize(
    ("context", "slots", "kv_type"), [(2048, 1, "f16"), (1000, 2, "f16"), (1000, 3, "q8_0"), (300, 4, "q4_0")]
)
def test_the_buffer_is_the_one_in_the_log(
    context: int, slots: int, kv_type: str, embedded_model: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(embedded_model), str(context), str(slots), kv_type],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    logged = re.search(r"KV buffer size = +([\d.]+) MiB", done.stderr)
    assert logged is not None
    shape, _, _ = read_gguf_model(embedded_model)
    planned = kv_buffer_bytes(shape, context=context, slots=slots, kv_type=kv_type)
    assert f"{planned / 2**20:.2f}" == logged[1]


def test_the_weights_are_those_of_the_file(embedded_model: Path) -> None:
    shape, weights, _ = read_gguf_model(embedded_model)
    assert shape.parameters.total == 134_515_008
    # What is left is the vocabulary and the other fields of the header.
    assert 0 < embedded_model.stat().st_size - weights.total < 2_500_000
