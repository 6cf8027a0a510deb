"""Set-up of all tests; runs before any of them imports TensorFlow.

Grappler's optimisations stay on, although the tests would start faster without: what
is tested should be what runs.
"""

import contextlib
import gc
import os
import pathlib
import signal
import tempfile

import pytest

from tff_reg import lazy, quiet, scratch
from tff_reg.lazy import tff

context = lazy.module("tff_reg.runtime.context")
workers = lazy.module("tff_reg.runtime.workers")
devices = lazy.module("tff_reg.runtime.devices")

quiet.silence()
# `tf.keras` is Keras 2 here; Keras 3 is tested as `keras`.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

# What tests write, and processes that they start, kill and do not wait for, is in one
# folder that goes with the tests. `--basetemp=DIR` keeps the tests' own files.
scratch.use_own_folder()
os.environ["TMPDIR"] = tempfile.gettempdir()
os.environ.setdefault("MPLCONFIGDIR", tempfile.gettempdir())

# A shell starts what runs in the background with Ctrl-C ignored; what the tests start
# would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests are small, and processes share the cores; starting threads costs more than
# they save. Code that sets thread counts itself is not affected.
for _name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
    os.environ.setdefault(_name, str(max(1, min(4, (os.cpu_count() or 1) // 2))))


# Graphs are many objects that live long, among which little garbage is found.
gc.set_threshold(50_000, 10, 10)


def pytest_addoption(parser):
    parser.addoption(
        "--slow",
        action="store_true",
        help="also run what is marked as slow: what is long by nature",
    )
    parser.addoption(
        "--gpu",
        action="store_true",
        help="clients on the first GPU; without a worker of TFF",
    )
    parser.addoption(
        "--strict-golden",
        action="store_true",
        help="fail where a golden file has what the tests do not compare",
    )


def pytest_configure(config):
    # Of our own files everything is compared.
    if config.getoption("--strict-golden") or not os.environ.get("TFF_REG_GOLDEN"):
        config.addinivalue_line("filterwarnings", "error:not compared:UserWarning")
    if config.getoption("--gpu"):  # As in a run.
        if not devices.are_gpus(None):
            why = "TensorFlow sees no GPU, so nothing is tested: see nvidia-smi and"
            pytest.exit(f"{why} TFF_REG_GPU=1, which installs CUDA's libraries.", 2)
        devices.resolve(None, require_gpu=False)
        devices.set_arithmetic(deterministic=True, tf32=False)


@pytest.hookimpl(tryfirst=True)  # Before pytest-xdist looks at the groups.
def pytest_collection_modifyitems(config, items):
    """Leaves out what is long by nature, unless it is asked for.

    Whoever names a folder of golden files asks for all that replays them.
    """
    _share_out(items)
    if config.getoption("--slow"):
        return
    own_golden_files = os.environ.get("TFF_REG_GOLDEN")
    chosen, slow = [], []
    for item in items:
        is_asked_for = own_golden_files and item.get_closest_marker("golden")
        is_slow = item.get_closest_marker("slow") and not is_asked_for
        (slow if is_slow else chosen).append(item)
    config.hook.pytest_deselected(items=slow)
    items[:] = chosen


def _share_out(items):
    """Groups the tests that one process runs, and puts first what takes longest.

    Those of a file share fixtures, those of a method its process. What shares less
    says so itself.
    """
    for item in items:
        if item.get_closest_marker("xdist_group"):
            continue
        group = item.path.stem
        if group in ("test_every_method", "test_compiled_steps"):
            of = getattr(item, "callspec", None)
            group = of.params["name"] if of else group
        item.add_marker(pytest.mark.xdist_group(group))
    # The commands' tests, which wait for processes.
    items.sort(key=lambda item: item.path.parent != pathlib.Path(__file__).parent)


@pytest.fixture(scope="session")
def contexts(pytestconfig):
    """`contexts(kind)`: inside, computations run in process or in TFF's own context."""
    is_gpu = pytestconfig.getoption("--gpu")
    names = ["GPU:0" if is_gpu else "CPU:0"]
    client_workers = {
        "in_process": workers.ClientWorkers(names, 1),
        "two_at_a_time": workers.ClientWorkers(names, 2),
    }
    known = {
        name: context.InProcessContext(found) for name, found in client_workers.items()
    }

    @contextlib.contextmanager
    def install(kind):
        if kind not in known and is_gpu:
            pytest.skip("TFF's worker does not use a GPU")
        if kind not in known:
            # With plain sums in the place of secure ones. Its C++ worker ends with it.
            known["tff"] = tff.backends.test.create_sync_test_cpp_execution_context()
        with tff.framework.get_context_stack().install(known[kind]):
            yield

    yield install
    known.clear()
    gc.collect()
    for found in client_workers.values():
        found.stop()


@pytest.fixture
def in_process(contexts):
    with contexts("in_process"):
        yield


@pytest.fixture(scope="module")
def both(contexts):
    """`both(call)`: what `call()` gives in TFF's own context, and in process."""

    def run(call):
        with contexts("tff"):
            theirs = call()
        with contexts("in_process"):
            ours = call()
        return theirs, ours

    return run
