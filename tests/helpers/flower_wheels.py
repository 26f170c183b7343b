"""Flower's own wheels, of any version, beside the one that is installed."""

import subprocess
import sys
import zipfile

import pytest


def unpacked_wheel(version, folder):
    """Download a version of Flower and unpack it below `folder`; skip the test where it cannot be had."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), f"flwr=={version}"]
    subprocess.run(pip, check=False, capture_output=True)
    wheels = list(folder.glob("flwr-*.whl"))
    if not wheels:
        pytest.skip(f"Flower {version} cannot be downloaded here")
    with zipfile.ZipFile(wheels[0]) as wheel:
        wheel.extractall(folder / "flower")
    return folder / "flower"
