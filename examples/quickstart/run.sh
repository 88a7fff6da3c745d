#!/usr/bin/env bash
# Macaron Net beside a Transformer of equal size, on a small corpus made on the spot.
#
#   needs   2 CPU cores, 3 GB of memory, 10 minutes (or a GPU)
#   prints  BLEU, chrF, parameters, words/s and training time of both
#   leaves  runs/quickstart: table.md, results.json, curves.png, checkpoints, the data
#
# usage: run.sh [FOLDER, default runs/quickstart]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${1:-$here/../../runs/quickstart}
mkdir -p "$out"
out=$(cd "$out" && pwd)

python3 "$here/make_corpus.py" "$out/raw"
"$here/../common/prepare.sh" "$out/raw" "$out/data" en de 2000
"$here/../common/compare.sh" "$out/data" "$out" \
  "transformer_tiny_pre_norm macaron_transformer_tiny" \
  --share-all-embeddings --dropout 0.1 --attention-dropout 0 --activation-dropout 0 \
  --optimizer adam --adam-betas '(0.9,0.98)' --lr 0.005 \
  --lr-scheduler inverse_sqrt --warmup-updates 250 --warmup-init-lr 1e-7 \
  --criterion label_smoothed_cross_entropy --label-smoothing 0.1 \
  --max-tokens 2000 --required-batch-size-multiple 1 --max-update 500 --seed 1 \
  --validate-interval-updates 100 --no-epoch-checkpoints
