"""What the subjects of `bin/bench` share."""
