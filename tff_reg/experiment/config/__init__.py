"""What a run is asked to be, and the value that every setting then has."""
