"""Ends Ray's processes and removes its folder when the driver has ended.

`python ray_watcher.py FOLDER SCRATCH` waits for the end of standard input, whose other
end the driver holds. FOLDER is Ray's folder; SCRATCH is the driver's own folder or "",
which a killed driver could not remove. Without this program, Ray's helper processes
would stay after a `kill -9` of the driver. Standard library only.
"""

import contextlib
import os
import pathlib
import shutil
import signal
import sys
import time

_PATIENCE_SECONDS = 30


def processes(folder: str, but: set[int]) -> list[int]:
    """Returns the processes that were started with a folder or have its files open."""
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        pid = int(process.name)
        if pid not in but and _has(process, folder):
            found.append(pid)
    return found


def _has(process: pathlib.Path, folder: str) -> bool:
    try:
        if folder.encode() in (process / "cmdline").read_bytes():
            return True
        for file in (process / "fd").iterdir():
            if os.readlink(file).startswith(folder):
                return True
    except OSError:  # It has ended meanwhile, or is somebody else's.
        pass
    return False


def main(folder: str, own: str) -> None:
    """Waits for the end of standard input, then ends the processes."""
    parent = os.getppid()
    sys.stdin.buffer.read()
    deadline = time.monotonic() + _PATIENCE_SECONDS
    none_found = 0
    # Looks twice: a process may just have been starting another process.
    while none_found < 2 and time.monotonic() < deadline:
        found = processes(folder, {os.getpid(), parent})
        none_found = 0 if found else none_found + 1
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
    shutil.rmtree(folder, ignore_errors=True)
    if own and os.getppid() != parent:
        shutil.rmtree(own, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
