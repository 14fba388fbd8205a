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


def gate(result: str, *, mode: str = "quick", arm: str = "arm", also: str = "") -> str:
    """What the lossless gate found of an arm when the study was measured; the arm `also` passed it."""
    greedy = {"message": "as it was compared", "tokens": 96.0, "checks": []}
    counts = dict.fromkeys(("ties", "wide", "faults", "unknown_margin", "refused"), 0)

    def parts(result: str) -> dict[str, object]:
        return {
            "result": result,
            "greedy": {**greedy, "result": result, **counts},
            "sampled": {"result": "skipped"},
        }

    beside = {"depth": mode, "detect": 0.05, "planned_tokens": 1959, "control": {}, "wall_s": 1.0}
    arms = [
        {"arm": name, "method": "ngram", **parts(word), "edges": [], "findings": []}
        for name, word in {arm: result, **({also: "pass"} if also else {})}.items()
    ]
    lists = {"arms": arms, "examples": [], "findings": [], "notes": []}
    return kept("lossless", {"schema": 1, "mode": mode, "arm": arm, **parts(result), **beside, **lists})


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


# The servers of the last round once more, a tenth slower and without drafts: what scheduling alone does.
WITH_CONTROL = (
    """UPDATE meta SET value = replace(value, '"arms":[', '"arms":[{"name":"control","speculation":"""
    """{"kind":"equalised"}},') WHERE key = 'plan'; """
    "CREATE TEMP TABLE servers AS SELECT * FROM launches WHERE arm = 'baseline' AND round = 2; "
    "UPDATE servers SET id = id + 100, arm = 'control'; INSERT INTO launches SELECT * FROM servers; "
    "CREATE TEMP TABLE answers AS SELECT * FROM records WHERE arm = 'baseline' AND round = 2; "
    "UPDATE answers SET id = id + 1000, launch = launch + 100, arm = 'control', "
    "end_s = 1.1 * end_s - 0.1 * sent_s, last_token_s = 1.1 * last_token_s - 0.1 * sent_s; "
    "INSERT INTO records SELECT * FROM answers"
)
ON_THREE_NODES = "UPDATE records SET node = 'n' || round; UPDATE launches SET node = 'n' || round"


def nodes(*processors: str) -> str:
    """A node for every round, each with this processor."""
    return kept(
        "nodes",
        {
            "nodes": [
                {
                    "name": f"n{number}",
                    "host": {"cpu": processor, "cores": 2, "gpus": []},
                    "engine_version": "1",
                    "model_sha256": "m",
                }
                for number, processor in enumerate(processors)
            ]
        },
    )


def suffix_drafts() -> str:
    """The arm drafts from the answers it gave before."""
    return (
        """UPDATE meta SET value = replace(value, '{"kind":"ngram","variant":"simple","k":4,"n":12,"n_min":null,"""
        """"min_hits":1,"extra":[]}', '{"kind":"suffix","k":4}') WHERE key = 'plan'"""
    )


UNSEEN = """UPDATE records SET refused = '[["more-tokens-than-text", "64 tokens, 10 bytes"]]' WHERE """
