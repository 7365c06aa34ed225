#!/bin/sh
# Measure selected rows: maps for one split with its retrieval heads, then time to first token, needles and far-context loss.
#
#   bench_selected.sh PYRIDGEFILL MODEL FOLDER RESULTS SPLIT CTX...
set -eu

pyridgefill=$1 model=$2 folder=$3 results=$4 split=$5
shift 5

name=$(basename "$model" .gguf)
maps=$folder/$name.$split.gguf
heads=$folder/$name.$split.heads.gguf
options="--split $split --select attention --budget 0.1 --tail 512 --sink 4 --json $results"

if [ ! -e "$heads" ]; then
    "$pyridgefill" calibrate "$model" -o "$maps" --splits "$split" --tail 512 --no-heads
    "$pyridgefill" heads "$model" "$maps" -o "$heads" --prompts 4 --ctx 2048 --tail 512
fi

for ctx; do
    # shellcheck disable=SC2086
    "$pyridgefill" bench "$model" "$heads" --ctx "$ctx" --repeats 3 $options
    # shellcheck disable=SC2086
    "$pyridgefill" eval needle "$model" "$heads" --ctx "$ctx" --kinds multi-key --needles 20 --keys 5 $options
    # shellcheck disable=SC2086
    "$pyridgefill" eval far-loss "$model" "$heads" --ctx "$ctx" --texts 8 $options
done
