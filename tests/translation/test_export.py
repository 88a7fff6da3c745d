"""Exported models against fairseq's own numbers and hypotheses, and what is not exported."""

import json
import os
import subprocess
import sys

import ctranslate2
import numpy as np
import pytest
import torch
from fairseq import models
from fairseq.data import Dictionary
from helpers.paths import FIXTURES
from helpers.small import SMALL, batch, build, dictionary, task
from helpers.stored import (
    CHECKPOINT,
    altered,
    generate,
    noisy,
    random_words,
    write_data,
    write_hard_text,
)

from macaron_fairseq import UserError, cli
from macaron_fairseq.common import environment
from macaron_fairseq.text import data_folder
from macaron_fairseq.translation import ctranslate2_export as exporting
from macaron_fairseq.translation import ctranslate2_specification as specification
from macaron_fairseq.translation.ctranslate2_engine import QUANTIZATIONS, CTranslate2Engine
from macaron_fairseq.translation.ctranslate2_export import quantize
from macaron_fairseq.translation.translator import Search

RELEASED = FIXTURES / "released"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("a data folder") / "data")


@pytest.fixture(scope="module")
def exported(data, tmp_path_factory):
    """The stored model."""
    folder = tmp_path_factory.mktemp("an export") / "float32"
    exporting.export(str(CHECKPOINT), data, folder, "float32")
    return folder


def command(name, **flags):
    """A command of ours, in this process; `path="x"` is --path x, `force=True` is --force."""
    words = [name]
    for flag, value in flags.items():
        words += [f"--{flag.replace('_', '-')}"] + ([] if value is True else [str(value)])
    cli.main(words)


def translate(path, data, *words, **flags):
    """The command."""
    args = ["translate", "--path", path, "--data", data, "--cpu", *words]
    for flag, value in flags.items():
        args += [f"--{flag.replace('_', '-')}", value]
    cli.main([str(arg) for arg in args])


# --- the same numbers ----------------------------------------------------------------------------


def assert_same_log_probs(translator, source, target, src_tokens, previous, log_probs):
    """Those of all tokens of a batch, whose hypotheses are what is fed to the decoder.

    Args:
        translator: with the export.
        source: the dictionary of src_tokens, which are padded.
        target: that of previous, which is padded.
        src_tokens: (sentences, time).
        previous: the tokens before each that is predicted, (sentences, time).
        log_probs: what fairseq or a formula says, (sentences, time, types).
    """

    def words(dictionary, row):
        return [dictionary[i] for i in row if i not in (dictionary.pad(), dictionary.eos())]

    inputs = [words(source, row) for row in src_tokens.tolist()]
    outputs = [words(target, row) for row in previous.tolist()]
    results = translator.score_batch(inputs, outputs, max_input_length=0)
    for row, tokens, result in zip(log_probs, outputs, results, strict=True):
        expected = row[range(len(tokens) + 1), [*map(target.index, tokens), target.eos()]]
        assert max(abs(expected)) > 1  # no trifle
        torch.testing.assert_close(torch.tensor(result.log_probs), expected, rtol=0, atol=1e-5)


UNSHARED = task(dictionary(60), dictionary(43))
MODELS = {
    "macaron": ("macaron_transformer", "--share-all-embeddings"),
    "macaron, other dictionaries": ("macaron_transformer",),
    "lie-trotter": ("macaron_transformer", "--macaron-scheme", "lie-trotter"),
    "a scheme each": ("macaron_transformer", "--macaron-encoder-scheme", "lie-trotter"),
    "post-norm lie-trotter": (
        *("macaron_transformer", "--macaron-scheme", "lie-trotter", "--macaron-post-norm"),
    ),
    "baseline": ("transformer_tiny_pre_norm", "--share-all-embeddings"),
    "post-norm baseline": ("transformer",),
    "half post-norm": ("transformer", "--encoder-normalize-before"),
    "widths": (
        *("macaron_transformer", "--encoder-ffn-embed-dim", "24", "--decoder-ffn-embed-dim", "40"),
        *("--encoder-first-ffn-embed-dim", "56", "--decoder-first-ffn-embed-dim", "8"),
        *("--decoder-embed-dim", "32", "--decoder-attention-heads", "2", "--decoder-layers", "3"),
    ),
    "gelu": ("macaron_transformer", "--activation-fn", "gelu"),
    "gelu_accurate": ("macaron_transformer", "--activation-fn", "gelu_accurate"),
    "tanh": ("macaron_transformer", "--activation-fn", "tanh"),
    "learned positions": ("macaron_transformer", "--encoder-learned-pos", "--decoder-learned-pos"),
    "no positions": ("macaron_transformer", "--no-token-positional-embeddings"),
    "normed embeddings": ("macaron_transformer", "--layernorm-embedding", "--no-scale-embedding"),
    "no final norm": ("macaron_transformer", "--no-decoder-final-norm"),
    "tied output": ("macaron_transformer", "--share-decoder-input-output-embed"),
    "pruned": ("macaron_transformer", "--decoder-layers", "3", "--decoder-layers-to-keep", "0,2"),
    "layer drop": (
        "macaron_transformer",
        "--encoder-layerdrop",
        "0.5",
        "--decoder-layerdrop",
        "0.5",
    ),
}


@pytest.mark.parametrize("flags", MODELS.values(), ids=MODELS)
def test_token_log_probabilities_are_those_of_fairseq(flags, tmp_path):
    """On sentences of several lengths, padded."""
    arch, *flags = flags
    joined = "--share-all-embeddings" in flags
    source, target = vars(task() if joined else UNSHARED).values()
    model = build(arch, *SMALL, *flags, for_task=task(source, target))
    src_tokens, lengths, previous = batch(types=47)
    with torch.no_grad():
        logits = model(src_tokens, lengths, previous)
        log_probs = model.get_normalized_probs(logits, log_probs=True)

    spec = specification.specification(model, source, target)
    spec.optimize("float32")
    spec.save(str(tmp_path))
    translator = ctranslate2.Translator(str(tmp_path))
    assert_same_log_probs(translator, source, target, src_tokens, previous, log_probs)


def test_a_checkpoint_of_the_released_code_is_exported(tmp_path, capsys):
    """Compared with stored numbers, which plain formulas gave; its dictionaries are two."""
    (tmp_path / "data" / "data-bin").mkdir(parents=True)
    for language in ("de", "en"):
        name = f"dict.{language}.txt"
        (tmp_path / "data" / "data-bin" / name).write_bytes((RELEASED / name).read_bytes())
    about = {"source": "de", "target": "en", "source_steps": []}
    (tmp_path / "data" / "preprocessing.json").write_text(json.dumps(about))
    command(
        "export",
        path=RELEASED / "checkpoint.pt",
        data=tmp_path / "data",
        output=tmp_path / "new" / "out",
    )
    said = capsys.readouterr().out
    assert f"wrote {tmp_path}/new/out; token log-probabilities differ" in said

    expected = torch.load(RELEASED / "expected.pt", weights_only=True)
    assert_same_log_probs(
        ctranslate2.Translator(str(tmp_path / "new" / "out")),
        dictionary(20),
        dictionary(20),
        expected["source"],
        expected["previous"],
        expected["logits"].log_softmax(-1).float(),
    )


def test_half_precision_checkpoints_are_exported(data, tmp_path):
    """As what fairseq computes of them in fp32."""
    state = torch.load(CHECKPOINT, weights_only=True)
    state["model"] = {name: weight.half() for name, weight in state["model"].items()}
    torch.save(state, tmp_path / "half.pt")
    exporting.export(str(tmp_path / "half.pt"), data, tmp_path / "out", "float32")

    words = Dictionary.load(str(data / "data-bin" / "dict.en.txt"))
    model = models.build_model(state["cfg"]["model"], task(words))
    model.load_state_dict(state["model"])  # casts them
    model.eval()
    src_tokens, lengths, previous = batch(types=len(words))
    with torch.no_grad():
        log_probs = model(src_tokens, lengths, previous)[0].log_softmax(-1)
    translator = ctranslate2.Translator(str(tmp_path / "out"))
    assert_same_log_probs(translator, words, words, src_tokens, previous, log_probs)


# --- the same search -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def errs(data, tmp_path_factory):
    """A model that errs and is unsure, so that beams and penalties matter; and text for it."""
    folder = tmp_path_factory.mktemp("errs")
    write_hard_text(data, folder)
    exporting.export(str(noisy(CHECKPOINT, folder)), data, folder / "out", "float32")
    return folder


@pytest.mark.parametrize(
    "flags",
    [
        {"beam": 5},
        {"beam": 4, "lenpen": 0.6},
        {"beam": 5, "lenpen": 0},
        {"beam": 2, "lenpen": -1},
        {"beam": 1},
        {"beam": 5, "max_len_a": 1.5, "max_len_b": 3},
    ],
    ids=str,
)
@pytest.mark.slow
def test_hypotheses_are_those_of_fairseq_generate(flags, data, errs, capsys, monkeypatch):
    """Two batches at a time."""
    words = [word for flag, x in flags.items() for word in (f"--{flag.replace('_', '-')}", str(x))]
    expected = generate(errs / "bin", "--path", str(errs / "noisy.pt"), *words, capsys=capsys)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    # Of fairseq's size of batch, since the maximum length depends on what is in a batch.
    translate(errs / "out", data, errs / "raw", *words, "--batch-size", 16)
    found = capsys.readouterr().out.splitlines()
    assert found == expected


def test_it_needs_neither_fairseq_nor_pytorch(data, exported):
    """Nor a locale with UTF-8."""
    code = (
        "import sys; sys.argv[0] = 'macaron-fairseq'; "
        "sys.modules.update(dict.fromkeys(['fairseq', 'torch'])); "
        "from macaron_fairseq import cli; cli.main()"
    )
    words = ["translate", "--path", exported, "--data", data, "--cpu"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        env=os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0"},
        input="the new öl\n\nis a\n".encode(),
        capture_output=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout.decode()) == (0, "öl new the\n\na is\n"), done.stderr


def test_the_maximum_length_is_kept(data, exported, tmp_path, capsys):
    """That of the flags, of which the batch's longest source is 10 + 1 tokens, and the model's."""
    words = random_words(1, longest=9)[0] + ["er"]
    (tmp_path / "in").write_text(" ".join(words[::-1]) + "\n", encoding="utf-8")
    path = altered(CHECKPOINT, tmp_path, max_target_positions=6)
    exporting.export(str(path), data, tmp_path / "short", "float32")
    for folder, flags, length in (
        (exported, ["--max-len-a", "0", "--max-len-b", "4"], 4),
        (exported, ["--max-len-a", "0.25", "--max-len-b", "1"], int(0.25 * (len(words) + 1) + 1)),
        (tmp_path / "short", [], 5),
    ):
        translate(folder, data, tmp_path / "in", *flags)
        assert capsys.readouterr().out.split() == words[:length]


@pytest.mark.parametrize(
    "kind, reduce_range",
    [(kind, False) for kind in QUANTIZATIONS[1:]]
    + [(kind, True) for kind in QUANTIZATIONS if kind.startswith("int8")],
)
@pytest.mark.slow
def test_quantised_models_translate_too(kind, reduce_range, data, exported, tmp_path):
    """What this model has learnt well; they are smaller."""
    if kind.startswith("int8") and not reduce_range and environment.cpu_lacks_vnni():
        pytest.skip("8 bits overflow on this CPU")
    exporting.export(str(CHECKPOINT), data, tmp_path, kind, reduce_range=reduce_range)
    lines = random_words(20)
    engine = CTranslate2Engine(tmp_path, data_folder.read(data), Search())
    (translated,) = engine.translate([lines])
    right = [words == line[::-1] for words, line in zip(translated, lines, strict=True)]
    assert all(right)
    sizes = [(folder / "model.bin").stat().st_size for folder in (tmp_path, exported)]
    assert sizes[0] < 0.7 * sizes[1]


def test_reduced_range_is_of_seven_bits_and_rounds_to_half_a_step():
    """Half a step of 1 / 64 of a row's largest weight, and half of the one before of 1 / 127."""
    weights = np.random.default_rng(1).normal(size=(50, 30)).astype(np.float32)
    linear = ctranslate2.specs.common_spec.LinearSpec()
    linear.weight, linear.bias = weights.copy(), np.zeros(50, np.float32)
    linear.validate()
    quantize(linear, "int8", reduce_range=True)
    rounded, scale = linear.weight.numpy(), linear.weight_scale.numpy()[:, None]
    assert rounded.dtype == np.int8 and (np.abs(rounded).max(axis=1) == 64).all()
    largest = np.abs(weights).max(axis=1, keepdims=True)
    assert (np.abs(rounded / scale - weights) <= (1 / 2 / 64 + 1 / 2 / 127 + 1e-6) * largest).all()


def test_reduced_range_is_of_int8_alone(data, tmp_path):
    with pytest.raises(UserError, match="--reduce-range is for --quantization int8"):
        exporting.export(str(CHECKPOINT), data, tmp_path / "x", "float32", reduce_range=True)


@pytest.fixture(scope="module")
def in_int8(data, tmp_path_factory):
    """The stored model in int8, of 8 bits and of 7."""
    folders = [tmp_path_factory.mktemp("int8"), tmp_path_factory.mktemp("int7")]
    for folder, reduce_range in zip(folders, (False, True), strict=True):
        exporting.export(str(CHECKPOINT), data, folder, "int8", reduce_range=reduce_range)
    return folders


@pytest.mark.parametrize(
    "flags, compute_type, warned",
    [
        ("fpu avx2", "int8", True),
        ("fpu avx2", "float32", False),
        ("fpu avx2 avx512_vnni", "int8", False),
        ("", "int8", False),  # not x86, or nothing is known
    ],
)
def test_int8_on_a_cpu_where_it_overflows(
    flags, compute_type, warned, data, in_int8, capsys, monkeypatch
):
    monkeypatch.setattr(environment, "of_first_cpu", {"flags": flags}.get)
    for folder, is_affected in zip(in_int8, (True, False), strict=True):
        CTranslate2Engine(folder, data_folder.read(data), Search(), compute_type=compute_type)
        assert ("no VNNI" in capsys.readouterr().err) == (warned and is_affected)


def test_a_line_that_is_too_long_is_cut_with_a_warning(data, tmp_path, capsys):
    path = altered(CHECKPOINT, tmp_path, max_source_positions=6)
    exporting.export(str(path), data, tmp_path / "out", "float32")
    (tmp_path / "in").write_text("a new er\nthe new er est is a\nthe is a er is\n")
    translate(tmp_path / "out", data, tmp_path / "in")
    out, err = capsys.readouterr()
    assert out.splitlines() == ["er new a", "is est er new the", "is er a is the"]
    assert "warning: line 2 has 6 tokens, of which the model takes the first 5" in err


# --- what cannot be exported ---------------------------------------------------------------------

REFUSED = {
    "post-norm": (
        ["--macaron-post-norm"],
        "the encoder is post-norm, and strang-marchuk needs layers without attention, whose "
        "LayerNorm would stay behind",
    ),
    "scheme": (
        ["--macaron-scheme", "yoshida4"],
        "the encoder's splitting scheme is 'yoshida4', not lie-trotter or strang-marchuk",
    ),
    "scheme of a side": (
        ["--macaron-decoder-scheme", "parallel"],
        "the decoder's splitting scheme is 'parallel', not lie-trotter or strang-marchuk",
    ),
    "sub-step": (
        ["--macaron-substep", "rk4"],
        "its sub-step is 'rk4', and a layer there can only add what it computes",
    ),
    "activation": (
        ["--activation-fn", "linear"],
        "its activation function is 'linear', not relu, gelu, gelu_accurate, gelu_fast, tanh",
    ),
    "adaptive softmax": (
        ["--adaptive-softmax-cutoff", "20,40"],
        "it was trained with --adaptive-softmax-cutoff",
    ),
    "cross-self-attention": (
        ["--cross-self-attention", "--no-cross-attention"],
        "it was trained with --cross-self-attention",
    ),
    "merged": (["--merge-src-tgt-embed"], "it was trained with --merge-src-tgt-embed"),
    "no cross-attention": (["--no-cross-attention"], "it was trained with --no-cross-attention"),
    "output width": (["--decoder-output-dim", "8"], "it was trained with --decoder-output-dim"),
    "quantisation": (["--quant-noise-pq", "0.5"], "it was trained with --quant-noise-pq"),
    "scalar quantisation": (
        ["--quant-noise-scalar", "0.5"],
        "it was trained with --quant-noise-scalar",
    ),
}


@pytest.mark.parametrize(("flags", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_expressed_is_refused_with_the_reason(flags, reason):
    words = dictionary()
    model = build("macaron_transformer", *SMALL, *flags, for_task=task(words))
    with pytest.raises(UserError) as error:
        specification.specification(model, words, words)
    assert str(error.value) == f"CTranslate2 cannot express this model: {reason}"


def test_other_models_are_refused():
    words = dictionary()

    def refused(model):
        with pytest.raises(UserError) as error:
            specification.specification(model, words, words)
        return str(error.value).removeprefix("CTranslate2 cannot express this model: ")

    model = build("macaron_transformer", *SMALL)
    model.decoder.layers[1].more = torch.nn.Linear(1, 1, bias=False)
    assert refused(model) == "there is no place for its parameters decoder.layers.1.more.weight"

    model = build("transformer_align", *SMALL)
    assert refused(model) == (
        "it is a TransformerAlignModel, neither fairseq's transformer nor Macaron's"
    )
    words.add_symbol("w1", overwrite=True)
    model = build("macaron_transformer", *SMALL, for_task=task(words))
    assert refused(model) == "a dictionary of it has the same word twice"


def test_an_ensemble_is_refused(data, tmp_path):
    path = f"{CHECKPOINT}:{CHECKPOINT}"
    with pytest.raises(
        UserError, match=r" is an ensemble, and CTranslate2 runs one model: average"
    ):
        exporting.export(path, data, tmp_path / "out", "float32")
    assert not any(tmp_path.iterdir())


def test_an_export_that_computes_something_else_is_not_written(data, tmp_path, monkeypatch):
    """As a fault of this package would: here it forgets the step of each half."""
    whole = [specification.Part(x.attends, x.ffn, x.layer_norm, 1) for x in MACARON_PARTS]
    monkeypatch.setitem(specification.PARTS, "strang-marchuk", whole)
    with pytest.raises(UserError, match=f"^{tmp_path}/out is not written: .* differ from the "):
        exporting.export(str(CHECKPOINT), data, tmp_path / "out", "float32")
    assert not any(tmp_path.iterdir())


MACARON_PARTS = specification.PARTS["strang-marchuk"]


# --- the folder ----------------------------------------------------------------------------------


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_only_an_export_is_replaced_and_only_when_asked(data, exported, tmp_path):
    def export(folder, **flags):
        command("export", path=CHECKPOINT, data=data, output=folder, **flags)

    own = tmp_path / "own"
    own.mkdir()
    export(own)  # an empty folder is as good as none
    before = contents(own)
    assert before["model.bin"] == (exported / "model.bin").read_bytes()
    message = f"^{own} is there already: choose another name, or replace it: --force$"
    with pytest.raises(UserError, match=message):
        export(own, quantization="int8")
    assert contents(own) == before
    export(own, quantization="int8", force=True)
    assert json.loads(contents(own)["export.json"])["quantization"] == "int8"

    (own / "notes").touch()
    (tmp_path / "file").touch()
    for path in (own, tmp_path / "file", data):
        message = f"^{path} is there already and is not an export: choose another name$"
        with pytest.raises(UserError, match=message):
            export(path, force=True)
    assert (own / "notes").exists() and (data / "code").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "own"]


@pytest.mark.parametrize("moment", ["save", "compare"])
def test_an_interrupted_export_leaves_what_was_there(moment, data, tmp_path, monkeypatch):
    exporting.export(str(CHECKPOINT), data, tmp_path / "out", "float32")
    before = contents(tmp_path / "out")

    def interrupt(*_):
        raise KeyboardInterrupt

    if moment == "save":
        monkeypatch.setattr(exporting.files, "write", interrupt)
    else:
        monkeypatch.setattr(exporting, "largest_difference", interrupt)
    with pytest.raises(KeyboardInterrupt):
        exporting.export(str(CHECKPOINT), data, tmp_path / "out", "int8", replace=True)
    with pytest.raises(KeyboardInterrupt):
        exporting.export(str(CHECKPOINT), data, tmp_path / "new", "int8")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert contents(tmp_path / "out") == before


def test_what_a_killed_export_left_is_cleared_away(data, tmp_path):
    for end in ("part", "replaced"):
        (tmp_path / f"out.{end}").mkdir()
        (tmp_path / f"out.{end}" / "model.bin").touch()
    exporting.export(str(CHECKPOINT), data, tmp_path / "out", "float32")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]

    (tmp_path / "new.part").mkdir()
    (tmp_path / "new.part" / "thesis.tex").touch()
    with pytest.raises(UserError, match=f"^{tmp_path}/new.part is in the way: move it, or choose "):
        exporting.export(str(CHECKPOINT), data, tmp_path / "new", "float32")
    assert (tmp_path / "new.part" / "thesis.tex").exists()


def test_a_folder_that_cannot_be_written(data, tmp_path):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(UserError, match=f"^cannot write {file}/out: {file} is a file$"):
        exporting.export(str(CHECKPOINT), data, file / "out", "float32")


# --- mistakes with the engine --------------------------------------------------------------------


def test_without_the_library_a_sentence_names_the_extra(data, exported, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    message = "^ctranslate2 is missing, which this command needs: pip install ctranslate2, or "
    message += r"install this package with its extra \[ctranslate2\]$"
    with pytest.raises(UserError, match=message):
        command("export", path=CHECKPOINT, data=data, output=tmp_path / "out")
    with pytest.raises(UserError, match=message):
        translate(exported, data)
    assert not any(tmp_path.iterdir())


def test_flags_of_the_other_engine_are_refused(data, exported):
    with pytest.raises(UserError, match=r"^--fp16 is for a checkpoint: an export takes --comp"):
        translate(exported, data, "--fp16")
    with pytest.raises(UserError, match=r"^--compute-type is for an export: a checkpoint takes "):
        command("translate", path=CHECKPOINT, data=data, compute_type="int8")
    with pytest.raises(UserError, match=r"^CTranslate2 searches with one model: an ensemble is of"):
        translate(f"{exported}:{CHECKPOINT}", data)
    with pytest.raises(UserError, match=r"^CTranslate2 searches with one model: an ensemble is of"):
        translate(f"{CHECKPOINT}:{CHECKPOINT}", data, "--engine", "ctranslate2")


def test_the_path_must_be_what_the_engine_takes(data, exported, tmp_path):
    for load in (
        lambda: CTranslate2Engine(CHECKPOINT, data_folder.read(data), Search()),
        lambda: translate(CHECKPOINT, data, "--engine", "ctranslate2"),
    ):
        with pytest.raises(UserError, match=f"^{CHECKPOINT} is not an export: make one of it wit"):
            load()
    with pytest.raises(UserError, match=f"^{exported} is an export: leave out --engine fairseq, "):
        translate(exported, data, "--engine", "fairseq")
    with pytest.raises(
        UserError, match=f"^{data} is a folder and no export: name a checkpoint in "
    ):
        translate(data, data)
    for name, content in contents(exported).items():
        (tmp_path / name).write_bytes(content[: len(content) // 2 if name == "model.bin" else None])
    with pytest.raises(UserError, match=f"^CTranslate2 cannot load {tmp_path}: "):
        translate(tmp_path, data)


def test_another_dictionary_is_refused(exported, tmp_path):
    data = write_data(tmp_path / "data")
    with (data / "data-bin" / "dict.de.txt").open("a") as file:
        file.write("more 1\n")
    message = (
        f"^{exported} was exported with another target dictionary than {data}/data-bin/dict.de"
    )
    with pytest.raises(UserError, match=message):
        translate(exported, data)


def test_a_computation_type_that_the_device_lacks_is_refused(data, exported, tmp_path):
    (tmp_path / "in").write_text("the new er\n")
    lacking = {"float16", "bfloat16", "int8"} - ctranslate2.get_supported_compute_types("cpu")
    assert lacking
    for name in lacking:
        with pytest.raises(UserError, match=f"^CTranslate2 cannot load .*{name} compute type"):
            translate(exported, data, tmp_path / "in", "--compute-type", name)
