import tensorflow as tf

from tff_reg.experiment.rounds import tensorboard


def scalars(directory):
    """(step, tag, value) of all event files, in the order of writing."""
    found = []
    for path in sorted(directory.glob("events.out.tfevents.*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                number = float(tf.make_ndarray(value.tensor))
                found.append((event.step, value.tag, number))
    return found


def row(number):
    return {
        "round_num": number,
        "training/loss": number / 2,
        "evaluation/loss": 1.0 if number == 2 else None,
    }


# That a resumed run has every round once: test_loop.py.
def test_rows_can_be_seen_before_the_file_is_closed(tmp_path):
    events = tensorboard.TensorBoardEvents(tmp_path)
    events.add(row(1))
    events.add(row(2))
    assert scalars(tmp_path) == [
        (1, "training/loss", 0.5),
        (2, "training/loss", 1.0),
        (2, "evaluation/loss", 1.0),
    ]
    events.close()
