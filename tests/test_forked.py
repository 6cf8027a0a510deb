"""Commands in forks: who reads how they ended."""

import os
import threading
import types

from tests import commands
from tff_reg.commands import forked


def test_the_temporary_folder_is_removed_after_those_in_it():
    program = """
from tff_reg.commands import forked
from tff_reg import scratch
scratch.use_own_folder()
import multiprocessing.util
print(multiprocessing.util.get_temp_dir())
"""
    done = commands.python(program)
    assert done.stdout and not done.stderr
    assert not os.path.exists(done.stdout.strip())


def test_forks_need_not_import_what_every_run_does():
    program = """
import sys
from tff_reg.commands import preloaded
print({*sys.modules} >= {
    "matplotlib.figure", "tff_reg.training.composition", "tensorboard.summary.v2"
})
"""
    assert commands.python(program).stdout == "True\n"


class Process:
    """A process as multiprocessing has it: each start reads how all others ended."""

    started: list = []
    readers: list = []

    def __init__(self, **_):
        self.sentinel, write = os.pipe()
        os.close(write)

    def start(self):
        assert not [each.exitcode for each in self.started if each.exitcode is None]
        self.started.append(self)

    @property
    def exitcode(self):
        second = threading.Thread(target=forked.Fork, args=((), {}, None))
        if not self.readers:
            self.readers.append(second)
            second.start()
            second.join(0.2)  # It ends within this time if nobody stops it.
        self.readers.append(threading.current_thread())
        return 3 if len(self.readers) == 2 else 255  # The second finds nothing.


def test_no_start_reads_how_a_fork_ended_while_another_thread_does(monkeypatch):
    context = types.SimpleNamespace(Process=Process, set_forkserver_preload=print)
    monkeypatch.setattr(forked, "_CONTEXT", context)
    assert forked.Fork((), {}, None).wait() == 3
    second, first, *others = Process.readers
    second.join()
    assert first is threading.current_thread() and {*others} <= {second}
