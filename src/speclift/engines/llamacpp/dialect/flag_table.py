"""llama.cpp's flags by build, its types of speculation, and the programs and variables that changed, as data. Pure.

Builds are commit counts (b11549), so every change has one. Flags that speculation is made of and those that changed
have a row each; the others are listed by lifetime: first build with the flags, first without them (- while they last),
what follows the flag, and which program has it. Lifetimes are those of common/arg.cpp from build b3906 to b10586, and
of the parser of b11549 itself, which knows all that lasts. To add a flag, add a row or a word.
"""

from __future__ import annotations

from speclift.linter.findings import Release
from speclift.linter.rows import FLOAT, INT, SWITCH, TEXT, NameTable, Row, ValueKind, by_name, listed, values

# The build inside xllamacpp 2026.10.11549, the embedded engine.
NEWEST: Release = (11549,)
SELF_SPECULATION: Release = (7864,)  # --spec-type and the n-gram types, PR 18471
RENAMES: Release = (8955,)  # --draft-* became --spec-draft-*, PR 22397
TYPES: Release = (9131,)  # draft-simple, comma lists, PR 22964
DEFAULTS: Release = (9235,)  # n-max 16 -> 3, p-min 0.75 -> 0, PR 23269
NO_IMPLIED_DRAFT: Release = (9464,)  # a draft model alone drafts nothing any more, PR 23988

ARG = "llama.cpp common/arg.cpp"
ALWAYS: Release = (0,)


SERVER, CLI = "server", "cli"


def _renamed(old: str, new: str, kind: ValueKind, since: Release) -> Row:
    return Row(old, kind, since, RENAMES, renamed_to=new, source=f"{ARG}; llama.cpp PR 22397")


# The new name came with the renames; the old ones still work and are the ones older builds know.
_KEPT: tuple[tuple[str, ValueKind, Release, tuple[str, ...]], ...] = (
    ("--spec-draft-model", TEXT, ALWAYS, ("-md", "--model-draft")),
    ("--spec-draft-hf", TEXT, (4519,), ("-hfd", "-hfrd", "--hf-repo-draft")),
    ("--spec-draft-threads", INT, ALWAYS, ("-td", "--threads-draft")),
    ("--spec-draft-threads-batch", INT, ALWAYS, ("-tbd", "--threads-batch-draft")),
    ("--spec-draft-cpu-mask", TEXT, ALWAYS, ("-Cd", "--cpu-mask-draft")),
    ("--spec-draft-cpu-range", TEXT, ALWAYS, ("-Crd", "--cpu-range-draft")),
    ("--spec-draft-cpu-strict", TEXT, ALWAYS, ("--cpu-strict-draft",)),
    ("--spec-draft-prio", INT, ALWAYS, ("--prio-draft",)),
    ("--spec-draft-poll", TEXT, ALWAYS, ("--poll-draft",)),
    ("--spec-draft-cpu-mask-batch", TEXT, ALWAYS, ("-Cbd", "--cpu-mask-batch-draft")),
    ("--spec-draft-cpu-strict-batch", TEXT, ALWAYS, ("--cpu-strict-batch-draft",)),
    ("--spec-draft-prio-batch", INT, ALWAYS, ("--prio-batch-draft",)),
    ("--spec-draft-poll-batch", TEXT, ALWAYS, ("--poll-batch-draft",)),
    ("--spec-draft-type-k", TEXT, (5709,), ("-ctkd", "--cache-type-k-draft")),
    ("--spec-draft-type-v", TEXT, (5709,), ("-ctvd", "--cache-type-v-draft")),
    ("--spec-draft-override-tensor", TEXT, (6148,), ("-otd", "--override-tensor-draft")),
    ("--spec-draft-cpu-moe", SWITCH, (6148,), ("-cmoed", "--cpu-moe-draft")),
    ("--spec-draft-n-cpu-moe", INT, (6148,), ("-ncmoed", "--n-cpu-moe-draft")),
    ("--spec-draft-device", TEXT, (4167,), ("-devd", "--device-draft")),
    ("--spec-draft-ngl", TEXT, ALWAYS, ("-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft")),
    ("--spec-draft-p-min", FLOAT, (4159,), ("--draft-p-min",)),
    ("--spec-draft-p-split", FLOAT, (4159,), ("--draft-p-split",)),
)
KEPT_ALIASES: dict[str, str] = {alias: new for new, _, _, aliases in _KEPT for alias in aliases}

_NGRAM = tuple(
    Row(f"--spec-ngram-{variant}-{name}", INT, RENAMES, low=1, high=high)
    for variant in ("simple", "map-k", "map-k4v")
    for name, high in (("size-n", 1024), ("size-m", 1024), ("min-hits", None))
)

_SPECULATION = (
    Row("--spec-type", TEXT, SELF_SPECULATION),
    Row("--spec-default", SWITCH, (8874,)),
    Row("--spec-draft-n-max", INT, RENAMES, low=1),
    Row("--spec-draft-n-min", INT, RENAMES, low=0),
    Row("--spec-draft-backend-sampling", SWITCH, (9261,)),
    Row("--no-spec-draft-backend-sampling", SWITCH, (9261,)),
    Row("--spec-draft-ncmoe", INT, RENAMES),
    Row(
        "--spec-draft-sampling",
        TEXT,
        NEWEST,
        choices=values(NEWEST, "greedy", "probabilistic"),
        note="first seen in b11549, absent in b10586",
    ),
    Row(
        "--spec-synth-len",
        FLOAT,
        NEWEST,
        low=1,
        warning="forced acceptance: the text is meaningless; for what-if measurements only",
        note="first seen in b11549, absent in b10586",
    ),
    Row(
        "--spec-synth-rates",
        TEXT,
        NEWEST,
        warning="forced acceptance: the text is meaningless; for what-if measurements only",
        note="first seen in b11549, absent in b10586",
    ),
    *_NGRAM,
    Row("--spec-ngram-mod-n-match", INT, RENAMES, low=1, high=1024),
    Row("--spec-ngram-mod-n-min", INT, RENAMES, low=0, high=1024),
    Row("--spec-ngram-mod-n-max", INT, RENAMES, low=0, high=1024),
    Row("--lookup-cache-static", TEXT, ALWAYS, aliases=("-lcs",)),
    Row("--lookup-cache-dynamic", TEXT, ALWAYS, aliases=("-lcd",)),
    *(Row(new, kind, RENAMES) for new, kind, _, _ in _KEPT),
    *(
        Row(alias, kind, since, note=f"today's name is {new}")
        for new, kind, since, aliases in _KEPT
        for alias in aliases
    ),
    _renamed("--draft", "--spec-draft-n-max", INT, ALWAYS),
    _renamed("--draft-n", "--spec-draft-n-max", INT, (4159,)),
    _renamed("--draft-max", "--spec-draft-n-max", INT, (4159,)),
    _renamed("--draft-min", "--spec-draft-n-min", INT, (4159,)),
    _renamed("--draft-n-min", "--spec-draft-n-min", INT, (4159,)),
    _renamed("--spec-ngram-size-n", "--spec-ngram-simple-size-n", INT, SELF_SPECULATION),
    _renamed("--spec-ngram-size-m", "--spec-ngram-simple-size-m", INT, SELF_SPECULATION),
    _renamed("--spec-ngram-min-hits", "--spec-ngram-simple-min-hits", INT, SELF_SPECULATION),
    Row("--spec-ngram-check-rate", INT, SELF_SPECULATION, (7978,), note="nothing replaces it"),
    Row("--p-split", FLOAT, ALWAYS, (4159,), renamed_to="--spec-draft-p-split", aliases=("-ps",)),
    Row(
        "--ctx-size-draft",
        INT,
        (4159,),
        (9109,),
        aliases=("-cd",),
        note="the draft takes the target's context; --spec-draft-type-k and -v shrink its cache",
    ),
    Row("--spec-draft-ctx-size", INT, RENAMES, (9109,), note="the draft takes the target's context"),
    Row("--spec-replace", TEXT, (6045,), (9109,), note="llama.cpp no longer translates between vocabularies"),
    Row(
        "--spec-draft-replace",
        TEXT,
        RENAMES,
        (9109,),
        note="llama.cpp no longer translates between vocabularies",
    ),
)

_LOAD_MODE = "deprecated since b10105, last seen in b10586"
_CHANGED = (
    Row("--mlock", SWITCH, ALWAYS, NEWEST, replacement="--load-mode mlock", note=_LOAD_MODE),
    Row("--mmap", SWITCH, (7376,), NEWEST, replacement="--load-mode mmap", note=_LOAD_MODE),
    Row("--no-mmap", SWITCH, ALWAYS, NEWEST, replacement="--load-mode none", note=_LOAD_MODE),
    Row(
        "--direct-io",
        SWITCH,
        (7668,),
        NEWEST,
        aliases=("-dio",),
        replacement="--load-mode dio",
        note=_LOAD_MODE,
    ),
    Row(
        "--no-direct-io",
        SWITCH,
        (7668,),
        NEWEST,
        aliases=("-ndio",),
        replacement="--load-mode auto",
        note=_LOAD_MODE,
    ),
)

# Switches once; since then a value has to follow, and the next flag is taken for it.
_ON_OFF = values(ALWAYS, "on", "off", "auto")
_SWITCHES_BEFORE = (
    Row("--flash-attn", TEXT, ALWAYS, aliases=("-fa",), choices=_ON_OFF, value_since=(6325,)),
    Row("--log-colors", TEXT, ALWAYS, choices=_ON_OFF, value_since=(6393,)),
)

# The rest, listed by lifetime; 0 is as old as the table.
_OTHERS = """
0 - switch cli: --conversation --in-prefix-bos --interactive --interactive-first --multiline-input
    --no-display-prompt --prompt-cache-all --prompt-cache-ro --simple-io --verbose-prompt -cnv -i -if -mli
0 - switch server: --check-tensors --cont-batching --embedding --embeddings --escape --help --ignore-eos
    --log-disable --log-prefix --log-timestamps --log-verbose --lora-init-without-apply --metrics
    --no-cont-batching --no-context-shift --no-escape --no-kv-offload --no-perf --no-slots --no-warmup --props
    --rerank --reranking --slots --special --spm-infill --usage --verbose --version -cb -e -h -nkvo -nocb -sp -v
0 - value cli: --binary-file --color --file --grp-attn-n --grp-attn-w --image --in-prefix --in-suffix --output
    --output-file --print-token-count --prompt --prompt-cache --system-prompt-file -bf -co -f -gan -gaw -o -p
    -ptc
0 - value server: --alias --api-key --api-key-file --batch-size --cache-type-k --cache-type-v --chat-template
    --control-vector --control-vector-layer-range --control-vector-scaled --cpu-mask --cpu-mask-batch
    --cpu-range --cpu-range-batch --cpu-strict --cpu-strict-batch --ctx-size --defrag-thold --dynatemp-exp
    --dynatemp-range --embd-normalize --frequency-penalty --gpu-layers --grammar --grammar-file
    --hf-file --hf-repo --hf-token --host --json-schema --keep --log-file --log-verbosity
    --logit-bias --lora --lora-scaled --main-gpu --min-p --mirostat --mirostat-ent --mirostat-lr --mmproj
    --model --model-url --n-gpu-layers --n-predict --numa --override-kv --parallel --path --poll --poll-batch
    --pooling --port --predict --presence-penalty --prio --prio-batch --repeat-last-n --repeat-penalty
    --reverse-prompt --rope-freq-base --rope-freq-scale --rope-scale --rope-scaling --rpc --samplers
    --sampling-seq --seed --slot-prompt-similarity --slot-save-path --split-mode --ssl-cert-file --ssl-key-file
    --temp --tensor-split --threads --threads-batch --threads-http --timeout --top-k --top-p --typical
    --ubatch-size --verbosity --yarn-attn-factor --yarn-beta-fast --yarn-beta-slow --yarn-ext-factor
    --yarn-orig-ctx -C -Cb -Cr -Crb -a -b -c -ctk -ctv -dt -hff -hfr -hft -j -l -lv -m -mg -mu -n -ngl -np
    -r -s -sm -sps -t -tb -to -ts -ub
3914 - value server: --cache-reuse
3920 - value server: --xtc-probability --xtc-threshold
3978 - value server: --dry-allowed-length --dry-base --dry-multiplier --dry-penalty-last-n
    --dry-sequence-breaker
4167 - switch server: --list-devices
4167 - value server: --device -dev
4297 - switch server: --no-webui
4357 - value server: --sampler-seq
4470 - value server: -hf
4475 - switch cli: --no-conversation -no-cnv
4524 - switch server: --jinja
4524 - value server: --chat-template-file
4705 - value server: --top-nsigma
4706 - value server: --reasoning-format
4708 - switch server: --completion-bash
4743 - switch server: --fim-qwen-1.5b-default --fim-qwen-3b-default --fim-qwen-7b-default
4797 - value cli: --system-prompt -sys
4821 - switch cli: --single-turn -st
4858 - switch server: --fim-qwen-14b-spec --fim-qwen-7b-spec
4888 - value cli: -sysf
5023 - value server: --mmproj-url
5028 - value server: --override-tensor -ot
5177 - switch server: --no-mmproj
5178 - switch server: --no-mmproj-offload
5232 - value server: --json-schema-file -jf
5346 - switch server: --no-op-offload
5415 - switch server: --no-prefill-assistant
5429 - switch server: --swa-full
5458 - value cli: --audio
5488 - value server: --reasoning-budget
5501 - switch server: --offline
5780 - value server: --chat-template-kwargs
5844 - value server: --api-prefix
5913 - switch server: --kv-unified -kvu
6049 - switch server: --no-repack -nr
6051 - switch server: --cpu-moe
6089 - switch server: -cmoe
6089 - value server: --n-cpu-moe -ncmoe
6160 - value server: --swa-checkpoints
6206 - switch server: --context-shift
6301 - switch server: --fim-qwen-30b-default
6457 - value server: --docker-repo -dr
6685 - value server: --ctx-checkpoints
6700 - switch server: --no-host
6723 - value server: --cache-ram -cram
6740 - switch server: --embd-gemma-default --gpt-oss-120b-default --gpt-oss-20b-default
    --vision-gemma-12b-default --vision-gemma-4b-default
6935 - value server: --image-max-tokens --image-min-tokens
6992 - switch server: --cache-list -cl
7170 - switch server: --no-jinja
7218 - switch server: --no-models-autoload
7218 - value server: --models-dir --models-max
7243 - value server: --media-path
7348 - switch cli: --no-show-timings
7352 - value server: --models-preset
7366 - value server: -mm -mmu
7376 - switch cli: --display-prompt --show-timings
7376 - switch server: --kv-offload --mmproj-auto --mmproj-offload --models-autoload --no-mmproj-auto
    --op-offload --perf --prefill-assistant --repack --warmup --webui -kvo
7407 - value server: --fit --fit-ctx --fit-target -fit -fitc -fitt
7462 - value server: --webui-config --webui-config-file
7492 - value server: --sleep-idle-seconds
7627 - switch server: --backend-sampling -bs
7716 - switch server: --cache-prompt --no-cache-prompt
7748 - value server: --adaptive-decay --adaptive-target
7856 - switch server: --no-kv-unified -no-kvu
8155 - value server: --temperature --top-n-sigma --typical-p
8173 - value server: --tags
8217 - switch server: --no-webui-mcp-proxy --webui-mcp-proxy
8218 - value server: -ctxcp
8287 - value server: --reasoning --reasoning-budget-message -rea
8397 - switch server: --no-skip-chat-parsing --skip-chat-parsing
8553 - value server: --tools
8560 - switch server: --reuse-port
8852 - switch server: --cache-idle-slots --no-cache-idle-slots
9151 - switch server: --no-log-prefix --no-log-timestamps
9174 - switch server: --no-ui --no-ui-mcp-proxy --ui --ui-mcp-proxy
9174 - value server: --ui-config --ui-config-file
9310 - value server: --checkpoint-min-step -cms
9478 - value server: --sse-ping-interval
9562 - value cli: --video
9577 - value server: --log-prompts-dir
9617 - value server: --mtmd-batch-max-tokens
9726 - switch server: --agent --no-agent -ag -no-ag
9837 - switch server: --no-reasoning-preserve --reasoning-preserve
9927 - value cli: --server-base
10010 - switch server: --cors-credentials --no-cors-credentials
10010 - value server: --cors-headers --cors-methods --cors-origins
10105 - value server: --load-mode -lm
10130 - value server: --mcp-servers-config --mcp-servers-json
10328 - value server: --tools-runtime
10434 - value server: --reasoning-effort
11549 - value server: --kv-unified-per-slot --lazy-mode --mmproj-device --moe-cache-mib --n-cpu-ffn
    --video-ffmpeg-dir --video-fps --video-timestamp-interval -lzm -mmdev -ncffn
0 3910 value server: -spf
0 3988 value server: --tfs
0 4103 value server: --logdir -ld
0 4335 switch server: --penalize-nl
0 5311 switch server: --all-logits --perplexity
0 5435 switch server: --dump-kv-cache -dkvc
4357 10270 value server: --hf-file-v --hf-repo-v --model-vocoder -hffv -hfrv -mv
4365 10270 switch server: --tts-oute-default
4470 10270 value server: -hfv
4504 10270 switch server: --tts-use-guide-tokens
4660 6740 switch server: --embd-bge-small-en-default --embd-e5-small-en-default --embd-gte-small-default
7691 9405 switch server: --license
8218 9310 value server: --checkpoint-every-n-tokens -cpent
8658 8852 switch server: --clear-idle --no-clear-idle
"""

FLAGS = NameTable(
    engine="llama.cpp",
    thing="flag",
    rows=by_name((*_SPECULATION, *_CHANGED, *_SWITCHES_BEFORE, *listed(_OTHERS)), source=ARG),
)

# Values of --spec-type.
TYPE_ROWS = NameTable(
    engine="llama.cpp",
    thing="type",
    rows=by_name(
        (
            *values(SELF_SPECULATION, "none", "ngram-cache", "ngram-simple", "ngram-map-k", "ngram-map-k4v"),
            *values((7888,), "ngram-mod"),
            *values(TYPES, "draft-simple", "draft-eagle3"),
            *values((9180,), "draft-mtp"),
            *values((9831,), "draft-dflash"),
            *values((10163,), "draft-dspark"),
        ),
        source="llama.cpp common/speculative.cpp",
    ),
)


# Programs of old tutorials: what to run today, and since when the old one is not in the releases.
PROGRAMS = NameTable(
    engine="llama.cpp",
    thing="program",
    rows=by_name(
        (
            Row("server", TEXT, ALWAYS, (3142,), renamed_to="llama-server", note="renamed"),
            Row("main", TEXT, ALWAYS, (3142,), renamed_to="llama-cli", note="renamed"),
            Row(
                "speculative",
                TEXT,
                ALWAYS,
                (3142,),
                replacement="llama-server",
                note="renamed, then removed from the releases",
            ),
            *(
                Row(
                    name,
                    TEXT,
                    ALWAYS,
                    (5310,),
                    replacement="llama-server",
                    note="an example program that is no longer in the releases (LLAMA_BUILD_EXAMPLES=OFF)",
                    source="llama.cpp .github/workflows/release.yml",
                )
                for name in ("llama-speculative", "llama-speculative-simple")
            ),
        ),
        source="llama.cpp PR 7809",
    ),
)
# Both stood for flags that are hard errors since the renames.
ENVIRONMENT = NameTable(
    engine="llama.cpp",
    thing="variable",
    rows=by_name(
        (
            Row("LLAMA_ARG_DRAFT_MAX", TEXT, ALWAYS, RENAMES, renamed_to="LLAMA_ARG_SPEC_DRAFT_N_MAX"),
            Row("LLAMA_ARG_DRAFT_MIN", TEXT, ALWAYS, RENAMES, renamed_to="LLAMA_ARG_SPEC_DRAFT_N_MIN"),
        ),
        source=ARG,
    ),
)
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
