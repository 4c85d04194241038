"""Codes in a scikit-learn pipeline: all nodes are there, labels are known for a tenth of them."""

from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from spikegcl import SpikeGCLEmbedder, load_dataset

folder = Path("build/examples")
folder.mkdir(parents=True, exist_ok=True)

graph = load_dataset("digits")
known = np.random.default_rng(0).random(graph.num_nodes) < 0.1

# The embedder reads the whole graph and no labels; weight zero hides the other nodes' labels from the classifier.
pipe = make_pipeline(SpikeGCLEmbedder(bits=256), LogisticRegression(max_iter=1000))
pipe.fit(graph, graph.labels, logisticregression__sample_weight=known.astype(float))
accuracy = (pipe.predict(graph) == graph.labels)[~known].mean()
print(f"{known.sum()} labels, {100 * accuracy:.1f} % of the other {(~known).sum()} nodes right")

# Saved without pickle; the output is a choice made at use.
embedder = pipe[0]
embedder.save(folder / "digits.safetensors")
again = SpikeGCLEmbedder.load(folder / "digits.safetensors").set_params(output="rate")
rates = again.transform(graph)
print(f"codes {embedder.codes_.packed.nbytes / 1e3:.0f} kB packed; firing rates by channel {rates.shape}")
