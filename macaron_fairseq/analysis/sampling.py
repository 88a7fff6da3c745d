"""At which sentences and tokens something is measured or shown."""

import torch

from macaron_fairseq.analysis.anatomy import DECODER, ENCODER


def evenly(count: int, wanted: int) -> list[int]:
    """At most so many of the numbers from 0 to below `count`, evenly spread over all of them."""
    wanted = min(wanted, count)
    return [i * count // wanted for i in range(wanted)]


def drawn_places(sentences: int, seed: int) -> list[dict[str, float]]:
    """A place in each sentence, from 0 to below 1, by side.

    Nothing else is drawn with it, and nothing of the model enters: all models have the same tokens.
    """
    generator = torch.Generator().manual_seed(seed)
    places = torch.rand(sentences, 2, generator=generator, dtype=torch.double).tolist()
    return [dict(zip((ENCODER, DECODER), x, strict=True)) for x in places]
