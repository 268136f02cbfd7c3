"""From plain settings to an experiment: the same names on the command line, in TOML files and in a run's record."""
