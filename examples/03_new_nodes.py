"""New nodes: train on four fifths of a graph, embed all of it, see what changed and how good the new codes are."""

import numpy as np

from spikegcl import Codes, embed_graph, linear_probe, load_dataset, train
from spikegcl.graph import Split
from spikegcl.inductive import compare_codes

graph = load_dataset("digits")
nodes = np.random.default_rng(0).permutation(graph.num_nodes)
seen, unseen = np.sort(nodes[: len(nodes) * 4 // 5]), np.sort(nodes[len(nodes) * 4 // 5 :])

old = graph.subgraph(seen)
trained = train(old)
model = trained.model
before = Codes(trained.codes, old.ids, model.steps, model.channels)
after = Codes(embed_graph(model, graph, known=old.ids), graph.ids, model.steps, model.channels)

change = compare_codes(before, after)
print(f"{change.nodes_new} new nodes, {change.nodes_old} old")
print(f"{change.nodes_flipped} old nodes have a flipped bit; {100 * change.share_flipped:.2f} % of old bits flipped")

# A classifier trained on codes of seen nodes reads the codes of unseen ones.
split = Split(train=seen[::2], val=seen[1::2], test=unseen)
result = linear_probe(after.packed, graph.labels, split, kind="logreg", bits=after.bits)
print(f"{100 * result.test_accuracy:.1f} % of the unseen nodes classified right")
