"""What tests of tasks share."""

import pytest


@pytest.fixture(scope="module")
def run_command():
    """`bin/run` as a module, for rounds of recipes in this process."""
    from tests.tasks import recipe_rounds

    with recipe_rounds.command() as module:
        yield module
