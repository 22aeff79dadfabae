"""Small modules that recipes are applied to."""

from __future__ import annotations

import warnings
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

__all__ = [
    "DEPTH",
    "WIDTH",
    "bart",
    "bert",
    "convolutions",
    "encoder",
    "gpt2",
    "grouped",
    "llama",
    "mamba",
    "mlp",
    "neox",
    "normed_preactivation",
    "olmo2",
    "plain",
    "postnorm",
    "preactivation",
    "qwen3",
    "relu_gpt2",
    "resnet",
    "t5",
    "transformer",
]

WIDTH, DEPTH = 24, 6


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.relu = nn.LayerNorm(WIDTH), nn.ReLU()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(self.relu(self.up(self.norm(x))))
        return out


class Conv(nn.Module):
    """Post-activation, with a projected shortcut where it strides."""

    def __init__(self, entering: int, leaving: int, stride: int) -> None:
        super().__init__()
        self.a = nn.Conv2d(entering, leaving, 3, stride, 1, bias=False)
        self.b = nn.Conv2d(leaving, leaving, 3, 1, 1, bias=False)
        self.n, self.k = nn.BatchNorm2d(leaving), nn.BatchNorm2d(leaving)
        self.inner, self.outer = nn.ReLU(), nn.ReLU()
        self.shortcut = nn.Conv2d(entering, leaving, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.outer(self.shortcut(x) + self.k(self.b(self.inner(self.n(self.a(x))))))
        return out


class Pre(nn.Module):
    """Pre-activation, basic or a bottleneck; a transition's shortcut is taken after the norm and
    the activation, or of the stream itself (``early``)."""

    def __init__(
        self,
        entering: int,
        width: int,
        stride: int,
        transition: bool,
        deep: bool,
        early: bool = False,
    ):
        super().__init__()
        self.early = early
        leaving = 2 * width if deep else width
        kernels = (1, 3, 1) if deep else (3, 3)
        strides = (1, stride, 1) if deep else (stride, 1)
        sizes = (entering, *(width for _ in kernels[1:]), leaving)
        self.norms = nn.ModuleList(nn.BatchNorm2d(a) for a in sizes[:-1])
        self.acts = nn.ModuleList(nn.ReLU() for _ in kernels)
        self.convs = nn.ModuleList(
            nn.Conv2d(a, b, k, s, k // 2, bias=False)
            for a, b, k, s in zip(sizes, sizes[1:], kernels, strides, strict=False)
        )
        self.shortcut = nn.Conv2d(entering, leaving, 1, stride) if transition else None

    def forward(self, x: Tensor) -> Tensor:
        out = first = self.acts[0](self.norms[0](x))
        for k, conv in enumerate(self.convs):
            out = conv(self.acts[k](self.norms[k](out)) if k else out)
        total: Tensor = out + (
            x if self.shortcut is None else self.shortcut(x if self.early else first)
        )
        return total


def preactivation(
    stages: tuple[int, ...] = (2, 2), deep: bool = False, width: int = 8, early: bool = False
) -> tuple[nn.Module, Any]:
    """A pre-activation ResNet with batch norm, each stage beginning with a transition. ``early``:
    its shortcut reads the stream itself, and a norm follows the last sum."""
    torch.manual_seed(0)
    blocks, entering = [], width
    for stage, number in enumerate(stages):
        for block in range(number):
            stride = 2 if stage and not block else 1
            blocks.append(Pre(entering, width, stride, not block, deep, early))
            entering = 2 * width if deep else width
    head = (nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(entering, 3))
    last = [nn.BatchNorm2d(entering)] if early else []
    model = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1), *blocks, *last, *head)
    return model, torch.randn(4, 3, 8, 8)


class Grouped(nn.Module):
    """Pre-activation, not square: a grouped convolution, then a transposed one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.relu, self.norm = nn.ReLU(), nn.ReLU(), nn.BatchNorm2d(8)
        self.up = nn.Conv2d(8, 24, 3, 1, 1, groups=4, bias=False)
        self.down = nn.ConvTranspose2d(24, 8, 3, 1, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = x + self.norm(self.down(self.relu(self.up(self.first(x)))))
        return total


def grouped() -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
    blocks = [Grouped() for _ in range(4)]
    return nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), *blocks, *head), torch.randn(4, 3, 6, 6)


def mlp() -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    blocks = [Block() for _ in range(DEPTH)]
    return nn.Sequential(nn.Linear(8, WIDTH), *blocks, nn.Linear(WIDTH, 3)), torch.randn(32, 8)


class Stacked(nn.Module):
    """The weights of all blocks in one parameter, a slice for each."""

    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(blocks, 12, 8) / 8**0.5)
        self.down = nn.Parameter(torch.randn(blocks, 8, 12) / 12**0.5)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        for up, down in zip(self.up, self.down, strict=True):
            x = x + torch.relu(x @ up.T) @ down.T
        out: Tensor = self.head(x)
        return out


def stacked() -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    return Stacked(), torch.randn(32, 8)


def plain(kind: type[nn.Module] = nn.Tanh) -> tuple[nn.Module, Any]:
    """Layers in a row, no skip, none of them square."""
    torch.manual_seed(0)
    widths = (8, 24, 40, 24, 40, 3)
    layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), kind())]
    return nn.Sequential(*layers[:-1]), torch.randn(64, 8)


def convolutions() -> tuple[nn.Module, Any]:
    """Depthwise, grouped, transposed, and transposed in groups."""
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(6, 48, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(48, 48, 3, padding=1, groups=48),
        nn.ReLU(),
        nn.Conv2d(48, 64, 3, padding=1, groups=4),
        nn.ReLU(),
        nn.ConvTranspose2d(64, 32, 2, stride=2),
        nn.ReLU(),
        nn.ConvTranspose2d(32, 48, 3, padding=1, groups=8),
        nn.ReLU(),
        nn.Conv2d(48, 4, 1),
    ]
    return nn.Sequential(*layers), torch.randn(2, 6, 8, 8)


def resnet() -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    blocks = [Conv(8, 8, 1), Conv(8, 16, 2), Conv(16, 16, 1)]
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 3))
    return nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), *blocks, *head), torch.randn(4, 3, 8, 8)


def gpt2(**options: Any) -> tuple[nn.Module, Any]:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes: dict[str, Any] = {"n_layer": 3, "n_embd": 32, "n_head": 4, "vocab_size": 64}
    sizes |= {"n_positions": 32, "bos_token_id": 1, "eos_token_id": 1, **options}
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(**sizes)).eval()
    return model, {"input_ids": torch.randint(64, (2, 16))}


def relu_gpt2() -> tuple[nn.Module, Any]:
    return gpt2(activation_function="relu")


class PostBlock(nn.Module):
    """Norms after the sums, each a module; the sum of the second is what the module returns."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.relu = nn.LayerNorm(WIDTH), nn.ReLU()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(x + self.down(self.relu(self.up(x))))
        return out


def postnorm() -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    blocks = [PostBlock() for _ in range(DEPTH)]
    return nn.Sequential(nn.Linear(8, WIDTH), *blocks, nn.Linear(WIDTH, 3)), torch.randn(32, 8)


def transformer(encoder: int = 2, decoder: int = 2, pre: bool = False) -> tuple[nn.Module, Any]:
    """PyTorch's own, with attention in one function."""
    torch.manual_seed(0)
    with warnings.catch_warnings():  # of a fast path that pre-norm layers do not take
        warnings.simplefilter("ignore", UserWarning)
        model = nn.Transformer(
            32, 4, encoder, decoder, 64, dropout=0.0, batch_first=True, norm_first=pre
        )
    return model, (torch.randn(2, 6, 32), torch.randn(2, 5, 32))


def encoder(
    pre: bool = False, final: bool = False, layers: int = 3, dropout: float = 0.0
) -> tuple[nn.Module, Any]:
    """A stack of PyTorch's encoder layers under a head; ``final``: with a norm after the stack."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        32, 4, 128, dropout=dropout, batch_first=True, norm_first=pre
    )
    norm = nn.LayerNorm(32) if final else None
    stack = nn.TransformerEncoder(layer, layers, norm, enable_nested_tensor=False)
    return nn.Sequential(stack, nn.Linear(32, 3)), torch.randn(4, 6, 32)


def llama() -> tuple[nn.Module, Any]:
    """With two key heads for four of queries, and a gated feed-forward layer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return _tokens(LlamaForCausalLM, LlamaConfig)


def qwen3() -> tuple[nn.Module, Any]:
    """Pre-norm, with norms of queries and keys."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return _tokens(Qwen3ForCausalLM, Qwen3Config, head_dim=8)


def olmo2() -> tuple[nn.Module, Any]:
    """Norms of branches alone, at their ends, and of queries and keys."""
    from transformers import Olmo2Config, Olmo2ForCausalLM

    return _tokens(Olmo2ForCausalLM, Olmo2Config, pad_token_id=0)


def neox() -> tuple[nn.Module, Any]:
    """Pre-norm, attention and feed-forward layers beside each other with one sum for both."""
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    return _tokens(GPTNeoXForCausalLM, GPTNeoXConfig, use_parallel_residual=True)


def _tokens(model: Any, config: Any, **others: Any) -> tuple[nn.Module, Any]:
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 96, "num_hidden_layers": 3}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64}
    sizes |= {"max_position_embeddings": 32, "bos_token_id": 1, "eos_token_id": 1}
    torch.manual_seed(0)
    made: nn.Module = model(config(**sizes, **others)).eval()
    return made, {"input_ids": torch.randint(64, (2, 16))}


def t5(**others: Any) -> tuple[nn.Module, Any]:
    """An encoder and a decoder, attention spelled out, scores shifted by a table of distances."""
    from transformers import T5Config, T5ForConditionalGeneration

    sizes: dict[str, Any] = {"d_model": 32, "d_kv": 8, "d_ff": 96, "num_layers": 2, "num_heads": 4}
    sizes |= {"vocab_size": 64, "decoder_start_token_id": 0, "pad_token_id": 0, "dropout_rate": 0.0}
    torch.manual_seed(0)
    model = T5ForConditionalGeneration(T5Config(**sizes | others)).eval()
    tokens = torch.randint(1, 64, (2, 7)), torch.randint(1, 64, (2, 6))
    return model, {"input_ids": tokens[0], "decoder_input_ids": tokens[1]}


def bart(kind: str = "Bart") -> tuple[nn.Module, Any]:
    """An encoder and a decoder of one vocabulary: three embeddings and the head share a table.
    ``kind``: ``Bart``, ``MBart`` (pre-norm) or another of the same form."""
    import transformers

    sizes: dict[str, Any] = {"d_model": 32, "vocab_size": 64, "max_position_embeddings": 32}
    for stack in ("encoder", "decoder"):
        sizes |= {f"{stack}_layers": 2, f"{stack}_attention_heads": 4, f"{stack}_ffn_dim": 96}
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**sizes)
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(config).eval()
    tokens = torch.randint(4, 64, (2, 7)), torch.randint(4, 64, (2, 6))
    return model, {"input_ids": tokens[0], "decoder_input_ids": tokens[1]}


def mamba() -> tuple[nn.Module, Any]:
    """State spaces; a block asks its norm for the precision of its gain."""
    from transformers import MambaConfig, MambaForCausalLM

    sizes: dict[str, Any] = {"hidden_size": 16, "state_size": 4, "num_hidden_layers": 2}
    torch.manual_seed(0)
    model = MambaForCausalLM(MambaConfig(vocab_size=64, **sizes)).eval()
    return model, {"input_ids": torch.randint(64, (2, 6))}


def bert() -> tuple[nn.Module, Any]:
    """Post-norm, its queries, keys and values apart, its sums inside the module of the norm."""
    from transformers import BertConfig, BertForMaskedLM

    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 3}
    sizes |= {"num_attention_heads": 4, "vocab_size": 64, "max_position_embeddings": 32}
    torch.manual_seed(0)
    model = BertForMaskedLM(BertConfig(**sizes)).eval()
    return model, {"input_ids": torch.randint(64, (2, 16))}


class PreConv(nn.Module):
    """Norm and activation in front of each kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.n, self.k = nn.BatchNorm2d(8), nn.BatchNorm2d(8)
        self.a, self.b = (nn.Conv2d(8, 8, 3, 1, 1, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.b(self.k(self.a(torch.relu(self.n(x)))).relu())
        return out


def normed_preactivation() -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    blocks = [PreConv() for _ in range(3)]
    head = (nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
    return nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), *blocks, *head), torch.randn(4, 3, 8, 8)
