"""Many processes: two of them, on one host and on two, do what one does."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from threadpoolctl import threadpool_limits

import worker
from commands import FAST, call, options
from spikegcl.codes import open_codes
from spikegcl.runs import open_run
from spikegcl.shards import open_shards

TESTS = Path(__file__).parent
SECONDS = 300  # a process that waits for another in vain ends here


def torchrun(*arguments, host=(), interface="lo"):
    """The command line of a launcher, inside ``host`` (a command prefix), and the environment of its processes."""
    paths = [str(TESTS), str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")]
    own = {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    command = [*host, sys.executable, "-m", "torch.distributed.run", *map(str, arguments)]
    return command, {**os.environ, **own, "GLOO_SOCKET_IFNAME": interface}


def launch_two():
    """Options of torchrun for two processes of this host."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return "--nproc-per-node", 2, "--master-addr", "127.0.0.1", "--master-port", taken.getsockname()[1]


def run_two(*program):
    """Run ``program`` in two processes of this host."""
    command, own = torchrun(*launch_two(), *program)
    return subprocess.run(command, env=own, timeout=SECONDS, capture_output=True, text=True, check=False)


def assert_like_one_process(path):
    two, one = np.load(path), worker.measure()
    assert two["processes"] == 2
    assert np.array_equal(two["codes"], one["codes"])
    for name, expected in one.items():
        assert np.linalg.norm(two[name] - expected) <= 1e-5 * np.linalg.norm(expected), name


def test_two_processes_have_the_gradients_statistics_and_codes_of_one(tmp_path):
    ended = run_two(TESTS / "worker.py", tmp_path / "two.npz")
    assert ended.returncode == 0, ended.stderr
    assert_like_one_process(tmp_path / "two.npz")


@pytest.mark.parametrize(
    "settings", [("--preset", "contrastive", *FAST), ("--bits", 64)], ids=["contrastive", "default"]
)
def test_train_command_in_two_processes(settings, files, tmp_path):
    arguments = ("train", *options(files[1]), *settings, "--parts", 2, "--no-report", "-o")
    ended = run_two("-m", "spikegcl", *arguments, tmp_path / "two")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("bits per node") == 1
    with threadpool_limits(1):  # as torchrun has it: products of compact depend on the number of threads
        assert call(*arguments, tmp_path / "one") == 0
    two, one = (open_codes(tmp_path / name / "codes.arrow") for name in ("two", "one"))
    assert np.array_equal(two.packed, one.packed)
    if "contrastive" in settings:
        assert two.info == one.info  # the model's hash: its weights are the same to the last bit
    assert open_run(tmp_path / "two").config.parts == 2
    ended = run_two("-m", "spikegcl", "embed", tmp_path / "two", "-o", tmp_path / "shards.json")
    assert ended.returncode == 0, ended.stderr
    shards = open_shards(tmp_path / "shards.json")
    assert [len(part) for part in shards.parts] == [150, 150]
    assert np.array_equal(shards[:].packed, one.packed)


def test_a_lost_process_comes_back_and_nothing_changes(files, tmp_path):
    settings = ("--preset", "contrastive", "--set", "epochs=40", "--set", "channels=8", "--set", "steps=4")
    arguments = ("train", *options(files[1]), *settings, "--parts", 2, "--checkpoint-seconds", 0, "--no-report", "-o")
    command, own = torchrun(
        "--max-restarts", 1, *launch_two(), "-m", "spikegcl", *arguments, tmp_path / "r", "--resume"
    )
    with subprocess.Popen(command, env=own, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as launcher:
        try:
            lose_second(launcher, tmp_path / ".r.unfinished")
            errors = launcher.communicate(timeout=SECONDS)[1]
        finally:
            launcher.kill()
    assert launcher.returncode == 0, errors
    assert "continuing seed 0 after epoch" in errors
    assert call(*arguments, tmp_path / "whole") == 0
    assert (tmp_path / "r" / "codes.arrow").read_bytes() == (tmp_path / "whole" / "codes.arrow").read_bytes()


def lose_second(launcher, unfinished):
    """Kill the process of rank 1 once there is a checkpoint."""
    until = time.monotonic() + SECONDS
    while not list(unfinished.glob("unfinished/seed-*.safetensors")):
        assert launcher.poll() is None, launcher.communicate()[1]
        assert time.monotonic() < until
        time.sleep(0.02)
    ranks = {child.environ().get("RANK"): child for child in psutil.Process(launcher.pid).children(recursive=True)}
    ranks["1"].kill()


@contextlib.contextmanager
def two_hosts():
    """Two network namespaces joined by a cable; yields (command prefix, interface, address) of each."""
    name = f"sg{secrets.token_hex(2)}"
    hosts = [(f"{name}{side}", f"{name}v{side}", f"10.213.77.{side + 1}") for side in (0, 1)]

    def ip(*arguments):
        subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)

    try:
        for space, _, _ in hosts:
            ip("netns", "add", space)
        ip("link", "add", hosts[0][1], "netns", hosts[0][0], "type", "veth", "peer", hosts[1][1], "netns", hosts[1][0])
        for space, interface, address in hosts:
            ip("-n", space, "addr", "add", f"{address}/24", "dev", interface)
            ip("-n", space, "link", "set", interface, "up")
            ip("-n", space, "link", "set", "lo", "up")
    except (OSError, subprocess.CalledProcessError) as error:
        remove_hosts(hosts)
        pytest.skip(f"network namespaces cannot be made here: {getattr(error, 'stderr', None) or error}")
    try:
        yield [(("ip", "netns", "exec", space), interface, address) for space, interface, address in hosts]
    finally:
        remove_hosts(hosts)


def remove_hosts(hosts):
    for space, _, _ in hosts:
        if shutil.which("ip"):
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)


def test_two_hosts_have_the_gradients_statistics_and_codes_of_one(tmp_path):
    with two_hosts() as hosts:
        launched = []
        for number, (prefix, interface, _) in enumerate(hosts):
            command, own = torchrun(
                "--nnodes", 2, "--node-rank", number, "--nproc-per-node", 1, "--master-addr", hosts[0][2],
                "--master-port", 29511, TESTS / "worker.py", tmp_path / "two.npz", host=prefix, interface=interface,
            )  # fmt: skip
            launched.append(subprocess.Popen(command, env=own, stderr=subprocess.PIPE, text=True))
        try:
            errors = [process.communicate(timeout=SECONDS)[1] for process in launched]
        finally:
            for process in launched:
                process.kill()
        assert [process.returncode for process in launched] == [0, 0], errors
    assert_like_one_process(tmp_path / "two.npz")
