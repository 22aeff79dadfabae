"""What each weight layer makes of a batch, seen while the model runs, for rules about data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from depthgauge.trace.admission import unwrapped
from depthgauge.trace.batches import call
from depthgauge.trace.forward import quiet

__all__ = ["Look", "in_evaluation", "seen", "visited"]

#: Told the path of a weight and what the layer makes; whether the weight was changed, so that the
#: layer has to run again.
Look = Callable[[str, Tensor], bool]

_LAYERS: Final = frozenset(
    (
        *("linear", "bilinear", "matmul", "__matmul__", "__rmatmul__", "mm", "addmm", "bmm"),
        "einsum",
        *("conv1d", "conv2d", "conv3d"),
        *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
    )
)


def visited(model: nn.Module, batch: Any, weights: Mapping[str, Tensor], look: Look) -> None:
    """Run the model once without gradients, in evaluation mode, and show ``look`` what each of the
    weights makes where it is used first, in forward order.

    What cannot be seen, a weight that the model casts or computes with before it is used, is not
    shown.
    Raises what the model raises.
    """
    inner, _ = unwrapped(model)
    with in_evaluation(inner), _Visit(weights, look):
        call(inner, batch)


def seen(
    model: nn.Module,
    batch: Any,
    paths: Sequence[str],
    look: Callable[[str, Any], Tensor | None],
) -> None:
    """Run the model once without gradients, in evaluation mode, and show what each of these modules
    makes the first time; what ``look`` returns goes on in its place.

    Raises what the model raises.
    """
    todo = set(paths)

    def hook(path: str) -> Callable[..., Any]:
        def see(module: nn.Module, given: Any, made: Any) -> Tensor | None:
            if path not in todo:
                return None
            todo.discard(path)
            return look(path, made)

        return see

    handles = [model.get_submodule(path).register_forward_hook(hook(path)) for path in paths]
    try:
        with in_evaluation(model):
            call(model, batch)
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def in_evaluation(model: nn.Module) -> Iterator[None]:
    """Without gradients, in evaluation mode, and without PyTorch's one function for a whole
    Transformer layer; afterwards all is as it was."""
    modes = {module: module.training for module in model.modules()}
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        model.eval()
        torch.backends.mha.set_fastpath_enabled(False)
        with quiet(), torch.no_grad():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for module, mode in modes.items():
            module.training = mode


class _Visit(TorchFunctionMode):
    """Each weight once, at the first function that is given it."""

    def __init__(self, weights: Mapping[str, Tensor], look: Look) -> None:
        super().__init__()
        self.names = {id(weight): path for path, weight in weights.items()}
        self.todo, self.look = set(weights), look
        self.views: list[Tensor] = []  # of weights, kept so that no other takes their identity

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "multi_head_attention_forward":
            return self._attention(func, args, kwargs)
        made = func(*args, **kwargs)
        if name not in _LAYERS:
            self._follow(args, made)
            return made
        for weight in (*args, *kwargs.values()):
            if isinstance(weight, Tensor) and self._met(weight, made):
                made = func(*args, **kwargs)
        return made

    def _met(self, weight: Tensor, made: Tensor) -> bool:
        path = self.names.get(id(weight), "")
        if path not in self.todo:
            return False
        self.todo.discard(path)
        return self.look(path, made)

    def _follow(self, args: tuple[Any, ...], made: Any) -> None:
        """A view of a weight, turned, is that weight."""
        path = self.names.get(id(args[0]), "") if args else ""
        if path and isinstance(made, Tensor) and made is not args[0] and made.dim() > 1:
            whole = made.numel() == args[0].numel() and made.data_ptr() == args[0].data_ptr()
            if whole:
                self.names[id(made)] = path
                self.views.append(made)

    def _attention(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Queries, keys and values of one matrix, or of three, then the output."""
        given = dict(zip(_ATTENTION, args, strict=False)) | kwargs
        entering = [given["query"], given["key"], given["value"]]
        stacked, bias = given["in_proj_weight"], given["in_proj_bias"]
        biases = bias.chunk(3) if bias is not None else (None, None, None)
        if stacked is not None:
            rows = stacked.chunk(3)
            parts = [F.linear(x, w, b) for x, w, b in zip(entering, rows, biases, strict=True)]
            self._met(stacked, torch.cat([part.flatten() for part in parts]))
        for x, word, b in zip(entering, "qkv", biases, strict=True):
            own = given.get(f"{word}_proj_weight")
            if own is not None:
                self._met(own, F.linear(x, own, b))
        made = func(*args, **kwargs)
        return func(*args, **kwargs) if self._met(given["out_proj_weight"], made[0]) else made


#: The arguments of PyTorch's attention in one function, in order, as far as weights stand.
_ATTENTION: Final = (
    *("query", "key", "value", "embed_dim_to_check", "num_heads", "in_proj_weight"),
    *("in_proj_bias", "bias_k", "bias_v", "add_zero_attn", "dropout_p", "out_proj_weight"),
)
