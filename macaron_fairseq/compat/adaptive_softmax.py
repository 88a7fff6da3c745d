"""What fairseq gets wrong of a decoder with an adaptive softmax."""

from fairseq.models.transformer import TransformerDecoderBase


def keep_weights_apart(decoder: TransformerDecoderBase) -> None:
    """Let a decoder share no output weights if it has an adaptive softmax, whose are its own.

    Told to share, fairseq adds the embeddings to a checkpoint as an output projection. The model
    has none, so it refuses its own checkpoint. This can go when
    `test_fairseq_cannot_load_an_adaptive_softmax_that_is_told_to_share` fails.
    """
    if decoder.adaptive_softmax is not None:
        decoder.share_input_output_embed = False
