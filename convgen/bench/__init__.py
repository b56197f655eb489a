"""Measuring: the timing core, the baselines, suites of convolutions, tables, files and pictures."""
