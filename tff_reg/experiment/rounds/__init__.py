"""The rounds of a run, and the directory that they leave."""
