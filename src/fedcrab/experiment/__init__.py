"""Experiments: trainings and suites described in TOML, and everything that runs them."""
