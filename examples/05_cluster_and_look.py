"""Cluster and look: k-means on bits, what the clusters hold, and a picture of them."""

from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from spikegcl import SpikeGCLEmbedder, load_dataset

folder = Path("build/examples")
folder.mkdir(parents=True, exist_ok=True)

graph = load_dataset("digits")
bits = SpikeGCLEmbedder(bits=256).fit_transform(graph)
clusters = KMeans(10, n_init=5, random_state=0).fit_predict(bits)

# Labels were not involved so far. They say what the clusters hold.
nmi, ari = (score(graph.labels, clusters) for score in (normalized_mutual_info_score, adjusted_rand_score))
print(f"agreement with the labels: NMI {nmi:.2f}, ARI {ari:.2f} (1 is perfect, about 0 is chance)")
print(pd.crosstab(clusters, graph.labels, rownames=["cluster"], colnames=["digit"]))

# Two principal components of the bits; colour is the cluster, the character is the label.
points = PCA(2, random_state=0).fit_transform(bits)
places = 20 + 760 * (points - points.min(0)) / np.ptp(points, axis=0)
marks = [
    f'<text x="{x:.1f}" y="{y:.1f}" fill="hsl({36 * cluster} 70% 45%)">{label}</text>'
    for (x, y), cluster, label in zip(places, clusters, graph.labels, strict=True)
]
frame = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 800" font-family="sans-serif" font-size="12">'
(folder / "clusters.svg").write_text(frame + "".join(marks) + "</svg>")
print("picture:", folder / "clusters.svg")
