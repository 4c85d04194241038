"""Graphs on which features or edges alone say little: codes of one source, against what `sources.py` chooses.

python -m benchmarks.sources      -> results/compact/sources.md, results/compact/asked.md

Generated graphs of 2500 nodes and five classes (three of every kind), and graphs of neighbours among the rows of
tables. Test accuracy of the `logreg` probe. `one source` is the same preset without the question about hidden edges;
`projection` the floor of random directions. The settings of that question were chosen on graphs of these kinds.
asked.md has the answers of the registered graphs: by how many standard deviations each of three kinds of vectors tells
hidden edges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import networkx as nx
import numpy as np
import scipy.sparse as sp
from sklearn.datasets import load_breast_cancer, load_wine, make_classification
from sklearn.neighbors import kneighbors_graph
from sklearn.preprocessing import scale

from benchmarks.published import data_root
from benchmarks.run import ROOT, table
from spikegcl import build_graph, floors, load_dataset, sources, train
from spikegcl.components import PPR, scaled_rows
from spikegcl.config import preset
from spikegcl.datasets import make_split
from spikegcl.files import write_text
from spikegcl.probes import linear_probe
from spikegcl.protocol import spread
from spikegcl.scaling import fit_scaling

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from spikegcl.graph import Graph

    Labels = NDArray[np.int64]

NODES, CLASSES, GRAPHS, BITS = 2500, 5, 3, (64, 256)
REGISTERED = ("cora", "citeseer", "pubmed", "computers", "photo", "cs", "physics", "digits")


class Maker:
    """Edges and features of one random graph with ``labels``."""

    def __init__(self, seed: int, nodes: int = NODES) -> None:
        self.rng = np.random.default_rng(seed)
        self.labels = self.rng.integers(0, CLASSES, nodes)

    def edges(self, degree: int, inside: float, partner: tuple[int, ...] = (0, 1, 2, 3, 4)) -> NDArray[np.int64]:
        """Random edges, a share ``inside`` of them from a class to its ``partner`` (itself, unless said)."""
        source, target = self.rng.integers(0, len(self.labels), (2, len(self.labels) * degree // 2))
        chosen = self.rng.random(len(source)) < inside
        for label, other in enumerate(partner):
            own = np.flatnonzero((self.labels[source] == label) & chosen)
            target[own] = self.rng.choice(np.flatnonzero(self.labels == other), len(own))
        return np.stack([source, target])

    def words(self, share: float, vocabulary: int = 600, length: int = 12) -> sp.csr_array:
        """A bag of words; a ``share`` of a node's words are those of its class."""
        common = self.rng.dirichlet(np.full(vocabulary, 0.3))
        own = self.rng.dirichlet(np.full(vocabulary, 0.05), CLASSES)
        matrix = np.zeros((len(self.labels), vocabulary), np.float32)
        for node, label in enumerate(self.labels):
            chances = (1 - share) * common + share * own[label]
            matrix[node, self.rng.choice(vocabulary, 1 + self.rng.poisson(length), p=chances)] = 1
        return sp.csr_array(matrix)

    def numbers(self, columns: int, strength: float) -> NDArray[np.float64]:
        """Gaussian columns, whose means differ by class with deviation ``strength``."""
        means = self.rng.normal(size=(CLASSES, columns))[self.labels]
        return strength * means + self.rng.normal(size=means.shape)

    def graph(self, edges: NDArray[np.int64], features: object) -> Graph:
        return build_graph(edges, features, labels=self.labels, num_nodes=len(self.labels))


def half_without_words(make: Maker) -> Graph:
    words = make.words(0.3).toarray()
    words[make.rng.random(len(words)) < 0.5] = 0
    return make.graph(make.edges(6, 0.7), sp.csr_array(words))


def papers_and_authors(make: Maker) -> Graph:
    """Papers have words, authors have none; edges are between the two."""
    papers, is_paper = NODES * 3 // 5, np.arange(NODES) < NODES * 3 // 5
    source = np.repeat(np.arange(papers), 3)
    target = make.rng.integers(papers, NODES, len(source))
    chosen = make.rng.random(len(source)) < 0.8
    for label in range(CLASSES):
        own = np.flatnonzero((make.labels[source] == label) & chosen)
        target[own] = make.rng.choice(np.flatnonzero((make.labels == label) & ~is_paper), len(own))
    return make.graph(np.stack([source, target]), sp.csr_array(make.words(0.15).toarray() * is_paper[:, None]))


def two_labels(make: Maker) -> Graph:
    """Edges tell one half of the label, words the other."""
    groups, topics = make.rng.integers(0, 3, (2, NODES))
    make.labels = groups
    edges = make.edges(8, 0.7, (0, 1, 2))
    make.labels = topics
    words = make.words(0.35)
    make.labels = 3 * groups + topics
    return make.graph(edges, words)


def ring(make: Maker) -> Graph:
    network = nx.watts_strogatz_graph(NODES, 8, 0.05, seed=int(make.rng.integers(2**31)))
    make.labels = np.arange(NODES) * CLASSES // NODES
    return make.graph(np.array(network.edges()).T, make.numbers(20, 0.2))


def places(make: Maker) -> Graph:
    """Neighbours in the plane; two columns of coordinates among ten of noise."""
    network = nx.random_geometric_graph(NODES, 0.04, seed=int(make.rng.integers(2**31)))
    at = np.array([network.nodes[node]["pos"] for node in network])
    make.labels = ((at[:, None] - make.rng.random((8, 2))) ** 2).sum(-1).argmin(1)
    return make.graph(np.array(network.edges()).T, np.hstack([at, make.rng.normal(size=(NODES, 10))]))


def grid(make: Maker) -> Graph:
    """A grid whose labels know nothing of it."""
    network = nx.convert_node_labels_to_integers(nx.grid_2d_graph(50, 50))
    return make.graph(np.array(network.edges()).T, make.numbers(20, 0.7))


def tabular(values: NDArray[np.float64], labels: Labels) -> Graph:
    nearest = kneighbors_graph(values, 6).tocoo()
    return build_graph(np.stack([nearest.row, nearest.col]), values, labels=labels)


def classification(make: Maker) -> Graph:
    state = int(make.rng.integers(2**31))
    return tabular(*make_classification(NODES, 40, n_informative=10, n_classes=4, random_state=state))


def wine(_: Maker) -> Graph:
    values, labels = load_wine(return_X_y=True)
    return tabular(scale(values), labels)


def cancer(_: Maker) -> Graph:
    values, labels = load_breast_cancer(return_X_y=True)
    return tabular(scale(values), labels)


PAIRS = (1, 0, 3, 2, 4)
KINDS: dict[str, Callable[[Maker], Graph]] = {
    "text, edges inside classes": lambda make: make.graph(make.edges(5, 0.7), make.words(0.25)),
    "numbers, edges inside classes": lambda make: make.graph(make.edges(5, 0.6), make.numbers(50, 0.3)),
    "text, random edges": lambda make: make.graph(make.edges(6, 0.0), make.words(0.3)),
    "numbers, random edges": lambda make: make.graph(make.edges(6, 0.0), make.numbers(20, 0.7)),
    "text, edges between classes": lambda make: make.graph(make.edges(6, 0.8, (1, 2, 3, 4, 0)), make.words(0.3)),
    "numbers, edges between pairs of classes": lambda make: make.graph(
        make.edges(6, 0.8, PAIRS), make.numbers(20, 0.7)
    ),
    "grid that labels know nothing of": grid,
    "words of no class, edges inside classes": lambda make: make.graph(make.edges(8, 0.75), make.words(0.0)),
    "numbers of no class, edges inside classes": lambda make: make.graph(make.edges(8, 0.75), make.numbers(32, 0.0)),
    "one number of no class, edges inside classes": lambda make: make.graph(make.edges(8, 0.75), make.numbers(1, 0.0)),
    "three weak numbers, edges inside classes": lambda make: make.graph(make.edges(8, 0.7), make.numbers(3, 0.5)),
    "weak numbers, many edges": lambda make: make.graph(make.edges(20, 0.4), make.numbers(32, 0.15)),
    "an identity matrix": lambda make: make.graph(make.edges(8, 0.7), sp.eye_array(NODES, format="csr", dtype="f4")),
    "half of the nodes without words": half_without_words,
    "papers and authors": papers_and_authors,
    "edges and words tell different things": two_labels,
    "ring, weak numbers": ring,
    "places": places,
    "rows of a table, four classes": classification,
    "wine": wine,
    "breast cancer": cancer,
    "sbm (embedded)": lambda _: load_dataset("sbm:nodes=2500,classes=5"),
    "sbm, weak": lambda _: load_dataset("sbm:nodes=2500,homophily=0.5,degree=10"),
    "sbm, heterophilous": lambda _: load_dataset("sbm:nodes=2500,homophily=0.1"),
    "200 nodes": lambda make: make.graph(make.edges(8, 0.7), make.numbers(10, 0.0)),
}


def accuracy(graph: Graph, packed: NDArray[np.uint8], bits: int, seed: int) -> float:
    return linear_probe(packed, graph.labels, make_split(graph, seed), kind="logreg", bits=bits).test_accuracy


def trained(graph: Graph, bits: int, seed: int, least: float) -> NDArray[np.uint8]:
    sources.LEAST = least
    return train(graph, preset("compact", "").replace(bits=bits), seed=seed).codes


def answers() -> None:
    lines = []
    for name in REGISTERED:
        graph = load_dataset(name, data_root())
        scaled = scaled_rows(graph, fit_scaling(graph.features), None)
        rng = np.random.default_rng(0)
        directions = rng.standard_normal((graph.num_features, sources.DIRECTIONS), dtype=np.float32)
        told = sources.ask(graph, sources.Source(PPR), scaled.times(directions))
        chosen = sources.choose_sources(graph)
        lines.append([name, *(f"{found:.0f}" for found in told.values()), "one source" if len(chosen) == 1 else "two"])
        print(*lines[-1], sep="  ", flush=True)
    heads = ["graph", "features, PageRank", "features, five hops", "structure", "chosen"]
    title = f"Standard deviations by which hidden edges are told; a second source has {sources.CLEARLY} times as many"
    write_text(ROOT / "results" / "compact" / "asked.md", table(title, heads, lines))


def main() -> None:
    answers()
    lines, asked = [], sources.LEAST
    for kind, generate in KINDS.items():
        graphs = [generate(Maker(seed, 200 if kind == "200 nodes" else NODES)) for seed in range(GRAPHS)]
        cells, sources.LEAST = [], asked
        halves = sum(len(sources.choose_sources(graph)) - 1 for graph in graphs)
        for bits in BITS:
            for make in (
                lambda graph, bits, seed: floors.projection(graph, bits, seed),
                lambda graph, bits, seed: trained(graph, bits, seed, np.inf),
                lambda graph, bits, seed: trained(graph, bits, seed, asked),
            ):
                found = spread(
                    accuracy(graph, make(graph, bits, seed), bits, seed) for seed, graph in enumerate(graphs)
                )
                cells.append(f"{100 * found['mean']:.1f} ± {100 * found['std']:.1f}")
        lines.append([kind, f"{halves} of {GRAPHS}", *cells])
        print(*lines[-1], sep="  ", flush=True)
    heads = [f"{bits} bits, {how}" for bits in BITS for how in ("projection", "one source", "default")]
    text = table(f"{GRAPHS} graphs, test accuracy in %", ["graph", "second source", *heads], lines)
    write_text(ROOT / "results" / "compact" / "sources.md", text)


if __name__ == "__main__":
    main()
