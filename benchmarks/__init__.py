"""The subjects of `bin/bench`, one file each; `shared` has their common parts."""
