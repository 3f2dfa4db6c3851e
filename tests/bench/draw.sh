#!/bin/sh
# Draws how the cost of a renewal grows with the number of holders, from the data of the benchmark.
#
#     tests/bench/draw.sh build/bench_cost.dat tests/bench/cost.svg
set -eu
if ! sh .ci/deps --need 'sh .ci/deps gnuplot' gnuplot; then
    echo "There is no picture; the figures do not need it."
    exit 0
fi
gnuplot -e "data='$1'; picture='$2'" tests/bench/cost.gp
echo "$2"
