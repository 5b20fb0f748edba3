"""Suites: a matrix of experiments from a short TOML, every cell computed once and kept as a small file."""
