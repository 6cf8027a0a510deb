"""Several runs: planning, execution, tables."""
