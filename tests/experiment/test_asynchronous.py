import asyncio
import gc
import inspect
import signal
import threading

import pytest
import tensorflow_federated as tff

from tests.experiment.finished import Wrapped, results
from tff_reg import experiment, runtime
from tff_reg.experiment.rounds import progress

SECONDS = 60


@pytest.fixture(scope="module", autouse=True)
def in_process():
    """Not TFF's own default, whose worker may outlive the tests."""
    with runtime.running("in_process"):
        yield


@pytest.fixture
def arguments(tiny_process, tiny_evaluation, tiny_data, no_pictures):
    return dict(
        process=tiny_process,
        client_data=tiny_data,
        total_rounds=6,
        clients_per_round=3,
        evaluate=tiny_evaluation,
        progress=progress.Silence(),
        settings={"process": "fedavg", "task": "tiny"},
    )


@pytest.fixture
def unbroken(arguments, tmp_path):
    experiment.train(**arguments, output_dir=tmp_path / "unbroken")
    return results(tmp_path / "unbroken")


def test_takes_the_arguments_of_train():
    wanted = inspect.signature(experiment.Training)
    for function in (experiment.train, experiment.train_async):
        assert inspect.signature(function) == wanted


def test_the_results_are_those_of_train(arguments, unbroken, tmp_path):
    result = asyncio.run(experiment.train_async(**arguments, output_dir=tmp_path / "a"))
    assert results(tmp_path / "a") == unbroken
    assert [row["round_num"] for row in result.rows] == [1, 2, 3, 4, 5, 6]


def test_the_event_loop_goes_on_during_a_round(arguments, tiny_process):
    ticked = threading.Event()

    def wait_for_the_loop(round_num):
        ticked.clear()
        assert ticked.wait(SECONDS), "the event loop stood still"

    async def tick():
        while True:
            await asyncio.sleep(0.001)
            ticked.set()

    async def main():
        ticker = asyncio.create_task(tick())
        process = Wrapped(tiny_process, wait_for_the_loop)
        result = await experiment.train_async(**{**arguments, "process": process})
        ticker.cancel()
        return result

    assert len(asyncio.run(main()).rows) == 6


def test_two_trainings_share_a_loop(arguments):
    async def main():
        return await asyncio.gather(
            *(
                experiment.train_async(**{**arguments, "total_rounds": 2, "seed": seed})
                for seed in (1, 2)
            )
        )

    for seed, together in zip((1, 2), asyncio.run(main())):
        alone = experiment.train(**{**arguments, "total_rounds": 2, "seed": seed})
        assert [row["training/loss"] for row in together.rows] == [
            row["training/loss"] for row in alone.rows
        ]


def test_on_round_is_called_on_the_loops_thread_and_awaited(arguments):
    seen, open_calls = [], []

    async def on_round(row):
        open_calls.append(row["round_num"])
        await asyncio.sleep(0)
        assert asyncio.get_running_loop() and len(open_calls) == 1
        open_calls.clear()
        seen.append((threading.current_thread(), row))

    result = asyncio.run(experiment.train_async(**arguments, on_round=on_round))
    assert {thread for thread, _ in seen} == {threading.main_thread()}
    assert [row for _, row in seen] == result.rows
    plain = []
    asyncio.run(experiment.train_async(**arguments, on_round=plain.append))
    assert len(plain) == 6


@pytest.mark.parametrize("rounds_per_checkpoint", [1, 4])
def test_a_cancelled_run_ends_its_round_and_continues_to_the_same_bytes(
    arguments, tiny_process, unbroken, tmp_path, rounds_per_checkpoint
):
    arguments.update(
        output_dir=tmp_path / "a", rounds_per_checkpoint=rounds_per_checkpoint
    )
    release = threading.Event()

    async def main():
        loop = asyncio.get_running_loop()
        in_round_3 = asyncio.Event()

        def before_round(round_num):
            if round_num == 3:
                loop.call_soon_threadsafe(in_round_3.set)
                assert release.wait(SECONDS)

        process = Wrapped(tiny_process, before_round)
        task = asyncio.create_task(
            experiment.train_async(**{**arguments, "process": process})
        )
        await in_round_3.wait()
        # Impatience changes nothing.
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0.01)
        assert not task.done()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        # At once, on the same loop.
        seen = []
        await experiment.train_async(**arguments, on_round=seen.append)
        return seen

    tail = len(arguments["client_data"].asked)
    seen = asyncio.run(main())
    assert [row["round_num"] for row in seen] == [1, 2, 3, 4, 5, 6]
    # Three clients a round, and no round was done twice.
    assert len(arguments["client_data"].asked) - tail == 6 * 3
    assert results(tmp_path / "a") == unbroken


def test_cancelled_between_two_rounds_it_ends_at_once(arguments, unbroken, tmp_path):
    arguments["output_dir"] = tmp_path / "a"

    async def main():
        waiting = asyncio.Event()

        async def on_round(row):
            if row["round_num"] == 2:
                waiting.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(
            experiment.train_async(**arguments, on_round=on_round)
        )
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert not (tmp_path / "a" / "summary.json").exists()
    asyncio.run(experiment.train_async(**arguments))
    assert results(tmp_path / "a") == unbroken


def test_a_failing_round_is_named_and_the_run_continues(
    arguments, tiny_process, unbroken, tmp_path
):
    arguments["output_dir"] = tmp_path / "a"

    def fail(round_num):
        if round_num == 3:
            raise RuntimeError("no memory")

    process = Wrapped(tiny_process, fail)
    with pytest.raises(experiment.TrainingError) as caught:
        asyncio.run(experiment.train_async(**{**arguments, "process": process}))
    assert str(caught.value) == "Round 3 failed: RuntimeError: no memory"
    asyncio.run(experiment.train_async(**arguments))
    assert results(tmp_path / "a") == unbroken


def test_a_round_that_fails_after_the_cancellation_leaves_no_complaint(
    arguments, tiny_process
):
    complaints = []

    async def main():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        in_round, release = asyncio.Event(), threading.Event()

        def fail(round_num):
            loop.call_soon_threadsafe(in_round.set)
            assert release.wait(SECONDS)
            raise RuntimeError("no memory")

        process = Wrapped(tiny_process, fail)
        task = asyncio.create_task(
            experiment.train_async(**{**arguments, "process": process})
        )
        await in_round.wait()
        task.cancel()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        del task
        gc.collect()

    asyncio.run(main())
    assert not complaints


@pytest.mark.parametrize(
    "is_coroutine, error",
    [(False, LookupError), (True, LookupError), (True, KeyboardInterrupt)],
)
def test_what_on_round_raises_ends_the_run_resumably(
    arguments, unbroken, tmp_path, is_coroutine, error
):
    arguments["output_dir"] = tmp_path / "a"

    def raises(row):
        if row["round_num"] == 4:
            if error is KeyboardInterrupt:
                signal.raise_signal(signal.SIGINT)
            raise LookupError("the plot is gone")

    async def raises_later(row):
        raises(row)

    on_round = raises_later if is_coroutine else raises
    with pytest.raises(
        error, match="the plot is gone" if error is LookupError else None
    ):
        asyncio.run(experiment.train_async(**arguments, on_round=on_round))
    asyncio.run(experiment.train_async(**arguments))
    assert results(tmp_path / "a") == unbroken


def test_computes_in_the_context_of_the_caller(arguments):
    class Counting(tff.framework.SyncContext):
        def __init__(self, context):
            self._context = context
            self.threads = []

        def invoke(self, comp, arg):
            self.threads.append(threading.current_thread())
            return self._context.invoke(comp, arg)

    stack = tff.framework.get_context_stack()
    counting = Counting(stack.current)
    with stack.install(counting):
        asyncio.run(experiment.train_async(**{**arguments, "total_rounds": 2}))
    # `initialize`, two rounds; all of them beside the loop.
    assert len(counting.threads) >= 3
    assert threading.main_thread() not in counting.threads


def test_arguments_that_make_no_run_are_refused(arguments, tiny_process, tiny_data):
    with pytest.raises(ValueError, match="total_rounds is 0"):
        asyncio.run(experiment.train_async(**{**arguments, "total_rounds": 0}))
    with pytest.raises(TypeError, match="total_rounds"):
        asyncio.run(experiment.train_async(tiny_process, tiny_data))
    with pytest.raises(TypeError, match="rounds"):
        asyncio.run(experiment.train_async(tiny_process, tiny_data, rounds=1))
