"""Language models from text to fairseq's commands and this package's, each trained once."""

import json
import math
import random
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from fairseq.data import Dictionary
from helpers.commands import apply
from helpers.paths import USER_DIR
from helpers.processes import run
from helpers.small import SMALL_DECODER, SMALL_ENCODER

from macaron_fairseq import UserError, cli, plugin
from macaron_fairseq.analysis import models, sentences
from macaron_fairseq.analysis.dynamics import measurement
from macaron_fairseq.preflight import checks
from macaron_fairseq.translation.fairseq_engine import FairseqEngine
from macaron_fairseq.translation.translator import Search

pytestmark = pytest.mark.slow

TRAIN = [
    *("--cpu", "--optimizer", "adam", "--lr", "0.003", "--clip-norm", "1", "--seed", "1"),
    *("--tokens-per-sample", "24", "--sample-break-mode", "eos", "--max-tokens", "600"),
    *("--dropout", "0", "--attention-dropout", "0", "--log-format", "json", "--log-interval", "1"),
    # Validated and saved at the last update. Saved before, too: at a prime, which ends no epoch.
    *("--validate-interval", "99", "--save-interval", "99", "--save-interval-updates", "97"),
    *("--user-dir", USER_DIR),
]


def write(path, lines, seed):
    """Lines of digits that count on by 1 or by 3: neighbours tell a hidden digit."""
    rng = random.Random(seed)
    counted = Counter()
    with path.open("w") as file:
        for _ in range(lines):
            first, by = rng.randrange(10), rng.choice((1, 3))
            line = [str((first + by * i) % 10) for i in range(11)]
            counted.update([*line, "</s>"])
            print(*line, file=file)
    return counted


def entropy(counted):
    """Of a word, in bits."""
    total = sum(counted.values())
    return -sum(n / total * math.log2(n / total) for n in counted.values())


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    counted = write(folder / "train", 400, 1)
    write(folder / "test", 30, 2)
    run(
        "fairseq-preprocess",
        *("--only-source", "--trainpref", folder / "train", "--validpref", folder / "test"),
        *("--testpref", folder / "test", "--destdir", folder / "data"),
    )
    return SimpleNamespace(data=folder / "data", entropy=entropy(counted), text=folder / "test")


def trained(corpus, folder, task, arch, *flags):
    words = ["--task", task, "--arch", arch, "--save-dir", folder, *TRAIN, *flags]
    done = run("fairseq-train", corpus.data, *words)
    lines = [x.split(" | ")[-1] for x in done.stdout.splitlines() if " | valid | " in x]
    losses = [float(json.loads(x)["valid_loss"]) for x in lines if x.startswith("{")]
    return SimpleNamespace(folder=folder, log=done.stdout, valid=losses[-1])


@pytest.fixture(scope="module")
def masked(corpus, tmp_path_factory):
    return trained(
        corpus,
        tmp_path_factory.mktemp("masked"),
        "masked_lm",
        "macaron_roberta_tiny",
        *(*SMALL_ENCODER, "--encoder-ffn-embed-dim", "32", "--encoder-embed-dim", "32"),
        *("--criterion", "chunked_masked_lm", "--max-update", "250", "--mask-prob", "0.2"),
    )


@pytest.fixture(scope="module")
def causal(corpus, tmp_path_factory):
    return trained(
        corpus,
        tmp_path_factory.mktemp("causal"),
        "language_modeling",
        "macaron_transformer_lm_tiny",
        *(*SMALL_DECODER, "--decoder-ffn-embed-dim", "32"),
        *("--criterion", "cross_entropy", "--max-update", "120", "--lr", "0.01"),
    )


def test_a_masked_model_learns_more_than_how_frequent_words_are(corpus, masked):
    """Under the unigram entropy, which no model that ignores the context is."""
    assert corpus.entropy == pytest.approx(math.log2(10) * 11 / 12 + 0.41, abs=0.02)
    assert masked.valid < corpus.entropy - 1


def test_a_causal_model_learns(corpus, causal):
    """Of a line the first digit and the step are free: at least log2(20) bits of 12 words."""
    assert math.log2(20) / 12 < causal.valid < corpus.entropy - 1


def test_a_student_learns_from_a_causal_model(corpus, causal, tmp_path):
    """From its teacher alone: neither loss has the text's own next words."""
    done = trained(
        corpus,
        tmp_path,
        "language_modeling",
        "transformer_lm",
        *(*SMALL_DECODER, "--decoder-ffn-embed-dim", "32", "--decoder-layers", "1"),
        *("--criterion", "distilled_label_smoothed_cross_entropy", "--label-smoothing", "0"),
        *("--teacher", causal.folder / "checkpoint_last.pt", "--distill-weight", "1"),
        *("--trajectory-weight", "0.1", "--max-update", "60", "--lr", "0.01"),
    )
    assert done.valid < corpus.entropy - 1 and "decoder layers 1 to 2" in done.log
    lines = [x.split(" | ")[-1] for x in done.log.splitlines() if " | train_inner | " in x]
    found = [json.loads(line) for line in lines]
    for name in ("kd_loss", "trajectory_loss"):
        first, last = (float(found[i][name]) for i in (0, -1))
        assert last < first
    assert len(found) == 60 and '"valid_kd_loss"' not in done.log


def test_eval_lm_and_generate(corpus, causal):
    checkpoint = causal.folder / "checkpoint_last.pt"
    common = [corpus.data, "--user-dir", USER_DIR, "--path", checkpoint, "--cpu"]
    done = run("fairseq-eval-lm", *common, "--gen-subset", "test", "--sample-break-mode", "eos")
    (found,) = [x.split("Loss (base 2): ")[1] for x in done.stdout.splitlines() if "base 2" in x]
    assert float(found.split(",")[0]) == pytest.approx(causal.valid, rel=0.02)
    done = run(
        *("fairseq-generate", *common, "--task", "language_modeling", "--gen-subset", "test"),
        *("--sample-break-mode", "eos", "--prefix-size", "3", "--max-len-b", "14", "--beam", "1"),
        *("--required-batch-size-multiple", "1"),
    )
    hypotheses = {}
    for line in done.stdout.splitlines():
        if line.startswith("H-"):
            name, _, text = line.split("\t")
            hypotheses[int(name.removeprefix("H-"))] = text
    lines = corpus.text.read_text().splitlines()
    (model,), data = models.load([checkpoint], corpus.data)
    assert [*sorted(hypotheses)] == [*range(len(lines))]
    for number, text in hypotheses.items():
        prefix = lines[number].split()[:3]
        assert text.split() == greedy(model.model, data.source, prefix, most=14), lines[number]


def greedy(model, words, prefix, most):
    """The prefix and what follows, each word the likeliest after all before it, without caches."""
    found = [words.eos(), *map(words.index, prefix)]
    while len(found) <= most:
        with torch.no_grad():
            scores = model(torch.tensor([found]))[0][0, -1]
        scores[words.pad()] = -torch.inf
        if scores.argmax() == words.eos():
            break
        found.append(int(scores.argmax()))
    return [words[x] for x in found[1:]]


def test_eval_lm_scores_every_token_or_says_why_not(corpus, causal):
    checkpoint = causal.folder / "checkpoint_last.pt"
    argv = ["fairseq-eval-lm", str(corpus.data), "--path", str(checkpoint), "--gen-subset", "test"]
    with pytest.raises(UserError, match=r"makes samples of \d+ tokens, and the model has 24 pos"):
        apply(checks.check, [*argv, "--cpu"])
    apply(checks.check, [*argv, "--cpu", "--tokens-per-sample", "8"])


def test_score_and_sample(corpus, causal):
    hub = plugin.MacaronLanguageModel.from_pretrained(
        str(causal.folder), "checkpoint_last.pt", str(corpus.data)
    )
    right, wrong = hub.score(["1 2 3 4 5 6", "1 2 3 4 9 6"])
    assert len(right["positional_scores"]) == 6
    assert right["positional_scores"][4] > wrong["positional_scores"][4] + 1
    assert hub.sample("4 5 6 7", beam=1, max_len_b=6).split()[:6] == [*"456789"]
    with pytest.raises(UserError, match="no such checkpoint"):
        plugin.MacaronLanguageModel.from_pretrained(str(causal.folder), "none.pt")


def test_fill_mask(corpus, masked):
    hub = plugin.MacaronRobertaModel.from_pretrained(
        str(masked.folder), "checkpoint_last.pt", str(corpus.data)
    )
    words = hub.task.source_dictionary
    line = words.encode_line("<s> 1 2 3 <mask> 5 6 7 8 9 0 1", add_if_not_exist=False).long()
    with torch.no_grad():
        logits = hub.model.eval()(line[None])[0][0, 4]
    assert words[logits.argmax()] == "4"


@pytest.mark.parametrize("kind", ["masked", "causal"])
def test_this_packages_commands(kind, corpus, request, tmp_path, capsys):
    folder = request.getfixturevalue(kind).folder
    files = [*folder.glob("checkpoint_*_97.pt"), folder / "checkpoint_last.pt"]
    average = tmp_path / "average.pt"
    cli.main(["average", *map(str, files), "-o", str(average)])
    one, other, mean = (torch.load(x)["model"] for x in (*files, average))
    name = next(x for x in one if x.endswith("layers.0.fc1.weight"))
    assert not torch.equal(one[name], other[name])
    assert torch.allclose(mean[name], (one[name] + other[name]) / 2)

    cli.main(["describe", "--path", str(average)])
    side = "encoder" if kind == "masked" else "decoder"
    text = capsys.readouterr().out
    assert f"{side}, 2 layers of width" in text
    assert "x <- x + 1/2 FFN1(LN x)\n  x <- x + Self(LN x)\n  x <- x + 1/2 FFN2(LN x)" in text

    words = ["--path", str(average), "--data", str(corpus.data), "--sentences", "3"]
    out = tmp_path / "order"
    cli.main(["order", *words, "--scheme", "strang-marchuk", "--substep", "euler", "-o", str(out)])
    (whole, *_) = json.loads((out / "order.json").read_text())["results"]
    assert whole["side"] == side

    (model,), data = models.load([average], corpus.data)
    sample = sentences.read(data, limit=3)
    settings = measurement.Settings(jacobian_sentences=1, shown_sentences=1)
    content = measurement.compare([model], sample, settings)
    (of_side,) = content["models"][0]["sides"]
    assert of_side["side"] == side
    # The histogram of cosines after each step of each layer, by hand at the input.
    assert len(of_side["states"]) == 1 + 2 * 3
    pairs = sum(len(x.source) * (len(x.source) - 1) // 2 for x in sample.sentences)
    assert all(sum(x["cosine_histogram"]) == pairs for x in of_side["states"])


def test_a_model_is_not_for_a_translation_command(corpus, masked, causal):
    for one, task in ((masked, "masked_lm"), (causal, "language_modeling")):
        path = str(one.folder / "checkpoint_last.pt")
        words = Dictionary.load(str(corpus.data / "dict.txt"))
        if one is masked:
            words.add_symbol("<mask>")
        sentence = f"was trained for {task}, and is not a model for translation"
        with pytest.raises(UserError, match=sentence):
            FairseqEngine(path, words, words, Search(), torch.device("cpu"))
