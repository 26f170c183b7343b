"""The grid of `benchmarks/time_to_target.py`: its cells, the schemes that run in them, what is made of the results."""

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")  # before NumPy reads them: processes fill the cores, not threads
