"""Admission on NVFlare's edge stack: simulated devices at two leaves, on this machine.

python job.py --devices 150 --versions 12
"""

import argparse
import sys
from pathlib import Path

from nvflare.app_common.np.np_model_persistor import NPModelPersistor
from nvflare.edge.aggregators.model_update_dxo_factory import ModelUpdateDXOAggrFactory
from nvflare.edge.assessors.model_update import ModelUpdateAssessor
from nvflare.edge.tools.edge_job import EdgeJob

from fedpace.nvflare.edge import AdmissionDeviceManager, AdmissionModelManager

sys.path.insert(0, str(Path(__file__).parent))
from devices import LineFitter


def main() -> None:
    """Build the job, and run it in NVFlare's simulator."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=150, help="simulated devices at each leaf")
    parser.add_argument("--leaves", type=int, default=2)
    parser.add_argument("--concurrency", type=int, default=60)
    parser.add_argument("--versions", type=int, default=12, help="steps of the model, and one")
    parser.add_argument("--workspace", default="/tmp/nvflare/edge")
    given = parser.parse_args()
    job = EdgeJob(name="edge", edge_method="edge")
    job.configure_simulation(LineFitter(), 60.0, given.devices, 4)
    job.configure_client(aggregator_factory=ModelUpdateDXOAggrFactory(), max_model_versions=10, update_timeout=10.0)
    job.to_server(NPModelPersistor(), id="persistor")
    devices = AdmissionDeviceManager(
        policy="paced",
        options={"buffer": 20, "lr": 1.0},
        concurrency=given.concurrency,
        initial_min_client_num=given.leaves,
        device_reuse=False,
    )
    job.to_server(AdmissionModelManager("device_manager"), id="model_manager")
    job.to_server(devices, id="device_manager")
    assessor = ModelUpdateAssessor(
        "persistor", "model_manager", "device_manager", max_model_version=given.versions, device_wait_timeout=300.0
    )
    job.configure_server(assessor=assessor)
    job.simulator_run(given.workspace, n_clients=given.leaves, threads=given.leaves)


if __name__ == "__main__":
    main()
