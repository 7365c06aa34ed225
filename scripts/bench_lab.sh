#!/bin/sh
# The tables of the quality lab: time to first token, needles and loss on far tokens with all baselines, and where
# exact and filled memory differ, for the settings that a maps file recommends and for a higher split.
#
#   bench_lab.sh PYRIDGEFILL MODEL MAPS HIGHER STATISTICS RESULTS
#
# MAPS recommends its settings, HIGHER is a maps file of a higher split, which runs without selection, STATISTICS are
# sums for the baseline mean. RESULTS takes the lines; the script goes on from those that are there. The time comes
# first: it wants a quiet machine.
set -eu

pyridgefill=$1 model=$2 maps=$3 higher=$4 statistics=$5 results=$6

json="--json $results"
needles="--kinds multi-key --needles 20 --keys 5"
baselines="--baselines identity,mean,zero,drop --statistics $statistics"
all_filled="--baselines identity,mean,zero,drop,neutral-filler --statistics $statistics --select none"
short="--tail 256 --sink 4"

# shellcheck disable=SC2086
main() {
    "$pyridgefill" bench "$model" "$maps" --ctx 4096 --repeats 3 $json

    # with the tail that the maps recommend
    "$pyridgefill" eval needle "$model" "$maps" --ctx 4096 $needles $json
    "$pyridgefill" eval far-loss "$model" "$maps" --ctx 4096 --texts 8 --baselines mean --statistics "$statistics" $json

    for ctx in 2048 1024; do
        "$pyridgefill" eval needle "$model" "$maps" --ctx $ctx $needles $baselines $short $json
        "$pyridgefill" eval far-loss "$model" "$maps" --ctx $ctx --texts 6 $baselines $short $json
        "$pyridgefill" eval needle "$model" "$higher" --ctx $ctx $needles $all_filled $short $json
        "$pyridgefill" eval far-loss "$model" "$higher" --ctx $ctx --texts 6 $all_filled $short $json
    done
    "$pyridgefill" eval splice "$model" "$maps" --ctx 1024 --texts 6 --needles 6 --layer-groups 3 $short $json
}
main
