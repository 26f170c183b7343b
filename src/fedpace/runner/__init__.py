"""Runs all schemes of an experiment under all seeds: it records every round, resumes stopped runs, and uses all cores.

records = run_all(load_experiment(None), Path("runs/mine"), jobs=2)
records = resume(Path("runs/mine"))
"""

from fedpace.runner.folders import check_folder, clear_folder
from fedpace.runner.forecast import Forecast, foretell, span_of
from fedpace.runner.jobs import Job, SharedData
from fedpace.runner.many import resume, run_all, run_plan
from fedpace.runner.plan import Begun, Plan, pending, planned, read_plan
from fedpace.runner.running import Execution, Watcher, clock_run, run_job, run_one

__all__ = [
    "Begun",
    "Execution",
    "Forecast",
    "Job",
    "Plan",
    "SharedData",
    "Watcher",
    "check_folder",
    "clear_folder",
    "clock_run",
    "foretell",
    "pending",
    "planned",
    "read_plan",
    "resume",
    "run_all",
    "run_job",
    "run_one",
    "run_plan",
    "span_of",
]
