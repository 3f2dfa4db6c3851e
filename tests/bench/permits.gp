# Draws what a permit costs: gnuplot -e "data='build/bench_permits.dat'; picture='permits.svg'"
# permits.gp. Columns of the data: keys, and nanoseconds a permit of one item, and of two items.

set terminal svg size 900,460 font 'sans-serif,14' background '#ffffff'
set output picture

set title 'What a permit costs: keys in random order, one core' font ',16'
set xlabel 'keys'
set ylabel 'microseconds'
set logscale x
set xrange [800:1.2e6]
set yrange [0:*]
set xtics ('1,000' 1e3, '10,000' 1e4, '100,000' 1e5, '1,000,000' 1e6)
set border 3 linecolor '#808080'
set tics nomirror textcolor '#404040'
set grid ytics linecolor '#e0e0e0' linewidth 0.7
set key top left Left reverse width 1 spacing 1.4 samplen 2.5
set rmargin 4

# The most expensive curve comes first, so that it is the highest one in the key too.
array colors[2] = ['#0868ac', '#d95f02']
array names[2] = ['one item, a token bucket', 'two items with three limits each']
plot for [i = 2:1:-1] data using 1:(column(i + 1) / 1000) with linespoints linewidth 2.5 \
         pointtype 7 pointsize 0.6 linecolor rgb colors[i] title names[i]
