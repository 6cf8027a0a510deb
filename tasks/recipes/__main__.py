"""Writes the recipes' files anew: `bin/launch -m tasks.recipes`."""

from tasks import recipes

if __name__ == "__main__":
    print(f"{recipes.write()} recipes are in {recipes.ROOT}.")
