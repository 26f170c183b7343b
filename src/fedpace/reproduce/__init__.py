"""The paper's tables and figures, run again and set beside what it printed: `fedpace reproduce`.

What is run is data of this package (`tasks.toml`, `paper.py`, `tuned.json`), and so are the paper's figures
(`paper.json`): an installed fedpace can reproduce them without a checkout.
"""
