"""vLLM's speculative config: every key from the table, every rule on their combination."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speclift.engines.llamacpp.dialect import tables as llamacpp
from speclift.engines.named import known_dialects
from speclift.engines.vllm.dialect import tables as vllm
from speclift.engines.vllm.dialect.config_rules import check_speculative_config, method_of
from speclift.engines.vllm.dialect.tables import KEYS, METHODS, NEWEST, schedule_fault
from speclift.linter.rows import (
    Life,
    LintFinding,
    NameTable,
    Release,
    Row,
    Status,
    ValueKind,
    tables_of,
)

DRAFT: dict[str, object] = {"model": "org/draft", "num_speculative_tokens": 5}
NGRAM: dict[str, object] = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}


def statuses(config: dict[str, object], release: Release = NEWEST, **case: Any) -> dict[str, Status]:
    findings = check_speculative_config(config, release=release, **case)
    return {found.flag.removeprefix("speculative_config."): found.status for found in findings}


# Drafts inside CUDA graphs: after PR 47460, before the newer runner took draft models.
OLD_RUNNER: Release = (0, 27, 0)


def only(status: Status, config: dict[str, object], release: Release = NEWEST, **case: Any) -> LintFinding:
    (found,) = [
        found for found in check_speculative_config(config, release=release, **case) if found.status is status
    ]
    return found


TABLES = [
    *(
        value
        for module in (vllm, llamacpp)
        for value in vars(module).values()
        if isinstance(value, NameTable)
    ),
    *(dialect.metrics.table for dialect in known_dialects() if dialect.metrics is not None),
]


class TestTheTable:
    @pytest.mark.parametrize("table", TABLES, ids=lambda table: f"{table.engine} {table.thing}")
    def test_lifetimes_run_forward_and_every_row_says_where_it_is_from(self, table: NameTable) -> None:
        for row in table:
            ends = [row.since, *([row.gone] if row.gone else [])]
            assert ends == sorted(set(ends)), row.name
            assert all(since < gone < row.since for since, gone in row.earlier), row.name
            assert row.dead_since is None or row.since < row.dead_since, row.name
            assert row.source, row.name
            assert set(row.methods) <= METHODS.rows.keys()

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("sinse = '1'", "tiny.toml: flags.row.--a: Object contains unknown field `sinse`"),
            ("kind = 'integer'", "tiny.toml: flags.row.--a: Invalid enum value 'integer'"),
            ("since = 'soon'", "tiny.toml: flags.row.--a: 'soon' is no release"),
            ("low = 'one'", "tiny.toml: flags.row.--a: Expected `float | null`, got `str`"),
            ("aliases = ['--a']", "--a has two rows"),
        ],
    )
    def test_a_fault_in_a_file_is_named_with_its_place(self, line: str, said: str) -> None:
        row = {"kind": "int", "since": "1", **tomllib.loads(line)}
        section = {"thing": "flag", "source": "x", "row": {"--a": row}}

        with pytest.raises(ValueError, match=re.escape(said)):
            tables_of({"flags": section}, engine="Tiny", where="tiny.toml")

    def test_a_row_knows_its_life_in_every_release(self) -> None:
        row = Row("a", ValueKind.INT, (5,), (9,), earlier=(((1,), (3,)),), dead_since=(7,))

        lives = [row.life((release,)) for release in range(10)]
        coming, there, dead, gone = Life.COMING, Life.THERE, Life.DEAD, Life.GONE
        assert lives == [coming, there, there, gone, gone, there, there, dead, dead, gone]
        assert [row.comes_after((release,)) for release in (0, 1, 4, 9)] == [(1,), (5,), (5,), None]
        assert [row.gone_by((release,)) for release in (2, 3, 8, 9)] == [None, (3,), (3,), (9,)]


class TestWhichMethod:
    @pytest.mark.parametrize(
        ("config", "method"),
        [
            ({"model": "org/draft"}, "draft_model"),
            ({"model": "[ngram]"}, "ngram"),
            ({"method": "[ngram]"}, "ngram"),
            ({"model": "yuhuili/EAGLE-LLaMA3-Instruct-8B"}, "eagle"),
            ({"model": "AngelSlim/Qwen3-8B_eagle3"}, "eagle3"),
            ({"model": "deepseek-ai/dspark_qwen3_8b_block7"}, "dspark"),
            ({"model": "mypackage.MyProposer"}, "custom_class"),
            ({"model": "./draft.v2"}, "draft_model"),
            ({"method": "deepseek_mtp"}, "mtp"),
        ],
    )
    def test_vllm_takes_it_for(self, config: dict[str, object], method: str) -> None:
        assert method_of(config, NEWEST) == method


class TestValues:
    @pytest.mark.parametrize(
        ("key", "value", "said"),
        [
            ("num_speculative_tokens", 0, "at least 1"),
            ("num_speculative_tokens", 129, "at most 128"),
            ("num_speculative_tokens", "five", "whole number"),
            ("num_speculative_tokens", True, "whole number"),
            ("use_local_argmax_reduction", "yes", "true or false"),
            ("model", 7, "a text"),
            ("draft_load_config", "dummy", "an object"),
            ("draft_sample_method", "random", "greedy, probabilistic"),
            ("rejection_sample_method", "strict", "standard"),
        ],
    )
    def test_a_value_that_does_not_fit_is_a_conflict(self, key: str, value: object, said: str) -> None:
        found = only(Status.CONFLICT, {**DRAFT, key: value})

        assert found.flag == f"speculative_config.{key}"
        assert said in found.message

    def test_a_key_never_heard_of_names_the_nearest(self) -> None:
        found = only(Status.UNKNOWN, {**DRAFT, "num_speculative_token": 5})

        assert found.replacement == "num_speculative_tokens"

    @given(st.dictionaries(st.text(max_size=12), st.integers() | st.text(max_size=5) | st.none(), max_size=4))
    def test_no_config_breaks_the_check(self, config: dict[str, object]) -> None:
        for release in ((0, 6, 0), (0, 9, 0), (0, 16, 0), NEWEST):
            for found in check_speculative_config(config, release=release):
                assert found.flag.startswith("speculative_config.")


class TestCombinations:
    @pytest.mark.parametrize(
        ("config", "key"),
        [
            ({"model": "org/draft"}, "num_speculative_tokens"),
            ({"method": "ngram", "prompt_lookup_max": 4}, "num_speculative_tokens"),
            ({"method": "mtp"}, "num_speculative_tokens"),
            ({"method": "eagle3", "num_speculative_tokens": 3}, "model"),
            ({**NGRAM, "prompt_lookup_min": 6}, "prompt_lookup_min"),
            ({**DRAFT, "use_heterogeneous_vocab": True, "draft_sample_method": "probabilistic"},
             "use_heterogeneous_vocab"),
            ({**DRAFT, "dspark_draft_topk": 3}, "dspark_draft_topk"),
            ({**DRAFT, "synthetic_acceptance_length": 3.0}, "synthetic_acceptance_length"),
            ({**DRAFT, "rejection_sample_method": "synthetic"}, "synthetic_acceptance_rates"),
            ({**DRAFT, "rejection_sample_method": "synthetic", "synthetic_acceptance_length": 7},
             "synthetic_acceptance_length"),
            ({**DRAFT, "enable_adaptive_verification": True, "use_local_argmax_reduction": True},
             "enable_adaptive_verification"),
        ],
    )  # fmt: skip
    def test_vllm_refuses(self, config: dict[str, object], key: str) -> None:
        assert only(Status.CONFLICT, config).flag == f"speculative_config.{key}"

    @pytest.mark.parametrize(
        ("draft", "target", "release", "status"),
        [
            (1, 1, NEWEST, Status.OK),
            (2, 2, NEWEST, Status.OK),
            (1, 4, NEWEST, Status.CONFLICT),
            (1, 4, (0, 9, 0), Status.OK),  # V0 could
            (2, 4, (0, 9, 0), Status.CONFLICT),
        ],
    )
    def test_a_draft_model_wants_the_targets_gpus(
        self, draft: int, target: int, release: Release, status: Status
    ) -> None:
        config = {**DRAFT, "draft_tensor_parallel_size": draft}

        assert statuses(config, release, tensor_parallel=target)["draft_tensor_parallel_size"] is status

    def test_the_trap_key_points_at_the_right_one(self) -> None:
        found = only(Status.RENAMED, {**DRAFT, "tensor_parallel_size": 2})

        assert found.replacement == "draft_tensor_parallel_size"

    def test_forced_acceptance_is_never_quietly_fine(self) -> None:
        config = {**DRAFT, "rejection_sample_method": "synthetic", "synthetic_acceptance_length": 3.0}

        assert statuses(config)["rejection_sample_method"] is Status.RISKY
        assert statuses(config, is_cpu=True)["rejection_sample_method"] is Status.CONFLICT

    def test_a_key_of_another_method_is_dead(self) -> None:
        found = only(Status.DEAD, {**DRAFT, "prompt_lookup_max": 4})

        assert "ngram" in found.message

    def test_ngram_and_a_baseline_differ_in_more_than_speculation(self) -> None:
        assert "async scheduling" in only(Status.RISKY, NGRAM).message
        assert Status.RISKY not in statuses(NGRAM, has_async_scheduling=False).values()
        assert statuses(NGRAM, has_async_scheduling=True)["method"] is Status.CONFLICT
        assert Status.RISKY not in statuses(DRAFT, OLD_RUNNER).values()

    @pytest.mark.parametrize(
        ("release", "is_cpu", "hint"),
        [
            ((0, 25, 1), False, "vLLM 0.26.0 or newer"),
            (OLD_RUNNER, False, None),
            ((0, 32, 0), False, "VLLM_USE_V2_MODEL_RUNNER=0"),
            ((0, 32, 0), True, None),
        ],
    )
    def test_a_draft_model_outside_cuda_graphs_is_a_risk(
        self, release: Release, is_cpu: bool, hint: str | None
    ) -> None:
        found = check_speculative_config(DRAFT, release=release, is_cpu=is_cpu)
        risks = [risk.replacement or "" for risk in found if risk.status is Status.RISKY]
        assert [hint in risk for risk in risks if hint] == ([True] if hint else [])
        assert bool(risks) is (hint is not None)

    def test_speculation_on_a_cpu_came_with_0_20(self) -> None:
        assert statuses(NGRAM, (0, 19, 0), is_cpu=True)["method"] is Status.CONFLICT
        assert Status.CONFLICT not in statuses(NGRAM, (0, 20, 0), is_cpu=True).values()

    def test_a_draft_named_after_a_head_is_taken_for_one(self) -> None:
        config = {**DRAFT, "method": "draft_model", "model": "/models/eagle-small"}
        found = only(Status.RISKY, config, OLD_RUNNER)

        assert "'eagle'" in found.message

    def test_a_schedule_is_dropped_under_data_parallelism(self) -> None:
        config = {**DRAFT, "num_speculative_tokens_per_batch_size": [[1, 8, 5], [9, 64, 0]]}

        assert statuses(config)["num_speculative_tokens_per_batch_size"] is Status.RISKY
        assert statuses(config, data_parallel=2)["num_speculative_tokens_per_batch_size"] is Status.DEAD


class TestTheSchedule:
    @pytest.mark.parametrize(
        ("schedule", "said"),
        [
            ({"1": 5}, "not an object"),
            ([], "not empty"),
            (5, "not empty"),
            ([[1, 8]], "each entry"),
            ([[1, 8, "5"]], "whole numbers"),
            ([[1, 8, -1]], "k >= 0"),
            ([[8, 1, 5]], "first <= last"),
            ([[2, 8, 5]], "starts at batch size 1"),
            ([[1, 8, 5], [8, 9, 0]], "overlap"),
        ],
    )
    def test_vllm_refuses(self, schedule: object, said: str) -> None:
        fault = schedule_fault(schedule)

        assert fault is not None
        assert said in fault


def test_keys_that_the_engine_fills_are_nobodys_to_give() -> None:
    internal = [row.name for row in KEYS if row.kind is ValueKind.INTERNAL and row.holds(NEWEST)]

    assert "target_model_config" in internal
    assert not set(internal) & set(KEYS.names_at(NEWEST))
    assert statuses({**DRAFT, "target_model_config": {}})["target_model_config"] is Status.CONFLICT
