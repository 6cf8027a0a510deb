"""How tests compare what two runtimes, or two rounds, give."""

import numpy as np
import tensorflow as tf


def assert_same(native, ours, *, rtol=2e-5, atol=2e-6):
    """The same containers, dtypes and shapes; the same values up to rounding."""
    _assert_same(native, ours, rtol, atol, "result")


def assert_equal(first, second):
    """The same to the bit."""
    _assert_same(first, second, 0, 0, "result")


def _assert_same(native, ours, rtol, atol, path):
    if hasattr(native, "_fields") or isinstance(native, (list, tuple)):
        assert type(native) is type(ours), path
        assert len(native) == len(ours), path
        for index, (a, b) in enumerate(zip(native, ours)):
            _assert_same(a, b, rtol, atol, f"{path}[{index}]")
    elif isinstance(native, dict):
        assert type(native) is type(ours), path
        assert list(native) == list(ours), path
        for key in native:
            _assert_same(native[key], ours[key], rtol, atol, f"{path}[{key!r}]")
    elif hasattr(native, "__attrs_attrs__"):
        assert type(native) is type(ours), path
        for field in native.__attrs_attrs__:
            _assert_same(
                getattr(native, field.name),
                getattr(ours, field.name),
                rtol,
                atol,
                f"{path}.{field.name}",
            )
    elif isinstance(native, tf.data.Dataset):
        assert isinstance(ours, tf.data.Dataset), path
        assert native.element_spec == ours.element_spec, path
        _assert_same(
            list(native.as_numpy_iterator()),
            list(ours.as_numpy_iterator()),
            rtol,
            atol,
            f"{path} (elements)",
        )
    else:
        assert type(native) is type(ours), f"{path}: {type(native)} and {type(ours)}"
        if isinstance(native, bytes) or np.asarray(native).dtype == object:
            np.testing.assert_array_equal(native, ours, err_msg=path)
        else:
            assert np.asarray(native).dtype == np.asarray(ours).dtype, path
            np.testing.assert_allclose(ours, native, rtol=rtol, atol=atol, err_msg=path)
