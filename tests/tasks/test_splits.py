"""Fixed splits by groups."""

import hashlib

import numpy as np
from hypothesis import given, settings, strategies as st

from tff_reg.tasks import splits


@settings(max_examples=60, deadline=None)
@given(
    groups=st.lists(st.integers(0, 9), min_size=2, max_size=200),
    share=st.floats(0, 1),
    seed=st.integers(0, 2**32),
)
def test_every_group_has_its_share_of_both_parts(groups, share, seed):
    groups = np.array(groups)
    num_test = round(share * groups.size)
    train, test = splits.by_share(groups, num_test, seed=seed)
    assert test.size == num_test
    assert sorted(np.concatenate([train, test])) == list(range(groups.size))
    expected = np.bincount(groups) * num_test / groups.size
    counts = np.bincount(groups[test], minlength=expected.size)
    assert (np.abs(counts - expected) < 1).all()


def test_never_changes():
    _, test = splits.by_share(np.arange(1000) % 7, 100, seed=5)
    digest = hashlib.sha256(test.astype("<i8").tobytes()).hexdigest()
    assert digest[:16] == "34cf32ec2827f78c"
