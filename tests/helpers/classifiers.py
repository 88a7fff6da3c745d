"""Small models that are fine-tuned to tell classes apart."""

from helpers.small import SMALL_ENCODER, arguments, masked_task

HEAD = "sentence_classification_head"


def sentences(classes=2, **flags):
    from fairseq.tasks.sentence_prediction import SentencePredictionConfig, SentencePredictionTask

    settings = {"max_positions": 32, "classification_head_name": HEAD, **flags}
    words = masked_task().dictionary
    return SentencePredictionTask(
        SentencePredictionConfig(num_classes=classes, **settings), words, words
    )


def classifier(arch="macaron_roberta_tiny", **kwargs):
    args = arguments(arch, *SMALL_ENCODER)
    return sentences(**kwargs).build_model(args)
