"""Commands, code and configs as articles and tutorials print them, for the tests of lint."""

from __future__ import annotations

TARGET, DRAFT = "meta-llama/Llama-3.1-70B-Instruct", "meta-llama/Llama-3.2-1B-Instruct"

# What the five articles print, each in the words of its time; by what it shows.
VLLM: dict[str, str] = {
    "server with a draft model": f"""
python -m vllm.entrypoints.openai.api_server \\
    --model {TARGET} \\
    --speculative-model {DRAFT} \\
    --num-speculative-tokens 5 \\
    --tensor-parallel-size 2 \\
    --speculative-draft-tensor-parallel-size 1 \\
    --use-v2-block-manager
""",
    "typical acceptance": f"""
vllm serve {TARGET} --speculative-model {DRAFT} --num-speculative-tokens 5 \\
    --spec-decoding-acceptance-method typical_acceptance_sampler \\
    --typical-acceptance-sampler-posterior-threshold 0.09 \\
    --typical-acceptance-sampler-posterior-alpha 0.3
""",
    "off above a batch size": f"""
vllm serve {TARGET} --speculative-model {DRAFT} --num-speculative-tokens 5 --speculative-disable-by-batch-size 8
""",
    "quantised draft": f"""
vllm serve {TARGET} --quantization fp8 --speculative-model {DRAFT} --num-speculative-tokens 5 \\
    --speculative-model-quantization bitsandbytes --gpu-memory-utilization 0.9
""",
    "n-gram": f"""
vllm serve {TARGET} --speculative-model "[ngram]" --num-speculative-tokens 5 --ngram-prompt-lookup-max 4
""",
    "no k": f"vllm serve {TARGET} --speculative-model {DRAFT} --max-model-len 1024",
    "container": f"""
docker run --gpus all -v ~/.cache/huggingface:/cache -p 8000:8000 -e VLLM_USE_V1=0 \\
    vllm/vllm-openai:v0.6.3 --model {TARGET} --speculative-model {DRAFT} --num-speculative-tokens 5
""",
    "Python keywords": f"""
from vllm import LLM, SamplingParams

draft = "{DRAFT}"
llm = LLM(
    model="{TARGET}",
    speculative_model=draft,
    num_speculative_tokens=5,
    use_v2_block_manager=True,
    gpu_memory_utilization=0.85,
)
""",
    "Python dict": f"""
llm = LLM(model="{TARGET}", speculative_config={{"model": "{DRAFT}", "num_speculative_tokens": 5}})
""",
    "JSON of 0.9": f"""
vllm serve {TARGET} --swap-space 4 --disable-log-requests --num-scheduler-steps 1 --speculative-config \\
  '{{"model": "{DRAFT}", "num_speculative_tokens": 5, "disable_by_batch_size": 16, "draft_tensor_parallel_size": 1}}'
""",
    "YAML": f"""
model: {TARGET}
max-model-len: 1024
enable-prefix-caching: false
speculative-config:
  method: ngram
  num_speculative_tokens: 4
  prompt_lookup_max: 4   # longest match
  prompt_lookup_min: 2
""",
    "dotted": f"vllm serve {TARGET} -sc.method ngram -sc.num_speculative_tokens 3 --enable_chunked_prefill False -O2",
}

LLAMA: dict[str, str] = {
    "server with a draft model": "llama-server -m target.gguf -md draft.gguf",
    "draft lengths": "llama-server -m target.gguf -md draft.gguf --draft-max 16 --draft-min 4 --draft-p-min 0.6",
    "GPU and CPU": "./llama-server -m target.gguf -md draft.gguf -ngl 99 -ngld 0 --draft 8 -c 4096 -fa --no-mmap",
    "example program": './llama-speculative -m target.gguf -md draft.gguf --draft 8 -p "Once upon a time" -n 128',
    "new names": "llama-server -m target.gguf -md draft.gguf --spec-draft-n-max 8 --spec-draft-n-min 2",
    "n-gram of January": "llama-server -m target.gguf --spec-type ngram-simple --spec-ngram-size-n 6 --draft-max 8",
    "draft context": "llama-server -m target.gguf -md draft.gguf -cd 4096 --spec-replace a b --port 8081 --metrics",
}  # fmt: skip
