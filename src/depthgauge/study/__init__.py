"""Studies: suites, corridors and comparisons, declared as data and run by Python functions."""
