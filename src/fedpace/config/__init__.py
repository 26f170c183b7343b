"""Experiments: they are read from TOML, changed by command-line options, and built into typed objects."""

from fedpace.config.experiment import (
    TRACK,
    Experiment,
    Overrides,
    Scheme,
    folder_name,
    load_experiment,
    load_experiments,
    parse_experiment,
)
from fedpace.config.options import build

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
