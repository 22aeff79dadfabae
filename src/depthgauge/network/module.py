"""A network as an ordinary ``nn.Module``: real ``nn.Linear`` and ``nn.Conv2d`` layers, trainable.

The forward pass is the same compiled block that streaming runs, so what was measured is what is
trained.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import skip_init

from depthgauge.equation.scalars import evaluate
from depthgauge.errors import NetworkError
from depthgauge.network.draws import Draws, draws
from depthgauge.network.layers import Layer, Layout
from depthgauge.network.norms import RootMeanSquare, Standardise, width_axis
from depthgauge.network.program import Coefficient, Observer
from depthgauge.network.spec import Network
from depthgauge.network.weights import draw_bias, draw_weight


class EquationNetwork(nn.Module):
    """``forward(h)``: the state after the last block; ``blocks`` holds one module a block."""

    def __init__(self, network: Network, seed: int = 0, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        source = draws(network.draws, seed)
        if network.draws != "keyed":  # the input is drawn before the weights
            raise NetworkError(
                f"a module needs keyed draws, not {network.draws}, whose weights depend on the "
                f"batch; leave draws out"
            )
        self.blocks = nn.ModuleList(
            EquationBlock(network, source, block, dtype) for block in range(1, network.depth + 1)
        )

    def forward(self, h: Tensor) -> Tensor:
        h0 = h
        for block in self.blocks:
            h = block(h, h0)
        return h


class EquationBlock(nn.Module):
    """One block; ``forward(h, h0)``, where ``h0`` is the state that entered the first block.

    Its parameters are named as in the equation: ``W1.weight``, ``attention.1.q.weight``,
    ``scalar.1``, ``rmsnorm.1.gain``.
    """

    def __init__(self, network: Network, source: Draws, block: int, dtype: torch.dtype) -> None:
        super().__init__()
        self._program, self._axis = network.program, width_axis(network.layout)
        self._coefficients, scope = network.program.coefficients(block)
        for layer in network.layers.weights:
            init = network.chosen[layer.name]
            module = _layer(layer, network.layout, dtype)
            weight = torch.from_numpy(draw_weight(source, init, layer, block, scope))
            with torch.no_grad():
                module.weight.copy_(weight.reshape(module.weight.shape))
                if module.bias is not None:
                    bias = draw_bias(source, network.chosen, layer, block, scope)
                    module.bias.copy_(torch.from_numpy(bias))
            parent, last = _parent(self, layer.name)
            if hasattr(parent, last) and last not in parent._modules:
                raise NetworkError(
                    f"a layer is called '{layer.name}', which every nn.Module has already; "
                    "give it another name"
                )
            parent.add_module(last, module)
        for vector in network.layers.vectors:
            value = torch.full(vector.shape, evaluate(vector.initial, scope), dtype=dtype)
            parent, last = _parent(self, vector.name)
            parent.register_parameter(last, nn.Parameter(value))
        for name, norm in network.program.batch_norms.items():
            shape = [1, *network.state_shape]
            shape[self._axis] = network.layers.batch_norms[name]
            for axis in norm.axes:
                shape[axis] = 1
            parent, last = _parent(self, f"{name}.running")
            parent.add_module(last, _Running(shape).to(dtype))

    def forward(self, h: Tensor, h0: Tensor | None = None) -> Tensor:
        return self._program(_ModuleContext(self, h, h if h0 is None else h0))


class _Running(nn.Module):
    """Running statistics of a norm over the batch, with PyTorch's momentum of 0.1."""

    mean: Tensor
    square: Tensor

    def __init__(self, shape: list[int]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("square", torch.ones(shape))

    def forward(self, norm: Standardise, x: Tensor) -> Tensor:
        if not self.training:
            return norm.apply(x, self.mean, self.square)
        with torch.no_grad():
            mean, square = norm.statistics(x.detach())
            count = x.numel() / square.numel()
            unbiased = square * (count / max(count - 1, 1)) if norm.centred else square
            self.mean.lerp_(mean.expand_as(self.mean), 0.1)
            self.square.lerp_(unbiased, 0.1)
        return norm(x)


def _layer(layer: Layer, layout: Layout, dtype: torch.dtype) -> nn.Linear | nn.Conv2d:
    """The layer with room for its weights: nothing is drawn from PyTorch's own generator."""
    out, fan, *kernel = layer.shape
    made: nn.Linear | nn.Conv2d
    if layout != "images":
        made = skip_init(  # type: ignore[no-untyped-call]
            nn.Linear, fan, out, bias=layer.bias, dtype=dtype
        )
        return made
    side = kernel[0] if kernel else 1  # a linear layer on the channels is a 1 x 1 convolution
    options = {"padding": side // 2, "padding_mode": layer.padding, "bias": layer.bias}
    made = skip_init(  # type: ignore[no-untyped-call]
        nn.Conv2d, fan, out, side, dtype=dtype, **options
    )
    return made


def _parent(module: nn.Module, path: str) -> tuple[nn.Module, str]:
    """The container of a dotted path, made where it is missing, and the path's last word."""
    *words, last = path.split(".")
    for word in words:
        child = module._modules.get(word)
        if child is None:
            child = nn.Module()
            module.add_module(word, child)
        module = child
    return module, last


class _ModuleContext:
    """A block that runs with its own parameters; hooks on its layers fire as usual."""

    def __init__(self, block: EquationBlock, h: Tensor, h0: Tensor) -> None:
        self.observe: Observer | None = None
        self.h, self.h0 = h, h0
        self.locals: dict[str, Tensor] = {}
        self.coefficients: list[Coefficient] = list(block._coefficients)
        self._block = block

    def apply(self, name: str, x: Tensor) -> Tensor:
        result: Tensor = self._block.get_submodule(name)(x)
        return result

    def apply_add(self, name: str, x: Tensor, residual: Any, scale: Coefficient) -> Tensor:
        result: Tensor = residual + scale * self.apply(name, x)
        return result

    def tensor(self, x: Coefficient) -> Tensor:
        return x if isinstance(x, Tensor) else self.h.new_tensor(x)

    def vector(self, name: str) -> Tensor:
        vector = self._block.get_parameter(name)
        if not vector.dim():
            return vector
        return vector.reshape(*vector.shape, *(1,) * (-1 - self._block._axis))

    def normalise(self, name: str, norm: Standardise, x: Tensor) -> Tensor:
        result: Tensor = self._block.get_submodule(f"{name}.running")(norm, x)
        return result

    def rms_norm(self, norm: RootMeanSquare, x: Tensor) -> Tensor:
        return norm(x)

    def drop(self, name: str, x: Tensor, p: float) -> Tensor:
        return F.dropout(x, p, self._block.training)
