"""Search: nearest nodes by Hamming distance, by id or by code, exact or approximate, rescored, from a saved index."""

from pathlib import Path

from spikegcl import Index, SpikeGCLEmbedder, load_dataset

folder = Path("build/examples")
folder.mkdir(parents=True, exist_ok=True)

graph = load_dataset("digits")
codes = SpikeGCLEmbedder(bits=256).fit(graph).codes_

# By id: a node is not its own neighbour. Distances are differing bits.
index = Index.build(codes)
found = index.search([0, 1], k=5)
for node, neighbours, distances in zip([0, 1], found.ids, found.distances, strict=True):
    print(f"node {node} (a {graph.labels[node]}): nodes {neighbours} at {distances}, labels {graph.labels[neighbours]}")

# By code, which may come from another graph embedded by the same model: here every tenth node asks.
asking = codes[::10]
exact = index.search(asking, k=10).ids

# Approximate: a graph over the codes (hnsw) or lists of them (ivf), for millions of nodes.
for kind in ("hnsw", "ivf"):
    near = Index.build(codes, kind).search(asking, k=10).ids
    hits = sum(len(set(a) & set(b)) for a, b in zip(near, exact, strict=True))
    print(f"{kind} finds {100 * hits / exact.size:.1f} % of the exact neighbours")

# Rescored: of the nearest 40, the 10 at the least distance when bits that vary over nodes count more.
rescored = index.search(asking, k=10, rescore="rate").ids
print(f"rescoring leaves {(rescored == exact).mean():.0%} of the places as they were")

# Saved beside its codes, opened memory-mapped.
Index.build(codes, "hnsw").save(folder / "index")
print("opened again:", Index.open(folder / "index").search(0, k=3))
