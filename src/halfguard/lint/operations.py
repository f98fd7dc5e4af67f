"""What the operations and modules of torch do to the precision of their inputs under CUDA's autocast.

The lists of operations are those that ``emulate_autocast`` runs. Here they are looked up by the name that a
call has in the source, so that ``F.softmax``, ``x.softmax`` and ``torch.softmax`` are one operation.
"""

from __future__ import annotations

from halfguard.autocast_ops import CUDNN_RNN, RULES, AutocastRule

_FULL_RULES = {AutocastRule.FP32, AutocastRule.FP32_ACCUMULATE, AutocastRule.FP32_NORM}


def _python_names(rules: set[AutocastRule]) -> frozenset[str]:
    """Return the operations of some rules, without the dispatcher's overloads and prefixes."""
    found = {name.partition(".")[0] for name, rule in RULES.items() if rule in rules}
    return frozenset(found | {n.removeprefix("linalg_") for n in found})


# Composite functions are made of listed operations: cross_entropy of log_softmax and nll_loss.
LOWERED = _python_names({AutocastRule.LOWER}) | {n.partition(".")[0] for n in CUDNN_RNN}
RAISED = _python_names(_FULL_RULES) | {
    "cross_entropy", "square", "normalize", "pairwise_distance", "interpolate", "upsample", "softmin",
    "pow_", "float_power", "renorm", "group_norm", "embedding",
}  # fmt: skip

LOWERED_MODULES = frozenset({
    "Linear", "LazyLinear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d",
    "ConvTranspose3d", "LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell", "PReLU",
    "MultiheadAttention",
})  # fmt: skip
RAISED_MODULES = frozenset({
    "LayerNorm", "GroupNorm", "RMSNorm", "Softmax", "Softmax2d", "LogSoftmax", "Softmin", "Softplus",
    "Embedding", "EmbeddingBag", "CosineSimilarity", "Upsample", "UpsamplingBilinear2d",
    "UpsamplingNearest2d", "CrossEntropyLoss", "NLLLoss", "MSELoss", "L1Loss", "SmoothL1Loss",
    "HuberLoss", "KLDivLoss", "BCEWithLogitsLoss", "TripletMarginLoss", "MarginRankingLoss",
    "CosineEmbeddingLoss", "PoissonNLLLoss", "HingeEmbeddingLoss",
})  # fmt: skip
# Modules that return the precision of their input.
UNCHANGED_MODULES = frozenset({
    "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "ReLU", "ReLU6", "LeakyReLU",
    "GELU", "SiLU", "ELU", "SELU", "Tanh", "Sigmoid", "Hardswish", "Hardsigmoid", "Hardtanh", "Mish",
    "Identity", "Flatten", "Unflatten", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm",
    "InstanceNorm1d", "InstanceNorm2d", "MaxPool1d", "MaxPool2d", "MaxPool3d", "AvgPool1d", "AvgPool2d",
    "AvgPool3d", "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d", "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d", "ZeroPad2d", "ReflectionPad2d", "PixelShuffle", "Unfold", "Fold",
})  # fmt: skip

# Tensors that hold no floating-point values: indices, masks, results of comparisons.
INTEGER_METHODS = frozenset({
    "long", "int", "bool", "byte", "short", "argmax", "argmin", "argsort", "nonzero", "eq", "ne", "gt",
    "lt", "ge", "le", "isnan", "isinf", "isfinite", "isin", "logical_and", "logical_or", "logical_not",
    "logical_xor", "randint", "randperm", "one_hot", "bincount", "searchsorted", "bucketize", "any", "all",
})  # fmt: skip
INTEGER_DTYPES = frozenset(
    f"torch.{name}"
    for name in ("long", "int", "int64", "int32", "int16", "int8", "uint8", "bool", "short")
)
INTEGER_CONSTRUCTORS = frozenset({
    "LongTensor", "IntTensor", "BoolTensor", "ByteTensor", "ShortTensor", "CharTensor",
})  # fmt: skip
FULL_CONSTRUCTORS = frozenset({"FloatTensor", "DoubleTensor", "Parameter"})
# New tensors have torch's default dtype, unless a dtype is given.
CREATORS = frozenset({
    "zeros", "ones", "full", "empty", "rand", "randn", "linspace", "logspace", "eye", "stft", "hann_window",
    "hamming_window", "tensor", "from_numpy",
})  # fmt: skip
LIKE_CREATORS = frozenset({
    "zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like",
})  # fmt: skip
# Functions of other libraries that return the precision of their first argument.
RESHAPES = frozenset({"rearrange", "repeat", "reduce", "checkpoint", "pack", "unpack"})
# Calls that return several tensors of the same precision.
SPLITS = frozenset({
    "chunk", "split", "unbind", "tensor_split", "unsafe_chunk", "broadcast_tensors", "meshgrid",
})  # fmt: skip
