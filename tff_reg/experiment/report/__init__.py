"""Reading finished runs: their models, their numbers, tables and pictures of them."""
