"""A training that is killed at any moment goes on from its checkpoints and ends in the same bytes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import numpy as np
import pytest

from commands import call, options
from spikegcl import files as writing
from spikegcl import protocol
from spikegcl.config import Config, preset
from spikegcl.datasets import load_dataset, make_split
from spikegcl.errors import LabelError, RunError, TrainingError
from spikegcl.resume import Checkpoints, Unfinished
from spikegcl.runs import new_run
from spikegcl.training import train

SMALL = Config(steps=4, channels=8, epochs=6, threshold=0.05)
CONFIGS = {
    "margin": SMALL,
    "calibrated": SMALL.replace(threshold=0.0, neuron="PLIF", tau=1.5, encoder="sage"),
    "selected": SMALL.replace(select="validation"),
    "stopped": SMALL.replace(epochs=30, stop="validation", patience=2, select="validation"),
    "clusters": preset("compact", "").replace(steps=2, channels=16, epochs=6),
}


class Killed(BaseException):
    """Ends a training where a test wants it to."""


@pytest.fixture(scope="module")
def graph():
    return load_dataset("sbm:nodes=300,classes=4,num_features=32")


@pytest.fixture(scope="module")
def whole(graph):
    return fit(graph, SMALL)


def kill_after(epoch):
    def on_epoch(done):
        if done.epoch == epoch:
            raise Killed

    return on_epoch


def fit(graph, config, **options):
    return train(graph, config, seed=1, split=make_split(graph, 1), **options)


def interrupt(graph, config, folder, epoch):
    with pytest.raises(Killed):
        fit(graph, config, checkpoints=Checkpoints(folder, 0), on_epoch=kill_after(epoch))


def same(trained, expected):
    state = expected.model.state_dict()
    return (
        np.array_equal(trained.codes, expected.codes)
        and all(np.array_equal(value, state[name]) for name, value in trained.model.state_dict().items())
        and trained.epoch == expected.epoch
        and [epoch.loss for epoch in trained.history] == [epoch.loss for epoch in expected.history]
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_an_interrupted_training_ends_in_the_same_bits(graph, tmp_path, name):
    config = CONFIGS[name]
    whole = fit(graph, config)
    for epoch in (1, 2, len(whole.history)):
        interrupt(graph, config, tmp_path, epoch)
        assert len(list(tmp_path.iterdir())) == min(epoch, 2)
    assert same(fit(graph, config, checkpoints=Checkpoints(tmp_path, 0)), whole)


def test_checkpoints_are_not_written_more_often_than_asked(graph, tmp_path):
    fit(graph, SMALL, checkpoints=Checkpoints(tmp_path, 1000))
    assert not list(tmp_path.iterdir())


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-10])


def empty(path):
    path.write_bytes(b"")


def flip(path, share):
    raw = bytearray(path.read_bytes())
    raw[int(share * (len(raw) - 1))] ^= 1
    path.write_bytes(raw)


DAMAGES = [cut_short, empty, *(lambda path, share=share: flip(path, share) for share in (0, 0.001, 0.1, 0.5, 1))]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_falls_back_to_the_one_before_and_says_so(graph, whole, tmp_path, caplog, damage):
    interrupt(graph, SMALL, tmp_path, 4)
    older, newest = sorted(tmp_path.iterdir())
    damage(newest)
    with caplog.at_level("INFO"):
        assert same(fit(graph, SMALL, checkpoints=Checkpoints(tmp_path, 1000)), whole)
    assert f"{newest} is damaged" in caplog.text
    assert "continuing seed 1 after epoch 3" in caplog.text
    assert list(tmp_path.iterdir()) == [older]
    damage(older)
    assert same(fit(graph, SMALL, checkpoints=Checkpoints(tmp_path, 1000)), whole)
    assert "no checkpoint of seed 1 is whole; training it from the beginning" in caplog.text


def test_a_full_disk_is_a_clear_error_and_loses_nothing(graph, whole, tmp_path, monkeypatch):
    interrupt(graph, SMALL, tmp_path, 3)

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(writing.os, "fsync", full)
        with pytest.raises(RunError, match=r"No space left .* --resume: seed-1-epoch-000003.safetensors is whole"):
            fit(graph, SMALL, checkpoints=Checkpoints(tmp_path, 0))
    assert sorted(path.name[:19] for path in tmp_path.iterdir()) == ["seed-1-epoch-000002", "seed-1-epoch-000003"]
    assert same(fit(graph, SMALL, checkpoints=Checkpoints(tmp_path, 0)), whole)


# The command line. A process that is told to kills itself by SIGKILL in the midst of its n-th file.
SUICIDAL = """
import os, signal, sys
from spikegcl import cli
sync, left = os.fsync, int(sys.argv.pop(1))
def fsync(handle):
    global left
    left -= 1
    os.kill(os.getpid(), signal.SIGKILL) if left == 0 else sync(handle)
os.fsync = fsync
cli.main()
"""
FEW = ("--set", "epochs=4", "--set", "channels=8", "--set", "steps=4", "--no-report", "--checkpoint-seconds", "0")


def killed(folder, number, *arguments):
    done = subprocess.run([sys.executable, "-c", SUICIDAL, str(number), *map(str, arguments)], cwd=folder, check=False)
    assert done.returncode == -9


def test_killed_runs_continue_at_their_seed_and_only_as_themselves(run, files, tmp_path):
    given = options(files[1])
    command = ["train", *given, *FEW, "--seeds", 2]
    assert run(*command, "-o", "whole")[0] == 0
    hidden = tmp_path / ".r.unfinished"

    killed(tmp_path, 4, *command, "-o", "r")  # run.json and two checkpoints are written, the third is being saved
    assert not (tmp_path / "r").exists()
    assert [path.name[7:16] for path in sorted((hidden / "unfinished").glob("seed*"))] == ["epoch-000"] * 2

    code, _, err = run(*command, "-o", "r")
    assert code == 1
    assert "add --resume to continue it or --force to start again" in err
    code, _, err = run(*command, "-o", "r", "--resume", "--set", "lr=0.5")
    assert code == 1
    assert "differs in lr (" in err
    code, _, err = run("train", "digits", *FEW, "-o", "r", "--resume")
    assert code == 1
    assert "differs in graph (" in err

    killed(tmp_path, 9, *command, "-o", "r", "--resume")  # in the second seed
    assert [path.name[:7] for path in (hidden / "unfinished").glob("seed*")][:1] == ["seed-1-"]
    code, _, err = run(*command, "-o", "r", "--resume")
    assert code == 0, err
    assert not hidden.exists()
    assert sorted(path.name for path in (tmp_path / "r").iterdir()) == sorted(
        path.name for path in (tmp_path / "whole").iterdir()
    )
    for name in ("codes.arrow", "config.toml"):  # codes.arrow also names the hash of the model
        assert (tmp_path / "r" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_an_interrupted_run_is_kept_and_force_starts_again(files, tmp_path, monkeypatch, caplog):
    command = ["train", *options(files[1]), *FEW, "-o", tmp_path / "r"]
    with monkeypatch.context() as patch:
        patch.setattr("spikegcl.protocol.judge", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert call(*command) == 130
    assert "the same command with --resume continues it" in caplog.text
    assert call(*command) == 1
    assert call(*command, "--force") == 0
    assert [path.name for path in tmp_path.iterdir()] == ["r"]


def test_a_finished_seed_is_not_trained_again(files, tmp_path, monkeypatch):
    command = ["train", *options(files[1]), "--method", "projection", "--seeds", 2, "-o", tmp_path / "r"]
    seeds, judge = [], protocol.judge

    def interrupted(*arguments):
        seeds.append(arguments[-1])
        if seeds == [0, 1]:
            raise KeyboardInterrupt
        return judge(*arguments)

    monkeypatch.setattr(protocol, "judge", interrupted)
    assert call(*command) == 130
    assert call(*command, "--resume") == 0
    assert seeds == [0, 1, 1]


@pytest.mark.parametrize("error", [RunError, MemoryError, LabelError, TrainingError])
def test_finished_seeds_outlive_what_ends_the_next_one(tmp_path, error):
    with pytest.raises(error), new_run(tmp_path / "r") as folder:
        Unfinished(folder, {}, 0).finish_seed({})
        raise error
    assert (tmp_path / ".r.unfinished/unfinished/rows.json").is_file()


@pytest.mark.parametrize(("error", "kept"), [(RunError, True), (MemoryError, True), (LabelError, False)])
def test_a_checkpoint_is_kept_if_it_can_be_continued(tmp_path, error, kept):
    with pytest.raises(error), new_run(tmp_path / "r") as folder:
        (Unfinished(folder, {}, 0).folder / "seed-0-epoch-000001.safetensors").touch()
        raise error
    assert [path.name for path in tmp_path.iterdir()] == [".r.unfinished"] * kept


def test_a_file_that_cannot_be_written_costs_no_finished_seed(tmp_path):
    with pytest.raises(RunError, match="cannot write"), new_run(tmp_path / "r") as folder:
        Unfinished(folder, {}, 0).finish_seed({})
        (folder / "codes.arrow").mkdir()
        writing.write_text(folder / "codes.arrow", "")
    assert (tmp_path / ".r.unfinished/unfinished/rows.json").is_file()


def test_two_processes_cannot_write_one_run(files, tmp_path):
    with new_run(tmp_path / "r"), pytest.raises(RunError, match="another process is writing"), new_run(tmp_path / "r"):
        pass
