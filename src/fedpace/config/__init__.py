"""Experiments: they are read from TOML, changed by command-line options, and built into typed objects."""

from fedpace.config.experiment import (
    TRACK,
    Experiment,
    Overrides,
    Scheme,
    build,
    folder_name,
    load_experiment,
    load_experiments,
    parse_experiment,
)

__all__ = [
    "TRACK",
    "Experiment",
    "Overrides",
    "Scheme",
    "build",
    "folder_name",
    "load_experiment",
    "load_experiments",
    "parse_experiment",
]
