"""A student and a teacher with their own BPE and dictionary: tokens, spans, losses, training."""

import copy
import dataclasses
import hashlib
import json
import logging
import shutil
from itertools import accumulate
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
import torch
from fairseq import options
from fairseq.data import Dictionary, MonolingualDataset, TokenBlockDataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.distributed import ModuleProxyWrapper
from fairseq.logging import metrics
from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY
from fairseq.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from fairseq_cli import preprocess, train
from helpers.commands import sentence_of
from helpers.criteria import PAD, make, outcome
from helpers.small import SMALL_DECODER, build, symbols
from helpers.students import FLAGS, LARGER, STUDENT, asked, learnt, save
from helpers.toy_corpus import TRAIN
from torch import nn
from torch.nn.functional import cosine_similarity
from torch.nn.parallel import DistributedDataParallel

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.distillation.cross_vocabulary import (
    crossing,
    last_token,
    losses,
    minimum_edit,
)
from macaron_fairseq.distillation.cross_vocabulary.criterion import (
    CrossVocabularyLabelSmoothedCrossEntropyCriterion as Ours,
)
from macaron_fairseq.distillation.cross_vocabulary.methods import METHODS
from macaron_fairseq.distillation.cross_vocabulary.recoding import Recoder, bare
from macaron_fairseq.fast import chunked_loss
from macaron_fairseq.fast.criterion import ChunkedLabelSmoothedCrossEntropyCriterion
from macaron_fairseq.text.marks import SENTENCEPIECE, SUBWORD_NMT
from macaron_fairseq.text.tokenization import bpe

pytestmark = pytest.mark.usefixtures("small_chunks")
TYPES = 15  # of the student's dictionary
LETTERS = "abcd"
STUDENTS = ["a b", "c d</w>", "ab c"]
TEACHERS = ["b c", "a bc", "d</w> a", "c d"]
SOURCES = ["abcd cd a", "bcd", "aabcd dbca bc ab"]
TARGETS = ["dcab abc", "cabcd a bcda abcd", "b"]
LM = ["transformer_lm", *SMALL_DECODER, "--dropout", "0", "--attention-dropout", "0"]


def write_merges(path, merges):
    path.write_text("#version: 0.2\n" + "".join(f"{x}\n" for x in merges))
    return bpe(path)


def write_folder(folder, merges, names, **changes):
    """A data folder as recipes leave it, with a dictionary of letters and what becomes of them."""
    (folder / "data-bin").mkdir(parents=True)
    segment = write_merges(folder / "code", merges)
    symbols = [*LETTERS, *(f"{x}@@" for x in LETTERS)]
    for merge in merges:
        whole = merge.replace(" ", "")
        symbols.append(whole.removesuffix("</w>") if whole.endswith("</w>") else f"{whole}@@")
    d = Dictionary()
    for symbol in symbols:
        d.add_symbol(symbol)
    for name in names:
        d.save(str(folder / "data-bin" / name))
    about = {"source": "en", "target": "de", "source_steps": ["tokenize"], **changes}
    (folder / "preprocessing.json").write_text(json.dumps(about))
    return d, segment


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """The data of student and teacher, and teachers for translation and language modeling."""
    folder = tmp_path_factory.mktemp("world")
    names = ["dict.en.txt", "dict.de.txt", "dict.txt"]
    ours, our_bpe = write_folder(folder / "student", STUDENTS, names)
    theirs, their_bpe = write_folder(folder / "teacher", TEACHERS, names)
    data = str(folder / "student" / "data-bin")
    config = TranslationConfig(data=data, source_lang="en", target_lang="de")
    task, its = (TranslationTask(config, d, d) for d in (ours, theirs))
    lm = LanguageModelingTask(LanguageModelingConfig(data=data), ours)
    its_lm = LanguageModelingTask(LanguageModelingConfig(data=data), theirs)
    found = SimpleNamespace(
        folder=folder, ours=ours, theirs=theirs, our_bpe=our_bpe, their_bpe=their_bpe
    )
    found.task, found.lm, found.data = task, lm, str(folder / "teacher")
    found.path, found.lm_path = str(folder / "t.pt"), str(folder / "lm.pt")
    languages = {"source_lang": "en", "target_lang": "de"}
    found.teacher = save(found.path, *LARGER, for_task=its, **languages)
    found.lm_teacher = save(
        found.lm_path, *LM[1:], "--decoder-layers", "3", arch=LM[0], for_task=its_lm
    )
    return found


def student_of(world, *flags, arch=STUDENT, **kwargs):
    return build(arch, *FLAGS, *flags, for_task=world.task, **kwargs).train()


def numbers(d, segment, text):
    return [*map(d.index, segment(text).split()), d.eos()]


def padded(rows, left=False, extra=0):
    longest = max(map(len, rows)) + extra
    pads = [[PAD] * (longest - len(x)) for x in rows]
    return torch.tensor([p + x if left else x + p for p, x in zip(pads, rows, strict=True)])


def batch(world, sources=SOURCES, targets=TARGETS, extra=0):
    """A batch as fairseq's translation task makes it."""
    source, target = (
        [numbers(world.ours, world.our_bpe, x) for x in texts] for texts in (sources, targets)
    )
    return {
        "net_input": {
            "src_tokens": padded(source, left=True, extra=extra),
            "src_lengths": torch.tensor([*map(len, source)]),
            "prev_output_tokens": padded([[2, *x[:-1]] for x in target], extra=extra),
        },
        "target": padded(target, extra=extra),
        "ntokens": sum(map(len, target)),
    }


def lm_batch(world, texts=TARGETS, extra=0):
    target = [numbers(world.ours, world.our_bpe, x) for x in texts]
    read = padded([[2, *x[:-1]] for x in target], extra=extra)
    return {
        "net_input": {"src_tokens": read, "src_lengths": read.ne(PAD).sum(1)},
        "target": padded(target, extra=extra),
        "ntokens": sum(map(len, target)),
    }


def taught(world, model, **options):
    """The criterion, prepared for that student."""
    torch.manual_seed(3)
    options = {"teacher": world.path, "teacher_data": world.data, **options}
    ours = make(Ours, for_task=options.pop("task", world.task), **options)
    ours.follow(model)
    return ours


# --- tokens --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "sentence"),
    [
        (symbols("new@@", "es@@", "t", "low"), "new@@ es@@ t low"),
        (symbols("▁new", "es", "t", "▁low"), "▁new es t ▁low"),
    ],
)
def test_words_are_cut_anew_and_spans_end_where_both_cut(ours, sentence):
    theirs = symbols("lo@@", "w", "ne@@", "w@@", "est")
    parts = {"newest": "ne@@ w@@ est", "low": "lo@@ w"}
    tokens = [*map(ours.index, sentence.split()), ours.eos()]
    recoder = Recoder(ours, theirs, parts.__getitem__)
    rows = torch.tensor([[PAD, *tokens], [*tokens[3:], *[PAD] * 4]])
    first, second = recoder(rows)
    assert theirs.string(first.tokens) == "ne@@ w@@ est lo@@ w"
    assert first.tokens[-1] == theirs.eos()
    # new|est low: the student's 0 | 1, 2 | 3 are the teacher's 0, 1 | 2 | 3, 4
    assert first.spans == (((0, 1), (0, 2)), ((1, 3), (2, 3)), ((3, 4), (3, 5)))
    assert second.tokens == first.tokens[3:] and second.spans == (((0, 1), (0, 2)),)


def test_parts_of_sentencepiece_that_may_belong_to_a_word_outside_are_in_no_span():
    ours, theirs = symbols("▁new", "es", "▁"), symbols("new", "es")
    recoder = Recoder(ours, theirs, str)
    new, es, mark = map(ours.index, ours.symbols[ours.nspecial :])
    row = torch.tensor([[es, new, new]])
    (found,) = recoder(row, [new])
    assert found.spans == (((1, 2), (1, 2)),)  # the last one may go on
    (found,) = recoder(row)
    assert found.spans == (((0, 1), (0, 1)), ((1, 2), (1, 2)))
    assert [recoder.last_of(x) for x in (es, mark, ours.eos(), ours.unk())] == [
        *(theirs.index("es"), theirs.eos(), theirs.eos(), theirs.unk())
    ]


def test_unknown_words_are_unknown_to_the_teacher_and_in_no_span():
    ours, theirs = symbols("a@@", "b"), symbols("a@@", "b")
    recoder = Recoder(ours, theirs, lambda word: f"{word[0]}@@ {word[1:]}")
    a, b, unk = ours.index("a@@"), ours.index("b"), ours.unk()
    (found,) = recoder(torch.tensor([[a, unk, a, b, unk]]))
    assert found.tokens == [theirs.unk(), theirs.index("a@@"), theirs.index("b"), theirs.unk()]
    # The unknown token may have been the first half of the word after it.
    assert found.spans == ()
    (found,) = recoder(torch.tensor([[a, unk, a, b, a, b, unk]]))
    assert found.spans == (((4, 5), (3, 4)), ((5, 6), (4, 5)))


def test_a_decoder_reads_its_target_one_position_later(world):
    data = batch(world, extra=2)
    found = crossing.cross(data, world_recoders(world), world.teacher)
    inputs = found.sample["net_input"]
    for row, text in enumerate(TARGETS):
        expected = numbers(world.theirs, world.their_bpe, text)
        n = len(expected)
        assert found.sample["target"][row].tolist()[:n] == expected
        assert inputs["prev_output_tokens"][row].tolist()[:n] == [2, *expected[:-1]]
        assert set(inputs["prev_output_tokens"][row].tolist()[n:]) <= {PAD}
    # "b" is one token, read at position 1 on both sides.
    ours, theirs = found.members["decoder"]
    assert [x[2, 0].nonzero().flatten().tolist() for x in (ours, theirs)] == [[1], [1]]
    # "bcd" stands at the end of the source: the student's b@@ cd, the teacher's bc@@ d.
    ours, theirs = found.members["encoder"]
    length = data["net_input"]["src_tokens"].shape[1]
    assert ours[1, 0].nonzero().flatten().tolist() == [length - 3, length - 2]
    assert theirs[1, 0].nonzero().flatten().tolist() == [0, 1]


def world_recoders(world):
    recoder = Recoder(world.ours, world.theirs, world.their_bpe)
    return {"encoder": recoder, "decoder": recoder}


def test_samples_of_a_language_model_that_begin_and_end_inside_words(world):
    """fairseq's own samples of five tokens. Each is checked by the words that are whole in it."""
    texts = ["dcab abc", "cabcd a bcda abcd", "dddd dcabc", "b aabcd"]
    lines = [torch.tensor(numbers(world.ours, world.our_bpe, x)) for x in texts]
    sizes = [len(x) for x in lines]
    blocks = TokenBlockDataset(
        lines, sizes, 5, PAD, world.ours.eos(), break_mode="none", include_targets=True
    )
    dataset = MonolingualDataset(
        blocks, blocks.sizes, world.ours, world.ours, False, False, targets=["future"]
    )
    sample = dataset.collater([dataset[i] for i in range(len(dataset))])
    recoder = world_recoders(world)["decoder"]
    found = crossing.cross(sample, {"decoder": recoder}, world.lm_teacher)
    read = found.sample["net_input"]["src_tokens"]
    ours, theirs = found.members["decoder"]
    inside = 0
    for row, (before, target) in enumerate(
        zip(sample["net_input"]["src_tokens"][:, 0], sample["target"], strict=True)
    ):
        symbols = [world.ours[x] for x in target if x != PAD]
        parts = " ".join(symbols).replace("@@ ", "").split()
        goes_on, is_cut = world.ours[before].endswith("@@"), symbols[-1].endswith("@@")
        inside += goes_on and is_cut
        # The teacher reads the token before, and each word by its own BPE.
        words = [x.removesuffix("@@") for x in (world.ours[before], *parts)]
        tokens = [x if x == "</s>" else world.their_bpe(x) for x in words]
        expected = [
            world.theirs.index(x) for x in [tokens[0].split()[-1], *" ".join(tokens[1:]).split()]
        ]
        assert read[row].tolist()[: len(expected) - 1] == expected[:-1]
        # Which tokens are read of words that are whole, one position later.
        places = [*accumulate((len(x.split()) for x in tokens[1:]), initial=1)]
        end = len(expected) - 1  # the last one is not read
        whole = [i for i in range(goes_on, len(parts) - is_cut) if parts[i] != "</s>"]
        allowed = {p for i in whole for p in range(places[i], places[i + 1]) if p < end}
        needed = {p for i in whole if places[i + 1] <= end for p in range(places[i], places[i + 1])}
        assert needed <= {*theirs[row].any(0).nonzero().flatten().tolist()} <= allowed
        assert torch.equal(ours[row].any(1), theirs[row].any(1))
    assert inside


def test_what_the_teacher_cannot_read_is_cut_off(world, monkeypatch):
    monkeypatch.setattr(world.teacher.decoder, "max_positions", lambda: 4)
    found = crossing.cross(batch(world), world_recoders(world), world.teacher)
    assert found.sample["target"].shape == (3, 4)
    ours, theirs = found.members["decoder"]
    assert theirs.shape[2] == 4 and torch.equal(ours.any(2), theirs.any(2))


# --- attention -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arch", "flags"),
    [
        (STUDENT, []),
        ("transformer_tiny_pre_norm", []),
        ("transformer", []),
        (STUDENT, ["--macaron-scheme", "strang-symmetric"]),
        (STUDENT, ["--macaron-scheme", "strang-marchuk-attention"]),
        (STUDENT, ["--macaron-substep", "midpoint"]),
        (STUDENT, ["--macaron-substep", "midpoint", "--macaron-kernels", "fairseq"]),
    ],
)
def test_the_last_tokens_attention_is_what_the_layer_computes(arch, flags, world):
    """The last time, where it computes it several times."""
    model = build(arch, *FLAGS, *flags, for_task=world.task)
    inputs = batch(world)["net_input"]
    names = {"encoder": "src_tokens", "decoder": "prev_output_tokens"}
    masks = {side: inputs[name].ne(PAD) for side, name in names.items()}
    with last_token.attended(model, [(side, 2) for side in names], masks) as found:
        model(**inputs)
    for side, mask in masks.items():
        weights = found[side, 2]
        for row, n in enumerate(mask.sum(1).tolist()):
            one = {key: x[row : row + 1] for key, x in inputs.items()}
            expected = attention_of_one(model, one, side)
            torch.testing.assert_close(weights[row][mask[row]], expected)
            assert len(expected) == n and not weights[row][~mask[row]].any()
    assert not any(x._forward_pre_hooks for x in model.modules())


def attention_of_one(model, inputs, side, layer=0):
    """fairseq's own weights of the last query in a layer, by default the last, of one sentence."""
    network = getattr(model, side).layers[layer - 1].self_attn
    kept = []
    hook = network.register_forward_pre_hook(
        lambda module, args, kwargs: kept.append(kwargs), with_kwargs=True
    )
    try:
        trimmed = {k: x[:, x[0].ne(PAD)] if x.dim() == 2 else x for k, x in inputs.items()}
        model(**trimmed)
    finally:
        hook.remove()
    asked = {**kept[-1], "need_weights": True, "need_head_weights": True}
    weights = network(**asked)[1].detach()
    heads = weights[:, 0] if weights.dim() == 4 else weights  # fairseq's own is their mean
    return heads[:, -1].sum(0) / heads[:, -1].sum()


# --- SRA -----------------------------------------------------------------------------------------


def sentence(world, model, d, segment, source, target):
    """By layer the states and weights of one sentence without padding, for each side of a model.

    And how many tokens the decoder reads before the first.
    """
    target = numbers(d, segment, target)
    inputs = {"src_tokens": torch.tensor([[2, *target[:-1]]])}
    if source is not None:
        inputs = {
            "src_tokens": torch.tensor([numbers(d, segment, source)]),
            "prev_output_tokens": inputs["src_tokens"],
        }
    inputs["src_lengths"] = inputs["src_tokens"].ne(PAD).sum(1)
    states = {"decoder": model(**inputs, features_only=True)[1]["inner_states"]}
    if source is not None:
        ran = model.encoder(inputs["src_tokens"], inputs["src_lengths"], return_all_hiddens=True)
        states["encoder"] = ran["encoder_states"]
    found = {}
    for side, of_side in states.items():
        of_side[-1] = (getattr(model, side).layer_norm or nn.Identity())(of_side[-1])
        by_layer = {
            n: (state[:, 0], attention_of_one(model, inputs, side, n))
            for n, state in enumerate(of_side[1:], 1)
        }
        found[side] = by_layer, int(side == "decoder")
    return found


def cuts(segment, text):
    """After which letter each token ends, by counting."""
    found, done = [], 0
    for part in segment(text).split():
        done += len(part.replace("@@", ""))
        found.append(done)
    return found


def plain_sra(world, models, maps, texts, met, temperature=2.0):
    """cos, geo and kd by loops over sentences, layers, spans and types.

    Args:
        world: the dictionaries.
        models: student and teacher.
        maps: by side, one for each pair of layers.
        texts: source and target of each sentence.
        met: by side, the pairs of layers; the last layers come last.
        temperature: of kd.
    """
    shared = [x for x in world.ours.symbols if x in world.theirs.symbols]
    cos = geo = kd = 0
    for source, target in texts:
        sides = [
            sentence(world, model, d, segment, source, target)
            for model, d, segment in zip(
                models,
                (world.ours, world.theirs),
                (world.our_bpe, world.their_bpe),
                strict=True,
            )
        ]
        for side, of_side in met.items():
            text = source if side == "encoder" else target
            ends = [cuts(x, text) for x in (world.our_bpe, world.their_bpe)]
            common = [x for x in ends[0] if x in ends[1]]
            for layers, linear in zip(of_side, maps[side], strict=True):
                mass = []  # of each model, of each span: weight and centre
                for one, own, n in zip(sides, ends, layers, strict=True):
                    by_layer, shift = one[side]
                    states, weights = by_layer[n]
                    spans = []
                    for before, end in zip([0, *common], common, strict=False):
                        inside = [i + shift for i, x in enumerate(own) if before < x <= end]
                        weight = weights[inside].sum()
                        centre = sum(weights[i] * states[i] for i in inside) / weight
                        spans.append((weight.detach(), centre))
                    mass.append(spans)
                total = sum(w for w, _ in mass[1])
                w = [x / total for x, _ in mass[1]]
                ours, theirs = ([c for _, c in spans] for spans in mass)
                for i in range(len(w)):
                    there = linear.weight @ ours[i]
                    apart = 1 - cosine_similarity(there, theirs[i], dim=0)
                    cos = cos + w[i] * apart / len(of_side) / len(met)
            pairs = [(i, j) for i in range(len(w)) for j in range(len(w)) if i != j]
            if pairs:
                weight = sum(w[i] * w[j] for i, j in pairs)
                apart = [
                    w[i]
                    * w[j]
                    * (
                        cosine_similarity(ours[i], ours[j], dim=0)
                        - cosine_similarity(theirs[i], theirs[j], dim=0)
                    )
                    ** 2
                    for i, j in pairs
                ]
                geo = geo + sum(apart) / weight / len(met)
            if side == "decoder":
                for i in range(len(w)):
                    logits = []
                    for model, c, d in zip(
                        models, (ours[i], theirs[i]), (world.ours, world.theirs), strict=True
                    ):
                        narrow = model.decoder.project_out_dim or nn.Identity()
                        z = model.decoder.output_layer(narrow(c))
                        logits.append(z[[d.index(x) for x in shared]] / temperature)
                    p, q = (torch.distributions.Categorical(logits=z) for z in logits)
                    kd = kd + torch.distributions.kl_divergence(q, p)
    return [x / len(texts) for x in (cos, geo, kd)]


PARTS = "cosine_loss", "geometry_loss", "shared_loss"


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("translation", {}),
        ("translation", {"trajectory_layers": "1:1,2:2", "sentence_avg": True}),
        ("macaron_translation", {}),
        ("language_modeling", {}),
        ("language_modeling", {"trajectory_layers": "1:2,2:3"}),
    ],
)
def test_the_criterion_is_the_formula(kind, changes, world):
    if kind != "language_modeling":
        model, teacher, data = student_of(world), world.teacher, batch(world)
        texts, met, options = [*zip(SOURCES, TARGETS, strict=True)], {}, {}
        for side in ("encoder", "decoder"):
            met[side] = [(1, 1)] * ("trajectory_layers" in changes) + [(2, 2)]
        settings = TASK_DATACLASS_REGISTRY[kind](**vars(world.task.cfg))
        task = TASK_REGISTRY[kind](settings, world.ours, world.ours)
    else:
        model = build(*LM, for_task=world.lm).train()
        teacher, data = world.lm_teacher, lm_batch(world)
        met = {"decoder": [(1, 2)] * ("trajectory_layers" in changes) + [(2, 3)]}
        texts, task = [(None, x) for x in TARGETS], world.lm
        options = {"teacher": world.lm_path}
    options |= {"distill_weight": 0.3, "geometry_weight": 7.0}
    ours = taught(world, model, task=task, **options, **changes)
    loss, size, log = ours(model, data)
    assert size == (3 if "sentence_avg" in changes else data["ntokens"])
    expected = plain_sra(world, (model, teacher), ours.sra.maps, texts, met)
    for name, part in zip(PARTS, expected, strict=True):
        assert float(log[name]) == pytest.approx(size * float(part.detach()), rel=1e-4, abs=1e-6), (
            name
        )
    by = {"sentence_avg": "sentence_avg" in changes}
    plain = outcome(ChunkedLabelSmoothedCrossEntropyCriterion, model, data, for_task=task, **by)
    total = expected[0] + 7 * expected[1] + expected[2]
    assert float(log["cross_loss"]) == pytest.approx(size * total.item(), rel=1e-4)
    whole = 0.7 * plain.loss.detach() + 0.3 * size * total
    assert loss.item() == float(log["loss"]) == pytest.approx(whole.item(), rel=1e-5)

    model.zero_grad()
    loss.backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters()}
    of_map = ours.sra.maps["decoder"][0].weight.grad.clone()
    ours.zero_grad()
    model.zero_grad()
    (0.3 * size * total).backward()
    torch.testing.assert_close(
        of_map, ours.sra.maps["decoder"][0].weight.grad, rtol=1e-3, atol=1e-5
    )
    for name, p in model.named_parameters():
        if name.endswith("k_proj.bias"):
            continue
        own = torch.zeros_like(p) if p.grad is None else p.grad
        expected_gradient = own + 0.7 * plain.gradients[name] / 3
        torch.testing.assert_close(found[name], expected_gradient, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("task", ["translation", "language_modeling"])
@pytest.mark.parametrize("kind", METHODS)
def test_losses_and_gradients_are_those_without_a_memory(kind, task, world):
    """Two epochs of two batches."""
    options = {"cross_vocabulary_loss": kind}
    if task == "translation":
        model = student_of(world)
        data = [batch(world), batch(world, TARGETS, SOURCES)]
    else:
        model = build(*LM, for_task=world.lm).train()
        data = [lm_batch(world), lm_batch(world, SOURCES)]
        options |= {"task": world.lm, "teacher": world.lm_path}
    ours, plain = (taught(world, model, **options, teacher_memory=x) for x in (1.0, 0.0))
    passes = asked(ours)
    for x in (*data, *reversed(data)):
        assert all(map(torch.equal, learnt(model, ours, x), learnt(model, plain, x)))
    assert len(passes) == 2
    # The last states of the decoder; SRA alone has centres, whose weights are of attentions.
    last = "decoder", len(ours.teachers.models[0].decoder.layers)
    for kept in ours.teachers.memory.batches.values():
        assert kept.output is None and last in kept.states
        assert (last in kept.weights) == (kind == "sra") and (
            kind == "sra" or len(kept.states) == 1
        )


@pytest.mark.parametrize("kind", METHODS)
def test_padding_does_not_matter(kind, world):
    model = student_of(world)
    ours = taught(world, model, cross_vocabulary_loss=kind)
    expected = ours(model, batch(world))[2]["cross_loss"]
    found = ours(model, batch(world, extra=3))[2]["cross_loss"]
    assert float(found) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("kind", METHODS)
def test_a_batch_without_a_common_span(kind, world):
    """Only unknown words: nothing to compare, and every map still has a gradient."""
    model = student_of(world)
    ours = taught(world, model, cross_vocabulary_loss=kind, distill_weight=1.0)
    data = batch(world, ["x", "x y"], ["x", "y"])
    loss, *_ = ours(model, data)
    loss.backward()
    assert loss.isfinite() and all(p.grad is not None for p in ours.parameters())
    if kind == "sra":
        assert float(loss) == 0
        assert not any(p.grad.any() for p in ours.parameters())


def test_a_student_that_is_its_teacher_has_no_loss(world):
    same = SimpleNamespace(**vars(world))
    same.data, same.path = str(world.folder / "student"), str(world.folder / "same.pt")
    model = save(same.path, *FLAGS, for_task=world.task, source_lang="en", target_lang="de").train()
    for kind in METHODS:
        ours = taught(same, model, cross_vocabulary_loss=kind, distill_weight=1.0)
        for to_teacher in () if ours.sra is None else ours.sra.maps.values():
            nn.init.eye_(to_teacher[0].weight)
        assert float(ours(model, batch(world))[0]) == pytest.approx(0, abs=1e-3), kind


def test_only_the_maps_are_saved_and_a_teacher_is_not_trained(world):
    model = student_of(world)
    ours = taught(world, model)
    before = [p.clone() for p in ours.teachers.models[0].parameters()]
    ours(model, batch(world))[0].backward()
    state = ours.state_dict()
    told = {
        "layers": "2 to 2 of the encoder (16 to 24 wide), 2 to 2 of the decoder (16 to 24 wide)",
        "teacher": hashlib.sha256(Path(world.path).read_bytes()).hexdigest(),
    }
    assert state.pop("sra._extra_state") == told
    shapes = {name: tuple(x.shape) for name, x in state.items()}
    assert shapes == {f"sra.maps.{side}.0.weight": (24, 16) for side in ("encoder", "decoder")}
    after = [*ours.teachers.models[0].parameters()]
    assert all(p.grad is None for p in after) and all(map(torch.equal, before, after))
    ours.load_state_dict(None, strict=True)


def test_evaluation_and_a_weight_of_0_ask_no_teacher(world):
    model = student_of(world)
    plain = outcome(ChunkedLabelSmoothedCrossEntropyCriterion, model, batch(world))
    found = outcome(Ours, model, batch(world), for_task=world.task, distill_weight=0.0)
    assert torch.equal(found.loss, plain.loss) and found.log == plain.log
    assert all(torch.equal(found.gradients[x], plain.gradients[x]) for x in plain.gradients)
    ours = taught(world, model)
    expected = make(ChunkedLabelSmoothedCrossEntropyCriterion)(model.eval(), batch(world))
    assert ours(model, batch(world)) == expected


def test_half_precision_meets_a_full_teacher(world):
    model = student_of(world).to(torch.bfloat16)
    for kind in METHODS:
        ours = taught(world, model, cross_vocabulary_loss=kind)
        expected = ours(copy.deepcopy(model).float(), batch(world))[2]["cross_loss"]
        loss, _, log = ours.to(torch.bfloat16)(model, batch(world))
        loss.backward()
        assert float(log["cross_loss"]) == pytest.approx(float(expected), rel=0.02)
        assert loss.isfinite()


# --- ULD -----------------------------------------------------------------------------------------


def test_uld_meets_position_by_position(world):
    model = student_of(world)
    ours = taught(world, model, cross_vocabulary_loss="uld", distill_weight=1.0)
    loss, *_ = ours(model, batch(world))
    expected = 0
    for source, target in zip(SOURCES, TARGETS, strict=True):
        p, q = (
            sentence(world, one, d, segment, source, target)["decoder"][0][2][0]
            @ one.decoder.output_projection.weight.t()
            for one, d, segment in (
                (model, world.ours, world.our_bpe),
                (world.teacher, world.theirs, world.their_bpe),
            )
        )
        for a, b in zip(p, q, strict=False):
            a, b = (sorted(x.softmax(0).tolist(), reverse=True) for x in (a, b))
            longest = max(len(a), len(b))
            a, b = (x + [0.0] * (longest - len(x)) for x in (a, b))
            expected += sum(abs(x - y) for x, y in zip(a, b, strict=True))
    assert float(loss) == pytest.approx(expected, rel=1e-5)


# --- MinED ---------------------------------------------------------------------------------------


def test_types_become_the_nearest():
    student = ["<s>", "low", "lower", "new"]
    teacher = ["new", "lows", "<s>x", "lowr", "news"]
    assert minimum_edit.nearest_types(student, teacher, special=1) == [3, 1, 1, 1, 3]


def test_an_alignment_worked_out_by_hand():
    """the | new | est | cat   with   the | ne | w | est | cats."""
    student, teacher = ["the", "new", "est", "cat"], ["the", "ne", "w", "est", "cats"]
    costs = minimum_edit.edit_distances(student, teacher).tolist()
    assert costs[1] == [3, 1, 2, 3, 4]
    assert minimum_edit.warp(costs) == [[0], [1, 2], [3], [4]]
    to_student = [0, 1, 1, 2, 3]  # of the teacher's five types
    tokens = [0, 1, 2, 3], [0, 1, 2, 3, 4]
    found = minimum_edit.matches(*tokens, (student, teacher), to_student)
    assert found == [0, -1, 3, 4]
    to_student[4] = 2  # cats is no cat
    assert minimum_edit.matches(*tokens, (student, teacher), to_student) == [0, -1, 3, -1]


def test_warping_ends_in_both_corners():
    assert minimum_edit.warp([[0], [0], [0]]) == [[0], [0], [0]]
    assert minimum_edit.warp([[0, 0, 0]]) == [[0, 1, 2]]
    assert minimum_edit.warp([]) == []


def test_of_ways_that_cost_the_same_the_shortest_is_taken():
    assert minimum_edit.warp([[0, 0], [0, 0]]) == [[0], [1]]


def test_the_teachers_types_that_become_one_count_by_the_largest_logit():
    torch.manual_seed(1)
    student, teacher = torch.randn(3, 4).double(), torch.randn(3, 5).double()
    to_student = torch.tensor([0, 1, 1, 3, 3])
    mapped = minimum_edit.as_students(teacher, to_student, 4)
    found = losses.divergence(student, mapped, 2.0)
    expected = 0
    for row in range(3):
        p = (student[row] / 2).softmax(0)
        z = teacher[row]
        best = torch.stack([z[0], z[1:3].max(), z[3:].max()])  # nothing becomes type 2
        q = (best / 2).softmax(0)
        expected += (q * (q.log() - p[[0, 1, 3]].log())).sum()
    torch.testing.assert_close(found, expected)


def test_mined_on_whole_models_is_by_token_what_it_is_by_hand(world, monkeypatch):
    """Some tokens match, and others do not; two tokens are computed at a time."""
    monkeypatch.setattr(chunked_loss, "CHUNK_ELEMENTS_CPU", 2 * len(world.theirs) + 1)
    model, data = student_of(world), batch(world)
    options = {"cross_vocabulary_loss": "mined", "distill_weight": 1.0}
    ours = taught(world, model, **options)
    loss, *_ = ours(model, data)
    loss.backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    read = crossing.cross(data, world_recoders(world), world.teacher).sample["net_input"]
    z = model(**data["net_input"])[0]
    t = world.teacher(**read)[0].detach()
    expected, counts = 0, [0, 0]
    for row, target in enumerate(data["target"]):
        own = data["net_input"]["prev_output_tokens"][row][target.ne(PAD)].tolist()
        other = [x for x in read["prev_output_tokens"][row].tolist() if x != PAD]
        texts = [
            [d[x].removesuffix("@@") for x in tokens]
            for d, tokens in ((world.ours, own), (world.theirs, other))
        ]
        met = minimum_edit.matches(own, other, texts, ours.mined.to_student)
        places = target.ne(PAD).nonzero().flatten().tolist()
        for i, j in zip(places, met, strict=True):
            counts[j >= 0] += 1
            log_p = (z[row, i] / 2).log_softmax(0)
            if j < 0:
                expected = expected - log_p[target[i]]
                continue
            best = torch.full_like(log_p, minimum_edit.LOW)
            for theirs, own_type in enumerate(ours.mined.to_student):
                best[own_type] = max(best[own_type], t[row, j, theirs])
            q = (best / 2).softmax(0)
            expected = expected + (q * (q.clamp_min(1e-30).log() - log_p)).sum()
    assert min(counts) > 3
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    expected.backward()
    for name, p in model.named_parameters():
        if name in found and not name.endswith("k_proj.bias"):
            torch.testing.assert_close(found[name], p.grad, rtol=1e-3, atol=1e-5)


def test_rows_together_are_as_many_as_the_student_in_fp16_can_add_up(world):
    """The teacher has more types, and another precision."""
    half = student_of(world).half()
    passes = [crossing.Pass(model, PAD, {}, {}, {}) for model in (half, world.teacher)]
    for pair in (passes, passes[::-1]):
        found = crossing.wider(*pair)
        own = pair[0].model.decoder.output_projection.weight
        assert len(found) == max(len(world.ours), len(world.theirs)) and found.dtype == own.dtype


def test_mined_on_the_same_tokens_is_plain_kl(world):
    same = SimpleNamespace(**vars(world))
    same.data, same.path = str(world.folder / "student"), str(world.folder / "other.pt")
    other = save(same.path, *LARGER, for_task=world.task, source_lang="en", target_lang="de")
    model, data = student_of(world), batch(world)
    options = {"distill_weight": 1.0, "distill_temperature": 1.0}
    loss, *_ = taught(same, model, cross_vocabulary_loss="mined", **options)(model, data)
    counted = data["target"].ne(PAD)
    p, q = (
        torch.distributions.Categorical(logits=x(**data["net_input"])[0][counted])
        for x in (model, other)
    )
    expected = torch.distributions.kl_divergence(q, p).sum()
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)


# --- bad input -----------------------------------------------------------------------------------


def refusal(world, task=None, **options):
    options = {"teacher": world.path, "teacher_data": world.data, **options}
    return sentence_of(lambda: make(Ours, for_task=task or world.task, **options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"distill_weight": 2.0}, "--distill-weight is 2.0: give"),
        ({"distill_temperature": 0.0}, "--distill-temperature is 0.0: give"),
        ({"geometry_weight": -1.0}, "--geometry-weight is -1.0: give"),
        ({"ignore_prefix_size": 1}, "--ignore-prefix-size leaves out tokens, which the losses"),
        (
            {"trajectory_layers": "9:9", "cross_vocabulary_loss": "uld"},
            "--trajectory-layers has no effect with --cross-vocabulary-loss uld",
        ),
        (
            {"distill_temperature": 4.0, "cross_vocabulary_loss": "uld"},
            "--distill-temperature has no effect with --cross-vocabulary-loss uld",
        ),
        (
            {"geometry_weight": 1.0, "cross_vocabulary_loss": "mined"},
            "--geometry-weight has no effect with --cross-vocabulary-loss mined",
        ),
        ({"teacher": ""}, "needs --teacher CHECKPOINT and --teacher-data FOLDER"),
        ({"teacher_data": ""}, "needs --teacher CHECKPOINT and --teacher-data FOLDER"),
        ({"teacher": "gone.pt"}, "--teacher gone.pt: no such checkpoint"),
        ({"teacher": "a.pt:b.pt"}, "a.pt:b.pt: across vocabularies there is one teacher"),
        ({"teacher_data": "gone"}, "gone: no such folder"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message, world):
    assert message in refusal(world, **options)


def test_data_folders_that_do_not_go_with_the_student_are_refused(world, tmp_path):
    names = ["dict.en.txt", "dict.de.txt"]

    def made(name, wanted=names, **changes):
        write_folder(tmp_path / name, TEACHERS, wanted, **changes)
        return str(tmp_path / name)

    (tmp_path / "empty").mkdir()
    assert "preprocessing.json is missing" in refusal(world, teacher_data=str(tmp_path / "empty"))
    found = refusal(world, teacher_data=made("languages", target="fr"))
    assert "is of en and fr, but the student translates from en to de" in found
    found = refusal(world, teacher_data=made("steps", source_steps=["lowercase", "tokenize"]))
    assert "was prepared by lowercase, tokenize, and the student's text by tokenize" in found
    found = refusal(world, teacher_data=made("no dictionary", ["dict.en.txt"]))
    assert "dict.de.txt is missing" in found
    folder = made("no code")
    (tmp_path / "no code" / "code").unlink()
    found = refusal(world, teacher_data=folder)
    assert "no code has no code, the merges of subword-nmt: across vocabularies the" in found
    found = refusal(world, world.lm, teacher=world.lm_path, teacher_data=made("no lm"))
    assert "dict.txt is missing" in found
    found = refusal(world, world.lm, teacher=world.lm_path, teacher_data=made("fr", source="fr"))
    assert "is of fr, but the student's text is of en" in found
    hashed = {"dict.txt": "0" * 64}
    found = refusal(
        world, world.lm, teacher=world.lm_path, teacher_data=made("x", ["dict.txt"], sha256=hashed)
    )
    assert "dict.txt is not the file that it was, as " in found
    student = str(world.folder / "student")
    assert "embeds 16 source types, but" in refusal(world, teacher_data=student)


def test_a_folder_with_other_dictionaries_than_the_teachers_is_refused(world, tmp_path, caplog):
    """Of as many types: the folder tells that the checkpoint names. Without one it is said."""
    path, own = str(tmp_path / "t.pt"), str(Path(world.data) / "data-bin")
    languages = {"source_lang": "en", "target_lang": "de"}
    its = TranslationTask(TranslationConfig(**languages), world.theirs, world.theirs)
    save(path, *LARGER, for_task=its, data=own, **languages)
    make(Ours, for_task=world.task, teacher=path, teacher_data=world.data)
    assert "nothing tells" not in caplog.text
    copied = shutil.copytree(world.data, tmp_path / "copied")
    make(Ours, for_task=world.task, teacher=path, teacher_data=str(copied))
    assert "nothing tells its BPE merges, which were not compared" in caplog.text
    assert "nothing tells its dict" not in caplog.text
    for file in (copied / "data-bin").iterdir():
        first, second, *rest = file.read_text().splitlines(keepends=True)
        file.write_text("".join([second, first, *rest]))
    assert refusal(world, teacher=path, teacher_data=str(copied)) == (
        f"--teacher {path} was trained with another dict.en.txt than --teacher-data {copied} has: "
        "give the data folder that it was trained with"
    )
    save(path, *LARGER, for_task=its, data="/gone", **languages)
    make(Ours, for_task=world.task, teacher=path, teacher_data=str(copied))
    assert "nothing tells its dict.de.txt, so only its size was compared" in caplog.text


def test_steps_of_a_student_that_nothing_tells_are_said(world, tmp_path, caplog):
    task = copy.copy(world.task)
    task.cfg = dataclasses.replace(world.task.cfg, data=str(tmp_path / "data-bin"))
    make(Ours, for_task=task, teacher=world.path, teacher_data=world.data)
    assert "by which steps the student's text was prepared; they have to be those" in caplog.text
    caplog.clear()
    make(Ours, for_task=world.task, teacher=world.path, teacher_data=world.data)
    assert "by which steps" not in caplog.text


def test_the_mark_of_the_other_way_to_cut_words_is_text():
    """Both signs may stand in any text."""
    assert bare("x@@", SUBWORD_NMT) == bare("\u2581x", SENTENCEPIECE) == "x"
    assert bare("\u2581@@", SENTENCEPIECE) == "@@"
    assert bare("\u2581x@@", SUBWORD_NMT) == "\u2581x"


def test_a_teacher_of_another_direction_is_refused(world, tmp_path):
    path = str(tmp_path / "t.pt")
    save(path, *FLAGS, for_task=world.task, source_lang="de", target_lang="en")
    assert "translates from de to en, the student from en to de" in refusal(world, teacher=path)


@pytest.mark.parametrize("kind", ["translation", "language_modeling"])
def test_a_teacher_of_another_kind_is_refused(kind, world):
    if kind == "translation":
        found = refusal(world, teacher=world.lm_path)
        assert "is a language model (a decoder alone), but the student is a translation" in found
    else:
        found = refusal(world, world.lm)
        assert "is a translation model (encoder and decoder), but the student is a lang" in found


def test_layers_and_outputs_that_do_not_fit_are_refused(world):
    with pytest.raises(UserError, match="--trajectory-layers 3:1 names layer 3 of the student's"):
        taught(world, student_of(world), trajectory_layers="3:1")
    model = student_of(world)
    with pytest.raises(UserError, match="give --decoder-layerdrop 0"):
        taught(world, student_of(world, "--decoder-layerdrop", "0.1"), cross_vocabulary_loss="uld")
    model.decoder.output_projection.weight.data = model.decoder.output_projection.weight[:-1]
    with pytest.raises(UserError, match="model without --output-dictionary-size"):
        taught(world, model)
    model.decoder.output_projection = None
    with pytest.raises(UserError, match="the student has no plain output layer"):
        taught(world, model)


@pytest.mark.parametrize("kind", METHODS)
def test_under_autocast_the_loss_is_nearly_the_same(kind, world):
    """Where embeddings are projected, the residual stream is then of the lower precision."""
    model = build(*LM, "--decoder-input-dim", "8", for_task=world.lm).train()
    options = {"cross_vocabulary_loss": kind, "task": world.lm, "teacher": world.lm_path}
    if kind == "sra":
        options["trajectory_layers"] = "1:1"
    ours, data = taught(world, model, **options), lm_batch(world)
    expected, *_ = ours(model, data)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, *_ = ours(model, data)
    found.backward()
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=0.02)
    assert all(p.grad.isfinite().all() and p.grad.any() for p in model.parameters())


KERNELS = "layers=1", "kernel-size-list=[3]", "conv-type=lightweight"


def test_layers_without_self_attention_are_refused_by_sra_alone(world):
    """fairseq's dynamic convolutions; what their last token attends to is not known."""
    flags = [f"--{side}-{x}-dim=16" for side in ("encoder", "decoder") for x in ("embed", "conv")]
    flags += [f"--{side}-{x}" for side in ("encoder", "decoder") for x in KERNELS]
    model = build("lightconv", *flags, for_task=world.task).train()
    with pytest.raises(UserError, match="the student has layers without self-attention, by which"):
        taught(world, model)
    loss, *_ = taught(world, model, cross_vocabulary_loss="uld")(model, batch(world))
    assert loss.isfinite()


def test_dictionaries_without_a_common_type_are_refused(world):
    model = student_of(world)
    ours = taught(world, model, cross_vocabulary_loss="uld")
    ours.kind = "sra"
    recoder = ours.recoders["decoder"]
    recoder.student = symbols("e", "f")
    with pytest.raises(UserError, match="no type in common: learn by --cross-vocabulary-loss uld"):
        ours.follow(model)


def test_samples_with_another_beginning_are_refused(world):
    settings = LanguageModelingConfig(data=world.lm.args.data, add_bos_token=True)
    task = LanguageModelingTask(settings, world.ours)
    found = refusal(world, task, teacher=world.lm_path)
    assert "--add-bos-token hides what a sample begins with" in found


def test_types_of_sentencepiece_mean_what_the_teachers_do():
    """▁the is the word, and `the` a part of another one; `ing` can be nothing else."""
    ours = symbols("▁the", "the", "▁king", "ing", "▁")
    theirs = symbols("the", "king", "k@@", "ing", "the@@")
    recoder = Recoder(ours, theirs, str)
    types = losses.common_types(recoder.comparable(), theirs.symbols)
    shared = [(ours[i], theirs[j]) for i, j in zip(*types, strict=True)]
    assert shared[ours.nspecial :] == [("▁the", "the"), ("▁king", "king"), ("ing", "ing")]
    assert [x == y for x, y in shared[: ours.nspecial]] == [True] * ours.nspecial
    met = minimum_edit.nearest_types(recoder.comparable(), theirs.symbols, ours.nspecial)
    by_name = {theirs[j]: ours[i] for j, i in enumerate(met)}
    assert (by_name["the"], by_name["king"], by_name["ing"]) == ("▁the", "▁king", "ing")


@pytest.mark.parametrize("kind", METHODS)
def test_nan_in_a_teachers_output_is_refused(kind, world, tmp_path):
    path = str(tmp_path / "t.pt")
    task = TranslationTask(world.task.cfg, world.theirs, world.theirs)
    save(path, *LARGER, for_task=task, change=lambda x: x.encoder.layer_norm.weight.fill_(3e38))
    model = student_of(world)
    ours = taught(world, model, teacher=path, cross_vocabulary_loss=kind)
    with pytest.raises(SystemExit, match="the teacher's output holds NaN or infinity") as ended:
        ours(model, batch(world))
    assert not isinstance(ended.value, Exception)  # after which fairseq saves crash.pt


@pytest.mark.parametrize("kind", METHODS)
def test_a_teacher_whose_logits_alone_overflow_is_refused(kind, world):
    model = student_of(world)
    ours = taught(world, model, cross_vocabulary_loss=kind)
    teacher = ours.teachers.models[0]
    weight = teacher.decoder.output_projection.weight
    teacher.decoder.output_projection = torch.nn.Linear(*weight.shape[::-1], bias=False)
    with torch.no_grad():
        teacher.decoder.output_projection.weight.copy_(3e38 * torch.randn_like(weight).sign())
    with pytest.raises(SystemExit, match="the teacher's output holds NaN or infinity"):
        ours(model, batch(world))


# --- training ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("one_process")
def test_in_distributed_data_parallel_the_gradients_are_the_same(world):
    model = student_of(world)
    ours = taught(world, model)

    def gradients(criterion, model):
        ours.zero_grad()
        model.zero_grad()
        for data in (batch(world, ["x"], ["x"]), batch(world)):  # the first without a span
            criterion(model, data)[0].backward()
        return [p.grad.clone() for x in (ours, model) for p in x.parameters()]

    expected = gradients(ours, model)
    wrapped = [ModuleProxyWrapper(DistributedDataParallel(x)) for x in (ours, model)]
    found = gradients(*wrapped)
    torch.testing.assert_close(found, expected)


def test_what_is_logged_is_by_the_size_of_samples(world):
    logs = [
        {"loss": 9.0, "nll_loss": 6.0, "cross_loss": 3.0, "ntokens": 10, "sample_size": 2},
        {"loss": 9.0, "nll_loss": 6.0, "cross_loss": 4.0, "ntokens": 4, "sample_size": 1},
    ]
    with metrics.aggregate() as shown:
        Ours.reduce_metrics(logs)
    assert shown.get_smoothed_value("cross_loss") == pytest.approx(7 / 3, abs=1e-4)


OF_LM = ["--task", "language_modeling", "--arch", "transformer_lm", *SMALL_DECODER]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["translation", "language_modeling"])
def test_fairseq_trains_with_it(kind, world, tmp_path, caplog):
    is_lm = kind == "language_modeling"
    names = ["dict.txt"] if is_lm else ["dict.en.txt", "dict.de.txt"]
    folder = tmp_path / "student"
    write_folder(folder, STUDENTS, names)
    random = Random(1)
    for name, size in (("train", 100), ("valid", 20)):
        words = ["".join(random.choices(LETTERS, k=random.randint(1, 5))) for _ in range(3 * size)]
        lines = [world.our_bpe(" ".join(words[i : i + 3])) + "\n" for i in range(0, len(words), 3)]
        for language in ("en", "de"):
            (tmp_path / f"{name}.{language}").write_text("".join(lines))
    data = str(folder / "data-bin")
    parser = options.get_preprocessing_parser()
    dictionary = f"{world.folder}/student/data-bin/dict.en.txt"
    words = ["--srcdict", dictionary]
    words += ["--only-source"] if is_lm else ["-s", "en", "-t", "de", "--tgtdict", dictionary]
    sets = [f"{tmp_path}/{name}" + ".en" * is_lm for name in ("train", "valid")]
    words += ["--trainpref", sets[0], "--validpref", sets[1]]
    preprocess.main(parser.parse_args([*words, "--destdir", data]))
    if is_lm:
        words = [*OF_LM, "--decoder-layers", "1", *map(str, TRAIN[TRAIN.index("--cpu") :])]
        words += ["--tokens-per-sample", "32", "--required-batch-size-multiple", "1"]
        words += ["--teacher", world.lm_path]
        layers, told = "decoder layers 1 to 3", "1 to 3 of the decoder (16 to 16 wide)"
    else:
        words = [*map(str, TRAIN), "--encoder-layers", "1", "--teacher", world.path]
        layers = "encoder layers 1 to 2; decoder layers 2 to 2"
        told = "1 to 2 of the encoder (16 to 24 wide), 2 to 2 of the dec"
    words += ["--save-dir", str(tmp_path / "run"), "--teacher-data", world.data]
    words += ["--criterion", "cross_vocabulary_label_smoothed_cross_entropy", "--max-update", "8"]
    args = options.parse_args_and_arch(options.get_training_parser(), input_args=[data, *words])
    # Commands that ran in this process before may have silenced fairseq.
    with caplog.at_level(logging.INFO), caplog.at_level(logging.INFO, "fairseq"):
        train.main(convert_namespace_to_omegaconf(args))
    assert layers in caplog.text
    assert '"train_cross_loss"' in caplog.text and '"valid_cross_loss"' not in caplog.text
    found = [json.loads(x.message) for x in caplog.records if '"update"' in x.message]
    losses = [float(x["cross_loss"]) for x in found]
    assert len(losses) == 8 and losses[-1] < losses[0]
    state = torch.load(tmp_path / "run/checkpoint_last.pt", weights_only=True)
    assert state["criterion"].pop("sra._extra_state")["layers"].startswith(told)
    width = 16 if is_lm else 24
    assert {tuple(x.shape) for x in state["criterion"].values()} == {(width, 16)}
