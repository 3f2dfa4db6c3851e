package cores

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"time"
)

// This file has the limiters of a resource, which follow its lease, and limiters of a process,
// which need no server. The rules are those of the section >>limiters of doorman.h.

const (
	ticksOfNano = 256
	savedMax    = float64(1 << 62) // ticks
	ticksMax    = 9e18
	refreshMin  = 250 * time.Millisecond
	localKeys   = 1000000
	second      = float64(time.Second)
)

// Outcome is the result of an attempt to take units.
type Outcome int

const (
	// Refused: the units are not there now.
	Refused Outcome = iota
	// Allowed: the caller may use the units.
	Allowed
	// Impossible: the resource never has so many units.
	Impossible
)

// grainsOf returns units in 1/4096 of a unit, rounded up.
func grainsOf(units float64) float64 { return math.Ceil(units * grainsOfUnit) }

// usage is what a limiter has counted, in grains, and what its core has told it.
type usage struct {
	allowed, refused, excess float64
	unmet                    float64       // of refused and excess; the impossible is no demand (L2)
	unmetSince               time.Duration // the first refusal since the last look
	largest                  float64       // request since the last sample; 0: none above one unit
	ceiling                  float64       // the largest capacity it can ever get; 0: not known
	expected                 float64       // the amount of the next lease; 0: no larger one
	refreshAt                time.Duration // when another amount may come
	growthTime               time.Duration
	ceilingAsked             float64
	ceilingUntil             time.Duration
	shadow, killSwitch       bool
}

// count counts an attempt. It returns the outcome that its caller gets.
func (u *usage) count(grains float64, outcome Outcome, now time.Duration) Outcome {
	if outcome != Impossible && grains > grainsOfUnit {
		u.largest = math.Max(u.largest, grains)
	}
	if outcome == Allowed {
		u.allowed += grains
		return Allowed
	}
	if outcome == Refused {
		u.unmet += grains
		u.unmetSince = earlier(u.unmetSince, now)
	}
	if u.shadow || u.killSwitch {
		u.excess += grains
		return Allowed
	}
	u.refused += grains
	return outcome
}

func (u *usage) refreshIn(now time.Duration) time.Duration {
	if u.refreshAt == Never {
		return Never
	}
	return later(u.refreshAt-now, refreshMin)
}

// schedule is an amount until a time, and another one after it.
type schedule struct {
	amount float64
	until  time.Duration
	after  float64
}

// limiter is a rateLimiter or a gaugeLimiter.
type limiter interface {
	counts() *usage
	set(s schedule, largest float64, now time.Duration)
	take(n float64, now time.Duration) Outcome
	delay(n float64, now time.Duration) time.Duration
	retryAfter(n float64, now time.Duration) time.Duration
}

// quota is what a rate saves at one amount. most is in ticks; -1: the amount is 0 or unlimited.
type quota struct {
	amount, most, unitTime float64
}

func newQuota(amount, burst, burstUnits float64) *quota {
	q := &quota{amount: amount, most: -1, unitTime: math.Inf(1)}
	if amount < 0 {
		q.unitTime = 0
	} else if amount > 0 {
		q.unitTime = ticksOfNano * second / amount
		depth := burst * ticksOfNano
		if burstUnits > 0 {
			depth = burstUnits * q.unitTime
		}
		q.most = math.Ceil(math.Min(math.Max(depth, q.unitTime), ticksMax))
	}
	return q
}

func (q *quota) isEnd() bool { return q.unitTime == 0 || math.IsInf(q.unitTime, 1) }

// limitRise limits what can be saved, so that a rise of the rate does not raise the saved units.
func (q *quota) limitRise(before *quota) {
	if q.amount <= before.amount {
		return
	}
	depth := 0.0
	if before.most >= 0 {
		depth = before.most * (before.amount / q.amount)
	}
	q.most = math.Min(q.most, math.Ceil(math.Max(depth, math.Min(q.unitTime, ticksMax))))
}

// depth returns how many ticks can be saved for the largest request.
func (q *quota) depth(largest float64) float64 {
	if q.most < 0 {
		return savedMax
	}
	return math.Max(q.most, math.Ceil(math.Min(largest*q.unitTime, savedMax)))
}

// rateLimiter is a token bucket whose rate is a lease (L1). It starts with nothing saved. What is
// saved is `saved` ticks at the time `at`, so that numbers stay small and exact.
type rateLimiter struct {
	usage             usage
	burst, burstUnits float64
	at                time.Duration
	saved             float64
	until             time.Duration
	before, after     *quota
}

func newRate(burst time.Duration, burstUnits float64, now time.Duration) *rateLimiter {
	r := &rateLimiter{burst: float64(burst), burstUnits: burstUnits, at: now, until: Never}
	r.usage.unmetSince, r.usage.refreshAt = Never, Never
	r.before = newQuota(0, r.burst, burstUnits)
	r.after = r.before
	return r
}

func (r *rateLimiter) counts() *usage { return &r.usage }

func (r *rateLimiter) quota(now time.Duration) *quota {
	if now < r.until {
		return r.before
	}
	return r.after
}

func (r *rateLimiter) level(most float64, now time.Duration) float64 {
	return math.Min(most, float64(now-r.at)*ticksOfNano+r.saved)
}

// set sets the rate. What is saved stays, but no more than fits.
func (r *rateLimiter) set(s schedule, largest float64, now time.Duration) {
	old := r.quota(now)
	first := newQuota(s.amount, r.burst, r.burstUnits)
	second := newQuota(s.after, r.burst, r.burstUnits)
	if now < s.until {
		r.carry(old, first, largest, now)
		second.limitRise(first)
	} else {
		r.carry(old, second, largest, now)
	}
	r.before, r.after, r.until = first, second, s.until
}

// carry keeps what is saved when the rate changes: no units are gained by the change.
func (r *rateLimiter) carry(old, to *quota, largest float64, now time.Duration) {
	inUnits := r.burstUnits > 0
	size := largest
	if inUnits {
		size = 0
	}
	saved := r.level(old.depth(size), now)
	ratio := to.unitTime / old.unitTime
	if old.isEnd() || to.isEnd() {
		if to.unitTime == old.unitTime {
			return
		}
		ratio = 0
		if to.unitTime > old.unitTime {
			ratio = math.Inf(1)
		}
	}
	unitsStay := (inUnits || largest > 0) && ratio < 1e12 && to.most >= 0
	if saved <= 0 || (ratio > 1 && !unitsStay) {
		return
	}
	after := to.depth(size)
	if ratio >= 1 && !unitsStay && r.level(after, now) <= saved {
		return
	}
	r.at, r.saved = now, math.Trunc(math.Min(saved*ratio, after))
}

// price returns the price of n units in ticks, or -1 if the rate never saves so much.
func (r *rateLimiter) price(q *quota, n float64) float64 {
	if q.amount <= 0 {
		return -1
	}
	most := savedMax
	if r.burstUnits > 0 {
		most = q.most
	}
	price := n * q.unitTime
	if !(price <= most*(1+1e-9)) {
		return -1
	}
	return math.Min(math.Ceil(price), most)
}

func (r *rateLimiter) isPossible(n float64) bool {
	ceiling := r.usage.ceiling
	if ceiling > 0 && !(n*ticksOfNano*second/ceiling <= savedMax) {
		return false
	}
	return r.burstUnits <= 0 || n <= math.Max(r.burstUnits, 1)*(1+1e-9)
}

func (r *rateLimiter) take(n float64, now time.Duration) Outcome {
	if !isAmount(n) {
		return Impossible
	}
	if n <= 0 {
		return Allowed
	}
	q := r.quota(now)
	price := r.price(q, n)
	if price < 0 {
		outcome := Impossible
		if q.amount < 0 {
			outcome = Allowed
		} else if r.isPossible(n) {
			outcome = Refused
		}
		return r.usage.count(grainsOf(n), outcome, now)
	}
	left := r.level(math.Max(q.most, price), now) - price
	if left < 0 {
		return r.usage.count(grainsOf(n), Refused, now)
	}
	r.at, r.saved = now, left
	return r.usage.count(grainsOf(n), Allowed, now)
}

// delay returns the time until n units are saved; Never if the rate in force never saves them.
func (r *rateLimiter) delay(n float64, now time.Duration) time.Duration {
	q := r.quota(now)
	if q.amount < 0 || n <= 0 || r.usage.shadow || r.usage.killSwitch {
		return 0
	}
	price := -1.0
	if isAmount(n) {
		price = r.price(q, n)
	}
	if price < 0 {
		return Never
	}
	missing := price - r.level(math.Max(q.most, price), now)
	return time.Duration(math.Max(0, math.Ceil(missing/ticksOfNano)))
}

// retryAfter returns how long to wait after a refusal; Never: no change is expected.
func (r *rateLimiter) retryAfter(n float64, now time.Duration) time.Duration {
	delay := r.delay(n, now)
	refreshIn := r.usage.refreshIn(now)
	mayGrow := r.usage.expected > 0 || delay == Never
	if !mayGrow || refreshIn == Never {
		return later(delay, 1)
	}
	expected := r.usage.expected
	if expected == 0 {
		expected = r.usage.ceiling
	}
	return later(1, earlier(delay, refreshIn+r.growth(n, expected)))
}

func (r *rateLimiter) growth(n, expected float64) time.Duration {
	if expected <= 0 {
		return 0
	}
	slow := n / expected * second
	grown := math.Inf(1)
	if r.usage.growthTime > 0 {
		grown = math.Max(n/r.usage.ceiling*second, float64(r.usage.growthTime))
	}
	return time.Duration(math.Min(slow, math.Min(grown, float64(durationMax))))
}

// gaugeLimiter limits the units in use at once to the lease (L1). inUse and peak are in grains.
type gaugeLimiter struct {
	usage        usage
	schedule     schedule
	inUse, peak  float64
	overReleased int
}

func newGauge() *gaugeLimiter {
	g := &gaugeLimiter{schedule: schedule{until: Never}}
	g.usage.unmetSince, g.usage.refreshAt = Never, Never
	return g
}

func (g *gaugeLimiter) counts() *usage { return &g.usage }

func (g *gaugeLimiter) set(s schedule, _ float64, _ time.Duration) { g.schedule = s }

func mostGrains(amount float64) float64 {
	if amount < 0 {
		amount = amountMax
	}
	return math.Trunc(amount * grainsOfUnit)
}

func (g *gaugeLimiter) room(now time.Duration) float64 {
	if now < g.schedule.until {
		return mostGrains(g.schedule.amount)
	}
	return mostGrains(g.schedule.after)
}

func (g *gaugeLimiter) take(n float64, now time.Duration) Outcome {
	if !isAmount(n) {
		return Impossible
	}
	if n <= 0 {
		return Allowed
	}
	grains := grainsOf(n)
	outcome := Allowed
	if g.inUse+grains > g.room(now) {
		ceiling := mostGrains(g.usage.ceiling)
		outcome = Impossible
		if ceiling == 0 || grains <= ceiling {
			outcome = Refused
		}
	}
	outcome = g.usage.count(grains, outcome, now)
	if outcome == Allowed {
		g.inUse += grains
		g.peak = math.Max(g.peak, g.inUse)
	}
	return outcome
}

// release gives n units back. It fails if more are given back than are in use.
func (g *gaugeLimiter) release(n float64) error {
	if err := checkAmount("units", n); err != nil {
		return err
	}
	grains := grainsOf(n)
	if grains > g.inUse {
		g.overReleased++
		return errors.New("units: more are released than are in use")
	}
	g.inUse -= grains
	return nil
}

func (g *gaugeLimiter) delay(n float64, now time.Duration) time.Duration {
	fits := isAmount(n) && g.inUse+grainsOf(n) <= g.room(now)
	if fits || g.usage.shadow || g.usage.killSwitch {
		return 0
	}
	return Never
}

func (g *gaugeLimiter) retryAfter(n float64, now time.Duration) time.Duration {
	refreshIn := g.usage.refreshIn(now)
	if n > g.usage.ceilingAsked {
		return later(refreshIn, g.usage.ceilingUntil-now)
	}
	return refreshIn
}

// ---- limiters without a server

// The kinds of a Limit.
const (
	TokenBucket   = "TOKEN_BUCKET"
	FixedWindow   = "FIXED_WINDOW"
	SlidingWindow = "SLIDING_WINDOW"
)

// Limit is a limit of one process, for each resource and key: the fallback "local" of permits. A
// TokenBucket has Rate in units per second and Size in units. The other kinds have Limit in units
// and Window.
type Limit struct {
	Kind   string
	Rate   float64
	Size   float64
	Limit  float64
	Window time.Duration
}

func (l *Limit) check() error {
	switch l.Kind {
	case TokenBucket:
		if !(isAmount(l.Rate) && l.Rate > 0 && isAmount(l.Size) && l.Size > 0) {
			return errors.New("Local: a TOKEN_BUCKET needs a rate and a size above 0")
		}
		if l.Limit != 0 || l.Window != 0 {
			return errors.New("Local: a TOKEN_BUCKET has no limit and no window")
		}
	case FixedWindow, SlidingWindow:
		if !(l.Limit >= 0 && l.Limit <= 1e8) {
			return errors.New("Local.Limit: must be from 0 to 1e8")
		}
		if l.Window <= 0 || l.Window > durationMax {
			return errors.New("Local.Window: must be more than 0, and at most 1e8 seconds")
		}
		if l.Rate != 0 || l.Size != 0 {
			return fmt.Errorf("Local: a %s has no rate and no size", l.Kind)
		}
	default:
		return errors.New("Local.Kind: must be TOKEN_BUCKET, FIXED_WINDOW or SLIDING_WINDOW")
	}
	return nil
}

// mulDiv returns a * b / c without overflow. The result must fit.
func mulDiv(a, b, c int64) int64 {
	high, low := bits.Mul64(uint64(a), uint64(b))
	result, _ := bits.Div64(high, low, uint64(c))
	return int64(result)
}

type localState struct {
	at           time.Duration // of a bucket
	saved        float64
	number       int64 // of a window
	here, before int64 // grains
}

// localLimiters are limiters by key, for as many keys as were used last.
type localLimiters struct {
	limit   Limit
	maxKeys int
	states  *ordered[itemPair, *localState]
}

func newLocalLimiters(limit Limit, maxKeys int) *localLimiters {
	return &localLimiters{limit, maxKeys, newOrdered[itemPair, *localState]()}
}

// take takes n units. It returns 0 if they are allowed, else the time until they could be; Never:
// they never fit.
func (l *localLimiters) take(key itemPair, n float64, now time.Duration) time.Duration {
	state, found := l.states.get(key)
	if !found {
		if l.states.size() >= l.maxKeys {
			l.states.remove(l.states.first().key) // it was used the longest time ago
		}
		state = &localState{at: now, saved: math.Inf(1), number: -1}
	}
	l.states.renew(key, state)
	if l.limit.Kind == TokenBucket {
		return l.takeTokens(state, n, now)
	}
	return l.takeWindow(state, n, now)
}

func (l *localLimiters) takeTokens(state *localState, n float64, now time.Duration) time.Duration {
	unitTime := ticksOfNano * second / l.limit.Rate
	most := math.Ceil(l.limit.Size * unitTime)
	state.saved = math.Min(most, float64(now-state.at)*ticksOfNano+state.saved)
	state.at = now
	price := math.Ceil(n * unitTime)
	if price > most*(1+1e-9) {
		return Never
	}
	price = math.Min(price, most)
	if price > state.saved {
		missing := math.Ceil((price - state.saved) / ticksOfNano)
		return later(1, time.Duration(math.Min(missing, float64(Never))))
	}
	state.saved -= price
	return 0
}

func (l *localLimiters) takeWindow(state *localState, n float64, now time.Duration) time.Duration {
	length := int64(l.limit.Window)
	number := int64(now) / length
	rest := length - int64(now)%length
	if number != state.number {
		state.before = 0
		if number == state.number+1 {
			state.before = state.here
		}
		state.here = 0
		state.number = number
	}
	most := int64(l.limit.Limit * grainsOfUnit)
	grains := int64(grainsOf(n))
	if grains > most {
		return Never
	}
	slides := l.limit.Kind == SlidingWindow
	carried := int64(0)
	if slides {
		carried = state.before - mulDiv(state.before, length-rest, length)
	}
	if state.here+carried+grains <= most {
		state.here += grains
		return 0
	}
	if slides {
		return slidingDelay(state, most-grains, rest, length)
	}
	return time.Duration(rest)
}

// slidingDelay returns the time until at most `room` of the grains of two windows count.
func slidingDelay(state *localState, room, rest, length int64) time.Duration {
	if state.here > room {
		return time.Duration(rest + length - mulDiv(room, length, state.here))
	}
	return later(1, time.Duration(rest-mulDiv(room-state.here, length, state.before)))
}
