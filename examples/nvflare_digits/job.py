"""The job, in NVFlare's simulator (default) or on its POC deployment: a server and sites as processes of their own.

python job.py --sites 8 --rounds 20 --state /tmp/digits-state
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
os.chdir(HERE)  # NVFlare takes scripts and the modules beside them from where it is started
sys.path.insert(0, str(HERE))

import numpy as np  # noqa: E402
import torch  # noqa: E402
from nvflare.job_config.api import FedJob, FilterType  # noqa: E402
from nvflare.job_config.script_runner import FrameworkType, ScriptRunner  # noqa: E402
from nvflare.recipe.poc_env import PocEnv  # noqa: E402
from task import Net, accuracy, load  # noqa: E402

import fedpace  # noqa: E402
from fedpace.nvflare import PacedFedAvg  # noqa: E402


def make_keys(workspace: Path) -> bytes:
    """Write the keys for homomorphic encryption where NVFlare's simulator finds them; return those of the sites.

    A real federation gets them from NVFlare's provisioning (HEBuilder).
    """
    import tenseal

    folder = workspace / "startup"
    if (folder / "client_context.tenseal").exists():  # a job that goes on needs the keys of the one before
        return (folder / "client_context.tenseal").read_bytes()
    keys = tenseal.context(tenseal.SCHEME_TYPE.CKKS, 8192, coeff_mod_bit_sizes=[60, 40, 40])
    keys.global_scale = 2**40
    sites: bytes = keys.serialize(save_secret_key=True)
    keys.make_context_public()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "client_context.tenseal").write_bytes(sites)
    (folder / "server_context.tenseal").write_bytes(keys.serialize())
    return sites


def make_job(options: argparse.Namespace) -> FedJob:
    """Return the controller and a script for each site."""
    torch.manual_seed(options.seed)
    known = fedpace.make_selector(options.selector)
    wanted = {"k": options.k, "buffer": max(1, options.k // 2)}
    scheme = {name: value for name, value in wanted.items() if hasattr(known, name)}
    job = FedJob(name="digits", min_clients=min(options.sites, max(1, options.k)))
    kind: Any = PacedFedAvg
    if options.encrypted:
        from fedpace.nvflare.encrypted import EncryptedFedAvg

        kind = partial(EncryptedFedAvg, minimum=options.k)
    controller = kind(
        selector=options.selector,
        options=scheme,
        **({} if options.encrypted else {"server": options.server}),
        state=str(Path(options.state).resolve()),
        seed=options.seed,
        warmup=options.warmup,
        warmup_wait=options.warmup_wait,
        clock="server" if options.delays == "none" else "reported",
        deadline=options.deadline,
        num_rounds=options.rounds,
        stop_cond=f"accuracy >= {options.target}",
        persistor_id="",
        model={key: value.tolist() for key, value in Net().state_dict().items()},
    )
    job.to_server(controller)
    arguments = f"--sites {options.sites} --seed {options.seed} --delays {options.delays} --raises {options.raises}"
    arguments += " --differences" if options.encrypted else ""
    for number in range(1, options.sites + 1):
        site = f"site-{number}"
        job.to(ScriptRunner("client.py", script_args=arguments, framework=FrameworkType.NUMPY), site)
        job.to("task.py", site)
        if options.encrypted:
            from nvflare.app_opt.he.model_decryptor import HEModelDecryptor
            from nvflare.app_opt.he.model_encryptor import HEModelEncryptor

            job.to(HEModelDecryptor(), site, tasks=["train"], filter_type=FilterType.TASK_DATA)
            encryptor = HEModelEncryptor(weigh_by_local_iter=False)
            job.to(encryptor, site, tasks=["train"], filter_type=FilterType.TASK_RESULT)
    return job


def run(job: FedJob, options: argparse.Namespace) -> None:
    """Run the job to its end."""
    if not options.poc:
        job.simulator_run(options.workspace, n_clients=None, threads=options.sites, log_config="concise")
        return
    environment = PocEnv(num_clients=options.sites)
    identifier = environment.deploy(job)
    try:
        while "FINISHED" not in str(environment.get_job_status(identifier)):
            time.sleep(3)
    finally:
        environment.stop()


def main() -> None:
    """Run, and print what the state folder says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=8)
    parser.add_argument("--k", type=int, default=3, help="sites in a cohort, or twice the answers in a buffer")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--selector", default="pace")
    parser.add_argument("--server", default="", help="server step; empty = the scheme's")
    parser.add_argument("--warmup", default="full", choices=["lazy", "full"])
    parser.add_argument("--warmup-wait", type=float, default=0.5, help="share of the sites that a full warm-up awaits")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", type=float, default=0.9)
    parser.add_argument("--delays", default="lognormal", help="a delay model of fedpace; none = measured times")
    parser.add_argument("--deadline", type=float, default=0.0)
    parser.add_argument("--raises", default="none", help="the site that fails, in its second round")
    parser.add_argument("--poc", action="store_true", help="NVFlare's POC deployment instead of its simulator")
    parser.add_argument("--encrypted", action="store_true", help="homomorphic encryption; in the simulator")
    parser.add_argument("--state", default="/tmp/fedpace-nvflare/state")
    parser.add_argument("--workspace", default="/tmp/fedpace-nvflare/workspace")
    options = parser.parse_args()
    if options.encrypted and options.poc:
        parser.error("--encrypted is for the simulator: on a deployment NVFlare provisions the keys")
    keys = make_keys(Path(options.workspace)) if options.encrypted else b""
    run(make_job(options), options)
    state = Path(options.state)
    for line in (state / "rounds.jsonl").read_text(encoding="utf-8").splitlines()[1:]:
        entry = json.loads(line)
        failed = f", failed: {', '.join(entry['failed'])}" if entry["failed"] else ""
        print(
            f"DIGITS round {entry['number']} clock {entry['clock']:.1f} clients {', '.join(entry['clients'])}{failed}"
        )
    index = json.loads((state / "paced.json").read_text(encoding="utf-8"))
    stored = np.load(state / index["model"])
    net = Net()
    arrays = {key: stored[f"model-{i}"] for i, key in enumerate(index["arrays"])}
    if options.encrypted:
        from fedpace.nvflare.encrypted import decrypted

        arrays = {key: decrypted(arrays[key], keys, tuple(like.shape)) for key, like in net.state_dict().items()}
    net.load_state_dict({key: torch.from_numpy(array) for key, array in arrays.items()})
    test = load(options.sites, options.seed).test
    reached = accuracy(net, torch.from_numpy(test.inputs), torch.from_numpy(test.targets))
    print(f"DIGITS accuracy {reached:.4f} after {index['round']} rounds")


if __name__ == "__main__":
    main()
