"""How likely a model finds the references, which tells whether it was trained for these data."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from tqdm import tqdm

from macaron_fairseq.analysis.dynamics.loading import Loaded
from macaron_fairseq.analysis.dynamics.sentences import Data, Sentence
from macaron_fairseq.common.errors import UserError

# In bits. Models that nothing has been taught are this near to chance, and in both directions.
MARGIN = 1.0


def checked(loaded: Loaded, data: Data, sentences: Sequence[Sentence]) -> float:
    """The `bits_per_token` of a translation model on sentences with their references.

    Raises:
        UserError: if they say that the model was trained with another dictionary (they are more
            than if all types were as likely), or in the other direction (they are fewer with
            source and target exchanged).
    """
    assert data.target is not None
    model = loaded.runnable()
    bits, chance = bits_per_token(model, sentences), math.log2(len(data.target))
    found = f"{loaded.path} needs {bits:.1f} bits for a token of these sentences"
    if bits > chance + MARGIN:
        raise UserError(
            f"{found}, worse than chance, which needs {chance:.1f}: was it trained with another "
            "dictionary, or in the other direction?"
        )
    exchanged = turned(sentences, min(loaded.positions))
    if data.source == data.target and exchanged:  # only one dictionary allows to exchange them
        other = bits_per_token(model, exchanged)
        if other + MARGIN < bits:
            raise UserError(
                f"{found} and {other:.1f} with source and target exchanged: it was trained in the "
                "other direction, see --source-lang and --target-lang"
            )
    return bits


def bits_per_token(model: Any, sentences: Sequence[Sentence]) -> float:
    """The mean of -log2 p over the tokens that the decoder is to predict, each sentence's end too.

    Args:
        model: an encoder-decoder in evaluation mode.
        sentences: with targets, which the decoder reads as in training.
    """
    device = next(model.parameters()).device
    nats, tokens = 0.0, 0
    for sentence in tqdm(sentences, "likelihood", unit="sentence", disable=None, leave=False):
        assert sentence.target is not None
        source, target = sentence.source.to(device), sentence.target.to(device)
        with torch.no_grad():
            output = model(source[None], torch.tensor([len(source)], device=device), target[None])
            log_p = model.get_normalized_probs(output, log_probs=True)[0]
        expected = target.roll(-1)  # </s> from the beginning to the end
        nats -= log_p.gather(1, expected[:, None]).sum().item()
        tokens += len(expected)
    return nats / tokens / math.log(2)


def turned(sentences: Sequence[Sentence], most: int) -> list[Sentence]:
    """The sentences of at most so many tokens with source and target exchanged."""
    return [
        replace(sentence, source=sentence.target.roll(-1), target=sentence.source.roll(1))
        for sentence in sentences
        if sentence.target is not None and max(len(sentence.source), len(sentence.target)) <= most
    ]
