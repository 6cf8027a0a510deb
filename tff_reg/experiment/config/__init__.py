"""The request for a run, and its resolution to a value for every setting."""
