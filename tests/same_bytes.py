"""Digests of what a checkout makes, to be compared before and after a redesign.

    bin/launch tests/same_bytes.py FOLDER [PART ...]

Runs the checkout's commands and writes FOLDER/digests.txt: a line for each file of
weights, table and report, without times, versions and paths. Two checkouts that make
the same have equal files, on one machine with nothing else changed.
"""

import hashlib
import itertools
import json
import pathlib
import re
import subprocess
import sys
from typing import Any

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_SUMS = """fedprox+man fedsam+scaffold fedalign+feddyn moon+fedntd fedmlb+fedprox
feduv+fedcm univarfl+fedadam kd+fedexp fedasam+fedavgm fedgkd+stochdepth mixup+fedacg
fedlc+feddc gradaug+fedprox fitnet+fedyogi feddecorr+fednova fedvls+fedinit
fedswa+fedprox fedrs+fedspeed asd+fedadagrad fedsol+fedlc"""
_WHOLE = [
    "--num_clients=6",
    "--clients_per_round=3",
    "--local_epochs=1",
    "--model=cnn",
    "--task=digits",
]
_SHORT = [*_WHOLE, "--total_rounds=2", "--scale=0.1"]
_CLIENTS = "--client_evaluation --client_test_share=0.2 --finetune_epochs=1"
_PARTS = {
    "main": [["run", "--process=fedalign"]],
    "methods": [["compare", "--processes=all", *_SHORT, "--seeds=3,"]],
    "sums": [["compare", f"--processes={','.join(_SUMS.split())}", *_SHORT]],
    "resumed": [
        ["run", "--process=feddyn+moon", *_WHOLE, "--total_rounds=2"],
        ["run", "--process=feddyn+moon", *_WHOLE, "--total_rounds=4"],
    ],
    "tables": [
        ["compare", "--processes=fedavg,man,central", *_SHORT, "--seeds=3"]
        + [*_CLIENTS.split(), "--targets=0.2,0.3"]
        + ["--columns=score,best,clients_mean,finetuned_worst,rounds,params"],
        ["compare", "--processes=fedavg,fedprox", *_SHORT, "--seeds=2", "--drift"]
        + ["--settings=concentration=0.1,0.3;batch_size=8,16"]
        + ["--columns=score,trace,params"],
        ["compare", "--processes=fedavg,fedprox", *_SHORT, "--seeds=1"]
        + ["--grid=fedprox_strength=0.001,0.1;client_learning_rate=0.03,0.1"],
    ],
    "papers": [
        ["reproduce", "fedmlb/table4", "--scale=tiny", "--synthetic_data"],
        ["reproduce", "fedalign/table1", "--scale=tiny", "--synthetic_data"],
    ],
    "recipes": [],
}
_RECIPES = """
import json, sys
from tff_reg.tasks import recipes
keys = "name row column settings beneath published measure notes".split()
found = [{k: getattr(r, k) for k in keys} for r in recipes.recipes()]
with open(sys.argv[1], "w") as file:
    json.dump(found, file, indent=0, sort_keys=True, default=lambda o: list(o))
"""
# Times, what differs between two machines, and where it ran.
_VOLATILE = re.compile(
    r"second|_at$|made_by|version|machine|digest_of_evaluate|digests?_of_code|time|"
    r"output_dir|peak_|commit|code"
)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items() if not _VOLATILE.search(k)}
    return [_plain(v) for v in value] if isinstance(value, list) else value


def _without_times(text: str) -> str:
    text = re.sub(r"data:image/[^\"')]*", "IMAGE", text)
    text = re.sub(r"/tmp/[^\s\"'<]*", "PATH", text)
    return re.sub(r"\d[\d.,:]* ?(s|seconds?|min|minutes?|MB)\b", "TIME", text)


def _csv(text: str) -> str:
    rows = [line.split(",") for line in text.splitlines()]
    kept = [not _VOLATILE.search(head) for head in rows[0]] if rows else []
    return "\n".join(",".join(itertools.compress(row, kept)) for row in rows)


def _content(path: pathlib.Path) -> bytes | None:
    if path.suffix in (".npz", ".txt"):
        return path.read_bytes()
    if path.suffix == ".json":
        return json.dumps(_plain(json.loads(path.read_text())), sort_keys=True).encode()
    if path.suffix == ".csv":
        return _csv(path.read_text()).encode()
    if path.suffix in (".md", ".tex", ".html"):
        return _without_times(path.read_text()).encode()
    return None


def main(folder: str, *parts: str) -> None:
    """Runs the parts, or all, and writes what they made."""
    made = pathlib.Path(folder)
    lines = []
    for part in parts or _PARTS:
        for number, (command, *flags) in enumerate(_PARTS[part]):
            place = made / part / ("0" if part == "resumed" else str(number))
            line = [f"bin/{command}", *flags, f"--output_dir={place}"]
            done = subprocess.run(line, cwd=_ROOT, capture_output=True, text=True)
            lines.append(f"{part} {number} exit {done.returncode}")
            made.mkdir(parents=True, exist_ok=True)
            (made / f"{part}{number}.log").write_text(done.stdout + done.stderr)
        if part == "recipes":
            (made / part).mkdir(parents=True, exist_ok=True)
            line = ["bin/launch", "-c", _RECIPES, str(made / part / "recipes.txt")]
            subprocess.run(line, cwd=_ROOT, check=True)
        for path in sorted((made / part).rglob("*")):
            content = _content(path) if path.is_file() else None
            if content is not None and "checkpoints" not in path.parts:
                text = hashlib.sha256(content).hexdigest()[:16]
                lines.append(f"{path.relative_to(made)} {text}")
    (made / "digests.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
