"""A wrong command is told what was seen and what is allowed: exit 2, or 1 where something is not there.

Nothing is launched, nothing is written, and nothing comes to stdout.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from running import Cli

WRONG = [
    ("decid", "Did you mean 'decide'?"),
    ("decide --engine fkae", "unknown engine 'fkae' 'fake' llamacpp"),
    ("decide --engine fake --concurency 4", "--concurency --concurrency"),
    ("decide --engine fake --method ngrm", "unknown method 'ngrm' 'ngram'"),
    ("decide --engine fake --metric speed", "unknown metric 'speed' tpot"),
    ("decide --engine fake --slo ttft_p98=1s", "unknown SLO 'ttft_p98' ttft_p99"),
    ("decide --engine fake --qps 1 --concurrency 1", "--concurrency --qps"),
    ("decide --engine fake --budget soonish", "--budget takes a duration 'soonish'"),
    ("decide --engine fake --prompts nowhere.jsonl", "nowhere.jsonl No such file"),
    ("decide --engine fake --engine-arg tpto_s=1", "unknown truth 'tpto_s' 'tpot_s'"),
    ("decide --engine fake --draft d.gguf --method draft,k=0", "at least 1, saw 0"),
    ("decide --config nowhere.toml", "nowhere.toml"),
    ("measure --engine fake --launches 0", "--launches"),
    ("tune --engine fake --k x", "--k 'x'"),
    ("verify --engine fake --soak soon", "--soak 'soon'"),
    ("compare", "STUDY"),
    ("decide --engine fake --min-speedup 0", "--min-speedup takes 0.01 to 1,000, saw 0"),
    ("report", "STUDY"),
    ("plan --gpu h200", "--target"),
    ("plan --target llama-3.1-8b --gpu h2000", "h2000 h200"),
    ("plan --target llama-3.1-8b --gpu h200 --acceptance 1.5", "0..1, saw 1.5"),
    ("lint nowhere.sh", "nowhere.sh"),
    ("lint --engine sglang -- x", "sglang"),
    ("replay nowhere.jsonl", "nowhere.jsonl"),
    ("replay log.jsonl --k 9..3", "'9..3' is not a range"),
    ("watch ftp://a", "ftp://a"),
    ("watch http://127.0.0.1:9 --interval soon", "--interval"),
    ("watch - http://127.0.0.1:9", "-"),
    ("gateway", "--spec"),
    ("gateway --spec http://127.0.0.1:9", "--plain"),
    ("gateway --spec http://127.0.0.1:9 --plain http://127.0.0.1:8 --policy nowhere", "nowhere"),
    ("gateway --spec http://127.0.0.1:9 --plain http://127.0.0.1:8 --listen 0.0.0.0:0", "--token-env"),
    ("gateway --spec http://127.0.0.1:9 --canary 200%", "--canary"),
    ("export s --to kubernets", "kubernets kubernetes"),
    ("models inspect nowhere", "unknown model 'nowhere' smollm2-135m"),
]
ABSENT = [
    ("decide --resume --engine fake", "no study to resume"),
    ("decide --resume --study nowhere", "no study at nowhere"),
    ("decide --model missing.gguf", "missing.gguf"),
    ("compare nowhere", "no study at nowhere"),
    ("report nowhere", "no study at nowhere"),
    ("export nowhere --to vllm", "no study at nowhere"),
    ("watch http://127.0.0.1:9 --study nowhere --once", "no study at nowhere"),
    ("replay log.jsonl --study nowhere", "no study at nowhere"),
    ("measure --engine attach --baseline-url http://127.0.0.1:9 --requests 1", "127.0.0.1:9"),
    ("decide --engine vllm --model m --vllm-python /nowhere/python", "/nowhere/python"),
    ("models inspect missing.gguf", "missing.gguf"),
]


@pytest.mark.parametrize(
    ("words", "parts", "code"),
    [(*case, 2) for case in WRONG] + [(*case, 1) for case in ABSENT],
    ids=[case[0] for case in (*WRONG, *ABSENT)],
)
def test_it_is_refused(words: str, parts: str, code: int, cli: Cli, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"prompt": "a b c d", "response": "a b c d e f g h"}\n')
    result = cli(*words.split())
    assert (result.code, result.stdout) == (code, "")
    shown = " ".join(result.stderr.split())
    assert parts in shown or [part for part in parts.split() if part not in shown] == []
    assert "Traceback" not in shown
    assert list(tmp_path.iterdir()) == [log]


def test_what_was_measured_is_never_measured_over(cli: Cli, small: list[object], tmp_path: Path) -> None:
    assert cli("measure", *small, "--study", "s").code == 0
    before = (tmp_path / "s" / "study.sqlite").read_bytes()
    result = cli("measure", *small, "--study", "s")
    assert (result.code, "already holds a study" in result.stderr) == (2, True)
    assert (tmp_path / "s" / "study.sqlite").read_bytes() == before
