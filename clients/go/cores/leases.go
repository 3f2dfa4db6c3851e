package cores

import (
	"fmt"
	"math"
	"math/rand"
	"sort"
	"time"
)

const (
	leaseItemsMax   = 500 // of a request
	metShare        = 0.999
	lookInterval    = 200 * time.Millisecond
	roundsMax       = 6
	roundsMaxAlive  = 2
	methodGet       = "get_capacity"
	methodRelease   = "release_capacity"
	outcomeGranted  = "GRANTED"
	stateOpen       = "open"
	stateClosing    = "closing"
	stateClosed     = "closed"
	stateReady      = "ready"
	stateRequested  = "requested"
	stateBackingOff = "backing_off"
)

// The kinds of a resource.
const (
	Rate  = "rate"  // units per second
	Gauge = "gauge" // units in use at once
)

// The fallbacks of a resource: what may be used without a lease.
const (
	// Safe is the safe capacity that a server has sent last, and before it SafeCapacity.
	Safe = "safe"
	// Pessimistic is nothing.
	Pessimistic = "pessimistic"
	// Optimistic is all wants.
	Optimistic = "optimistic"
)

// ResourceOptions say how a resource is used. The zero value of a field is its default.
type ResourceOptions struct {
	// Kind is Rate (the default) or Gauge.
	Kind string
	// Wants are constant wants. Without it the wants follow use, within the next three bounds.
	Wants float64
	// HasWants makes the wants constant also if Wants is 0.
	HasWants bool
	// WantsMinimum is what an idle resource wants. The default is 1 for a rate, and 0 for a gauge.
	WantsMinimum float64
	// HasWantsMinimum says that a WantsMinimum of 0 is meant.
	HasWantsMinimum bool
	// WantsMaximum is by default 1e15.
	WantsMaximum float64
	// WantsInitial is the least in the first window. The default is WantsMinimum.
	WantsInitial float64
	// Window is how long use counts. The default is 10 s.
	Window time.Duration
	// Priority is from 0 to 15; the default is 1.
	Priority int
	// HasPriority says that a Priority of 0 is meant.
	HasPriority bool
	// Burst is how much time a rate saves. The default is 0.1 s.
	Burst time.Duration
	// BurstUnits replaces Burst, if more than 0.
	BurstUnits float64
	// Fallback is Safe (the default), Pessimistic or Optimistic.
	Fallback string
	// SafeCapacity is used until a server sends one; -1 is unlimited.
	SafeCapacity float64
	// Shadow allows what would be refused, and counts it as excess.
	Shadow bool
}

// complete returns the options with their defaults, checked.
func (o ResourceOptions) complete(resourceID string) (ResourceOptions, error) {
	if o.Kind == "" {
		o.Kind = Rate
	}
	if o.Fallback == "" {
		o.Fallback = Safe
	}
	if o.WantsMaximum == 0 {
		o.WantsMaximum = amountMax
	}
	if o.Window == 0 {
		o.Window = 10 * time.Second
	}
	if o.Burst == 0 {
		o.Burst = 100 * time.Millisecond
	}
	if o.Priority == 0 && !o.HasPriority {
		o.Priority = 1
	}
	o.HasWants = o.HasWants || o.Wants != 0
	err := firstError(checkID("resourceID", resourceID, false),
		checkOneOf("Kind", o.Kind, Rate, Gauge),
		checkOneOf("Fallback", o.Fallback, Safe, Pessimistic, Optimistic),
		checkInteger("Priority", int64(o.Priority), 0, 15),
		checkDuration("Window", o.Window, 10*time.Millisecond),
		checkDuration("Burst", o.Burst, time.Microsecond),
		checkAmount("BurstUnits", o.BurstUnits))
	if err == nil && o.SafeCapacity != 0 && o.Fallback != Safe {
		err = fmt.Errorf("SafeCapacity: needs the fallback safe")
	}
	if err == nil && o.SafeCapacity != unlimited {
		err = checkAmount("SafeCapacity", o.SafeCapacity)
	}
	if err == nil {
		err = o.completeWants()
	}
	return o, err
}

// completeWants checks the wants. Their minimum is what an idle resource wants (K6).
func (o *ResourceOptions) completeWants() error {
	err := firstError(checkAmount("WantsMaximum", o.WantsMaximum), checkAmount("Wants", o.Wants),
		checkAmount("WantsMinimum", o.WantsMinimum), checkAmount("WantsInitial", o.WantsInitial))
	if err != nil {
		return err
	}
	if o.HasWants {
		if o.Wants > o.WantsMaximum {
			return fmt.Errorf("Wants: must be at most WantsMaximum")
		}
		if o.WantsMinimum != 0 || o.HasWantsMinimum || o.WantsInitial != 0 {
			return fmt.Errorf("WantsMinimum, WantsInitial: need wants that follow use")
		}
	}
	if o.WantsMinimum == 0 && !o.HasWantsMinimum && o.Kind == Rate {
		o.WantsMinimum = 1
	}
	if o.WantsInitial == 0 {
		o.WantsInitial = o.WantsMinimum
	}
	o.HasWantsMinimum, o.HasPriority = true, true
	if !o.HasWants && (o.WantsInitial < o.WantsMinimum || o.WantsInitial > o.WantsMaximum) {
		return fmt.Errorf("WantsInitial: must be from WantsMinimum to WantsMaximum")
	}
	return nil
}

// difference returns the name of the first option that differs, or "".
func (o *ResourceOptions) difference(other *ResourceOptions) string {
	for _, option := range []struct {
		name    string
		differs bool
	}{
		{"Wants", o.Wants != other.Wants || o.HasWants != other.HasWants},
		{"WantsMinimum", o.WantsMinimum != other.WantsMinimum},
		{"WantsMaximum", o.WantsMaximum != other.WantsMaximum},
		{"WantsInitial", o.WantsInitial != other.WantsInitial},
		{"Window", o.Window != other.Window},
		{"Priority", o.Priority != other.Priority},
		{"Burst", o.Burst != other.Burst},
		{"BurstUnits", o.BurstUnits != other.BurstUnits},
		{"Fallback", o.Fallback != other.Fallback},
		{"SafeCapacity", o.SafeCapacity != other.SafeCapacity},
		{"Shadow", o.Shadow != other.Shadow},
	} {
		if option.differs {
			return option.name
		}
	}
	return ""
}

func newLimiter(options *ResourceOptions, now time.Duration) limiter {
	if options.Kind == Gauge {
		return newGauge()
	}
	return newRate(options.Burst, options.BurstUnits, now)
}

type lease struct {
	id       int64
	node     string
	capacity float64
	end      time.Duration
}

// ResourceInfo is the state of a resource.
type ResourceInfo struct {
	ResourceID string
	// Leased says whether there is a lease. Without one, the fallback is in force.
	Leased bool
	// Capacity is in force; -1: unlimited.
	Capacity float64
	Wants    float64
	InUse    float64
	// ExpiresIn is the time until the end of the lease; 0: there is none.
	ExpiresIn time.Duration
	// Outcome is that of the last response: GRANTED, TRY_LATER, UNMATCHED or FULL; "": none yet.
	Outcome string
	// Reason says why the lease is less than the wants.
	Reason   string
	Learning bool
	// SafeCapacity is the last one of a server. HasSafeCapacity says whether there is one.
	SafeCapacity    float64
	HasSafeCapacity bool
	// Allowed, Refused and Excess are units. Excess was allowed only because of shadow mode or the
	// kill switch.
	Allowed      float64
	Refused      float64
	Excess       float64
	OverReleased int
	// Failures are the requests of the client for leases without a useful response.
	Failures int
	// OptionsDiffer is an option of a later opening that is not in force.
	OptionsDiffer string
}

// Resource is a resource of a client: its lease, its limiter, and its wants. Only its core changes
// it. A closing resource waits until its release is due, and a closed one is freed.
type Resource struct {
	core    *LeaseCore
	id      string
	options ResourceOptions
	limiter limiter
	opened  int
	state   string
	lease   *lease

	inRequest                         bool
	confirmAt, requestedAt, requestAt time.Duration
	renewAt                           time.Duration
	refreshInterval                   time.Duration
	requestedWants, claimed           float64
	met, cut, whole, learning         bool
	outcome, reason                   string
	safeCapacity                      float64
	hasSafeCapacity                   bool
	differs                           string
	waiting, waitingPeak, waited      float64
	waitingAt, lookAt                 time.Duration
	publishedLeased                   bool
	publishedCapacity                 float64
	followsUse                        bool
	wants                             float64
	estimator                         *estimator
}

func newResource(core *LeaseCore, id string, options ResourceOptions, now time.Duration) *Resource {
	r := &Resource{core: core, id: id, state: stateOpen, confirmAt: Never, lookAt: Never,
		requestAt: now, renewAt: now, waitingAt: now, options: options}
	r.limiter = newLimiter(&r.options, now)
	r.start(options, now)
	return r
}

// ID returns the resource_id.
func (r *Resource) ID() string { return r.id }

// Differs returns the name of an option of a later opening that is not in force, or "".
func (r *Resource) Differs() string { return r.differs }

// Delay returns the time until n units may be used; Never: the capacity in force never allows them.
func (r *Resource) Delay(n float64, now time.Duration) time.Duration {
	return r.limiter.delay(n, later(now, r.core.now))
}

// ShowDemand says that a caller waits, so that the core looks at the demand soon.
func (r *Resource) ShowDemand(now time.Duration) {
	usage := r.limiter.counts()
	usage.unmetSince = earlier(usage.unmetSince, now)
}

// Release gives units of a gauge back. It fails if more are given back than are in use.
func (r *Resource) Release(units float64) error {
	gauge, ok := r.limiter.(*gaugeLimiter)
	if !ok {
		return fmt.Errorf("%s: is a rate", r.id)
	}
	return gauge.release(units)
}

// start starts with the options of a first opening.
func (r *Resource) start(options ResourceOptions, now time.Duration) {
	if options.Kind != r.options.Kind {
		r.limiter = newLimiter(&options, now)
	}
	r.options = options
	r.differs = ""
	r.followsUse = !options.HasWants
	r.wants = options.Wants
	if r.followsUse {
		r.wants = options.WantsInitial
	}
	usage := r.limiter.counts()
	usage.shadow = options.Shadow
	usage.killSwitch = r.core.killed
	usage.unmetSince = Never
	r.estimator = newEstimator(r.sampled(now), &r.options)
}

// ---- what is in force

func (r *Resource) isLeased(now time.Duration) bool { return r.lease != nil && now < r.lease.end }

// fallback returns the capacity without a lease (K4).
func (r *Resource) fallback() float64 {
	switch r.options.Fallback {
	case Pessimistic:
		return 0
	case Optimistic:
		return r.wants
	}
	return r.knownSafeCapacity()
}

func (r *Resource) knownSafeCapacity() float64 {
	if r.hasSafeCapacity {
		return r.safeCapacity
	}
	return r.options.SafeCapacity
}

func (r *Resource) inUse() float64 {
	if gauge, ok := r.limiter.(*gaugeLimiter); ok {
		return gauge.inUse / grainsOfUnit
	}
	return 0
}

// publish tells the limiter what is in force.
func (r *Resource) publish(now time.Duration) {
	s := schedule{after: r.fallback()}
	r.publishedLeased = r.isLeased(now)
	r.publishedCapacity = s.after
	if r.publishedLeased {
		s.amount, s.until = r.lease.capacity, r.lease.end
		r.publishedCapacity = s.amount
	}
	largest := r.limiter.counts().largest / grainsOfUnit
	if r.followsUse {
		largest = math.Max(largest, r.estimator.largest)
	}
	r.limiter.set(s, largest, now)
	r.announce()
}

// announce tells the limiter what may come next, for RetryAfter.
func (r *Resource) announce() {
	usage, core, e := r.limiter.counts(), r.core, r.estimator
	grows := r.followsUse && r.met
	at := r.requestAt
	if grows {
		at = 0
	}
	if core.state == stateBackingOff {
		at = later(at, core.retryAt)
	} else if core.state == stateRequested && core.failures > 0 {
		at = core.sentAt + core.timeout
	}
	most := r.wants
	if r.followsUse {
		most = e.maximum
	}
	usage.ceiling = math.Max(most, r.publishedCapacity)
	usage.ceilingAsked = math.Max(e.ceiling, r.publishedCapacity)
	usage.expected = 0
	if !r.publishedLeased || grows {
		usage.expected = r.wants
	}
	usage.growthTime, usage.ceilingUntil = 0, 0
	if r.followsUse {
		usage.growthTime, usage.ceilingUntil = e.window/5, e.ceilingUntil
	}
	usage.refreshAt = at
	if at == Never {
		usage.refreshAt = 0
	}
}

// ---- wants that follow use

// SetWaiting says how many units callers wait for, so that the wants rise (L4).
func (r *Resource) SetWaiting(units float64, now time.Duration) {
	r.waited += r.waiting * secondsOf(now-r.waitingAt)
	r.waitingAt = now
	r.waiting = units
	r.waitingPeak = math.Max(r.waitingPeak, units)
}

// Waiting returns how many units callers wait for.
func (r *Resource) Waiting() float64 { return r.waiting }

func (r *Resource) reading(now time.Duration) reading {
	usage := r.limiter.counts()
	out := reading{at: now, unmetSince: usage.unmetSince, allowed: usage.allowed,
		refused: usage.unmet, largest: usage.largest / grainsOfUnit,
		waiting: r.waiting, inUse: r.inUse()}
	if gauge, ok := r.limiter.(*gaugeLimiter); ok {
		out.peak = gauge.peak / grainsOfUnit
	} else {
		out.waited = r.waited + r.waiting*secondsOf(now-r.waitingAt)
		out.waitingPeak = r.waitingPeak
	}
	return out
}

// sampled returns a reading with the largest values since the last sample, and resets them.
func (r *Resource) sampled(now time.Duration) reading {
	out := r.reading(now)
	r.limiter.counts().largest = 0
	r.waitingPeak = r.waiting
	if gauge, ok := r.limiter.(*gaugeLimiter); ok {
		gauge.peak = gauge.inUse
	}
	return out
}

func (r *Resource) supply(now time.Duration) supply {
	return supply{amount: math.Max(r.publishedCapacity, r.knownSafeCapacity()),
		exhausted: r.isLeased(now) && !r.met, idleAfter: r.refreshInterval / 2}
}

// notice notes when to look at the counts after a refusal. A gauge has no rate to measure. Without
// more capacity, refusals wait for a sample.
func (r *Resource) notice(s supply) {
	since := r.limiter.counts().unmetSince
	r.lookAt = since
	if since != Never && !r.estimator.isGauge {
		r.lookAt = since + lookMin
	}
	if s.exhausted {
		r.lookAt = Never
	}
}

func (r *Resource) noticeRefusal(now time.Duration) {
	if r.limiter.counts().unmetSince != Never {
		r.notice(r.supply(now))
	}
}

// wakeAt returns when the core has work for the resource, except requests.
func (r *Resource) wakeAt(now time.Duration) time.Duration {
	at := Never
	if r.lease != nil && r.publishedLeased {
		at = r.lease.end
	}
	if !r.followsUse {
		return at
	}
	return earlier(earlier(at, r.lookAt),
		earlier(r.estimator.due(), r.estimator.checkAt(r.supply(now))))
}

// work does what is due.
func (r *Resource) work(now time.Duration) {
	if r.followsUse {
		r.updateWants(now)
	}
	if r.publishedLeased && !r.isLeased(now) {
		r.publish(now)
	}
}

func (r *Resource) updateWants(now time.Duration) {
	e, usage := r.estimator, r.limiter.counts()
	s := r.supply(now)
	r.notice(s)
	due, look := e.due(), r.lookAt
	if now < earlier(earlier(due, look), e.checkAt(s)) {
		return
	}
	current := r.reading(now)
	if now >= look {
		usage.unmetSince, r.lookAt = Never, Never
		e.look(current, s)
	}
	if now >= due {
		if s.exhausted {
			usage.unmetSince = Never
		}
		e.sample(r.sampled(now), s)
	} else if now < look {
		e.check(current, s)
	}
	r.applyWants(e.wants, now)
	if e.isIdle(now, s) && r.wants < r.requestedWants {
		r.expedite(0, now) // L4: asks at once
	}
	r.grow(now)
}

// applyWants sets the wants, and asks sooner if they have changed by more than a tenth (K1).
func (r *Resource) applyWants(wants float64, now time.Duration) {
	r.wants = wants
	r.noteWants(now)
	if r.options.Fallback == Optimistic {
		r.publish(now)
	}
	r.announce()
}

func (r *Resource) noteWants(now time.Duration) {
	wants := r.asked()
	tenth := r.requestedWants / 10
	if wants < r.requestedWants-tenth || wants > r.requestedWants+tenth {
		r.expedite(earlier(5*time.Second, r.refreshInterval/2), now)
	}
}

// asked returns the wants of a request. If leases are whole units, so are they.
func (r *Resource) asked() float64 {
	if r.whole {
		return math.Ceil(r.wants * (1 - 1e-12))
	}
	return r.wants
}

// grow asks at once after unmet demand, if the last response granted all wants (K1).
func (r *Resource) grow(now time.Duration) {
	e := r.estimator
	worth := 1.1
	if e.isGauge && e.largest > r.publishedCapacity {
		worth = 1 + 1e-9
	} else if !e.isGauge && r.publishedCapacity < 0 {
		worth = 1 + 1e-9
	}
	if e.unmet && r.wants > r.requestedWants*worth && r.met {
		r.expedite(0, now)
	}
}

func (r *Resource) expedite(minimum, now time.Duration) {
	if r.outcome != "" {
		r.requestAt = earlier(r.requestAt, later(now, r.requestedAt+minimum))
	}
}

// ---- requests and responses

// due returns when the resource wants to be in a request.
func (r *Resource) due() time.Duration {
	if r.inRequest || r.state == stateClosed {
		return Never
	}
	return earlier(r.requestAt, r.confirmAt)
}

// giveBack lowers the lease to what is wanted, if servers answer (R3).
func (r *Resource) giveBack(now time.Duration) {
	if r.isLeased(now) && r.core.failures == 0 && r.asked() < r.lease.capacity {
		r.lease.capacity = r.asked()
		r.publish(now)
	}
}

// half returns when half of the refresh interval has passed.
func (r *Resource) half() time.Duration { return r.requestedAt + r.refreshInterval/2 }

// renewal returns the item of a request, or nil if there is nothing to confirm (R3).
func (r *Resource) renewal(now time.Duration) map[string]any {
	wants := r.asked()
	r.giveBack(now)
	claim := r.inUse()
	if r.isLeased(now) {
		claim = math.Max(claim, r.lease.capacity)
	}
	if r.confirmAt <= now && now < r.requestAt && claim >= r.claimed {
		r.confirmAt = now + time.Second
		return nil
	}
	r.claimed = claim
	r.requestedWants = wants
	r.inRequest = true
	item := map[string]any{"resource_id": r.id, "wants": wants, "priority": r.options.Priority}
	if r.inUse() > 0 {
		item["outstanding"] = r.inUse()
	}
	if r.isLeased(now) {
		item["has"] = map[string]any{"id": r.lease.id, "node": r.lease.node,
			"capacity": r.lease.capacity, "expires_in": secondsOf(r.lease.end - now)}
	}
	return item
}

// release returns the item of a release, or nil while units are in use (R10).
func (r *Resource) release(now time.Duration) map[string]any {
	r.giveBack(now)
	if r.inUse() > 0 {
		r.requestAt = earlier(r.lease.end, now+time.Second)
		return nil
	}
	item := map[string]any{"resource_id": r.id, "id": r.lease.id}
	r.lease = nil
	r.inRequest = true
	return item
}

// process processes the item of a response. If the lease that the request reported has ended
// meanwhile, the item has no effect (R2).
func (r *Resource) process(item *leaseItem, reported bool, sentAt, now time.Duration) {
	if reported && !r.isLeased(now) {
		r.requestAt = now
		return
	}
	r.outcome = item.outcome
	r.learning = item.learning
	granted := item.outcome == outcomeGranted
	r.met = granted && item.capacity >= r.requestedWants*metShare
	if item.hasSafeCapacity {
		r.safeCapacity, r.hasSafeCapacity = item.safeCapacity, true
	}
	interval := item.refreshInterval
	if granted {
		r.takeLease(item, sentAt+item.expiresIn, now)
		interval = earlier(interval, item.expiresIn/2)
	}
	r.schedule(interval, sentAt, now)
	if r.state == stateClosed {
		return
	}
	r.noteWants(now)
	r.publish(now)
	if r.followsUse && r.met {
		r.grow(now)
	}
}

func (r *Resource) takeLease(item *leaseItem, end, now time.Duration) {
	r.whole = item.whole
	r.reason = item.reason
	if r.isLeased(now) && r.lease.node == item.node {
		end = later(end, r.lease.end) // R9
	}
	r.lease = &lease{item.id, item.node, item.capacity, later(now, end)}
}

func (r *Resource) schedule(interval, sentAt, now time.Duration) {
	late := 1 + 0.05*r.core.random()
	cut := r.isLeased(now) && r.lease.capacity < r.claimed
	r.refreshInterval = later(interval, 10*time.Millisecond)
	r.requestedAt = earlier(now, sentAt+r.refreshInterval/2)
	r.renewAt = r.requestedAt + time.Duration(math.Round(float64(r.refreshInterval)*late))
	closing := r.state == stateClosing
	if closing {
		r.requestAt = later(r.requestAt, now)
	} else {
		r.requestAt = r.renewAt
	}
	r.confirmAt = Never
	if cut && !closing {
		r.confirmAt = now
		if r.cut {
			r.confirmAt = now + time.Second
		}
	}
	r.cut = cut
}

// endRequest takes the resource out of a request that has ended.
func (r *Resource) endRequest(now time.Duration) {
	r.inRequest = false
	if r.state == stateClosing && !r.isLeased(now) {
		r.state = stateClosed
	}
}

// leaseItem is one entry of a response to get_capacity.
type leaseItem struct {
	learning, hasSafeCapacity bool
	safeCapacity              float64
	outcome                   string
	refreshInterval           time.Duration
	expiresIn                 time.Duration
	id                        int64
	node, reason              string
	capacity                  float64
	whole                     bool
}

func readLeaseItem(entry reader, resourceID string) *leaseItem {
	if entry.text("resource_id", false) != resourceID {
		entry.fail("resource_id", "must be "+resourceID)
	}
	item := &leaseItem{learning: entry.flag("learning")}
	if entry.has("safe_capacity") {
		item.hasSafeCapacity = true
		item.safeCapacity = unlimited
		if entry.value["safe_capacity"] != float64(unlimited) {
			item.safeCapacity = entry.amount("safe_capacity", false)
		}
	}
	if entry.has("refused") {
		refused := entry.object("refused")
		item.outcome = refused.text("reason", false)
		item.refreshInterval = refused.duration("refresh_interval", false)
		if checkOneOf("", item.outcome, "TRY_LATER", "UNMATCHED", "FULL") != nil ||
			item.refreshInterval <= 0 {
			entry.fail("refused", "is not valid")
		}
		return item
	}
	gets := entry.object("gets")
	item.outcome = outcomeGranted
	item.refreshInterval = gets.duration("refresh_interval", false)
	item.id = gets.integer("id", integerMax)
	item.node = gets.text("node", false)
	item.capacity = gets.amount("capacity", false)
	item.expiresIn = gets.duration("expires_in", false)
	item.whole = gets.flag("whole")
	item.reason = gets.text("reason", true)
	if item.id == 0 || item.node == "" || item.refreshInterval <= 0 {
		entry.fail("gets", "is not valid")
	}
	return item
}

// LeaseOptions are those of a LeaseCore. The zero value of a field is its default.
type LeaseOptions struct {
	// RequestTimeout is how long a request may take. The default is 5 s.
	RequestTimeout time.Duration
	// ReleaseDelay is how long a release waits for the next opening. The default is 0.1 s; a
	// negative delay is none.
	ReleaseDelay time.Duration
	// Random returns a number in [0, 1) that spreads the requests of many clients.
	Random func() float64
}

type leaseUnderWay struct {
	resource *Resource
	reported bool // the request reports a lease
}

// LeaseCore requests leases for the resources of an application. One request at a time is under
// way.
type LeaseCore struct {
	clientID     string
	addresses    addresses
	timeout      time.Duration
	releaseDelay time.Duration
	random       func() float64
	now          time.Duration
	resources    *ordered[string, *Resource]
	state        string // ready, requested, or backing_off until retryAt
	lookAt       time.Duration
	killed       bool
	sentAt       time.Duration
	retryAt      time.Duration
	number       int
	failures     int // in a row
	failureCount int // since the start
	tried        int
	rounds       int
	roundsMax    int
	interval     time.Duration // the shortest refresh interval of the last response
	method       string
	underWay     []leaseUnderWay
}

// NewLeaseCore makes a core. addresses are those of all processes of a node, which are tried in
// turn.
func NewLeaseCore(clientID string, addresses []string, now time.Duration,
	options LeaseOptions) (*LeaseCore, error) {
	if options.RequestTimeout == 0 {
		options.RequestTimeout = 5 * time.Second
	}
	if options.ReleaseDelay == 0 {
		options.ReleaseDelay = 100 * time.Millisecond
	}
	options.ReleaseDelay = later(options.ReleaseDelay, 0)
	if options.Random == nil {
		options.Random = rand.Float64
	}
	own, err := newAddresses(addresses)
	err = firstError(checkID("clientID", clientID, false), err,
		checkDuration("RequestTimeout", options.RequestTimeout, time.Millisecond),
		checkDuration("ReleaseDelay", options.ReleaseDelay, 0))
	if err != nil {
		return nil, err
	}
	return &LeaseCore{clientID: clientID, addresses: own, timeout: options.RequestTimeout,
		releaseDelay: options.ReleaseDelay, random: options.Random, now: now,
		resources: newOrdered[string, *Resource](), state: stateReady, lookAt: Never,
		roundsMax: roundsMax, method: methodRelease}, nil
}

// ---- the calls of the application

// Open opens a resource. A resource that is open already stays as it is (K5).
func (c *LeaseCore) Open(resourceID string, given ResourceOptions,
	now time.Duration) (*Resource, error) {
	c.tick(now)
	options, err := given.complete(resourceID)
	if err != nil {
		return nil, err
	}
	resource, found := c.resources.get(resourceID)
	changesKind := found && resource.options.Kind != options.Kind
	if found && resource.opened > 0 {
		if changesKind {
			return nil, fmt.Errorf("Kind: %s is open as a %s", resourceID, resource.options.Kind)
		}
		resource.opened++
		if resource.differs == "" {
			resource.differs = options.difference(&resource.options)
		}
		return resource, nil
	}
	if changesKind && resource.inUse() > 0 {
		return nil, fmt.Errorf("Kind: %s has units in use", resourceID)
	}
	if !found || resource.state == stateClosed {
		resource = newResource(c, resourceID, options, c.now)
		c.resources.set(resourceID, resource)
	} else {
		c.reopen(resource, options)
	}
	resource.opened = 1
	if resource.followsUse {
		c.lookAt = earlier(c.lookAt, c.now+lookInterval)
	}
	resource.publish(c.now)
	return resource, nil
}

func (c *LeaseCore) reopen(resource *Resource, options ResourceOptions) {
	keeps := resource.isLeased(c.now) && !resource.inRequest &&
		options.Priority == resource.options.Priority && c.releaseDelay > 0
	resource.state = stateOpen
	resource.cut = false
	resource.requestAt = c.now
	if keeps {
		resource.requestAt = resource.renewAt
	}
	resource.start(options, c.now)
	if keeps {
		resource.noteWants(c.now)
	}
}

// Close ends one opening. The last one releases the lease, after the release delay unless atOnce.
func (c *LeaseCore) Close(resource *Resource, atOnce bool, now time.Duration) error {
	c.tick(now)
	if resource.opened == 0 {
		return fmt.Errorf("%s: is closed already", resource.id)
	}
	resource.opened--
	if resource.opened > 0 {
		return nil
	}
	resource.state = stateClosing
	resource.confirmAt = Never
	resource.renewAt = resource.requestAt
	resource.requestAt = c.now
	if !atOnce {
		resource.requestAt += c.releaseDelay
	}
	if !resource.inRequest && !resource.isLeased(c.now) {
		resource.state = stateClosed
	}
	c.forgetClosed()
	return nil
}

// SetWants sets constant wants. After this call the wants do not follow use.
func (c *LeaseCore) SetWants(resource *Resource, wants float64, now time.Duration) error {
	c.tick(now)
	if err := checkAmount("wants", wants); err != nil {
		return err
	}
	if wants > resource.options.WantsMaximum {
		return fmt.Errorf("wants: must be at most WantsMaximum")
	}
	resource.followsUse = false
	resource.applyWants(wants, c.now)
	return nil
}

// Take takes units.
func (c *LeaseCore) Take(resource *Resource, units float64, now time.Duration) Outcome {
	return resource.limiter.take(units, later(now, c.now))
}

// RetryAfter returns the time after a refusal until the same call can be allowed, or Never.
func (c *LeaseCore) RetryAfter(resource *Resource, units float64, now time.Duration) time.Duration {
	if !isAmount(units) {
		return Never
	}
	return resource.limiter.retryAfter(units, later(now, c.now))
}

// KillSwitch says whether what would be refused is allowed, and counts as excess (L5).
func (c *LeaseCore) KillSwitch(on bool) {
	c.killed = on
	for _, resource := range c.resources.values() {
		resource.limiter.counts().killSwitch = on
	}
}

// Resources returns all resources that are open, or have a lease.
func (c *LeaseCore) Resources() []*Resource { return c.resources.values() }

// Read returns the state of a resource.
func (c *LeaseCore) Read(resource *Resource, at time.Duration) ResourceInfo {
	now := later(at, c.now)
	usage := resource.limiter.counts()
	info := ResourceInfo{ResourceID: resource.id, Capacity: resource.fallback(),
		Wants: resource.wants, InUse: resource.inUse(), Outcome: resource.outcome,
		Learning: resource.learning, SafeCapacity: resource.safeCapacity,
		HasSafeCapacity: resource.hasSafeCapacity, Allowed: usage.allowed / grainsOfUnit,
		Refused: usage.refused / grainsOfUnit, Excess: usage.excess / grainsOfUnit,
		Failures: c.failureCount, OptionsDiffer: resource.differs}
	if resource.isLeased(now) {
		info.Leased = true
		info.Capacity = resource.lease.capacity
		info.ExpiresIn = resource.lease.end - now
		info.Reason = resource.reason
	}
	if gauge, ok := resource.limiter.(*gaugeLimiter); ok {
		info.OverReleased = gauge.overReleased
	}
	return info
}

// Failures returns how many requests had no useful response.
func (c *LeaseCore) Failures() int { return c.failureCount }

// Stop closes all resources at once. Run the loop until IsIdle.
func (c *LeaseCore) Stop(now time.Duration) {
	c.tick(now)
	for _, resource := range c.resources.values() {
		if resource.opened > 0 {
			resource.opened = 1
			_ = c.Close(resource, true, now) // it is open
		}
		resource.requestAt = earlier(resource.requestAt, c.now)
	}
}

// IsIdle returns whether all leases are released, and no request is under way.
func (c *LeaseCore) IsIdle() bool { return c.resources.size() == 0 && c.state != stateRequested }

// ---- the loop

// Due returns when Next wants to be called, or Never.
func (c *LeaseCore) Due() time.Duration {
	at, wake := Never, c.lookAt
	for place := c.resources.order.Front(); place != nil; place = place.Next() {
		resource := place.Value.(*pair[string, *Resource]).value
		at = earlier(at, resource.due())
		wake = earlier(wake, resource.wakeAt(c.now))
	}
	if c.state == stateRequested {
		at = c.sentAt + c.timeout
	} else if c.state == stateBackingOff {
		at = later(at, c.retryAt)
	}
	return earlier(at, wake)
}

// Next does what is due. It returns a request to send, or nil.
func (c *LeaseCore) Next(at time.Duration) *Request {
	c.tick(at)
	c.look()
	for _, resource := range c.resources.values() {
		if resource.wakeAt(c.now) <= c.now {
			resource.work(c.now)
		}
	}
	if c.state == stateRequested {
		if c.now < c.sentAt+c.timeout {
			return nil
		}
		c.backOff(roundsMax)
	}
	if c.state == stateBackingOff && c.now < c.retryAt {
		return nil
	}
	request := c.request()
	c.forgetClosed()
	return request
}

// Response processes a response. It returns what is wrong with it. body is the decoded JSON, with
// numbers as float64; nil, or anything but an object, is not valid.
func (c *LeaseCore) Response(request *Request, status int, body any, now time.Duration) error {
	c.tick(now)
	if c.state != stateRequested || request.Number != c.number {
		return nil
	}
	content := readBody(body, status)
	c.accept(content)
	if content.fault.err != nil {
		c.backOff(roundsMax)
	}
	c.forgetClosed()
	return content.fault.err
}

// Failed says that a request got no response.
func (c *LeaseCore) Failed(request *Request, now time.Duration) {
	c.tick(now)
	if c.state == stateRequested && request.Number == c.number {
		c.backOff(roundsMax)
		c.forgetClosed()
	}
}

// RetrySoon ends a pause early, because a master has answered permits. The next request comes at
// least a second after the last one, in case it fails again.
func (c *LeaseCore) RetrySoon(now time.Duration) {
	if c.state == stateBackingOff {
		c.retryAt = earlier(c.retryAt, later(now, c.sentAt+time.Second))
	}
}

// ---- private

func (c *LeaseCore) tick(now time.Duration) { c.now = later(c.now, now) }

func (c *LeaseCore) forgetClosed() {
	for _, resource := range c.resources.values() {
		if resource.state == stateClosed {
			c.resources.remove(resource.id)
		}
	}
}

// look checks for refusals, which make wants rise.
func (c *LeaseCore) look() {
	c.lookAt = Never
	for _, resource := range c.resources.values() {
		if resource.followsUse {
			c.lookAt = c.now + lookInterval
			resource.noticeRefusal(c.now)
		}
	}
}

// request makes a request, of renewals or of releases. If both are due, they alternate.
func (c *LeaseCore) request() *Request {
	methods := []string{methodRelease, methodGet}
	if c.method == methodRelease {
		methods = []string{methodGet, methodRelease}
	}
	for _, method := range methods {
		c.underWay = nil
		var items []map[string]any
		if method == methodGet {
			items = c.renewals()
		} else {
			items = c.releases()
		}
		if len(items) > 0 {
			c.method = method
			c.state = stateRequested
			c.sentAt = c.now
			c.number++
			return &Request{Address: c.addresses.current(), Method: method, Number: c.number,
				Lane: -1, Timeout: c.timeout,
				Message: map[string]any{"client_id": c.clientID, "resource": items}}
		}
	}
	return nil
}

// renewals renews those that are due, and then those past half their refresh interval (K1).
func (c *LeaseCore) renewals() []map[string]any {
	now := c.now
	var items []map[string]any
	add := func(resources []*Resource, at func(*Resource) time.Duration) {
		sort.SliceStable(resources, func(i, j int) bool {
			return at(resources[i]) < at(resources[j])
		})
		for _, resource := range resources {
			if len(items) == leaseItemsMax {
				return
			}
			if item := resource.renewal(now); item != nil {
				items = append(items, item)
				_, reported := item["has"]
				c.underWay = append(c.underWay, leaseUnderWay{resource, reported})
			}
		}
	}
	var due, halves []*Resource
	for _, resource := range c.resources.values() {
		if resource.state == stateOpen && resource.due() <= now {
			due = append(due, resource)
		}
	}
	add(due, (*Resource).due)
	if len(items) == 0 {
		return nil
	}
	for _, resource := range c.resources.values() {
		if resource.state == stateOpen && !resource.inRequest && resource.half() <= now {
			halves = append(halves, resource)
		}
	}
	add(halves, (*Resource).half)
	return items
}

func (c *LeaseCore) releases() []map[string]any {
	var items []map[string]any
	for _, resource := range c.resources.values() {
		waits := resource.state != stateClosing || resource.due() > c.now
		if waits || len(items) == leaseItemsMax {
			continue
		}
		if !resource.isLeased(c.now) {
			resource.state = stateClosed
			continue
		}
		if item := resource.release(c.now); item != nil {
			items = append(items, item)
			c.underWay = append(c.underWay, leaseUnderWay{resource, false})
		}
	}
	return items
}

func (c *LeaseCore) endItems(answered bool) {
	underWay := c.underWay
	c.underWay = nil
	for _, sent := range underWay {
		if !answered {
			sent.resource.requestAt = c.now
		}
		sent.resource.endRequest(c.now)
	}
}

// accept reads all of a response, and then processes it if nothing is wrong.
func (c *LeaseCore) accept(body reader) {
	if body.has("mastership") {
		master := body.object("mastership")
		if body.fault.err == nil {
			c.redirect(master.value["http_address"])
		}
		return
	}
	var items []*leaseItem
	if c.method == methodGet {
		for i, entry := range body.objects("response", len(c.underWay), "response[]") {
			items = append(items, readLeaseItem(entry, c.underWay[i].resource.id))
		}
	}
	if body.fault.err != nil {
		return
	}
	c.failures, c.tried, c.rounds = 0, 0, 0
	c.addresses.redirects = 0
	c.state = stateReady
	if c.method == methodRelease {
		c.endItems(true)
		return
	}
	interval := Never
	for _, item := range items {
		if item.expiresIn > 0 {
			interval = earlier(interval, earlier(item.refreshInterval, item.expiresIn/2))
		}
	}
	if interval != Never {
		c.interval = interval
	}
	underWay := c.underWay
	c.underWay = nil
	for i, sent := range underWay {
		sent.resource.inRequest = false
		sent.resource.process(items[i], sent.reported, c.sentAt, c.now)
		sent.resource.endRequest(c.now)
	}
}

func (c *LeaseCore) redirect(master any) {
	if c.addresses.follow(master) {
		c.state = stateReady
		c.endItems(false)
	} else {
		c.backOff(roundsMaxAlive)
	}
}

// backOff ends a request that has failed. The next address is asked at once. After a round of
// failures a pause follows (K2).
func (c *LeaseCore) backOff(most int) {
	c.state = stateBackingOff
	c.endItems(false)
	if c.tried > 0 && c.roundsMax < most {
		most = c.roundsMax
	}
	c.roundsMax = most
	c.failures++
	c.failureCount++
	c.tried++
	c.addresses.advance()
	c.retryAt = c.now
	if c.tried == len(c.addresses.own) {
		c.rounds++
		if c.rounds > c.roundsMax {
			c.rounds = c.roundsMax
		}
		c.tried = 0
		c.retryAt = c.now + c.pause()
	}
}

func (c *LeaseCore) pause() time.Duration {
	most := earlier(time.Second<<c.rounds, time.Minute)
	if c.interval > 0 {
		most = earlier(most, c.interval)
	}
	most = later(most, time.Second)
	spread := time.Duration(float64(most-time.Second) * c.random())
	next := Never
	for _, resource := range c.resources.values() {
		if resource.lease != nil && resource.lease.end > c.now {
			next = earlier(next, resource.lease.end)
		}
	}
	return later(earlier(time.Second+spread, (next-c.now)/4), time.Second)
}
