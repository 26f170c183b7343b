"""A Flower federation on this machine, on loopback: start it, run the app on it, stop all that was started.

    with Federation(folder) as federation:
        federation.superlink(simulation=20)
        print(federation.run(seed=1))

`flwr run` on its own leaves a SuperLink behind; this stops every process that it started, by its id.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

APP = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent


def free_port() -> int:
    """Return a port of loopback that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Federation:
    """Processes and files of one federation, all below `folder`, which runs the app in `app`."""

    def __init__(self, folder: Path, app: Path = APP) -> None:
        self.folder, self.app = Path(folder), app
        self.folder.mkdir(parents=True, exist_ok=True)
        self.environment = os.environ | {
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
            "FLWR_HOME": str(self.folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ADDRESS": "local",  # not whatever Ray cluster happens to run on this machine
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }
        self.port = 0
        self.last_superlink: subprocess.Popen[bytes] | None = None
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Federation:
        """Nothing runs yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop everything, the last first."""
        for process in reversed(self._started):
            stop(process)

    def superlink(self, *, simulation: int = 0) -> subprocess.Popen[bytes]:
        """Start a SuperLink; with `simulation` virtual clients on Ray, or for SuperNodes to join."""
        self.port = self.port or free_port()
        command = ["flower-superlink", "--insecure", "--disable-runtime-dependency-installation"]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        options = ""
        if simulation:
            command.append("--simulation")
            options = (
                f"options.num-supernodes = {simulation}\n"
                "options.backend.client-resources.num-cpus = 1\n"
                "options.backend.init-args.num-cpus = 2\n"
            )
        (home / "config.toml").write_text(
            '[superlink]\ndefault = "here"\n\n'
            f'[superlink.here]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n{options}',
            encoding="utf-8",
        )
        self.last_superlink = process = self.start(command, "superlink")
        self._wait_for_port(process)
        return process

    def supernode(self, partition: int, partitions: int) -> subprocess.Popen[bytes]:
        """Start the SuperNode that holds `partition`."""
        config = f"partition-id={partition} num-partitions={partitions}"
        command = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{self.port}"]
        command += ["--host", "127.0.0.1", "--port", str(free_port()), "--node-config", config]
        return self.start(command, f"supernode-{partition}")

    def launch(self, log: str = "run", **config: object) -> subprocess.Popen[bytes]:
        """Start the app on the federation and return at once; its output goes to the file `log`."""
        pairs = " ".join(f"{key.replace('_', '-')}={_toml(value)}" for key, value in config.items())
        return self.start(["flwr", "run", str(self.app), "here", "--stream", *(["-c", pairs] if pairs else [])], log)

    def run(self, log: str = "run", timeout: float = 900, **config: object) -> str:
        """Run the app to its end and return what it printed."""
        self.launch(log, **config).wait(timeout)
        return self.output(log)

    def output(self, log: str) -> str:
        """Return what a process printed so far."""
        return (self.folder / f"{log}.log").read_text(encoding="utf-8", errors="replace")

    def running(self, command: str) -> list[int]:
        """Return the ids of those processes below this federation's that run `command`."""
        family = [pid for process in self._started for pid in descendants(process.pid)]
        return [pid for pid in family if command in _command_line(pid)]

    def start(self, command: list[str], log: str) -> subprocess.Popen[bytes]:
        """Start a command of this Python's environment, or of the file that is named whole."""
        with (self.folder / f"{log}.log").open("ab") as file:
            process = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                env=self.environment,
                cwd=self.folder,
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )
        self._started.append(process)
        return process

    def _wait_for_port(self, process: subprocess.Popen[bytes]) -> None:
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            if process.poll() is not None:
                break
            time.sleep(0.2)
        raise RuntimeError(f"the SuperLink did not start: see {self.folder / 'superlink.log'}")


def stop(process: subprocess.Popen[bytes], *, hard: bool = False) -> None:
    """End a process and all that it started; `hard` = SIGKILL, as when a machine dies."""
    family = descendants(process.pid)
    for pid in [process.pid, *family] if hard else [process.pid]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL if hard else signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(20)
    for pid in [process.pid, *family]:
        with contextlib.suppress(ProcessLookupError):
            if pid != process.pid or process.poll() is None:
                os.kill(pid, signal.SIGKILL)
    process.wait(20)


def descendants(pid: int) -> list[int]:
    """Return the children of a process, and theirs."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                # The name, in parentheses, may hold anything; the parent's id is the second field behind it.
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found, queue = [], [pid]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def _command_line(pid: int) -> str:
    """Return what a process was started with; nothing where it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    return ""


def _toml(value: object) -> str:
    return f'"{value}"' if isinstance(value, str | Path) else str(value)
