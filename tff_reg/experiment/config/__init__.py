"""The request for a run, and the value that every setting then has."""
