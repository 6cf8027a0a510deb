"""MAN's recipes run a round; tests/tasks/recipe_rounds.py says how."""

import pytest

from tests.tasks import recipe_rounds


@pytest.fixture(scope="module")
def command():
    with recipe_rounds.command() as module:
        yield module


@pytest.mark.parametrize(
    "recipe", recipe_rounds.of("man"), ids=lambda recipe: recipe.path
)
def test_a_round_of(command, recipe, tmp_path):
    recipe_rounds.check_a_round(command, recipe, tmp_path / "run")
