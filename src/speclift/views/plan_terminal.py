"""plan's document for a terminal: does it fit, do they pair, when would it pay, what to try. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from speclift.core.quantities import printable, seconds, share, size
from speclift.planner.advice import Advice, PlannedPairing
from speclift.planner.memory import PlannedModel
from speclift.planner.plan import Plan
from speclift.planner.prediction import LoadRange, PredictedArm, Prediction, StepPrediction
from speclift.views.terminal import GUIDES, MARKS

# Loads and acceptances that fit side by side in 80 columns.
COLUMNS_MAX = 6
CANDIDATES_MAX = 6
KS_SHOWN = 3
LABEL_WIDTH = 22
# Of the answer's sentence: whether it fits and runs.
STYLES = {True: "bold green", False: "bold red"}

# What takes memory on a GPU, in words.
MEMORY_ROWS = (
    ("target weights", "target_weight_bytes"),
    ("draft weights", "draft_weight_bytes"),
    ("activations", "activation_bytes"),
    ("speculation", "speculation_bytes"),
    ("graphs, libraries", "runtime_bytes"),
    ("left for the KV cache", "kv_bytes"),
)


def plan_view(document: Plan) -> RenderableType:
    parts: list[RenderableType] = [_title(document), _memory(document)]
    if document.pairing.ratio is not None:
        parts.append(_pairing(document.pairing, document.pairing.ratio, document.engine))
    parts += [
        *_prediction(document.prediction),
        _candidates(document),
        _findings(document.findings),
    ]
    return Group(*parts)


def _title(document: Plan) -> RenderableType:
    device, target, draft = document.device, document.target, document.draft
    pair = _model(target) + (f" + {_model(draft)}" if draft else "")
    where = f"{device.count} x {device.title}" if device.count > 1 else device.title
    layout = document.layout
    split = f", tensor parallel {layout.tensor_parallel}" if layout.tensor_parallel > 1 else ""
    split += f", pipeline parallel {layout.pipeline_parallel}" if layout.pipeline_parallel > 1 else ""
    line = f"on {where}, {document.engine}{split}, {layout.context:,} tokens per request"
    return Group(Text(printable(pair), style="bold"), Text(printable(line)), Text())


def _model(model: PlannedModel) -> str:
    active = f", {billions(model.active_parameters)} active" if model.experts else ""
    return f"{model.name} ({billions(model.parameters)}{active}, {model.precision})"


def billions(parameters: float) -> str:
    return f"{parameters / 1e9:.1f}B" if parameters >= 1e9 else f"{parameters / 1e6:.0f}M"


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True)
    for place, name in enumerate(columns):
        table.add_column(name, justify="left" if place == 0 else "right", no_wrap=True)
    return table


def _titled(title: str, *parts: RenderableType) -> RenderableType:
    return Group(Text(title, style="bold"), *parts)


def _memory(document: Plan) -> RenderableType:
    memory, bare = document.memory, document.memory.per_gpu_without_draft
    has_draft = document.draft is not None
    gpus = [memory.per_gpu, bare] if has_draft else [bare]
    tokens, requests = [memory.kv_tokens_without_draft], [memory.max_concurrency_without_draft]
    if has_draft:
        tokens.insert(0, memory.kv_tokens)
        requests.insert(0, memory.max_concurrency)
    table = _table("", *(("with draft", "without") if has_draft else ("target alone",)))
    usable = f"usable ({document.layout.utilisation:g} of {size(bare.total_bytes)})"
    table.add_row(usable, *(size(gpu.usable_bytes) for gpu in gpus))
    for label, key in MEMORY_ROWS:
        if any(getattr(gpu, key) for gpu in gpus):
            table.add_row(label, *(size(getattr(gpu, key)) if getattr(gpu, key) else "–" for gpu in gpus))
    cells = ("KV cache, tokens", *(f"{count:,}" for count in tokens))
    table.add_row(*(Text(cell, style="bold") for cell in cells))
    table.add_row("full-length requests", *(f"{count:,.1f}" for count in requests))
    unit = "Memory, each GPU" if memory.total_bytes > bare.total_bytes else "Memory"
    return _titled(unit, table, *_memory_notes(document))


def _memory_notes(document: Plan) -> Sequence[RenderableType]:
    memory, nominal = document.memory, document.memory.nominal
    per_token = memory.kv_bytes_per_token
    draft = document.draft
    pair = f"target {size(memory.nominal_weight_bytes.target)}"
    pair += f" + draft {size(memory.nominal_weight_bytes.draft)}" if draft else ""
    tokens = f"{per_token.target:,} B" + (f" + {per_token.draft:,} B" if draft else "")
    notes = [
        f"KV cache per token: {tokens}",
        f"rule of thumb (parameters x bytes, S4): {pair} of "
        f"{size(nominal.usable_bytes)} usable, {size(nominal.kv_bytes)} left",
    ]
    if memory.kv_buffer_bytes is not None:
        buffers = memory.kv_buffer_bytes
        second = f" + {buffers.draft / 2**20:,.2f} MiB" if draft and buffers.draft is not None else ""
        notes.append(f"KV buffers for {buffers.slots} slots: {buffers.target / 2**20:,.2f} MiB{second}")
    return [Padding(Text(note, style="dim"), (0, 0, 0, 1)) for note in notes] + [Text()]


def _pairing(pairing: PlannedPairing, ratio: float, engine: str) -> RenderableType:
    word = {True: "the same", False: "different", None: "unknown"}[pairing.same_tokenizer]
    rows = [
        ("target : draft", f"{ratio:.1f} : 1"),
        ("tokenizer", f"{word}, {pairing.compared}"),
        ("family", {True: "the same", False: "different", None: "unknown"}[pairing.same_family]),
    ]
    rule = pairing.rules[engine]
    rows.append((f"{engine}'s rule", "met" if rule.ok else rule.why))
    for token in pairing.differences[:KS_SHOWN]:
        rows.append((f"token {token.id}", f"target {token.target!r}, draft {token.draft!r}"))
    return Group(Text("Pairing", style="bold"), _grid(rows), Text())


def _grid(rows: Sequence[tuple[str, str]]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", min_width=LABEL_WIDTH, no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in rows:
        table.add_row(Text(printable(label)), Text(printable(value, limit=400)))
    return Padding(table, (0, 0, 0, 1), expand=False)


def _prediction(prediction: Prediction) -> list[RenderableType]:
    trust = prediction.trust
    assumed = prediction.acceptance.assumed
    how = "assumed" if assumed else ", ".join(prediction.acceptance.sources)
    note = (
        f"Predicted, not measured: the real speedup can differ by a factor of {trust.factor:g} "
        f"({trust.source}). The ceiling is the roofline without any loss, at most the accepted length. "
        f"Acceptance rate: {how}. "
        f"Mean context {prediction.context:,} tokens."
    )
    return [
        _break_even(prediction),
        _speedups(prediction),
        _crossover(prediction),
        Padding(Text(printable(note, limit=600), style="dim"), (0, 0, 1, 1)),
    ]


def _break_even(prediction: Prediction) -> RenderableType:
    """The acceptance at which a step pays for itself; what every other number hangs on."""
    ks = [step.k for step in prediction.loads[0].steps]
    shown = ks if len(ks) <= COLUMNS_MAX else [*ks[: COLUMNS_MAX - 1], ks[-1]]
    title = "Acceptance rate needed to break even, by concurrency and k" + (
        " (n-gram)" if prediction.method == "ngram" else ""
    )
    table = _table("load", "step", *(f"k={k}" for k in shown))
    for load in prediction.loads[:COLUMNS_MAX]:
        cells = [_needed(step) for step in load.steps if step.k in shown]
        table.add_row(str(load.concurrency), seconds(load.baseline_step_s), *cells)
    return _titled(title, table)


def _needed(step: StepPrediction) -> Text:
    value = step.break_even_acceptance
    if value is None:
        return Text("never", style="red")
    return Text(share(value), style="green" if value < 0.5 else "yellow" if value < 0.8 else "red")


def _speedups(prediction: Prediction) -> RenderableType:
    labels = [best.acceptance for best in prediction.loads[0].best][:COLUMNS_MAX]
    table = _table("load", *labels)
    for load in prediction.loads[:COLUMNS_MAX]:
        chosen = load.best[:COLUMNS_MAX]
        table.add_row(str(load.concurrency), *(_best(best) for best in chosen))
        table.add_row(
            Text("  ceiling", style="dim"), *(Text(f"{best.ceiling:.2f}x", style="dim") for best in chosen)
        )
    return _titled("Predicted speedup per token at the best k, by concurrency and acceptance rate", table)


def _best(best: PredictedArm) -> Text:
    value = best.speedup.value
    if best.k == 0:
        return Text(f"{value:.2f}x off", style="red")
    return Text(f"{value:.2f}x k{best.k}", style="green" if value >= 1.3 else "")


def _crossover(prediction: Prediction) -> RenderableType:
    listed = "; ".join(
        f"{crossing.acceptance}: {paying_loads(crossing.pays)}"
        for crossing in prediction.crossover[:COLUMNS_MAX]
    )
    text = f"Pays with the best k, by acceptance rate, at concurrency: {listed}"
    return Padding(Text(printable(text, limit=400)), (0, 0, 1, 1))


def paying_loads(ranges: Sequence[LoadRange]) -> str:
    return " and ".join(_range_words(loads.low, loads.high) for loads in ranges) or "none"


def _range_words(low: int, high: int | None) -> str:
    if high is None:
        return "any" if low == 1 else f"{low:,} and more"
    if low == high:
        return f"{low:,}"
    return f"{low:,} to {high:,}"


def _candidates(document: Plan) -> RenderableType:
    loads = [need.concurrency for need in document.candidates[0].loads][:3]
    table = _table("", "KV tokens", *(f"at {load}" for load in loads))
    table.add_column("", overflow="fold")
    for candidate in document.candidates[:CANDIDATES_MAX]:
        name = candidate.method
        if candidate.draft:
            name = f"{candidate.draft} {candidate.precision}"
        cells = [_percent(need.break_even_acceptance) for need in candidate.loads[:3]]
        table.add_row(
            Text(printable(name, limit=32)),
            f"{candidate.kv_tokens:,}",
            *cells,
            Text("" if candidate.usable else _short(candidate.objection), style="red"),
        )
    k = document.candidates[0].loads[0].k
    return _titled(f"Candidates: acceptance rate needed to break even at k={k}, by concurrency", table)


def _percent(value: float | None) -> str:
    return "never" if value is None else share(value)


def _short(text: str) -> str:
    return printable(text.partition(";")[0].partition(" (")[0], limit=44)


def _findings(findings: Sequence[Advice]) -> RenderableType:
    table = Table.grid(padding=(0, 1))
    table.add_column(width=1)
    table.add_column(overflow="fold")
    for found in findings:
        mark, style = MARKS[found.level]
        line = Text(printable(found.message, limit=600))
        if found.source != "speclift":
            line.append(f" [{printable(found.source)}]", style="dim")
        if found.next_step:
            line.append(f" -> {printable(found.next_step, limit=300)}", style="cyan")
        table.add_row(Text(mark, style=style), line)
    if any(found.source.startswith("S") for found in findings):
        table.add_row("", Text(GUIDES, style="dim"))
    return Group(Text("Findings", style="bold"), Padding(table, (0, 0, 1, 1), expand=False))
