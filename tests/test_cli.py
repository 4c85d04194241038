"""The command line as a user meets it: documents, files, determinism, one clear error for each kind of bad input."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from commands import FAST, options
from spikegcl.codes import open_codes
from spikegcl.commands import train as train_command
from spikegcl.config import preset
from spikegcl.prepared import save_prepared
from spikegcl.readers import read_split
from spikegcl.training import train


@pytest.fixture
def own_run(trained_run, files, tmp_path):
    """Copies that may be spoilt: r of ``trained_run``, and d of the files it was trained on."""
    shutil.copytree(trained_run, tmp_path / "r")
    folder = files[1]["edges"].parent
    shutil.copytree(folder, tmp_path / "d")
    config = tmp_path / "r/config.toml"
    config.write_text(config.read_text().replace(str(folder), str(tmp_path / "d")))
    return tmp_path / "r"


def test_a_run_does_not_replace_the_folder_of_its_inputs(run, own_run):
    """Not even with --force, where that folder is a run."""
    folder = own_run.parent / "d"
    shutil.copy(own_run / "config.toml", folder)
    (edges,) = folder.glob("edges*")
    code, _, err = run("train", edges, *FAST, "--force", "-o", folder)
    assert (code, edges.exists()) == (1, True)
    assert "lies in" in err


def test_json_document_has_everything_promised(run):
    code, out, _ = run("train", "digits", *FAST, "--seeds", 2, "--probe", "paper", "--json", "-o", "r")
    document = json.loads(out)
    assert code == 0
    assert set(document["test_accuracy"]) == {"mean", "std"}
    assert set(document["floors"]) == {"untrained", "ppr-itq", "projection"}
    assert set(document["seconds"]) == {"train", "embed", "probe"}
    for key in ("dataset", "seeds", "val_accuracy", "bits", "firing_rate", "dead_bits", "peak_mb"):
        assert key in document
    assert document["seeds"] == [0, 1]
    assert [row["seed"] for row in document["rows"]] == [0, 1]


def test_run_folder_is_complete_and_seed_zero_is_kept(run, tmp_path):
    assert run("train", "digits", *FAST, "--seeds", 2, "-o", "r")[0] == 0
    names = {"config.toml", "model.safetensors", "codes.arrow", "metrics.json", "log.jsonl"}
    assert names <= {path.name for path in (tmp_path / "r").iterdir()}
    assert run("train", "digits", *FAST, "-o", "single")[0] == 0
    assert (tmp_path / "r/codes.arrow").read_bytes() == (tmp_path / "single/codes.arrow").read_bytes()


def test_same_seed_gives_identical_files(run, tmp_path):
    for name in ("a", "b"):
        assert run("train", "digits", *FAST, "--seed", 5, "-o", name)[0] == 0
    for name in ("codes.arrow", "model.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_files_with_string_ids_give_the_bits_of_the_in_memory_path(run, files):
    graph, paths = files
    assert run("train", *options(paths), *FAST, "--seed", 1, "-o", "r")[0] == 0
    codes = open_codes("r/codes.arrow")
    expected = train(graph, preset("compact", "").replace(epochs=2, channels=8, steps=4), seed=1).codes
    assert codes.ids.tolist() == graph.ids.tolist()
    assert np.array_equal(codes.packed, expected)


def test_edges_alone_are_enough(run, files, caplog):
    caplog.set_level("INFO", "spikegcl")
    code, out, _ = run("train", files[1]["edges"], *FAST, "--json", "-o", "r")
    assert code == 0
    assert "test_accuracy" not in json.loads(out)
    assert "structural columns" in caplog.text


def test_embed_and_probe_agree_with_the_run(run, trained_run, files):
    code, out, _ = run("embed", trained_run, "-o", "again.arrow", "--json")
    assert code == 0
    assert json.loads(out)["graph_changed"] is False
    assert np.array_equal(open_codes("again.arrow").packed, open_codes(trained_run / "codes.arrow").packed)
    expected = json.loads((trained_run / "metrics.json").read_text())["test_accuracy"]["mean"]
    for target in ([trained_run], ["again.arrow", "--labels", files[1]["labels"]]):
        code, out, _ = run("probe", *target, "--json")
        assert code == 0
        assert json.loads(out)["test_accuracy"]["mean"] == pytest.approx(expected)


def test_datasets_lists_all_names(run):
    code, out, _ = run("datasets", "--json")
    assert code == 0
    names = {row["name"] for row in json.loads(out)}
    assert {"cora", "citeseer", "pubmed", "computers", "photo", "cs", "physics", "ogbn-arxiv", "ogbn-mag"} <= names
    assert run("datasets")[0] == 0


def test_summary_for_people_shows_accuracy_floors_and_size(run):
    code, out, _ = run("train", "digits", *FAST, "-o", "r")
    assert code == 0
    for word in ("test accuracy", "untrained encoder", "random projection", "bits per node", "firing rate", "seconds"):
        assert word in out


def spoil(path, text):
    path.write_text(text)
    return path


# Each entry: what is wrong, the command (a function of the files and a folder), the exit code, words of the message.
BAD = {
    "unknown dataset": (lambda f, d: ["nosuchset"], 1, ["nosuchset"]),
    "missing edge file": (lambda f, d: [d / "no.csv"], 1, ["no.csv"]),
    "edge list is a folder": (lambda f, d: [d], 1, ["folder"]),
    "unknown extension": (lambda f, d: [spoil(d / "edges.xyz", "a,b\n")], 1, [".xyz"]),
    "empty edge list": (lambda f, d: [spoil(d / "e.csv", "")], 1, ["e.csv", "empty"]),
    "malformed line": (lambda f, d: [spoil(d / "e.csv", "a,b\nc\n")], 1, ["e.csv", "line 2"]),
    "weight is not a number": (lambda f, d: [spoil(d / "e.csv", "a,b,1\nb,c,x\n")], 1, ["e.csv", "line 2"]),
    "negative weight": (lambda f, d: [spoil(d / "e.csv", "a,b,1\nb,c,-2\n")], 1, ["weight"]),
    "not a number in the features": (
        lambda f, d: options(f, features=spoil(d / "x.csv", "id,a\nnode 0,1\nnode 1,nan\n")),
        1,
        ["x.csv"],
    ),
    "edge to a node without features": (
        lambda f, d: options(f, features=spoil(d / "x.csv", "id,a\nnode 0,1\n")),
        1,
        ["edges.csv", "line 2", "has no row in"],
    ),
    "feature row twice": (
        lambda f, d: options(f, features=spoil(d / "x.csv", "id,a\nnode 0,1\nnode 0,2\n")),
        1,
        ["x.csv", "node 0"],
    ),
    "array features for string ids": (lambda f, d: options(f, features=_array(d, 300)), 1, ["x.npy"]),
    "fewer feature rows than ids": (
        lambda f, d: [spoil(d / "e.csv", "0,1\n1,7\n"), "--features", _array(d, 3)],
        1,
        ["7"],
    ),
    "features without columns": (
        lambda f, d: [spoil(d / "e.csv", "0,1\n"), "--features", _array(d, 2, 0)],
        1,
        ["no columns"],
    ),
    "broken npz": (lambda f, d: options(f, features=spoil(d / "x.npz", "not a zip")), 1, ["x.npz"]),
    "pickled array": (
        lambda f, d: [spoil(d / "e.csv", "0,1\n"), "--features", _pickled(d)],
        1,
        ["x.npy"],
    ),
    "labels of unknown nodes": (
        lambda f, d: options(f, labels=spoil(d / "y.csv", "id,label\nnode 0,a\nstranger,b\n")),
        1,
        ["y.csv", "stranger"],
    ),
    "split with an unknown part": (
        lambda f, d: [*options(f), "--split", spoil(d / "s.csv", "id,part\nnode 0,training\n")],
        1,
        ["s.csv", "training"],
    ),
    "one class only": (
        lambda f, d: options(f, labels=spoil(d / "y.csv", "id,label\n" + "".join(f"node {i},a\n" for i in range(300)))),
        1,
        ["class"],
    ),
    "unknown setting": (lambda f, d: ["digits", "--set", "stepz=3"], 1, ["stepz", "known are"]),
    "setting of the wrong type": (lambda f, d: ["digits", "--set", "steps=many"], 1, ["steps"]),
    "setting out of range": (lambda f, d: ["digits", "--set", "dropout=1.5"], 1, ["dropout", "between"]),
    "setting without a value": (lambda f, d: ["digits", "--set", "steps"], 2, ["key=value"]),
    "bits and steps": (lambda f, d: ["digits", "--bits", "64", "--set", "steps=4"], 2, ["give one of the two"]),
    "bits that make no steps": (lambda f, d: ["digits", "--bits", "131071"], 1, ["131071 bits", "a power of two"]),
    "one node": (lambda f, d: [spoil(d / "e.csv", "a,a\n")], 1, ["one node", "at least two"]),
    "more steps than columns": (
        lambda f, d: ["digits", "--preset", "contrastive", "--set", "steps=65"],
        1,
        ["lower steps"],
    ),
    "unknown preset": (lambda f, d: ["digits", "--preset", "best"], 1, ["best", "compact, contrastive, paper"]),
    "paper preset for another graph": (lambda f, d: ["digits", "--preset", "paper"], 1, ["no 'digits'", "contrastive"]),
    "unknown probe": (lambda f, d: ["digits", "--probe", "svm"], 2, ["svm"]),
    "files given with a dataset": (lambda f, d: ["digits", "--labels", f["labels"]], 1, ["leave the file options out"]),
    "missing raw files": (lambda f, d: ["ogbn-mag:download=false", "--data-root", d], 1, ["ogbn"]),
    "selection without labels": (
        lambda f, d: [*options(f, labels=None), "--set", "select=validation"],
        1,
        ["select=last"],
    ),
    "unknown device": (lambda f, d: ["digits", "--device", "abacus"], 1, ["abacus", "try cpu"]),
    "unknown option": (lambda f, d: ["digits", "--stepz", "3"], 2, ["--stepz"]),
}


def _array(folder, rows, columns=2):
    np.save(folder / "x.npy", np.ones((rows, columns), np.float32))
    return folder / "x.npy"


def _pickled(folder):
    np.save(folder / "x.npy", np.array([{"a": 1}, None], dtype=object), allow_pickle=True)
    return folder / "x.npy"


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_is_one_clear_error_and_leaves_nothing_behind(run, files, tmp_path, kind):
    arguments, expected, words = BAD[kind]
    given = tmp_path / "given"
    given.mkdir()
    code, out, err = run("train", *arguments(files[1], given), "-o", tmp_path / "out" / "run")
    assert code == expected
    assert out == ""
    assert "Traceback" not in err
    flat = " ".join(err.replace("│", " ").split())
    for word in words:
        assert word in flat
    assert not list((tmp_path / "out").glob("*")) if (tmp_path / "out").exists() else True


def test_an_existing_folder_is_not_overwritten(run, tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/thesis.txt").write_text("mine")
    for force in ([], ["--force"]):
        code, _, err = run("train", "digits", *FAST, "-o", "kept", *force)
        assert code == 1
        assert "exists already" in err
    assert (tmp_path / "kept/thesis.txt").read_text() == "mine"


def test_a_finished_run_is_shown_when_it_is_resumed(run, tmp_path):
    command = ["train", "digits", *FAST, "-o", "r", "--json"]
    code, first, _ = run(*command)
    assert code == 0
    code, again, err = run(*command, "--resume")
    assert (code, json.loads(again)) == (0, json.loads(first))
    code, _, err = run(*command, "--resume", "--set", "epochs=3")
    assert code == 1 and "exists already" in err


def test_the_folder_one_is_in_is_no_run_folder(run, tmp_path):
    code, _, err = run("train", "digits", *FAST, "-o", ".")
    assert code == 1 and "inside it" in err
    assert not list(tmp_path.iterdir())


def test_the_demo_replaces_its_own_runs_only(run, trained_run, tmp_path):
    shutil.copytree(trained_run, tmp_path / "mine")
    before = (tmp_path / "mine/codes.arrow").read_bytes()
    code, _, err = run("demo", "-o", "mine")
    assert code == 1 and "exists already" in err
    assert "choose another --output" in err
    assert (tmp_path / "mine/codes.arrow").read_bytes() == before
    assert [run("demo", "-o", "new")[0] for _ in range(2)] == [0, 0]


def test_the_demo_says_that_a_run_of_another_method_is_in_its_way(run):
    assert run("train", "digits", "--method", "itq", "-o", "other")[0] == 0
    code, _, err = run("demo", "-o", "other")
    assert code == 1 and "exists already" in err


def test_files_go_into_folders_that_are_made_and_not_onto_folders(run, trained_run, tmp_path):
    assert run("embed", trained_run, "-o", "deep/er/x.arrow")[0] == 0
    assert (tmp_path / "deep/er/x.arrow").is_file()
    code, _, err = run("embed", trained_run, "-o", "deep")
    assert code == 1 and err.splitlines()[-1].startswith("Error: cannot write deep")
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]


def test_ids_are_numbers_only_as_numbers_are_written(run, tmp_path):
    assert run("train", "digits", *FAST, "-o", "r", "--no-report")[0] == 0
    assert run("search", "r", "--id", "7")[0] == 0
    for key in ("007", "--3"):
        code, _, err = run("search", "r", f"--id={key}")
        assert code == 1 and f"no code has the id '{key}'" in err and "ids look like 0" in err


@pytest.mark.parametrize("damage", ["missing", "config", "model", "codes", "metrics"])
def test_damaged_runs_are_named(run, trained_run, tmp_path, damage):
    if damage != "missing":
        shutil.copytree(trained_run, "r")
        target = {"config": "config.toml", "model": "model.safetensors", "codes": "codes.arrow"}.get(
            damage, "metrics.json"
        )
        (tmp_path / "r" / target).write_bytes(b"\x00broken")
    command = {"codes": ["probe", "r"], "metrics": ["report", "r"]}.get(damage, ["embed", "r", "-o", "x.arrow"])
    code, _, err = run(*command)
    assert code == 1
    assert "Traceback" not in err
    assert err.startswith("Error: ")


def test_sparse_features_on_disk_stay_sparse(run, tmp_path):
    x = sp.random_array((50, 40), density=0.05, rng=np.random.default_rng(0), dtype=np.float32)
    sp.save_npz(tmp_path / "x.npz", sp.csr_array(x))
    spoil(tmp_path / "e.csv", "".join(f"{i},{(i + 1) % 50}\n" for i in range(50)))
    code, out, _ = run("train", "e.csv", "--features", "x.npz", *FAST, "--json", "-o", "r")
    assert code == 0
    assert json.loads(out)["bits"] == 32


def test_import_and_help_are_light():
    """Neither `import spikegcl` nor `spikegcl --help` loads torch, PyG, faiss, matplotlib or pyarrow."""
    script = (
        "import sys\nsys.argv = ['spikegcl', '--help']\nimport spikegcl, spikegcl.cli\n"
        "try:\n    spikegcl.cli.main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'torch_geometric', 'faiss', 'matplotlib', 'pyarrow', 'numba', 'sklearn', 'pandas'}\n"
        "loaded = heavy & set(sys.modules)\nassert not loaded, loaded\n"
    )
    environment = {**os.environ, "TERM": "dumb"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "train" in done.stdout


def test_probe_judges_every_task_in_one_document(run, trained_run):
    code, out, _ = run("probe", trained_run, "--seeds", 2, "--json")
    document = json.loads(out)
    assert code == 0
    assert {"codes", "probe", "bits", "seeds", "test_accuracy", "val_accuracy"} <= set(document)
    assert set(document["tasks"]) == {"knn", "clustering", "retrieval"}
    measures = (("knn", "test_accuracy"), ("clustering", "nmi"), ("clustering", "ari"), ("retrieval", "precision"))
    for task, measure in measures:
        found = document["tasks"][task]
        assert set(found["floors"]) == {"untrained", "ppr-itq", "projection"}
        for result in (found, *found["floors"].values()):
            assert set(result[measure]) == {"mean", "std"}
    assert run("probe", trained_run, "--seeds", 2, "--json")[1] == out
    code, out, _ = run("probe", trained_run)
    assert code == 0
    for word in ("linear (logreg)", "kNN", "NMI", "ARI", "precision@10", "untrained", "ppr-itq", "random", "chance"):
        assert word in out


def test_floors_beside_probes_are_those_of_the_run_and_can_be_left_out(run, trained_run, files, caplog):
    def linear(*arguments):
        code, out, _ = run("probe", *arguments, "--tasks", "linear", "--json")
        assert code == 0
        return json.loads(out)

    document = linear(trained_run)
    floors = document.pop("floors")
    trained = json.loads((trained_run / "metrics.json").read_text())["floors"]
    assert {name: floor["test_accuracy"]["mean"] for name, floor in floors.items()} == {
        name: pytest.approx(accuracy["mean"]) for name, accuracy in trained.items()
    }
    assert linear(trained_run, "--no-floors") == document
    labels = ["--labels", files[1]["labels"]]
    assert linear(trained_run, *labels)["floors"] == floors
    assert "floors" not in linear(trained_run / "codes.arrow", *labels)
    assert not caplog.records


@pytest.mark.parametrize("loss", ["gone", "changed"])
def test_floors_need_the_graph_of_the_run(run, files, tmp_path, caplog, loss):
    paths = {key: Path(shutil.copy(path, tmp_path)) for key, path in files[1].items()}
    assert run("train", *options(paths), *FAST, "--no-report", "-o", "r")[0] == 0
    paths["features"].unlink() if loss == "gone" else spoil(paths["edges"], "node 0,node 1\n")
    code, out, _ = run("probe", "r", "--labels", paths["labels"], "--tasks", "retrieval", "--json")
    assert code == 0
    assert "floors" not in json.loads(out)["tasks"]["retrieval"]
    assert "floors skipped" in caplog.text


def test_probe_predicts_links_of_a_run_and_says_why_not_of_a_code_file(run, files):
    assert run("train", *options(files[1], labels=None), *FAST, "-o", "r")[0] == 0
    code, out, _ = run("probe", "r", "--tasks", "link", "--json")
    link = json.loads(out)["tasks"]["link"]
    assert code == 0
    assert "test_accuracy" not in json.loads(out)
    for scores in (link, *link["floors"].values()):
        assert 0.5 < scores["hamming"]["auc"]["mean"] <= 1
        assert set(scores["logreg"]) == {"auc", "ap"}
    out = run("probe", "r", "--tasks", "link")[1]
    assert all(word in out for word in ("hamming", "AUC", "AP", "untrained", "random"))
    assert json.loads(run("probe", "r", "--tasks", "link", "--no-floors", "--json")[1])["tasks"]["link"]["floors"] == {}
    code, out, err = run("probe", "r/codes.arrow", "--tasks", "link", "--json")
    assert code == 0
    assert "run folder" in json.loads(out)["tasks"]["link"]["skipped"]
    code, _, err = run("probe", "r", "--tasks", "linear,svm")
    assert code == 2
    assert "svm" in err
    code, _, err = run("probe", "r")
    assert code == 1
    assert "--labels" in err


def test_probe_speaks_of_small_classes_once_a_seed(run, trained_run, files, caplog):
    nodes = files[0].ids.tolist()
    rows = "".join(f"{node},{'rare' if place < 2 else 'ab'[place % 2]}\n" for place, node in enumerate(nodes))
    Path("y.csv").write_text(f"id,label\n{rows}")
    assert run("probe", trained_run, "--labels", "y.csv", "--tasks", "linear,knn", "--seeds", 2)[0] == 0
    assert caplog.text.count("1 classes have fewer than three labelled nodes") == 2


def test_probe_uses_the_given_split_with_the_labels_of_the_run(run, trained_run, files):
    graph, paths = files
    parts = np.array(["train", "val", "test"])[np.arange(300) % 3]
    split = spoil(Path("split.csv"), "id,part\n" + "".join(f"{i},{p}\n" for i, p in zip(graph.ids, parts, strict=True)))
    out = run("probe", trained_run, "--split", split, "--json")[1]
    given, own = json.loads(out), json.loads(run("probe", trained_run, "--json")[1])
    assert given["chance"] != own["chance"]  # the test nodes are others
    by_file = run("probe", trained_run / "codes.arrow", "--labels", paths["labels"], "--split", split, "--json")[1]
    assert json.loads(by_file)["test_accuracy"] == given["test_accuracy"]


def test_ten_labelled_nodes_are_too_few_for_retrieval_alone(run, trained_run, files):
    graph = files[0]
    lines = "".join(f"{graph.ids[row]},{graph.labels[row]}\n" for row in range(0, 300, 30))
    few = ["--labels", spoil(Path("few.csv"), "id,label\n" + lines)]
    code, out, _ = run("probe", trained_run, *few, "--tasks", "clustering,retrieval", "--json")
    assert code == 0
    assert json.loads(out)["tasks"]["clustering"]["floors"]
    assert "there are 10 in all" in json.loads(out)["tasks"]["retrieval"]["skipped"]
    assert "retrieval: skipped" in run("probe", trained_run, *few, "--tasks", "clustering,retrieval")[1]
    code, _, err = run("probe", trained_run, *few, "--tasks", "retrieval")
    assert code == 1 and "precision@10" in err


@pytest.fixture
def split_run(own_run, files, tmp_path):
    """``own_run`` as if its graph had come with a split, split.csv."""
    parts = np.array(["train", "val", "test"])[np.arange(300) % 3]
    lines = "".join(f"{i},{part}\n" for i, part in zip(files[0].ids, parts, strict=True))
    split, config = spoil(tmp_path / "split.csv", "id,part\n" + lines), own_run / "config.toml"
    spoil(config, config.read_text().replace("[graph]\n", f'[graph]\nsplit = "{split}"\n'))
    return own_run


def test_probe_keeps_the_split_of_the_run_when_labels_are_given(run, split_run):
    own = run("probe", split_run, "--tasks", "linear,knn", "--json")[1]
    given = run("probe", split_run, "--tasks", "linear,knn", "--labels", "d/labels.csv", "--json")[1]
    assert json.loads(given) == json.loads(own)


def test_probe_keeps_the_split_of_a_prepared_graph_when_labels_are_given(run, split_run, files, tmp_path):
    save_prepared(replace(files[0], split=read_split("split.csv", files[0].ids)), "g")
    config = (split_run / "config.toml").read_text()
    kept = [line for line in config.splitlines() if not line.startswith(("features", "labels", "split"))]
    spoil(split_run / "config.toml", "\n".join(kept).replace("d/edges.csv", "g"))
    own = run("probe", split_run, "--tasks", "linear", "--json")[1]
    given = run("probe", split_run, "--tasks", "linear", "--labels", "d/labels.csv", "--json")[1]
    assert json.loads(given) == json.loads(own)


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        (lambda place: "ab"[place % 2] if place % 3 else None, "the split has no training nodes"),
        (lambda place: "ab"[place % 2] if place % 3 == 0 else "abc"[place % 3], "on no training node"),
    ],
    ids=["no label in a part", "a class missing from training"],
)
def test_probe_draws_splits_where_that_of_the_run_does_not_suit_the_labels(
    run, split_run, files, caplog, labels, reason
):
    known = {node: labels(place) for place, node in enumerate(files[0].ids)}
    spoil(Path("y.csv"), "id,label\n" + "".join(f"{node},{label}\n" for node, label in known.items() if label))
    code, out, _ = run("probe", split_run, "--labels", "y.csv", "--no-floors", "--json")
    assert code == 0
    assert set(json.loads(out)["tasks"]) == {"knn", "clustering", "retrieval"}
    assert "the run's own split is not used, others are drawn" in caplog.text and reason in caplog.text


def test_probe_says_when_the_split_of_the_run_is_gone(run, split_run, caplog):
    Path("split.csv").unlink()
    assert run("probe", split_run, "--tasks", "linear", "--labels", "d/labels.csv", "--no-floors")[0] == 0
    assert "the run's own split is not used" in caplog.text


def test_labels_of_nodes_without_a_code_are_counted_and_ignored(run, trained_run, files, caplog):
    caplog.set_level("INFO", "spikegcl")
    open_codes(trained_run / "codes.arrow")[:150].save("some.arrow")
    code, out, _ = run("probe", "some.arrow", "--labels", files[1]["labels"], "--json")
    assert code == 0
    assert json.loads(out)["tasks"]["retrieval"]["queries"] == [150]
    assert "150 lines" in caplog.text
    code, _, err = run("probe", "some.arrow", "--labels", spoil(Path("y.csv"), "id,label\nx,1\ny,2\n"))
    assert code == 1
    assert "not a node" in err


@pytest.mark.parametrize("command", ["embed", "energy", "report", "probe"])
def test_labels_that_are_gone_are_missed_only_where_they_are_needed(run, own_run, caplog, command):
    Path("d/labels.csv").unlink()
    more = ("--tasks", "link") if command == "probe" else ()
    assert run(command, own_run, *more)[0] == 0
    assert ("leaves out what needs labels" in caplog.text) == (command == "report")


def test_floors_need_no_labels_of_the_run(run, own_run):
    Path("d/labels.csv").rename("labels.csv")
    code, out, _ = run("probe", own_run, "--labels", "labels.csv", "--tasks", "retrieval", "--json")
    assert code == 0
    assert "floors" in json.loads(out)["tasks"]["retrieval"]


def test_a_graph_that_changed_since_training_is_named(run, files, tmp_path):
    paths = {key: Path(shutil.copy(path, tmp_path)) for key, path in files[1].items()}
    assert run("train", *options(paths), *FAST, "--no-report", "-o", "r")[0] == 0
    with paths["features"].open("a") as file:
        file.write("newcomer" + ",0" * 64 + "\n")
    code, _, err = run("probe", "r")
    assert code == 1
    assert "has changed" in err


def test_a_limit_on_threads_holds_for_numba_and_torch():
    """In a process of its own: both read their limits when they are imported."""
    code = """if True:
        import numpy, sys
        from spikegcl import cli
        assert "numba" not in sys.modules
        cli._limit_threads()
        import numba, torch
        from spikegcl.bits import linear
        linear(numpy.zeros((100, 8), numpy.uint8), numpy.zeros((64, 3), numpy.float32))
        print(numba.get_num_threads(), torch.get_num_threads())
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("NUMBA_NUM_THREADS", None)
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert found.stdout.split() == ["1", "1"], found.stderr


def test_an_output_that_cannot_be_written_is_refused_before_anything_runs(run, tmp_path):
    (tmp_path / "file").touch()
    chosen = ("--quick", "--datasets", "sbm:nodes=200", "--methods", "gcn", "--seeds", "1")
    code, _, err = run("reproduce", "table1", *chosen, "-o", "file")
    assert code == 1
    assert "Not a directory; choose another --output" in err


def test_a_table_shows_the_rows_that_a_stopped_repetition_did_not_replace(run):
    chosen = ("citation", "--quick", "--datasets", "sbm:nodes=200", "--methods", "bane", "--seeds", "1", "-o", "out")
    assert run("reproduce", *chosen)[0] == 0
    table = Path("out/quick/citation.md")
    before = table.read_text()
    assert "(1)" in before
    assert run("reproduce", *chosen, "--redo", "--budget", "0")[0] == 0
    assert table.read_text() == before


@pytest.mark.parametrize("name", ["[v2]", "x[/b]", ":smile:"])
def test_names_that_look_like_markup_are_shown_as_they_are(run, name):
    code, out, _ = run("train", "sbm:nodes=200", *FAST, "-o", name)
    assert code == 0
    assert name in out


def test_a_link_to_an_empty_folder_stays_one(run, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert run("train", "sbm:nodes=200", *FAST, "-o", "link")[0] == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "codes.arrow").is_file()


def test_an_interrupt_says_what_is_left(run, monkeypatch):
    monkeypatch.setattr("spikegcl.protocol.run_seed", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    code, _, err = run("train", "digits", "-o", "r")
    assert code == 130
    assert "interrupted" in err
    assert "--resume" in err


def test_settings_that_change_nothing_are_named(run, files, caplog):
    few = [*options(files[1]), "--bits", 16, "--no-report", "--set", "lr=0.1", "--set", "firing_rate=0.2"]
    assert run("train", *few, "-o", "r")[0] == 0
    assert "leave them out: firing_rate\n" in caplog.text
    assert "try --set epochs=10: lr\n" in caplog.text
    caplog.clear()
    assert run("train", *few, "--set", "epochs=1", "-o", "trained")[0] == 0
    assert "leave them out: firing_rate\n" in caplog.text
    assert "try --set" not in caplog.text


def test_codes_below_a_floor_come_with_advice(run, files, monkeypatch, caplog):
    monkeypatch.setattr(train_command, "BEHIND", -100.0)
    monkeypatch.setattr(train_command, "DEAD", -1.0)
    code, *_ = run("train", *options(files[1]), "--bits", "16", "--no-report", "-o", "r")
    assert code == 0
    assert "points below a floor" in caplog.text and "--set propagation=" in caplog.text
    assert "bits never fire" in caplog.text


@pytest.mark.parametrize("error", [RuntimeError("DefaultCPUAllocator: can't allocate memory: you"), MemoryError()])
def test_a_lack_of_memory_is_said_in_one_line(run, monkeypatch, error):
    def full(*_, **__):
        raise error

    monkeypatch.setattr("spikegcl.protocol.run_seed", full)
    code, _, err = run("train", "digits", "--no-report", "-o", "r")
    assert code == 1
    assert "out of memory" in err and "Traceback" not in err


OUTPUTS = {"embed": (), "export": ("--to", "npy"), "report": ()}


@pytest.mark.parametrize("command", OUTPUTS)
@pytest.mark.parametrize("taken", ["d/edges.csv", "d/features.csv", "d/labels.csv", "r/codes.arrow", "r/log.jsonl"])
def test_no_output_replaces_a_file_of_the_run_or_of_its_graph(run, own_run, command, taken):
    before = Path(taken).read_bytes()
    code, _, err = run(command, own_run, *OUTPUTS[command], "-o", taken)
    assert code == 1 and "choose another --output" in err
    assert Path(taken).read_bytes() == before


@pytest.mark.parametrize("again", [[], ["g"]])
def test_no_output_replaces_a_file_of_a_prepared_graph(run, own_run, files, again):
    save_prepared(files[0], "g")
    if not again:
        config = (own_run / "config.toml").read_text()
        (own_run / "config.toml").write_text(config.replace("d/edges.csv", "g"))
    code, _, err = run("embed", own_run, *again, "-o", "g/ids.arrow")
    assert code == 1 and "choose another --output" in err


def test_codes_are_not_written_under_the_name_of_another_format(run, trained_run):
    code, _, err = run("embed", trained_run, "-o", "codes.parquet")
    assert code == 1
    assert "codes.arrow" in err and not Path("codes.parquet").exists()
