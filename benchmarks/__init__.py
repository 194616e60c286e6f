"""Benchmarks: one module per section of measures.toml, run as `python -m benchmarks.NAME --json FILE [--quick]`."""
