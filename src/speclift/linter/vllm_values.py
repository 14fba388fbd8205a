"""Names that vLLM takes as values and that came and went: quantisations and load formats. Pure data."""

from __future__ import annotations

from speclift.linter.findings import Release
from speclift.linter.rows import Span

QUANTISATION_SOURCE = "vllm.model_executor.layers.quantization"
LOADER_SOURCE = "vllm.model_executor.model_loader"


def _spans(table: str) -> dict[str, Span]:
    spans = {}
    for line in table.strip().splitlines():
        name, since, gone = line.split()
        spans[name] = Span(since=_release(since), gone=None if gone == "-" else _release(gone))
    return spans


def _release(text: str) -> Release:
    return tuple(int(part) for part in text.split("."))


# name, first release with it, first without it again
QUANTISATIONS = _spans("""
aqlm 0.4.1 0.10.1
auto-round 0.9.0 0.15.0
auto_awq 0.24.0 -
auto_gptq 0.22.0 -
awq 0.4.0 -
awq_marlin 0.5.3 -
bitblas 0.8.5 0.16.0
bitsandbytes 0.5.0 0.28.0
compressed-tensors 0.5.0 -
cpu_awq 0.12.0 0.23.0
cpu_gptq 0.12.0 0.14.0
deepseek_v4_fp8 0.20.0 -
deepspeedfp 0.4.3 0.15.0
experts_int8 0.5.5 -
fbgemm_fp8 0.5.3 -
fp8 0.4.1 -
fp8_per_block 0.20.0 -
fp8_per_channel 0.24.0 -
fp8_per_tensor 0.20.0 -
fp_quant 0.11.1 -
gguf 0.5.5 0.24.0
gpt_oss_mxfp4 0.20.0 -
gptq 0.4.0 -
gptq_bitblas 0.8.5 0.16.0
gptq_marlin 0.4.2 -
gptq_marlin_24 0.4.3 0.16.0
hqq 0.6.5 0.15.0
humming 0.20.0 -
inc 0.10.0 -
int8_per_channel_weight_only 0.20.0 -
ipex 0.6.3 0.16.0
marlin 0.4.0 0.10.2
modelopt 0.6.1 -
modelopt_fp4 0.9.0 -
modelopt_mixed 0.17.0 -
modelopt_mxfp8 0.16.0 -
moe_wna16 0.7.1 -
mxfp4 0.10.1 -
mxfp8 0.19.0 -
neuron_quant 0.6.0 0.10.2
nvfp4 0.8.0 0.9.0
nvfp4_per_token 0.26.0 -
online 0.20.0 -
petit_nvfp4 0.10.2 0.20.0
ptpc_fp8 0.7.3 0.19.0
qqq 0.5.4 0.10.2
quark 0.7.0 -
rtn 0.9.2 0.15.0
sparseml 0.4.3 0.5.0
squeezellm 0.4.0 0.6.1
torchao 0.8.4 -
tpu_int8 0.5.5 0.14.0
""")
# Only those that ended: loaders can be added by plug-ins, so that an unknown one proves nothing.
LOAD_FORMATS_GONE = _spans("""
bitsandbytes 0.5.0 0.28.0
gguf 0.5.5 0.24.0
""")

CLOSEST = {
    "bitsandbytes": (
        "quantise as it loads: fp8_per_tensor, or int8_per_channel_weight_only for 8 bits;"
        " for 4 bits a checkpoint in AWQ or GPTQ"
    ),
    "gguf": "a Hugging Face checkpoint; llama.cpp serves GGUF",
    "squeezellm": "a checkpoint in AWQ or GPTQ",
    "aqlm": "a checkpoint in AWQ or GPTQ",
    "marlin": "gptq; vLLM picks the Marlin kernel itself",
    "gptq_marlin_24": "compressed-tensors",
    "deepspeedfp": "fp8",
    "hqq": "a checkpoint in AWQ or GPTQ",
    "qqq": "compressed-tensors",
    "rtn": "int8_per_channel_weight_only",
    "auto-round": "inc",
    "ptpc_fp8": "fp8_per_channel",
    "nvfp4": "modelopt_fp4",
    "petit_nvfp4": "modelopt_fp4",
    "cpu_awq": "awq",
    "cpu_gptq": "gptq",
    "ipex": "awq or gptq",
}
