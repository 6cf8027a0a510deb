"""Training beside other work of an event loop, such as a notebook's or web service's.

The rounds run in their own thread, one call at a time: begin, a round, another, finish.
Between two calls the event loop gets the row of the round and decides what happens
next, so errors are raised in the task that awaits the training.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import functools
import inspect
from collections.abc import Callable
from typing import Any

from tff_reg import runtime
from tff_reg.experiment.rounds import loop
from tff_reg.experiment.rounds.loop import RunResult
from tff_reg.experiment.rounds.training import Training, with_arguments_of
from tff_reg.lazy import tff


@with_arguments_of(Training)
async def train_async(training: Training) -> RunResult:
    """Does what `train` does without blocking the event loop.

        result = await experiment.train_async(
            process, client_data, total_rounds=20, clients_per_round=4)

    The arguments are the attributes of `Training`. `on_round` is called on the event
    loop's thread, and awaited if it returns an awaitable, before the next round begins;
    callbacks are called on the thread of the rounds.

    If cancelled (`task.cancel()`, Ctrl-C under `asyncio.run`, a notebook's interrupt),
    the training finishes the current round, which cannot be cut short, commits it,
    releases `output_dir` and ends. The same call again resumes. TFF's context is the
    caller's.

    Returns:
      The result.

    Raises:
      TypeError, ValueError, DirectoryError, StateMismatchError, TrainingError: As for
        `train`.
    """
    return await finish(training)


async def finish(training: Training) -> RunResult:
    """Runs the rounds as `train_async` does."""
    rounds = loop.Rounds(training)
    with runtime.outside_programs():
        context = tff.framework.get_context_stack().current
    with concurrent.futures.ThreadPoolExecutor(
        1,
        thread_name_prefix="tff_reg train_async",
        # TFF's contexts are thread-local.
        initializer=tff.framework.set_default_context,
        initargs=(context,),
    ) as executor:
        rows = rounds.rows()
        try:
            while (row := await _call(executor, next, rows, None)) is not None:
                if training.on_round is not None:
                    returned = training.on_round(row)
                    if inspect.isawaitable(returned):
                        await returned
        finally:
            await _call(executor, rows.close)
    return rounds.result


async def _call(
    executor: concurrent.futures.Executor, function: Callable[..., Any], *args: Any
) -> Any:
    """Calls a function in a thread; waits for its end even if cancelled."""
    # With the caller's context variables, which tell a notebook which cell prints.
    in_context = functools.partial(contextvars.copy_context().run, function, *args)
    future = asyncio.get_running_loop().run_in_executor(executor, in_context)
    try:
        await asyncio.wait([future])
    except asyncio.CancelledError:
        while not future.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([future])
        # Otherwise asyncio warns that the exception was never retrieved.
        future.exception()
        raise
    return future.result()
