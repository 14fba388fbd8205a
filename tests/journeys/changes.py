"""Changes to recorded studies, in SQL: what other servers would have done."""

from __future__ import annotations

import json


def slower(times: float | str, where: str = "1", *, arm: str = "arm") -> str:
    """Answers of the arm that take so many times as long after their first token."""
    ends = f"first_token_s + ({times}) * (last_token_s - first_token_s)"
    return f"UPDATE records SET last_token_s = {ends}, end_s = {ends} WHERE arm = '{arm}' AND {where}"


def failing(where: str, error: str, outcome: str = "http-error") -> str:
    return (
        f"UPDATE records SET outcome = '{outcome}', error = '{error}', first_token_s = NULL, "
        f"last_token_s = NULL, output_tokens = NULL WHERE {where}"
    )


def only(where: str) -> str:
    return f"DELETE FROM records WHERE NOT ({where})"


def counted(**counters: float) -> str:
    """What every launch of the arm counted by its end."""
    values = ", ".join(f'"vllm:{name}": {value}' for name, value in counters.items())
    return f"UPDATE launches SET counters = '{{{values}}}' WHERE arm = 'arm'"


def said(text: str, where: str) -> str:
    return f"UPDATE records SET text = CAST('{text}' AS BLOB) WHERE {where}"


# The machine slows down by a fifth from the first request to the last.
_SINCE_THE_START = (
    "(sent_s - (SELECT min(sent_s) FROM records)) / (SELECT max(sent_s) - min(sent_s) FROM records)"
)
DRIFTING = ";".join(slower(f"1 + 0.2 * {_SINCE_THE_START}", arm=arm) for arm in ("baseline", "arm"))
WITHOUT_COUNTS = "UPDATE records SET drafted = NULL, accepted = NULL"


def kept(key: str, value: object) -> str:
    """A value that the study keeps beside its records."""
    return f"INSERT INTO meta VALUES ('{key}', '{json.dumps(value)}'), ('{key}#sha256', '')"


def gate(result: str, *, mode: str = "quick") -> str:
    """What the lossless gate found when the study was measured."""
    greedy = {"result": result, "message": "as it was compared", "tokens": 96.0, "checks": []}
    counts = dict.fromkeys(("ties", "wide", "faults", "unknown_margin", "refused"), 0)
    parts = {"result": result, "greedy": {**greedy, **counts}, "sampled": {"result": "skipped"}}
    beside = {"depth": mode, "detect": 0.05, "planned_tokens": 1959, "control": {}, "wall_s": 1.0}
    arms = [{"arm": "arm", "method": "ngram", **parts, "edges": [], "findings": []}]
    lists = {"arms": arms, "examples": [], "findings": [], "notes": []}
    return kept("lossless", {"schema": 1, "mode": mode, "arm": "arm", **parts, **beside, **lists})


def measured_on(kind: str, version: str, model: str) -> str:
    """The same figures as if another engine had given them."""
    words = {
        '"kind":"fake"': f'"kind":"{kind}"',
        '"engine":"fake"': f'"engine":"{kind}"',
        '"engine_version":"1"': f'"engine_version":"{version}"',
        '"model":"fake"': f'"model":"{model}"',
    }
    value = "value"
    for before, after in words.items():
        value = f"replace({value}, '{before}', '{after}')"
    return f"UPDATE meta SET value = {value} WHERE key IN ('engine', 'provenance')"


ON_VLLM = measured_on("vllm", "0.32.0", "meta-llama/Llama-3.1-8B")
ON_LLAMACPP = measured_on("llamacpp", "xllamacpp 2026.10.11549", "/models/target.gguf")

# The arm's text is not the model's.
FORCED = (
    """UPDATE meta SET value = replace(value, '{"kind":"ngram"', '{"kind":"synthetic","rates":[1,1,1,1],"inner":"""
    """{"kind":"ngram"') WHERE key = 'plan'; """
    """UPDATE meta SET value = replace(value, '"extra":[]}}', '"extra":[]}}}') WHERE key = 'plan'"""
)

# The second arm of two drafts with a model, and segments have the names that the articles know.
WITH_A_MODEL = (
    """UPDATE meta SET value = replace(value, '{"kind":"ngram","variant":"simple","k":8,"n":12,"n_min":null,"""
    """"min_hits":1,"extra":[]}', '{"kind":"draft","model":"small","k":8}') WHERE key = 'plan'; """
    "UPDATE records SET segment = CASE segment WHEN 'copy' THEN 'qa' WHEN 'chat' THEN 'creative' ELSE segment END; "
    "UPDATE records SET accepted = drafted * 3 / 4 WHERE arm = 'other' AND segment = 'qa'"
)


def typed_as(*words: str) -> str:
    """What was typed when the study was measured."""
    argv = json.dumps(words).replace("'", "''")
    before = '["decide","--engine","fake"]'
    return f"UPDATE meta SET value = replace(value, '{before}', '{argv}') WHERE key = 'provenance'"
