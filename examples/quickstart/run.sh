#!/usr/bin/env bash
# Macaron Net beside a Transformer of equal size, on a small corpus made on the spot.
#
#   needs   2 CPU cores, 3 GB of memory, 10 minutes (or a GPU)
#   prints  BLEU, chrF, parameters, words/s and training time of both
#   leaves  runs/quickstart: report/, checkpoints, the data
# shellcheck disable=SC2034,SC2329  # recipe.sh reads and calls what is set here
set -euo pipefail
# shellcheck source=../common/recipe.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common/recipe.sh"

# Data
pairs=(en-de)
tests=(test)
steps=normalize,tokenize
merges=2000

inputs() { sha256sum < "$(dirname "$0")/make_corpus.py"; }

raw() { # FOLDER
  python3 "$(dirname "$0")/make_corpus.py" "$1"
}

# Training
archs=(transformer_tiny_pre_norm macaron_transformer_tiny)
tokens=2000
batches=1
max_update=500
flags=(
  --share-all-embeddings --dropout 0.1 --attention-dropout 0 --activation-dropout 0
  --optimizer adam --adam-betas '(0.9,0.98)'
  --lr 0.005 --lr-scheduler inverse_sqrt --warmup-updates 250 --warmup-init-lr 1e-7
  --criterion chunked_label_smoothed_cross_entropy --label-smoothing 0.1
  --required-batch-size-multiple 1 --validate-interval-updates 100 --no-epoch-checkpoints
)

# Evaluation
average=0
decode=(--beam 5 --batch-size 64)
metrics=(--metric bleu chrf)

# One GPU is plenty, and not every number of them divides the batch.
if [[ ! -v CUDA_VISIBLE_DEVICES ]] && nvidia-smi > /dev/null 2>&1; then export CUDA_VISIBLE_DEVICES=0; fi

{ recipe "$@"; exit; } # read whole, so that an edit does not disturb a run
