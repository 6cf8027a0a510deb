"""The restricted unpickler: arrays and containers pass, nothing else does."""

import collections
import os
import pickle

import numpy as np
import pytest

from tff_reg.data import pickles

PROTOCOLS = (0, 2, 4, 5)


def _dump(path, value, protocol=2):
    path.write_bytes(pickle.dumps(value, protocol=protocol))
    return str(path)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_arrays_and_containers_come_back_as_they_were(tmp_path, protocol):
    value = {
        "bytes": np.arange(6, dtype=np.uint8).reshape(2, 3),
        "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "big endian": np.arange(3, dtype=">i4"),
        "flags": np.array([True, False]),
        "empty": np.zeros((0, 4), np.float32),
        "list": [1, 2.5, "text", None, True, {"a": (1, 2)}, b"raw"],
    }
    found = pickles.load(_dump(tmp_path / "p", value, protocol))
    assert found.keys() == value.keys() and found["list"] == value["list"]
    for name in set(value) - {"list"}:
        assert found[name].dtype == value[name].dtype
        assert np.array_equal(found[name], value[name])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_scripts_make_of_splits_comes_back(tmp_path, protocol):
    lists = collections.defaultdict(list, {0: [np.int64(3), 1], 1: [2]})
    value = [lists, {np.int64(0): {1, 2}}, [np.array([4, 5])], (np.float32(0.5),)]
    found = pickles.load(_dump(tmp_path / "p", value, protocol))
    assert found[0] == {0: [3, 1], 1: [2]} and type(found[0]) is dict
    assert found[1] == {0: {1, 2}} and found[3] == (0.5,)
    np.testing.assert_array_equal(found[2][0], [4, 5])


def test_reads_pickles_of_python_2(tmp_path):
    # An array of three bytes as CIFAR's files have it: protocol 2, raw texts.
    written = (
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03"
        b"cnumpy\nndarray\nq\x04K\x00\x85U\x01b\x87Rq\x05(K\x01K\x01K\x03\x86"
        b"cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNNJ\xff\xff\xff"
        b"\xffJ\xff\xff\xff\xffK\x00tb\x89U\x03\xff\x00\x80tbu."
    )
    (tmp_path / "p").write_bytes(written)
    with np.errstate(all="raise"):
        found = pickles.load(str(tmp_path / "p"))
    assert list(found) == ["data"] and found["data"].tolist() == [[255, 0, 128]]


class _Calls:
    """Pickles to a call of a function."""

    def __init__(self, function, *arguments):
        self._call = function, arguments

    def __reduce__(self):
        return self._call


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "function, arguments",
    [
        (os.system, ("touch FILE",)),
        (eval, ("open('FILE', 'w')",)),
        (getattr, ("text", "upper")),
        (np.load, ("FILE",)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_refuses_a_pickle_that_calls_something(tmp_path, protocol, function, arguments):
    marker = tmp_path / "called"
    arguments = [argument.replace("FILE", str(marker)) for argument in arguments]
    path = _dump(tmp_path / "p", {"data": _Calls(function, *arguments)}, protocol)
    with pytest.raises(pickles.PickleError, match="is refused: it asks for"):
        pickles.load(path)
    assert not marker.exists()


@pytest.mark.parametrize(
    "value",
    [
        np.array([object()], dtype=object),
        np.zeros(2, dtype=[("a", "u1"), ("b", "f4")]),
        np.random.RandomState(0),
        range(3),
    ],
    ids=lambda value: type(value).__name__ + str(getattr(value, "dtype", "")),
)
def test_refuses_arrays_and_objects_that_no_data_set_needs(tmp_path, value):
    with pytest.raises(pickles.PickleError, match="refused"):
        pickles.load(_dump(tmp_path / "p", {"data": value}))


@pytest.mark.parametrize(
    "opcodes",
    [
        # A state for an admitted class itself, which would change it for all readers.
        b"cnumpy\nndarray\n}b.",
        b"cnumpy\ndtype\nN}(U\x04_codeU\x02u1u\x86b.",
        b"cnumpy.core.multiarray\n_reconstruct\n}b.",
        b"c_codecs\nencode\nN}\x86b.",
        # The array's class called, or another class given to _reconstruct.
        b"cnumpy\nndarray\n)R.",
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\ndtype\nK\x00\x85U\x01b\x87R.",
        # Any codec that there is.
        b"c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00rot13\x86R.",
        b"cbuiltins\neval\n.",
        b"P1\n.",
    ],
    ids=range(9),
)
def test_refuses_tricks_with_admitted_classes(tmp_path, opcodes):
    (tmp_path / "p").write_bytes(b"\x80\x02" + opcodes)
    with pytest.raises(pickles.PickleError):
        pickles.load(str(tmp_path / "p"))
    # And nothing has been changed for the next one.
    good = {"data": np.arange(3)}
    assert pickles.load(_dump(tmp_path / "q", good))["data"].tolist() == [0, 1, 2]


def test_raises_on_a_file_that_is_no_pickle(tmp_path):
    with pytest.raises(pickles.PickleError, match="cannot be read"):
        pickles.load(str(tmp_path / "none"))
    (tmp_path / "q").write_bytes(b"\x89PNG")
    with pytest.raises(pickles.PickleError, match="damaged or no pickle"):
        pickles.load(str(tmp_path / "q"))
