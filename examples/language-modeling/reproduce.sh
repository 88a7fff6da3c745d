#!/usr/bin/env bash
# Causal language models: Macaron Net next to a Transformer of equal size, from text to perplexities.
#
#   needs   text files; a GPU, or for the tiny models a CPU and patience
#   prints  the perplexity of the documents of --test for each token and each word, bits for each
#           character, and the validation loss, with mean and standard deviation over seeds; differences
#           have 95 % intervals
#   ends    after 20,000 updates of 32,768 tokens, with a linear decay of the learning rate
#
#   reproduce.sh --text novels.txt essays.txt --test essays.txt
#   reproduce.sh --text books.txt.xz --split-at "# Title: " --test "Emma" --seeds "1 2 3" --cpu \
#     --archs "transformer_lm_tiny_pre_norm macaron_transformer_lm_tiny" \
#     --tokens-per-sample 128 --batch 8192 --max-update 3000 -- --warmup-updates 300
#
# With --teacher it trains students that learn from that model in the ways of students.yaml, and from the text alone:
#
#   reproduce.sh --text novels.txt essays.txt --test essays.txt --seeds "1 2 3" --archs macaron_transformer_lm_tiny \
#     --teacher runs/language-modeling/macaron_transformer_lm_small/seed1/checkpoint_last.pt
#
# A word is one of Moses' tokens, and the end of a line; so models with other merges compare. A
# character is one of the text as it is, with a line end for each line.
set -euo pipefail
unset CDPATH # with which cd may go elsewhere
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec python3 -X utf8 "$here/../start.py" "$here/language_modeling.py" "$@"
