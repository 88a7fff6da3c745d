"""What the authors' own code computed, in folders that `MACARON_REFERENCE` names.

Of its subfolders those are read whose name begins with `bert`: each has a dict.txt, and models in
folders with checkpoint.pt and expected.pt. By default it is tests/fixtures/reference, which holds a
part of such a folder, made from random weights.
"""

import json
import os
from copy import deepcopy
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from helpers.commands import apply, sentence_of
from helpers.paths import FIXTURES

from macaron_fairseq import UserError, cli, plugin
from macaron_fairseq.analysis import models, sentences
from macaron_fairseq.analysis.dynamics import measurement
from macaron_fairseq.compat import checkpoints
from macaron_fairseq.model import released_bert, same_network
from macaron_fairseq.plugin import allow_safe_globals
from macaron_fairseq.preflight import checks

pytestmark = pytest.mark.reference

ROOT = Path(os.environ.get("MACARON_REFERENCE") or FIXTURES / "reference")
MODELS = sorted(path.parent for path in ROOT.glob("bert*/*/expected.pt"))
PRETRAINED = [x for x in MODELS if "classifier" not in x.name]
CLASSIFIERS = [x for x in MODELS if x not in PRETRAINED]
UPDATES = [x for x in MODELS if (x / "expected_update.pt").is_file()]
NAMES = {"ids": lambda path: f"{path.parent.name}/{path.name}"}
HEAD, NEXT = "sentence_classification_head", released_bert.NEXT_SENTENCE


def test_bert_there_is_a_reference():
    assert MODELS, f"{ROOT} has no bert*/*/expected.pt"


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """Load a checkpoint of the authors' code as fairseq's commands do."""
    data = tmp_path_factory.mktemp("data")

    def load(path):
        words = "<mask> 1\n<cls> 1\n" + (path.parent.parent / "dict.txt").read_text()
        for folder in ("", "input0"):
            (data / folder).mkdir(exist_ok=True)
            (data / folder / "dict.txt").write_text(words)
        (data / "label").mkdir(exist_ok=True)
        (data / "label" / "dict.txt").write_text("0 1\n")
        overrides = {"data": str(data)}
        found, _, _ = checkpoint_utils.load_model_ensemble_and_task([str(path)], overrides)
        return found[0].eval()

    return load


@pytest.fixture(scope="module")
def loaded(load):
    """The model of a folder, which no test changes: what fairseq does around it takes long."""
    return cache(lambda folder: load(folder / "checkpoint.pt"))


def expected_of(folder):
    return torch.load(folder / "expected.pt")


def prefixes(expected):
    """Of a batch with padding, and of one without."""
    return [prefix for prefix in ("", "nopad_") if f"{prefix}src_tokens" in expected]


@pytest.mark.parametrize("folder", MODELS, **NAMES)
def test_bert_features(loaded, folder):
    expected = expected_of(folder)
    model = loaded(folder)
    assert sum(p.numel() for p in model.parameters()) == expected["num_parameters"]
    for prefix in prefixes(expected):
        tokens = expected[f"{prefix}src_tokens"]
        real = tokens.ne(1)
        inputs = {"src_tokens": tokens, "segment": expected[f"{prefix}segment"]}
        with torch.no_grad():
            features, extra = model(**inputs, features_only=True, return_all_hiddens=True)
        states = [x.transpose(0, 1) for x in (*extra["inner_states"], features.transpose(0, 1))]
        names = expected[f"{prefix}embeddings"], *expected[f"{prefix}layer_outputs"]
        wanted = *names, expected[f"{prefix}encoder_out_all"]
        for state, other in zip(states, wanted, strict=True):
            assert (state - other.transpose(0, 1))[real].abs().max() <= 1e-5


@pytest.mark.parametrize("folder", PRETRAINED, **NAMES)
def test_bert_hidden_tokens_and_next_sentence(loaded, folder):
    expected = expected_of(folder)
    model = loaded(folder)
    for prefix in prefixes(expected):
        inputs = {name: expected[f"{prefix}{name}"] for name in ("src_tokens", "segment")}
        with torch.no_grad():
            logits = model(**inputs, masked_tokens=expected[f"{prefix}output_mask"])[0]
            following = model(**inputs, classification_head_name=NEXT)[0]
        assert (logits - expected[f"{prefix}mlm_logits"]).abs().max() <= 1e-5
        log_p = logits.log_softmax(-1)
        assert (log_p - expected[f"{prefix}mlm_log_probs"]).abs().max() <= 1e-5
        assert (following[:, 0] - expected[f"{prefix}nsp_logits"]).abs().max() <= 1e-5


@pytest.mark.parametrize("folder", CLASSIFIERS, **NAMES)
def test_bert_classes(loaded, folder):
    expected = expected_of(folder)
    model = loaded(folder)
    with torch.no_grad():
        inputs = {name: expected[name] for name in ("src_tokens", "segment")}
        logits = model(**inputs, classification_head_name=HEAD)[0]
    assert (logits - expected["logits"]).abs().max() <= 1e-5


@pytest.mark.parametrize("folder", UPDATES, **NAMES)
def test_bert_gradients(loaded, folder):
    """Of the mean loss of masked tokens and that of the next sentence, without dropout."""
    expected, update = expected_of(folder), torch.load(folder / "expected_update.pt")
    model = loaded(folder)
    model.zero_grad()
    inputs = {name: expected[name] for name in ("src_tokens", "segment")}
    hidden = expected["output_mask"]
    logits = model(**inputs, masked_tokens=hidden)[0]
    following = model(**inputs, classification_head_name=NEXT)[0][:, 0]
    loss = torch.nn.functional.cross_entropy(logits, expected["target"][hidden])
    loss += torch.nn.functional.binary_cross_entropy_with_logits(
        following, expected["nsp_label"].float()
    )
    assert abs(loss.item() - float(update["loss_per_sample_unit"])) <= 1e-5
    loss.backward()
    wanted = {x.removeprefix("grad."): y for x, y in update.items() if x.startswith("grad.")}
    wanted["encoder.embed_tokens.weight"] = wanted["embed_out"]
    model.upgrade_state_dict(wanted)
    for name, parameter in model.named_parameters():
        assert (parameter.grad - wanted[name]).abs().max() <= 1e-5, name


def changed(folder, change):
    """What a checkpoint holds, with other parameters."""
    allow_safe_globals()
    state = torch.load(folder / "checkpoint.pt")
    change(state["model"])
    return state


def stored(state, folder, tmp_path):
    """A file of it."""
    copy = tmp_path / "changed" / folder.name / "checkpoint.pt"
    copy.parent.mkdir(parents=True, exist_ok=True)
    words = (folder.parent / "dict.txt").read_bytes()
    (copy.parent.parent / "dict.txt").write_bytes(words)
    torch.save(state, copy, _use_new_zipfile_serialization=False)
    return copy


@pytest.mark.parametrize("folder", MODELS, **NAMES)
def test_bert_file_that_lacks_something_or_has_more_is_refused(load, loaded, folder, tmp_path):
    def lose(model):
        del model["encoder.layers.0.fc1.bias"]

    def gain(model):
        model["encoder.layers.0.fc3.bias"] = torch.zeros(3)

    def widen(model):
        model["encoder.layers.0.fc1.bias"] = torch.zeros(3)

    with pytest.raises(UserError, match=r"lacks 'encoder\S+fc1\.bias'"):
        load(stored(changed(folder, lose), folder, tmp_path))
    with pytest.raises(UserError, match=r"has 'encoder\S+fc3\.bias', which the model does not"):
        loaded(folder).load_state_dict(changed(folder, gain)["model"])
    with pytest.raises(UserError, match=r"'encoder\S+fc1\.bias' is \(3,\) in the checkpoint and"):
        loaded(folder).load_state_dict(changed(folder, widen)["model"])


@pytest.mark.parametrize("folder", MODELS, **NAMES)
def test_bert_file_with_other_heads_than_their_code_saves_is_refused(loaded, folder):
    model, own = loaded(folder), changed(folder, dict)["model"]
    kind = "pre-trained model" if folder in PRETRAINED else "classifier"
    of_head = [name for name in own if not name.startswith("encoder.")]
    losses = [{name} for name in of_head]
    losses += [{name for name in of_head if name.startswith("classifier.")}]
    for lost in losses:
        rest = {name: tensor for name, tensor in own.items() if name not in lost}
        with pytest.raises(UserError, match=f"lacks '.*, which each {kind} of the authors"):
            model.load_state_dict(rest)
    names = ["classification_heads.foo.out_proj.weight", f"classification_heads.{HEAD}.dense.bias"]
    if kind == "classifier":
        names += ["mid_layer.0.weight", "mid_layer.2.bias"]
    for name in names:
        with pytest.raises(UserError, match=f"has '{name}', which no {kind} of the authors' code"):
            model.load_state_dict({**own, name: torch.zeros(3, 3)})


@pytest.mark.parametrize("folder", CLASSIFIERS, **NAMES)
def test_bert_classifier_without_its_head_is_refused_under_todays_names_too(loaded, folder):
    model = loaded(folder)
    saved = model.state_dict()
    names = [name for name in saved if name.startswith("classification_heads.")]
    for lost in ([names[0]], [names[1]], names):
        rest = {name: tensor for name, tensor in saved.items() if name not in lost}
        with pytest.raises(UserError, match=f"the checkpoint lacks '{lost[0]}'"):
            model.load_state_dict(rest)


def encoder_of(folder):
    """The shapes of an encoder's parameters."""
    own = changed(folder, dict)["model"]
    return {name: x.shape for name, x in own.items() if name.startswith("encoder.")}


# Each classifier with the pre-trained models that it can begin from.
BEGINNINGS = [
    (classifier, pretrained)
    for classifier in MODELS
    for pretrained in PRETRAINED
    if "classifier" in classifier.name and encoder_of(classifier) == encoder_of(pretrained)
]


def command(folder, data, path, *changed):
    """fairseq-train from a checkpoint, for the model and the dictionary of a folder."""
    args = torch.load(folder / "checkpoint.pt")["args"]
    lines = "<mask> 1\n<cls> 1\n" + (folder.parent / "dict.txt").read_text()
    for place, text in {"": lines, "input0": lines, "label": "0 1\n"}.items():
        (data / place).mkdir(parents=True, exist_ok=True)
        (data / place / "dict.txt").write_text(text)
    task = "sentence_prediction" if "classifier" in folder.name else "masked_lm"
    flags = {"arch": args.arch, "task": task, "criterion": task}
    flags["max-positions"] = args.max_positions
    if task == "masked_lm":
        flags["tokens-per-sample"] = args.max_positions
    else:
        flags["num-classes"] = args.num_classes
    for name in ("layers", "embed-dim", "attention-heads", "ffn-embed-dim"):
        flags[f"encoder-{name}"] = vars(args)[f"encoder_{name}".replace("-", "_")]
    words = [f"--{name}={value}" for name, value in flags.items()]
    learned = ["--encoder-learned-pos"] if args.encoder_learned_pos else []
    return ["fairseq-train", str(data), "--cpu", "--restore-file", str(path), *words, *learned]


@pytest.mark.slow
@pytest.mark.parametrize("folder", CLASSIFIERS, **NAMES)
def test_bert_commands_take_a_classifier(folder, tmp_path, capsys):
    """They need no head: what a class is, only the task knows."""
    data = Path(command(folder, tmp_path / "data", folder)[1])
    args = torch.load(folder / "checkpoint.pt")["args"]
    words = (folder.parent / "dict.txt").read_text().split()[0:20:2]
    (tmp_path / "text").write_text(" ".join(words) + "\n" + " ".join(words[::-1]) + "\n")
    path, out = ["--path", str(folder / "checkpoint.pt")], tmp_path / "out"
    cli.main(["describe", *path])
    size = f"encoder, {args.encoder_layers} layers of width {args.encoder_embed_dim}"
    assert size in capsys.readouterr().out
    common = [*path, "--data", str(data), str(tmp_path / "text")]
    cli.main(["order", *common, "--scheme", "strang-marchuk", "--substep", "euler", "-o", str(out)])
    (whole, *_) = json.loads((out / "order.json").read_text())["results"]
    assert whole["side"] == "encoder"
    (model,), opened = models.load([folder / "checkpoint.pt"], data)
    assert not model.model.classification_heads
    sample = sentences.read(opened, tmp_path / "text")
    settings = measurement.Settings(jacobian_sentences=1, shown_sentences=1)
    (side,) = measurement.compare([model], sample, settings)["models"][0]["sides"]
    assert side["side"] == "encoder"
    with pytest.raises(UserError, match="has no head for masked tokens: use --task sentence_pred"):
        model.model(torch.tensor([[5, 7, 2]]))


@pytest.mark.parametrize("folder", CLASSIFIERS, **NAMES)
def test_bert_hub_interface_takes_the_heads_along(folder, tmp_path):
    """As with fairseq's RoBERTa, whichever task the file names."""
    data = command(folder, tmp_path, folder)[1]
    hub = plugin.MODELS["released_bert"].from_pretrained(
        str(folder), "checkpoint.pt", data, task="masked_lm"
    )
    own = torch.load(folder / "checkpoint.pt")["model"]
    assert torch.equal(hub.model.classification_heads[HEAD].out_proj.bias, own["classifier.bias"])


@pytest.mark.parametrize("folder", CLASSIFIERS, **NAMES)
def test_bert_hub_interface_reads_text_as_the_authors_code_does(folder, tmp_path):
    """A text of words, for which no BPE is needed: <cls> A </s> B </s>, and the code's logits."""
    data = command(folder, tmp_path, folder)[1]
    hub = plugin.MODELS["released_bert"].from_pretrained(str(folder), "checkpoint.pt", data).eval()
    hub.bpe = SimpleNamespace(encode=str, decode=str)
    words, expected = hub.task.source_dictionary, expected_of(folder)
    for tokens, logits in zip(expected["src_tokens"], expected["logits"], strict=True):
        tokens = tokens[tokens != words.pad()]
        inner = " ".join(words[x] for x in tokens[1:])
        sentences = [x.strip() for x in inner.split("</s>")[:-1]]
        if "" in sentences:
            continue
        found = hub.encode(*sentences)
        assert torch.equal(found, tokens)
        found_logits = hub.predict(HEAD, found, return_logits=True)[0]
        assert (found_logits - logits).abs().max() <= 1e-5
        assert hub.decode(found) == (sentences if len(sentences) > 1 else sentences[0])
    with pytest.raises(UserError, match=r"this model's begin with <cls>: give model\.model"):
        hub.fill_mask("a <mask>")


@pytest.mark.slow
@pytest.mark.parametrize("folder", MODELS, **NAMES)
def test_bert_by_its_plain_name_and_macaron(folder, load, tmp_path):
    """As their code saves it if trained with a plain architecture and --macaron."""
    state = torch.load(folder / "checkpoint.pt", weights_only=False)  # with their own words
    args = state["args"]
    args.macaron, args.arch = args.arch.endswith("_macaron"), args.arch.removesuffix("_macaron")
    path = tmp_path / folder.parent.name / folder.name / "checkpoint.pt"
    path.parent.mkdir(parents=True)
    torch.save(state, path)
    (path.parent.parent / "dict.txt").write_bytes((folder.parent / "dict.txt").read_bytes())
    found, expected = load(path), load(folder / "checkpoint.pt")
    tokens = expected_of(folder)["src_tokens"]
    with torch.no_grad():
        features = [model(tokens, features_only=True)[0] for model in (found, expected)]
    assert torch.equal(*features)


@pytest.mark.parametrize("folder", MODELS, **NAMES)
def test_bert_arguments_say_what_network_it_is(folder, load, tmp_path):
    """Training that starts from it is compared with them; --act-fn was a flag of their code."""
    state = torch.load(folder / "checkpoint.pt", weights_only=False)
    state["args"].act_fn = "relu"
    path = stored(state, folder, tmp_path)
    found = checkpoints.model_arguments(checkpoints.load(path))
    scheme = "strang-marchuk" if "macaron" in found["arch"] else "lie-trotter"
    given = {"arch": found["arch"], "macaron_scheme": scheme, "activation_fn": "relu"}
    assert not same_network.other_network(found, given)
    for name, other in (("macaron_scheme", "parallel"), ("activation_fn", "gelu")):
        assert f"and the model would have {other}" in same_network.other_network(
            found, {**given, name: other}
        )
    activations = {layer.activation_fn for layer in load(path).encoder.sentence_encoder.layers}
    assert activations == {torch.nn.functional.relu}


@pytest.mark.slow
@pytest.mark.parametrize("folder", MODELS, **NAMES)
def test_bert_training_does_not_start_from_a_file_that_does_not_fit(folder, tmp_path):
    """fairseq would answer with two tracebacks."""
    whole, data = folder / "checkpoint.pt", tmp_path / "data"
    words = command(folder, data, whole)
    apply(checks.check, words)
    apply(checks.check, [x.replace("--restore-file", "--finetune-from-model") for x in words])
    apply(checks.check, [*words, "--nonsense"])  # which fairseq will say

    def refusal(*changed):
        return sentence_of(lambda: apply(checks.check, [*words, *changed]))

    lost = stored(changed(folder, lambda x: x.pop("encoder.layers.0.fc1.bias")), folder, tmp_path)
    sentence = refusal("--restore-file", str(lost))
    assert sentence.startswith(f"{lost}: the checkpoint lacks 'encoder.sentence_encoder.layers.0.f")
    lost = stored(changed(folder, lambda x: x.pop("classifier.bias")), folder, tmp_path)
    assert "lacks 'classifier.bias', which each" in refusal("--restore-file", str(lost))
    arch = torch.load(whole)["args"].arch
    if arch.endswith("_macaron"):
        sentence = refusal("--arch", arch.removesuffix("_macaron"))
        assert ".earlier.0.network.fc1.weight' and '" in sentence and "a plain model" in sentence
    else:
        sentence = refusal("--arch", f"{arch}_macaron")
        assert "lacks 'encoder.sentence_encoder.layers.0.earlier" in sentence
    if folder not in PRETRAINED:
        classes = len(expected_of(folder)["logits"][0])
        sentence = refusal(f"--num-classes={classes + 1}")
        assert f"has {classes} classes and the task {classes + 1}: give --num-cl" in sentence
        # Under another name it is another head.
        apply(
            checks.check,
            [*words, f"--num-classes={classes + 1}", "--classification-head-name", "x"],
        )
    with (data / "dict.txt").open("a") as file:
        print("one-more", 1, file=file)
    (data / "input0" / "dict.txt").write_bytes((data / "dict.txt").read_bytes())
    assert "with its special symbols: use the dict.txt that the model was" in refusal()


@pytest.mark.parametrize(("folder", "beginning"), BEGINNINGS[:1], **NAMES)
def test_bert_pretrained_file_begins_a_classifier(loaded, folder, beginning, caplog):
    model = deepcopy(loaded(folder))
    head = model.classification_heads[HEAD].out_proj.weight.clone()
    pretrained = changed(beginning, dict)["model"]
    model.load_state_dict({**pretrained})
    assert f"lacks 'classification_heads.{HEAD}.out_proj.weight', which begins" in caplog.text
    assert torch.equal(model.classification_heads[HEAD].out_proj.weight, head)
    embedding = model.encoder.sentence_encoder.embed_tokens.weight
    assert torch.equal(embedding, pretrained["encoder.embed_tokens.weight"])
    del pretrained["mid_layer.2.bias"]
    with pytest.raises(UserError, match=r"lacks 'mid_layer\.2\.bias', which each pre-trained"):
        model.load_state_dict(pretrained)


@pytest.mark.parametrize("folder", MODELS, **NAMES)
def test_bert_sentences_are_told_apart_by_their_ends(folder):
    expected = expected_of(folder)
    tokens, segment = expected["src_tokens"], expected["segment"]
    found = released_bert.segments(tokens, released_bert.dictionary(folder.parent / "dict.txt"))
    assert found.shape == segment.shape
    # A random token in place of a hidden one may be the end of a sentence.
    sentences_in = 1 + segment.eq(released_bert.SECOND).any(1).long()
    kept = tokens.eq(2).sum(1) == sentences_in
    assert kept.any()
    assert torch.equal(found[kept], segment[kept])


def test_bert_a_single_sentence_is_the_first():
    """Padding is of the first, too; in a pair the second begins after the end of the first."""
    words = Dictionary()
    tokens = torch.tensor([[5, 7, 8, 2, 1, 1], [5, 7, 2, 8, 2, 1], [5, 2, 9, 9, 9, 2]])
    wanted = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 1], [1, 1, 0, 0, 0, 0]])
    assert torch.equal(released_bert.segments(tokens, words), wanted)


def plain_forward(own, args, tokens, segment):
    """Features and logits of all tokens, by the authors' formulas and their files' names."""
    width, heads = args.encoder_embed_dim, args.encoder_attention_heads
    real = tokens.ne(1)

    def norm(x):
        return (x - x.mean(-1, True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()

    def gelu(x):
        return x * 0.5 * (1 + torch.erf(x / 2**0.5))

    def ffn(x, layer, name, activation):
        w = {y: own[f"encoder.layers.{layer}.{name}{y}"] for y in FFN}
        y = activation(x @ w["fc1.weight"].T + w["fc1.bias"])
        return y @ w["fc2.weight"].T + w["fc2.bias"]

    def attend(x, layer):
        name = f"encoder.layers.{layer}.self_attn"
        qkv = x @ own[f"{name}.in_proj_weight"].T + own[f"{name}.in_proj_bias"]
        q, k, v = (y.unflatten(-1, (heads, -1)).transpose(1, 2) for y in qkv.chunk(3, -1))
        scores = q @ k.transpose(2, 3) / (width / heads) ** 0.5
        scores = scores.masked_fill(~real[:, None, None], -torch.inf)
        y = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        return y @ own[f"{name}.out_proj.weight"].T + own[f"{name}.out_proj.bias"]

    numbers = torch.where(real, torch.arange(tokens.shape[1]) + 2, 1)
    if args.encoder_learned_pos:
        positions = own["encoder.embed_positions.weight"][numbers]
    else:
        steps = torch.arange(width // 2) / (width // 2 - 1)
        angles = numbers[..., None] * 10000.0 ** -steps.double()
        positions = torch.cat([angles.sin(), angles.cos()], -1)
    x = own["encoder.embed_tokens.weight"][tokens] * width**0.5
    x = x + positions + own["encoder.embed_segment.weight"][segment]
    is_macaron = "encoder.layers.0.macaron_fc1.weight" in own
    size = 0.5 if is_macaron else 1
    for layer in range(args.encoder_layers):
        if is_macaron:
            x = x + size * ffn(norm(x), layer, "macaron_", torch.relu)
        x = x + attend(norm(x), layer)
        x = x + size * ffn(norm(x), layer, "", gelu)
    features = norm(x)
    y = gelu(features @ own["mid_layer.0.weight"].T + own["mid_layer.0.bias"])
    y = norm(y) * own["mid_layer.2.weight"] + own["mid_layer.2.bias"]
    return features, y @ own["embed_out"].T


FFN = [f"fc{i}.{name}" for i in (1, 2) for name in ("weight", "bias")]


@pytest.mark.parametrize("is_tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("is_learned", [True, False], ids=["learned", "sinusoidal"])
@pytest.mark.parametrize("folder", PRETRAINED, **NAMES)
def test_bert_with_learned_positions_and_an_output_of_its_own(
    load, folder, is_learned, is_tied, tmp_path
):
    """Against formulas, which are held against what the authors' code computed where it did."""
    expected, generator = expected_of(folder), torch.Generator().manual_seed(1)
    tokens, segment = expected["src_tokens"], expected["segment"]
    state = changed(folder, lambda model: None)
    own, args = state["model"], state["args"]
    was = args.encoder_learned_pos, args.share_all_embeddings
    if is_learned and not was[0]:
        del own["encoder.embed_positions._float_tensor"]
        shape = args.max_positions + 2, args.encoder_embed_dim
        own["encoder.embed_positions.weight"] = torch.randn(shape, generator=generator)
    if not is_tied and was[1]:
        shape = own["embed_out"].shape
        own["embed_out"] = torch.randn(shape, generator=generator) / shape[1] ** 0.5
    args.encoder_learned_pos = is_learned or was[0]
    args.share_all_embeddings = is_tied and was[1]
    doubled = {name: tensor.double() for name, tensor in own.items()}
    features, logits = plain_forward(doubled, args, tokens, segment)
    real, hidden = tokens.ne(1), expected["output_mask"]
    if was == (args.encoder_learned_pos, args.share_all_embeddings):
        wanted = expected["encoder_out_all"].transpose(0, 1)
        assert (features - wanted)[real].abs().max() <= 1e-5
        assert (logits[hidden] - expected["mlm_logits"]).abs().max() <= 1e-5
    model = load(stored(state, folder, tmp_path))
    inner = model.encoder.sentence_encoder
    is_one = model.encoder.lm_head.weight is inner.embed_tokens.weight
    assert is_one is args.share_all_embeddings
    with torch.no_grad():
        found = model(tokens, segment=segment, features_only=True)[0]
        assert (found - features)[real].abs().max() <= 1e-5
        found = model(tokens, segment=segment)[0]
        assert (found - logits)[real].abs().max() <= 1e-5
        found = model(tokens, segment=segment, masked_tokens=hidden)[0]
        assert (found - logits[hidden]).abs().max() <= 1e-5


@pytest.mark.parametrize("folder", PRETRAINED[:1], **NAMES)
def test_bert_dictionary(folder):
    words = released_bert.dictionary(folder.parent / "dict.txt")
    assert [words.index(x) for x in ("<pad>", "</s>", "<unk>", "<mask>", "<cls>")] == [*range(1, 6)]


@pytest.mark.parametrize("folder", CLASSIFIERS, **NAMES)
def test_bert_head_of_another_name_is_left_out_and_a_new_one_named(load, folder, caplog):
    """As in fairseq's RoBERTa, so that a refused head can be trained under another name."""
    model = load(folder / "checkpoint.pt")
    saved = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    del model.classification_heads[HEAD]
    model.register_classification_head("another", 7)
    first = model.classification_heads["another"].out_proj.weight.clone()
    model.load_state_dict({**saved})
    assert torch.equal(model.classification_heads["another"].out_proj.weight, first)
    assert f"head '{HEAD}' is left out" in caplog.text
    assert "lacks 'classification_heads.another.out_proj.weight', which begins" in caplog.text
    for name, tensor in model.state_dict().items():
        assert ".another." in name or torch.equal(tensor, saved[name]), name
