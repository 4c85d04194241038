"""The estimator: scikit-learn's own checks, every kind of input, pipelines, files; and the public names."""

from __future__ import annotations

import dataclasses
import fnmatch
import inspect
import resource
import subprocess
import sys

import networkx
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks

import spikegcl
from spikegcl.checkpoint import load_model, save_model
from spikegcl.codes import Codes
from spikegcl.config import Config, preset
from spikegcl.datasets import load_dataset, make_split
from spikegcl.errors import ConfigError, FeatureError, GraphError, LabelError, RunError, WriteError
from spikegcl.estimator import SpikeGCLEmbedder
from spikegcl.foreign import to_pyg
from spikegcl.graph import build_graph
from spikegcl.training import train

FAST = {"steps": 4, "channels": 16, "epochs": 2}


EMBEDDERS = [
    SpikeGCLEmbedder(channels=8, epochs=1, threshold=0.1, output=output) for output in ("bits", "packed", "rate")
]

# scikit-learn lists these for its own transformers only, but they apply.
FURTHER = (
    "check_dataframe_column_names_consistency",
    "check_get_feature_names_out_error",
    "check_global_output_transform_pandas",
    "check_global_set_output_transform_polars",
    "check_set_output_transform",
    "check_set_output_transform_pandas",
    "check_set_output_transform_polars",
    "check_transformer_get_feature_names_out",
    "check_transformer_get_feature_names_out_pandas",
)

# Why the others cannot apply.
OTHERS = {
    "check_array_api_*": "needs an array API library besides numpy; the embedder computes in torch",
    "check_class*": "for classifiers",
    "check_cluster*": "for clusterers",
    "check_decision_*": "for classifiers",
    "check_estimator": "runs all the others",
    "check_estimators_data_not_an_array": "a helper of the check for transformers",
    "check_estimators_partial_fit_n_features": "there is no partial_fit",
    "check_fit_non_negative": "negative features are welcome",
    "check_inplace_ensure_writeable": "there is no copy=False",
    "check_is_fitted": "a function for estimators, not a check",
    "check_non_transformer_*": "for other kinds of estimators",
    "check_nonsquare_error": "for pairwise estimators",
    "check_outlier*": "for outlier detectors",
    "check_param_validation": "for scikit-learn's own declared constraints; settings are checked by Config",
    "check_regressor*": "for regressors",
    "check_requires_y_none": "y is not required",
    "check_all_zero_sample_weights_error": "there are no sample weights",
    "check_sample_weight*": "there are no sample weights",
    "check_sparsify_*": "for linear models",
    "check_supervised_*": "for supervised estimators",
    "check_transformer_preserve_dtypes": "codes are uint8 and rates float32, whatever the input is",
    "check_transformers_unfitted_stateless": "for transformers that need no fit",
}


# A plain matrix is a graph without edges, so every check for transformers applies, and none is expected to fail. One
# skips itself: check_array_api_input. What no check can see, because all of them pass matrices, has its own test below:
# graphs, tuples, PyG data. Checks that take rows apart (check_methods_subset_invariance,
# check_methods_sample_order_invariance) hold for matrices only: on a graph a node's code depends on its neighbours,
# which is the point.
@parametrize_with_checks(EMBEDDERS)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("check", FURTHER)
@pytest.mark.parametrize("embedder", EMBEDDERS, ids=lambda embedder: embedder.output)
def test_further_scikit_learn_checks(embedder, check):
    getattr(estimator_checks, check)("SpikeGCLEmbedder", clone(embedder))


def test_every_check_of_scikit_learn_is_run_or_has_a_reason():
    run = {check.func.__name__ for _, check in estimator_checks.estimator_checks_generator(EMBEDDERS[0])}
    left = {name for name in dir(estimator_checks) if name.startswith("check_")} - run - set(FURTHER)
    explained = {pattern: set(fnmatch.filter(left, pattern)) for pattern in OTHERS}
    assert set().union(*explained.values()) == left
    assert all(explained.values())


@pytest.fixture(scope="module")
def graph():
    """A graph with sparse features."""
    return load_dataset("sbm:nodes=400,classes=4,num_features=64")


def test_parameters_are_the_settings_and_four_more():
    names = set(inspect.signature(SpikeGCLEmbedder).parameters)
    assert names == {field.name for field in dataclasses.fields(Config)} | {"output", "preset", "seed", "device"}
    given = {**FAST, "encoder": "sage", "output": "rate", "seed": 3}
    embedder = SpikeGCLEmbedder(**given)
    assert {key: clone(embedder).get_params()[key] for key in given} == given
    assert embedder.set_params(tau=2.0).tau == 2.0


def test_every_input_gives_the_codes_of_the_training_loop(graph):
    expected = train(graph, preset("compact", "").replace(**FAST), seed=2).codes
    inputs = {
        "graph": graph,
        "pyg": to_pyg(graph),
        "tuple": (graph.features, graph.adjacency),
        "dense tuple": (graph.features.toarray(), graph.adjacency),
        "edges": (graph.features, np.stack([np.repeat(np.arange(400), graph.degrees), graph.indices])),
        "frame": (pd.DataFrame(graph.features.toarray()), graph.adjacency),
    }
    for name, given in inputs.items():
        embedder = SpikeGCLEmbedder(**FAST, seed=2, output="packed")
        assert np.array_equal(embedder.fit_transform(given), expected), name
        assert np.array_equal(embedder.transform(graph), expected), name


def test_outputs_are_views_of_the_same_bits(graph):
    embedder = SpikeGCLEmbedder(**FAST).fit(graph)
    bits = embedder.transform(graph)
    assert (bits.shape, bits.dtype) == ((400, 64), np.uint8)
    assert np.array_equal(bits, embedder.codes_.to_numpy())
    assert np.array_equal(embedder.set_params(output="packed").transform(graph), Codes.from_bits(bits).packed)
    rate = embedder.set_params(output="rate").transform(graph)
    assert (rate.shape, rate.dtype) == ((400, 16), np.float32)
    np.testing.assert_allclose(rate, bits.reshape(400, 4, 16).mean(1))
    with pytest.raises(ConfigError, match="floats"):
        embedder.set_params(output="floats").transform(graph)


@pytest.mark.parametrize("output", ["bits", "packed", "rate"])
def test_output_names_and_frames(graph, output):
    embedder = SpikeGCLEmbedder(**FAST, output=output).set_output(transform="pandas")
    frame = embedder.fit_transform(graph)
    assert list(frame.columns) == list(embedder.get_feature_names_out())


def test_a_graph_without_features_gets_structural_ones(graph):
    embedder = SpikeGCLEmbedder(**FAST)
    codes = embedder.fit_transform((None, graph.adjacency))
    assert embedder.n_features_in_ == 128
    assert embedder.feature_names_in_[-1] == "log_degree"
    assert np.array_equal(embedder.transform((None, graph.adjacency)), codes)


def test_columns_are_matched_by_name(graph):
    names = [f"w{i}" for i in range(64)]
    dense = pd.DataFrame(graph.features.toarray(), columns=names)
    embedder = SpikeGCLEmbedder(**FAST)
    codes = embedder.fit_transform((dense, graph.adjacency))
    assert list(embedder.feature_names_in_) == names
    assert np.array_equal(embedder.transform((dense[names[::-1]], graph.adjacency)), codes)
    with pytest.raises(FeatureError, match="w0"):
        embedder.transform((dense[names[1:]], graph.adjacency))


def test_columns_of_several_kinds_beside_an_adjacency(graph):
    values = graph.features.toarray()[:, :9]
    table = pd.DataFrame(values).assign(flag=values[:, 0] > 0)
    codes = SpikeGCLEmbedder(**FAST).fit_transform((table, graph.adjacency))
    assert np.array_equal(codes, SpikeGCLEmbedder(**FAST).fit_transform((table.astype(float), graph.adjacency)))


def test_new_nodes_and_a_new_fit_on_other_columns(graph):
    old = graph.subgraph(np.arange(300))
    embedder = SpikeGCLEmbedder(**FAST).fit(old)
    assert embedder.transform(graph).shape == (400, 64)
    embedder.fit(np.random.default_rng(0).random((30, 8)))
    assert embedder.n_features_in_ == 8
    assert not hasattr(embedder, "feature_names_in_")


@pytest.mark.parametrize("output", ["bits", "rate"])
def test_pipeline_with_a_train_mask(graph, output):
    """Zero weight hides the labels of other nodes from the classifier, while their edges and features still serve."""
    split = make_split(graph, 0)
    mask = np.zeros(400)
    mask[split.train] = mask[split.val] = 1
    labels = np.where(mask > 0, graph.labels, 0)
    pipe = make_pipeline(SpikeGCLEmbedder(**FAST, output=output), LogisticRegression(max_iter=500))
    pipe.fit(graph, labels, logisticregression__sample_weight=mask)
    accuracy = (pipe.predict(graph) == graph.labels)[split.test].mean()
    codes = SpikeGCLEmbedder(**FAST, output=output).fit_transform(graph)
    rows = mask > 0
    alone = LogisticRegression(max_iter=500).fit(codes[rows], graph.labels[rows])
    assert (pipe.predict(graph) == alone.predict(codes)).mean() > 0.98
    assert accuracy > 0.5
    assert pipe.set_params(spikegclembedder__epochs=1).fit(graph, labels).predict(graph).shape == (400,)


def test_pipeline_on_unseen_nodes(graph):
    seen = np.arange(320)
    pipe = make_pipeline(SpikeGCLEmbedder(**FAST), LogisticRegression(max_iter=500))
    pipe.fit(graph.subgraph(seen), graph.labels[seen])
    assert (pipe.predict(graph) == graph.labels)[320:].mean() > 0.5


def test_labels_serve_selection_only(graph):
    unlabelled = build_graph(graph.adjacency, graph.features)
    wrong = np.zeros(400, int)
    plain = SpikeGCLEmbedder(**FAST)
    assert np.array_equal(plain.fit_transform(unlabelled, wrong), plain.fit_transform(unlabelled))
    choosy = SpikeGCLEmbedder(**FAST, select="validation")
    assert choosy.fit(unlabelled, graph.labels).history_[0].val_accuracy is not None
    assert np.array_equal(choosy.codes_.packed, choosy.fit(graph).codes_.packed)
    with pytest.raises(LabelError, match="select=last"):
        choosy.fit(unlabelled)


def test_settings_are_checked_in_fit_and_may_be_numpy_numbers(graph):
    for wrong in (
        {"preset": "contrastive", "steps": 99},
        {"dropout": 2.0},
        {"preset": "best"},
        {"preset": "paper"},
        {"seed": -1},
    ):
        embedder = SpikeGCLEmbedder(**{**FAST, **wrong})
        with pytest.raises(ConfigError):
            embedder.fit(graph)
    fitted = SpikeGCLEmbedder(**{**FAST, "steps": np.int64(4), "tau": np.float64(1.5)}, seed=np.int64(1)).fit(graph)
    assert fitted.config_.tau == 1.5


def test_bits_and_other_steps_are_refused_as_by_the_command_line(graph):
    with pytest.raises(ConfigError, match="give one of the two"):
        SpikeGCLEmbedder(bits=64, steps=3).fit(graph)
    assert SpikeGCLEmbedder(bits=64, steps=4, channels=16).fit(graph).codes_.bits == 64


@pytest.mark.parametrize("wrong", [None, "edges.csv", networkx.karate_club_graph()])
def test_what_is_no_graph_is_named(wrong):
    with pytest.raises(GraphError, match="give a Graph"):
        SpikeGCLEmbedder().fit(wrong)


def test_rows_of_a_data_frame_keep_their_names():
    values = np.random.default_rng(0).standard_normal((20, 9))
    names = [f"node {number}" for number in range(20)]
    frame = pd.DataFrame(values, index=names)
    assert SpikeGCLEmbedder(bits=16).fit(frame).codes_.ids.tolist() == names
    assert SpikeGCLEmbedder(bits=16).fit((frame, [[0, 1], [1, 2]])).codes_.ids.tolist() == names
    repeated = pd.DataFrame(values, index=["same"] * 20)
    assert SpikeGCLEmbedder(bits=16).fit(repeated).codes_.ids.tolist() == list(range(20))


def test_a_torch_device_is_saved_by_its_name(graph, tmp_path):
    embedder = SpikeGCLEmbedder(**FAST, device=torch.device("cpu")).fit(graph)
    embedder.save(tmp_path / "embedder.safetensors")
    assert SpikeGCLEmbedder.load(tmp_path / "embedder.safetensors").device == "cpu"


def test_saved_embedders_come_back_whole(graph, tmp_path):
    names = [f"w{i}" for i in range(64)]
    named = build_graph(graph.adjacency, graph.features, columns=names)
    embedder = SpikeGCLEmbedder(**FAST, output="rate", seed=np.int64(5)).fit(named)
    embedder.save(tmp_path / "embedder.safetensors")
    again = SpikeGCLEmbedder.load(tmp_path / "embedder.safetensors")
    assert again.get_params() == embedder.get_params()
    assert (again.n_features_in_, list(again.feature_names_in_)) == (64, names)
    assert np.array_equal(again.transform(graph), embedder.transform(graph))
    assert [path.name for path in tmp_path.iterdir()] == ["embedder.safetensors"]
    model, columns = load_model(tmp_path / "embedder.safetensors")
    assert (model.bits, columns) == (64, tuple(names))


def test_saving_on_a_full_disk_names_the_file(graph, tmp_path):
    embedder, path = SpikeGCLEmbedder(**FAST).fit(graph), tmp_path / "embedder.safetensors"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(WriteError, match=f"cannot write {path}: "):
            embedder.save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_models_of_run_folders_can_be_loaded_too(graph, tmp_path):
    trained = train(graph, Config(**FAST))
    save_model(trained.model, tmp_path / "model.safetensors")
    loaded = SpikeGCLEmbedder.load(tmp_path / "model.safetensors").set_params(output="packed")
    assert np.array_equal(loaded.transform(graph), trained.codes)
    (tmp_path / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(RunError):
        SpikeGCLEmbedder.load(tmp_path / "model.safetensors")


def test_using_before_fitting_is_the_usual_error(graph, tmp_path):
    embedder = SpikeGCLEmbedder()
    for use in (
        lambda: embedder.transform(graph),
        lambda: embedder.save(tmp_path / "x"),
        embedder.get_feature_names_out,
    ):
        with pytest.raises(NotFittedError):
            use()


def test_sparse_matrix_alone_is_features_without_edges():
    features = sp.random_array((50, 40), density=0.1, rng=np.random.default_rng(0), dtype=np.float32)
    codes = SpikeGCLEmbedder(**FAST).fit_transform(sp.csr_array(features))
    assert np.array_equal(codes, SpikeGCLEmbedder(**FAST).fit_transform((features, sp.csr_array((50, 50)))))


# ------------------------------------------------------------------------------------------- public names


def test_public_names_resolve_and_are_listed():
    for name in spikegcl.__all__:
        assert getattr(spikegcl, name).__name__ == name
    assert set(spikegcl.__all__) <= set(dir(spikegcl))
    with pytest.raises(AttributeError, match="nothing"):
        spikegcl.nothing  # noqa: B018


def test_import_stays_light():
    script = (
        "import sys, spikegcl\ndir(spikegcl)\n"
        "loaded = {'torch', 'numba', 'sklearn', 'pandas', 'numpy'} & set(sys.modules)\nassert not loaded, loaded\n"
        "from spikegcl import Config\nassert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
