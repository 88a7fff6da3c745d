"""The task's beam search among candidates against fairseq's among all types."""

from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.dataclass.configs import GenerationConfig
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.models.transformer import TransformerDecoderBase
from fairseq.search import BeamSearch
from fairseq.sequence_generator import (
    EnsembleModel,
    SequenceGenerator,
    SequenceGeneratorWithAlignment,
)
from fairseq.sequence_scorer import SequenceScorer
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from fairseq.token_generation_constraints import pack_constraints
from helpers.paths import USER_DIR
from helpers.processes import run
from helpers.run_folders import print_generated
from helpers.small import NO_DROPOUT, SMALL, batch, build, dictionary, task
from helpers.toy_corpus import hypotheses
from torch import nn

from macaron_fairseq import MacaronTransformerModel
from macaron_fairseq.evaluation.scores import failures
from macaron_fairseq.fast.beam_search import FEW, CandidateGenerator, CandidateSearch, top_k
from macaron_fairseq.fast.task import MacaronTranslationTask

WORDS = dictionary(900)  # so many that they are searched in groups


def model(arch="macaron_transformer", seed=1, words=WORDS):
    """A model with preferences, ends of sentences among them, which random ones have not."""
    built = build(arch, *SMALL, "--share-all-embeddings", for_task=task(words), seed=seed)
    with torch.no_grad():
        built.decoder.output_projection.weight.mul_(3)
        built.decoder.output_projection.weight[2].mul_(1.2)
    return built


def sample_of(sentences, words=WORDS):
    sizes = ((9, 4), (5, 3), (7, 4), (3, 3), (6, 3))[:sentences]
    source, lengths, previous = batch(sizes=sizes, types=len(words))
    inputs = {"src_tokens": source, "src_lengths": lengths, "prev_output_tokens": previous}
    return {"id": torch.arange(len(source)), "net_input": inputs, "target": previous}


def generate(
    kind,
    ensemble,
    words=WORDS,
    prefix=False,
    constrained=False,
    extra=None,
    sentences=4,
    **options,
):
    """All hypotheses of a task of that kind, and the generator that it built."""
    the_task = kind(TranslationConfig(), words, words)
    options = GenerationConfig(max_len_b=12, **options)
    generator = the_task.build_generator(ensemble, options, **(extra or {}))
    sample = sample_of(sentences, words)
    torch.manual_seed(3)
    tokens = sample["target"][:, 1:] if prefix else None
    constraints = None
    if constrained:
        constraints = pack_constraints([[torch.tensor([7, 9])], [torch.tensor([5])], [], []])
    found = the_task.inference_step(generator, ensemble, sample, tokens, constraints)
    return found, generator


def assert_same(ensemble, **options):
    ours, generator = generate(MacaronTranslationTask, ensemble, **options)
    theirs, _ = generate(TranslationTask, ensemble, **options)
    for one, other in zip(ours, theirs, strict=True):
        assert [x["tokens"].tolist() for x in one] == [x["tokens"].tolist() for x in other]
        for mine, its in zip(one, other, strict=True):
            for name in ("score", "positional_scores", "attention"):
                assert torch.allclose(mine[name], its[name], atol=1e-5)
    return generator


@pytest.mark.parametrize("arch", ["macaron_transformer", "transformer"])
@pytest.mark.parametrize(
    "options",
    [
        {"beam": 1},
        {"beam": 5},
        {"beam": 5, "nbest": 5, "lenpen": 0.3, "temperature": 1.7},
        {"beam": 4, "unkpen": -5.0},
        {"beam": 4, "unkpen": 5.0, "min_len": 10},
        {"beam": 3, "unnormalized": True},
        {"beam": 40},
    ],
    ids=str,
)
def test_plain_beam_search_finds_what_fairseqs_does(options, arch):
    generator = assert_same([model(arch)], **options)
    assert isinstance(generator.search, CandidateSearch)
    with torch.no_grad():
        assert generator.model.projects_here()  # and not fairseq's way in disguise


@pytest.mark.parametrize("sentences", [4, 5])
def test_barts_whose_encoder_states_are_kept_once_search_as_in_fairseq(sentences):
    """fairseq's generator makes BART keep them once for all hypotheses of a sentence."""
    flags = [*SMALL, "--max-source-positions", "64", "--max-target-positions", "64"]
    bart = build("bart_base", *flags, for_task=task(WORDS), seed=1)
    assert_same([bart], beam=5, sentences=sentences)


def test_weights_may_change_between_two_batches(onednn):
    """As in fairseq-train with --eval-bleu, which has one generator."""
    searched = model()
    generate(MacaronTranslationTask, [searched], beam=3)
    results, generator = [], MacaronTranslationTask(TranslationConfig(), WORDS, WORDS)
    built = generator.build_generator([searched], GenerationConfig(max_len_b=12, beam=3))
    for _ in range(2):
        results.append(generator.inference_step(built, [searched], sample_of(4)))
        with torch.no_grad():
            for parameter in searched.parameters():
                parameter.data.mul_(1.1)  # which leaves its version as it was
    expected, _ = generate(TranslationTask, [searched], beam=3)
    found = generator.inference_step(built, [searched], sample_of(4))
    assert [x[0]["tokens"].tolist() for x in found] == [x[0]["tokens"].tolist() for x in expected]
    assert torch.allclose(found[0][0]["score"], expected[0][0]["score"], atol=1e-5)
    assert not torch.allclose(found[0][0]["score"], results[0][0][0]["score"], atol=1e-3)
    blocks = [x for x, weight, _ in onednn if weight.is_mkldnn]
    assert blocks and all(len(x) % 8 == 0 for x in blocks)  # few numbers of rows


def test_an_ensemble_of_a_users_own_kind_is_asked():
    class Without(EnsembleModel):
        """Without types of odd numbers, but for the end."""

        def forward_decoder(self, *args, **kwargs):
            log_p, attention = super().forward_decoder(*args, **kwargs)
            log_p[:, 3::2] = -torch.inf
            return log_p, attention

    searched, options = model(), {"beam_size": 3, "max_len_b": 12}
    sample = sample_of(4)
    ours, stock = (
        kind(Without([searched]), WORDS, **options).generate([searched], sample)
        for kind in (CandidateGenerator, SequenceGenerator)
    )
    for one, other in zip(ours, stock, strict=True):
        assert [x["tokens"].tolist() for x in one] == [x["tokens"].tolist() for x in other]
        assert all(token % 2 == 0 for x in one for token in x["tokens"].tolist())


def test_dropout_while_searching_is_fairseqs():
    """Each hypothesis draws its own, from the first token on."""
    searched = build(
        "macaron_transformer", *SMALL, "--dropout", "0.3", for_task=task(WORDS), seed=1
    )
    for module in searched.modules():
        if hasattr(module, "apply_during_inference"):
            module.apply_during_inference = True
    assert_same([searched], beam=3)


def test_ensembles_of_several_kinds():
    generator = assert_same([model(), model("transformer", seed=2), model(seed=3)], beam=4)
    assert isinstance(generator.search, CandidateSearch)


@pytest.mark.parametrize(
    ("arch", "layers", "projection", "sentences"),
    # An LSTM takes the longest sentence first. The other's source is as long as its batch is wide.
    [("lstm", 1, "fc_out", 2), ("fconv", "[(16, 3)] * 2", "fc3", 3)],
)
def test_models_that_are_no_transformers_search_as_in_fairseq(arch, layers, projection, sentences):
    """What their encoders return has other forms."""
    torch.manual_seed(1)
    args = Namespace(encoder_embed_dim=16, decoder_embed_dim=16, decoder_out_embed_dim=16)
    args.encoder_hidden_size = args.decoder_hidden_size = 16
    args.encoder_layers = args.decoder_layers = layers
    args.max_source_positions = args.max_target_positions = 64
    args.criterion = "cross_entropy"
    ARCH_CONFIG_REGISTRY[arch](args)
    other = ARCH_MODEL_REGISTRY[arch].build_model(args, task(WORDS)).eval()
    with torch.no_grad():
        for weights in getattr(other.decoder, projection).parameters():
            weights.mul_(30)  # with preferences, which weights as they start have not
    assert_same([other], beam=3, sentences=sentences)


def test_the_longest_translation_ends():
    """At the maximum only the end is left, which is always a candidate."""
    endless = model()
    with torch.no_grad():
        endless.decoder.output_projection.weight[2] = 0
        endless.decoder.output_projection.weight[2, 0] = -50
    assert_same([endless], beam=3)


@pytest.mark.parametrize("kind", [TranslationTask, MacaronTranslationTask])
@pytest.mark.parametrize(("a", "b"), [(0, 7), (1.5, 2), (0.7, 3)])
def test_what_fairseq_cuts_off_is_counted(tmp_path, kind, a, b):
    """Of a model that never ends by itself, and of one that ends at once."""
    words = dictionary(60)
    the_task = kind(TranslationConfig(), words, words)
    options = GenerationConfig(max_len_a=a, max_len_b=b, beam=2)
    decoding = f"the best checkpoint, --max-len-a {a} --max-len-b {b}"
    for end, expected in ((-50.0, [0, 1, 2, 3]), (50.0, [])):
        endless = build(
            "macaron_transformer", *SMALL, "--share-all-embeddings", for_task=task(words)
        )
        with torch.no_grad():  # the last LayerNorm gives every state a first entry of one
            endless.decoder.layer_norm.weight[0], endless.decoder.layer_norm.bias[0] = 0, 1
            endless.decoder.output_projection.weight[words.eos_index] = 0
            endless.decoder.output_projection.weight[words.eos_index, 0] = end
        generator = the_task.build_generator([endless], options)
        source, lengths, _ = batch(types=len(words))
        generated = {}
        for rows in ([0, 2], [1], [3]):  # the limit is that of a batch's longest source
            inputs = {
                "src_tokens": source[rows, -int(lengths[rows].max()) :],
                "src_lengths": lengths[rows],
            }
            found = the_task.inference_step(generator, [endless], {"net_input": inputs})
            for row, best in zip(rows, found, strict=True):
                text = words.string(source[row, -int(lengths[row]) :])
                generated[row] = text, words.string(best[0]["tokens"])
            if end < 0:  # no token more, no token less
                own = failures.MaximumLength(a, b).of(int(lengths[rows].max()) - 1)
                assert {len(best[0]["tokens"]) - 1 for best in found} == {own}
        print_generated(tmp_path / "generated.txt", generated)
        assert failures.cut_off(tmp_path / "generated.txt", decoding) == expected


@pytest.mark.parametrize(
    "options",
    [
        {"sampling": True, "sampling_topk": 5},
        {"diverse_beam_groups": 2, "beam": 4},
        {"diversity_rate": 0.5},
        {"match_source_len": True},
        {"no_repeat_ngram_size": 1},
    ],
    ids=str,
)
def test_other_searches_are_fairseqs(options):
    generator = assert_same([model()], **options)
    assert not isinstance(generator.search, CandidateSearch)


def test_alignments_and_scores_of_references_are_fairseqs():
    the_task = MacaronTranslationTask(TranslationConfig(), WORDS, WORDS)
    aligned = the_task.build_generator([model()], GenerationConfig(print_alignment="hard"))
    assert type(aligned) is SequenceGeneratorWithAlignment
    scorer = the_task.build_generator([model()], GenerationConfig(score_reference=True))
    assert type(scorer) is SequenceScorer


@pytest.mark.parametrize("kernels", ["fused", "fairseq"])
@pytest.mark.parametrize(
    "flags", [[], ["--macaron-scheme", "strang-symmetric"], ["--macaron-substep", "midpoint"]]
)
def test_layers_in_a_decoder_of_fairseqs_follow_their_hypotheses(flags, kernels):
    """A user's own decoder may hold them; it knows nothing of caches or evaluations."""
    flags = [*SMALL, "--share-all-embeddings", "--macaron-kernels", kernels, *flags]
    built = build("macaron_transformer", *flags, for_task=task(WORDS))
    expected, _ = generate(TranslationTask, [built], beam=5, sentences=5)
    built.decoder.__class__ = TransformerDecoderBase
    found, _ = generate(TranslationTask, [built], beam=5, sentences=5)
    for one, other in zip(found, expected, strict=True):
        assert [x["tokens"].tolist() for x in one] == [x["tokens"].tolist() for x in other]


class Forwarding(nn.Module):
    """Hands on what it lacks to what it wraps, as wrappers of torch.compile and fairscale do."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, *args, **kwargs):
        return self.layer(*args, **kwargs)

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("layer"), name)


def test_layers_in_a_wrapper_follow_their_hypotheses():
    flags = [*SMALL, "--share-all-embeddings", "--macaron-kernels", "fairseq"]
    flags += ["--macaron-scheme", "strang-symmetric"]
    built = build("macaron_transformer", *flags, for_task=task(WORDS))
    expected, _ = generate(TranslationTask, [built], beam=5, sentences=5)
    layers = built.decoder.layers
    for i, layer in enumerate(layers):
        layers[i] = Forwarding(layer)
    found, _ = generate(TranslationTask, [built], beam=5, sentences=5)
    for one, other in zip(found, expected, strict=True):
        assert [x["tokens"].tolist() for x in one] == [x["tokens"].tolist() for x in other]


def test_layers_that_are_dropped_while_a_training_decodes_leave_the_caches_to_fairseq():
    flags = [*SMALL, *NO_DROPOUT, "--decoder-layerdrop", "0.5", "--macaron-kernels"]
    ours, theirs = (build("macaron_transformer", *flags, x).train() for x in ("fused", "fairseq"))
    theirs.load_state_dict(ours.state_dict())
    source, lengths, previous = batch(sizes=((9, 7), (5, 7), (7, 7)))
    steps = []
    with torch.no_grad():
        for built in (ours, theirs):
            encoded, state = built.encoder(source, lengths), {}
            for length in range(1, previous.shape[1] + 1):
                torch.manual_seed(length)
                tokens = previous[:, :length]
                steps.append(built.decoder(tokens, encoded, incremental_state=state)[0])
    half = len(steps) // 2
    for one, other in zip(steps[:half], steps[half:], strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_a_prefix_is_left_to_fairseq():
    generator = assert_same([model()], beam=4, prefix=True)
    assert isinstance(generator.search, CandidateSearch)  # for what has none


def test_suppressed_tokens_and_small_dictionaries_are_left_to_fairseq():
    kwargs = {"search_strategy": BeamSearch(WORDS), "tokens_to_suppress": ("w3",)}
    assert not CandidateGenerator([model()], WORDS, beam_size=3, **kwargs).is_on_candidates
    few = dictionary(8)
    generator = assert_same([model(words=few)], words=few, beam=6)
    assert not generator.is_on_candidates


def test_constraints_and_prefix_functions_are_fairseqs():
    options = {"beam": 4, "constraints": "ordered"}
    generator = assert_same([model()], constrained=True, **options)
    assert not generator.is_on_candidates
    allowed = {"prefix_allowed_tokens_fn": lambda sentence, tokens: [2, *range(4 + sentence, 90)]}
    generator = assert_same([model()], beam=3, extra=allowed)
    assert not generator.is_on_candidates


def test_an_ensemble_that_is_made_already():
    ensemble = EnsembleModel([model(), model(seed=2)])
    assert_same(ensemble, beam=3)


def test_a_search_goes_on_outside_the_mode_of_inference():
    """Memory that is kept from one batch to the next must not stay closed to changes."""
    generator = CandidateGenerator([model()], WORDS, beam_size=2)
    data = sample_of(2)
    with torch.inference_mode():
        expected = generator.generate([], data)
    found = generator.generate([], data)
    assert [x[0]["tokens"].tolist() for x in found] == [x[0]["tokens"].tolist() for x in expected]


def test_models_that_are_used_otherwise_are_projected_by_fairseq():
    """Not by the matrix product of this search, which would not see a hook or a quantised map."""
    hooked = model("transformer")
    hooked.decoder.output_projection.register_forward_hook(lambda module, x, y: -y)
    assert_same([hooked], beam=3)


def test_validation_with_bleu_names_few_options():
    the_task = MacaronTranslationTask(TranslationConfig(), WORDS, WORDS)
    generator = the_task.build_generator([model()], SimpleNamespace(beam=2))
    assert generator.is_on_candidates


@pytest.mark.slow
def test_fairseq_generate_prints_the_same(data_bin, trained):
    stock, ours = (
        run(
            "fairseq-generate",
            *(data_bin, "--user-dir", USER_DIR, "--path", trained / "checkpoint_last.pt", "--cpu"),
            *("--task", name, "--beam", 2, "--max-len-b", 12),
        ).stdout
        for name in ("translation", "macaron_translation")
    )
    assert hypotheses(ours) == hypotheses(stock)


def test_models_in_python_search_among_candidates(data_bin, trained):
    hub = MacaronTransformerModel.from_pretrained(
        str(trained), "checkpoint_last.pt", str(data_bin), max_len_b=12
    )
    assert type(hub.task) is MacaronTranslationTask
    ours = hub.translate(["1 2 3 4", "9 8 7"], beam=3)
    hub.task = TranslationTask(hub.task.cfg, hub.task.source_dictionary, hub.task.target_dictionary)
    assert ours == hub.translate(["1 2 3 4", "9 8 7"], beam=3)


@pytest.mark.parametrize("rows", [FEW - 1, FEW])
@pytest.mark.parametrize("columns", [1, 19, 20, 639, 1280, 1281, 1343, 1344, 5000])
def test_the_best_of_each_row(columns, rows):
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(1))
    x[0] = -torch.inf
    x[1, columns // 2 :] = -torch.inf
    count = min(10, columns)
    values, places = top_k(x, count)
    assert torch.equal(values, x.topk(count).values)
    assert torch.equal(x.gather(1, places), values)
    assert all(len(row.unique()) == count for row in places)


def test_special_symbols_keep_their_place():
    search = CandidateSearch(Dictionary(), 2)
    log_probs = torch.tensor([[0.1, 0.2, 0.3, 0.4, -3.0, -1.0, -2.0, -5.0, -4.0]])
    assert (
        search.choose(log_probs).tolist()
        == torch.tensor([[0.1, 0.2, 0.3, 0.4, -1.0, -2.0, -3.0, -4.0]]).tolist()
    )
    assert search.types.tolist() == [[0, 1, 2, 3, 5, 6, 4, 8]]
