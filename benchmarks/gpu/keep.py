"""What is kept of a GPU study: its records without their texts, its launches and its provenance, as JSON lines.

`python benchmarks/gpu/keep.py STUDY OUT.jsonl.gz`. The first line says where and how it was measured, then one line
per launch, per turn the engine counted, and per request.
"""

from __future__ import annotations

import gzip
import json
import sys
from dataclasses import asdict
from pathlib import Path

from speclift.core.records import Phase
from speclift.studies.format import record_columns
from speclift.studies.study import Study


def keep(study: Study, out: Path) -> None:
    with gzip.GzipFile(out, "wb", mtime=0) as stream:
        for line in _lines(study):
            # Whose machine it was is nobody's business.
            text = json.dumps(line, sort_keys=True).replace(str(Path.home()), "~")
            stream.write(text.encode() + b"\n")


def _lines(study: Study) -> list[dict[str, object]]:
    provenance = asdict(study.provenance)
    lines: list[dict[str, object]] = [{"kind": "provenance", **provenance}]
    for launch, kv_tokens in study.launches():
        lines.append({"kind": "launch", "kv_tokens": kv_tokens, **asdict(launch), "log_tail": ""})
    for turn in study.turn_totals():
        lines.append({"kind": "turn", **asdict(turn)})
    for record in study.records():
        if record.place.phase is Phase.MEASURED:
            columns = record_columns(record)
            del columns["text"]
            lines.append({"kind": "record", **columns})
    return lines


if __name__ == "__main__":
    with Study.open(Path(sys.argv[1])) as opened:
        keep(opened, Path(sys.argv[2]))
