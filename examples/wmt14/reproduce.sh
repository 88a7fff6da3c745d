#!/usr/bin/env bash
# WMT14 English-German: Macaron Net beside a Transformer of equal size, from the archives to the table.
#
#   needs   GPUs (the paper: 4 for base, 4 to 32 for big) and about 60 GB of disk (big: 150), mostly
#           checkpoints. Hours: the text work's are in docs/performance.md, those on GPUs the project
#           has not measured. Others: 12 on 8 P100s for 100,000 updates of the base Transformer, of
#           25,000 tokens (here 32,768), in fp32 (Vaswani et al. 2017); under 5 on 8 GPUs for the big
#           one, in fp16 (Ott et al. 2018)
#   prints  compound-split BLEU, the paper's kind (tokens:moses-normalized-compound-split|...), and
#           BLEU (nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp) and chrF of sacreBLEU, on newstest2014
#   paper   base: Transformer 27.3, Macaron 28.9; big: 28.4 and 30.2 (compound-split BLEU, Table 1).
#           sacreBLEU is lower: the same output of Scaling NMT has 29.3 and 28.6
#   ends    after 100,000 updates (big: 50,000); the mean of the last 10 epochs is scored. The paper
#           states neither
#
#   --setting big      the big models
#   --setting v9-37k   News Commentary v9 and 37,000 merges, as in "Attention Is All You Need"
# shellcheck disable=SC2034,SC2329  # recipe.sh reads and calls what is set here
set -euo pipefail
# shellcheck source=../common/recipe.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common/recipe.sh"

# Data: newstest2013 to validate, the full newstest2014 to test, both through sacreBLEU.
pairs=(en-de)
tests=(newstest2014)
commentary=nc-v12
steps=normalize,printable,tokenize-hyphens
clean="--min 1 --max 80"
merges=32764
sizes=("" 3000 3003)

setting_v9-37k() {
  commentary=nc-v9
  merges=37000
  published=""
}

inputs() {
  fetch training-parallel-europarl-v7.tgz \
    https://www.statmt.org/wmt13/training-parallel-europarl-v7.tgz \
    https://statmt.org/wmt13/training-parallel-europarl-v7.tgz
  fetch training-parallel-commoncrawl.tgz \
    https://www.statmt.org/wmt13/training-parallel-commoncrawl.tgz \
    https://statmt.org/wmt13/training-parallel-commoncrawl.tgz
  case $commentary in
    nc-v12) fetch training-parallel-nc-v12.tgz \
      https://data.statmt.org/wmt17/translation-task/training-parallel-nc-v12.tgz \
      http://data.statmt.org/wmt17/translation-task/training-parallel-nc-v12.tgz ;;
    nc-v9) fetch training-parallel-nc-v9.tgz \
      https://www.statmt.org/wmt14/training-parallel-nc-v9.tgz \
      https://statmt.org/wmt14/training-parallel-nc-v9.tgz ;;
  esac
  fetch_testset wmt14/full https://www.statmt.org/wmt14/test-full.tgz
  if [[ $from && -f $from/dev.tgz ]]; then # WMT14's archive, which holds newstest2013 too
    fetch dev.tgz https://www.statmt.org/wmt14/dev.tgz https://statmt.org/wmt14/dev.tgz
  else
    fetch_testset wmt13 https://www.statmt.org/wmt13/test.tgz
  fi
}

raw() { # FOLDER
  local archive member
  for archive in europarl-v7 commoncrawl "$commentary"; do
    case $archive in
      europarl-v7) member=training/europarl-v7.de-en ;;
      commoncrawl) member=commoncrawl.de-en ;;
      nc-*) member=training/news-commentary-${archive#nc-}.de-en ;;
    esac
    say "extracting $archive" >&2
    python3 "$common/extract.py" bitext "$work/downloads/training-parallel-$archive.tgz" \
      "$member.en" "$member.de" "$1/$archive.en" "$1/$archive.de"
    cat "$1/$archive.en" >> "$1/train.en"
    cat "$1/$archive.de" >> "$1/train.de"
    rm "$1/$archive".{en,de}
  done
  testset wmt13 en-de "$1/valid.en" "$1/valid.de"
  testset wmt14/full en-de "$1/newstest2014.en" "$1/newstest2014.de"
}

# Training: the released scripts' settings; 4 GPUs x 8192 tokens, and big 4 GPUs x 16 x 4096.
archs=(transformer_wmt_en_de_pre_norm macaron_transformer_wmt_en_de)
tokens=8192
batches=4
max_update=100000
flags=(
  --share-all-embeddings
  --dropout 0.1 --attention-dropout 0.1 --activation-dropout 0.1
  --optimizer adam --adam-betas '(0.9,0.98)' --clip-norm 0
  --lr 0.0015 --lr-scheduler inverse_sqrt --warmup-updates 8000 --warmup-init-lr 1e-7
  --criterion chunked_label_smoothed_cross_entropy --label-smoothing 0.1
  --keep-last-epochs 10
)

setting_big() {
  archs=(transformer_wmt_en_de_big_pre_norm macaron_transformer_wmt_en_de_big)
  tokens=4096
  batches=64
  max_update=50000
  flags+=(--lr 0.003 --dropout 0.3) # the later one counts
}

# Evaluation
average=10
decode=(--beam 4 --lenpen 0.6 --batch-size 64)
metrics=(--metric compound-split-bleu bleu chrf)

{ recipe "$@"; exit; } # read whole, so that an edit does not disturb a run
