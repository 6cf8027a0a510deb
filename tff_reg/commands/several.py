"""Parts that commands with several runs share: start, failures, list of files."""

import contextlib
import dataclasses
import os
import pathlib
import signal
import sys

from tff_reg import files
from tff_reg.commands import START, command_line, forked
from tff_reg.experiment.config import run_config as config_lib
from tff_reg.experiment.report import finished_runs
from tff_reg.experiment.series import batch, jobs, ray_tasks
from tff_reg.settings import SettingError, settle


def settings_of_runs(output_dir, argv):
    """Returns the settings of runs, with another help of `output_dir`.

    The hyperparameters are those of the methods that the arguments name.
    """
    return [
        dataclasses.replace(each, help=output_dir, default=None)
        if each.name == "output_dir"
        else each
        for each in config_lib.listed(words=command_line.words_of(argv))
    ]


def value_of(given, setting):
    """Returns the value of a setting's flag, or the setting's default."""
    value = given[setting.name].value
    if value is None:
        return setting.default
    setting.check(value)
    return value


def values_of(given, settings):
    """Returns the values of settings' flags by name."""
    return {each.name: value_of(given, each) for each in settings}


def requested(given):
    """Returns the settings that flags give to all runs."""
    found = command_line.requested(given)
    if given.jobs_on == jobs.RAY:
        if found.get("runtime") == "ray":
            reason = "give it or runtime=ray, which has the clients of one run there."
            raise SettingError("jobs_on", jobs.RAY, reason)
        found.pop("ray_address", None)
    return found


def _executor(given):
    """Returns the executor that the flags choose; None for this machine alone."""
    values = values_of(given, jobs.SETTINGS)
    settle(jobs.SETTINGS, values, {name: given[name].value for name in values})
    if values["jobs_on"] == jobs.LOCAL:
        return None
    if given.overwrite:
        reason = "leave it out: a job that is started again would not resume."
        raise SettingError("overwrite", True, reason)
    return ray_tasks.RayTasks(
        given.ray_address,
        values["jobs"],
        values["cpus_per_job"],
        values["gpus_per_job"],
    )


def begin(given, stop, runs, where, setting, executor=None):
    """Returns the `batch.Batch` of the flags, which a signal stops.

    `runs` are those that are to be carried out, and `where` is their directory, which
    a setting gives.
    """
    done = batch.Batch(
        START,
        jobs=value_of(given, jobs.JOBS),
        verbosity=given.verbosity,
        executor=executor or _executor(given),
        fork=forked.fork,
    )
    stop.before_exit(done.stop)
    files.check_writable(where, setting)
    again = "the same command" + (" without --overwrite" if given.overwrite else "")

    def standing():
        finished = sum(run.is_finished for run in runs)
        there = f"{finished} of {len(runs)} runs are finished in {where}"
        return f"{there}, and {again} goes on from there"

    stop.say(standing)
    return done


def carry_out(study, done, given, output_dir, fail, **of_files):
    """Carries out a study, or lists its commands; prints its protocol and its table."""
    if given.list_commands:
        if not study.missing():
            study.sheet.plan_rest(study)
        commands = done.commands(study.runs)
        if not commands:
            print("All runs are finished.", file=sys.stderr)
        print(*commands, sep="\n", end="\n" * bool(commands))
        return
    if study.runs:
        print(*study.sheet.protocol(study), sep="\n", flush=True)
    with carrying_out(done, fail):
        study.carry_out(done, output_dir, **of_files)
    has_table = "table.md" in study.files
    if has_table:
        print()
        print((pathlib.Path(output_dir) / "table.md").read_text("utf-8"))
        print(f"In {output_dir}: {', '.join(study.files)}", flush=True)
    total = len({run.name for run in study.runs} | done.failed.keys())
    fail_for_failed(done.failed, total, has_table, fail)


@contextlib.contextmanager
def carrying_out(done, fail):
    """Handles the errors of a `with` body that runs a batch and writes its files."""
    try:
        yield
    except jobs.Interrupted as error:
        # Sends this process the same signal, which it may also have received itself.
        os.kill(os.getpid(), error.number)
        while True:
            signal.pause()
    except (
        batch.WrongFlagsError,
        ray_tasks.UnreachableError,
        finished_runs.ComparisonError,
    ) as error:
        done.end_line()
        if str(error):
            fail(error)
        raise SystemExit(2) from None
    except (ValueError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        done.end_line()
        fail(error, exit_code=1)
    finally:
        done.stop()


def fail_for_failed(failed, total, has_table, fail):
    """Ends the command with exit code 1 if runs have failed."""
    if failed:
        rest = "; the table has the rest" if has_table else ""
        names = f"{len(failed)} of {total} runs failed ({'; '.join(failed)})"
        fail(f"{names}{rest}.", exit_code=1)
