"""Word-level distillation: its formula, its limits, the teacher, and training with it."""

import json
import logging
import math
from types import SimpleNamespace

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.data import Dictionary, TruncatedDictionary
from fairseq.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from helpers.commands import sentence_of
from helpers.criteria import EPSILON, PAD, Spy, assert_same, biased, make, outcome, sample
from helpers.paths import USER_DIR
from helpers.processes import run
from helpers.small import (
    NO_DROPOUT,
    SMALL,
    SMALL_DECODER,
    SMALL_ENCODER,
    build,
    dictionary,
    language_task,
    masked_task,
)
from helpers.students import FLAGS, LARGER, STUDENT, save, translation
from helpers.toy_corpus import logged, train
from torch import nn

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.distillation import teacher_files
from macaron_fairseq.distillation.criterion import (
    DistilledLabelSmoothedCrossEntropyCriterion as Ours,
)
from macaron_fairseq.distillation.word_level import Mixture, distilled_loss, projected
from macaron_fairseq.fast import chunked_loss
from macaron_fairseq.fast.criterion import ChunkedLabelSmoothedCrossEntropyCriterion
from macaron_fairseq.fast.rdrop_criterion import ChunkedRdropLabelSmoothedCrossEntropyCriterion

pytestmark = pytest.mark.usefixtures("small_chunks")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two teachers of other sizes than the student, and where they are saved."""
    folder = tmp_path_factory.mktemp("teachers")
    paths = [folder / "one.pt", folder / "two.pt"]
    models = [
        save(paths[0], *LARGER),
        save(paths[1], *FLAGS, "--encoder-layers", "1", arch="transformer_tiny_pre_norm"),
    ]
    return SimpleNamespace(paths=paths, models=models, both=":".join(map(str, paths)))


def taught(model, data, *, wrapper=None, for_task=None, **options):
    for_task = for_task or translation()
    return outcome(Ours, model.train(), data, wrapper, for_task=for_task, **options)


# --- the formula ---------------------------------------------------------------------------------


def formula(student, teacher_logits, target, w, temperature, squared):
    """The issue's sum for one token after the other, with PyTorch's distributions."""
    total = kl_sum = entropy = 0
    for i, gold in enumerate(target.tolist()):
        p = student[i].softmax(0)
        smooth = torch.full_like(p, EPSILON / (len(p) - 1))
        smooth[gold] = 1 - EPSILON
        q = sum((t[i] / temperature).softmax(0) for t in teacher_logits) / len(teacher_logits)
        of_student = torch.distributions.Categorical(logits=student[i] / temperature)
        of_teacher = torch.distributions.Categorical(probs=q)
        kl = torch.distributions.kl_divergence(of_teacher, of_student)
        factor = temperature**2 if squared else 1
        total = total - (1 - w) * (smooth * p.log()).sum() + w * factor * kl
        kl_sum, entropy = kl_sum + kl, entropy + of_teacher.entropy()
    return total, kl_sum, entropy


@pytest.fixture
def tensors():
    torch.manual_seed(1)
    features = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(64, 3, dtype=torch.float64, requires_grad=True)
    others = [
        (torch.randn(7, n, dtype=torch.float64), torch.randn(64, n, dtype=torch.float64))
        for n in (5, 2)
    ]
    return features, weight, torch.randint(64, (7,)), others


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize(
    ("w", "temperature", "squared"),
    [(0.5, 1.0, True), (1.0, 1.0, True), (0.3, 2.0, True), (0.3, 2.0, False), (1.0, 0.5, False)],
)
def test_double_precision_is_the_formula(number, w, temperature, squared, tensors):
    features, weight, target, others = tensors
    others = others[:number]
    logits = [f @ v.t() for f, v in others]
    expected, kl, entropy = formula(features @ weight.t(), logits, target, w, temperature, squared)
    mixture = Mixture(w, temperature, squared)
    answers = [projected(*x) for x in others]
    loss, nll, *sums = distilled_loss(features, weight, target, EPSILON, mixture, answers)
    torch.testing.assert_close(loss, expected, rtol=1e-13, atol=0)
    torch.testing.assert_close(sums, [kl.detach(), entropy], rtol=1e-12, atol=0)
    plain = nn.functional.cross_entropy(features @ weight.t(), target, reduction="sum")
    torch.testing.assert_close(nll, plain.detach(), rtol=1e-13, atol=0)
    wanted = torch.autograd.grad(expected, (features, weight))
    found = torch.autograd.grad(loss, (features, weight))
    torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-12)


def test_gradcheck(tensors):
    features, weight, target, others = tensors
    answers = [projected(*x) for x in others]
    for f, v in ((features, weight), (features.detach(), weight), (features, weight.detach())):
        assert torch.autograd.gradcheck(
            lambda f, v: distilled_loss(f, v, target, EPSILON, Mixture(0.4, 3.0), answers)[0],
            (f, v),
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_exact_as_its_products(dtype, tensors):
    features, weight, target, others = tensors

    def gradients(dtype):
        leaves = [x.detach().to(dtype).requires_grad_() for x in (features, weight)]
        answers = [projected(*(y.float() for y in x)) for x in others]
        loss = distilled_loss(*leaves, target, EPSILON, Mixture(0.5, 2.0), answers)[0]
        loss.backward()
        return loss.double(), [x.grad.double() for x in leaves]

    loss, found = gradients(dtype)
    expected, exact = gradients(torch.double)
    assert float(loss) == pytest.approx(float(expected), rel=1e-2)
    for mine, true in zip(found, exact, strict=True):
        assert (mine - true).norm() < 3 * torch.finfo(dtype).eps * true.norm()


def test_far_logits_do_not_overflow(tensors):
    features, weight, target, others = tensors
    leaves = [(1000 * features).detach().float().requires_grad_(), weight.detach().float()]
    answers = [projected(1000 * f.float(), v.float()) for f, v in others]
    loss = distilled_loss(*leaves, target, EPSILON, Mixture(0.5), answers)[0]
    loss.backward()
    assert loss.isfinite() and leaves[0].grad.isfinite().all()


# --- the criterion -------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["", "gone.pt"])
@pytest.mark.parametrize("arch", [STUDENT, "transformer_tiny_pre_norm"])
def test_without_weight_it_is_label_smoothed_cross_entropy_bit_for_bit(arch, path):
    model = build(arch, *FLAGS).train()
    plain = outcome(ChunkedLabelSmoothedCrossEntropyCriterion, model, sample())
    ours = taught(model, sample(), distill_weight=0.0, teacher=path)
    assert torch.equal(ours.loss, plain.loss) and ours.log == plain.log
    assert all(torch.equal(ours.gradients[x], plain.gradients[x]) for x in plain.gradients)


def test_other_outputs_without_weight_are_fairseqs_bit_for_bit():
    model = build(STUDENT, *FLAGS).train()
    biased(model)
    plain = outcome(LabelSmoothedCrossEntropyCriterion, model, sample())
    ours = taught(model, sample(), distill_weight=0.0)
    assert torch.equal(ours.loss, plain.loss)
    assert all(torch.equal(ours.gradients[x], plain.gradients[x]) for x in plain.gradients)


def test_a_student_that_equals_its_teacher_gets_the_teachers_entropy_and_no_gradient(tmp_path):
    model = save(tmp_path / "same.pt", *FLAGS)
    data = sample()
    log_p = model(**data["net_input"])[0].double().log_softmax(-1)
    entropy = -(log_p.exp() * log_p).sum(-1)[data["target"].ne(PAD)].sum()
    ours = taught(model, data, teacher=str(tmp_path / "same.pt"), distill_weight=1.0)
    assert float(ours.loss) == float(ours.log["kd_loss"]) == 0
    cross_entropy = ours.log["kd_loss"] + ours.log["teacher_entropy"]
    assert float(cross_entropy) == pytest.approx(float(entropy), rel=1e-6)
    assert all(not gradient.any() for gradient in ours.gradients.values())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"distill_temperature": 2.0, "distill_weight": 0.7},
        {"distill_temperature": 2.0, "no_temperature_squared": True},
        {"ignore_prefix_size": 2, "sentence_avg": True, "report_accuracy": True},
    ],
)
@pytest.mark.parametrize("name", ["translation", "macaron_translation"])
def test_the_criterion_is_the_formula_on_whole_models(name, options, files):
    model, data = build(STUDENT, *FLAGS).train(), sample()
    ours = taught(model, data, teacher=files.both, for_task=translation(name=name), **options)
    first = options.get("ignore_prefix_size", 0)
    target = data["target"][:, first:]
    counted = target.ne(PAD)
    logits = [x(**data["net_input"])[0][:, first:][counted] for x in (model, *files.models)]
    w, temperature = options.get("distill_weight", 0.5), options.get("distill_temperature", 1.0)
    squared = "no_temperature_squared" not in options
    expected, kl, entropy = formula(logits[0], logits[1:], target[counted], w, temperature, squared)
    model.zero_grad()
    (3 * expected).backward()
    found = ours.log["kd_loss"], ours.log["teacher_entropy"], ours.loss
    for mine, true in zip(found, (kl, entropy, expected), strict=True):
        assert float(mine) == pytest.approx(float(true), rel=1e-5)
    for name, parameter in model.named_parameters():
        if not name.endswith("k_proj.bias"):
            torch.testing.assert_close(ours.gradients[name], parameter.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("which", ["student", "teacher", "both"])
def test_models_without_a_plain_projection_give_the_same(which, files, monkeypatch):
    """A hook makes an output another than a plain projection, and changes nothing."""
    model = build(STUDENT, *FLAGS)
    expected = taught(model, sample(), teacher=files.both, distill_temperature=2.0)
    load = teacher_files.load_models

    def hooked(*args):
        models = load(*args)
        models[0].decoder.output_projection.register_forward_pre_hook(lambda *_: None)
        return models

    if which != "teacher":
        model.decoder.output_projection.register_forward_pre_hook(lambda *_: None)
    if which != "student":
        monkeypatch.setattr(teacher_files, "load_models", hooked)
    found = taught(model, sample(), teacher=files.both, distill_temperature=2.0)
    assert_same(found, expected, tolerance=2e-5)


def test_a_teacher_with_an_adaptive_softmax_says_its_whole_distribution(tmp_path):
    """fairseq's own log-probabilities of all types."""
    path, data, model = tmp_path / "t.pt", sample(), build(STUDENT, *FLAGS).train()
    teacher = save(path, *FLAGS, "--adaptive-softmax-cutoff", "20,40").eval()
    counted = data["target"].ne(PAD)
    features = teacher(**data["net_input"])[0]
    theirs = teacher.decoder.adaptive_softmax.get_log_prob(features, None)[counted]
    ours = model(**data["net_input"])[0][counted]
    expected, kl, _ = formula(ours, [theirs], data["target"][counted], 0.5, 2.0, squared=True)
    found = taught(model, data, teacher=str(path), distill_temperature=2.0)
    assert float(found.loss) == pytest.approx(float(expected), rel=1e-5)
    assert float(found.log["kd_loss"]) == pytest.approx(float(kl), rel=1e-5)


def test_the_loss_of_each_token_sums_up_to_the_loss(files):
    model = build(STUDENT, *FLAGS).train()
    ours = make(Ours, for_task=translation(), teacher=str(files.paths[0]))
    whole, *_ = ours(model, sample())
    each, *_ = ours(model, sample(), reduce=False)
    assert each.shape == (32, 1) and not each[sample()["target"].flatten() == PAD].any()
    assert float(each.sum()) == pytest.approx(float(whole), rel=1e-5)


def test_neither_model_makes_a_tensor_of_tokens_by_types(files, tmp_path, monkeypatch):
    monkeypatch.setattr(chunked_loss, "CHUNK_ELEMENTS_CPU", 20_000)
    save(tmp_path / "large.pt", *LARGER, types=1000)
    for_task = translation(1000)
    model = build(STUDENT, *FLAGS, for_task=for_task).train()
    data = sample(sizes=((9, 30),) * 8)
    with Spy() as spy:
        outcome(Ours, model, data, for_task=for_task, teacher=str(tmp_path / "large.pt"))
    assert spy.numel < 60_000  # the embeddings' gradient has 24,096; all logits of one, 240,960


def test_in_evaluation_it_is_the_plain_criterion_and_asks_no_teacher(files, monkeypatch):
    model = build(STUDENT, *FLAGS)
    ours = make(Ours, for_task=translation(), teacher=files.both)
    monkeypatch.setattr(ours.teachers, "answer", None)
    found = ours(model, sample())
    assert found == make(ChunkedLabelSmoothedCrossEntropyCriterion)(model, sample())


def test_a_batch_of_padding_alone_is_zero(files):
    data = sample()
    data["target"].fill_(PAD)
    ours = taught(build(STUDENT, *FLAGS), data, teacher=files.both)
    assert float(ours.loss) == 0
    assert all(not gradient.any() for gradient in ours.gradients.values())


@pytest.mark.parametrize("kind", ["plain", "rdrop", "word level"])
def test_the_loss_of_a_dummy_batch_can_be_set_to_zero(kind, files):
    """fairseq does so in place, where a process has fewer batches than another."""
    cls, options = {
        "plain": (ChunkedLabelSmoothedCrossEntropyCriterion, {}),
        "rdrop": (ChunkedRdropLabelSmoothedCrossEntropyCriterion, {"rdrop_alpha": 5.0}),
        "word level": (Ours, {"teacher": files.both}),
    }[kind]
    model = build(STUDENT, *FLAGS).train()
    loss, _, _ = make(cls, for_task=translation(), **options)(model, sample())
    assert loss > 0
    loss *= 0
    loss.backward()
    gradients = [x.grad for x in model.parameters() if x.grad is not None]
    assert gradients and not any(gradient.any() for gradient in gradients)


def test_what_is_logged_is_in_bits_per_token(files):
    from fairseq.logging import metrics

    ours = taught(build(STUDENT, *FLAGS), sample(), teacher=files.both)
    with metrics.aggregate() as shown:
        Ours.reduce_metrics([ours.log, ours.log])
    bits = float(ours.log["kd_loss"]) / ours.log["ntokens"] / math.log(2)
    assert shown.get_smoothed_value("kd_loss") == pytest.approx(bits, abs=1e-3)
    with metrics.aggregate() as shown:
        Ours.reduce_metrics([{k: v for k, v in ours.log.items() if k != "kd_loss"}])
    assert "kd_loss" not in shown.get_smoothed_values()


# --- the teacher ---------------------------------------------------------------------------------


def test_a_teacher_stays_out_of_what_is_saved_moved_and_trained(files):
    ours = make(Ours, for_task=translation(), teacher=files.both).half()
    model = build(STUDENT, *FLAGS).train()
    before = [p.clone() for x in ours.teachers.models for p in x.parameters()]
    ours(model, sample())[0].backward()
    assert not ours.state_dict() and not list(ours.parameters()) and not list(ours.modules())[1:]
    after = [p for x in ours.teachers.models for p in x.parameters()]
    assert all(p.grad is None and not p.requires_grad for p in after)
    assert all(p.dtype == torch.float32 for p in after)
    assert all(map(torch.equal, before, after))
    ours.train()
    assert not any(x.training for x in ours.teachers.models)


def test_dropout_of_the_teacher_is_off(tmp_path):
    save(tmp_path / "t.pt", *SMALL, "--share-all-embeddings", "--dropout", "0.9")
    model = build(STUDENT, *FLAGS)
    losses = [float(taught(model, sample(), teacher=str(tmp_path / "t.pt")).loss) for _ in "ab"]
    assert losses[0] == losses[1]


def test_a_teacher_has_its_own_precision(files):
    ours = make(Ours, for_task=translation(), teacher=files.both, teacher_precision="bf16")
    exact = make(Ours, for_task=translation(), teacher=files.both)
    model = build(STUDENT, *FLAGS).train()
    kl, expected = (float(x(model, sample())[2]["kd_loss"]) for x in (ours, exact))
    assert kl == pytest.approx(expected, rel=0.05) and kl != expected
    with torch.autocast("cpu", torch.bfloat16):
        expected_entropy = exact(model, sample())[2]["teacher_entropy"]
    entropy = exact(model, sample())[2]["teacher_entropy"]
    assert float(entropy) == pytest.approx(float(expected_entropy), rel=1e-6)


def test_loading_a_teacher_leaves_the_students_task_alone(files):
    for_task = translation()
    for_task.cfg.eval_bleu = True
    for_task.cfg.eval_bleu_args = "{}"
    for_task.sequence_generator = "the student's"
    make(Ours, for_task=for_task, teacher=files.both)
    assert for_task.sequence_generator == "the student's"


@pytest.mark.parametrize(
    ("options", "formula"),
    [
        ({"distill_temperature": 2.0}, "0.5 label-smoothed CE + 0.5 T^2 KL(teacher || student), T"),
        (
            {"distill_temperature": 2.0, "distill_weight": 0.7, "no_temperature_squared": True},
            "0.3 label-smoothed CE + 0.7 KL(teacher || student), T",
        ),
    ],
)
def test_the_log_says_what_the_loss_is(options, formula, files, caplog):
    with caplog.at_level(logging.INFO):
        make(Ours, for_task=translation(), teacher=files.both, **options)
    assert f"2 teacher(s); loss = {formula} = 2\n" in caplog.text


def test_the_log_names_no_divergence_without_weight(files, caplog):
    with caplog.at_level(logging.INFO):
        make(
            Ours,
            for_task=translation(),
            teacher=str(files.paths[0]),
            distill_weight=0.0,
            trajectory_weight=2.0,
        )
    assert "1 teacher(s); loss = 1 label-smoothed CE\n" in caplog.text


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"distill_weight": 1.5}, "--distill-weight is 1.5: give a number from 0 to 1"),
        ({"distill_weight": math.nan}, "--distill-weight is nan"),
        ({"distill_temperature": 0.0}, "--distill-temperature is 0.0: give a number above 0"),
        ({"distill_temperature": math.nan}, "--distill-temperature is nan"),
        ({}, "needs --teacher CHECKPOINT"),
        (
            {"distill_weight": 0.0, "trajectory_weight": 2.0, "distill_temperature": 3.0},
            "--distill-temperature has no effect with --distill-weight 0: leave it out",
        ),
        (
            {"distill_weight": 0.0, "trajectory_weight": 2.0, "no_temperature_squared": True},
            "--no-temperature-squared has no effect with --distill-weight 0",
        ),
        (
            {"distill_weight": 0.0, "trajectory_weight": 2.0, "teacher": "a.pt:b.pt"},
            "with --distill-weight 0 no teacher but the first is asked: name one, and not",
        ),
    ],
)
def test_numbers_that_make_no_sense_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        make(Ours, for_task=translation(), **options)


def refusal(path, for_task=None):
    return sentence_of(lambda: make(Ours, for_task=for_task or translation(), teacher=str(path)))


def test_a_teacher_that_is_gone_is_named(tmp_path, files):
    gone = f"{files.paths[0]}:{tmp_path / 'gone.pt'}"
    assert f"--teacher {tmp_path / 'gone.pt'}: no such checkpoint; give the path" in refusal(gone)
    (tmp_path / "empty.pt").touch()
    assert f"{tmp_path / 'empty.pt'} is empty" in refusal(tmp_path / "empty.pt")


def test_a_masked_model_learns_from_no_teacher(files):
    """Its loss is of masked tokens alone."""
    said = refusal(files.paths[0], masked_task())
    assert said.startswith("--teacher is for translation and language_modeling, not for a task of")


def test_a_teacher_with_a_dictionary_of_another_size_is_refused(tmp_path):
    save(tmp_path / "t.pt", *FLAGS, types=61)
    found = refusal(tmp_path / "t.pt")
    assert "embeds 65 source types, but the source dictionary has 64" in found
    assert "or learn across vocabularies, with --criterion cross_vocabulary_" in found


def test_a_language_model_may_predict_fewer_types_than_it_reads(tmp_path):
    """As with --output-dictionary-size."""
    tasks = [
        LanguageModelingTask(
            LanguageModelingConfig(), dictionary(60), TruncatedDictionary(dictionary(60), size)
        )
        for size in (40, 30)
    ]
    save(tmp_path / "t.pt", *SMALL_DECODER, arch="transformer_lm", for_task=tasks[0])
    ours = make(Ours, for_task=tasks[0], teacher=str(tmp_path / "t.pt"))
    assert len(ours.teachers.models[0].decoder.output_projection.weight) == 40
    found = refusal(tmp_path / "t.pt", tasks[1])
    assert "predicts 40 types, as with --output-dictionary-size 40, and not 30" in found
    shared = [*SMALL_DECODER, "--share-decoder-input-output-embed"]
    shared += ["--decoder-input-dim", "16", "--decoder-output-dim", "16"]
    save(tmp_path / "s.pt", *shared, arch="transformer_lm", for_task=tasks[0])
    ours = make(Ours, for_task=tasks[1], teacher=str(tmp_path / "s.pt"))
    assert len(ours.teachers.models[0].decoder.output_projection.weight) == 64


def test_a_teacher_of_merged_dictionaries_is_for_such_students(tmp_path):
    """fairseq merges them when it builds a model, in the task's own dictionary."""

    def apart():
        settings, words = vars(translation().cfg), [dictionary(), Dictionary()]
        for i in range(20):
            words[1].add_symbol(f"z{i}")
        return TranslationTask(TranslationConfig(**settings), *words)

    merged, own = [*SMALL, *NO_DROPOUT, "--merge-src-tgt-embed"], apart()
    save(tmp_path / "t.pt", *merged, for_task=apart(), source_lang="en", target_lang="de")
    before = len(own.source_dictionary), len(own.target_dictionary)
    assert f"types, but the source dictionary has {before[0]}" in refusal(tmp_path / "t.pt", own)
    assert (len(own.source_dictionary), len(own.target_dictionary)) == before
    student = build(STUDENT, *merged, for_task=own).train()
    ours = make(Ours, for_task=own, teacher=str(tmp_path / "t.pt"))
    assert ours(student, sample())[0].isfinite()


@pytest.mark.parametrize("known_from", ["manifest", "folder"])
def test_a_teacher_with_other_types_of_the_same_number_is_refused(known_from, tmp_path, caplog):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder in (ours, theirs):
        folder.mkdir()
        for language in ("en", "de"):
            dictionary().save(str(folder / f"dict.{language}.txt"))
    for_task = translation()
    for_task.cfg.data = str(ours)
    save(tmp_path / "t.pt", *FLAGS, data=str(theirs))
    make(Ours, for_task=for_task, teacher=str(tmp_path / "t.pt"))
    assert "only its size was compared" not in caplog.text
    if known_from == "manifest":
        known = {"data": {"sha256": {"dict.de.txt": "0" * 64}}}
        (tmp_path / "manifest.json").write_text(json.dumps(known))
    else:
        (theirs / "dict.de.txt").write_text(
            "".join(f"v{i} 1\n" for i in range(60)), encoding="utf-8"
        )
    found = refusal(tmp_path / "t.pt", for_task)
    assert "was trained with another dict.de.txt than the student has: train" in found
    assert "--srcdict" in found and "--teacher-data FOLDER" in found


@pytest.mark.parametrize("data", ["/gone/data-bin", "data-bin"])
def test_a_teacher_that_cannot_be_compared_is_told(data, tmp_path, monkeypatch, caplog):
    """A relative folder may be any: one of this name here is another training's."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data-bin").mkdir()
    for language in ("en", "de"):
        dictionary().save(str(tmp_path / f"data-bin/dict.{language}.txt"))
    save(tmp_path / "t.pt", *FLAGS, data=data)
    make(Ours, for_task=translation(), teacher=str(tmp_path / "t.pt"))
    assert "t.pt: nothing tells its dict.de.txt, so only its size was compared" in caplog.text


def test_a_language_model_with_another_dictionary_is_refused(tmp_path):
    flags = [*SMALL_DECODER, *NO_DROPOUT]
    save(tmp_path / "t.pt", *flags, arch="transformer_lm", for_task=language_task(61))
    found = refusal(tmp_path / "t.pt", language_task(60))
    assert "dictionary has 64" in found and "--teacher-data FOLDER" in found


@pytest.mark.parametrize("task_name", ["translation", "language_modeling"])
def test_a_teacher_of_another_kind_is_refused(task_name, tmp_path):
    """Their dictionaries have the same size."""
    lm = "transformer_lm", [*SMALL_DECODER, *NO_DROPOUT], language_task(60)
    pair = STUDENT, FLAGS, translation()
    teacher, student = (lm, pair) if task_name == "translation" else (pair, lm)
    save(tmp_path / "t.pt", *teacher[1], arch=teacher[0], for_task=teacher[2])
    kinds = "a language model (a decoder alone)", "a translation model (encoder and decoder)"
    first, second = kinds if task_name == "translation" else reversed(kinds)
    assert refusal(tmp_path / "t.pt", student[2]) == (
        f"--teacher {tmp_path / 't.pt'} is {first}, but the student is {second}: give a teacher of "
        "that kind"
    )


def test_an_encoder_alone_teaches_no_translation(tmp_path):
    flags = [*SMALL_ENCODER, *NO_DROPOUT, "--max-positions", "32"]
    save(tmp_path / "t.pt", *flags, arch="roberta_base", for_task=masked_task())
    assert "t.pt is an encoder alone, but the student is a translation" in refusal(
        tmp_path / "t.pt"
    )


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--max-source-positions", "16"], "have 1024: give --max-source-positions 16, or"),
        (["--max-target-positions", "16"], "have 1024: give --max-target-positions 16, or"),
    ],
)
@pytest.mark.parametrize("learned", [[], ["--encoder-learned-pos", "--decoder-learned-pos"]])
def test_a_teacher_that_reads_less_than_the_student_is_refused(flags, said, learned, tmp_path):
    save(tmp_path / "t.pt", *FLAGS, *flags, *learned)
    found = refusal(tmp_path / "t.pt")
    assert "t.pt reads 16 tokens at most, but the student's samples may" in found and said in found
    for_task = translation()
    for_task.cfg.max_source_positions = for_task.cfg.max_target_positions = 16
    ours = make(Ours, for_task=for_task, teacher=str(tmp_path / "t.pt"))
    model = build(STUDENT, *FLAGS).train()
    assert ours(model, sample(sizes=((16, 16),)))[0].isfinite()  # all that the task lets through


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        ({"tokens_per_sample": 32}, "--tokens-per-sample"),
        ({"tokens_per_sample": 32, "max_target_positions": 64}, "--tokens-per-sample"),
        (
            {"tokens_per_sample": 9, "max_target_positions": 32, "sample_break_mode": "eos"},
            "--max-target-positions",
        ),
    ],
)
def test_a_language_model_that_reads_less_is_refused(settings, flag, tmp_path):
    flags = [*SMALL_DECODER, *NO_DROPOUT, "--max-target-positions"]
    for positions in ("16", "32"):
        save(
            tmp_path / f"{positions}.pt",
            *(*flags, positions, "--decoder-learned-pos"),
            arch="transformer_lm",
            for_task=language_task(60),
        )
    found = refusal(tmp_path / "16.pt", language_task(60, **settings))
    assert f"reads 16 tokens at most, but the student's samples may have 32: give {flag} 1" in found
    make(Ours, for_task=language_task(60, **settings), teacher=str(tmp_path / "32.pt"))


def test_a_direction_that_nothing_tells_is_said_once(tmp_path, caplog):
    said = f"--teacher {tmp_path / 't.pt'}: nothing tells its direction, which was not compared"
    save(tmp_path / "t.pt", *FLAGS)
    make(Ours, for_task=translation(), teacher=str(tmp_path / "t.pt"))
    assert [x.message for x in caplog.records if "its direction" in x.message] == [said]
    caplog.clear()
    save(tmp_path / "t.pt", *FLAGS, source_lang="en", target_lang="de")
    make(Ours, for_task=translation(), teacher=str(tmp_path / "t.pt"))
    assert "its direction" not in caplog.text


def test_a_teacher_of_another_direction_is_refused(tmp_path, monkeypatch, caplog):
    sentence = "translates from de to en, the student from en to de"
    save(tmp_path / "t.pt", *FLAGS, source_lang="de", target_lang="en")
    assert sentence in refusal(tmp_path / "t.pt")
    # fairseq saves no languages where its data's names tell them.
    (tmp_path / "train.de-en.en.idx").write_bytes(b"")
    save(tmp_path / "t.pt", *FLAGS, data=str(tmp_path))
    assert sentence in refusal(tmp_path / "t.pt")
    monkeypatch.chdir(tmp_path.parent)
    save(tmp_path / "t.pt", *FLAGS, data=tmp_path.name)  # a folder of that name may be any
    make(Ours, for_task=translation(), teacher=str(tmp_path / "t.pt"))
    assert "nothing tells its direction, which was not compared" in caplog.text
    manifest = {"data": {"sha256": {"train.de-en.en.idx": "0"}}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    assert sentence in refusal(tmp_path / "t.pt")


def test_nan_in_a_teachers_weights_is_refused_at_once(tmp_path):
    save(tmp_path / "t.pt", *FLAGS, change=lambda x: x.decoder.layers[0].fc1.bias.fill_(math.nan))
    assert "holds NaN in 'decoder.layers.0.fc1.bias'" in refusal(tmp_path / "t.pt")


def test_nan_in_a_teachers_output_is_refused(tmp_path):
    """Finite weights whose products are not."""
    save(tmp_path / "t.pt", *FLAGS, change=lambda x: x.encoder.layer_norm.weight.fill_(3e38))
    ours = make(Ours, for_task=translation(), teacher=str(tmp_path / "t.pt"))
    with pytest.raises(SystemExit, match="the teacher's output holds NaN or infinity") as ended:
        ours(build(STUDENT, *FLAGS).train(), sample())
    assert not isinstance(ended.value, Exception)  # after which fairseq saves crash.pt


# --- training ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_training_resumes_and_refuses_to_without_its_teacher(data_bin, trained, tmp_path):
    teacher = tmp_path / "teacher.pt"
    teacher.write_bytes((trained / "checkpoint_last.pt").read_bytes())
    flags = ["--criterion", "distilled_label_smoothed_cross_entropy", "--teacher", teacher]
    flags += ["--encoder-layers", "1", "--distill-temperature", "2"]
    out = train(data_bin, tmp_path / "student", *flags, "--max-update", "4").stdout
    assert '"train_kd_loss"' in out and '"valid_kd_loss"' not in out
    assert logged(out)[4][0] < logged(out)[1][0]
    state = torch.load(tmp_path / "student/checkpoint_last.pt", weights_only=True)
    assert not state["criterion"] and not any("teacher" in name for name in state["model"])
    moments = state["last_optimizer_state"]["state"].values()
    assert sum(x["exp_avg"].numel() for x in moments) == sum(
        p.numel()
        for name, p in state["model"].items()
        if p.dim()
        and "version" not in name
        and "_float_tensor" not in name
        and name not in ("decoder.embed_tokens.weight", "decoder.output_projection.weight")
    )
    out = train(data_bin, tmp_path / "student", *flags, "--max-update", "6").stdout
    assert set(logged(out)) == {5, 6}
    teacher.unlink()
    done = train(data_bin, tmp_path / "student", *flags, "--max-update", "8", check=False)
    assert done.returncode == 1 and "Traceback" not in done.stdout
    assert f"--teacher {teacher}: no such checkpoint" in done.stdout.splitlines()[-1]
    flags = ["--user-dir", USER_DIR, "--path", tmp_path / "student/checkpoint_last.pt", "--cpu"]
    flags += ["--model-overrides", "{'distill_weight': 0}", "--task", "translation"]
    flags += ["--max-tokens", "200"]
    assert "| loss " in run("fairseq-validate", data_bin, *flags).stdout
