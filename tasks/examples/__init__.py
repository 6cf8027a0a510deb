"""Short programs to copy from; each says at its top how it is run."""
