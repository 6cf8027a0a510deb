"""Fetches uv for bin/launch: fetch_uv.py UV_LOCK TARGET. Standard library only.

The lock names the version and the hash of the file. pip gets it where there is a pip,
which then knows the mirror and the certificates that it is set to; else it comes from
the address in the lock.
"""

import hashlib
import io
import os
import platform
import re
import signal
import ssl
import subprocess
import sys
import tempfile
import urllib.request
import zipfile

_TAGS = {
    ("Linux", "x86_64"): "manylinux_2_17_x86_64",
    ("Linux", "aarch64"): "manylinux_2_17_aarch64",
    ("Darwin", "arm64"): "macosx_11_0_arm64",
}


def fetch(lock: str, target: str) -> None:
    """Writes uv's program to `target`."""
    with open(lock, encoding="utf-8") as file:
        text = file.read()
    tag = _TAGS[platform.system(), platform.machine()]
    found = re.search(rf'"([^"]*/uv-([\d.]+)-py3-none-{tag}[^"]*\.whl)"', text)
    if found is None:
        sys.exit(f"error: {lock} names no uv for {tag}; restore it with git")
    address, version = found.groups()
    digests = re.findall(rf'/uv-{re.escape(version)}-.*hash = "sha256:(\w+)"', text)
    content = _from_pip(version) or _from(address)
    if hashlib.sha256(content).hexdigest() not in digests:
        sys.exit(f"error: hash mismatch for uv {version}")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        program = archive.read(f"uv-{version}.data/scripts/uv")
    folder = os.path.dirname(target)
    os.makedirs(folder, exist_ok=True)
    # Under a name of its own, as both lanes may fetch at the same time.
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
        file.write(program)
    os.chmod(file.name, 0o755)
    os.replace(file.name, target)


def _from_pip(version: str) -> bytes:
    """The file as pip downloads it; nothing if there is no pip or it fails."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
        command += ["--only-binary=:all:", f"--dest={folder}", f"uv=={version}"]
        if subprocess.run(command, check=False).returncode == 0:
            for name in os.listdir(folder):
                with open(os.path.join(folder, name), "rb") as file:
                    return file.read()
    return b""


def _from(address: str) -> bytes:
    # The hash says whether it is the right file; a bare system has no certificates.
    context = ssl._create_unverified_context()
    try:
        with urllib.request.urlopen(address, timeout=60, context=context) as answer:
            return answer.read()
    except OSError as error:
        sys.exit(f"error: failed to fetch {address}: {error}")


if __name__ == "__main__":
    # What bin/launch sends when it is interrupted; pip and its files go, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    fetch(*sys.argv[1:])
