package cores

import (
	"math"
	"time"
)

// This file estimates how much a resource should want, out of its use (L4). The section >>client of
// doorman.h, "client: demand", explains the estimate. An estimator is a pure structure: its input
// is what a limiter has counted, and what the responses of the server show.

const (
	sampleCount     = 11
	windowsKept     = 10
	windowsShort    = 2
	lookMin         = 100 * time.Millisecond // from a refusal to a look; less shows no rate
	unlimited       = -1                     // a capacity without a limit
	raisedFraction  = 5                      // a raise counts for this part of the window
	samplesOfWindow = 10
)

// reading is what the limiter of a resource has counted up to a time. allowed and refused are in
// grains. waited is the integral of waiting over time, in units * seconds.
type reading struct {
	at          time.Duration
	unmetSince  time.Duration // the first refusal since the last look
	allowed     float64
	refused     float64
	largest     float64
	waiting     float64 // callers wait for them now
	waited      float64
	waitingPeak float64
	peak        float64
	inUse       float64
}

// supply is what the responses of the server show.
type supply struct {
	amount    float64       // the larger of the capacity in force and the safe capacity
	exhausted bool          // the server granted less than what was wanted
	idleAfter time.Duration // a gauge without use for this long is idle; 0: for a window
}

type usePeriod struct {
	seconds float64
	rate    float64
	peak    float64
	unmet   bool
	bounded bool
}

type sample struct {
	reading reading
	use     usePeriod
}

// estimator has the wants of one resource. wants is the result.
type estimator struct {
	isGauge                   bool
	minimum, maximum, initial float64
	window                    time.Duration

	initialUntil  time.Duration
	samples       []sample // the newest one is the first
	looked, noted reading
	raised        float64
	raisedUntil   time.Duration
	largest       float64
	largestUntil  time.Duration
	served        bool
	shortSince    time.Duration
	ceiling       float64
	ceilingUntil  time.Duration
	usedAt        time.Duration
	refusedUntil  time.Duration
	wants         float64
	unmet         bool
}

func newEstimator(first reading, options *ResourceOptions) *estimator {
	return &estimator{isGauge: options.Kind == Gauge, minimum: options.WantsMinimum,
		maximum: options.WantsMaximum, initial: options.WantsInitial, window: options.Window,
		initialUntil: first.at + options.Window, samples: []sample{{reading: first}},
		looked: first, noted: first, shortSince: Never, usedAt: first.at,
		wants: options.WantsInitial}
}

func unitsBetween(before, after float64) float64 { return (after - before) / grainsOfUnit }

func (e *estimator) due() time.Duration {
	return e.samples[0].reading.at + e.window/samplesOfWindow
}

// checkAt returns when to check whether a gauge has become idle.
func (e *estimator) checkAt(s supply) time.Duration {
	if !e.isGauge || e.wants <= e.minimum {
		return Never
	}
	return e.noted.at + later(e.idleAfter(s)/4, 10*time.Millisecond)
}

// isIdle returns whether this is a gauge without use for long enough.
func (e *estimator) isIdle(at time.Duration, s supply) bool {
	return e.isGauge && at >= later(e.usedAt+e.idleAfter(s), e.refusedUntil)
}

// sample adds a sample. Call it at due().
func (e *estimator) sample(r reading, s supply) {
	last := e.samples[0].reading
	futile := e.remember(r, s)
	e.noteUse(r)
	var use usePeriod
	if e.isGauge {
		use = e.gaugeUse(last, r, s, futile)
	} else {
		use = e.rateUse(r, s)
	}
	kept := e.samples
	if len(kept) > sampleCount-1 {
		kept = kept[:sampleCount-1]
	}
	e.samples = append([]sample{{r, use}}, kept...)
	e.unmet = use.unmet
	isNear := r.unmetSince != Never && r.at < r.unmetSince+lookMin
	if !isNear || s.exhausted {
		e.looked = r
	}
	e.conclude(r, s, futile)
}

// look looks at a reading between two samples, after a refusal or while a caller waits.
func (e *estimator) look(r reading, s supply) {
	futile := e.remember(r, s)
	e.noteUse(r)
	var raised float64
	if e.isGauge {
		use := e.gaugeUse(e.looked, r, s, futile)
		if !futile {
			raised = use.peak + r.waiting
		}
		e.unmet = use.unmet
	} else {
		raised = e.lookAtRate(r, s)
	}
	if r.at < e.raisedUntil {
		raised = math.Max(raised, e.raised)
	}
	e.raised = raised
	e.raisedUntil = r.at + e.window/raisedFraction
	e.looked = r
	e.conclude(r, s, futile)
}

// check checks between two samples whether a gauge has become idle.
func (e *estimator) check(r reading, s supply) {
	e.noteUse(r)
	if e.isIdle(r.at, s) {
		e.conclude(r, s, false)
	}
}

func (e *estimator) base() float64 {
	if e.minimum > 0 {
		return math.Min(e.minimum, e.maximum)
	}
	return math.Min(1, e.maximum)
}

func (e *estimator) idleAfter(s supply) time.Duration {
	if s.idleAfter > 0 {
		return earlier(e.window, s.idleAfter)
	}
	return e.window
}

func (e *estimator) noteUse(r reading) {
	refused := r.refused != e.noted.refused
	used := r.inUse > 0 || r.allowed != e.noted.allowed
	if used || r.waiting > 0 {
		e.usedAt = r.at
	}
	if used {
		e.refusedUntil = 0
	}
	if refused {
		e.refusedUntil = r.at + e.window
	}
	e.noted = r
}

func (e *estimator) gaugeUse(before, r reading, s supply, futile bool) usePeriod {
	least := math.Max(e.base(), s.amount)
	refused := 0.0
	if !futile {
		refused = unitsBetween(before.refused, r.refused)
	}
	most := 7 * math.Max(r.peak, least)
	if !s.exhausted {
		most = math.Max(most, r.largest)
	}
	unmet := !futile && (refused > 0 || r.waiting > 0)
	return usePeriod{peak: r.peak + math.Min(refused, most), unmet: unmet}
}

func (e *estimator) rateUse(r reading, s supply) usePeriod {
	last := e.samples[0].reading
	seconds := secondsOf(r.at - last.at)
	workers := r.waitingPeak
	for _, sample := range e.samples {
		workers = math.Max(workers, sample.reading.waitingPeak)
	}
	minimum := e.base()
	allowed := unitsBetween(last.allowed, r.allowed)
	unmet := unitsBetween(last.refused, r.refused)
	most := 7 * math.Max(allowed, math.Max(minimum, s.amount)*seconds)
	waiting := (r.waited - last.waited) / seconds
	busy := workers - waiting
	if waiting > 0 {
		if busy*most > allowed*waiting {
			unmet += allowed * waiting / busy
		} else {
			unmet += most
		}
	}
	known := math.Max(allowed, minimum*seconds)
	counts := unmet
	if s.exhausted {
		counts = math.Min(unmet, most)
	} else {
		known = math.Max(known, r.largest)
	}
	return usePeriod{seconds: seconds, rate: (allowed + counts) / seconds, unmet: unmet > 0,
		bounded: unmet >= 7*known}
}

// uses returns the samples that have a use: all but the oldest one.
func (e *estimator) uses() []sample { return e.samples[:len(e.samples)-1] }

// mean returns the mean rate over the window. Newer intervals count more.
func (e *estimator) mean() float64 {
	var rate, weights float64
	for age, sample := range e.uses() {
		if sample.use.bounded {
			continue
		}
		weight := sample.use.seconds * float64(sampleCount-1-age)
		rate += weight * sample.use.rate
		weights += weight
	}
	if weights > 0 {
		return rate / weights
	}
	return 0
}

// recent returns a lower bound of the wants, so that they rise sooner than they fall.
func (e *estimator) recent() float64 {
	uses := e.uses()
	recent := 0.0
	if len(uses) > 0 && uses[0].use.unmet {
		recent = uses[0].use.rate
	}
	if len(uses) < 3 {
		return recent
	}
	return math.Max(recent,
		math.Min(uses[0].use.rate, math.Min(uses[1].use.rate, uses[2].use.rate)))
}

// remember remembers the largest request. It returns whether that of a gauge can never fit.
func (e *estimator) remember(r reading, s supply) bool {
	if r.largest >= e.largest || r.at >= e.largestUntil {
		e.largest = r.largest
		e.served = false
		e.largestUntil = r.at + windowsKept*e.window
	}
	if !e.isGauge {
		return false
	}
	e.served = e.served || r.peak >= e.largest
	isShort := s.exhausted && e.largest > s.amount
	if isShort {
		e.shortSince = earlier(e.shortSince, r.at)
	} else {
		e.shortSince = Never
	}
	if isShort && r.at-e.shortSince >= windowsShort*e.window {
		e.ceiling = s.amount
		e.ceilingUntil = r.at + windowsKept*e.window
	}
	most := e.maximum
	if r.at < e.ceilingUntil {
		most = math.Min(most, e.ceiling)
	}
	if e.largest > most {
		e.largest = 0
	}
	return r.largest > most
}

func (e *estimator) conclude(r reading, s supply, futile bool) {
	mean := e.mean()
	minimum := e.minimum
	if r.at < e.initialUntil {
		minimum = e.initial
	}
	var raised, largest, peak float64
	if r.at < e.raisedUntil {
		raised = e.raised
	}
	if !e.isGauge {
		largest = math.Max(r.largest, e.largest)
	}
	// This saves the largest request in a fifth of the window.
	least := largest / (float64(e.window) / (raisedFraction * 1e9))
	for _, sample := range e.uses() {
		peak = math.Max(peak, sample.use.peak)
	}
	if e.isIdle(r.at, s) {
		peak, raised = 0, 0
		if e.served {
			e.largest = 0
		}
	}
	if e.isGauge && !futile {
		peak = math.Max(peak+r.waiting, e.largest)
	}
	base := e.base()
	if s.exhausted {
		most := 8 * math.Max(mean, math.Max(base, s.amount))
		raised = math.Min(raised, most)
		least = math.Min(least, most)
	}
	wants := math.Max(1.05*math.Max(mean, e.recent()), peak)
	wants = math.Max(wants, math.Max(raised, least))
	if wants > 0 {
		wants = math.Max(wants, base)
	}
	e.wants = math.Max(minimum, math.Min(e.maximum, math.Min(wants, amountMax)))
}

// lookAtRate returns the least that a rate wants by the counts since the last look.
func (e *estimator) lookAtRate(r reading, s supply) float64 {
	last := e.looked
	since := earlier(r.unmetSince, r.at-lookMin)
	before := earlier(last.at, since)
	base := e.base()
	refused := unitsBetween(last.refused, r.refused)
	allowed := unitsBetween(last.allowed, r.allowed) / secondsOf(r.at-before)
	seconds := secondsOf(r.at - since)
	more := math.Max(0, refused-math.Max(1, math.Max(last.largest, r.largest))) / seconds
	waiting := (r.waited - last.waited) / seconds
	allWait := r.waiting > 0 && waiting >= 0.875*r.waiting
	if allWait {
		more = math.Max(more, 7*math.Max(allowed, math.Max(base, s.amount)))
	}
	e.unmet = refused > 0 || allWait
	least := 0.0
	if refused > 0 {
		least = base
	}
	return math.Max(1.05*(allowed+more), least)
}
