"""llama.cpp's server and command-line flags that have nothing to do with speculation, as data. Pure.

Lifetimes are those of common/arg.cpp from build b3906 to b10586, and of the parser of b11549 itself, which knows all
that lasts. One line per lifetime: first build with the flags (0: as old as the table), first without them (- while
they last), what follows the flag, and which program has it.
"""

from __future__ import annotations

from speclift.linter.rows import FlagKind, FlagRow, Span

SOURCE = "llama.cpp common/arg.cpp"
KINDS = {"switch": FlagKind.SWITCH, "value": FlagKind.TEXT}
SERVER, CLI = "server", "cli"

TABLE = """
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


def _rows(table: str) -> tuple[FlagRow, ...]:
    rows = []
    for entry in table.strip().replace("\n    ", " ").splitlines():
        head, _, names = entry.partition(":")
        since, gone, kind, program = head.split()
        span = Span(since=(int(since),), gone=None if gone == "-" else (int(gone),))
        rows += [
            FlagRow(name=name, span=span, kind=KINDS[kind], source=SOURCE, program=program)
            for name in names.split()
        ]
    return tuple(rows)


OTHER_FLAGS: tuple[FlagRow, ...] = _rows(TABLE)
