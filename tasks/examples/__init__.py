"""Short programs to copy from; the docstring of each says how to run it."""
