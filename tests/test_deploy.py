"""What deploy/ has, as far as it can be read without Docker, Kubernetes and SLURM."""

import os
import pathlib
import re
import subprocess

import pytest
import yaml
from absl import flags

from tff_reg.commands import command_line

ROOT = pathlib.Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
TEXTS = {path.name: path.read_text() for path in DEPLOY.iterdir()}


def _manifests():
    return list(yaml.safe_load_all(TEXTS["kuberay.yaml"]))


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.cuda"])
def test_files_that_images_copy_exist(name):
    lines = re.sub(r"\\\n", " ", TEXTS[name]).splitlines()
    lines = [line for line in lines if line.strip() and not line.startswith("#")]
    words = [line.split() for line in lines]
    known = {"FROM", "RUN", "WORKDIR", "COPY", "ENV", "USER", "ENTRYPOINT", "CMD"}
    assert {word for word, *_ in words} <= known
    copied = [
        each for word, *sources in words if word == "COPY" for each in sources[:-1]
    ]
    for source in copied:
        assert list(ROOT.glob(source)), source
    # The other is made from the first.
    assert name != "Dockerfile" or {"uv.lock", "bin"} <= {*copied}


def test_the_manifests_are_of_one_cluster():
    cluster, job, claim, policy = _manifests()
    assert cluster["kind"] == "RayCluster"
    lock = (ROOT / "uv.lock").read_text()
    assert f'name = "ray"\nversion = "{cluster["spec"]["rayVersion"]}"\n' in lock
    label = {"ray.io/cluster": cluster["metadata"]["name"]}
    pod = job["spec"]["template"]
    assert pod["metadata"]["labels"] == label
    assert policy["spec"]["podSelector"]["matchLabels"] == label
    (container,) = pod["spec"]["containers"]
    assert f"{cluster['metadata']['name']}-head-svc:6379" in container["args"][0]
    names = {
        volume["persistentVolumeClaim"]["claimName"]
        for volume in pod["spec"]["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert names == {claim["metadata"]["name"]}


def test_runs_have_flags_that_exist():
    (job,) = (each for each in _manifests() if each["kind"] == "Job")
    texts = [
        *TEXTS.values(),
        job["spec"]["template"]["spec"]["containers"][0]["args"][0],
    ]
    runs = [
        run
        for text in texts
        for run in re.findall(r"(?:bin/|commands |tff_reg )run (--.*)", text)
    ]
    assert len(runs) >= 3
    for run in runs:
        given = flags.FlagValues()
        command_line.define_flags(given)
        words = [word for word in run.split() if "=" in word and "$" not in word]
        assert words or "$" in run
        command_line.parse(words, given, "bin/run")


def test_an_array_job_runs_its_line(tmp_path):
    (tmp_path / "runs.txt").write_text("env A=1 echo one\nenv A=2 sh -c 'echo $A $0'\n")
    done = subprocess.run(
        ["bash", DEPLOY / "slurm.sh", tmp_path / "runs.txt"],
        env={"PATH": os.environ["PATH"], "SLURM_ARRAY_TASK_ID": "2"},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("2 sh\n", "")
