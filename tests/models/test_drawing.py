"""Initial weights without torch are those that torch draws."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpace.models.builtin import Linear, Mlp, Softmax
from fedpace.sim.numpy_trainer import draw_initial_weights
from fedpace.sim.stacking import layer_positions
from fedpace.sim.torch_trainer import linear_layers

MODELS = st.sampled_from(
    [Softmax(), Linear(), Linear(bias=True), Mlp(hidden=1), Mlp(hidden=17), Mlp(hidden=5, layers=3)]
)


@settings(max_examples=60, deadline=None)
@given(model=MODELS, seed=st.integers(0, 2**62 - 1), inputs=st.integers(1, 40), outputs=st.integers(1, 12))
def test_both_start_alike_and_lay_layers_out_alike(model, seed, inputs, outputs):
    module = model.build((inputs,), outputs, generator=torch.Generator().manual_seed(seed))
    expected = torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()]).numpy()
    found = draw_initial_weights(model.dense((inputs,), outputs), seed)
    assert found.dtype == np.float32
    # torch multiplies and adds in one operation, which rounds once.
    np.testing.assert_allclose(found, expected, rtol=0, atol=1.2e-7)
    assert layer_positions(model.dense((inputs,), outputs)) == linear_layers(module, (inputs,))
