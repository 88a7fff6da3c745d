"""`--teacher-memory`: what it recalls is what a teacher says; whom it asks; how much it keeps."""

import logging
import re
from types import SimpleNamespace

import pytest
import torch
from conftest import logged, train
from criteria import PAD, make, sample
from small import SMALL_ENCODER, build, language_task, masked_task
from students import FLAGS, LARGER, STUDENT, save, translation

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.distillation.criterion import (
    DistilledLabelSmoothedCrossEntropyCriterion as Ours,
)
from macaron_fairseq.distillation.memory import GIBIBYTE, Memory

LM = "--decoder-embed-dim", "16", "--decoder-layers", "2", "--decoder-attention-heads", "2"


def rows(data, chosen, extra=0):
    """Some sentences of a batch, in this order, with more padding."""

    def pick(x, left=False):
        pads = torch.full((len(chosen), extra), PAD)
        return torch.cat([pads, x[chosen]] if left else [x[chosen], pads], 1)

    inputs = data["net_input"]
    target = pick(data["target"])
    return {
        "net_input": {
            "src_tokens": pick(inputs["src_tokens"], left=True),
            "src_lengths": inputs["src_lengths"][chosen],
            "prev_output_tokens": pick(inputs["prev_output_tokens"]),
        },
        "target": target,
        "ntokens": int(target.ne(PAD).sum()),
    }


DATA = sample()  # four sentences
# New sentences alone; old and new ones; old ones alone in another order, and one twice.
BATCHES = [rows(DATA, [0, 2]), rows(DATA, [1, 2, 0, 3]), rows(DATA, [3, 1, 3, 0], extra=2)]


@pytest.fixture(scope="module")
def teachers(tmp_path_factory):
    """Two teachers, the first of another width than the student."""
    folder = tmp_path_factory.mktemp("teachers")
    save(folder / "one.pt", *LARGER)
    save(folder / "two.pt", *FLAGS, "--encoder-layers", "1", arch="transformer_tiny_pre_norm")
    return SimpleNamespace(one=str(folder / "one.pt"), both=f"{folder}/one.pt:{folder}/two.pt")


def student_and_criterion(teacher, **options):
    model = build(STUDENT, *FLAGS).train()
    torch.manual_seed(3)  # of the maps
    ours = make(Ours, for_task=translation(), teacher=teacher, **options)
    if ours.needs_student:
        ours.follow(model)
    return model, ours


def learnt(model, ours, data):
    """Loss, what is logged and all gradients of a batch."""
    model.zero_grad()
    ours.zero_grad()
    loss, _, log = ours(model, data)
    loss.backward()
    gradients = [p.grad.clone() for x in (model, ours) for p in x.parameters()]
    return [loss.detach(), *map(torch.as_tensor, log.values())], gradients


def asked(ours):
    """The sentences of each pass of the teachers, as a list that grows."""
    passes = []
    for model in ours.teachers.models:
        model.register_forward_pre_hook(
            lambda _, args, kwargs: passes.append(kwargs["src_tokens"].tolist()), with_kwargs=True
        )
    return passes


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"distill_temperature": 2.0, "distill_weight": 1.0},
        {"trajectory_weight": 2.0, "trajectory_spans": "tokens"},
        {"trajectory_weight": 2.0, "distill_weight": 0.0, "trajectory_layers": "1:1,2:1"},
    ],
    ids=["word level", "temperature", "trajectory", "trajectory alone"],
)
@pytest.mark.parametrize("which", ["one", "both"])
def test_losses_and_gradients_are_those_without_a_memory(which, options, teachers):
    path = getattr(teachers, which)
    model, plain = student_and_criterion(path, **options)
    _, ours = student_and_criterion(path, teacher_memory=1.0, **options)
    for data in BATCHES:
        expected, found = learnt(model, plain, data), learnt(model, ours, data)
        torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-6)


def test_a_teacher_is_asked_of_each_sentence_once(teachers):
    model, ours = student_and_criterion(teachers.one, teacher_memory=1.0)
    passes = asked(ours)
    for data in BATCHES:
        ours(model, data)
    source = [x["net_input"]["src_tokens"] for x in BATCHES]
    assert passes == [source[0].tolist(), source[1][[0, 3]].tolist()]


def test_several_teachers_are_remembered_apart(teachers):
    model, ours = student_and_criterion(teachers.both, teacher_memory=1.0)
    passes = asked(ours)
    for _ in "ab":
        ours(model, BATCHES[1])
    assert len(passes) == 2 and len(ours.teachers.memory.sentences) == 8


def test_sentences_with_the_same_source_are_different_ones(teachers):
    model, ours = student_and_criterion(teachers.one, teacher_memory=1.0)
    _, plain = student_and_criterion(teachers.one)
    other = rows(DATA, [0, 1, 2, 3])
    other["net_input"]["prev_output_tokens"][:, 1] = 5
    for data in (DATA, other):
        assert float(ours(model, data)[0]) == pytest.approx(float(plain(model, data)[0]), rel=1e-6)


def test_what_does_not_fit_is_asked_again(teachers, caplog):
    """A state of one.pt's output has 24 numbers of 4 bytes."""
    data = [rows(DATA, [0, 1]), rows(DATA, [2, 3])]
    tokens = int(data[0]["target"].ne(PAD).sum())
    model, plain = student_and_criterion(teachers.one)
    _, ours = student_and_criterion(teachers.one, teacher_memory=tokens * 24 * 4 / GIBIBYTE)
    passes = asked(ours)
    with caplog.at_level(logging.INFO):
        for _ in "abc":
            for x in data:
                expected = float(plain(model, x)[0])
                assert float(ours(model, x)[0]) == pytest.approx(expected, rel=1e-6)
    assert [len(x) for x in passes] == [2] * 4  # the first two once, the others three times
    kept = [x for found in ours.teachers.memory.sentences.values() for x in found.values()]
    assert sum(x.nbytes for x in kept) == tokens * 24 * 4
    assert caplog.text.count("--teacher-memory is full with 2 sentences") == 1


def test_the_kept_states_have_the_teachers_precision(teachers):
    model, ours = student_and_criterion(
        teachers.one, teacher_memory=1.0, teacher_precision="bf16", trajectory_weight=1.0
    )
    ours(model, DATA)
    kept = [x for found in ours.teachers.memory.sentences.values() for x in found.values()]
    assert {x.dtype for x in kept} == {torch.bfloat16} and len(kept) == 4 * 5


def test_language_models_are_remembered(tmp_path):
    task = language_task()
    save(tmp_path / "t.pt", *LM, arch="transformer_lm", for_task=task)
    model = build("transformer_lm", *LM, "--dropout", "0", for_task=task).train()
    plain, ours = (
        make(Ours, for_task=task, teacher=str(tmp_path / "t.pt"), teacher_memory=x)
        for x in (0.0, 1.0)
    )
    read = DATA["net_input"]["prev_output_tokens"]
    passes = asked(ours)
    for chosen in ([0, 1], [2, 1], [1, 2, 0]):
        inputs = {"src_tokens": read[chosen], "src_lengths": read[chosen].ne(PAD).sum(1)}
        target = DATA["target"][chosen]
        data = {"net_input": inputs, "target": target, "ntokens": int(target.ne(PAD).sum())}
        expected, found = learnt(model, plain, data), learnt(model, ours, data)
        torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-6)
    assert passes == [read[[0, 1]].tolist(), read[[2]].tolist()]


def test_what_is_recalled_is_what_was_found():
    """Any states, on a side that is padded left and on one that is padded right."""
    inputs = {k: v for k, v in DATA["net_input"].items() if k != "src_lengths"}
    torch.manual_seed(1)
    table = torch.randn(64, 3)

    def ask(inputs):
        source, previous = inputs["src_tokens"], inputs["prev_output_tokens"]
        of_decoder = {("decoder", 2): table[previous].transpose(0, 1)}
        return {("encoder", 1, "query"): source.t(), **of_decoder}

    memory = Memory(1.0, {"encoder": PAD, "decoder": PAD})
    expected = memory.recall(0, inputs, ask)
    found = memory.recall(0, inputs, ask)
    assert found.keys() == expected.keys()
    masks = [inputs[name].ne(PAD).t() for name in ("src_tokens", "prev_output_tokens")]
    for mask, (place, state) in zip(masks, found.items(), strict=True):
        assert torch.equal(state[mask], expected[place][mask])
        assert not state[~mask].any()


def test_numbers_and_tasks_that_make_no_sense_are_refused(teachers, tmp_path):
    with pytest.raises(UserError, match=re.escape("--teacher-memory -1.0 is no weight")):
        student_and_criterion(teachers.one, teacher_memory=-1.0)
    task = masked_task()
    save(tmp_path / "m.pt", *SMALL_ENCODER, arch="macaron_roberta_tiny", for_task=task)
    with pytest.raises(UserError, match="--teacher-memory are for translation and language_model"):
        make(Ours, for_task=task, teacher=str(tmp_path / "m.pt"), teacher_memory=1.0)


@pytest.mark.slow
def test_fairseq_trains_with_it(data_bin, trained, tmp_path):
    """Three epochs, the last two out of the memory: the same losses."""
    flags = ["--criterion", "distilled_label_smoothed_cross_entropy", "--trajectory-weight", "1"]
    flags += ["--teacher", trained / "checkpoint_last.pt", "--encoder-layers", "1"]
    flags += ["--max-epoch", "3"]
    plain, ours = (
        logged(train(data_bin, tmp_path / memory, *flags, "--teacher-memory", memory).stdout)
        for memory in ("0", "0.5")
    )
    assert plain.keys() == ours.keys() and len(plain) > 6
    for update, losses in plain.items():
        assert ours[update] == pytest.approx(losses, rel=1e-3), update
