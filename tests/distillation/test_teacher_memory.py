"""`--teacher-memory`: what it recalls is what a teacher says, whom it asks, how much it keeps."""

import logging
import re
from types import SimpleNamespace

import pytest
import torch
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq_cli import train
from helpers.criteria import PAD, make, sample
from helpers.small import build, language_task
from helpers.students import FLAGS, LARGER, STUDENT, asked, learnt, save, translation
from helpers.toy_corpus import TRAIN

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.distillation.criterion import (
    DistilledLabelSmoothedCrossEntropyCriterion as Ours,
)
from macaron_fairseq.distillation.teacher_memory import GIBIBYTE, Answer, Memory

LM = "--decoder-embed-dim", "16", "--decoder-layers", "2", "--decoder-attention-heads", "2"
# The second differs from the first in what the decoder reads, and the third in all.
BATCHES = [sample(), sample(), sample(seed=2, sizes=((4, 5), (3, 3)))]
BATCHES[1]["net_input"]["prev_output_tokens"][:, 1] = 5
EPOCHS = [0, 1, 2, 2, 0, 1, 1, 2, 0]  # three


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


SETTINGS = {
    "word level": {},
    "temperature": {"distill_temperature": 2.0, "distill_weight": 1.0},
    "trajectory": {"trajectory_weight": 2.0, "trajectory_spans": "tokens"},
    "alone": {"trajectory_weight": 2.0, "distill_weight": 0.0, "trajectory_layers": "1:1,2:1"},
}


@pytest.mark.parametrize(
    ("which", "settings"),
    [
        *[pytest.param("one", x, id=f"one-{name}") for name, x in SETTINGS.items()],
        # A trajectory alone is of one teacher.
        *[pytest.param("both", x, id=f"both-{name}") for name, x in [*SETTINGS.items()][:3]],
    ],
)
def test_losses_and_gradients_are_those_without_a_memory(which, settings, teachers):
    """Bit for bit. Each teacher is asked about each batch once."""
    path = getattr(teachers, which)
    model, plain = student_and_criterion(path, **settings)
    _, ours = student_and_criterion(path, teacher_memory=1.0, **settings)
    passes = asked(ours)
    for data in (BATCHES[i] for i in EPOCHS):
        expected, found = learnt(model, plain, data), learnt(model, ours, data)
        assert all(map(torch.equal, found, expected))
    assert len(passes) == 3 * len(ours.teachers.models)


def test_without_a_weight_of_predictions_states_alone_are_kept(teachers):
    model, ours = student_and_criterion(
        teachers.one, teacher_memory=1.0, trajectory_weight=2.0, distill_weight=0.0
    )
    ours(model, BATCHES[0])
    [kept] = ours.teachers.memory.batches.values()
    assert {*kept.states} == {*ours.following.teacher_places} and kept.output is None


def test_under_autocast_features_are_kept_and_projected_in_full(teachers):
    """Logits would be some twenty times as large."""
    model, ours = student_and_criterion(teachers.one, teacher_memory=1.0)
    log = ours(model, BATCHES[0])[2]
    with torch.autocast("cpu", torch.bfloat16):
        low = ours(model, BATCHES[1]), ours(model, BATCHES[0])[2]
    kept = [x.output for x in ours.teachers.memory.batches.values()]
    assert {x.shape[-1] for x in kept} == {24} and {x.dtype for x in kept} == {torch.float32}
    assert torch.equal(low[1]["teacher_entropy"], log["teacher_entropy"])


def test_what_does_not_fit_is_asked_again(teachers, caplog):
    """A state of one.pt's output has 24 numbers of 4 bytes."""
    size = BATCHES[0]["net_input"]["prev_output_tokens"].numel() * 24 * 4
    model, plain = student_and_criterion(teachers.one)
    _, ours = student_and_criterion(teachers.one, teacher_memory=size / GIBIBYTE)
    passes = asked(ours)
    with caplog.at_level(logging.INFO):
        for data in (BATCHES[i] for i in EPOCHS):
            assert float(ours(model, data)[0].detach()) == float(plain(model, data)[0].detach())
    assert len(passes) == 1 + 3 + 3
    [kept] = ours.teachers.memory.batches.values()
    assert kept.output.nbytes == size and not kept.states and not kept.weights
    assert caplog.text.count("--teacher-memory is full with 1 batches") == 1


def test_what_is_kept_is_a_copy_without_what_it_was_cut_out_of():
    whole, memory = torch.arange(12.0).view(4, 3), Memory(1.0)
    inputs = BATCHES[0]["net_input"]
    memory.recall(0, inputs, lambda _: Answer(whole[:2]))
    whole.zero_()
    [kept] = memory.batches.values()
    assert kept.output.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert kept.output.untyped_storage().nbytes() == kept.nbytes() == 6 * 4


def test_the_kept_states_have_the_teachers_precision(teachers):
    model, ours = student_and_criterion(
        teachers.one, teacher_memory=1.0, teacher_precision="bf16", trajectory_weight=1.0
    )
    ours(model, BATCHES[0])
    [kept] = ours.teachers.memory.batches.values()
    found = [kept.output, *kept.states.values()]
    assert {x.dtype for x in found} == {torch.bfloat16} and len(found) == 5


def test_language_models_are_remembered(tmp_path):
    task = language_task()
    save(tmp_path / "t.pt", *LM, arch="transformer_lm", for_task=task)
    model = build("transformer_lm", *LM, "--dropout", "0", for_task=task).train()
    plain, ours = (
        make(Ours, for_task=task, teacher=str(tmp_path / "t.pt"), teacher_memory=x)
        for x in (0.0, 1.0)
    )
    passes = asked(ours)
    for data in (BATCHES[i] for i in EPOCHS):
        read = data["net_input"]["prev_output_tokens"]
        inputs = {"src_tokens": read, "src_lengths": read.ne(PAD).sum(1)}
        of_text = {**data, "net_input": inputs}
        found = learnt(model, ours, of_text), learnt(model, plain, of_text)
        assert all(map(torch.equal, *found))
    assert len(passes) == 3


@pytest.mark.parametrize("size", [-1.0, float("nan"), float("inf")])
def test_a_size_that_makes_no_sense_is_refused(size, teachers):
    with pytest.raises(UserError, match=re.escape(f"--teacher-memory is {size}: give GiB")):
        student_and_criterion(teachers.one, teacher_memory=size)


@pytest.mark.slow
def test_fairseq_makes_batches_once(data_bin, trained, tmp_path, monkeypatch):
    """Three epochs, the last two out of the memory."""
    recalled, recall = [], Memory.recall

    def counted(memory, *rest):
        found = recall(memory, *rest)
        recalled.append(len(memory.batches))
        return found

    monkeypatch.setattr(Memory, "recall", counted)
    words = [str(data_bin), *map(str, TRAIN), "--encoder-layers", "1", "--max-epoch", "3"]
    words += ["--criterion", "distilled_label_smoothed_cross_entropy", "--teacher-memory", "1"]
    words += ["--teacher", str(trained / "checkpoint_last.pt"), "--save-dir", str(tmp_path)]
    words += ["--max-update", "0"]
    args = options.parse_args_and_arch(options.get_training_parser(), input_args=words)
    train.main(convert_namespace_to_omegaconf(args))
    batches = recalled[-1]
    assert recalled == [*range(1, batches + 1), *[batches] * 2 * batches] and batches > 2
