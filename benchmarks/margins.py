"""What :func:`~spikegcl.closed_forms.read_back` changes on real graphs: what bits tell, how firmly nodes are cut.

python -m benchmarks.margins [GRAPH ...]      -> results/compact/margins.md

Rotations are fitted on one half of the nodes and judged on the other. `left` is the share (%) of the components'
variance that a linear map of the bits, fitted on the first half, does not tell; `near` is the share (%) of values
within a fifth of a deviation of their threshold. No labels.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import numba
import numpy as np
import torch

from benchmarks.published import data_root
from benchmarks.run import ROOT, table
from spikegcl.closed_forms import READ_NODES, fit_itq
from spikegcl.components import fit_components
from spikegcl.datasets import load_dataset
from spikegcl.files import write_text
from spikegcl.protocol import versions

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

GRAPHS, WIDTHS = ("cora", "pubmed", "photo", "computers"), (32, 64, 128)
NEAR = 0.2  # deviations


def halves(scores: Floats) -> tuple[Floats, Floats]:
    order = np.random.default_rng(0).permutation(len(scores))
    half = min(len(scores) // 2, READ_NODES)
    return scores[order[:half]], scores[order[half : 2 * half]]


def judge(fitted: Floats, fresh: Floats, directions: Floats) -> tuple[float, float]:
    """What bits of ``directions`` leave of the fresh scores, and how many of their values are near a threshold."""
    mean, values = fitted.mean(0), fitted @ directions
    middle, deviation = np.median(values, 0), values.std(0)
    signs = [np.where(part @ directions > middle, 1.0, -1.0) for part in (fitted, fresh)]
    told = signs[1] @ np.linalg.lstsq(signs[0], fitted - mean, rcond=None)[0]
    left = np.square(fresh - mean - told).sum() / np.square(fresh - mean).sum()
    return float(left), float((np.abs(fresh @ directions - middle) < NEAR * deviation).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graphs", nargs="*", default=GRAPHS)
    numba.set_num_threads(1)
    torch.set_num_threads(1)
    lines = []
    for name in parser.parse_args().graphs:
        scores = fit_components(load_dataset(name, data_root()), max(WIDTHS))[1]
        for width in WIDTHS:
            fitted, fresh = halves(np.ascontiguousarray(scores[:, :width]))
            found = [
                judge(fitted, fresh, fit_itq(fitted, width, blocks=(width,), reads_back=reads).directions)
                for reads in (False, True)
            ]
            shown = (f"{100 * value:.1f}" for measure in zip(*found, strict=True) for value in measure)
            lines.append([name, str(width), *shown, versions()["commit"]])
            print(*lines[-1], flush=True)
    header = ["graph", "components, bits", "left, ITQ", "left, read back", "near, ITQ", "near, read back", "commit"]
    text = table("Bits on nodes they were not fitted on (%)", header, lines)
    write_text(ROOT / "results" / "compact" / "margins.md", text)


if __name__ == "__main__":
    main()
