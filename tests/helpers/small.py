"""Small models with random parameters, and batches for them; without anything of `fast/`."""

from copy import deepcopy
from functools import cache
from types import SimpleNamespace

# PyTorch and fairseq are imported where they are needed, see conftest.py.

# 2+2 layers, 16 wide.
SMALL_ENCODER, SMALL_DECODER = (
    [f"--{side}-embed-dim", "16", f"--{side}-layers", "2", f"--{side}-attention-heads", "4"]
    for side in ("encoder", "decoder")
)
SMALL = [*SMALL_ENCODER, *SMALL_DECODER]
DROPOUT = ["--dropout", "0.3", "--attention-dropout", "0.1", "--activation-dropout", "0.1"]
NO_DROPOUT = ["--dropout", "0", "--attention-dropout", "0", "--activation-dropout", "0"]


def dictionary(types=60):
    """A dictionary of that many words and fairseq's four special symbols."""
    return symbols(*(f"w{i}" for i in range(types)))


def symbols(*words):
    """A dictionary of these words and fairseq's four special symbols."""
    from fairseq.data import Dictionary

    d = Dictionary()
    for word in words:
        d.add_symbol(word)
    return d


def count_parameters(model):
    """Its numbers, each shared one once."""
    return sum(p.numel() for p in model.parameters())


def task(source=None, target=None):
    """As much of a translation task as a model needs."""
    source = source or dictionary()
    return SimpleNamespace(source_dictionary=source, target_dictionary=target or source)


def masked_task(tokens_per_sample=32, types=60):
    """fairseq's task for masked language models, with a dictionary and no data."""
    from fairseq.tasks.masked_lm import MaskedLMConfig, MaskedLMTask

    return MaskedLMTask(MaskedLMConfig(tokens_per_sample=tokens_per_sample), dictionary(types))


def language_task(types=60, **settings):
    """fairseq's task for causal language models, with a dictionary and no data."""
    from fairseq.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask

    return LanguageModelingTask(LanguageModelingConfig(**settings), dictionary(types))


def texts(lengths=(9, 5, 7, 3), types=64, seed=1):
    """Right-padded tokens of so many types, (texts, length), each text from <s> to </s>."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    tokens = torch.full((len(lengths), max(lengths)), 1)
    for row, length in zip(tokens, lengths, strict=True):
        row[:length] = torch.randint(4, types, (length,), generator=generator)
        row[0], row[length - 1] = 0, 2
    return tokens


def parse(arch, *flags):
    """What fairseq-train's command line makes of these flags."""
    from fairseq import options

    parser = options.get_training_parser()
    return options.parse_args_and_arch(parser, input_args=["data", "--arch", arch, *flags])


parsed = cache(parse)


def arguments(arch, *flags):
    """The same, parsed once for all tests: it takes a third of the time of a small model."""
    return deepcopy(parsed(arch, *flags))


def build(arch, *flags, for_task=None, seed=1):
    """A model with random parameters, LayerNorms and gates included, in evaluation mode."""
    import torch
    from fairseq import models

    torch.manual_seed(seed)
    model = models.build_model(arguments(arch, *flags), for_task or task())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "layer_norm" in name or ".gates." in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def batch(seed=1, sizes=((9, 8), (5, 3), (7, 8), (3, 4)), types=64):
    """Source left-padded, target right-padded, of these (source, target) lengths."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    source = torch.full((len(sizes), max(s for s, _ in sizes)), 1)
    previous = torch.full((len(sizes), max(t for _, t in sizes)), 1)
    for i, (s, t) in enumerate(sizes):
        source[i, -s:] = torch.randint(4, types, (s,), generator=generator)
        source[i, -1] = 2
        previous[i, :t] = torch.randint(4, types, (t,), generator=generator)
        previous[i, 0] = 2
    lengths = torch.tensor([s for s, _ in sizes])
    return source, lengths, previous


def text_data(folder, **tokens):
    """Binarised sets of so many tokens each, by name."""
    import torch
    from fairseq.data.indexed_dataset import make_builder

    for name, count in tokens.items():
        builder = make_builder(str(folder / f"{name}.bin"), "mmap", vocab_size=20)
        builder.add_item(torch.full((count,), 5))
        builder.finalize(str(folder / f"{name}.idx"))
    return folder
