"""The order of these tests."""


def pytest_collection_modifyitems(items):
    """Puts what is asked of a method side by side: its process is built once."""
    mine = [i for i, item in enumerate(items) if "test_every_method" in item.nodeid]
    by_method = sorted(
        (items[i] for i in mine), key=lambda item: item.callspec.params["name"]
    )
    for place, item in zip(mine, by_method):
        items[place] = item
