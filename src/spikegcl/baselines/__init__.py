"""One interface for every method that is compared: what a method is, what it returns, and where to find it.

A method is a value of :class:`Method`: a name, the marks of the paper's tables, its settings, and three verbs. It lives
in one file of this package, which is loaded when its name is asked for. docs/add-a-method.md shows how to write one.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from spikegcl.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from spikegcl.energy import Operations
    from spikegcl.graph import Graph, Split
    from spikegcl.settings import Settings
    from spikegcl.training import Epoch, Trained

SIGN = "+sign"

# Where each method lives, in the order they are listed: SpikeGCL, supervised, self-supervised, closed forms. A module
# defines METHOD or, if it holds several, METHODS.
_HOME = {
    "spikegcl": "spikegcl",
    "compact": "spikegcl",
    "gcn": "gcn",
    "gat": "gat",
    "bi-gcn": "bi_gcn",
    "binary-gnn": "binary_gnn",
    "spiking-gcn": "spiking_gcn",
    "spikenet": "spikenet",
    "gc-snn": "st_snn",
    "ga-snn": "st_snn",
    "dgi": "dgi",
    "grace": "grace",
    "cca-ssg": "cca_ssg",
    "bgrl": "bgrl",
    "sugrl": "sugrl",
    "ggd": "ggd",
    "bane": "bane",
    "untrained": "closed_form",
    "projection": "closed_form",
    "pca-projection": "closed_form",
    "itq": "closed_form",
    "ppr-itq": "closed_form",
}
_registered: dict[str, Method] = {}


class Shape(NamedTuple):
    """The four numbers of a graph that parameters and operations depend on. ``edges`` are directed, no self-loops."""

    nodes: int
    edges: int
    features: int
    classes: int

    @classmethod
    def of(cls, graph: Graph) -> Shape:
        return cls(graph.num_nodes, graph.num_edges, graph.num_features, graph.num_classes)

    @property
    def entries(self) -> int:
        """Stored entries of the adjacency with self-loops: what a GCN layer touches per column."""
        return self.edges + self.nodes


@dataclass(frozen=True, eq=False)
class Fitted:
    """What a method made of a graph: exactly one of ``embedding``, ``codes`` and ``predictions``.

    ===============  =========================================================================================
    ``settings``     as they were used: everything the graph decides is settled
    ``embedding``    float32, N x D
    ``codes``        uint8, N x ceil(bits / 8): packed bits, with their number in ``bits``
    ``predictions``  int64, N: the label predicted for every node, by a model selected on validation nodes
    ``history``      one :class:`~spikegcl.training.Epoch` an epoch that was run; empty for closed forms
    ``epoch``        the epoch whose result this is (0: nothing was trained)
    ``select``       how that epoch was chosen: last, loss (lowest training loss) or validation
    ``spikes``       of a spiking method: spikes over all nodes, one number a time step
    ``operations``   of the pass that made the result, where counting it says more than the shape of the graph
    ``seconds``      spent in train, embed and probe (:class:`~spikegcl.training.Clock`)
    ``notes``        what a reader of the row must know, e.g. "sampled negatives: 4096"
    ``trained``      of SpikeGCL: the model, for the run folder
    ===============  =========================================================================================
    """

    settings: Settings
    embedding: NDArray[np.float32] | None = None
    codes: NDArray[np.uint8] | None = None
    bits: int | None = None
    predictions: NDArray[np.int64] | None = None
    history: list[Epoch] = field(default_factory=list)
    epoch: int = 0
    select: str = "last"
    spikes: tuple[int, ...] = ()
    operations: Operations | None = None
    seconds: dict[str, float] = field(default_factory=lambda: {"train": 0.0, "embed": 0.0, "probe": 0.0})
    notes: tuple[str, ...] = ()
    trained: Trained | None = None

    def __post_init__(self) -> None:
        results = (self.embedding, self.codes, self.predictions)
        if sum(result is not None for result in results) != 1 or (self.codes is None) != (self.bits is None):
            raise ConfigError("a method returns exactly one of embedding, codes (with bits) and predictions")


class Fit(Protocol):
    """Train on ``graph`` and return the result.

    Nothing but ``graph``, ``settings`` and ``seed`` may influence it: same seed, same numbers. ``split`` is None
    when the graph has no labels; labels of test nodes are never read. A self-supervised method reads no labels, and
    with ``epochs = 0`` returns what its untrained encoder gives. ``on_epoch`` is called after every epoch.
    """

    def __call__(
        self,
        graph: Graph,
        settings: Any,
        *,
        seed: int,
        split: Split | None,
        on_epoch: Callable[[Epoch], None] | None,
        device: str,
    ) -> Fitted: ...


class Count(Protocol):
    """Operations of one pass over a graph of this shape; ``spikes`` are those of :class:`Fitted`, if it fires any."""

    def __call__(self, shape: Shape, settings: Any, spikes: tuple[int, ...]) -> Operations: ...


@dataclass(frozen=True)
class Method:
    """A method. ``parameters`` is the closed-form count of what is trained; a test holds it to the torch module.

    ``revision`` is raised when the same settings come to give other results: rows of earlier ones count no more.
    """

    name: str
    title: str
    settings: type[Settings]
    fit: Fit
    parameters: Callable[[Shape, Any], int]
    operations: Count
    unsupervised: bool = True
    spiking: bool = False
    binary: bool = False
    preset: Callable[[str, str], Settings] | None = None
    revision: int = 1

    def settings_for(self, preset: str = "default", dataset: str = "") -> Any:
        """``default``: any graph. ``paper`` and others: the tables of presets/<name>.toml for that dataset."""
        if self.preset is not None:
            return self.preset(preset, dataset)
        if preset == "default":
            return self.settings()
        return self.settings.shipped(self.name.removesuffix(SIGN), preset, dataset)


def register(method: Method) -> Method:
    """Make a method of your own known by its name, until the process ends."""
    if method.name in _HOME or SIGN in method.name:
        raise ConfigError(f"{method.name!r} is taken or ends in {SIGN}; give your method another name")
    _registered[method.name] = method
    return method


def method_names() -> tuple[str, ...]:
    return (*_HOME, *_registered)


def find_method(name: str) -> Method:
    """The method of this name; ``<name>+sign`` is any method with a float embedding, made into bits."""
    if name.endswith(SIGN):
        from spikegcl.baselines.sign import with_sign

        return with_sign(find_method(name.removesuffix(SIGN)))
    if name in _registered:
        return _registered[name]
    if name not in _HOME:
        raise ConfigError(
            f"no method is called {name!r}; choose one of {', '.join(method_names())}, or a float one{SIGN}"
        )
    module = importlib.import_module(f"{__name__}.{_HOME[name]}")
    methods: tuple[Method, ...] = getattr(module, "METHODS", None) or (module.METHOD,)
    return next(method for method in methods if method.name == name)
