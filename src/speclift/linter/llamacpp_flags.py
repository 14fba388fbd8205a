"""llama.cpp's flags that speculation is made of, its types, and the programs that changed. Pure.

To add a flag, add a row: the other flags are in llamacpp_other_flags.py. Builds are commit counts (b11549), so
every change has one; `gone` is the first build without it.
"""

from __future__ import annotations

from speclift.linter.findings import Release
from speclift.linter.llamacpp_other_flags import OTHER_FLAGS
from speclift.linter.rows import FlagKind, FlagRow, Span

# The build inside xllamacpp 2026.10.11549, the embedded engine.
NEWEST: Release = (11549,)
SELF_SPECULATION: Release = (7864,)  # --spec-type and the n-gram types, PR 18471
RENAMES: Release = (8955,)  # --draft-* became --spec-draft-*, PR 22397
TYPES: Release = (9131,)  # draft-simple, comma lists, PR 22964
DEFAULTS: Release = (9235,)  # n-max 16 -> 3, p-min 0.75 -> 0, PR 23269
NO_IMPLIED_DRAFT: Release = (9464,)  # a draft model alone drafts nothing any more, PR 23988

ARG = "llama.cpp common/arg.cpp"
ALWAYS: Release = (0,)


def _row(name: str, kind: FlagKind, since: Release, gone: Release | None = None, **more: object) -> FlagRow:
    return FlagRow(
        name=name,
        kind=kind,
        span=Span(since=since, gone=gone),
        **{"source": ARG, **more},  # type: ignore[arg-type]
    )


def _renamed(old: str, new: str, kind: FlagKind, since: Release, **more: object) -> FlagRow:
    return _row(old, kind, since, RENAMES, renamed_to=new, source=f"{ARG}; llama.cpp PR 22397", **more)


# The new name came with the renames; the old ones still work and are the ones older builds know.
_KEPT: tuple[tuple[str, FlagKind, Release, tuple[str, ...]], ...] = (
    ("--spec-draft-model", FlagKind.TEXT, ALWAYS, ("-md", "--model-draft")),
    ("--spec-draft-hf", FlagKind.TEXT, (4519,), ("-hfd", "-hfrd", "--hf-repo-draft")),
    ("--spec-draft-threads", FlagKind.INT, ALWAYS, ("-td", "--threads-draft")),
    ("--spec-draft-threads-batch", FlagKind.INT, ALWAYS, ("-tbd", "--threads-batch-draft")),
    ("--spec-draft-cpu-mask", FlagKind.TEXT, ALWAYS, ("-Cd", "--cpu-mask-draft")),
    ("--spec-draft-cpu-range", FlagKind.TEXT, ALWAYS, ("-Crd", "--cpu-range-draft")),
    ("--spec-draft-cpu-strict", FlagKind.TEXT, ALWAYS, ("--cpu-strict-draft",)),
    ("--spec-draft-prio", FlagKind.INT, ALWAYS, ("--prio-draft",)),
    ("--spec-draft-poll", FlagKind.TEXT, ALWAYS, ("--poll-draft",)),
    ("--spec-draft-cpu-mask-batch", FlagKind.TEXT, ALWAYS, ("-Cbd", "--cpu-mask-batch-draft")),
    ("--spec-draft-cpu-strict-batch", FlagKind.TEXT, ALWAYS, ("--cpu-strict-batch-draft",)),
    ("--spec-draft-prio-batch", FlagKind.INT, ALWAYS, ("--prio-batch-draft",)),
    ("--spec-draft-poll-batch", FlagKind.TEXT, ALWAYS, ("--poll-batch-draft",)),
    ("--spec-draft-type-k", FlagKind.TEXT, (5709,), ("-ctkd", "--cache-type-k-draft")),
    ("--spec-draft-type-v", FlagKind.TEXT, (5709,), ("-ctvd", "--cache-type-v-draft")),
    ("--spec-draft-override-tensor", FlagKind.TEXT, (6148,), ("-otd", "--override-tensor-draft")),
    ("--spec-draft-cpu-moe", FlagKind.SWITCH, (6148,), ("-cmoed", "--cpu-moe-draft")),
    ("--spec-draft-n-cpu-moe", FlagKind.INT, (6148,), ("-ncmoed", "--n-cpu-moe-draft")),
    ("--spec-draft-device", FlagKind.TEXT, (4167,), ("-devd", "--device-draft")),
    ("--spec-draft-ngl", FlagKind.TEXT, ALWAYS, ("-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft")),
    ("--spec-draft-p-min", FlagKind.FLOAT, (4159,), ("--draft-p-min",)),
    ("--spec-draft-p-split", FlagKind.FLOAT, (4159,), ("--draft-p-split",)),
)
KEPT_ALIASES: dict[str, str] = {alias: new for new, _, _, aliases in _KEPT for alias in aliases}

_NGRAM = tuple(
    _row(f"--spec-ngram-{variant}-{name}", FlagKind.INT, RENAMES, low=1, high=high)
    for variant in ("simple", "map-k", "map-k4v")
    for name, high in (("size-n", 1024), ("size-m", 1024), ("min-hits", None))
)

SPECULATION: tuple[FlagRow, ...] = (
    _row("--spec-type", FlagKind.TEXT, SELF_SPECULATION),
    _row("--spec-default", FlagKind.SWITCH, (8874,)),
    _row("--spec-draft-n-max", FlagKind.INT, RENAMES, low=1),
    _row("--spec-draft-n-min", FlagKind.INT, RENAMES, low=0),
    _row("--spec-draft-backend-sampling", FlagKind.SWITCH, (9261,)),
    _row("--no-spec-draft-backend-sampling", FlagKind.SWITCH, (9261,)),
    _row("--spec-draft-ncmoe", FlagKind.INT, RENAMES),
    _row(
        "--spec-draft-sampling",
        FlagKind.TEXT,
        NEWEST,
        choices=(("greedy", NEWEST, None), ("probabilistic", NEWEST, None)),
        note="first seen in b11549, absent in b10586",
    ),
    _row(
        "--spec-synth-len",
        FlagKind.FLOAT,
        NEWEST,
        low=1,
        warning="forced acceptance: the text is meaningless; for what-if measurements only",
        note="first seen in b11549, absent in b10586",
    ),
    _row(
        "--spec-synth-rates",
        FlagKind.TEXT,
        NEWEST,
        warning="forced acceptance: the text is meaningless; for what-if measurements only",
        note="first seen in b11549, absent in b10586",
    ),
    *_NGRAM,
    _row("--spec-ngram-mod-n-match", FlagKind.INT, RENAMES, low=1, high=1024),
    _row("--spec-ngram-mod-n-min", FlagKind.INT, RENAMES, low=0, high=1024),
    _row("--spec-ngram-mod-n-max", FlagKind.INT, RENAMES, low=0, high=1024),
    _row("--lookup-cache-static", FlagKind.TEXT, ALWAYS, aliases=("-lcs",)),
    _row("--lookup-cache-dynamic", FlagKind.TEXT, ALWAYS, aliases=("-lcd",)),
    *(_row(new, kind, RENAMES) for new, kind, _, _ in _KEPT),
    *(
        _row(alias, kind, since, note=f"today's name is {new}")
        for new, kind, since, aliases in _KEPT
        for alias in aliases
    ),
    _renamed("--draft", "--spec-draft-n-max", FlagKind.INT, ALWAYS),
    _renamed("--draft-n", "--spec-draft-n-max", FlagKind.INT, (4159,)),
    _renamed("--draft-max", "--spec-draft-n-max", FlagKind.INT, (4159,)),
    _renamed("--draft-min", "--spec-draft-n-min", FlagKind.INT, (4159,)),
    _renamed("--draft-n-min", "--spec-draft-n-min", FlagKind.INT, (4159,)),
    _renamed("--spec-ngram-size-n", "--spec-ngram-simple-size-n", FlagKind.INT, SELF_SPECULATION),
    _renamed("--spec-ngram-size-m", "--spec-ngram-simple-size-m", FlagKind.INT, SELF_SPECULATION),
    _renamed("--spec-ngram-min-hits", "--spec-ngram-simple-min-hits", FlagKind.INT, SELF_SPECULATION),
    _row("--spec-ngram-check-rate", FlagKind.INT, SELF_SPECULATION, (7978,), note="nothing replaces it"),
    _row("--p-split", FlagKind.FLOAT, ALWAYS, (4159,), renamed_to="--spec-draft-p-split", aliases=("-ps",)),
    _row(
        "--ctx-size-draft",
        FlagKind.INT,
        (4159,),
        (9109,),
        aliases=("-cd",),
        note="the draft takes the target's context; --spec-draft-type-k and -v shrink its cache",
    ),
    _row(
        "--spec-draft-ctx-size", FlagKind.INT, RENAMES, (9109,), note="the draft takes the target's context"
    ),
    _row(
        "--spec-replace", FlagKind.TEXT, (6045,), (9109,), note="no translation between vocabularies is left"
    ),
    _row(
        "--spec-draft-replace",
        FlagKind.TEXT,
        RENAMES,
        (9109,),
        note="no translation between vocabularies is left",
    ),
)

_LOAD_MODE = "deprecated since b10105, last seen in b10586"
CHANGED: tuple[FlagRow, ...] = (
    _row("--mlock", FlagKind.SWITCH, ALWAYS, NEWEST, replacement="--load-mode mlock", note=_LOAD_MODE),
    _row("--mmap", FlagKind.SWITCH, (7376,), NEWEST, replacement="--load-mode mmap", note=_LOAD_MODE),
    _row("--no-mmap", FlagKind.SWITCH, ALWAYS, NEWEST, replacement="--load-mode none", note=_LOAD_MODE),
    _row(
        "--direct-io",
        FlagKind.SWITCH,
        (7668,),
        NEWEST,
        aliases=("-dio",),
        replacement="--load-mode dio",
        note=_LOAD_MODE,
    ),
    _row(
        "--no-direct-io",
        FlagKind.SWITCH,
        (7668,),
        NEWEST,
        aliases=("-ndio",),
        replacement="--load-mode auto",
        note=_LOAD_MODE,
    ),
)

# Switches once; since then a value has to follow, and the next flag is taken for it.
_ON_OFF = tuple((name, ALWAYS, None) for name in ("on", "off", "auto"))
SWITCHES_BEFORE: tuple[FlagRow, ...] = (
    _row("--flash-attn", FlagKind.TEXT, ALWAYS, aliases=("-fa",), choices=_ON_OFF, value_since=(6325,)),
    _row("--log-colors", FlagKind.TEXT, ALWAYS, choices=_ON_OFF, value_since=(6393,)),
)

FLAGS: tuple[FlagRow, ...] = (*SPECULATION, *CHANGED, *SWITCHES_BEFORE, *OTHER_FLAGS)
FLAG_ROWS: dict[str, FlagRow] = {name: row for row in FLAGS for name in row.names}

# Values of --spec-type: first build with each.
SPEC_TYPES: dict[str, Release] = {
    "none": SELF_SPECULATION,
    "ngram-cache": SELF_SPECULATION,
    "ngram-simple": SELF_SPECULATION,
    "ngram-map-k": SELF_SPECULATION,
    "ngram-map-k4v": SELF_SPECULATION,
    "ngram-mod": (7888,),
    "draft-simple": TYPES,
    "draft-eagle3": TYPES,
    "draft-mtp": (9180,),
    "draft-dflash": (9831,),
    "draft-dspark": (10163,),
}

# Programs of old tutorials: what to run today, and since when the old one is not in the releases.
PROGRAMS_GONE: dict[str, tuple[str, Release, str]] = {
    "server": ("llama-server", (3142,), "renamed"),
    "main": ("llama-cli", (3142,), "renamed"),
    "speculative": ("llama-server", (3142,), "renamed, then left out of the releases"),
    "llama-speculative": (
        "llama-server",
        (5310,),
        "an example program that the releases no longer hold (LLAMA_BUILD_EXAMPLES=OFF)",
    ),
    "llama-speculative-simple": (
        "llama-server",
        (5310,),
        "an example program that the releases no longer hold (LLAMA_BUILD_EXAMPLES=OFF)",
    ),
}
# What a request carries, not a server: dropped where one of those programs becomes llama-server.
REQUEST_FLAGS = (
    "-p",
    "--prompt",
    "-f",
    "--file",
    "-n",
    "--predict",
    "--n-predict",
    "--color",
    "-co",
    "-e",
    "--escape",
)
