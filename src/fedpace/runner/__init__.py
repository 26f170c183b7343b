"""Runs all schemes of an experiment under all seeds: it records every round, resumes stopped runs, and uses all cores.

records = run_all(load_experiment(None), Path("runs/mine"), jobs=2)
records = resume(Path("runs/mine"))
"""

from fedpace.runner.jobs import Job, Plan, PlanState, SharedData, pending, planned, read_plan
from fedpace.runner.many import Forecast, duration_text, estimate_duration, resume, run_all, run_plan
from fedpace.runner.single import Execution, Watcher, check_folder, clear_folder, clock_run, run_job, run_one

__all__ = [
    "Execution",
    "Forecast",
    "Job",
    "Plan",
    "PlanState",
    "SharedData",
    "Watcher",
    "check_folder",
    "clear_folder",
    "clock_run",
    "duration_text",
    "estimate_duration",
    "pending",
    "planned",
    "read_plan",
    "resume",
    "run_all",
    "run_job",
    "run_one",
    "run_plan",
]
