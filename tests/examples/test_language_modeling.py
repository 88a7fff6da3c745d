"""The recipe for causal language models: its text and its perplexities; nothing is trained."""

import json
import lzma
import math
import signal
import sys
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from functools import partial
from io import StringIO

import language_modeling
import language_students
import perplexity
import pytest
from common import plain_text, stage_prepare, stage_text, train_command
from common.stage_text import Counts, count
from common.steps import step
from helpers.commands import sentence_of
from helpers.run_folders import valid, write_lines, write_manifest
from helpers.small import dictionary
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

from macaron_fairseq import UserError
from macaron_fairseq.common import files
from macaron_fairseq.distillation import teacher_files
from macaron_fairseq.evaluation.training import training_flags


def test_a_signal_ends_all_students_and_a_failure_one():
    failed = {}
    for status in (128 + signal.SIGTERM, 128 + signal.SIGHUP):
        with pytest.raises(SystemExit), language_modeling.noted(["none seed 1"], failed):
            sys.exit(status)
    assert not failed
    with language_modeling.noted(["none seed 1"], failed):
        sys.exit(1)
    assert failed == {"none seed 1": "a command failed"}


def test_batches_on_many_gpus_hold_a_sample(tmp_path):
    (tmp_path / "a.txt").write_text("A line.\n")
    words = ["--text", str(tmp_path / "a.txt"), "--test", "a.txt", "--gpus", "32", "--dry-run"]
    [recipe], _ = language_modeling.read([*words, "--tokens-per-sample", "2048"])
    assert "choose --max-tokens N" in sentence_of(train_command.divide, recipe, 32)
    [recipe], _ = language_modeling.read([*words, "--tokens-per-sample", "1024"])
    assert train_command.divide(recipe, 32) == (1024, 1)


# --- Text ----------------------------------------------------------------------------------------


def test_documents_are_held_back_by_name(tmp_path):
    text = "Preface.\n# Title: Emma\nShe.\n\n# Title: Ivanhoe\nHe.\n  \nKnights.\n"
    path = tmp_path / "books.txt.xz"
    path.write_bytes(lzma.compress(text.encode()))
    held_out = {"valid": ["Emma"], "test": ["Ivanhoe"]}
    found = plain_text.divide([path], "# Title: ", held_out, tmp_path, "en")
    read = {name: (tmp_path / f"{name}.en").read_text() for name in ("train", "valid", "test")}
    assert read["train"] == "Preface.\n" and read["valid"] == "# Title: Emma\nShe.\n"
    assert read["test"] == "# Title: Ivanhoe\nHe.\nKnights.\n"
    assert found["test"] == {"Ivanhoe": 3} and found["train"] == {"books.txt.xz": 1}


def test_a_file_is_a_document_without_titles(tmp_path):
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for path in paths:
        path.write_text(f"{path.name}\n")
    plain_text.divide(paths, "", {"test": ["b.txt"]}, tmp_path, "en")
    assert (tmp_path / "test.en").read_text() == "b.txt\n"


def test_lines_are_drawn_where_no_document_is_named(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("".join(f"line {i}\n" for i in range(1, 1001)))
    found = plain_text.divide([path], "", {"valid": []}, tmp_path, "en")
    drawn = (tmp_path / "valid.en").read_text().splitlines()
    assert drawn == ["line 201", "line 401", "line 601", "line 801"]
    assert found["train"].total() == 996


@pytest.mark.parametrize(
    ("held_out", "said"),
    [
        ({"test": ["Ema"]}, "there is no document Ema: 2 are there, such as Emma"),
        ({"test": ["Emma", "Ivanhoe"]}, "no text is left for train"),
        ({"valid": ["Emma"], "test": ["Emma"]}, "Emma is to be held out twice"),
        ({"valid": []}, "no text is left for valid"),
    ],
)
def test_text_that_cannot_be_divided_is_refused(held_out, said, tmp_path):
    path = tmp_path / "books.txt"
    path.write_text("# Title: Emma\nShe.\n# Title: Ivanhoe\nHe.\n")
    arguments = [path], "# Title: ", held_out, tmp_path / "out", "en"
    assert said in sentence_of(plain_text.divide, *arguments)
    assert not [*tmp_path.glob("out/*")]


def test_a_mark_of_documents_that_is_nowhere_is_named(tmp_path):
    path = tmp_path / "books.txt"
    path.write_text("# Title: Emma\nShe.\n")
    said = sentence_of(plain_text.divide, [path], "# Titel: ", {"test": ["Emma"]}, tmp_path, "en")
    assert said == "there is no document Emma, since no line begins with '# Titel: '"


def test_text_that_is_damaged_is_refused(tmp_path):
    path = tmp_path / "a.txt.xz"
    path.write_bytes(lzma.compress(b"text\n" * 1000)[:-20])
    arguments = [path], "", {"test": ["x"]}, tmp_path / "out", "en"
    assert "is damaged" in sentence_of(plain_text.divide, *arguments)


def test_what_a_set_holds_is_counted(tmp_path):
    texts = "Ab c.\nd\n", "ab c .\nd\n", "a@@ b c .\nd\n"
    paths = [tmp_path / name for name in ("text", "words", "tokens")]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    found = count(["x"], *paths, {"a@@", "b", "c", "."})
    assert found == Counts(["x"], lines=2, characters=8, words=6, tokens=7, unknown=1)


NO_PAIR = "a b c\nd\n" * 200


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (NO_PAIR, "no pair of characters is twice in the words to train on, so BPE has nothing to"),
        ("one two\n", "train has at most 7 tokens, less than 8 samples of 128, which"),
    ],
)
def test_text_too_small_for_bpe_is_refused_before_it_is_learnt(text, said, tmp_path):
    options = ["--text", "a", "--test", "b", "--work", str(tmp_path), "--tokens-per-sample", "128"]
    [recipe], _ = language_modeling.read(options)
    clean = tmp_path / "prepare" / "clean"
    clean.mkdir(parents=True)
    for name in recipe.sets:
        (clean / f"{name}.en").write_text(text)
    fill = partial(stage_text.learned, recipe)
    assert said in sentence_of(step, tmp_path / "prepare" / "code", ["it"], fill)
    assert [*clean.parent.iterdir()] == [clean]


@pytest.mark.parametrize(
    ("name", "flags", "least"),
    [
        ("test", [], 16),
        ("valid", [], 113),  # seven whole samples and a token
        ("train", ["--", "--required-batch-size-multiple", "2"], 17),
    ],
)
def test_sets_have_a_sample_to_score_and_a_batch_to_train_with(name, flags, least):
    words = ["--text", "a", "--test", "b", "--tokens-per-sample", "16", *flags]
    [recipe], _ = language_modeling.read(words)
    stage_text.refuse_short(recipe, {name: least})
    said = sentence_of(stage_text.refuse_short, recipe, {name: least - 1})
    assert said.startswith(f"{name} has {least - 1} tokens, less than")


@pytest.mark.parametrize("text", [NO_PAIR, "ab ac cb\n", "ab abc\n", "aaa\n", "ab b\nab\n", "aaaa"])
def test_text_is_refused_where_subword_nmt_learns_no_merge(text, tmp_path):
    """It ends in a traceback there, or leaves codes that it does not apply."""
    (tmp_path / "text").write_text(text)
    codes = StringIO()
    with suppress(ValueError):  # max() of no pair
        learn_bpe(StringIO(text), codes, 9)
    is_learnt = len(codes.getvalue().splitlines()) > 1
    with nullcontext() if is_learnt else pytest.raises(SystemExit):
        stage_prepare.refuse_without_merges([tmp_path / "text"])


def test_a_text_has_no_more_tokens_than_bpe_without_merges_makes(tmp_path):
    text = "the captain of a ship .\nl'été\n"
    (tmp_path / "text").write_text(text)
    pieces = BPE(StringIO("q q\n"))  # a merge that is nowhere
    (tmp_path / "units").write_text("".join(map(pieces.process_line, text.splitlines(True))))
    most = stage_text.tokens(tmp_path / "units")
    assert stage_text.most_tokens(tmp_path / "text", 999) == most
    assert 5 <= stage_text.most_tokens(tmp_path / "text", 5) < most


# --- Perplexities --------------------------------------------------------------------------------

COUNTS = Counts(["Emma"], lines=10, characters=4000, words=800, tokens=1000, unknown=0)


def seeds(*bits):
    """Runs of so many bits per token."""
    return {i: perplexity.of_bits(x * 1000, COUNTS, 0) for i, x in enumerate(bits, 1)}


def test_perplexities_of_a_uniform_model():
    """It gives each token one of 64: 6 bits."""
    found = perplexity.of_bits(6.0 * 1000, COUNTS, 0)
    assert found.per_token == pytest.approx(64) and found.bits_per_character == 1.5
    assert found.per_word == pytest.approx(64 ** (1000 / 800))


def test_a_model_that_finds_the_text_impossible_is_no_error():
    """2 to the bits of a word is more than a number can be."""
    found = perplexity.of_bits(2000.0 * 800, COUNTS, 0)
    assert found.per_word is None and found.bits_per_character == 400
    assert json.loads(files.as_json(asdict(found)))["per_word"] is None
    possible = {"b": {1: perplexity.of_bits(20.0 * 800, COUNTS, 0)}}
    said = perplexity.report({"a": {1: found, 2: found}, **possible}, COUNTS, COUNTS)
    assert "| - | 400.0000 ± 0.0000 |" in said and "\nA perplexity of `-` is more" in said
    assert "| 1.05e+06 |" in said
    assert "10^308" not in perplexity.report(possible, COUNTS, COUNTS)


LOG = "| Evaluated 1,000 tokens in 3.7s\n| Loss (base 2): 6.0000, Perplexity: 64.00\n"


def test_fairseqs_loss_is_of_each_token():
    assert perplexity.of_loss(6.00004, LOG, COUNTS, 3) == perplexity.of_bits(6000.04, COUNTS, 3)


@pytest.mark.parametrize(
    ("loss", "text", "said"),
    [
        (6.0, LOG.replace("1,000", "999"), "scored 999 tokens of 1000"),
        (math.nan, LOG, "the training diverged"),
        (6.0, "", "does not say how many tokens it scored"),
    ],
)
def test_what_fairseq_did_not_score_is_refused(loss, text, said):
    assert said in sentence_of(perplexity.of_loss, loss, text, COUNTS, 0)


def test_the_table_has_mean_and_spread_over_seeds():
    found = {"base": seeds(6, 6.2, 6.4), "macaron": seeds(5.9, 6.1, 6.2)}
    text = perplexity.report(found, COUNTS, COUNTS)
    assert f"{(2**6 + 2**6.2 + 2**6.4) / 3:.2f} ± " in text and "| 1.5500 ± 0.0500 |" in text
    # Differences of 0.1, 0.1 and 0.2 bits for each of 1,000 tokens, by 4,000 characters; t = 4.303.
    assert "`macaron` less `base`: -0.0333 bits per character" in text
    assert "over 3 paired seeds from -0.0692 to +0.0025, which includes 0" in text
    assert "differences are looked at" not in text
    assert "Held back: Emma. It has 10 lines, 800 words, 1,000 tokens and 4,000 chara" in text
    trained = perplexity.report(found, COUNTS, replace(COUNTS, tokens=7))
    assert "Trained on 7 tokens of 1 document." in trained
    same = {"base": seeds(6, 6.2), "macaron": seeds(5.9, 6.1), "other": seeds(5, 6)}
    text = perplexity.report(same, COUNTS, COUNTS)
    assert (
        "`macaron` less `base`: -0.0250 bits per character, the same with each of 2 seeds" in text
    )
    assert "2 differences are looked at, each with an interval for itself." in text
    one = perplexity.report({x: {1: y[1]} for x, y in found.items()}, COUNTS, COUNTS)
    assert "One seed: this says nothing" in one and math.isfinite(found["base"][1].per_word)


def test_students_are_compared_with_the_first_and_with_their_baseline():
    found = {"none": seeds(6, 6.4), "own": seeds(6.4, 6.8), "across": seeds(6, 6.8)}
    others = dict.fromkeys(("own", "across"), replace(COUNTS, tokens=1234, unknown=7))
    baselines = {"own": "none", "across": "own"}
    text = perplexity.report(found, COUNTS, COUNTS, "system", baselines, others)
    assert text.count(" less `none`: ") == 2 and "| system " in text
    # Differences of 0.4 and 0 bits for each of 1,000 tokens, by 4,000 characters; t = 12.7.
    said = "`across` less `own`: -0.0500 bits per character, with a 95 % interval over 2 paired"
    assert said in text and "from -0.6853 to +0.5853, which includes 0" in text
    # Without figures of the first one, no other takes its place.
    rest = {name: found[name] for name in ("own", "across")}
    text_of_rest = perplexity.report(rest, COUNTS, COUNTS, "system", baselines, others, "none")
    assert said in text_of_rest and " less `none`" not in text_of_rest
    assert "`own` and `none` have no seed in common" in text_of_rest
    assert "With the merges of `own`, `across` it has 1,234 tokens: compare these per word" in text
    assert "not in the dictionary: 7." in text


def test_planned_comparisons_are_corrected_for_all_that_were_planned():
    """By hand: t with two degrees of freedom has p = 1 - t / sqrt(t^2 + 2)."""

    found = {"none": seeds(6, 6.4, 6.8), "word": seeds(5.9, 6.2, 6.6), "more": seeds(5, 5, 5)}
    found["mta"] = {2: found["word"][2]}
    main = ["word", "mta", "across"]
    planned = perplexity.planned(main, {"mta": "word", "across": "own"}, found, "none")
    assert [*planned] == ["word", "mta"]
    word, mta = planned["word"], planned["mta"]
    assert word.differences == pytest.approx([-0.025, -0.05, -0.05]) and word.seeds == [1, 2, 3]
    t = 5.0  # a mean of -1/24, and a standard error of 1/120
    assert word.p == pytest.approx(1 - t / math.sqrt(t**2 + 2))
    assert word.holm == pytest.approx(3 * word.p)
    assert (mta.baseline, mta.seeds, mta.differences, mta.p) == ("word", [2], [0], None)
    text = perplexity.report(found, COUNTS, COUNTS, "system", {"mta": "word"}, planned=planned)
    assert "| `word` | `none` | -0.0250 -0.0500 -0.0500 | -0.0417 (-0.0775 to -0.0058) |" in text
    assert f"| {word.p:.4f} | {3 * word.p:.4f} |" in text


# --- Stale results -------------------------------------------------------------------------------


def evaluated(work, *words):
    """The recipe with a training and its perplexity, and the arguments of its report."""
    options = ["report", "--work", str(work), "--archs", "a", "--cpu", *words]
    [recipe], context = language_modeling.read(options)
    write_evaluated(recipe, "a", 1, context)
    return recipe, context


def write_evaluated(recipe, arch, seed, context):
    """A training and its perplexity."""
    run = recipe.run(arch, seed)
    paths = {
        recipe.data / "preprocessing.json": '{"fingerprint": "text"}',
        recipe.data / "made-from": "data",
        recipe.data / "held-out" / "counts.json": json.dumps(
            {name: asdict(COUNTS) for name in ("train", "test")}
        ),
        run / "trained": language_modeling.train_command.identity(recipe, "text", arch, seed),
        run / "checkpoint_last.pt": "weights",
        run / "test" / "perplexity.json": json.dumps(asdict(perplexity.of_bits(1, COUNTS, 256))),
    }
    write_manifest(run, "text")
    for path, content in paths.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    inputs = language_modeling.scored_from(recipe, run / "checkpoint_last.pt", context)
    (run / "test" / "made-from").write_text(language_modeling.hash_of(*inputs))


def test_another_models_vocabulary_does_not_replace_what_a_model_was_trained_on(tmp_path):
    recipe, _ = evaluated(tmp_path)
    write_manifest(recipe.run("a", 1), "text")
    given = [tmp_path / name for name in ("codes", "dict.txt")]
    for path in given:
        path.write_text("a b\n")
    said = sentence_of(stage_text.take, recipe, *given)
    assert said.startswith(f"{recipe.run('a', 1)} was trained on what {recipe.data} holds, which")
    assert stage_prepare.fingerprint(recipe.data) == "text"


def test_a_report_is_of_these_models_and_options(tmp_path):
    recipe, context = evaluated(tmp_path)
    language_modeling.report([recipe], context)
    said = sentence_of(language_modeling.report, [recipe], context - 1)
    assert "is of another checkpoint, other options or another version of the code" in said
    (recipe.run("a", 1) / "checkpoint_last.pt").write_text("trained on")
    assert "run the stage evaluate" in sentence_of(language_modeling.report, [recipe], context)


@pytest.mark.parametrize("other", ["samples", "decoding", "data"])
def test_a_report_is_of_these_samples_flags_and_data_though_the_weights_be_the_same(
    other, tmp_path
):
    recipe, context = evaluated(tmp_path, "--context-window", "7")
    if other == "samples":
        recipe = replace(recipe, block=recipe.block // 2)
    elif other == "decoding":
        evaluation = replace(recipe.benchmark.evaluation, decode="--fp16")
        recipe = replace(recipe, benchmark=replace(recipe.benchmark, evaluation=evaluation))
    else:
        (recipe.data / "made-from").write_text("other data")
    said = sentence_of(language_modeling.report, [recipe], context)
    assert "is of another checkpoint, other options or another version of the code" in said


def test_the_text_is_scored_as_a_stream_with_the_context_that_is_asked_for(tmp_path, monkeypatch):
    recipe, context = evaluated(tmp_path, "--context-window", "7", "--tokens-per-sample", "32")
    (recipe.run("a", 1) / "test" / "made-from").write_text("other inputs")
    begun = []

    def score(path, words, name, stdout):
        begun.append(training_flags.parse([str(word) for word in words]))
        path.write_text(LOG)
        path.with_name("loss.json").write_text('{"loss": 6}')

    monkeypatch.setattr(language_modeling, "logged", score)
    write_lines(recipe.run("a", 1) / "train.log", [valid(10, 7.5), valid(20, 6.5)])
    language_modeling.evaluate([recipe], context)
    scored = language_modeling.scored(recipe, "a", 1, context)
    assert (scored.validation, scored.context) == (6.5, 7)  # the last model's
    for name, value in {
        "--gen-subset": "test",
        "--sample-break-mode": "none",  # not a sentence by itself
        "--tokens-per-sample": "32",
        "--context-window": "7",
        # fairseq adds the context to each sample: then they have as many as in training.
        "--max-tokens": str(recipe.tokens_at_once * 25 // 32),
    }.items():
        assert begun[0][name] == [value]
    assert begun[0]["--distributed-world-size"] == ["1"]  # else each process scores a part
    assert "--cpu" in begun[0]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (
            lambda run: (run / "trained").write_text("of fewer updates"),
            "was trained with other options, such as --max-update",
        ),
        (lambda run: write_manifest(run, "x"), "was trained on other data"),
        (lambda run: (run / "manifest.json").write_text("{"), "manifest.json is not a JSON file"),
    ],
)
def test_a_model_of_another_training_is_neither_scored_nor_reported(spoil, said, tmp_path):
    recipe, context = evaluated(tmp_path)
    spoil(recipe.run("a", 1))
    for stage in (language_modeling.report, language_modeling.evaluate):
        assert said in sentence_of(stage, [recipe], context)


# --- The command line ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--text", "a"], "say what is held back from training: --test NAME"),
        (["--text", "a", "b", "./a", "--test", "a"], "/a twice: leave one out"),
        (["--text", "a/x", "b/y", "b/x", "--test", "x"], "two documents called x: rename one"),
        (["evaluate", "--text", "a", "--", "--no-save"], "would leave nothing to score"),
        (["--text", "a", "--test", "a", "--context-window", "512"], "leaves nothing of a sample"),
        (["--text", "a", "--test", "a", "--max-update", "9"], "would rise for 1000 updates"),
        (["--text", "a", "--test", "a", "--", "--max-target-positions", "9"], "set by the recipe"),
        (
            ["--text", "a", "--test", "a", "--", "--sample-break-mode=eos"],
            "--sample-break-mode would train on other samples than are scored",
        ),
    ],
)
def test_mistakes_get_a_sentence(words, said):
    assert said in sentence_of(language_modeling.read, words)


def test_what_is_right_is_not_refused():
    """Two files of one name, of which none is held back; nothing kept of what is not scored."""
    words = ["train", "--text", "a/x", "b/x", "c", "--test", "c", "--", "--no-save"]
    [recipe], _ = language_modeling.read(words)
    assert recipe.extra == ["--no-save"]


def students(tmp_path, *words, arch="transformer_lm_tiny_pre_norm"):
    (tmp_path / "teacher.pt").touch()
    options = ["--text", "a", "--test", "b", "--work", str(tmp_path / "work"), "--archs", arch]
    return [*options, "--cpu", "--seeds", "1 2", "--teacher", str(tmp_path / "teacher.pt"), *words]


def test_each_way_to_learn_is_a_recipe(tmp_path):
    recipes, _ = language_modeling.read(students(tmp_path, "--merges", "9000", "--", "--lr", "1"))
    by_name = {recipe.system: recipe for recipe in recipes}
    assert [*by_name][:3] == ["none", "word", "trajectory"]
    assert by_name["none"].extra == ["--lr", "1"]
    work = tmp_path / "work"
    trajectory, across = by_name["trajectory"], by_name["across"]
    assert trajectory.data == work / "data" and trajectory.merges == 9000
    assert str(tmp_path / "teacher.pt") in trajectory.extra
    assert trajectory.extra[-2:] == ["--lr", "1"]
    assert across.data == work / "merges4000" / "data" == across.preparation.data
    assert (across.merges, across.baseline) == (4000, "none-own-bpe")
    given = across.extra[across.extra.index("--teacher-data") + 1]
    assert given == str(work / "data")
    folders = {recipe.run(recipe.archs[0], seed) for recipe in recipes for seed in recipe.seeds}
    assert len(folders) == 2 * len(recipes)


def test_the_ways_to_learn_that_come_with_it_are_flags_of_fairseq_train(tmp_path, capfd):
    language_modeling.run(students(tmp_path, "--dry-run"))
    lines = [x for x in capfd.readouterr().out.splitlines() if x.startswith("fairseq-train")]
    recipes, _ = language_modeling.read(students(tmp_path))
    assert len(lines) == 2 * len(recipes) and len({*lines}) == len(lines)
    for recipe in recipes:
        flags = ["data", *recipe.benchmark.training.words(), *recipe.extra]
        assert not language_modeling.ask_fairseq.unknown_to_fairseq(recipe.archs, flags, True)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("systems: {}", "systems should name one at least"),
        ("systems: {a/b: {}}", "a system's name has letters, digits, '.', '_' and '-': not a/b"),
        ("systems: {a: {baseline: b}}", "the baseline of a is b, and no other system"),
        ("systems: {a: {merges: -1}}", "a has -1 merges"),
        ("systems: {a: {flag: x}}", "systems/a has no 'flag'; it may have flags, merges"),
        ("systems: {a: {flags: '{x}'}}", "the flags of a: only {teacher} and {teacher_data} stand"),
        ("systems: {a: {flags: '{teacher.x}'}}", "the flags of a: only {teacher} and"),
        ("systems: {a: {flags: --arch 'a''b}}", "the flags of a: only {teacher} and"),
        ("systems: {a: {flags: --seed 2}}", "mine.yaml: the flags of a: --seed is set by the rec"),
        (
            "systems: {a: {}, b: {flags: --sample-break-mode eos}}",
            "mine.yaml: the flags of b: --sample-break-mode would train on other samples than are",
        ),
        ("{main: [a], systems: {a: {}}}", "main names a, which is not a system with a baseline"),
    ],
)
def test_a_file_of_students_is_checked(content, said, tmp_path):
    (tmp_path / "mine.yaml").write_text(content)
    words = students(tmp_path, "--students", str(tmp_path / "mine.yaml"))
    assert said in sentence_of(language_modeling.read, words)


def test_students_need_a_teacher_and_one_architecture(tmp_path):
    words = students(tmp_path, arch="a b")
    assert "have one architecture: name it by --archs" in sentence_of(language_modeling.read, words)
    words = students(tmp_path, "--teacher-data", str(tmp_path / "gone"))
    assert "gone: no such folder" in sentence_of(language_modeling.read, words)
    words = students(tmp_path)
    (tmp_path / "teacher.pt").unlink()
    assert "teacher.pt: no such checkpoint" in sentence_of(language_modeling.read, words)
    assert language_modeling.read(["report", *words])  # of what was trained
    assert language_modeling.read(["report", *words, "--teacher-data", str(tmp_path / "gone")])
    words = ["--text", "a", "--test", "b", "--systems", "word"]
    assert "students need --teacher CHECKPOINT" in sentence_of(language_modeling.read, words)


def test_some_ways_to_learn_come_with_their_baselines(tmp_path):
    recipes, _ = language_modeling.read(students(tmp_path, "--systems", "across word"))
    assert [x.system for x in recipes] == ["none", "word", "none-own-bpe", "across"]
    said = sentence_of(language_modeling.read, students(tmp_path, "--systems", "words"))
    assert said.startswith("--systems names words, but there are none, word, trajectory, none-own")


def test_a_teacher_has_not_seen_what_is_scored(tmp_path):
    data = tmp_path / "data"
    (data / "held-out").mkdir(parents=True)
    documents = {"train": ["Emma", "Omoo"], "test": ["b"]}
    counts = {name: asdict(replace(COUNTS, documents=x)) for name, x in documents.items()}
    (data / "held-out" / "counts.json").write_text(json.dumps(counts))
    words = students(tmp_path, "--teacher-data", str(data))
    language_modeling.read(words)
    words[words.index("--test") + 1] = "Emma"
    said = sentence_of(language_modeling.read, words)
    assert said.startswith("the teacher was trained on Emma, as")


WAYS = """systems:
  none: {}
  word: {flags: "--teacher {teacher}"}
  more: {flags: "--teacher {teacher} --word-weight 2"}
  across: {flags: "--teacher {teacher} --teacher-data {teacher_data}"}
  own: {flags: "--teacher {teacher} --teacher-data {teacher_data}", merges: 50}
"""


def test_the_teacher_is_looked_at_once_for_each_data_and_way_to_load_it(tmp_path, monkeypatch):
    """Of no student that is trained already."""
    (tmp_path / "mine.yaml").write_text(WAYS)
    recipes, _ = language_modeling.read(
        students(tmp_path, "--students", str(tmp_path / "mine.yaml"))
    )
    found = []

    def apart(function, asked):
        assert function is language_students.why_unfit
        found.append([(flags[0], "--teacher-data" in flags) for flags in asked])
        return "it does not fit"

    monkeypatch.setattr(language_students.ask_fairseq, "apart", apart)

    def trained(name, seed):
        [recipe] = [x for x in recipes if x.system == name]
        run = recipe.run(recipe.archs[0], seed)
        run.mkdir(parents=True)
        (run / "trained").write_text("so")

    for name in ("word", "more", "own"):
        trained(name, 1)
    assert sentence_of(language_students.refuse_unfit_teacher, recipes) == "it does not fit"
    work = tmp_path / "work"
    shared, own = str(work / "data" / "data-bin"), str(work / "merges50" / "data" / "data-bin")
    assert found.pop() == [(shared, False), (shared, True), (own, True)]
    trained("own", 2)
    sentence_of(language_students.refuse_unfit_teacher, recipes)
    assert found.pop() == [(shared, False), (shared, True)]
    language_students.refuse_unfit_teacher([x for x in recipes if x.system in ("none", "own")])
    assert not found


def test_each_teacher_is_loaded_as_its_student_loads_it(tmp_path, monkeypatch):
    """With its own data where the vocabularies differ; the first that does not fit is told of."""
    (tmp_path / "data-bin").mkdir()
    dictionary().save(str(tmp_path / "data-bin" / "dict.txt"))
    loaded = []

    def loads(how):
        def load(path, *rest):
            loaded.append((how, path, rest[0] if how == "across" else None))
            if path == "other.pt":
                raise UserError("it does not fit")

        return load

    monkeypatch.setattr(teacher_files, "load", loads("directly"))
    monkeypatch.setattr(teacher_files, "load_across", loads("across"))
    monkeypatch.setattr(sys, "argv", sys.argv)  # which the check changes
    common = [str(tmp_path / "data-bin"), "--task", "language_modeling"]
    common += ["--arch", "transformer_lm_tiny_pre_norm", "--criterion"]
    same = [*common, "distilled_label_smoothed_cross_entropy", "--teacher", "a.pt"]
    across = [*common, "cross_vocabulary_label_smoothed_cross_entropy", "--teacher"]
    asked = [same, [*across, "b.pt", "--teacher-data", "theirs"]]
    assert language_students.why_unfit(asked) == ""
    assert loaded == [("directly", "a.pt", None), ("across", "b.pt", "theirs")]
    asked.append([*across, "other.pt", "--teacher-data", "theirs"])
    assert language_students.why_unfit(asked) == "it does not fit"


def test_data_of_own_merges_is_kept_for_the_students_that_were_trained_on_it(tmp_path, monkeypatch):
    """Their runs are not in the folder of that data."""
    (tmp_path / "mine.yaml").write_text(WAYS)
    (tmp_path / "a").touch()
    words = students(tmp_path, "--students", str(tmp_path / "mine.yaml"))
    words[words.index("a")] = str(tmp_path / "a")
    recipes, _ = language_modeling.read(words)
    [recipe] = [x for x in recipes if x.system == "own"]
    run, new = recipe.run(recipe.archs[0], 1), tmp_path / "new"
    for folder, fingerprint in ((recipe.data, "before"), (new, "now")):
        folder.mkdir(parents=True)
        (folder / "preprocessing.json").write_text(json.dumps({"fingerprint": fingerprint}))
        (folder / "made-from").touch()
    write_manifest(run, "before")
    monkeypatch.setattr(stage_text, "binarised", lambda *_: None)
    monkeypatch.setattr(
        stage_text, "step", lambda folder, _, fill: folder == recipe.data and fill(new)
    )
    said = sentence_of(language_modeling.prepare, [recipe], None)
    assert said.startswith(f"{run} was trained on what {recipe.data} holds, which would be")


def test_one_way_to_learn_that_fails_ends_no_other(tmp_path, monkeypatch, capfd):
    def prepare(recipe, runs):
        if recipe.merges == 50:
            sys.exit("no such text")

    def train(recipe, devices):
        if recipe.system == "word" or (recipe.system, recipe.seeds) == ("none", [2]):
            sys.exit(3)

    def evaluate_one(recipe, arch, seed, context, cpu):
        assert recipe.system != "word"
        write_evaluated(recipe, arch, seed, context)

    monkeypatch.setattr(language_modeling.stage_train, "plan", lambda recipe: "devices")
    monkeypatch.setattr(
        language_modeling.ask_fairseq, "refuse_unknown_flags", lambda *arguments: None
    )
    monkeypatch.setattr(language_modeling.stage_text, "prepare", prepare)
    monkeypatch.setattr(language_modeling.stage_train, "train", train)
    monkeypatch.setattr(language_modeling, "evaluate_one", evaluate_one)
    (tmp_path / "mine.yaml").write_text(
        "systems: {none: {}, word: {}, own: {merges: 50}, both: {baseline: word}, last: {}}"
    )
    words = students(tmp_path, "--students", str(tmp_path / "mine.yaml"))
    said = sentence_of(language_modeling.run, words)
    failed = "own seed 1, own seed 2, word seed 1, none seed 2, word seed 2"
    assert said.startswith(f"5 runs failed, as is said above: {failed}; start it again")
    out = capfd.readouterr().out
    assert "own seed 1, own seed 2 failed: no such text" in out
    rows = [line.split(" | ")[:2] for line in out.splitlines() if line.startswith("| `")]
    assert rows == [["| `none`", "1"], ["| `both`", "2"], ["| `last`", "2"]]
    assert "`last` less `none`: +0.0000 bits" in out
    assert "`both` and `word` have no seed in common" in out and f"Not done: {failed}." in out
    # Where nothing is done, there is no table.
    monkeypatch.setattr(language_modeling.stage_train, "train", lambda *_: sys.exit("full"))
    said = sentence_of(language_modeling.run, words)
    assert said == "no run is done, so there is no table"


def test_what_a_way_to_learn_needs_is_looked_for_first(tmp_path, monkeypatch):
    monkeypatch.setattr(language_modeling.student_systems, "find_spec", lambda name: None)
    said = sentence_of(language_modeling.read, students(tmp_path))
    assert said == "the loss mined needs rapidfuzz: pip install rapidfuzz"
    language_modeling.read(["report", *students(tmp_path)])


def test_the_schedule_that_falls_to_0_ends_with_the_training():
    words = ["--text", "a", "--test", "b", "--max-update", "3000"]
    for flags, end in (([], ["3000"]), (["--", "--lr-scheduler", "inverse_sqrt"], None)):
        [recipe], _ = language_modeling.read([*words, *flags])
        given = training_flags.parse(recipe.benchmark.training.words())
        assert given.get("--total-num-update") == end


def test_half_of_a_sample_is_context():
    words = ["--text", "a", "--test", "b", "--tokens-per-sample", "128"]
    [recipe], context = language_modeling.read(words)
    assert context == 64 and recipe.block == 128 and recipe.held_out["test"] == ["b"]
    assert language_modeling.read([*words, "--context-window", "0"])[1] == 0
