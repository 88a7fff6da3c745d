#!/usr/bin/env bash
# Your own parallel text: Macaron Net and a Transformer of equal size, from raw text to the table.
#
#   needs   FOLDER/train.en and FOLDER/train.de (any two languages, one sentence a line); valid.* and
#           test.* are drawn from train where they are missing; a GPU, or patience; some GB of disk. It
#           takes one GPU, unless CUDA_VISIBLE_DEVICES names more, as for a larger --batch
#   prints  BLEU (nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp; zh, ja and ko with sacreBLEU's own tok)
#           and chrF of sacreBLEU
#   ends    after 20,000 updates, or 10 epochs without a better validation loss
#
#   run.sh --from FOLDER --pair en-de
#   run.sh --from FOLDER --pair en-de --setting tiny --cpu
#
# The models are those of IWSLT14, right for some 100,000 to 1,000,000 pairs. For fewer, or on a CPU,
# --setting tiny trains small ones, for 2,000 updates.
set -euo pipefail
unset CDPATH # with which cd may go elsewhere
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec python3 -X utf8 "$here/../recipe.py" "$here/${0##*/}" "$@"
