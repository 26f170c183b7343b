"""A small experiment in TOML, that tests change."""

TEXT = """
name = "tiny"
seeds = [3, 5]

[data]
name = "quadratic"
clients = 5

[model]
name = "linear"

[delays]
name = "lognormal"
median = 20

[training]
lr = 0.05

[fleet]
warmup = "lazy"

[clock]
charge_warmup = true

[stop]
target = 2.95
max_seconds = 1e5

[[selectors]]
name = "random"
k = 2

[[selectors]]
name = "random"
label = "unbiased"
variant = "uniform-unbiased"
k = 2

[[selectors]]
name = "delayhet-submodular"
target_heterogeneity = 0.5
"""
