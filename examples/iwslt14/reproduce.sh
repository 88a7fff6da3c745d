#!/usr/bin/env bash
# IWSLT14 German-English: Macaron Net beside a Transformer of equal size, from the archive to the table.
#
#   needs   one GPU, about 20 GB of disk, mostly checkpoints. Hours: not measured on GPUs by the
#           project; on 2 CPU cores 3 to 5 days a model, 50,000 updates of up to 4,096 tokens at the
#           words/s of docs/performance.md
#   prints  tokenised lowercased BLEU, the paper's metric (tokens:model|nrefs:1|case:lc|...), and BLEU
#           (nrefs:1|case:lc|eff:no|tok:13a|smooth:exp) and chrF of sacreBLEU
#   paper   Transformer 34.4, Macaron 35.4 (tokenised lowercased BLEU, Table 1)
#   ends    after 50,000 updates; the mean of the last 10 epochs is scored. The paper states neither
#
#   --pair de-en (default) or en-de
# shellcheck disable=SC2034,SC2329  # recipe.sh reads and calls what is set here
set -euo pipefail
# shellcheck source=../common/recipe.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common/recipe.sh"

# Data: as everybody's, by fairseq's choices.
pairs=(de-en en-de)
tests=(test)
steps=tokenize,lowercase
clean="--min 1 --max 175 --ratio 1.5"
valid_every=23
sizes=(160239 7283 6750)
merges=10000

inputs() {
  fetch de-en.tgz \
    https://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz \
    https://wit3.fbk.eu/archive/2014-01/texts/de/en/de-en.tgz
}

raw() { # FOLDER
  python3 "$common/extract.py" iwslt14 "$work/downloads/de-en.tgz" "$source" "$target" "$1"
}

# Training: the released script's settings.
archs=(transformer_iwslt_de_en_pre_norm macaron_transformer_iwslt_de_en)
tokens=4096
batches=1
max_update=50000
flags=(
  --share-all-embeddings
  --dropout 0.3 --attention-dropout 0.1 --activation-dropout 0.1 --weight-decay 0.0001
  --optimizer adam --adam-betas '(0.9,0.98)' --clip-norm 0
  --lr 0.0015 --lr-scheduler inverse_sqrt --warmup-updates 8000 --warmup-init-lr 1e-7
  --criterion chunked_label_smoothed_cross_entropy --label-smoothing 0.1
  --keep-last-epochs 10
)

# Evaluation
average=10
decode=(--beam 5 --lenpen 1.0 --batch-size 128)
metrics=(--lowercase --metric tokenised-bleu bleu chrf)

{ recipe "$@"; exit; } # read whole, so that an edit does not disturb a run
