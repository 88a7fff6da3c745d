"""The stored model, which reverses strings of ten symbols, and kin of it; with text for it.

The symbols get other names here: words, parts of words and Moses tokens.
"""

import json
import random
import shutil

import fairseq_cli.generate
import numpy as np
import torch
from fairseq import options
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder

from helpers.paths import FIXTURES

CHECKPOINT = FIXTURES / "stored" / "checkpoint.pt"

# The names of the digits; raw text that becomes that token; merges that make the tokens.
NAMES = ["low@@", "er", ",", "&quot;", "est", "the", "new", "öl", "is", "a"]
WORDS = ["er", "est", "the", "new", "öl", "is", "a"]
MERGES = ["l o", "lo w", "e r</w>", "e s", "es t</w>", "t h", "th e</w>", "n e", "ne w</w>"]
MERGES += ["i s</w>", "ö l</w>", "& q", "&q u", "&qu o", "&quo t", "&quot ;</w>"]
PREPROCESSING = {
    "source": "en",
    "target": "de",
    "source_steps": ["normalize", "lowercase", "tokenize"],
    "target_steps": ["normalize", "lowercase", "tokenize"],
    "tests": [],
    "fingerprint": "0",
}


def write_data(folder):
    """A data folder for the stored model."""
    (folder / "data-bin").mkdir(parents=True)
    lines = (CHECKPOINT.parent / "dict.src.txt").read_text().splitlines()
    renamed = [
        f"{NAMES[int(name)]} {count}" if name.isdigit() else f"{name} {count}"
        for name, count in (line.split() for line in lines)
    ]
    for language in ("en", "de"):
        text = "".join(line + "\n" for line in renamed)
        (folder / "data-bin" / f"dict.{language}.txt").write_text(text, encoding="utf-8")
    codes = "".join(merge + "\n" for merge in ["#version: 0.2", *MERGES])
    (folder / "code").write_text(codes, encoding="utf-8")
    (folder / "preprocessing.json").write_text(json.dumps(PREPROCESSING))
    return folder


# A small test set, whose target is the source reversed.
TOKENS = ["er low@@ er , the", "the new", "a is the est", "öl , er"]


def binarise(prefix, words, sentences):
    """Write a data set as fairseq-preprocess does."""
    builder = MMapIndexedDatasetBuilder(f"{prefix}.bin", dtype=np.int32)
    for tokens in sentences:
        builder.add_item(torch.tensor([*map(words.index, tokens), words.eos()]))
    builder.finalize(f"{prefix}.idx")


def write_test_set(folder, sentences=TOKENS):
    """A data folder for the stored model with these sentences as its test set."""
    write_data(folder)
    words = Dictionary.load(str(folder / "data-bin" / "dict.en.txt"))
    sources = [tokens.split() for tokens in sentences]
    binarise(folder / "data-bin" / "test.en-de.en", words, sources)
    binarise(folder / "data-bin" / "test.en-de.de", words, [x[::-1] for x in sources])
    return folder


def random_words(n, seed=1, longest=9):
    rng = random.Random(seed)
    return [[rng.choice(WORDS) for _ in range(rng.randint(3, longest))] for _ in range(n)]


def altered(path, folder, **model_arguments):
    """A copy of a checkpoint whose model has other arguments."""
    state = torch.load(path, weights_only=True)
    vars(state["cfg"]["model"]).update(model_arguments)
    torch.save(state, folder / "altered.pt")
    return folder / "altered.pt"


def noisy(path, folder):
    """A checkpoint that has not learnt as much."""
    state = torch.load(path, weights_only=True)
    generator = torch.Generator().manual_seed(1)
    for parameter in state["model"].values():
        if parameter.dim() == 2:
            parameter += 0.4 * parameter.std() * torch.randn(parameter.shape, generator=generator)
    torch.save(state, folder / "noisy.pt")
    return folder / "noisy.pt"


def write_hard_text(data, folder):
    """Lines longer than those it learnt, where it errs: FOLDER/raw, and for fairseq FOLDER/bin."""
    tokens = {"lower": "low@@ er", "lowest": "low@@ est", '"': "&quot;", ",": ","}
    tokens |= {word: word for word in WORDS}
    rng = random.Random(1)
    raw = [[rng.choice([*tokens]) for _ in range(rng.randint(1, 16))] for _ in range(40)]
    raw.append(["lower", "öl", "öl", "a"])  # on which rules of when to stop can differ
    (folder / "raw").write_text("".join(" ".join(x) + "\n" for x in raw), encoding="utf-8")
    shutil.copytree(data / "data-bin", folder / "bin")
    text = "".join(" ".join(tokens[word] for word in line) + "\n" for line in raw)
    (folder / "bin" / "test.en-de.en").write_text(text, encoding="utf-8")


def generate(folder, *flags, capsys):
    """What fairseq-generate prints after D-, detokenised and in order."""
    always = ["--dataset-impl", "raw", "-s", "en", "-t", "de", "--cpu", "--batch-size", "16"]
    always += ["--required-batch-size-multiple", "1"]
    always += ["--post-process", "subword_nmt", "--tokenizer", "moses"]
    parser = options.get_generation_parser()
    args = options.parse_args_and_arch(parser, [str(folder), *always, *flags])
    torch.set_num_threads(1)  # which CTranslate2 changes; more only wait for one another
    fairseq_cli.generate.main(args)
    lines = capsys.readouterr().out.splitlines()
    found = [line.split("\t") for line in lines if line.startswith("D-")]
    translations = {int(name[2:]): text for name, _, text in found}
    return [translations[i] for i in range(len(found))]
