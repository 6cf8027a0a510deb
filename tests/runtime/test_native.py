"""The C++ worker ends when we end, and says nothing on our pipes."""

import os
import select
import signal
import socket
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import tensorflow as tf

from tff_reg.lazy import tff
from tff_reg.runtime import native, worker_process

_SCRIPT = textwrap.dedent("""
    import signal, sys
    from tff_reg import quiet, runtime
    quiet.silence()
    runtime.use("native")
    import tensorflow as tf
    tf.get_logger().warning("a remark")
    import numpy as np
    import tensorflow_federated as tff
    assert tff.tensorflow.computation(lambda x: x + 1, np.int32)(1) == 2
    print(runtime.worker_pid(), flush=True)
    if sys.argv[1] == "wait":
        signal.pause()
""")


def _start(mode):
    # As where nobody has set how loud the libraries are.
    loudness = ("TF_CPP_MIN_LOG_LEVEL", "GRPC_VERBOSITY")
    return subprocess.Popen(
        [sys.executable, "-c", _SCRIPT, mode],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={k: v for k, v in os.environ.items() if k not in loudness},
    )


def _ends(pid):
    """Waits until there is no process `pid`, if there is one."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        # It can be read once the process has ended.
        return bool(select.select([watched], [], [], 240)[0])
    finally:
        os.close(watched)


# Each day a whole command is killed (tests/test_no_process_is_left.py).
@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
@pytest.mark.parametrize(
    # Python does as little about SIGTERM as it can do about SIGKILL.
    "number",
    [signal.SIGKILL, signal.SIGINT],
    ids=lambda number: number.name,
)
def test_the_worker_ends_when_python_is_killed(number):
    process = _start("wait")
    try:
        worker = int(process.stdout.readline())
        os.kill(worker, 0)  # It is there.
        process.send_signal(number)
        # The pipes close too, although the worker would outlive Python otherwise.
        process.communicate()
        assert _ends(worker)
    finally:
        process.kill()


def test_the_worker_is_reached_from_this_machine_only():
    worker = native.Worker()
    try:
        assert worker.stub().is_ready
        interfaces = [
            its.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16)
            for its in worker_process.listening(worker.pid)
        ]
        assert interfaces == [b"lo\0"]
        # It still works.
        with tff.framework.get_context_stack().install(native.create_context(worker)):
            assert tff.tensorflow.computation(lambda x: x + 1, np.int32)(1) == 2
    finally:
        worker.stop()


@pytest.mark.skipif(
    not hasattr(tf.raw_ops, "FFTND"), reason="this TensorFlow is the worker's own"
)
def test_what_only_a_later_tensorflow_knows_is_said_in_one_sentence():
    @tff.tensorflow.computation(tff.TensorType(np.complex64, [2, 2]))
    def transform(x):
        return tf.raw_ops.FFTND(input=x, fft_length=[2, 2], axes=[0, 1])

    worker = native.Worker()
    context = native.create_context(worker)
    try:
        with pytest.raises(worker_process.WorkerError) as caught:
            context.invoke(transform, np.ones([2, 2], np.complex64))
    finally:
        context.close()
        worker.stop()
    assert str(caught.value).startswith("Op type not registered 'FFTND': TFF's C++")
    assert "\n" not in str(caught.value)


def test_an_ordinary_end_is_silent_and_ends_the_worker():
    process = _start("end")
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert err == ""
    assert _ends(int(out))
