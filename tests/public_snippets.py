"""Sixty snippets of the kinds that tutorials, issues and manifests print, with what lint is to make of each.

Written for these tests after such texts, as a browser pastes them. `servers` are the engines in the order in which
they are shown; `findings` are all that is not "ok" of the first one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

CONFIG = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}'


@dataclass(frozen=True)
class Snippet:
    name: str
    text: str
    servers: tuple[str, ...]
    exit_code: int
    findings: dict[str, str] = field(default_factory=dict)
    # Words that the command of today has, in this order; None where there is no command.
    has: tuple[str, ...] | None = ()


V, L = ("vllm",), ("llamacpp",)
NGRAM = {"speculative_config.method": "risky"}  # looked up outside the GPU

OLD_VLLM = (
    Snippet("the first blog post's server",
        "python -m vllm.entrypoints.openai.api_server --model facebook/opt-6.7b --speculative-model facebook/opt-125m"
        " --use-v2-block-manager --num-speculative-tokens 5",
        V, 4, {"--speculative-model": "removed", "--use-v2-block-manager": "removed",
               "--num-speculative-tokens": "removed", "speculative_config.method": "risky"},
        ("vllm", "serve", "facebook/opt-6.7b", "--speculative-config")),
    Snippet("continuations joined on one line",
        "vllm serve meta-llama/Llama-3.1-8B \\ --tensor-parallel-size 2 \\ --max-model-len 8192 \\ --dtype bfloat16",
        V, 0, {}, ("--tensor-parallel-size", "2", "--max-model-len", "8192", "--dtype", "bfloat16")),
    Snippet("dashes that an editor joined",
        "vllm serve Qwen/Qwen2.5-7B-Instruct —speculative-model Qwen/Qwen2.5-0.5B-Instruct —num-speculative-tokens 5",
        V, 4, {"--speculative-model": "removed", "--num-speculative-tokens": "removed",
               "speculative_config.method": "risky"}, ("--speculative-config",)),
    Snippet("short dashes of an editor", "vllm serve m –max-model-len 4096 –port 8000", V, 0, {},
        ("--max-model-len", "4096", "--port", "8000")),
    Snippet("curly quotes around JSON", f"vllm serve m --speculative-config ‘{CONFIG}’", V, 0, NGRAM,
        ("--speculative-config",)),
    Snippet("curly quotes inside JSON", f"vllm serve m --speculative-config '{CONFIG}'".replace('"', "”"), V, 0, NGRAM,
        ("--speculative-config",)),
    Snippet("a prompt", "$ vllm serve m --enable-chunked-prefill --max-num-batched-tokens 2048", V, 0, {},
        ("vllm", "serve", "m")),
    Snippet("a prompt with an environment", "(venv) me@gpu-box:~/serving$ vllm serve m --gpu-memory-utilization 0.9",
        V, 0, {}, ("vllm", "serve", "m", "--gpu-memory-utilization", "0.9")),
    Snippet("a fence", "```bash\nvllm serve m --swap-space 16\n```\n", V, 4, {"--swap-space": "removed"}),
    Snippet("an ellipsis for the rest", "vllm serve m --tensor-parallel-size 4 ...", V, 4, {"...": "unread"}, None),
    Snippet("a typographic ellipsis", "vllm serve m --port 8000 …", V, 4, {"…": "unread"}, None),
    Snippet("a placeholder for the model", "vllm serve <model> --tensor-parallel-size 2", V, 4,
        {"<model>": "unread"}, None),
    Snippet("a placeholder with blanks", "vllm serve <your model> --port 8000", V, 4, {"<your model>": "unread"}, None),
    Snippet("your model", "vllm serve your-org/your-model-name --max-model-len 4096", V, 4,
        {"your-org": "unread", "your-model-name": "unread"}, None),
    Snippet("words left over", "vllm serve m draft-model --port 8000 extra", V, 4,
        {"draft-model": "unknown", "extra": "unknown"}),
    Snippet("the model twice", "vllm serve org/a --model org/b", V, 4, {"--model": "conflict"}),
    Snippet("a flag twice", "vllm serve m --tensor-parallel-size 2 --port 1 -tp 4", V, 4, {"-tp": "conflict"}),
    Snippet("quantisation and parallelism kept",
        "vllm serve TheBloke/Llama-2-70B-AWQ --quantization awq -tp 4 --kv-cache-dtype fp8 --cpu-offload-gb 8",
        V, 0, {}, ("--quantization", "awq", "--tensor-parallel-size", "4", "--kv-cache-dtype", "fp8")),
    Snippet("a spelling mistake", "vllm serve m --tensor-paralel-size 2", V, 4, {"--tensor-paralel-size": "unknown"}),
)  # fmt: skip

NEW_VLLM = (
    Snippet("EAGLE-3 by JSON",
        'vllm serve meta-llama/Llama-3.1-8B-Instruct --speculative-config \'{"method":"eagle3",'
        '"model":"yuhuili/EAGLE3-LLaMA3.1-Instruct-8B","num_speculative_tokens":3}\' -tp 1',
        V, 0, {}, ("--tensor-parallel-size", "1", "--speculative-config")),
    Snippet("keys behind dots", "vllm serve m -sc.method ngram -sc.num_speculative_tokens 4 -sc.prompt_lookup_max 3",
        V, 0, NGRAM, ("--speculative-config",)),
    Snippet("a Python dict on the command line",
        "vllm serve m --speculative-config \"{'method': 'ngram', 'num_speculative_tokens': 4}\"",
        V, 4, {"--speculative-config": "conflict", "speculative_config.prompt_lookup_max": "risky", **NGRAM}),
    Snippet("a key twice in JSON", 'vllm serve m --speculative-config \'{"method":"ngram","method":"mtp"}\'', V, 4,
        {"--speculative-config": "conflict"}),
    Snippet("a switch with a word for a value", "vllm serve m --enforce-eager=maybe", V, 4,
        {"--enforce-eager": "conflict"}),
    Snippet("behind uv", "uv run vllm serve m --port 8000", V, 0, {}, ("uv", "run", "vllm", "serve", "m")),
    Snippet("a notebook's line", "!vllm serve m --max-model-len 2048", V, 0, {}, ("vllm", "serve", "m")),
)  # fmt: skip

PYTHON = (
    Snippet("an engine at the prompt",
        '>>> from vllm import LLM\n>>> llm = LLM(model="m",\n...           tensor_parallel_size=2)\n',
        V, 0, {}, ("--tensor-parallel-size", "2")),
    Snippet("curly quotes in Python", "llm = LLM(model=“m”, quantization=“fp8”)", V, 0, {}, ("--quantization", "fp8")),
    Snippet("old keywords", "from vllm import LLM\nLLM(model='m', speculative_model='[ngram]',"
        " num_speculative_tokens=4, ngram_prompt_lookup_max=4)", V, 4,
        {"speculative_model": "removed", "num_speculative_tokens": "removed", "ngram_prompt_lookup_max": "removed",
         **NGRAM}),
    Snippet("a loop variable", "for k in (3, 5):\n    llm = LLM(model='m', speculative_config={'method': 'ngram',"
        " 'num_speculative_tokens': k, 'prompt_lookup_max': 3})", V, 4,
        {"speculative_config.num_speculative_tokens": "unread", **NGRAM}, None),
    Snippet("a function's argument", "model = 'm'\ndef make(model, tp=2):\n    return LLM(model=model, dtype='auto',"
        " tensor_parallel_size=tp)", V, 4, {"model": "unread", "tensor_parallel_size": "unread"}, None),
    Snippet("as many GPUs as there are", "LLM('m', tensor_parallel_size=torch.cuda.device_count())", V, 4,
        {"tensor_parallel_size": "unread"}, None),
    Snippet("two engines, the speculative one first",
        f"base = LLM(model='a')\nspec = LLM(model='b', speculative_config={CONFIG})", ("vllm", "vllm"), 0, NGRAM,
        ("vllm", "serve", "b")),
)  # fmt: skip

YAML = (
    Snippet("a file for --config", "model: m\ntensor-parallel-size: 2\nspeculative-config:\n  method: ngram\n"
        "  num_speculative_tokens: 4\n  prompt_lookup_max: 3\n", V, 0, NGRAM, ("--tensor-parallel-size", "2")),
    Snippet("an old key in YAML", "model: m\nspeculative_model: d\nnum_speculative_tokens: 5\n", V, 4,
        {"speculative_model": "removed", "num_speculative_tokens": "removed", "speculative_config.method": "risky"}),
    Snippet("a compose service", """
services:
  vllm:
    image: vllm/vllm-openai:v0.8.5
    ports: ["8000:8000"]
    environment:
      - HF_TOKEN=${HF_TOKEN}
    command: --model Qwen/Qwen2.5-7B-Instruct --tensor-parallel-size 2 --swap-space 4
""", V, 4, {"--swap-space": "removed"}, ("vllm", "serve", "Qwen/Qwen2.5-7B-Instruct", "--tensor-parallel-size", "2")),
    Snippet("a compose service with a list", """
services:
  llm:
    image: ghcr.io/ggml-org/llama.cpp:server-cuda
    command: ["-m", "/models/m.gguf", "-md", "/models/d.gguf", "--draft-max", "8", "-ngl", "99"]
""", L, 4, {"-md": "dead", "--draft-max": "renamed"}, ("llama-server", "-m", "/models/d.gguf", "8", "-ngl", "99")),
    Snippet("a compose service with a variable", """
services:
  vllm:
    image: vllm/vllm-openai:latest
    command: ["--model", "${MODEL}", "--port", "8000"]
""", V, 4, {"$MODEL": "unread"}, None),
    Snippet("a Deployment", """
apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      containers:
      - name: vllm
        image: vllm/vllm-openai:v0.6.3
        args: ["--model", "m", "--speculative-model", "d", "--num-speculative-tokens", "5"]
        env:
        - {name: VLLM_USE_V1, value: "0"}
""", V, 4, {"--speculative-model": "removed", "--num-speculative-tokens": "removed", "VLLM_USE_V1": "removed",
            "speculative_config.method": "risky"}, ("vllm", "serve", "m", "--speculative-config")),
    Snippet("a Deployment with a shell", """
apiVersion: v1
kind: Service
---
apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      containers:
      - image: vllm/vllm-openai:latest
        command: ["/bin/sh", "-c"]
        args:
        - |
          vllm serve m \\
            --trust-remote-code --enable-prefix-caching
""", V, 0, {}, ("vllm", "serve", "m", "--trust-remote-code", "--enable-prefix-caching")),
    Snippet("a Pod whose variable is set", """
apiVersion: v1
kind: Pod
spec:
  containers:
  - image: vllm/vllm-openai:latest
    command: ["vllm", "serve", "$(MODEL)", "--port", "8000"]
    env: [{name: MODEL, value: org/m}]
""", V, 0, {}, ("vllm", "serve", "${MODEL}", "--port", "8000")),
)  # fmt: skip

SHELL = (
    Snippet("a unit", """
[Unit]
Description=vLLM
[Service]
Environment="CUDA_VISIBLE_DEVICES=0,1"
ExecStart=/opt/venv/bin/vllm serve m \\
    --tensor-parallel-size 2 --disable-log-requests
Restart=always
[Install]
WantedBy=multi-user.target
""", V, 4, {"--disable-log-requests": "removed"}, ("vllm", "serve", "m", "--tensor-parallel-size", "2")),
    Snippet("a unit of llama.cpp", "[Service]\nExecStart=/usr/local/bin/llama-server -m /srv/m.gguf -c 8192 -fa\n",
        L, 4, {"-fa": "conflict"}, ("-m", "/srv/m.gguf", "-c", "8192", "--flash-attn", "on")),
    Snippet("a script with its variables", 'MODEL="org/m"\nTP=2\nvllm serve "$MODEL" --tensor-parallel-size $TP\n',
        V, 0, {}, ("vllm", "serve", "$MODEL", "--tensor-parallel-size", "$TP")),
    Snippet("a variable that nothing sets", "#!/bin/bash\nvllm serve $MODEL --port 8000\n", V, 4, {"$MODEL": "unread"},
        None),
    Snippet("a script's argument", 'MODEL=$1\nPORT=${2:-8000}\nvllm serve $MODEL --port $PORT\n', V, 4,
        {"$MODEL": "unread"}, None),
    Snippet("a shell's loop", "for k in 3 5; do\n  llama-server -m m.gguf -md d.gguf --draft-max $k\ndone\n", L, 4,
        {"$k": "unread", "-md": "dead", "--draft-max": "renamed"}, None),
    Snippet("two servers of a script, the speculative one first",
        f"vllm serve a --port 8000 &\nvllm serve b --port 8001 --speculative-config '{CONFIG}'\n", ("vllm", "vllm"), 0,
        NGRAM, ("vllm", "serve", "b")),
    Snippet("docker run", "docker run --runtime nvidia --gpus all -v ~/.cache/huggingface:/cache"
        ' --env "HUGGING_FACE_HUB_TOKEN=<secret>" -p 8000:8000 --ipc=host vllm/vllm-openai:latest'
        " --model mistralai/Mistral-7B-v0.1", V, 0, {},
        ("docker", "run", "vllm/vllm-openai:latest", "--model", "mistralai/Mistral-7B-v0.1")),
    Snippet("docker run with another entry point",
        "docker run --rm --entrypoint vllm -v /data/vllm:/data vllm/vllm-openai:latest serve m --port 8000", V, 0, {},
        ("docker", "run", "vllm/vllm-openai:latest", "--model", "m", "--port", "8000")),
    Snippet("a shell in a container", 'docker run --gpus all my/image bash -c "vllm serve m --port 8000"', V, 0, {},
        ("vllm", "serve", "m", "--port", "8000")),
)  # fmt: skip

LLAMA = (
    Snippet("the old draft flags", "./llama-server -m big.gguf -md small.gguf --draft-max 16 --draft-min 4"
        " --draft-p-min 0.9 -ngl 99 -ngld 99 -fa -c 32768", L, 4,
        {"-md": "dead", "--draft-max": "renamed", "--draft-min": "renamed", "-fa": "conflict"},
        ("-m", "big.gguf", "-ngl", "99", "--spec-draft-ngl", "99", "-c", "32768", "--spec-type", "draft-simple")),
    Snippet("today's flags", "llama-server -m m.gguf --spec-draft-model d.gguf --spec-type draft-simple"
        " --spec-draft-n-max 8 -ngl 99 -ts 1,1 -ctk q8_0 -ctv q8_0", L, 0, {},
        ("-ngl", "99", "-ts", "1,1", "-ctk", "q8_0", "-ctv", "q8_0")),
    Snippet("an equals sign", "llama-server -m m.gguf --port=8080", L, 4, {"--port": "conflict"}, ("--port", "8080")),
    Snippet("underscores", "llama-server -m m.gguf --ctx_size 4096 --n_gpu_layers 20", L, 0, {},
        ("--ctx-size", "4096", "--n-gpu-layers", "20")),
    Snippet("an editor's dashes before short flags", "llama-server –m m.gguf –ngl 99 –c 4096", L, 0, {},
        ("-m", "m.gguf", "-ngl", "99", "-c", "4096")),
    Snippet("Windows, joined", "llama-server.exe -m m.gguf ^ -c 4096 ^ --no-mmap", L, 4, {"--no-mmap": "removed"},
        ("-c", "4096", "--load-mode", "none")),
    Snippet("a word left over", "llama-server -m m.gguf -c 4096 prompt.txt", L, 4, {"prompt.txt": "unknown"}),
    Snippet("a placeholder path", "llama-server -m <path/to/model.gguf> -c 4096", L, 4,
        {"<path/to/model.gguf>": "unread"}, None),
)  # fmt: skip

OTHERS = (
    Snippet("SGLang", "python -m sglang.launch_server --model-path m --speculative-algorithm EAGLE --port 30000",
        ("sglang",), 4, {"python -m sglang.launch_server": "unread"}, None),
    Snippet("SGLang's container", "docker run --gpus all lmsysorg/sglang:latest python3 -m sglang.launch_server"
        " --model-path m", ("sglang",), 4, {"python3 -m sglang.launch_server": "unread"}, None),
    Snippet("TensorRT-LLM", "trtllm-serve serve m --tp_size 2 --extra_llm_api_options spec.yml", ("tensorrt-llm",), 4,
        {"trtllm-serve serve m": "unread"}, None),
    Snippet("TensorRT-LLM from Python", "from tensorrt_llm import LLM\nllm = LLM(model='m', tensor_parallel_size=2)",
        ("tensorrt-llm",), 4, {"from tensorrt_llm import LLM": "unread"}, None),
    Snippet("Ollama", "ollama run llama3.1:70b", ("ollama",), 4, {"ollama run llama3.1:70b": "unread"}, None),
    Snippet("a script with two makes of engine", "ollama serve &\nvllm serve m --port 8000", ("ollama", "vllm"), 4,
        {"ollama serve": "unread"}, None),
    Snippet("an installation", "pip install vllm", (), 2),
    Snippet("a clone", "git clone https://github.com/ggml-org/llama.cpp && cd llama.cpp && cmake -B build", (), 2),
    Snippet("a message", 'echo "vllm serve m"', (), 2),
    Snippet("a unit of something else", "[Service]\nExecStart=/usr/bin/nginx -g daemon\n", (), 2),
    Snippet("a manifest of something else", "services:\n  db:\n    image: postgres\n    command: postgres -c x=1\n",
        (), 2),
    Snippet("a quote that never closes", "vllm serve m --speculative-config '{\"method\": \"ngram\"", (), 2),
)  # fmt: skip

SNIPPETS = (*OLD_VLLM, *NEW_VLLM, *PYTHON, *YAML, *SHELL, *LLAMA, *OTHERS)
