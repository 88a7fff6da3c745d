"""How many floating-point operations the matrix products of a model take, counted exactly.

Forward, for a sentence of s source and t target tokens, the ends of sentences included:

  2 (s W_s + t W_t)  +  4 (s^2 D_e + t^2 D_d + s t D_c)

A multiplication and an addition are two operations. W_s holds the elements of all weight matrices
that a source token meets: the encoder's, and keys and values of the cross-attentions (with
`--cross-self-attention`, of the decoder's self-attentions, which also see the source). W_t holds
those a target token meets: the rest of the decoder and the output projection. D_e, D_d and D_c are
the widths of the self-attentions of encoder and decoder and of the cross-attentions, each summed
over the layers: scores and weighted sums are two products of s x s x width. All count as often as
they are evaluated, which some schemes and sub-steps do several times. A decoder's scores of later
tokens count too, since fairseq computes and then masks them. A backward pass has two products for
each one forward: training takes three times the forward pass.

An adaptive softmax counts whole, as if all its parts were computed for each token. Padding does not
count, so that the work is the same however it is batched. Nor do embeddings, softmax, LayerNorm and
the optimizer, which are no matrix products.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from macaron_fairseq.model.layers import SplittingLayer


@dataclass(frozen=True)
class Work:
    """A model's W_s, W_t, D_e, D_d and D_c, see above."""

    source_weights: int
    target_weights: int
    encoder_width: int
    decoder_width: int
    cross_width: int

    def forward(self, lengths: Iterable[tuple[int, int]]) -> int:
        """Operations forward for sentences of these (source, target) lengths."""
        return sum(
            2 * (s * self.source_weights + t * self.target_weights)
            + 4 * (s * s * self.encoder_width + t * t * self.decoder_width)
            + 4 * s * t * self.cross_width
            for s, t in lengths
        )

    def training(self, lengths: Iterable[tuple[int, int]]) -> int:
        """Operations forward and backward."""
        return 3 * self.forward(lengths)


def of_model(model: nn.Module, within: str = "") -> Work:
    """The work of a transformer of fairseq or of this project; its weights tell it.

    Args:
        model: the whole of it.
        within: count only what has a name that begins so, as "encoder.layers.0.".
    """
    weights = {"source": 0, "target": 0}
    widths = {"encoder": 0, "decoder": 0, "cross": 0}
    times = evaluations(model)
    sees_source = getattr(getattr(model, "decoder", None), "cross_self_attention", False)
    # The output projection may be the embedding, but has another name.
    for name, weight in model.named_parameters(remove_duplicate=False):
        if weight.dim() != 2 or ".embed_" in name or not name.startswith(within):
            continue
        n = times.get(id(weight), 1)
        in_encoder, in_cross = name.startswith("encoder."), ".encoder_attn." in name
        is_key, is_value = name.endswith(".k_proj.weight"), name.endswith(".v_proj.weight")
        of_source = in_encoder or (in_cross and (is_key or is_value))
        weights["source" if of_source else "target"] += n * weight.numel()
        if is_key:
            side = "encoder" if in_encoder else "cross" if in_cross else "decoder"
            widths[side] += n * len(weight)
        if sees_source and ".self_attn." in name and not in_encoder and (is_key or is_value):
            weights["source"] += n * weight.numel()
            widths["cross"] += n * len(weight) if is_key else 0
    return Work(*weights.values(), *widths.values())


def evaluations(model: nn.Module) -> Counter[int]:
    """How often a forward pass evaluates each weight of Macaron layers, by the weight's `id`."""
    found: Counter[int] = Counter()
    for layer in model.modules():
        if not isinstance(layer, SplittingLayer):
            continue
        for step in layer.steps:
            networks: list[Any] = [layer.weights(operator)[0] for operator in step.operators]
            for network in networks:
                # fairseq's layer holds its last FFN itself.
                parts = [network.fc1, network.fc2] if hasattr(network, "fc1") else [network]
                for weight in [weight for part in parts for weight in part.parameters()]:
                    found[id(weight)] += layer.substep.evaluations
            if layer.substep.is_gated:
                found[id(layer.gate(step).weight)] += 1
    return found
