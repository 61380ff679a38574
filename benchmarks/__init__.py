"""Benchmarks: ratios inside one run, never timed tests. `./run bench [NAME]` runs them."""
