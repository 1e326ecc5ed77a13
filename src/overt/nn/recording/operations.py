"""One table of operations: what each does to values, and to the units that a tensor carries.

An operation has one name here, however it was written: `torch.add`, `Tensor.add_`, `a + b` and
`a += b` are "add". What a name is not found under is unknown, and unknown is an answer.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

Values = Literal[
    "move",  # entries in another order, shape or number format, each once
    "select",  # every output entry is an input entry or a constant; some are left out or repeated
    "join",  # several tensors side by side
    "linear",  # a weight applied to the first argument, a bias added
    "average",  # fixed linear combinations of the first argument's entries
    "sum",  # a + b, a - b
    "product",  # a * b, entry by entry
    "quotient",  # a / b
    "matmul",  # sums of products of two tensors
    "entrywise",  # a non-linear function of each entry
    "maximum",  # the largest (or smallest) of some entries
    "norm",  # entries shifted and scaled by statistics of the same tensor
    "softmax",
    "attention",
    "random",  # draws, if it is told to
    "compare",  # gives truth values or places, which do not move with small changes
    "create",  # gives a tensor that depends on no other tensor's entries
    "question",  # asks for shape, type or place, not for entries
    "read",  # takes entries out into Python
    "unknown",
]
Units = Literal[
    "pass",  # each entry of the output belongs to the unit that the input's entry belongs to
    "spatial",  # the same, on (batch, units, map), where the map may change
    "tie",  # two tensors entry by entry: their units are one
    "move",  # axes are moved, merged or taken away
    "reduce",  # some axes are summed up
    "join",
    "normalize",  # along one axis: units stay, unless that axis is theirs
    "weight",  # reads all units and makes new ones
    "drop",  # dropout: passes units on, dropping some
    "question",
    "mix",  # anything else: needs all units
]


@dataclass(frozen=True)
class Kind:
    """What an operation does.

    Attributes
    ----------
    values, units
        What becomes of a tensor's entries, and of the units along one of its axes.
    constant
        Whether it adds a constant where it is affine (biases of linear operations aside).
    """

    values: Values = "unknown"
    units: Units = "mix"
    constant: bool = False

    @property
    def affine(self) -> bool:
        """Whether it is affine in its first argument, all others being fixed."""
        return self.values in _AFFINE


_AFFINE = ("move", "select", "join", "linear", "average", "sum", "product", "quotient", "matmul")
UNKNOWN = Kind()


def kind(name: str) -> Kind:
    """Return what the operation of this (canonical) name does."""
    return TABLE.get(name, UNKNOWN)


def canonical(function: Any) -> tuple[str, bool]:
    """Return the name that the table uses, and whether the spelling works in place."""
    raw = str(getattr(function, "__name__", function))
    if raw == "__get__":  # a property: x.T is an operation, x.shape a question
        name = str(getattr(getattr(function, "__self__", None), "__name__", raw))
        return (name if name in _PROPERTIES else "attribute"), False
    return _canonical(raw)


@lru_cache(maxsize=1024)
def _canonical(raw: str) -> tuple[str, bool]:
    if raw in _READS:
        return _READS[raw], False
    name, inplace = raw, False
    if raw.startswith("__") and raw.endswith("__"):
        name = raw[2:-2]
        if name.startswith("i") and name[1:] in _OPERATORS:
            name, inplace = name[1:], True
    elif raw.endswith("_") and not raw.startswith("_"):
        name, inplace = raw.rstrip("_"), True
    if name == "setitem":
        inplace = True
    return _ALIASES.get(name, name), inplace


@lru_cache(maxsize=1024)
def parameters(function: Any) -> tuple[str, ...]:
    """Return the names of a function's arguments in order, () where Python does not know them."""
    known = _SIGNATURES.get(canonical(function)[0], ())
    try:
        names = tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return known
    return known if names == ("args", "kwargs") else names


_ROWS: list[tuple[Kind, str]] = [
    (Kind("move", "pass"),
     "contiguous clone detach alias to float double half bfloat16 type type_as cpu cuda data "
     "requires_grad positive real"),
    (Kind("move", "move"),
     "view view_as reshape reshape_as flatten unflatten squeeze unsqueeze permute transpose t "
     "T mT H mH adjoint movedim ravel rearrange pixel_shuffle pixel_unshuffle channel_shuffle "
     "native_channel_shuffle flip fliplr flipud roll rot90"),
    (Kind("select", "move"),
     "getitem select narrow index_select unbind chunk split split_with_sizes tensor_split "
     "hsplit vsplit expand expand_as broadcast_to repeat tile repeat_interleave take_along_dim "
     "gather diagonal tril triu pad unfold fold setitem masked_fill where index_fill "
     "masked_select take broadcast_tensors atleast_2d atleast_3d nan_to_num "
     "masked_scatter index_copy diag_embed diag"),
    (Kind("select", "weight"), "embedding"),
    (Kind("join", "join"), "cat stack hstack vstack dstack"),
    (Kind("linear", "weight"),
     "linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d"),
    (Kind("average", "spatial"),
     "avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d "
     "adaptive_avg_pool3d interpolate upsample"),
    (Kind("average", "reduce"), "mean sum nansum"),
    (Kind("average", "mix"), "cumsum trace"),
    (Kind("sum", "tie", constant=True), "add sub rsub"),
    (Kind("product", "tie"), "mul"),
    (Kind("quotient", "tie"), "div"),
    (Kind("product", "pass"), "neg"),
    (Kind("matmul", "mix"),
     "matmul mm bmm mv dot rmatmul einsum tensordot bilinear outer inner"),
    (Kind("matmul", "mix", constant=True), "addmm baddbmm addbmm addmv addcmul addcdiv lerp"),
    (Kind("entrywise", "pass"),
     "relu leaky_relu celu elu gelu hardsigmoid hardswish hardtanh hardshrink logsigmoid mish "
     "relu6 selu "
     "sigmoid silu softplus softshrink softsign tanh tanhshrink threshold abs exp expm1 log "
     "log1p log2 log10 sqrt rsqrt square sin cos tan atan asin acos sinh cosh erf erfc "
     "reciprocal clamp clamp_min clamp_max pow rpow rdiv float_power sinc xlogy"),
    (Kind("entrywise", "mix"), "prelu glu"),
    (Kind("maximum", "spatial"),
     "max_pool1d max_pool2d max_pool3d adaptive_max_pool1d adaptive_max_pool2d "
     "adaptive_max_pool3d max_pool1d_with_indices max_pool2d_with_indices "
     "max_pool3d_with_indices lp_pool1d lp_pool2d"),
    (Kind("maximum", "reduce"), "amax amin logsumexp"),
    (Kind("maximum", "tie"), "maximum minimum"),
    (Kind("maximum", "mix"), "max min median topk sort kthvalue"),
    (Kind("norm", "mix"), "layer_norm group_norm batch_norm instance_norm rms_norm "
                          "local_response_norm"),
    (Kind("norm", "normalize"), "normalize"),
    (Kind("unknown", "reduce"), "std var norm prod var_mean std_mean"),
    (Kind("softmax", "normalize"), "softmax log_softmax softmin"),
    (Kind("attention", "mix"), "scaled_dot_product_attention multi_head_attention_forward"),
    (Kind("random", "drop"), "dropout dropout1d dropout2d dropout3d feature_dropout"),
    (Kind("random", "mix"),
     "alpha_dropout feature_alpha_dropout rrelu bernoulli normal uniform exponential rand "
     "rand_like randn randn_like cauchy log_normal geometric random randint randint_like "
     "randperm multinomial poisson binomial gumbel_softmax standard_gamma _standard_gamma "
     "_sample_dirichlet native_dropout"),
    (Kind("compare", "mix"),
     "eq ne lt gt le ge logical_and logical_or logical_not logical_xor and or xor invert isnan "
     "isinf isfinite isclose argmax argmin argsort sign sgn round floor ceil trunc any all "
     "searchsorted bucketize one_hot bool int long short floordiv floor_divide nonzero "
     "count_nonzero allclose equal heaviside contains remainder fmod mod"),
    (Kind("create", "mix"),
     "zeros ones full empty arange linspace logspace eye zeros_like ones_like full_like "
     "empty_like new_zeros new_ones new_full new_empty new_tensor tensor as_tensor zero fill "
     "tril_indices triu_indices meshgrid empty_strided from_numpy scalar_tensor"),
    (Kind("question", "question"),
     "attribute size dim numel nelement ndimension is_floating_point is_complex is_contiguous "
     "stride storage_offset data_ptr element_size get_device len hash is_inference is_conj "
     "is_neg is_signed is_same_size is_tensor result_type can_cast promote_types is_shared "
     "is_pinned has_names retain_grad register_hook _set_grad_enabled _is_view"),
    (Kind("read", "mix"),
     "item tolist numpy bool_read float_read int_read index repr str format array iter"),
]  # fmt: skip


_OPERATORS = frozenset(
    ("add", "sub", "mul", "truediv", "div", "matmul", "pow", "floordiv", "mod", "and", "or", "xor")
)
_ALIASES = {
    "truediv": "div", "true_divide": "div", "divide": "div", "radd": "add", "rmul": "mul",
    "multiply": "mul", "subtract": "sub", "rtruediv": "rdiv", "concat": "cat",
    "concatenate": "cat", "swapaxes": "transpose", "swapdims": "transpose", "moveaxis": "movedim",
    "clip": "clamp", "absolute": "abs", "negative": "neg", "log_sigmoid": "logsigmoid",
    "special_expit": "sigmoid", "expit": "sigmoid", "special_erf": "erf", "arctan": "atan",
    "row_stack": "vstack", "column_stack": "hstack", "special_log1p": "log1p",
    "_adaptive_avg_pool2d": "adaptive_avg_pool2d", "_native_multi_head_attention": "unknown",
    "greater": "gt", "less": "lt", "not_equal": "ne", "less_equal": "le", "greater_equal": "ge",
    "float_": "float", "avg_pool": "avg_pool2d", "_threshold": "threshold",
}  # fmt: skip
_PROPERTIES = frozenset(("T", "mT", "H", "mH", "data", "real"))
_READS = {"__bool__": "bool_read", "__float__": "float_read", "__int__": "int_read"}
# Functions whose mode is an argument, and which Python knows no signature of.
_DROPOUT = ("input", "p", "train")
_RECURRENT = ("input", "hx", "params", "has_biases", "num_layers", "dropout", "train")
_ATTENTION = (
    "query",
    "key",
    "value",
    "attn_mask",
    "dropout_p",
    "is_causal",
    "scale",
    "enable_gqa",
)
_SIGNATURES: dict[str, tuple[str, ...]] = {
    "dropout": _DROPOUT,
    "alpha_dropout": _DROPOUT,
    "feature_dropout": _DROPOUT,
    "feature_alpha_dropout": _DROPOUT,
    "scaled_dot_product_attention": _ATTENTION,
    "batch_norm": ("input", "weight", "bias", "running_mean", "running_var", "training"),
    "lstm": _RECURRENT,
    "gru": _RECURRENT,
}
TABLE = {name: what for what, names in _ROWS for name in names.split()}
