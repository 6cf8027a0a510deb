import collections
import math

import numpy as np
import pytest

from tff_reg.experiment.rounds import metrics


def row(round_num, **others):
    return {
        metrics.ROUND: round_num,
        metrics.TRAINING_LOSS: np.float32(0.1),
        "training/accuracy": np.float32(0.5),
        metrics.SECONDS: 1.25,
        **others,
    }


def test_text_has_the_promised_columns_and_the_shortest_exact_numbers():
    table = metrics.MetricsTable()
    empty = {"evaluation/loss": None, "evaluation/accuracy": None}
    seconds = {metrics.SECONDS: 1.25, "training/term": np.float32(1 / 3)}
    table.append(
        {n: v for n, v in row(1).items() if n not in seconds} | empty | seconds
    )
    table.append({**row(2), "evaluation/loss": 0.1, "evaluation/accuracy": 2 / 3})
    assert table.text() == (
        "round_num,training/loss,training/accuracy,evaluation/loss,"
        "evaluation/accuracy,round_seconds,training/term\n"
        "1,0.1,0.5,,,1.25,0.33333334\n"
        "2,0.1,0.5,0.1,0.6666666666666666,1.25,\n"
    )


def test_a_table_read_and_continued_is_the_same_text():
    whole, table = metrics.MetricsTable(), metrics.MetricsTable()
    for number in (1, 2, 3):
        whole.append(row(number, other=np.float32(number / 7)))
        table = metrics.MetricsTable.parse(table.text())
        table.append(row(number, other=np.float32(number / 7)))
    assert table.text() == whole.text()
    assert table.rows() == whole.rows()
    assert len(table) == 3


def test_columns_are_numbers_and_nan_where_empty():
    table = metrics.MetricsTable()
    table.append(row(1))
    assert table.column(metrics.SECONDS) == [1.25]
    assert math.isnan(table.column(metrics.EVALUATION_LOSS)[0])
    assert math.isnan(table.column("no such column")[0])


def test_a_metric_that_appears_later_is_refused_by_name():
    table = metrics.MetricsTable()
    table.append(row(1))
    with pytest.raises(ValueError, match="Round 2 has a metric `other`"):
        table.append(row(2, other=1.0))


def test_training_metrics_of_a_process_are_named_and_others_keep_their_path():
    found = metrics.round_metrics(
        collections.OrderedDict(
            distributor=(),
            client_work=collections.OrderedDict(
                train=collections.OrderedDict(
                    loss=np.float32(2.0),
                    sparse_categorical_accuracy=np.float32(0.25),
                    histogram=np.zeros([3]),
                )
            ),
            finalizer=collections.OrderedDict(update_non_finite=np.int32(0)),
        )
    )
    assert found == {
        "training/loss": 2.0,
        "training/accuracy": 0.25,
        "finalizer/update_non_finite": 0,
    }
