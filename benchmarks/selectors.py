"""What choosing costs, for every registered scheme: `lib/selection.py` has the benchmark, and its options.

    python benchmarks/selectors.py

Python has a module of this name too, which `subprocess` imports. A script's folder comes first on Python's path, so
every script in this folder would get this file instead: it then hands over the one that is meant.
"""

from __future__ import annotations

import runpy
import sys
import sysconfig
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != here]
    runpy.run_path(str(here / "lib" / "selection.py"), run_name="__main__")
else:
    spec = spec_from_file_location(__name__, Path(sysconfig.get_path("stdlib"), "selectors.py"))
    if spec is None or spec.loader is None:
        raise ImportError("Python's own selectors module was not found")
    sys.modules[__name__] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules[__name__])
