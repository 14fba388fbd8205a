"""llama-server's metrics by build, as data. Pure.

Lifetimes were read off the tags up to b10586, and b11549's own page. Its counters have their whole name in the source;
as everywhere in these tables the _total of one is left out.
"""

from __future__ import annotations

from speclift.linter.metrics import MetricNames
from speclift.linter.rows import NameTable, Row, ValueKind, by_name, listed

_SOURCE = "tools/server/server-task.cpp; llama.cpp PR 26389, 26920"

_PLAIN = """
2258 - counter: prompt_tokens tokens_predicted
2258 - gauge: requests_processing requests_deferred
2364 - counter: prompt_seconds tokens_predicted_seconds
3678 - counter: n_decode
3678 - gauge: n_busy_slots_per_decode
6890 - gauge: n_tokens_max
10408 - counter: prompt_tokens_cached
"""
_COUNTED = (
    "spec_decode_num_drafts",
    "spec_decode_num_draft_tokens",
    "spec_decode_num_accepted_tokens",
    "spec_decode_num_accepted_tokens_per_pos",
)
_RESETS = "an average since the page was last read, whoever read it; compute a rate from the counters"
_NO_KV = "llama-server exports no use of its KV cache"

METRICS = NameTable(
    engine="llama.cpp",
    thing="metric",
    rows=by_name(
        (
            *listed(_PLAIN),
            *(
                Row(name, ValueKind.COUNTER, (10282,), note="exported only where the server speculates")
                for name in _COUNTED
            ),
            Row("prompt_tokens_seconds", ValueKind.GAUGE, (2258,), warning=_RESETS),
            Row("predicted_tokens_seconds", ValueKind.GAUGE, (2258,), warning=_RESETS),
            Row(
                "n_past_max",
                ValueKind.GAUGE,
                (6189,),
                (6890,),
                renamed_to="llamacpp:n_tokens_max",
                note="renamed",
            ),
            Row("kv_cache_usage_ratio", ValueKind.GAUGE, (2258,), (5441,), note=_NO_KV),
            Row("kv_cache_tokens", ValueKind.GAUGE, (2258,), (5441,), note=_NO_KV),
        ),
        source=_SOURCE,
    ),
    source=_SOURCE,
)
LLAMA_METRICS = MetricNames(METRICS, prefix="llamacpp")
