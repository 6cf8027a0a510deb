"""Both runtimes, started once for all tests of this folder."""

import contextlib

import pytest

from tff_reg.lazy import tff


@pytest.fixture(scope="session")
def contexts():
    """`contexts(kind)`: inside, computations run in process or in the worker."""
    from tff_reg.runtime import context
    from tff_reg.runtime import native
    from tff_reg.runtime import workers

    client_workers = {
        "in_process": workers.ClientWorkers(["CPU:0"], 1),
        "two_at_a_time": workers.ClientWorkers(["CPU:0"], 2),
    }
    worker = native.Worker()
    known = {
        name: context.InProcessContext(found) for name, found in client_workers.items()
    }
    known["native"] = native.create_context(worker)

    @contextlib.contextmanager
    def install(kind):
        with tff.framework.get_context_stack().install(known[kind]):
            yield

    yield install
    known["native"].close()
    worker.stop()
    for found in client_workers.values():
        found.stop()


@pytest.fixture
def in_process(contexts):
    with contexts("in_process"):
        yield


@pytest.fixture(scope="module")
def both(contexts):
    """`both(call)`: what `call()` gives natively, and what it gives in process."""

    def run(call):
        with contexts("native"):
            native = call()
        with contexts("in_process"):
            ours = call()
        return native, ours

    return run
