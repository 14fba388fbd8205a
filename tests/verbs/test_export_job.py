from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from job_schemas import CONFIG_MAP, KUBERNETES_JOB, RAY_JOB
from running import Cli, Result
from speclift.verbs.export_job import FORMATS
from speclift.views.study_jobs import (
    JobInput,
    StudyJob,
    kubernetes_job_text,
    plain_name,
    ray_job_text,
    run_script,
    slurm_text,
)

pytestmark = pytest.mark.slow

# Takes any model: what vLLM would call no name of a model is refused before it is exported.
FAKE = {"engine": "fake", "method": ["ngram"], "k": [3], "requests": 8}
VLLM = {"engine": "vllm", "model": "org/model", "method": ["ngram"], "k": [3], "requests": 40, "tp": 2}
WORDS = st.lists(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12), max_size=5
)
# Stands where speclift would be and writes what it was called with.
STUB = '#!/bin/sh\nfor word in "$@"; do printf "%s\\0" "$word"; done > "$CALLED"\nexit "${CODE:-0}"\n'


def toml(values: dict[str, Any]) -> str:
    """JSON's texts, numbers and lists are TOML's, but for what is not ASCII and true and false."""
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())


def written(folder: Path, values: dict[str, Any] | None = None) -> Path:
    path = folder / "speclift.toml"
    path.write_text(toml(VLLM if values is None else values), encoding="utf-8")
    return path


def exported(
    cli: Cli, folder: Path, values: dict[str, Any] | None = None, *, to: str, **flags: str
) -> Result:
    words = [word for name, value in flags.items() for word in (f"--{name}", value)]
    return cli("export", written(folder, values), "--to", to, *words)


def text_of(cli: Cli, folder: Path, values: dict[str, Any] | None = None, *, to: str, **flags: str) -> str:
    result = exported(cli, folder, values, to=to, **flags)
    assert result.code == 0, result.stderr
    return result.stdout


def header_of(text: str) -> list[str]:
    """The directives as sbatch finds them: up to the first line that is no comment."""
    before = itertools.takewhile(lambda line: not line or line.startswith("#"), text.split("\n"))
    return [line for line in before if line.startswith("#SBATCH")]


def script_of(text: str) -> str:
    script = next(iter(yaml.safe_load_all(text)))["data"]["run.sh"]
    assert isinstance(script, str)
    return script


def called_by(script: str, folder: Path, *, shell: str = "sh", code: int = 0) -> tuple[list[str], int]:
    """What an exported script calls speclift with, and how the script ends when that ends with `code`."""
    stub, seen = folder / "bin" / "speclift", folder / "called"
    stub.parent.mkdir(exist_ok=True)
    stub.write_text(STUB)
    stub.chmod(0o755)
    environment = {
        "PATH": f"{stub.parent}:{os.environ['PATH']}",
        "HOME": str(folder),
        "CALLED": str(seen),
        "CODE": str(code),
    }
    ended = subprocess.run([shell, "-c", script], env=environment, cwd=folder, check=False, timeout=30)
    return seen.read_bytes().decode().split("\0")[:-1], ended.returncode


class TestWhatIsPublished:
    def test_the_kubernetes_job_is_one(self, cli: Cli, tmp_path: Path) -> None:
        script, job = yaml.safe_load_all(text_of(cli, tmp_path, to="kubernetes-job"))

        jsonschema.validate(script, CONFIG_MAP)
        jsonschema.validate(job, KUBERNETES_JOB)
        (container,) = job["spec"]["template"]["spec"]["containers"]
        assert container["resources"] == {"limits": {"nvidia.com/gpu": 2}}
        assert {"name": "cache", "mountPath": "/cache"} in container["volumeMounts"]
        assert {"name": "results", "mountPath": "/results"} in container["volumeMounts"]

    def test_the_ray_job_is_one(self, cli: Cli, tmp_path: Path) -> None:
        script, job = yaml.safe_load_all(text_of(cli, tmp_path, to="ray-job", nodes="3"))

        jsonschema.validate(script, CONFIG_MAP)
        jsonschema.validate(job, RAY_JOB)
        (workers,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
        assert workers["replicas"] == 3
        (container,) = workers["template"]["spec"]["containers"]
        assert container["resources"] == {"limits": {"nvidia.com/gpu": 2}}
        assert "--on ray" in script["data"]["run.sh"]

    def test_the_slurm_script_is_one(self, cli: Cli, tmp_path: Path) -> None:
        text = text_of(cli, tmp_path, to="slurm")

        assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
        lines = text.splitlines()
        directives = header_of(text)
        assert lines[0] == "#!/bin/bash"
        assert all(re.fullmatch(r"#SBATCH --[a-z-]+(=[A-Za-z0-9:@%._-]+)?", line) for line in directives)
        assert "#SBATCH --gpus-per-node=2" in directives

    @given(flags=WORDS, paths=WORDS, gpus=st.integers(0, 8), nodes=st.integers(1, 64), is_small=st.booleans())
    def test_whatever_the_study_asks_for(
        self, flags: list[str], paths: list[str], gpus: int, nodes: int, is_small: bool
    ) -> None:
        job = StudyJob(
            name=plain_name(f"speclift-{' '.join(paths)}"),
            verb="decide",
            flags=tuple(flags),
            resuming=(),
            study="mine",
            study_path="".join(paths),
            inputs=tuple(JobInput(path=path, key=f"input-{n}") for n, path in enumerate(paths)),
            are_inputs_small=is_small,
            nodes=nodes,
            gpus=gpus,
            image="".join(paths),
            limit_s=60.0,
            head=tuple(paths),
        )
        for text, schema in ((kubernetes_job_text(job), KUBERNETES_JOB), (ray_job_text(job), RAY_JOB)):
            script, document = yaml.safe_load_all(text)
            jsonschema.validate(script, CONFIG_MAP)
            jsonschema.validate(document, schema)
            assert script["data"]["run.sh"] == run_script(job)
        directives = header_of(slurm_text(job))
        assert all(re.fullmatch(r"#SBATCH --[a-z-]+(=[A-Za-z0-9:@%._-]+)?", line) for line in directives)


class TestTheScript:
    def test_calls_the_verb_with_what_the_file_says(self, cli: Cli, tmp_path: Path) -> None:
        words, code = called_by(script_of(text_of(cli, tmp_path, to="kubernetes-job", verb="tune")), tmp_path)

        assert words[:3] == ["tune", "--study", "/results/speclift-tune"]
        flags = "--engine vllm --model org/model --method ngram --k 3 --requests 40 --tp 2"
        assert words[3:] == flags.split()
        assert code == 0

    def test_goes_on_where_it_stopped(self, cli: Cli, tmp_path: Path) -> None:
        study = tmp_path / "studies" / "mine"
        study.mkdir(parents=True)
        text = text_of(cli, tmp_path, {**VLLM, "study": str(study), "budget": "5m"}, to="slurm")

        words, _ = called_by(text, tmp_path, shell="bash")

        assert words == ["decide", "--budget", "300s", "--resume", "--study", str(study)]

    @pytest.mark.parametrize("verdict", [3, 4, 5, 6])
    def test_a_verdict_is_no_failure(self, cli: Cli, tmp_path: Path, verdict: int) -> None:
        _, code = called_by(script_of(text_of(cli, tmp_path, to="kubernetes-job")), tmp_path, code=verdict)

        assert code == 0

    @pytest.mark.parametrize("failure", [1, 2, 130])
    def test_a_failure_is_one(self, cli: Cli, tmp_path: Path, failure: int) -> None:
        _, code = called_by(script_of(text_of(cli, tmp_path, to="kubernetes-job")), tmp_path, code=failure)

        assert code == failure

    def test_hands_on_the_signal_and_waits_for_the_end(self, cli: Cli, tmp_path: Path) -> None:
        stub = tmp_path / "speclift"
        stub.write_text(
            "#!/bin/sh\ntrap 'echo stopped; exit 130' TERM\necho up\nwhile :; do sleep 0.05; done\n"
        )
        stub.chmod(0o755)
        script = script_of(text_of(cli, tmp_path, to="kubernetes-job"))
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        with subprocess.Popen(
            ["sh", "-c", script], env=environment, stdout=subprocess.PIPE, text=True
        ) as job:
            assert job.stdout is not None
            assert job.stdout.readline() == "up\n"
            job.send_signal(signal.SIGTERM)
            assert job.stdout.readline() == "stopped\n"
            assert job.wait(timeout=30) == 130


class TestNamesAreData:
    @pytest.mark.parametrize("to", tuple(FORMATS))
    @pytest.mark.parametrize(
        "name",
        [
            "$(touch gone)",
            "`touch gone`",
            "a'b\"c\\d",
            "two\nlines\n#SBATCH --uid=0",
            "--dry-run",
            "key: [yaml, {",
            "${HOME} $$ %n",
            "ünïcode \u2028 \u202e",
            " ",
        ],
    )
    def test_a_model_is_called_whatever_it_is_called(
        self, cli: Cli, tmp_path: Path, name: str, to: str
    ) -> None:
        text = text_of(cli, tmp_path, {**FAKE, "model": name}, to=to)

        script, shell = (text, "bash") if to == "slurm" else (script_of(text), "sh")
        words, _ = called_by(script, tmp_path, shell=shell)
        value = f"--model={name}" if name.startswith("-") else name
        assert value in words
        assert not (tmp_path / "gone").exists()
        assert not any("--uid" in line for line in header_of(text))

    def test_so_is_a_study(self, cli: Cli, tmp_path: Path) -> None:
        name = "$(touch gone) 'a'\n#SBATCH --uid=0"
        values = {**VLLM, "study": str(tmp_path / name)}

        words, _ = called_by(text_of(cli, tmp_path, values, to="slurm"), tmp_path, shell="bash")
        job = list(yaml.safe_load_all(text_of(cli, tmp_path, values, to="kubernetes-job")))[1]

        assert words[2] == str(tmp_path / name)
        assert job["metadata"]["name"] == "speclift-decide-touch-gone-a-sbatch-uid"
        jsonschema.validate(job, KUBERNETES_JOB)


class TestFilesAndSecrets:
    def prompts(self, folder: Path, name: str, *, bytes_each: int = 10) -> Path:
        path = folder / name
        lines = [json.dumps({"prompt": f"secret plan {number} {'x' * bytes_each}"}) for number in range(20)]
        path.write_text("\n".join(lines))
        return path

    def test_prompts_are_mounted_and_not_told(self, cli: Cli, tmp_path: Path) -> None:
        path = self.prompts(tmp_path, "my $(prompts).jsonl")

        text = text_of(cli, tmp_path, {**VLLM, "prompts": str(path)}, to="kubernetes-job")

        assert "secret plan" not in text
        words, _ = called_by(script_of(text), tmp_path)
        assert words[words.index("--prompts") + 1] == "/inputs/input-0.jsonl"
        job = list(yaml.safe_load_all(text))[1]
        volumes = {volume["name"]: volume for volume in job["spec"]["template"]["spec"]["volumes"]}
        assert volumes["inputs"]["secret"] == {"secretName": "speclift-decide-inputs"}
        assert f"--from-file=input-0.jsonl={path}" in text

    def test_large_ones_lie_in_a_claim(self, cli: Cli, tmp_path: Path) -> None:
        path = self.prompts(tmp_path, "prompts.jsonl", bytes_each=60_000)

        text = text_of(cli, tmp_path, {**VLLM, "prompts": str(path)}, to="kubernetes-job")

        job = list(yaml.safe_load_all(text))[1]
        jsonschema.validate(job, KUBERNETES_JOB)
        volumes = {volume["name"]: volume for volume in job["spec"]["template"]["spec"]["volumes"]}
        assert volumes["inputs"]["persistentVolumeClaim"]["claimName"] == "speclift-decide-inputs"

    def test_a_key_is_named_and_wanted(self, cli: Cli, tmp_path: Path) -> None:
        values = {
            "engine": "attach",
            "baseline_url": "http://one:8000",
            "api_key_env": "MY_KEY",
            "requests": 5,
        }

        job = list(yaml.safe_load_all(text_of(cli, tmp_path, values, to="kubernetes-job")))[1]
        slurm = text_of(cli, tmp_path, values, to="slurm")

        (container,) = job["spec"]["template"]["spec"]["containers"]
        reference = {"name": "speclift-secrets", "key": "MY_KEY"}
        assert {"name": "MY_KEY", "valueFrom": {"secretKeyRef": reference}} in container["env"]
        assert ': "${MY_KEY:?' in slurm

    @pytest.mark.parametrize(
        "secret",
        [
            {"engine": "attach", "baseline_url": "http://user:hunter22@one:8000"},
            {"engine_arg": ["--api-key=hunter22"]},
            {"engine_arg": ["api-key=hunter22"]},
        ],
    )
    def test_a_value_is_refused_and_not_repeated(
        self, cli: Cli, tmp_path: Path, secret: dict[str, Any]
    ) -> None:
        result = exported(cli, tmp_path, {**VLLM, **secret}, to="slurm")

        assert result.code == 2
        assert "hunter22" not in result.stdout + result.stderr
        assert "holds a secret" in result.stderr


class TestWhatItCosts:
    def test_is_said_in_the_file_and_beside_it(self, cli: Cli, tmp_path: Path) -> None:
        result = exported(cli, tmp_path, {**VLLM, "budget": "30m"}, to="slurm")

        sentence = "It costs at most 0.50 node-hours (1.00 GPU-hours): its budget is 30 min 00 s."
        assert f"# {sentence}\n" in result.stdout
        assert sentence in result.stderr


class TestWrongUsage:
    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("--to", "slrum"), "Did you mean 'slurm'?"),
            (("--to", "kubernetes"), "Did you mean 'kubernetes-job'?"),
            (("--to", "slurm", "--verb", "decid"), "Did you mean 'decide'?"),
            (("--to", "slurm", "--nodes", "2"), "runs on one node"),
            (("--to", "slurm", "--arm", "ngram"), "--arm is for a study that was measured"),
        ],
    )
    def test_is_named(self, cli: Cli, tmp_path: Path, words: tuple[str, ...], said: str) -> None:
        result = cli("export", written(tmp_path), *words)

        assert result.code == 2
        assert said in result.stderr
