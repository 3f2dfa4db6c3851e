# Draws one scenario: gnuplot -e "name='one'; folder='build/sim'" tests/sim/scenario.gp
# Columns of the data: second, capacity, wants of all, and the leases of the clients, stacked.

set terminal svg size 900,420 font 'sans-serif,13' background '#ffffff'
set output sprintf('%s/scenario_%s.svg', folder, name)
data = sprintf('%s/scenario_%s.dat', folder, name)

set title sprintf('Scenario %s, seed 1: a root and five clients', name) font ',15'
set xlabel 'seconds'
set ylabel 'units'
set xrange [0:300]
set yrange [0:*]
set xtics 30
set border 3 linecolor '#808080'
set tics nomirror textcolor '#404040'
set grid ytics linecolor '#e0e0e0' linewidth 0.7
set key outside right center reverse Left spacing 1.3

if (name eq 'two' || name eq 'three') {
    last = name eq 'two' ? 140 : 190
    set object rectangle from 120, graph 0 to last, graph 1 behind \
        fillcolor '#f0e0e0' fillstyle solid noborder
    set label 'no master' at (120 + last) / 2.0, graph 0.96 center textcolor '#a05050'
}

# From the top down, so that each area covers the ones below it only as far as it reaches.
plot for [i = 5:1:-1] data using 1:(column(i + 3)) with filledcurves y=0 \
         linecolor rgb word('#deebf7 #c0d9ec #9ecae1 #6baed6 #4292c6', i) \
         title sprintf('lease of client %d', i), \
     data using 1:2 with lines linecolor '#202020' linewidth 1.5 dashtype 2 title 'capacity', \
     data using 1:3 with lines linecolor '#d95f02' linewidth 1.5 title 'wanted by all'
