"""The rounds of a run, and the run's directory."""
