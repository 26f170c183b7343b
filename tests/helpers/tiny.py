"""An experiment that takes no time, as a file has it and as a table."""

from __future__ import annotations

import tomllib

TINY = """
name = "tiny"
seeds = 2

[data]
name = "quadratic"
clients = 5
samples = 6
test_samples = 5
dimension = 3

[model]
name = "linear"

[delays]
name = "lognormal"

[training]
epochs = 1
batch = 0
lr = 0.05

[stop]
max_rounds = 3

[[selectors]]
name = "random"
k = 2

[[selectors]]
name = "delayhet-submodular"
label = "submodular"
"""
TABLE = tomllib.loads(TINY)
