"""What the launcher does on machines that are not Linux on x86-64."""

import os
import shutil
import subprocess

import pytest

from tests import commands


@pytest.mark.parametrize("machine", ["Linux aarch64", "Darwin arm64"])
def test_the_lane_of_tffs_pins_is_refused_in_one_line(tmp_path, machine):
    system, architecture = machine.split()
    uname = tmp_path / "path" / "uname"
    uname.parent.mkdir()
    uname.write_text(
        f"#!/bin/sh\n[ $1 = -s ] && echo {system} || echo {architecture}\n"
    )
    uname.chmod(0o755)
    shutil.copytree(commands.ROOT / "bin", tmp_path / "bin")
    environment = {
        **os.environ,
        "PATH": f"{uname.parent}{os.pathsep}{os.environ['PATH']}",
        "TFF_REG_LANE": "tff_pins",
    }
    launched = subprocess.run(
        [tmp_path / "bin" / "launch", "-c", "pass"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert launched.returncode == 2
    (line,) = launched.stderr.splitlines()
    assert "TFF_REG_LANE=tff_pins needs Linux on x86-64" in line
    assert f"this is {system} on {architecture}" in line
    assert not list(tmp_path.glob(".venv*"))
