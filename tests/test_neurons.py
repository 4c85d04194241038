"""Neurons: hand-computed traces, the charge balance, surrogate gradients against their closed forms."""

from __future__ import annotations

import math
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spikegcl.errors import ConfigError
from spikegcl.fused import run_neurons
from spikegcl.neurons import SURROGATES, Neuron, SpikingNeuron, exceeded_by, fire, run, step
from spikegcl.propagate import plain_torch

INPUTS = torch.tensor([0.6, 0.6, 1.5, -0.2, 1.0])
# Computed by hand with threshold 1 and, for the leaky neurons, tau = 2: V = V' + (I - V') / 2.
TRACES = {
    # IF subtract: .6 | 1.2 fires -> .2 | 1.7 fires -> .7 | .5 | 1.5 fires -> .5
    ("IF", "subtract"): ([0, 1, 1, 0, 1], [0.6, 0.2, 0.7, 0.5, 0.5]),
    # IF zero: .6 | 1.2 fires -> 0 | 1.5 fires -> 0 | -.2 | .8
    ("IF", "zero"): ([0, 1, 1, 0, 0], [0.6, 0.0, 0.0, -0.2, 0.8]),
    # leaky: .3 | .45 | .975 | .3875 | .69375: never fires, so resets agree
    ("LIF", "subtract"): ([0, 0, 0, 0, 0], [0.3, 0.45, 0.975, 0.3875, 0.69375]),
    ("PLIF", "zero"): ([0, 0, 0, 0, 0], [0.3, 0.45, 0.975, 0.3875, 0.69375]),
}


@pytest.mark.parametrize(("kind", "reset"), TRACES)
def test_trace_by_hand(kind, reset):
    spikes, membranes = TRACES[kind, reset]
    neuron, membrane = Neuron(kind, 1.0, reset), torch.tensor(0.0)
    for current, spike, after in zip(INPUTS, spikes, membranes, strict=True):
        fired, membrane = step(neuron, current, membrane, tau=2.0)
        assert float(fired) == spike
        assert float(membrane) == pytest.approx(after, abs=1e-6)


@pytest.mark.parametrize("kind", ["LIF", "PLIF"])
@pytest.mark.parametrize(("reset", "after"), [("zero", [0.5, 0.0, 0.5, 0.0]), ("subtract", [0.5, 0.25, 0.625, 0.3125])])
def test_leaky_trace_that_fires(kind, reset, after):
    """Threshold 1, tau 2, inputs 1, 2, 1, 2: zero .5 | 1.25* -> 0 | .5 | 1.25* -> 0; subtract .25, .625, 1.3125*."""
    neuron, membrane, fired = Neuron(kind, 1.0, reset), torch.tensor(0.0), []
    for current, expected in zip([1.0, 2.0, 1.0, 2.0], after, strict=True):
        spike, membrane = step(neuron, torch.tensor(current), membrane, tau=2.0)
        fired.append(float(spike))
        assert float(membrane) == pytest.approx(expected)
    assert fired == [0, 1, 0, 1]


def test_fires_at_the_threshold_exactly():
    assert float(step(Neuron("IF", 0.5), torch.tensor(0.5), torch.tensor(0.0))[0]) == 1


def test_tau_of_one_has_no_memory():
    currents = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    spikes, _ = run(Neuron("LIF", 0.1), currents, tau=1.0)
    assert torch.equal(spikes, (currents >= 0.1).float())


def test_adaptive_thresholds_by_hand():
    """Thresholds 1, .7, .49 (fires), .543 (fires), .5801 (fires), .60607 for a current of .6."""
    currents = torch.tensor([0.6, 0.6, 0.6, 0.6, 0.6, 0.6])
    spikes, _ = run(Neuron("LIF", 1.0), currents[:, None], fade=0.7, rise=0.2)
    assert spikes.flatten().tolist() == [0, 0, 1, 1, 1, 0]


def test_adaptive_thresholds_pass_gradients_back_in_time():
    """d S_2 / d I_1 = -rise g(V_1 - theta_1) g(V_2 - theta_2): what fires now raises the next threshold."""
    neuron = Neuron("LIF", 1.0, surrogate="triangle", alpha=1.0)
    currents = torch.tensor([[1.2], [0.8]], requires_grad=True)
    run(neuron, currents, fade=0.7, rise=0.2)[0][1].sum().backward()
    assert currents.grad[1].item() == pytest.approx(0.9)
    assert currents.grad[0].item() == pytest.approx(-0.2 * 0.8 * 0.9)


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(["IF", "LIF"]),
    reset=st.sampled_from(["zero", "subtract"]),
    surrogate=st.sampled_from(SURROGATES),
    constant=st.booleans(),
    adapts=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_kernel_agrees_with_plain_steps(kind, reset, surrogate, constant, adapts, seed):
    """Spikes and the gradient of the currents, from 300 neurons: one full tile of the kernel and a part of another."""
    rng = torch.Generator().manual_seed(seed)
    currents = torch.randn(1 if constant else 6, 3, 100, generator=rng)
    weights = torch.randn(6, 3, 100, generator=rng)
    neuron, moves = Neuron(kind, 0.5, reset, surrogate), {"fade": 0.7, "rise": 0.2} if adapts else {}
    results = []
    for context in (nullcontext, plain_torch):
        given = currents.clone().requires_grad_()
        with context():
            spikes = run_neurons(neuron, given, 6, tau=1.5, **moves)
            (spikes * weights).sum().backward()
        results.append((spikes.detach(), given.grad))
    torch.testing.assert_close(*(spikes for spikes, _ in results))
    torch.testing.assert_close(*(grad for _, grad in results), rtol=1e-4, atol=1e-5)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-2, 2, width=32), min_size=1, max_size=30), st.floats(0.125, 2, width=32))
def test_integrate_and_fire_with_subtraction_loses_no_charge(inputs, threshold):
    """V(T) = sum of inputs - threshold x number of spikes."""
    currents = torch.tensor(inputs, dtype=torch.float64)[:, None]
    spikes, membrane = run(Neuron("IF", threshold, "subtract"), currents)
    assert float(membrane) == pytest.approx(float(currents.sum() - threshold * spikes.sum()), abs=1e-9)


CLOSED_FORMS = {
    "sigmoid": lambda x, a: a * math.exp(-a * x) / (1 + math.exp(-a * x)) ** 2,
    "triangle": lambda x, a: a * max(0.0, 1 - abs(a * x)),
    "arctan": lambda x, a: a / 2 / (1 + (math.pi * a * x / 2) ** 2),
    "superspike": lambda x, a: 1 / (1 + a * abs(x)) ** 2,
    "rectangle": lambda x, a: a if abs(a * x) < 0.5 else 0.0,
    "multi-gaussian": lambda x, a: (
        1.15 * normal(x, 0, 1 / a) - 0.15 * normal(x, 1 / a, 6 / a) - 0.15 * normal(x, -1 / a, 6 / a)
    ),
}


def normal(x, mean, sigma):
    return math.exp(-((x - mean) ** 2) / (2 * sigma**2)) / math.sqrt(2 * math.pi * sigma**2)


@pytest.mark.parametrize("name", SURROGATES)
@pytest.mark.parametrize("alpha", [0.5, 2.0])
def test_surrogate_gradient_is_its_closed_form(name, alpha):
    x = torch.linspace(-2, 2, 41, dtype=torch.float64, requires_grad=True)
    fire(x, name, alpha).sum().backward()
    expected = torch.tensor([CLOSED_FORMS[name](float(v), alpha) for v in x], dtype=torch.float64)
    torch.testing.assert_close(x.grad, expected)


def test_module_owns_tau_but_no_membrane():
    module = SpikingNeuron(Neuron("PLIF", 0.5), tau=1.5)
    assert [name for name, _ in module.named_parameters()] == ["tau"]
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    first = module(x, torch.zeros_like(x))
    second = module(x, torch.zeros_like(x))
    assert torch.equal(first[0], second[0])
    module.tau.data.fill_(0.2)
    module.project()
    assert float(module.tau.detach()) == 1.0


@pytest.mark.parametrize("wrong", [{"kind": "ALIF"}, {"reset": "half"}, {"surrogate": "box"}, {"alpha": 0.0}])
def test_unknown_settings_are_refused(wrong):
    with pytest.raises(ConfigError, match=r"choose one of|positive"):
        Neuron(**wrong)


def test_tau_below_one_is_refused():
    with pytest.raises(ConfigError, match="at least 1"):
        SpikingNeuron(Neuron("LIF"), tau=0.5)


@pytest.mark.parametrize(
    ("column", "share", "firing"),
    [
        ([0, 1, 2, 3], 0.5, 2),
        ([0, 0, 0, 1, 2], 0.6, 2),  # three rows share the lowest value: all or none of them would make the bit constant
        ([0, 1, 2, 2, 2], 0.4, 3),  # the highest
        ([0, 1, 1, 1, 1, 1, 1, 1, 2, 3], 0.5, 2),  # the gap above leaves 2 firing, the one below 9
        ([1, 1, 1], 0.5, 3),  # nothing to tell apart
    ],
)
def test_a_share_of_the_rows_exceeds_a_threshold_that_lies_in_a_gap(column, share, firing):
    values = torch.tensor([column], dtype=torch.float32).T
    threshold = exceeded_by(values, torch.tensor([share]))
    assert int((values >= threshold).sum()) == firing
