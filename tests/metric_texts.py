"""Rules, dashboards and lines of the kinds that people keep beside their servers, with what lint makes of each.

Written for these tests after such texts. `findings` are all that is not "ok" of the first engine.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
DRAFTED = "vllm:spec_decode_num_draft_tokens_total"


@dataclass(frozen=True)
class MetricText:
    name: str
    text: str
    engines: tuple[str, ...] = ("vllm",)
    findings: dict[str, str] = field(default_factory=dict)
    # Words of replacements, messages or notes.
    says: tuple[str, ...] = ()
    version: str | None = None


def rules(*lines: str) -> str:
    return "groups:\n- name: serving\n  rules:\n" + "\n".join(f"  {line}" for line in lines)


RULES = rules(
    "- record: vllm:ttft:p99",
    "  expr: |",
    "    histogram_quantile(",
    "      0.99,  # the tail",
    "      sum by (le, model_name) (",
    '        rate(vllm:time_to_first_token_seconds_bucket{job=~"vllm.*"}[5m])',
    "      )",
    "    )",
    "- alert: SlowFirstToken",
    "  expr: vllm:ttft:p99 > 2 and on (instance) up == 1",
    "- alert: Queueing",
    "  expr: >-",
    "    sum without (engine) (vllm:num_requests_waiting)",
    "    / ignoring(engine) group_left sum(vllm:num_requests_running) > bool 2",
    "  for: 5m",
    "  annotations: {summary: 'vllm:gpu_cache_usage_perc is not asked for here'}",
)


def panel(title: str, *expressions: str) -> dict[str, object]:
    return {
        "title": title,
        "type": "timeseries",
        "targets": [{"expr": each, "refId": "A"} for each in expressions],
    }


ACCEPTANCE = (
    f'rate({ACCEPTED}{{model="$model"}}[$__rate_interval]) / rate({DRAFTED}{{model=~"${{model:regex}}"}}[5m])'
)
DASHBOARD: dict[str, object] = {
    "title": "vLLM",
    "templating": {
        "list": [
            {"name": "DS_PROMETHEUS", "type": "datasource", "query": "prometheus"},
            {
                "name": "model",
                "type": "query",
                "definition": "label_values(vllm:generation_tokens_total, model_name)",
                "query": {"query": "label_values(vllm:generation_tokens_total, model_name)", "refId": "V"},
            },
        ]
    },
    "panels": [
        panel("Acceptance", ACCEPTANCE),
        {"type": "row", "title": "Cache", "panels": [panel("KV", "100 * avg(vllm:kv_cache_usage_perc) by (instance)")]},
        panel("GPU", "DCGM_FI_DEV_GPU_UTIL", "node_memory_MemAvailable_bytes"),
    ],
}  # fmt: skip
OLD_DASHBOARD = {
    **DASHBOARD,
    "panels": [
        panel("Cache", "vllm:gpu_cache_usage_perc", "vllm:cpu_cache_usage_perc"),
        panel("Tokens", "vllm:avg_generation_throughput_toks_per_s"),
        panel("TPOT", "histogram_quantile(0.9, rate(vllm:time_per_output_token_seconds_bucket[5m]))"),
    ],
}

TEXTS = (
    MetricText("recording rules over several lines", RULES, says=("not judged", " up")),
    MetricText("a gauge that is gone",
        rules("- alert: KVFull", "  expr: vllm:gpu_cache_usage_perc > 0.9"),
        findings={"vllm:gpu_cache_usage_perc": "renamed"},
        says=("alert KVFull can never fire", "vllm:kv_cache_usage_perc")),
    MetricText("the same where it was there",
        rules("- alert: KVFull", "  expr: vllm:gpu_cache_usage_perc > 0.9"), version="0.9.0"),
    MetricText("the same where it is hidden",
        rules("- alert: KVFull", "  expr: vllm:gpu_cache_usage_perc > 0.9"), version="0.11.0",
        findings={"vllm:gpu_cache_usage_perc": "dead"}, says=("--show-hidden-metrics-for-version",)),
    MetricText("one that came later",
        rules("- alert: KVFull", "  expr: vllm:kv_cache_usage_perc > 0.9"), version="0.8.5",
        findings={"vllm:kv_cache_usage_perc": "unknown"}, says=("needs vLLM 0.9.2",)),
    MetricText("old and new side by side",
        rules("- alert: KVFull", "  expr: (vllm:kv_cache_usage_perc or vllm:gpu_cache_usage_perc) > 0.9"),
        findings={"vllm:gpu_cache_usage_perc": "risky"}, says=("the other side",)),
    MetricText("acceptance as the V0 engine had it",
        rules("- alert: Low", '  expr: avg by (model_name) (vllm:spec_decode_draft_acceptance_rate{env="prod"}) < 0.5'),
        findings={"vllm:spec_decode_draft_acceptance_rate": "removed"}, says=(ACCEPTED, DRAFTED)),
    MetricText("counters without _total",
        rules("- alert: Idle", "  expr: rate(vllm:generation_tokens[5m]) == 0"),
        findings={"vllm:generation_tokens": "unknown"}, says=("vllm:generation_tokens_total",)),
    MetricText("a histogram by its bare name",
        rules("- alert: Slow", "  expr: vllm:e2e_request_latency_seconds > 5"),
        findings={"vllm:e2e_request_latency_seconds": "unknown"}, says=("vllm:e2e_request_latency_seconds_bucket",)),
    MetricText("every suffix that there is",
        rules("- record: x:y:z", "  expr: vllm:iteration_tokens_total_sum / vllm:iteration_tokens_total_count"
              " + vllm:request_success_total - vllm:prompt_tokens_created")),
    MetricText("a gauge with a suffix it has not",
        rules("- alert: Full", "  expr: vllm:num_requests_running_total > 5"),
        findings={"vllm:num_requests_running_total": "unknown"}, says=("vllm:num_requests_running",)),
    MetricText("a spelling mistake",
        rules("- alert: Queue", "  expr: vllm:num_request_waiting > 10"),
        findings={"vllm:num_request_waiting": "unknown"}, says=("did you mean vllm:num_requests_waiting",)),
    MetricText("latency of tokens under speculation",
        rules("- record: a:b:c", "  expr: histogram_quantile(0.5, rate(vllm:inter_token_latency_seconds_bucket[1m]))"),
        findings={"vllm:inter_token_latency_seconds_bucket": "risky"}, says=("one value per step",)),
    MetricText("the name as a label",
        rules("- alert: Any", "  expr: '{__name__=\"vllm:num_requests_swapped\"} > 0'"),
        findings={"vllm:num_requests_swapped": "removed"}),
    MetricText("names by a pattern", rules("- alert: Any", "  expr: '{__name__=~\"vllm:spec_decode_.*\"} > 0'")),
    MetricText("names by a pattern that matches none now",
        rules("- alert: Any", "  expr: '{__name__=~\"vllm:gpu_prefix_cache_(hits|queries)_total\"} > 0'"),
        findings={"vllm:gpu_prefix_cache_(hits|queries)_total": "renamed"}, says=("vllm:prefix_cache_hits_total",)),
    MetricText("functions, keywords and labels named alike",
        rules("- alert: F", "  expr: clamp_max(sum_over_time(vllm:num_requests_running[1h:5m] offset 1d), 3) unless"
              " on (sum, rate) absent(vllm:num_requests_waiting{avg='1'} @ end())")),
    MetricText("two engines in one file",
        rules("- alert: V", "  expr: vllm:num_requests_waiting > 1",
              "- alert: L", "  expr: llamacpp:kv_cache_usage_ratio > 0.9 or llamacpp:requests_deferred > 3",
              "- alert: K", "  expr: llamacpp:kv_cache_usage_ratio > 0.9"),
        engines=("llamacpp", "vllm"), findings={"llamacpp:kv_cache_usage_ratio": "removed"},
        says=("alert K can never fire",)),
    MetricText("llama.cpp's gauges that reset as they are read",
        rules("- alert: L", "  expr: llamacpp:predicted_tokens_seconds < 5 and llamacpp:tokens_predicted_total > 0"),
        engines=("llamacpp",), findings={"llamacpp:predicted_tokens_seconds": "risky"}),
    MetricText("llama.cpp before it counted drafts",
        rules("- alert: L", "  expr: rate(llamacpp:spec_decode_num_drafts_total[5m]) > 0"), version="b9000",
        engines=("llamacpp",), findings={"llamacpp:spec_decode_num_drafts_total": "unknown"},
        says=("needs llama.cpp b10282",)),
    MetricText("an operator's rule",
        "apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata: {name: vllm}\nspec:\n"
        "  groups:\n  - name: a\n    rules:\n    - alert: Old\n      expr: vllm:num_requests_swapped > 0\n",
        findings={"vllm:num_requests_swapped": "removed"}, says=("alert Old can never fire",)),
    MetricText("rules in a ConfigMap",
        "apiVersion: v1\nkind: ConfigMap\ndata:\n  rules.yml: |\n    groups:\n    - name: a\n      rules:\n"
        "      - alert: Old\n        expr: vllm:time_in_queue_requests_bucket > 0\n",
        findings={"vllm:time_in_queue_requests_bucket": "renamed"}),
    MetricText("a trigger of an autoscaler",
        "apiVersion: keda.sh/v1alpha1\nkind: ScaledObject\nspec:\n  triggers:\n  - type: prometheus\n    metadata:\n"
        "      query: sum(vllm:avg_prompt_throughput_toks_per_s)\n      threshold: '5'\n",
        findings={"vllm:avg_prompt_throughput_toks_per_s": "removed"}, says=("never scales",)),
    MetricText("a dashboard of today", json.dumps(DASHBOARD, indent=2), says=("DCGM_FI_DEV_GPU_UTIL",)),
    MetricText("a dashboard as the API wraps it", json.dumps({"dashboard": DASHBOARD, "overwrite": True})),
    MetricText("an old dashboard", json.dumps(OLD_DASHBOARD),
        findings={"vllm:gpu_cache_usage_perc": "renamed", "vllm:cpu_cache_usage_perc": "removed",
                  "vllm:avg_generation_throughput_toks_per_s": "removed",
                  "vllm:time_per_output_token_seconds_bucket": "removed"},
        says=("panel Cache stays empty", "panel TPOT stays empty")),
    MetricText("an old dashboard for its time", json.dumps(OLD_DASHBOARD), version="0.6.4"),
    MetricText("a dashboard in a ConfigMap",
        "apiVersion: v1\nkind: ConfigMap\ndata:\n  vllm.json: |\n    " + json.dumps(OLD_DASHBOARD) + "\n",
        findings={"vllm:gpu_cache_usage_perc": "renamed", "vllm:cpu_cache_usage_perc": "removed",
                  "vllm:avg_generation_throughput_toks_per_s": "removed",
                  "vllm:time_per_output_token_seconds_bucket": "removed"}),
    MetricText("a name that a variable makes",
        json.dumps({**DASHBOARD, "panels": [panel("Any", "rate(vllm:${counter}_total[5m])")]}),
        findings={"vllm:${counter}_total": "unread"}),
    MetricText("a query that is not closed", rules("- alert: A", "  expr: sum(rate(vllm:prompt_tokens_total[5m])"),
        findings={"alert A": "unread"}),
    MetricText("the router's metrics",
        rules("- alert: Q", "  expr: vllm:current_qps > 5 or vllm:healthy_pods_total < 1"),
        says=("another exporter",)),
    MetricText("grep for one that is gone", "curl -s http://localhost:8000/metrics | grep vllm:gpu_cache_usage_perc",
        findings={"vllm:gpu_cache_usage_perc": "renamed"}),
    MetricText("grep for a part of names", "curl -s localhost:8000/metrics | grep 'vllm:spec_decode'"),
    MetricText("grep for either",
        "curl -s localhost:8000/metrics | grep -E '^vllm:(num_requests_running|num_requests_swapped)'",
        findings={"^vllm:(num_requests_running|num_requests_swapped)": "removed"}),
    MetricText("grep for a name with its labels",
        "curl -s localhost:8000/metrics | grep 'vllm:request_success_total{finished_reason=\"stop\"'"),
    MetricText("grep without a prefix", "curl -s localhost:8000/metrics | grep -v '#' | grep acceptance_rate",
        findings={"acceptance_rate": "removed"}, says=(ACCEPTED,)),
    MetricText("grep in a loop", "watch -n 1 'curl -s localhost:8080/metrics | grep llamacpp:kv_cache_tokens'",
        engines=("llamacpp",), findings={"llamacpp:kv_cache_tokens": "removed"}),
    MetricText("promtool", "promtool query instant http://prometheus:9090 'rate(vllm:prompt_tokens[5m])'",
        findings={"vllm:prompt_tokens": "unknown"}),
    MetricText("a query in an address",
        "curl 'http://prometheus:9090/api/v1/query?query=sum%28vllm%3Anum_requests_swapped%29'",
        findings={"vllm:num_requests_swapped": "removed"}),
    MetricText("a query that curl encodes",
        "curl -G http://prometheus:9090/api/v1/query --data-urlencode 'query=vllm:kv_cache_usage_perc'"),
    MetricText("an expression alone", "sum(rate(vllm:prompt_tokens[5m])) by (model_name)",
        findings={"vllm:prompt_tokens": "unknown"}),
    MetricText("a script that writes rules",
        "cat > rules.yml <<'EOF'\n" + rules("- alert: Old", "  expr: vllm:gpu_cache_usage_perc > 0.9") + "\nEOF\n",
        findings={"vllm:gpu_cache_usage_perc": "renamed"}, says=("alert Old can never fire",)),
    MetricText("a server with its check",
        "vllm serve m --port 8000 &\nsleep 60\ncurl -s localhost:8000/metrics | grep gpu_cache_usage_perc\n",
        findings={"gpu_cache_usage_perc": "renamed"}),
)  # fmt: skip
