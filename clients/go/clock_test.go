package doorman

import (
	"testing"
	"time"
)

// This file tests the clock of systems whose clocks stand still during a suspension.

func TestAStepOfTheTimeOfDayThatCorrectsAStepBackIsNoSuspension(t *testing.T) {
	c := &machineClock{}
	for _, step := range []struct{ wall, mono, seen time.Duration }{
		{5 * time.Second, 5 * time.Second, 5 * time.Second},
		{-time.Hour, 6 * time.Second, 6 * time.Second},
		{7 * time.Second, 7 * time.Second, 7 * time.Second},
		{-time.Hour, 8 * time.Second, 8 * time.Second},
		{time.Hour, 9 * time.Second, time.Hour}, // of two hours, one corrects
	} {
		seen := c.at(step.wall, step.mono)
		check(t, seen > step.seen-5*time.Second && seen < step.seen+5*time.Second,
			"%v instead of %v", seen, step.seen)
	}
}

func TestTheTimeOfASuspensionCounts(t *testing.T) {
	c := &machineClock{}
	check(t, c.at(time.Hour, time.Second) == time.Hour, "the hour is missing")
	check(t, c.at(time.Hour+time.Second, 2*time.Second) == time.Hour+time.Second, "it counts twice")
}

func TestTheClockGoesOn(t *testing.T) {
	c := newClock()
	first := c.now()
	check(t, first >= 0 && first < time.Hour, "%v", first)
	eventually(t, "time passes", func() bool { return c.now() > first })
}
