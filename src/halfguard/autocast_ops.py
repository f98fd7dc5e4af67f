"""The dtype that CUDA's autocast uses for each operation: the lists, as data.

PyTorch documents the lists by public function names, under "CUDA Op-Specific Behavior":
https://docs.pytorch.org/docs/stable/amp.html#cuda-op-specific-behavior. Here they use the names of the
dispatcher, as torch 2.13 registers them (ATen/autocast_mode.h), so one entry covers a function, a method
and a module. A test checks both: it calls each documented name, and compares the dispatcher's names with
those of the installed torch.

An operation that is not listed runs in the dtype of its inputs.
"""

from __future__ import annotations

from enum import StrEnum

# Errors of operations that write values of one dtype into a tensor of another, which autocast never casts.
MIXED_WRITE = "source.*same (scalar type|dtype)|self.dtype to be equal to src.dtype|destination dty"


class AutocastRule(StrEnum):
    """The treatment of an operation's floating-point arguments by autocast."""

    LOWER = "lower"  # cast to the autocast dtype
    FP32 = "fp32"  # cast to float32
    FP32_ACCUMULATE = "fp32_accumulate"  # dtype=float32, unless the call gives another dtype
    FP32_NORM = "fp32_norm"  # the same, for the overloads of norm that have no dtype argument
    WIDEST = "widest"  # cast to float32 if one argument is float32
    BANNED = "banned"  # raise


_LISTS: dict[AutocastRule, str] = {
    AutocastRule.LOWER: """
        _convolution _convolution.deprecated conv1d conv2d conv3d conv_tbc conv_transpose1d
        conv_transpose2d.input conv_transpose3d.input convolution cudnn_convolution
        cudnn_convolution_transpose prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm
        baddbmm bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell
        gru_cell rnn_tanh_cell rnn_relu_cell _scaled_dot_product_flash_attention
        scaled_dot_product_attention
    """,
    AutocastRule.FP32: """
        acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar
        pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm
        frobenius_norm.dim nuclear_norm nuclear_norm.dim cosine_similarity poisson_nll_loss
        cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss
        huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss
        triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm
        logsumexp upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d
        _upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d
        upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d
        _upsample_bicubic2d_aa
    """,
    AutocastRule.FP32_ACCUMULATE: """
        prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm
        linalg_matrix_norm linalg_matrix_norm.str_ord sum sum.dim_IntList
    """,
    AutocastRule.FP32_NORM: "norm.Scalar norm.ScalarOpt_dim",
    AutocastRule.WIDEST: """
        addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add
    """,
    AutocastRule.BANNED: "binary_cross_entropy",
}

RULES: dict[str, AutocastRule] = {op: rule for rule, ops in _LISTS.items() for op in ops.split()}

# On a GPU these run in cuDNN, and autocast lowers inputs, states and weights. On a CPU they run as other
# operations, so they are listed here although the dispatcher has no rule for them.
CUDNN_RNN = frozenset(
    f"{name}.{overload}"
    for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")
    for overload in ("input", "data")
)
