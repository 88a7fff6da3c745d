#!/usr/bin/env bash
# Your own parallel text: Macaron Net beside a Transformer of equal size, from raw text to the table.
#
#   needs   FOLDER/train.en and FOLDER/train.de (any two languages, one sentence a line); valid.* and
#           test.* are drawn from train where they are missing; a GPU, or patience; some GB of disk
#   prints  BLEU (nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp; zh, ja and ko with sacreBLEU's own tok)
#           and chrF of sacreBLEU
#   ends    after 20,000 updates, or 10 epochs without a better validation loss
#
#   run.sh --from FOLDER --pair en-de
#   run.sh --from FOLDER --pair en-de --archs "transformer_tiny_pre_norm macaron_transformer_tiny" \
#     --max-update 2000 --cpu -- --lr 0.005 --warmup-updates 1000
#
# The models are those of IWSLT14, right for some 100,000 to 1,000,000 pairs; for fewer take the tiny
# ones as above.
# shellcheck disable=SC2034,SC2329  # recipe.sh reads and calls what is set here
set -euo pipefail
# shellcheck source=../common/recipe.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common/recipe.sh"

# Data
pairs=()
tests=(test)
steps=normalize,tokenize
clean="--min 1 --max 175 --ratio 9"
merges=10000

inputs() {
  [[ $from ]] || die "say where your text is: --from FOLDER, which holds train.$source and train.$target"
  (cd "$from" && sha256sum -- {train,valid,test}."$source" {train,valid,test}."$target" 2> /dev/null) || true
}

raw() { # FOLDER
  python3 "$common/hold_out.py" "$from" "$source" "$target" "$1"
}

# Training
archs=(transformer_iwslt_de_en_pre_norm macaron_transformer_iwslt_de_en)
tokens=4096
batches=1
max_update=20000
flags=(
  --share-all-embeddings --dropout 0.3 --weight-decay 0.0001
  --optimizer adam --adam-betas '(0.9,0.98)'
  --lr 0.0015 --lr-scheduler inverse_sqrt --warmup-updates 4000 --warmup-init-lr 1e-7
  --criterion chunked_label_smoothed_cross_entropy --label-smoothing 0.1
  --patience 10 --keep-last-epochs 5
)

# Evaluation: the best checkpoint, since a small corpus's first epochs are too early to average and a
# large one has few.
average=0
decode=(--beam 5 --batch-size 64)
metrics=(--metric bleu chrf)

{ recipe "$@"; exit; } # read whole, so that an edit does not disturb a run
