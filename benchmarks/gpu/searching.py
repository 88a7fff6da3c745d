"""How often a beam search waits for the GPU, and its kernels."""

import torch
from fairseq.sequence_generator import SequenceGenerator

from gpu.checks import NotHere, Outcome
from gpu.setups import MACARON, SIX_LAYERS, TINY, Device, on
from gpu.syncs import of_cuda, of_fake
from macaron_fairseq.fast.beam_search import CandidateGenerator

# Of one batch of eight sentences, beam 5, 12 tokens and the end, in fp16. See `syncs.py`.
MOST_SYNCS = 109
MOST_KERNELS = 3395


def look(device: Device, spoil: bool) -> Outcome:
    """Of our layers and search; spoiled: of fairseq's.

    Raises:
        NotHere: on a CPU.
    """
    if not device.is_gpu:
        raise NotHere("a CPU has none")
    kernels, search = ("fairseq", SequenceGenerator) if spoil else ("fused", CandidateGenerator)
    trainer = device.trainer([*MACARON, *TINY, *SIX_LAYERS, "--macaron-kernels", kernels])
    model = trainer.get_model().eval().half()
    model.prepare_for_inference_(trainer.cfg)
    generator = search([model], device.dictionary, beam_size=5, max_len_b=12)
    batch = on(device.name, device.batch(longest=10))
    with torch.no_grad():
        generator.generate([model], batch)
    counted = of_fake if device.kind == "fake" else of_cuda
    found = counted(lambda: generator.generate([model], batch))
    passes = found["syncs"] <= MOST_SYNCS
    passes &= device.kind != "fake" or found["kernels"] <= MOST_KERNELS
    return Outcome(passes, f"{found['syncs']} syncs, {found['kernels']} kernels", found)
