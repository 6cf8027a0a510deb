"""What `bin/bench` measures: a file a subject; `shared` has what they share."""
