"""SpikeGCLEmbedder: the model as a scikit-learn transformer."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted, validate_data

from spikegcl.bits import unpack
from spikegcl.checkpoint import load_model, save_model
from spikegcl.config import Config
from spikegcl.config import preset as find_preset
from spikegcl.datasets import make_split
from spikegcl.errors import ConfigError, GraphError
from spikegcl.foreign import from_pyg
from spikegcl.graph import Graph, build_graph
from spikegcl.runs import make_codes
from spikegcl.structural import structural_features
from spikegcl.training import embed_graph, train

if TYPE_CHECKING:
    from numpy.typing import NDArray

OUTPUTS = ("bits", "packed", "rate")
SETTINGS = tuple(field.name for field in dataclasses.fields(Config))


class SpikeGCLEmbedder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Turns the nodes of a graph into codes; ``y`` is not used unless the settings select by validation accuracy.

    X, in ``fit`` and ``transform``, is a graph of N nodes:

    - a :class:`~spikegcl.Graph` or a PyG ``Data``,
    - a tuple (features, adjacency): N x d (array, scipy sparse, DataFrame, or None for structural features) and N x N
      scipy sparse or 2 x M edges,
    - features alone, N x d: a graph without edges, in which every node is coded by itself.

    Parameters
    ----------
    output : ``bits`` (uint8, N x bits, what a classifier reads), ``packed`` (uint8, N x ceil(bits / 8)) or ``rate``
        (float32, N x channels: the share of steps in which a channel fires).
    preset : ``compact``, ``contrastive``, or ``paper`` for a Graph called like a dataset of the paper.
    seed : same seed, same bits.
    device : torch device, or its name.
    bits, steps, channels, ... : the settings of :class:`~spikegcl.Config`; None keeps the preset's.

    Attributes
    ----------
    model_ : the trained :class:`~spikegcl.model.SpikeGCL`.
    config_ : its settings, all of them settled.
    codes_ : :class:`~spikegcl.Codes` of the training graph; not part of a saved file.
    history_ : what every epoch reported; not part of a saved file.
    n_features_in_ : feature columns of the model.
    feature_names_in_ : their names, where the input had some.

    >>> from spikegcl import SpikeGCLEmbedder, load_dataset
    >>> graph = load_dataset("digits")
    >>> SpikeGCLEmbedder(steps=4, channels=16, epochs=1, output="rate").fit_transform(graph).shape
    (1797, 16)
    """

    def __init__(
        self,
        *,
        output: Literal["bits", "packed", "rate"] = "bits",
        preset: str = "compact",
        seed: int = 0,
        device: str = "cpu",
        bits: int | None = None,
        steps: int | None = None,
        channels: int | None = None,
        grouping: str | None = None,
        inputs: str | None = None,
        components: int | None = None,
        propagation: str | None = None,
        encoder: str | None = None,
        layers: int | None = None,
        activation: str | None = None,
        batch_norm: bool | None = None,
        dropout: float | None = None,
        neuron: str | None = None,
        threshold: float | None = None,
        firing_rate: float | None = None,
        tau: float | None = None,
        reset: str | None = None,
        surrogate: str | None = None,
        alpha: float | None = None,
        objective: str | None = None,
        margin: float | None = None,
        head_width: int | None = None,
        edge_drop: float | None = None,
        shuffle: bool | None = None,
        epochs: int | None = None,
        lr: float | None = None,
        weight_decay: float | None = None,
        block: int | None = None,
        stop: str | None = None,
        patience: int | None = None,
        select: str | None = None,
        parts: int | None = None,
    ) -> None:
        self.output = output
        self.preset = preset
        self.seed = seed
        self.device = device
        self.bits = bits
        self.steps = steps
        self.channels = channels
        self.grouping = grouping
        self.inputs = inputs
        self.components = components
        self.propagation = propagation
        self.encoder = encoder
        self.layers = layers
        self.activation = activation
        self.batch_norm = batch_norm
        self.dropout = dropout
        self.neuron = neuron
        self.threshold = threshold
        self.firing_rate = firing_rate
        self.tau = tau
        self.reset = reset
        self.surrogate = surrogate
        self.alpha = alpha
        self.objective = objective
        self.margin = margin
        self.head_width = head_width
        self.edge_drop = edge_drop
        self.shuffle = shuffle
        self.epochs = epochs
        self.lr = lr
        self.weight_decay = weight_decay
        self.block = block
        self.stop = stop
        self.patience = patience
        self.select = select
        self.parts = parts

    def fit(self, X: Any, y: Any = None) -> Self:
        """Train on a graph. ``y`` (N labels, -1 or "" where unknown) only serves ``select`` or ``stop`` = validation.

        Selection then looks at the training and validation part of the graph's own split, or of a stratified one.
        """
        self._check_output()
        graph = self._as_graph(X, fitting=True)
        if graph.features is None:
            graph = structural_features(graph)
        config, seed = self._settled(graph.name)
        split = None
        if "validation" in (config.select, config.stop):
            graph = graph if y is None else graph.with_labels(y, graph.split)
            split = None if graph.labels is None else make_split(graph, seed)
        trained = train(graph, config, seed=seed, split=split, device=self.device)
        self._remember(graph.num_features, graph.columns)
        self.model_, self.config_, self.history_ = trained.model, trained.config, trained.history
        self.codes_ = make_codes(trained.codes, graph, trained.model)
        return self

    def transform(self, X: Any) -> NDArray[Any]:
        """Codes of a graph by the trained model, statistics frozen: N rows as ``output`` says. See docs/new-nodes.md.

        Columns are matched by name where both sides have names, by count otherwise. If half of the bits read the
        structure (``model_.inputs.read_structure``), they are of the training graph's nodes: to embed graphs of other
        nodes, fit with ``propagation`` "pagerank", "hops" or "none".
        """
        check_is_fitted(self, "model_")
        self._check_output()
        graph = self._as_graph(X, fitting=False)
        known = self.codes_.ids if hasattr(self, "codes_") else None
        return self._shown(embed_graph(self.model_, graph, self._columns(), self.device, known=known))

    def fit_transform(self, X: Any, y: Any = None) -> NDArray[Any]:
        """``fit(X, y).transform(X)``, without embedding twice."""
        self.fit(X, y)
        return self._shown(self.codes_.packed)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Names of the output columns; ``input_features`` are only checked, for every bit depends on many of them."""
        check_is_fitted(self, "model_")
        _check_feature_names_in(self, input_features, generate_names=False)
        steps, channels = self.model_.steps, self.model_.channels
        names = {
            "bits": [f"step{step}_channel{channel}" for step in range(steps) for channel in range(channels)],
            "packed": [f"byte{byte}" for byte in range((steps * channels + 7) // 8)],
            "rate": [f"channel{channel}" for channel in range(channels)],
        }
        return np.array(names[self.output], dtype=object)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write model, settings and parameters as one safetensors file (atomically, no pickle)."""
        check_is_fitted(self, "model_")
        save_model(self.model_, Path(path), self._columns(), estimator=json.dumps(self.get_params(), default=_json))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """An embedder from a file written by :meth:`save`, or from the ``model.safetensors`` of a run folder."""
        from safetensors import safe_open

        model, columns = load_model(Path(path))
        with safe_open(str(path), "pt") as file:
            written = file.metadata().get("estimator")
        loaded = cls(**(dataclasses.asdict(model.config) if written is None else json.loads(written)))
        loaded.model_, loaded.config_ = model, model.config
        loaded._remember(model.num_features, columns)
        return loaded

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = []
        return tags

    def _as_graph(self, X: Any, *, fitting: bool) -> Graph:
        if isinstance(X, Graph):
            return X
        if isinstance(X, tuple) and len(X) == 2:
            features, adjacency = X
            columns = list(map(str, features.columns)) if hasattr(features, "columns") else None
            return build_graph(adjacency, features, columns=columns, ids=_row_names(features))
        if hasattr(X, "edge_index") and hasattr(X, "num_nodes"):
            return from_pyg(X)
        if X is None or isinstance(X, str | os.PathLike) or hasattr(X, "nodes"):
            raise GraphError(
                f"X is {type(X).__name__}; give a Graph (spikegcl.read_graph reads files, "
                "spikegcl.foreign.from_networkx takes networkx graphs), a PyG Data, features with an adjacency, "
                "or a feature matrix"
            )
        least = 2 if fitting else 1
        features = validate_data(
            self, X, reset=fitting, accept_sparse="csr", dtype=np.float32, ensure_min_samples=least
        )
        named = hasattr(X, "columns") and hasattr(self, "feature_names_in_")
        columns = list(self.feature_names_in_) if named else None
        return build_graph(np.zeros((2, 0), int), features, columns=columns, ids=_row_names(X))

    def _settled(self, name: str) -> tuple[Config, int]:
        """Preset with the given settings on top, and the seed; numpy numbers (of a grid search) become plain ones."""
        given = {key: _plain(getattr(self, key)) for key in SETTINGS if getattr(self, key) is not None}
        seed = _plain(self.seed)
        if not isinstance(seed, int) or seed < 0:
            raise ConfigError(f"seed = {seed!r} must be a whole number, 0 or more")
        config = find_preset(self.preset, name).replace(**given)
        if config.bits and "steps" in given and config.bits != config.steps * config.channels:
            raise ConfigError(
                f"bits = {config.bits} decide the steps (bits / channels), and steps = {config.steps} is given; "
                "give one of the two"
            )
        return config, seed

    def _check_output(self) -> None:
        if self.output not in OUTPUTS:
            raise ConfigError(f"output = {self.output!r} is unknown; choose one of {', '.join(OUTPUTS)}")

    def _shown(self, packed: NDArray[np.uint8]) -> NDArray[Any]:
        if self.output == "packed":
            return packed
        spikes = unpack(packed, self.model_.bits)
        if self.output == "bits":
            return spikes
        rates: NDArray[np.float32] = spikes.reshape(len(spikes), self.model_.steps, -1).mean(1, dtype=np.float32)
        return rates

    def _remember(self, width: int, columns: tuple[str, ...] | None) -> None:
        self.n_features_in_ = width
        if columns is not None:
            self.feature_names_in_ = np.array(columns, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def _columns(self) -> tuple[str, ...] | None:
        return tuple(self.feature_names_in_) if hasattr(self, "feature_names_in_") else None


def _row_names(features: Any) -> Any:
    """The index of a data frame, if rows are named by it; None if it only counts them, or repeats itself."""
    index: Any = getattr(features, "index", None)
    if not getattr(index, "is_unique", False) or index.nlevels > 1 or index.dtype.kind not in "iuO":
        return None
    return None if np.array_equal(index, np.arange(len(index))) else list(index)


def _json(value: Any) -> Any:
    """What JSON has no word for: numpy's scalars, and torch.device as its name."""
    return value.item() if isinstance(value, np.generic) else str(value)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
