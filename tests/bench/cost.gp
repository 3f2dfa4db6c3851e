# Draws what a renewal costs: gnuplot -e "data='build/bench_cost.dat'; picture='cost.svg'" cost.gp
# Columns of the data: holders, and nanoseconds a renewal where none, a tenth and all change.

set terminal svg size 900,460 font 'sans-serif,14' background '#ffffff'
set output picture

set title 'What a renewal costs: one FAIR\_SHARE resource, one core' font ',16'
known = 'To compare: the Go Doorman answers 10,000 clients 350 times a second, 2,800 µs each'
set xlabel sprintf("holders of the resource\n{/*0.85 %s}", known)
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
array colors[3] = ['#0868ac', '#4eb3d3', '#d95f02']
array names[3] = ['nobody does', 'a tenth do', 'everybody wants more or less than before']
plot for [i = 3:1:-1] data using 1:(column(i + 1) / 1000) with linespoints linewidth 2.5 \
         pointtype 7 pointsize 0.6 linecolor rgb colors[i] title names[i]
