"""Experiments: they are read from TOML, changed by command-line options, and built into typed objects."""

from fedpace.config.experiment import (
    Experiment,
    Scheme,
    folder_name,
    load_experiment,
    load_experiments,
    parse_experiment,
)
from fedpace.config.options import build
from fedpace.config.overrides import Overrides

__all__ = [
    "Experiment",
    "Overrides",
    "Scheme",
    "build",
    "folder_name",
    "load_experiment",
    "load_experiments",
    "parse_experiment",
]
