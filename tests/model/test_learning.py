"""A Macaron model learns: from raw text to BLEU, with fairseq's commands and nothing else."""

import random

import pytest
import sacrebleu
from helpers.paths import USER_DIR
from helpers.processes import run
from helpers.small import NO_DROPOUT
from helpers.toy_corpus import hypotheses, preprocess

TRAIN = [
    *("--arch", "macaron_transformer_tiny", "--share-all-embeddings", "--cpu", "--seed", "1"),
    *("--encoder-embed-dim", "32", "--encoder-ffn-embed-dim", "64", "--encoder-layers", "1"),
    *("--decoder-embed-dim", "32", "--decoder-ffn-embed-dim", "64", "--decoder-layers", "1"),
    *("--optimizer", "adam", "--adam-betas", "(0.9,0.98)", "--clip-norm", "1", "--lr", "0.01"),
    *("--lr-scheduler", "polynomial_decay", "--warmup-updates", "100"),
    *("--total-num-update", "400", "--max-update", "400", "--max-tokens", "1000"),
    *("--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1"),
    *("--no-epoch-checkpoints", "--disable-validation"),
]


def write_corpus(folder):
    """Strings of four to six digits; the target is the source reversed. No test line is seen."""
    rng = random.Random(1)
    strings = {tuple(rng.choices("0123456789", k=rng.randint(4, 6))) for _ in range(5000)}
    strings = sorted(strings)
    rng.shuffle(strings)
    for name, lines in [
        ("test", strings[:100]),
        ("valid", strings[100:150]),
        ("train", strings[150:4150]),
    ]:
        for side, step in (("src", 1), ("tgt", -1)):
            text = "".join(" ".join(line[::step]) + "\n" for line in lines)
            (folder / f"{name}.{side}").write_text(text)


@pytest.mark.slow
def test_a_macaron_model_learns_to_reverse_unseen_strings(tmp_path):
    write_corpus(tmp_path)
    data = preprocess(tmp_path)
    plugin = ["--user-dir", USER_DIR]
    run("fairseq-train", data, *plugin, "--save-dir", tmp_path, *TRAIN, *NO_DROPOUT)
    done = run(
        "fairseq-generate",
        *(data, *plugin, "--path", tmp_path / "checkpoint_last.pt", "--cpu"),
        *("--required-batch-size-multiple", "1", "--beam", "1", "--max-len-b", "8"),
    )
    references = (tmp_path / "test.tgt").read_text().splitlines()
    answers = hypotheses(done.stdout)
    assert len(references) == 100
    assert sorted(answers) == list(range(len(references)))
    text = [answers[i] for i in range(len(references))]
    # Copying the source would get 15.
    assert sacrebleu.corpus_bleu(text, [references]).score >= 98
