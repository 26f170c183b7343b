"""Prints what came of fuzzing: `make test-deep` shows it."""

from __future__ import annotations

import sys


def pytest_terminal_summary(terminalreporter):
    for name, module in list(sys.modules.items()):
        if name.split(".")[-1] == "fuzzing" and hasattr(module, "COUNTS"):
            for surface, counts in sorted(module.COUNTS.items()):
                told = ", ".join(f"{count:,} {what}" for what, count in sorted(counts.items()))
                terminalreporter.write_line(f"fuzzed {surface}: {sum(counts.values()):,} cases: {told}")
