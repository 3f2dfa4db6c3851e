# Draws one scenario: gnuplot -e "name='one'; folder='build/sim'" tests/sim/scenario.gp
# Columns of the data: the second, the capacity, the sum of wants, whether some node has no master,
# and the stacked leases of the parts (clients or data centres).

set terminal svg size 900,420 font 'sans-serif,13' background '#ffffff'
set output sprintf('%s/scenario_%s.svg', folder, name)
data = sprintf('%s/scenario_%s.dat', folder, name)

tree = name eq 'five' || name eq 'six' || name eq 'seven'
parts = tree ? 9 : 5
system = tree ? '13 nodes, 45 clients' : name eq 'four' ? 'a root, a region, five clients' : \
    'a root, five clients'
colors = tree ? '#c6dbef #9ecae1 #6baed6 #c7e9c0 #a1d99b #74c476 #dadaeb #bcbddc #9e9ac8' : \
    '#deebf7 #c0d9ec #9ecae1 #6baed6 #4292c6'
label(i) = !tree ? sprintf('lease of client %d', i) : \
    i % 3 ? '' : sprintf('region %d, by data centre', i / 3)
set xlabel 'seconds'
set ylabel 'units'
stats data using 1 nooutput
last = STATS_max
stats data using 3 nooutput
most = STATS_max
far = most > 1000 # wants are far above the capacity: the title says so
set yrange [0:far ? 600 : 1.1 * most]
wanted = far ? sprintf(', up to %d wanted', most) : ''
set title sprintf('Scenario %s: %s%s', name, system, wanted) font ',15'
set xrange [0:last]
set xtics last > 1000 ? 600 : 30
set border 3 linecolor '#808080'
set tics nomirror textcolor '#404040'
set grid ytics linecolor '#e0e0e0' linewidth 0.7
set key outside right center reverse Left spacing 1.3 maxcols 1

# The areas are drawn from the highest to the lowest, so that each one stays visible above the next.
plot data using 1:($4 > 0 ? 1e6 : 0) with filledcurves y=0 linecolor rgb '#f4d9d9' \
         title 'a node has no master', \
     data using 1:3 with lines linecolor '#d95f02' linewidth 1.5 \
         title far ? '' : 'wanted by all', \
     data using 1:2 with lines linecolor '#202020' linewidth 1.5 dashtype 2 title 'capacity', \
     for [i = parts:1:-1] data using 1:(column(i + 4)) with filledcurves y=0 \
         linecolor rgb word(colors, i) title label(i), \
     data using 1:2 with lines linecolor '#202020' linewidth 1.5 dashtype 2 notitle, \
     data using 1:3 with lines linecolor '#d95f02' linewidth 1.5 notitle
