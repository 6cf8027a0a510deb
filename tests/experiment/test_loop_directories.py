"""In which directories a run is refused, and what makes it another run."""

import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests import commands
from tests.experiment.conftest import tiny_model_fn
from tests.experiment.finished import Wrapped
from tests.experiment.stopping import StopHere, StopsAfter
from tff_reg import experiment, training
from tff_reg.data import digests
from tff_reg.experiment.rounds import process_digest

pytestmark = pytest.mark.usefixtures("in_process")


def test_other_settings_in_the_same_directory_are_refused_by_name(run, tmp_path):
    run(tmp_path / "a", total_rounds=1)
    with pytest.raises(experiment.DirectoryError) as caught:
        run(tmp_path / "a", total_rounds=1, clients_per_round=2)
    message = str(caught.value)
    assert message.startswith(f"output_dir={tmp_path}/a: it has a run with ")
    assert "run with clients_per_round=3, not 2; give another" in message
    assert "\n" not in message
    result = run(tmp_path / "a", total_rounds=1, clients_per_round=2, overwrite=True)
    assert result.summary["clients_per_round"] == 2


def test_another_process_in_the_same_directory_is_refused(run, tiny_model, tmp_path):
    def build(rate):
        optimizer = tff.learning.optimizers.build_sgdm(rate)
        return tff.learning.algorithms.build_weighted_fed_avg(tiny_model, optimizer)

    run(tmp_path, process=build(0.1), total_rounds=1)
    with pytest.raises(experiment.DirectoryError) as caught:
        run(tmp_path, process=build(1e-9), total_rounds=1)
    assert "is of other computations (another process" in str(caught.value)
    assert "\n" not in str(caught.value)
    # The same, built anew, is no other.
    assert len(run(tmp_path, process=build(0.1), total_rounds=2).rows) == 2


_PROCESS = """
from tff_reg import quiet, runtime, training
quiet.silence()
from tests.experiment.conftest import tiny_model_fn
from tff_reg.experiment.rounds import process_digest
with runtime.running("in_process"):
    for name, passes in (("fedprox", 1),) * {first} + (("fedavg", 1), ("fedavg", 2)):
        data = training.WholeClientData(batch_size=4, local_epochs=passes)
        built = training.build(name, tiny_model_fn, client_data=data)
        digest = process_digest.of(built, built.initialize())
        print("of", name, passes, digest)
"""


def test_a_processs_digest_is_the_same_in_another_python_process():
    def digests(first):
        code = _PROCESS.format(first=first)
        done = commands.python(code, PYTHONHASHSEED=str(first))
        return [line for line in done.stdout.splitlines() if line.startswith("of ")]

    # What was traced before, and how sets are ordered, is no part of it.
    one, other = digests(0), digests(1)
    assert len(other) == 3 and other[1:] == one
    assert one[0].split()[-1] != one[1].split()[-1]


def test_fewer_rounds_than_done_are_refused_and_nothing_is_changed(run, tmp_path):
    with pytest.raises(StopHere):
        run(tmp_path / "a", progress=StopsAfter(4))
    with pytest.raises(experiment.DirectoryError, match="has done 4 rounds already"):
        run(tmp_path / "a", total_rounds=3)
    run(tmp_path / "a")
    before = {
        path: path.read_bytes() for path in (tmp_path / "a").iterdir() if path.is_file()
    }
    with pytest.raises(experiment.DirectoryError, match="has done 6 rounds already"):
        run(tmp_path / "a", total_rounds=3)
    assert {path: path.read_bytes() for path in before} == before
    # As many are read back.
    assert run(tmp_path / "a").summary["rounds"] == 6


def test_more_rounds_of_a_cosine_schedule_are_refused(run, tmp_path):
    cosine = {"learning_rate_schedule": "cosine"}
    run(tmp_path / "a", total_rounds=2, settings=cosine)
    with pytest.raises(experiment.DirectoryError, match="cosine"):
        run(tmp_path / "a", total_rounds=3, settings=cosine)


def test_a_state_of_another_process_is_refused(run, tmp_path, tiny_model):
    run(tmp_path / "a", total_rounds=1)
    other = tff.learning.algorithms.build_weighted_fed_avg(
        tiny_model,
        client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1),
        server_optimizer_fn=tff.learning.optimizers.build_adam(0.1),
    )
    # It is no computation of TFF's, and has no digest.
    with pytest.raises(experiment.StateMismatchError, match="another process"):
        run(tmp_path / "a", total_rounds=2, process=Wrapped(other))


def test_a_directory_in_use_is_refused(run, tmp_path):
    first = experiment.RunDirectory(tmp_path / "a")
    first.begin({})
    with pytest.raises(experiment.DirectoryError, match="another process"):
        run(tmp_path / "a")
    first.close()
    run(tmp_path / "a", total_rounds=1)


def test_a_run_on_other_data_is_another_where_the_data_have_digests(
    run, tiny_data, tmp_path
):
    run(tmp_path / "a", total_rounds=1)
    tiny_data.digests = {digests.EXAMPLES: "a", digests.SPLIT: "b"}
    # Begun without, by an older version or on data that have none.
    run(tmp_path / "a", total_rounds=2)
    tiny_data.digests = {digests.EXAMPLES: "a", digests.SPLIT: "c"}
    with pytest.raises(experiment.DirectoryError, match="another split of the examp"):
        run(tmp_path / "a", total_rounds=3)
    tiny_data.digests = {digests.EXAMPLES: "d", digests.SPLIT: "b"}
    with pytest.raises(experiment.DirectoryError, match="of other training examples"):
        run(tmp_path / "a", total_rounds=3)


def test_a_function_of_clients_data_that_computes_something_else_is_refused(
    run, tiny_data, tmp_path
):
    def times(factor):
        def dataset(client_id, key):
            found = tiny_data.whole_client_dataset(client_id, key)
            return found.map(lambda each: {**each, "x": each["x"] * factor})

        return dataset

    run(tmp_path / "a", total_rounds=1, client_dataset_fn=times(1))
    run(tmp_path / "a", total_rounds=2, client_dataset_fn=times(1))
    for other in (times(2), None):
        with pytest.raises(experiment.DirectoryError, match="client_dataset_fn"):
            run(tmp_path / "a", total_rounds=3, client_dataset_fn=other)


def test_a_processs_digest_has_the_ranges_of_its_random_numbers():
    def built(highest, seed):
        def shifted(images, key):
            by = tf.random.stateless_uniform([], key + seed, 0, highest, tf.int32)
            return tf.roll(images, by, 1)

        data = training.WholeClientData(batch_size=4, preprocess_fn=shifted)
        process = training.build("fedavg", tiny_model_fn, client_data=data)
        return process_digest.of(process, process.initialize())

    assert built(2, 0) == built(2, 0) != built(8, 0)
