"""FedAlign's recipes run a round; tests/tasks/recipe_rounds.py says how."""

import pytest

from tests.tasks import recipe_rounds


@pytest.mark.parametrize(
    "recipe", recipe_rounds.of("fedalign"), ids=lambda recipe: recipe.path
)
def test_a_round_of(run_command, recipe, tmp_path):
    recipe_rounds.check_a_round(run_command, recipe, tmp_path / "run")
