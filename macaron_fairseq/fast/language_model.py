"""The causal language model with this room's layers."""

from macaron_fairseq.fast.transformer import FusedTransformerDecoder
from macaron_fairseq.model.language_model import MacaronLanguageModel


class FusedLanguageModel(MacaronLanguageModel):
    """`macaron_transformer_lm` with `--macaron-kernels fused`."""

    decoder_class = FusedTransformerDecoder
