"""What deploy/ has, as far as it can be read without Docker, Kubernetes and SLURM."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import textwrap
import time

import pytest
import yaml

from tff_reg.commands import command_line
from tff_reg.lazy import flags

ROOT = pathlib.Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
TEXTS = {path.name: path.read_text() for path in DEPLOY.iterdir()}


def _manifests():
    return list(yaml.safe_load_all(TEXTS["kuberay.yaml"]))


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.cuda"])
def test_what_an_image_copies_is_there(name):
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
    assert len(runs) >= 4
    for run in runs:
        given = flags.FlagValues()
        command_line.define_flags(given)
        words = [word for word in run.split() if "=" in word and "$" not in word]
        assert words or "$" in run
        command_line.parse(words, given)


class Allocation:
    """Two nodes of a SLURM, as far as the script needs them; both are this machine."""

    # FAILS: "head" or "workers", whose srun fails; "answers" for a silent head.
    _FILES = {
        "path/scontrol": "[ $1 = show ] && printf 'node1\\nnode2\\n'",
        "path/srun": """
            echo "srun $*" >>log
            while [[ $1 = -* ]]; do shift; done
            case "$FAILS $*" in
              head*--head*) echo "no such partition" >&2; exit 3 ;;
              workers*--address*) sleep 0.5; exit 4 ;;
            esac
            exec "$@"
            """,
        ".venv/bin/ray": """
            folder=/tmp/ray-$SLURM_JOB_ID
            case "$*" in
              health-check*) [ "$FAILS" != answers ] && [ -d "$folder" ] ;;
              *--head*) mkdir "$folder"; exec sleep 100 ;;
              *) exec sleep 100 ;;
            esac
            """,
        "bin/run": """
            trap 'echo "run stopped" >>log; exit 143' TERM
            echo "run $*" >>log
            for _ in $(seq ${RUN_SECONDS}0); do sleep 0.1; done
            exit 7
            """,
    }

    def __init__(self, folder, fails="", run_seconds=0):
        for name, text in self._FILES.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("#!/bin/bash\n" + textwrap.dedent(text))
            path.chmod(0o755)
        self._log = folder / "log"
        number = 10**8 + os.getpid()
        self.ray_folder = pathlib.Path(f"/tmp/ray-{number}")
        self.process = subprocess.Popen(
            ["bash", DEPLOY / "slurm.sh", "--process=fedavg"],
            env={
                "PATH": f"{folder / 'path'}:{os.environ['PATH']}",
                "SLURM_SUBMIT_DIR": str(folder),
                "SLURM_JOB_ID": str(number),
                "SLURM_JOB_NODELIST": "node[1-2]",
                "SLURM_JOB_NUM_NODES": "2",
                "SLURM_CPUS_PER_TASK": "8",
                "RAY_START_SECONDS": "2",
                "RUN_SECONDS": str(run_seconds),
                "FAILS": fails,
            },
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def log(self):
        return self._log.read_text().splitlines() if self._log.exists() else []

    def end(self):
        """Its status and errors; checks that nothing of it is left."""
        try:
            _, errors = self.process.communicate(timeout=20)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
                pytest.fail("It left processes, or had not ended.")
        assert not self.ray_folder.exists()
        steps = [line for line in self.log() if line.startswith("srun")]
        assert all("--cpus-per-task=8 " in step for step in steps)
        return self.process.returncode, errors


@pytest.mark.parametrize(
    "fails, status, says",
    [
        ("", 7, ""),  # The run's own.
        ("head", 1, "srun could not start Ray's head on node1"),
        ("answers", 1, "Ray's head on node1 does not answer"),
        ("workers", 1, "an srun of Ray's ended with status 4"),
    ],
)
def test_a_slurm_job_ends_with_its_run_or_where_ray_cannot_be(
    fails, status, says, tmp_path
):
    job = Allocation(tmp_path, fails, run_seconds=100 if fails else 1)
    found, errors = job.end()
    assert (found, says in errors, bool(errors)) == (status, True, bool(says))
    runs = [line for line in job.log() if line.startswith("run")]
    started = [line for line in runs if "--ray_address=node1:" in line]
    assert len(started) == (fails in ("", "workers"))
    assert ("run stopped" in runs) == (fails == "workers")


def test_a_slurm_job_whose_time_is_over_stops_its_run(tmp_path):
    job = Allocation(tmp_path, run_seconds=100)
    while not any(line.startswith("run --runtime=ray") for line in job.log()):
        assert job.process.poll() is None
        time.sleep(0.1)
    job.process.terminate()
    assert job.end() == (143, "")
    assert job.log()[-2] == "run stopped"
