"""Checkpoints in the format of the authors' released code load as they are."""

from argparse import Namespace

import pytest
import torch
from fairseq import checkpoint_utils
from helpers.paths import FIXTURES, USER_DIR
from helpers.processes import run

from macaron_fairseq import PassUserDir
from macaron_fairseq.compat import checkpoints
from macaron_fairseq.model import averaging, same_network
from macaron_fairseq.model.released_bert import SentenceHead

RELEASED = FIXTURES / "released"


def load(path, **overrides):
    """As fairseq-generate does."""
    overrides["data"] = str(path.parent)
    models, _, _ = checkpoint_utils.load_model_ensemble_and_task([str(path)], overrides)
    return models[0].eval()


def with_name(arch, folder):
    """A file with their own words but for the architecture's name."""
    state = torch.load(RELEASED / "checkpoint.pt", weights_only=False)
    state["args"].arch, state["args"].macaron = arch, True
    for name in ("dict.de.txt", "dict.en.txt"):
        (folder / name).write_bytes((RELEASED / name).read_bytes())
    torch.save(state, folder / "checkpoint.pt", _use_new_zipfile_serialization=False)
    return folder / "checkpoint.pt"


@pytest.fixture(scope="module")
def by_flag(tmp_path_factory):
    """As the authors' code saves it if trained with a plain architecture and `--macaron`."""
    return with_name("transformer_iwslt_de_en", tmp_path_factory.mktemp("by flag"))


@pytest.fixture(scope="module")
def by_mean(tmp_path_factory):
    """As `macaron-fairseq average` wrote one of those when reading replaced the name alone."""
    return with_name("macaron_transformer", tmp_path_factory.mktemp("by mean"))


@pytest.fixture(scope="module", params=["by name", "by flag", "by mean"])
def checkpoint(request):
    if request.param == "by name":
        return RELEASED / "checkpoint.pt"
    return request.getfixturevalue(request.param.replace(" ", "_"))


@pytest.fixture(scope="module")
def model(checkpoint):
    """Its model: what fairseq does around it takes long."""
    return load(checkpoint)


def test_it_computes_what_the_formulas_say(model):
    expected = torch.load(RELEASED / "expected.pt")
    source, previous = expected["source"], expected["previous"]
    with torch.no_grad():
        encoder_out = model.encoder(source, source.ne(1).sum(1))["encoder_out"][0]
        logits, _ = model(source, source.ne(1).sum(1), previous)
    real = source.ne(1)
    difference = encoder_out.transpose(0, 1) - expected["encoder_out"]
    assert difference[real].abs().max() <= 1e-5
    assert (logits - expected["logits"]).abs().max() <= 1e-5


def test_another_scheme_may_be_asked_for(checkpoint):
    """By --model-overrides; its steps are others of the same networks."""
    model = load(checkpoint, macaron_scheme="strang-symmetric")
    assert [step.size for step in model.decoder.layers[0].steps] == [0.5, 0.5, 1, 0.5, 0.5]


def test_its_dropouts_are_those_it_was_trained_with(model, checkpoint, tmp_path):
    """`relu_dropout` is what fairseq until 0.8 called `activation_dropout`."""
    assert model.args.activation_dropout == 0.1  # as is the default
    state = torch.load(checkpoint, weights_only=False)  # with their own words
    state["args"].relu_dropout = 0.25
    for name in ("dict.de.txt", "dict.en.txt"):
        (tmp_path / name).write_bytes((RELEASED / name).read_bytes())
    torch.save(state, tmp_path / "other.pt")
    other = load(tmp_path / "other.pt")
    layers = [*other.encoder.layers, *other.decoder.layers]
    assert {layer.activation_dropout_module.p for layer in layers} == {0.25}
    assert load(tmp_path / "other.pt", activation_dropout=0.5).args.activation_dropout == 0.5


def test_whoever_reads_its_arguments_knows_its_network(checkpoint, tmp_path):
    """Of a file, and of its mean, which holds what reading said."""
    averaging.save(averaging.average([checkpoint]), tmp_path / "mean.pt")
    for path in (checkpoint, tmp_path / "mean.pt"):
        found = checkpoints.model_arguments(checkpoints.load(path))
        assert found["macaron_scheme"] == "strang-marchuk"
        assert found["decoder_first_ffn_embed_dim"] == found["encoder_ffn_embed_dim"] == 20
        for scheme, is_other in (("strang-marchuk", False), ("strang-symmetric", True)):
            given = {"arch": found["arch"], "macaron_scheme": scheme}
            assert bool(same_network.other_network(found, given)) == is_other


def test_it_has_a_mean_with_what_goes_on_from_it(tmp_path):
    """fairseq-train saves today's arguments."""
    ours = checkpoints.load(RELEASED / "checkpoint.pt")
    said = PassUserDir(**{**vars(ours["args"]), "macaron_scheme": "strang-marchuk"})
    torch.save({**ours, "args": None, "cfg": {"model": said}}, tmp_path / "ours.pt")
    mean = averaging.average([RELEASED / "checkpoint.pt", tmp_path / "ours.pt"])
    assert all(torch.equal(mean["model"][x], tensor) for x, tensor in ours["model"].items())


def test_plain_models_of_old_stay_fairseqs(tmp_path):
    args = Namespace(arch="transformer_iwslt_de_en", macaron=False, relu_dropout=0.2)
    torch.save({"args": args, "model": {}}, tmp_path / "plain.pt")
    loaded = torch.load(tmp_path / "plain.pt")["args"]
    assert type(loaded) is Namespace and loaded.arch == "transformer_iwslt_de_en"
    assert loaded.activation_dropout == 0.2
    torch.save({"args": loaded, "model": {}}, tmp_path / "again.pt")
    assert torch.load(tmp_path / "again.pt", weights_only=False)["args"] == loaded


@pytest.mark.slow
def test_fairseqs_commands_take_it(by_flag, tmp_path):
    (tmp_path / "input").write_text("w3 w4 w5\nw6\n")
    done = run(
        "fairseq-interactive",
        *(RELEASED, "-s", "de", "-t", "en", "--user-dir", USER_DIR, "--path", by_flag, "--cpu"),
        *("--input", tmp_path / "input", "--max-len-b", "5"),
    )
    assert sorted(x[:4] for x in done.stdout.splitlines() if x[:2] == "H-") == ["H-0\t", "H-1\t"]


def test_a_head_of_the_authors_bert_drops_features_in_training():
    head = SentenceHead(8, 3, 1.0).train()
    assert torch.equal(head(torch.ones(2, 4, 8)), head.out_proj.bias.expand(2, 3))
    assert not torch.equal(head.eval()(torch.ones(2, 4, 8)), head.out_proj.bias.expand(2, 3))
