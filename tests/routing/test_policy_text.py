"""A policy as its file, and back."""

from __future__ import annotations

import tomllib

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from policies import POLICY

from samples import HOSTILE, hostile_text
from speclift.core.errors import UsageError
from speclift.core.quantities import printable
from speclift.core.results import Decision
from speclift.core.routing import ServerPool
from speclift.routing.policy import (
    CountedLoad,
    LoadLimit,
    Policy,
    PolicySegment,
    PolicySource,
    PrefixWorth,
    RepetitionLook,
    SegmentRule,
    faults,
    policy_toml,
    read_policy,
)
from speclift.views.schema import published_schema


def refusal(text: str) -> str:
    with pytest.raises(UsageError) as refused:
        read_policy(text.encode(), name="p.toml")
    assert "speclift export STUDY --to gateway" in refused.value.hint
    return str(refused.value)


words = st.text(st.characters(codec="utf-8"), max_size=20)
figures = st.none() | st.floats(0.001, 1000, allow_subnormal=False)
counts = st.none() | st.integers(0, 10**9)
rules = st.builds(
    SegmentRule,
    temperature_min=figures,
    max_tokens_max=counts,
    repetition_min=st.none() | st.floats(0, 1),
    tools=st.none() | st.booleans(),
    model=st.none() | words,
    header=st.none() | words,
)
segments = st.builds(
    PolicySegment,
    name=words,
    pool=st.sampled_from(ServerPool),
    speedup=figures,
    low=figures,
    high=figures,
    prompts=counts,
    e2e_s=figures,
    max_temperature=figures,
    leave=counts,
    when=st.lists(rules, max_size=2).map(tuple),
)
sources = st.builds(
    PolicySource,
    study=words,
    arm=words,
    engine=words,
    engine_version=words,
    model=words,
    verdict=st.sampled_from(Decision),
    metric=words,
    written=words,
    is_for_all_traffic=st.booleans(),
)
policies = st.builds(
    Policy,
    schema=st.just(1),
    elsewhere=st.sampled_from(ServerPool),
    source=st.none() | sources,
    load=st.builds(
        LoadLimit, leave=counts, back=counts, counted=st.sampled_from(CountedLoad), pays_to=figures
    ),
    prefix=st.builds(PrefixWorth, saves_s_per_1000_tokens=st.floats(0, 100), keep_s=st.floats(0, 1e6)),
    repetition=st.none() | st.builds(RepetitionLook, engine=words, drafter=words, limit_ms=st.floats(0, 100)),
    segments=st.lists(segments, max_size=3).map(tuple),
)


class TestRoundTrip:
    def test_of_an_ordinary_one(self) -> None:
        assert read_policy(policy_toml(POLICY).encode(), name="p") == POLICY

    @given(policies)
    def test_what_is_written_is_read_unless_it_must_not_be_followed(self, made: Policy) -> None:
        text = policy_toml(made)

        if list(faults(made)):
            assert "cannot be followed" in refusal(text)
        else:
            assert read_policy(text.encode(), name="p") == made

    @given(hostile_text)
    def test_foreign_text_is_text(self, text: str) -> None:
        made = Policy(schema=1, segments=(PolicySegment(name=f"s{text}", pool=ServerPool.PLAIN),))

        written = policy_toml(made, remarks={"": (text,), f"s{text}": (text,)})

        assert len(tomllib.loads(written)["segment"]) == 1
        assert all(printable(line, limit=9999) == line for line in written.split("\n"))

    def test_the_published_schema_takes_it(self) -> None:
        jsonschema.validate(tomllib.loads(TEXT), published_schema("policy"))
        with pytest.raises(jsonschema.ValidationError, match="elswhere"):
            jsonschema.validate(tomllib.loads(TEXT) | {"elswhere": "spec"}, published_schema("policy"))


TEXT = """\
# From a study.
schema = 1
elsewhere = "plain"

[source]
study = "study"
arm = "ngram-k5"
engine = "vllm"
engine_version = "vllm 0.32.0"
model = "model"
verdict = "ship-on-conditions"
metric = "e2e"
written = "2026-11-16"
is_for_all_traffic = false

[load]
leave = 8
back = 5
counted = "server"
pays_to = 8.0

[prefix]
saves_s_per_1000_tokens = 0.0
keep_s = 300.0

# Told apart.
[[segment]]
name = "copy"
pool = "spec"
speedup = 1.4
low = 1.3
high = 1.5
prompts = 24
e2e_s = 1.4
[[segment.when]]
temperature_max = 0.3
prompt_characters_min = 400

[[segment]]
name = "chat"
pool = "plain"
speedup = 0.9
low = 0.85
high = 0.95
prompts = 24
e2e_s = 1.0
"""


class TestHandWritten:
    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("", "schema = 1 is what this speclift reads: it is missing"),
            ("schema = 2", "saw 2"),
            ("schema = ", "p.toml is not TOML"),
            (
                "schema = 1\nelswhere = 'spec'",
                "unknown key of a policy 'elswhere'. Did you mean 'elsewhere'?",
            ),
            ("schema = 1\nelsewhere = 'fast'", 'elsewhere takes "spec" or "plain", saw \'fast\''),
            ("schema = 1\nload = 3", "load takes a table: [load], saw 3"),
            ("schema = 1\n[segment]\nname = 'a'", "segment takes a list of tables: [[segment]]"),
            ("schema = 1\n[load]\nleave = 1.5", "load.leave takes a whole number, saw 1.5"),
            ("schema = 1\n[[segment]]\npool = 'spec'", "segment[0]: name is missing"),
            ("schema = 1\n[[segment]]\nname = 'a'", "segment 'a': pool is missing"),
            (
                "schema = 1\n[[segment]]\nname = 'a'\npool = 'spec'\n[[segment.when]]\ntemprature_max = 1",
                "unknown key of segment 'a'.when[0] 'temprature_max'. Did you mean 'temperature_max'?",
            ),
            (f"schema = 1{'0' * 5000}", "p.toml is not TOML"),
            ("a = " + "[" * 3000, "p.toml is not TOML"),
        ],
    )
    def test_what_is_wrong_is_said(self, text: str, says: str) -> None:
        assert says in refusal(text)

    def test_hostile_keys_and_values_do_not_reach_the_terminal(self) -> None:
        bad = HOSTILE.encode("utf-8", "replace").decode()
        key = "".join(f"\\U{ord(character):08X}" for character in bad)

        said = refusal(f'schema = 1\n"{key}" = 1\nelsewhere = "{key}"')

        assert all(printable(line, limit=9999) == line for line in said.split("\n"))


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace")))
def test_no_file_makes_it_raise_anything_else(data: bytes) -> None:
    try:
        read_policy(data, name="p")
    except UsageError:
        return
