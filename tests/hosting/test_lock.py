"""One server per folder."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fedpace._base.errors import InputError
from fedpace.hosting.state_folder import FolderLock

HOLD = """
import sys
from pathlib import Path
from fedpace.hosting.state_folder import FolderLock
lock = FolderLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_process_is_told_who_holds_the_folder_until_that_one_is_killed(tmp_path):
    folder = tmp_path / "new" / "state"
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(InputError, match=f"is in use by process {holder.pid} on "):
            FolderLock(folder)
        holder.kill()
        holder.wait()
        FolderLock(folder).release()


def test_it_can_be_taken_again(tmp_path):
    lock = FolderLock(tmp_path)
    lock.acquire()
    lock.release()
    lock.release()
    lock.acquire()
    with pytest.raises(InputError, match="in use"):
        FolderLock(tmp_path)
    lock.release()


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="give another folder"):
        FolderLock(tmp_path / "file")
