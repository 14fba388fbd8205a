"""The embedded llama.cpp: xllamacpp behind llama-server's flags, in a process of its own.

Run as `python -m speclift.engines.llamacpp.server FLAGS`. xllamacpp can abort the process or hang when it is
torn down, so it lives alone and is ended by a signal.
"""

from __future__ import annotations

import argparse
import functools
import signal
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType

KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")


# llama_flash_attn_type by the words of the flag.
FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}


def parser(*, exits: bool = True) -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="speclift-llamacpp", allow_abbrev=False, exit_on_error=exits)
    p.add_argument("-m", "--model", required=True)
    p.add_argument("--host", default="127.0.0.1")
    p.add_argument("--port", type=int, required=True)
    p.add_argument("-c", "--ctx-size", type=int, default=2048)
    p.add_argument("-np", "--parallel", type=int, default=1)
    p.add_argument("-t", "--threads", type=int)
    p.add_argument("-tb", "--threads-batch", type=int)
    p.add_argument("-b", "--batch-size", type=int)
    p.add_argument("-ub", "--ubatch-size", type=int)
    p.add_argument("-ngl", "--gpu-layers", "--n-gpu-layers", type=int)
    p.add_argument("-fa", "--flash-attn", choices=FLASH_ATTENTION)
    p.add_argument("-ctk", "--cache-type-k", choices=KV_TYPES)
    p.add_argument("-ctv", "--cache-type-v", choices=KV_TYPES)
    p.add_argument("--metrics", action="store_true")
    p.add_argument("--slots", action="store_true")
    p.add_argument("--cache-ram", type=int, default=0)
    p.add_argument("--fit", choices=("on", "off"), default="off")
    p.add_argument("-lv", "--verbosity", type=int, default=1)
    p.add_argument("--spec-type", default="none")
    p.add_argument("-md", "--spec-draft-model")
    p.add_argument("--spec-draft-n-max", type=int)
    p.add_argument("--spec-draft-n-min", type=int)
    p.add_argument("--spec-draft-p-min", type=float)
    p.add_argument("--spec-draft-sampling", choices=("greedy", "probabilistic"), default="greedy")
    p.add_argument("--spec-draft-ngl", type=int)
    p.add_argument("--spec-draft-device")
    p.add_argument("--spec-draft-type-k", choices=KV_TYPES)
    p.add_argument("--spec-draft-type-v", choices=KV_TYPES)
    for variant in ("simple", "map-k", "map-k4v"):
        for name in ("size-n", "size-m", "min-hits"):
            p.add_argument(f"--spec-ngram-{variant}-{name}", type=int)
    for name in ("n-match", "n-min", "n-max"):
        p.add_argument(f"--spec-ngram-mod-{name}", type=int)
    p.add_argument("--spec-synth-rates")
    return p


def knows(flag: Sequence[str]) -> bool:
    """Whether the embedded server takes this flag with this value; a llama-server has many more."""
    try:
        _, unknown = parser(exits=False).parse_known_args(["--model", "", "--port", "0", *flag])
    except argparse.ArgumentError:
        return False
    return not unknown


def main(argv: list[str]) -> int:
    options = parser().parse_args(argv)
    import xllamacpp

    params = xllamacpp.CommonParams()
    _set_server(params, options, xllamacpp)
    _set_speculation(params.speculative, options, xllamacpp)
    server = xllamacpp.Server(params)
    signal.pause()
    del server
    return 0


def _set_server(params: object, options: argparse.Namespace, xllamacpp: ModuleType) -> None:
    _assign(
        params,
        {
            "model.path": options.model,
            "hostnames": [options.host],
            "port": options.port,
            "n_ctx": options.ctx_size,
            "n_parallel": options.parallel,
            "kv_unified": False,  # every slot keeps its own share, as with an explicit --parallel
            "endpoint_metrics": options.metrics,
            "endpoint_slots": options.slots,
            "cache_ram_mib": options.cache_ram,
            "fit_params": options.fit == "on",
            "verbosity": options.verbosity,
            "cpuparams.n_threads": options.threads or None,
            "cpuparams_batch.n_threads": options.threads_batch or None,
            "n_batch": options.batch_size,
            "n_ubatch": options.ubatch_size,
            "n_gpu_layers": options.gpu_layers,
            "flash_attn_type": None
            if options.flash_attn is None
            else xllamacpp.llama_flash_attn_type(FLASH_ATTENTION[options.flash_attn]),
            "cache_type_k": _kv_type(xllamacpp, options.cache_type_k),
            "cache_type_v": _kv_type(xllamacpp, options.cache_type_v),
        },
    )


def _set_speculation(speculative: object, options: argparse.Namespace, xllamacpp: ModuleType) -> None:
    prefix = "COMMON_SPECULATIVE_TYPE_"
    names = [name.replace("-", "_").upper() for name in options.spec_type.split(",")]
    rates = options.spec_synth_rates
    _assign(
        speculative,
        {
            # A new list: appending in place has no effect in xllamacpp.
            "types": [getattr(xllamacpp.common_speculative_type, prefix + name) for name in names],
            "draft.mparams.path": options.spec_draft_model or None,
            "draft.probabilistic": options.spec_draft_sampling == "probabilistic",
            "draft.n_max": options.spec_draft_n_max,
            "draft.n_min": options.spec_draft_n_min,
            "draft.p_min": options.spec_draft_p_min,
            "draft.n_gpu_layers": options.spec_draft_ngl,
            "draft.devices": options.spec_draft_device,
            "draft.cache_type_k": _kv_type(xllamacpp, options.spec_draft_type_k),
            "draft.cache_type_v": _kv_type(xllamacpp, options.spec_draft_type_v),
            "synth_rates": [float(rate) for rate in rates.split(",")] if rates else None,
        },
    )
    for variant in ("simple", "map_k", "map_k4v", "mod"):
        sizes = ("size_n", "size_m", "min_hits", "n_match", "n_min", "n_max")
        _assign(
            speculative,
            {
                f"ngram_{variant}.{name}": getattr(options, f"spec_ngram_{variant}_{name}", None)
                for name in sizes
            },
        )


def _assign(target: object, values: Mapping[str, object]) -> None:
    """Attributes by their dotted names. What is None was not given and stays as it is."""
    for path, value in values.items():
        if value is not None:
            *holders, name = path.split(".")
            setattr(functools.reduce(getattr, holders, target), name, value)


def _kv_type(xllamacpp: ModuleType, name: str | None) -> object:
    return None if name is None else getattr(xllamacpp.ggml_type, f"GGML_TYPE_{name.upper()}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
