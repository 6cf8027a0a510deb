"""Several runs: which they are, where they run, what is made of them."""
