#!/bin/sh
# Draws how a cost grows with the number of holders, or of keys, from the data of the benchmark. The
# script of gnuplot has the name of the picture.
#
#     tests/bench/draw.sh build/bench_cost.dat tests/bench/cost.svg
set -eu
if ! sh .ci/deps --need 'sh .ci/deps gnuplot' gnuplot; then
    echo "There is no picture; the figures do not need it."
    exit 0
fi
gnuplot -e "data='$1'; picture='$2'" "${2%.svg}.gp"
echo "$2"
