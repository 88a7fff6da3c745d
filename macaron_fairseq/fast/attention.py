"""Multi-head attention with fairseq's parameters and results, and fewer operations.

One matrix product makes all projections of an input. PyTorch's fused kernel attends where it is
faster, and decoding uses the caches of `caches.py`.
"""

from typing import Any

import torch
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn
from torch.nn import functional

from macaron_fairseq.fast import caches, gpu_kernels
from macaron_fairseq.fast.dropout import Dropout, is_plain
from macaron_fairseq.fast.linear import ConstantLinear, Linear, linear
from macaron_fairseq.fast.replaceable import is_linear
from macaron_fairseq.model.incremental import IncrementalState

SHORT = 64  # keys up to which two matrix products attend on a CPU


class Attention(MultiheadAttention):
    """fairseq's multi-head attention in fewer operations.

    fairseq still computes quantised and pruned projections, extra keys, xformers, and attention to
    source and target together (`--cross-self-attention`).
    """

    dropout_module: Dropout
    out_proj: nn.Module
    constant: ConstantLinear | None = None  # the projections joined, see `constant_weights`

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # By the name of fairseq's class `--retain-dropout-modules` knows it.
        self.dropout_module = Dropout(self.dropout_module.p, MultiheadAttention.__name__)
        self.out_proj = Linear.of(self.out_proj)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        key_padding_mask: Tensor | None = None,
        incremental_state: IncrementalState | None = None,
        need_weights: bool = True,
        static_kv: bool = False,
        attn_mask: Tensor | None = None,
        before_softmax: bool = False,
        need_head_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend; arguments and result are those of fairseq's attention.

        Queries are (time, batch, channel), keys (source time, batch, channel) and also the values.

        Returns:
            The output, (time, batch, channel), and with `need_weights` the heads' mean weights,
            (batch, time, source time); with `need_head_weights` (heads, batch, time, source time).
        """
        is_known = self.constant or self.is_standard()
        is_fairseqs = incremental_state is not None and self.is_left_to_fairseq(
            query, attn_mask, caches.batch(incremental_state)
        )
        # Whose keys and values are one tensor, in self-attention the queries, too.
        is_one = value is key and (key is query or not self.self_attention)
        if key is None or not is_one or before_softmax or is_fairseqs or not is_known:
            return super().forward(
                query,
                key,
                value,
                key_padding_mask,
                incremental_state,
                need_weights,
                static_kv,
                attn_mask,
                before_softmax,
                need_head_weights,
            )
        need_weights = need_weights or need_head_weights
        if incremental_state is not None:
            y, weights = self.attend_cached(
                query, key, key_padding_mask, incremental_state, need_weights
            )
        else:
            y, weights = self.attend(query, key, key_padding_mask, attn_mask, need_weights)
        y = self.out_proj(y)
        if weights is not None:
            weights = weights.transpose(0, 1) if need_head_weights else weights.mean(1)
        return y, weights

    def is_standard(self) -> bool:
        """Whether this is the attention of the paper with plain linear projections."""
        projections = self.q_proj, self.k_proj, self.v_proj, self.out_proj
        return (
            (self.self_attention or self.encoder_decoder_attention)
            and self.bias_k is None
            and not self.add_zero_attn
            and not self.use_xformers
            and not self.onnx_trace
            and not self.skip_embed_dim_check
            and all(map(is_linear, projections))
        )

    def _apply(self, *args: Any, **kwargs: Any) -> "Attention":
        """Move or cast the weights; on a GPU those that are multiplied together lie together."""
        super()._apply(*args, **kwargs)
        if self.is_standard() and self.k_proj.weight.is_cuda:
            of_keys = [self.k_proj, self.v_proj]
            gpu_kernels.lay_together([self.q_proj, *of_keys] if self.self_attention else of_keys)
        return self

    # --- whole sentences -------------------------------------------------------------------------

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        key_padding_mask: Tensor | None,
        attn_mask: Tensor | None,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from whole sentences.

        Returns:
            The values' means, (time, batch, channel), and weights, (batch, heads, time, source).
        """
        time, batch, channels = query.shape
        if self.self_attention:
            q, k, v = self.project(query, self.q_proj, self.k_proj, self.v_proj)
        else:
            (q,) = self.project(query, self.q_proj)
            k, v = self.project(key, self.k_proj, self.v_proj)
        dropout = self.dropout_module
        p, weights = dropout.share(), None
        if not need_weights and is_plain(dropout) and is_for_kernel(q, k, p):
            hides_future = getattr(attn_mask, "hides_future", False)
            mask = None
            if key_padding_mask is not None:
                mask = visible(key_padding_mask, q)
            if attn_mask is not None and not (hides_future and mask is None):
                additive = added(attn_mask, q.dtype)
                if additive.dim() == 3:  # one for each head
                    additive = additive.unflatten(0, (batch, -1))
                if mask is None:
                    mask = additive
                elif mask.dtype == torch.bool:
                    mask = additive.masked_fill(~mask, -torch.inf)
                else:
                    mask = (additive + mask).clamp(min=torch.finfo(mask.dtype).min / 2)
            y = functional.scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=mask,
                dropout_p=p,
                is_causal=hides_future and mask is None,
                scale=self.scaling,
            ).permute(2, 0, 1, 3)
        else:
            q, k, v = (x.flatten(0, 1) for x in (q, k, v))
            # The product scales: scaled queries would be one more tensor to remember.
            mask = q.new_zeros(1, 1, 1) if attn_mask is None else added(attn_mask, q.dtype)
            scores = torch.baddbmm(mask, q, k.transpose(1, 2), alpha=self.scaling)
            if key_padding_mask is not None:
                # Finite, so that a row with nothing to see, itself padding, gives no NaN. Half of
                # the least number, so that a score can be added in fp16 too.
                low = torch.finfo(scores.dtype).min / 2
                hidden = key_padding_mask.bool()[:, None, None]
                padding = torch.zeros_like(hidden, dtype=scores.dtype).masked_fill_(hidden, low)
                scores += padding.expand(-1, self.num_heads, -1, -1).flatten(0, 1)
            probabilities = scores.softmax(-1)
            y = torch.bmm(dropout(probabilities), v).transpose(0, 1)
            if need_weights:
                weights = probabilities.view(batch, -1, *probabilities.shape[1:])
        # Contiguous, so that the output's projection is one operation, not copy, product and sum.
        return y.reshape(time, batch, channels).contiguous(), weights

    def project(self, x: Tensor, *projections: nn.Linear) -> list[Tensor]:
        """Project x, (time, batch, channel), to (batch, heads, time, head channel) for each."""
        count = len(projections)
        if gpu_kernels.suit(x):
            y = gpu_kernels.joined_linear(x, projections)
            y = y.view(*x.shape[:2], count, self.num_heads, self.head_dim)
            parts = y.unbind(2) if count > 1 else (y.squeeze(2),)  # which costs no kernel back
        else:  # each head's parts side by side, for a CPU's matrix products
            y = linear(x, *self.fuse(*projections))
            parts = y.view(*x.shape[:2], self.num_heads, count, self.head_dim).unbind(3)
        return [part.permute(1, 2, 0, 3) for part in parts]

    def fuse(self, *projections: nn.Linear) -> tuple[Tensor, Tensor | None]:
        """Make one linear map of several; its rows are head by head what each head needs."""

        def interleave(parameters: list[Tensor]) -> Tensor:
            if len(parameters) == 1:
                return parameters[0]
            heads = [x.unflatten(0, (self.num_heads, self.head_dim)) for x in parameters]
            return torch.stack(heads, 1).flatten(0, 2)

        weight = interleave([x.weight for x in projections])
        if projections[0].bias is None:
            return weight, None
        return weight, interleave([x.bias for x in projections])

    # --- token by token --------------------------------------------------------------------------

    def is_left_to_fairseq(
        self, query: Tensor, attn_mask: Tensor | None, batch: caches.Batch
    ) -> bool:
        """Whether fairseq is to attend: in all of a batch, or in nothing of it.

        Raises:
            ValueError: if several tokens at once come after single ones.
        """
        if not batch.is_fairseqs and (len(query) != 1 or attn_mask is not None):
            if batch.caches:
                raise ValueError("after single tokens each call should have one, without a mask")
            batch.is_fairseqs = True
        return batch.is_fairseqs

    def attend_cached(
        self,
        query: Tensor,
        key: Tensor,
        key_padding_mask: Tensor | None,
        incremental_state: IncrementalState,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from the last token of each hypothesis to it and all earlier ones.

        Returns:
            The values' means, (1, hypotheses, channel), and weights, (hypotheses, heads, 1, keys).
        """
        time, rows, channels = query.shape
        batch = caches.batch(incremental_state)
        cache = batch.cache(self, caches.evaluation(incremental_state))
        sentences = rows // batch.beam
        if self.self_attention:
            parts = self.split(self.project_token(query), 3, sentences)
            mask = batch.append(cache, parts[1:], key_padding_mask)
        else:
            if cache.memory is None:
                source = key[:, :: batch.beam]
                kv = linear(source, *self.fuse(self.k_proj, self.v_proj))
                kv = kv.view(*kv.shape[:2], self.num_heads, 2, self.head_dim)
                batch.fill(cache, kv.permute(3, 1, 2, 0, 4).contiguous(), key_padding_mask)
            parts = self.split(self.project_token(query), 1, sentences)
            mask = cache.mask
        q, (keys, values) = parts[0].flatten(0, 1), batch.read(cache)
        # For so few queries two products are faster than the fused kernel on a CPU.
        if q.device.type == "cpu":
            scores = torch.bmm(q * self.scaling, keys.transpose(1, 2))
        else:  # one kernel
            unused = q.new_empty(1, 1, 1)
            scores = torch.baddbmm(unused, q, keys.transpose(1, 2), beta=0, alpha=self.scaling)
        scores = scores.view(sentences, self.num_heads, *scores.shape[1:])
        probabilities = (scores if mask is None else scores.add_(mask)).softmax(-1)
        y = torch.bmm(self.dropout_module(probabilities).flatten(0, 1), values)
        weights = None
        if need_weights and not self.self_attention:
            weights = probabilities.transpose(1, 2).reshape(rows, self.num_heads, 1, -1)
        y = y.view(sentences, self.num_heads, *y.shape[1:])
        y = y.transpose(1, 2).reshape(time, rows, channels)
        return y, weights

    def project_token(self, x: Tensor) -> Tensor:
        """Queries and, in self-attention, keys and values of x, head by head."""
        constant = self.constant  # which another thread may end
        return constant(x) if constant else linear(x, *self.fuse(*self.of_token()))

    def of_token(self) -> list[nn.Linear]:
        """The projections of each new token."""
        return [self.q_proj, self.k_proj, self.v_proj] if self.self_attention else [self.q_proj]

    def split(self, y: Tensor, parts: int, sentences: int) -> Tensor:
        """Split projections of one time to (part, sentence, head, beam, head channel)."""
        y = y.view(sentences, -1, self.num_heads, parts, self.head_dim)
        return y.permute(3, 0, 2, 1, 4).contiguous()

    def hold_weights(self, rows: int) -> None:
        """See `linear.constant_weights`."""
        if self.is_standard():
            self.constant = ConstantLinear(*self.fuse(*self.of_token()), rows)

    def release_weights(self) -> None:
        """See `linear.constant_weights`."""
        self.constant = None


def visible(padding: Tensor, q: Tensor) -> Tensor:
    """What PyTorch's kernel gets to hide padding from the queries q, (batch, 1, 1, source time).

    On a GPU that is what it adds to scores, which PyTorch would make of a bool mask at each call.
    It is made once for all layers of a batch, and finite, so that a row with nothing to see gives
    no NaN.
    """
    if q.device.type == "cpu":
        return ~padding.bool()[:, None, None]
    made: Any = getattr(padding, "added_to_scores", None)
    if made is None or made.dtype != q.dtype:
        hidden = padding.bool()[:, None, None]
        made = torch.zeros_like(hidden, dtype=q.dtype)
        made.masked_fill_(hidden, torch.finfo(q.dtype).min / 2)
        padding.added_to_scores = made  # type: ignore[attr-defined]
    return made


def added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """What a mask adds to scores: itself, or minus infinity where one of bools hides."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, -torch.inf)


def is_for_kernel(q: Tensor, k: Tensor, dropout: float) -> bool:
    """Whether PyTorch's fused kernel is to attend, rather than two matrix products.

    On a CPU the kernel has no dropout. It is slower for short sentences and, in bf16, at every
    length that was measured (docs/results/speed.md).

    Args:
        q: (batch, heads, time, head channel).
        k: (batch, heads, source time, head channel).
        dropout: probability that an attention weight is left out.
    """
    if q.device.type != "cpu":
        return dropout == 0 or q.device.type == "cuda"
    return dropout == 0 and k.shape[2] > SHORT and q.dtype != torch.bfloat16
