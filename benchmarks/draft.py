"""What is the bundled draft worth on this machine: accepted length by segment, its cost, and where it breaks even?

    python benchmarks/draft.py [--quick]

Three runs on the embedded engine, all at temperature 0: every bundled prompt at k=4; a few of each segment at several
k; and the draft by itself, by turns with the target.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

import speclift
from trials import trial_options

TARGET, DRAFT = "smollm2-135m", "smollm2-135m-draft"
KS = (1, 2, 3, 4, 5, 7)


def tpot_s(cell: Any) -> float:
    assert cell["tpot_s"] is not None
    assert cell["tpot_s"]["p50"] is not None
    return float(cell["tpot_s"]["p50"])


def accepted_length(cell: Any) -> float:
    assert cell["accepted_length"] is not None
    return float(cell["accepted_length"]["value"])


def accepted(study: Path, *, requests: int, threads: int) -> list[dict[str, Any]]:
    """Accepted length at k=4 by segment, over all bundled prompts, answers cut at 96 tokens."""
    document: Any = speclift.measure(
        drafts=(DRAFT,),
        ks=(4,),
        temperatures=(0.0,),
        max_tokens=96,
        requests=requests,
        launches=1,
        threads=threads,
        study=study,
    )
    return [
        {
            "segment": cell["segment"],
            "prompts": cell["requests"],
            "accepted_length": cell["accepted_length"],
            "acceptance_rate": cell["acceptance_rate"]["mean"] if cell["acceptance_rate"] else None,
        }
        for cell in document["cells"]
        if cell["arm"] == "draft-k4"
    ]


def break_even(study: Path, *, requests: int, threads: int) -> list[dict[str, Any]]:
    """At each k: the accepted length that pays for a step here, and what was accepted by segment.

    A step takes tpot x accepted length; it pays once it says more tokens than the baseline does in that time.
    """
    document: Any = speclift.measure(
        drafts=(DRAFT,),
        ks=KS,
        temperatures=(0.0,),
        max_tokens=64,
        requests=requests,
        launches=1,
        threads=threads,
        study=study,
    )
    cells = {(cell["arm"], cell["segment"]): cell for cell in document["cells"]}
    segments = sorted({segment for _, segment in cells if segment != "all"})
    rows = []
    for k in KS:
        arm = f"draft-k{k}"
        steps = [
            tpot_s(cells[arm, segment])
            * accepted_length(cells[arm, segment])
            / tpot_s(cells["baseline", segment])
            for segment in segments
        ]
        even = statistics.median(steps)
        lengths = {segment: accepted_length(cells[arm, segment]) for segment in segments}
        rows.append(
            {
                "k": k,
                "break_even": even,
                "accepted_length": lengths,
                "clears": [segment for segment in segments if lengths[segment] > even],
            }
        )
    return rows


def cost(folder: Path, *, rounds: int, threads: int) -> dict[str, float]:
    """Seconds per token of the draft and of the target, each alone on the machine, by turns."""
    tpot: dict[str, list[float]] = {TARGET: [], DRAFT: []}
    for number in range(rounds):
        for model, seen in tpot.items():
            document: Any = speclift.measure(
                model=model,
                methods=("ngram,k=7,n=6",),
                segments=("chat",),
                temperatures=(0.0,),
                max_tokens=64,
                requests=6,
                launches=1,
                threads=threads,
                study=folder / f"{model}-{number}",
            )
            (cell,) = (c for c in document["cells"] if (c["arm"], c["segment"]) == ("baseline", "all"))
            seen.append(tpot_s(cell))
    target, draft = (statistics.median(tpot[model]) for model in (TARGET, DRAFT))
    return {"target_s": target, "draft_s": draft, "ratio": draft / target}


def main() -> None:
    options = trial_options(str(__doc__), quick=False, threads=2)
    share = 3 if options.quick else 1
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        found: dict[str, Any] = {
            "cost": cost(place, rounds=3, threads=options.threads),
            "k4": accepted(place / "k4", requests=192 // share, threads=options.threads),
            "ks": break_even(place / "ks", requests=32 // share, threads=options.threads),
        }
    one = found["cost"]
    print(
        f"a token costs {1e3 * one['draft_s']:.2f} ms drafted, {1e3 * one['target_s']:.2f} ms by the target: ",
        end="",
    )
    print(f"{one['ratio']:.3f} of it")
    print("\n| segment | prompts | accepted length at k=4 | accepted of drafted |\n|---|---|---|---|")
    for row in sorted(found["k4"], key=lambda row: row["segment"]):
        length = row["accepted_length"]
        interval = f"{length['value']:.2f} [{length['low']:.2f}, {length['high']:.2f}]"
        print(f"| {row['segment']} | {row['prompts']} | {interval} | {row['acceptance_rate']:.2f} |")
    print("\n| k | pays above an accepted length of | cleared on |\n|---|---|---|")
    for row in found["ks"]:
        cleared = (
            ", ".join(f"{name} ({row['accepted_length'][name]:.2f})" for name in row["clears"]) or "nothing"
        )
        print(f"| {row['k']} | {row['break_even']:.2f} | {cleared} |")


if __name__ == "__main__":
    main()
