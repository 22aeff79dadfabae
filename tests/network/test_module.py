"""The module that users train: real layers, real parameter names, PyTorch's own attention."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from depthgauge.errors import NetworkError
from depthgauge.measurement import measure
from depthgauge.network.spec import Network


def test_parameters_have_the_names_of_the_equation() -> None:
    network = Network(
        "h = h + scalar(0)*attention(rmsnorm(h, gain=True)); h = h + W(relu(W(h, out=2*n)))",
        depth=2,
        width=8,
    )
    shapes = {name: tuple(p.shape) for name, p in network.module().named_parameters()}
    assert shapes == {
        f"blocks.{block}.{name}": shape
        for block in (0, 1)
        for name, shape in {
            "rmsnorm.1.gain": (8,),
            "attention.1.q.weight": (8, 8),
            "attention.1.k.weight": (8, 8),
            "attention.1.v.weight": (8, 8),
            "attention.1.o.weight": (8, 8),
            "W.1.weight": (16, 8),
            "W.2.weight": (8, 16),
            "scalar.1": (),
        }.items()
    }


def test_layers_are_ordinary_so_that_hooks_fire() -> None:
    module = Network("h + W2(relu(W1(h)))", depth=2, width=4).module()
    seen = []
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_hook(lambda *_, name=name: seen.append(name))
    module(torch.randn(3, 4))
    assert seen == ["blocks.0.W1", "blocks.0.W2", "blocks.1.W1", "blocks.1.W2"]


def test_it_trains_and_every_parameter_moves() -> None:
    network = Network(
        "h + gain(0.5)*W2(gelu(W1(layernorm(h, gain=True, bias=True), bias=True)))*scalar(1)",
        depth=4,
        width=16,
    )
    module = network.module(seed=1)
    before = copy.deepcopy(module.state_dict())
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(64, 16, generator=generator) for _ in range(2))
    optimiser = torch.optim.Adam(module.parameters(), lr=1e-2)
    losses = []
    for _ in range(60):
        optimiser.zero_grad()
        loss = F.mse_loss(module(x), y)
        loss.backward()
        losses.append(loss.item())
        optimiser.step()
    assert losses[-1] < 0.5 * losses[0]
    for name, value in module.state_dict().items():
        assert not torch.equal(value, before[name])


def test_a_copy_and_a_loaded_state_are_independent_and_equal() -> None:
    network = Network("h + W2(relu(W1(h)))", depth=2, width=4)
    module, other = network.module(0), network.module(1)
    x = torch.randn(3, 4)
    other.load_state_dict(module.state_dict())
    twin = copy.deepcopy(module)
    assert torch.equal(module(x), other(x))
    with torch.no_grad():
        twin.blocks[0].W1.weight.zero_()  # type: ignore[union-attr, index]
    assert torch.equal(module(x), other(x))
    assert not torch.equal(module(x), twin(x))


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_that_of_pytorch(causal: bool) -> None:
    network = Network(f"attention(h, heads=2, causal={causal})", depth=1, width=8, tokens=5)
    module = network.module(dtype=torch.float64)
    theirs = nn.MultiheadAttention(8, 2, bias=False, batch_first=True, dtype=torch.float64)
    part = module.blocks[0].attention.get_submodule("1")  # type: ignore[union-attr, index]
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([getattr(part, p).weight for p in "qkv"]))
        theirs.out_proj.weight.copy_(part.o.weight)
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    mask = nn.Transformer.generate_square_subsequent_mask(5).bool() if causal else None
    expected, _ = theirs(x, x, x, attn_mask=mask, need_weights=False)
    assert torch.allclose(module(x), expected, rtol=1e-10, atol=1e-12)


def test_dropout_follows_the_mode() -> None:
    module = Network("dropout(W(h, init='identity'), 0.5)", depth=1, width=64).module()
    x = torch.ones(50, 64)
    y = module(x)
    assert set(y.unique().tolist()) == {0.0, 2.0}
    assert abs((y == 0).float().mean().item() - 0.5) < 4 * 0.5 / 3200**0.5
    assert torch.equal(module.eval()(x), x)


def test_weights_of_a_seed_are_those_that_streaming_draws() -> None:
    a = Network("h + W1(h)", depth=3, width=8).module(seed=2).state_dict()
    b = Network("h + W1(h)", depth=9, width=8).module(seed=2).state_dict()
    for name in a:  # more blocks change no weight of the first ones
        assert torch.equal(a[name], b[name])


def test_pytorch_defaults_have_their_biases() -> None:
    module = Network("W1(h, bias=True)", depth=1, width=400, init="torch").module()
    bias = module.blocks[0].W1.bias  # type: ignore[union-attr, index]
    assert 0.9 / 20 < bias.abs().max() <= 1 / 20
    plain = Network("W1(h, bias=True)", depth=1, width=400, init="he").module()
    assert not plain.blocks[0].W1.bias.any()  # type: ignore[union-attr, index]


def test_a_layer_cannot_be_called_what_a_module_has() -> None:
    with pytest.raises(NetworkError, match=r"called 'training', which every nn\.Module has"):
        Network("conv3(h, name='training')", depth=1, width=4).module()


def test_sequential_draws_make_no_module() -> None:
    with pytest.raises(NetworkError, match="needs keyed draws"):
        Network("W1(h)", draws="sequential-pcg64").module()


def test_a_bias_may_have_an_initialiser_of_its_own() -> None:
    init = {"W1": "orthogonal", "W1.bias": "normal(std=0.5/sqrt(L))"}
    network = Network("h + W1(h, bias=True)", depth=4, width=2000, init=init)
    module = network.module(seed=3)
    bias = module.get_parameter("blocks.1.W1.bias").detach()
    assert float(bias.std()) == pytest.approx(0.25, rel=0.05)
    assert not torch.equal(bias, module.get_parameter("blocks.2.W1.bias"))
    word = replace(network, init={"W1": "orthogonal", "W1.bias": "constant(0.25)"}, width=8)
    assert bool((word.module().get_parameter("blocks.0.W1.bias") == 0.25).all())


def test_streaming_draws_the_same_biases() -> None:
    init = {"W1": "zeros", "W1.bias": "normal(std=0.3)"}
    network = Network("W1(h, bias=True)", depth=3, width=40, init=init)
    bias = network.module(seed=3).get_parameter("blocks.2.W1.bias").detach()
    rms = float(bias.square().mean().sqrt())
    assert float(measure(network, batch=4, seed=3)["state_rms"][-1]) == pytest.approx(rms, rel=1e-5)
    both = measure(network, batch=4, seed=[2, 3])["state_rms"]
    assert float(both[1, -1]) == pytest.approx(rms, rel=1e-5)
    assert float(both[0, -1]) != pytest.approx(rms, rel=1e-3)


@pytest.mark.parametrize(
    ("init", "words"),
    [
        ({"W2.bias": "zeros"}, "init names 'W2.bias', but the block has W1, W2, W1.bias"),
        ({"W1.bias": "he"}, "the bias of W1 is initialised by he, which is for matrices"),
    ],
)
def test_what_a_bias_cannot_have(init: dict[str, str], words: str) -> None:
    with pytest.raises(NetworkError, match=words):
        Network("h + W2(W1(h, bias=True))", depth=2, width=8, init=init)
