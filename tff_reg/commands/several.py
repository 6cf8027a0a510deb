"""What commands that do several runs share: beginning, failing, showing files."""

import contextlib
import os
import pathlib
import signal

from tff_reg.commands import START
from tff_reg.experiment import batch, command_line, series


def value_of(given, setting):
    """A setting's value among flags, or its default.

    Raises:
      SettingError: If it cannot be.
    """
    value = given[setting.name].value
    if value is None:
        return setting.default
    setting.check(value)
    return value


def begin(given, planned, stop, executor=None, where=None):
    """The `batch.Batch` of planned runs, which a signal stops.

    Args:
      given: The flags, `jobs` among them.
      planned: The runs.
      stop: Is told what to say and to end.
      executor: As of `batch.Batch`.
      where: The directory of the runs; `output_dir`, if None.

    Returns:
      The batch.

    Raises:
      SettingError: If there cannot be so many jobs.
    """
    done = batch.Batch(
        planned,
        START,
        jobs=value_of(given, series.JOBS),
        verbosity=given.verbosity,
        executor=executor,
    )
    stop.before_exit(done.stop)
    where = given.output_dir if where is None else where
    stop.say(lambda: done.standing(where, bool(given.overwrite)))
    return done


@contextlib.contextmanager
def carried_out(done, fail):
    """For the body of a `with` statement, which runs a batch and writes its files.

    Args:
      done: The batch.
      fail: Ends the command with one line.
    """
    try:
        yield
    except series.Interrupted as error:
        # As if we had been sent the signal, which we may have been, too.
        os.kill(os.getpid(), error.number)
        while True:
            signal.pause()
    except series.WrongFlagsError as error:
        done.end_line()
        if str(error):
            fail(error)
        raise command_line.Ended(2) from None
    except (ValueError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        done.end_line()
        fail(error, exit_code=1)


def show(directory, names):
    """Prints the table of a directory, and which of the files are there."""
    directory = pathlib.Path(directory)
    print()
    print((directory / "table.md").read_text("utf-8"))
    there = [name for name in names if (directory / name).exists()]
    print(f"In {directory}: {', '.join(there)}", flush=True)


def fail_for_failed(failed, total, has_table, fail):
    """Ends the command if runs have failed, of so many."""
    if failed:
        names = "; ".join(run.name for run in failed)
        rest = "; the table has the rest" if has_table else ""
        fail(
            f"{len(failed)} of {total} runs failed ({names}){rest}.",
            exit_code=1,
        )
