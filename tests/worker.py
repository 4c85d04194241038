"""One of the processes that torchrun starts in test_world.py: a session by parts, its numbers saved by the first.

python tests/worker.py OUTPUT.npz
"""

from __future__ import annotations

import sys
import weakref

import numpy as np
import torch.distributed as dist

from spikegcl import world
from spikegcl.config import Config
from spikegcl.datasets import load_dataset
from spikegcl.objectives import Margin
from spikegcl.session import Session


def measure() -> dict[str, np.ndarray]:
    """Loss, gradients, running statistics and codes after the gradient of one epoch over four parts."""
    graph = load_dataset("sbm:nodes=300,classes=4,num_features=24")
    session = Session(graph, Config(steps=4, channels=8, parts=4, margin=1.0), 0)
    loss, norms = Margin(session).gradient(1)
    gradients = {
        f"gradient {name}": p.grad.numpy() for name, p in session.model.named_parameters() if p.grad is not None
    }
    statistics = {f"statistics {name}": value.numpy() for name, value in session.model.named_buffers()}
    return {"loss": np.array(loss), "norms": norms.numpy(), "codes": session.embed(), **gradients, **statistics}


if __name__ == "__main__":
    with world.joined():
        found, group = measure(), weakref.ref(dist.group.WORLD)
        if world.rank() == 0:
            np.savez(sys.argv[1], **found, processes=np.array(world.size()))
    assert group() is None, "threads of a group that is left alive abort the process now and then when it ends"
