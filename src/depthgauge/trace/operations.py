"""What each function of PyTorch does to a stream: one word a function.

    weights   contracts with parameters: a weight layer where a factor comes from parameters alone
    contract  a product of matrices: a weight layer, or (two factors of data) attention's products
    attend    attention as one operation
    mix       moves values between positions or channels without parameters: pooling, Fourier
    norm      divides by a statistic of its own input
    act       an activation, element by element
    point     another function of one tensor, element by element
    softmax   positive weights that sum to one
    shape     moves elements, or leaves them: views, copies, slices, paddings, casts
    join      puts several tensors beside each other
    choose    takes each element from one of several tensors
    sum       adds tensors
    product   multiplies or divides tensors
    drop      dropout: random zeros
    reduce    a statistic over axes
    cell      one step of a gated recurrent cell
    cut       the value goes on, its gradient does not

A function that is not here is *opaque*: it is taken to hold weights and is named in the coverage.
Names are those of ``torch``, ``torch.nn.functional`` and ``torch.Tensor`` without the underscores
of in-place and operator methods, and those of autograd's nodes in small letters.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["CASTS", "KINDS", "NEGATIONS", "kind_of", "plain_name"]

_WORDS: Final[dict[str, str]] = {
    "weights": """
        linear bilinear embedding embedding_bag conv1d conv2d conv3d conv_transpose1d
        conv_transpose2d conv_transpose3d convolution _convolution lstm gru rnn_tanh
        rnn_relu multi_head_attention_forward _thnn_fused_lstm_cell mkldnn_rnn_layer""",
    "contract": """
        matmul mm bmm mv einsum tensordot chain_matmul dot inner outer ger kron vdot
        linalg_matmul linalg_vecdot linalg_multi_dot baddbmm addmm addbmm addmv addr""",
    "attend": """
        scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu
        flex_attention scaleddotproductflashattentionforcpu
        scaleddotproductefficientattention scaleddotproductflashattention""",
    "mix": """
        avg_pool1d avg_pool2d avg_pool3d max_pool1d max_pool2d max_pool3d
        adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d
        adaptive_max_pool2d lp_pool1d lp_pool2d max_pool2d_with_indices
        max_pool1d_with_indices fft_fft fft_ifft fft_fft2 fft_ifft2 fft_fftn fft_ifftn
        fft_rfft fft_irfft fft_rfft2 fft_irfft2 fft_rfftn fft_irfftn sort cumsum cumprod
        logcumsumexp grid_sample fftc2c fftr2c fftc2r avgpool2d maxpool2dwithindices
        adaptiveavgpool2d""",
    "norm": """
        layer_norm rms_norm batch_norm group_norm instance_norm normalize
        local_response_norm native_layer_norm native_batch_norm native_group_norm
        nativelayernorm nativebatchnorm nativegroupnorm fusedrmsnorm cudnnbatchnorm""",
    "act": """
        relu gelu silu tanh sigmoid elu selu leaky_relu mish softplus hardswish
        hardsigmoid hardtanh relu6 celu prelu rrelu softsign tanhshrink logsigmoid
        threshold softshrink hardshrink leakyrelu hardswish""",
    "point": """
        logsigmoid_forward glu logaddexp logaddexp2 sinc special_expit special_ndtr special_i0
        special_erf special_log_ndtr special_entr expit ndtr i0 cummax cummin gamma lgamma digamma
        abs exp exp2 expm1 log log2 log10 log1p sqrt rsqrt square pow float_power
        reciprocal sin cos tan asin acos atan sinh cosh erf erfc erfinv sign sgn clamp
        clamp_min clamp_max clip floor ceil round trunc frac fmod remainder nan_to_num
        logit angle polar xlogy maximum minimum fmax fmin atan2 where_scalar log_softmax
        cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss huber_loss
        binary_cross_entropy binary_cross_entropy_with_logits kl_div cosine_similarity
        pairwise_distance ctc_loss logsumexp tril triu""",
    "softmax": "softmax softmin gumbel_softmax _safe_softmax safesoftmax",
    "shape": """
        view_as_real view_as_complex view reshape view_as reshape_as permute transpose
        swapaxes swapdims t T mT H mH adjoint movedim moveaxis flatten unflatten ravel
        squeeze unsqueeze expand expand_as broadcast_to contiguous clone to float half
        bfloat16 double type type_as cpu cuda chunk split tensor_split hsplit vsplit
        dsplit unbind getitem narrow select index_select take_along_dim gather take flip
        fliplr flipud roll rot90 pad constant_pad_nd repeat repeat_interleave tile
        unfold fold pixel_shuffle pixel_unshuffle channel_shuffle interpolate upsample
        as_strided diagonal diag diag_embed masked_fill masked_fill_ requires_grad
        data_view alias detach_none slice index unsafeview asstrided tocopy unsafechunk
        splitwithsizes rename align_to broadcast_tensors meshgrid block_diag
        masked_select im2col col2im movedim squeezedim indexselect constantpadnd
        upsample_nearest2d upsamplenearest2d upsamplebilinear2d upsample_bilinear2d
        unsafe_chunk unsafe_split split_with_sizes set identity positive
        real imag conj resolve_conj atleast_1d atleast_2d atleast_3d""",
    "join": """
        cat concat concatenate stack hstack vstack dstack column_stack setitem index_put
        slice_scatter select_scatter diagonal_scatter scatter index_copy masked_scatter
        copy index_fill put cartesian_prod""",
    "choose": "where",
    "sum": """
        add sub subtract rsub lerp addcmul addcdiv index_add scatter_add scatter_reduce
        add_scalar indexadd scatteradd iadd radd isub""",
    "product": """
        mul multiply div divide true_divide rmul rdiv rtruediv truediv itruediv imul
        idiv floor_divide neg negative""",
    "drop": """
        dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout
        feature_dropout native_dropout nativedropout""",
    "reduce": """
        sum mean var std norm var_mean std_mean amax amin max min prod median nanmean
        nansum linalg_vector_norm linalg_norm vector_norm linalgvectornorm
        frobenius_norm all any count_nonzero argmax argmin topk kthvalue aminmax
        quantile logical_and sumdim""",
    "cell": "gru_cell lstm_cell rnn_tanh_cell rnn_relu_cell",
    "cut": """
        detach data argsort eq ne lt le gt ge equal isnan isinf isfinite logical_not
        logical_or logical_xor bool int long short bincount one_hot multinomial
        searchsorted bucketize nonzero unique zeros_like ones_like full_like empty_like
        rand_like randn_like randint_like new_zeros new_ones new_empty new_full
        new_tensor histc bernoulli isin invert and or xor byte char shape_as_tensor""",
    "source": """
        zeros ones empty full arange linspace eye rand randn randint randperm tensor
        as_tensor from_numpy scalar_tensor normal logspace tril_indices triu_indices
        hann_window asarray bernoulli_source complex empty_strided""",
    "weight_of": "_weight_norm weight_norm weightnorm",
}

KINDS: Final[dict[str, str]] = {
    name: kind for kind, names in _WORDS.items() for name in names.split()
}

#: Products with -1.
NEGATIONS: Final = ("neg", "negative")
#: Functions that change a tensor's type and nothing else.
CASTS: Final = ("to", "type", "type_as", "float", "half", "bfloat16", "double")

_OPERATOR = re.compile(r"__(\w+)__")
_AUTOGRAD = re.compile(r"(\w+?)Backward\w*?\d*")
_REVERSED: Final = {"__rsub__": "rsub", "__rtruediv__": "rdiv", "__rdiv__": "rdiv"}
_SPECIAL: Final = {
    "__rpow__": "pow",
    "__rmatmul__": "rmatmul",
    "__getitem__": "getitem",
    "__setitem__": "setitem",
}


def plain_name(function: object) -> str:
    """A function's name without what says how it was called: ``add_``, ``__iadd__`` are ``add``."""
    name = getattr(function, "__name__", None) or str(function)
    if name in ("__get__", "__set__"):  # a property, ``x.T``
        return str(getattr(function.__self__, "__name__", "property"))  # type: ignore[attr-defined]
    if name in _REVERSED:
        return _REVERSED[name]
    if name in _SPECIAL:
        return _SPECIAL[name]
    if match := _OPERATOR.fullmatch(name):
        word = match[1]  # __iadd__ and __radd__ are add, __invert__ is itself
        return word if word in KINDS or word[1:] not in KINDS else word[1:]
    if "." in name:  # torch.ops: relu.default
        name = name.split(".")[0]
    return name.removesuffix("_")


def autograd_name(node: object) -> str:
    """``AddBackward0`` is ``add``; a class of the user's keeps its name."""
    name = type(node).__name__
    match = _AUTOGRAD.fullmatch(name)
    return match[1].lower() if match else name


def kind_of(name: str) -> str:
    """The function's word, or ``"opaque"``."""
    return KINDS.get(name) or KINDS.get(name.removeprefix("_")) or "opaque"
