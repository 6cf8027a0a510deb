"""Training beside other work of an event loop: a notebook's, a web service's.

The rounds run in a thread of their own, one call at a time: begin, a round, another,
finish. Between two calls the event loop has the row of the round and decides what
happens next, so what can go wrong goes wrong in the task that awaits the training.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Optional

from tff_reg import runtime
from tff_reg.experiment.rounds import loop as loop_lib
from tff_reg.lazy import tff

if TYPE_CHECKING:
    from tff_reg.training.composition import Process


async def train_async(
    process: Process,
    client_data: Any,
    *,
    on_round: Optional[Callable[[loop_lib.Row], Any]] = None,
    **arguments: Any,
) -> loop_lib.RunResult:
    """`train`, for callers that await: the event loop is never blocked.

    Args:
      process: As of `train`.
      client_data: As of `train`.
      on_round: As of `finish`.
      **arguments: The other attributes of `Training`.

    Returns:
      As of `train`.

    Raises:
      TypeError: If there is no such argument, or one is missing.
      DirectoryError, StateMismatchError, TrainingError, ValueError: As of `train`.
    """
    return await finish(loop_lib.Training(process, client_data, **arguments), on_round)


train_async.__signature__ = inspect.signature(loop_lib.train)


async def finish(
    training: loop_lib.Training,
    on_round: Optional[Callable[[loop_lib.Row], Any]] = None,
) -> loop_lib.RunResult:
    """`Training.run`, for callers that await.

    Cancelled (`task.cancel()`, Ctrl-C under `asyncio.run`, a notebook's interrupt), it
    lets the round under way finish, which cannot be cut short, commits it, lets go of
    `output_dir` and is cancelled then. Called again, it goes on. TFF's context is the
    caller's.

    Args:
      training: What is to be done.
      on_round: As of `Training.run`; called on the event loop's thread. What it returns
        is awaited if it can be, before the next round begins.

    Returns:
      The result.

    Raises:
      DirectoryError, StateMismatchError, TrainingError: As of `Training.run`.
    """
    rounds = loop_lib.Rounds(training)
    with runtime.outside_programs():
        context = tff.framework.get_context_stack().current
    with concurrent.futures.ThreadPoolExecutor(
        1,
        thread_name_prefix="tff_reg train_async",
        # TFF's contexts are a thread's own.
        initializer=tff.framework.set_default_context,
        initargs=(context,),
    ) as executor:
        rows = rounds.rows()
        try:
            while (row := await _call(executor, next, rows, None)) is not None:
                if on_round is not None:
                    returned = on_round(row)
                    if inspect.isawaitable(returned):
                        await returned
        finally:
            await _call(executor, rows.close)
    return rounds.result


async def _call(
    executor: concurrent.futures.Executor, function: Callable[..., Any], *args: Any
) -> Any:
    """Calls a function in a thread; if cancelled, waits for its end all the same."""
    # With the caller's context variables, which say what cell prints in a notebook.
    in_context = functools.partial(contextvars.copy_context().run, function, *args)
    future = asyncio.get_running_loop().run_in_executor(executor, in_context)
    try:
        await asyncio.wait([future])
    except asyncio.CancelledError:
        while not future.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([future])
        # Else asyncio complains that nobody looked at it.
        future.exception()
        raise
    return future.result()
