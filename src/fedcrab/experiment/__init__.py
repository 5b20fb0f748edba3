"""Experiments: a training described in TOML, and what it takes to run it."""
