"""Finished runs: reading their models and numbers, making tables and figures."""
