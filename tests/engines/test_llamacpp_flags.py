"""The command line of each method, word for word, and that the embedded server reads every one of them."""

from __future__ import annotations

import pytest

from speclift.core.arm import Arm, ServerSettings, baseline_arm
from speclift.core.errors import UsageError
from speclift.core.speculation import (
    Combined,
    DraftModel,
    Head,
    NGram,
    Off,
    Speculation,
    Suffix,
    Synthetic,
)
from speclift.engines.llamacpp.engine import LlamaCpp
from speclift.engines.llamacpp.flags import server_flags, speculation_flags
from speclift.engines.llamacpp.server import parser

DRAFT = DraftModel(model="d.gguf", k=3)
# Names and meaning: llama.cpp b11549, common/arg.cpp.
GOLDEN: dict[str, tuple[Speculation, str]] = {
    "off": (Off(), ""),
    "ngram": (
        NGram(k=7, n=6),
        "--spec-type ngram-simple --spec-ngram-simple-size-n 6 --spec-ngram-simple-size-m 7"
        " --spec-ngram-simple-min-hits 1",
    ),
    "ngram:map-k": (
        NGram(variant="map-k", k=8, n=4, min_hits=2),
        "--spec-type ngram-map-k --spec-ngram-map-k-size-n 4 --spec-ngram-map-k-size-m 8"
        " --spec-ngram-map-k-min-hits 2",
    ),
    "ngram:map-k4v": (
        NGram(variant="map-k4v", k=8, n=4),
        "--spec-type ngram-map-k4v --spec-ngram-map-k4v-size-n 4 --spec-ngram-map-k4v-size-m 8"
        " --spec-ngram-map-k4v-min-hits 1",
    ),
    "ngram:mod": (
        NGram(variant="mod", k=48, n=16),
        "--spec-type ngram-mod --spec-ngram-mod-n-match 16 --spec-ngram-mod-n-max 48"
        " --spec-ngram-mod-n-min 16",
    ),
    "ngram:mod with k below n": (
        NGram(variant="mod", k=8, n=16),
        "--spec-type ngram-mod --spec-ngram-mod-n-match 16 --spec-ngram-mod-n-max 8 --spec-ngram-mod-n-min 8",
    ),
    "ngram:cache": (NGram(variant="cache"), "--spec-type ngram-cache"),
    "draft": (
        DRAFT,
        "--spec-type draft-simple --spec-draft-model d.gguf --spec-draft-n-max 3 --spec-draft-n-min 0"
        " --spec-draft-p-min 0",
    ),
    "draft with everything": (
        DraftModel(
            model="d.gguf",
            k=5,
            k_min=2,
            p_min=0.75,
            sampling="probabilistic",
            gpu_layers=0,
            device="none",
            kv_type_k="q8_0",
            kv_type_v="f16",
        ),
        "--spec-type draft-simple --spec-draft-model d.gguf --spec-draft-n-max 5 --spec-draft-n-min 2"
        " --spec-draft-p-min 0.75 --spec-draft-sampling probabilistic --spec-draft-ngl 0"
        " --spec-draft-device none --spec-draft-type-k q8_0 --spec-draft-type-v f16",
    ),
    "eagle3": (
        Head(kind="eagle3", k=3, model="h.gguf"),
        "--spec-type draft-eagle3 --spec-draft-model h.gguf --spec-draft-n-max 3",
    ),
    "mtp in the target": (Head(kind="mtp", k=2), "--spec-type draft-mtp --spec-draft-n-max 2"),
    "dflash": (
        Head(kind="dflash", k=8, model="h.gguf"),
        "--spec-type draft-dflash --spec-draft-model h.gguf --spec-draft-n-max 8",
    ),
    "dspark": (
        Head(kind="dspark", k=4, model="h.gguf"),
        "--spec-type draft-dspark --spec-draft-model h.gguf --spec-draft-n-max 4",
    ),
    "ngram+draft": (
        Combined(parts=(NGram(k=7, n=6), DRAFT)),
        "--spec-type ngram-simple,draft-simple --spec-ngram-simple-size-n 6 --spec-ngram-simple-size-m 7"
        " --spec-ngram-simple-min-hits 1 --spec-draft-model d.gguf --spec-draft-n-max 3"
        " --spec-draft-n-min 0 --spec-draft-p-min 0",
    ),
    "synthetic": (
        Synthetic(inner=DRAFT, rates=(0.8, 0.6, 1 / 3)),
        "--spec-type draft-simple --spec-draft-model d.gguf --spec-draft-n-max 3 --spec-draft-n-min 0"
        " --spec-draft-p-min 0 --spec-synth-rates 0.8,0.6,0.333333",
    ),
}
EVERYTHING = ServerSettings(
    model="m.gguf",
    context_tokens=1024,
    slots=4,
    threads=3,
    gpu_layers=0,
    kv_type_k="q8_0",
    kv_type_v="q4_0",
    engine_args=("--batch-size", "256", "--ubatch-size", "128"),
)


@pytest.mark.parametrize("name", GOLDEN)
def test_an_arm_has_exactly_these_flags(name: str) -> None:
    speculation, flags = GOLDEN[name]
    assert " ".join(speculation_flags(Arm(name=name, speculation=speculation))) == flags


def test_every_arm_shares_these_flags_with_context_and_offload_spelt_out() -> None:
    assert " ".join(server_flags(EVERYTHING, port=8080)) == (
        "--model m.gguf --host 127.0.0.1 --port 8080 --ctx-size 4096 --parallel 4"
        " --metrics --slots --cache-ram 0 --fit off --threads 3 --threads-batch 3 --gpu-layers 0"
        " --cache-type-k q8_0 --cache-type-v q4_0 --batch-size 256 --ubatch-size 128"
    )


@pytest.mark.parametrize("name", GOLDEN)
def test_the_embedded_server_reads_every_flag_with_the_value_given(name: str) -> None:
    speculation, _ = GOLDEN[name]
    flags = speculation_flags(Arm(name=name, speculation=speculation))
    read = vars(parser().parse_args([*server_flags(EVERYTHING, port=8080), *flags]))
    asked = dict(zip(flags[::2], flags[1::2], strict=True))
    for flag, value in asked.items():
        seen = read[flag.lstrip("-").replace("-", "_")]
        assert (f"{seen:g}" if isinstance(seen, float) else str(seen)) == value, flag


@pytest.mark.parametrize(
    ("speculation", "said"),
    [
        (Suffix(), "no suffix decoding"),
        (Head(kind="medusa"), "no medusa heads"),
        (Head(kind="eagle"), "no eagle heads"),
        (Combined(parts=(NGram(k=4), NGram(k=8))), "same llama.cpp method twice"),
        (Combined(parts=(DRAFT, Head(kind="mtp"))), "two draft models"),
        (Synthetic(inner=Suffix(k=1), rates=(0.5,)), "no suffix decoding"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_llama_cpp_cannot_do_is_wrong_usage(speculation: Speculation, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        speculation_flags(Arm(name="arm", speculation=speculation))


def test_the_command_to_paste_says_llama_server_and_what_was_measured() -> None:
    arm = Arm(name="ngram", speculation=GOLDEN["ngram"][0])
    engine = LlamaCpp(EVERYTHING, binary="sh")
    measured = engine.command(arm, port=8080)[1:]
    assert engine.configurations(arm)["command"] == " ".join(("llama-server", *measured))
    assert "--spec-type" not in engine.configurations(baseline_arm())["command"]


@pytest.mark.parametrize(
    ("speculation", "words"),
    [
        (NGram(extra=(("min_hit", "1"),)), "Did you mean 'min_hits'?"),
        (
            DraftModel(model="d.gguf", extra=(("quantization", '"fp8"'),)),
            "unknown setting of draft on llama.cpp",
        ),
        (NGram(variant="gpu"), "only vLLM has ngram:gpu"),
        (NGram(n=3, n_min=1), "n_min is a vLLM setting"),
    ],
)
def test_settings_of_another_engine_are_refused(speculation: Speculation, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        speculation_flags(Arm(name="spec", speculation=speculation))
    assert words in str(caught.value)
