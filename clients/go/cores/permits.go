package cores

import (
	"errors"
	"fmt"
	"math"
	"math/rand"
	"strings"
	"time"
)

const (
	messageItems    = 4000
	messageText     = 256 << 10
	detailsMax      = 100
	refusalsMax     = 10000
	copiesMax       = 10000
	callsMax        = 100000
	reportsMax      = 10000
	settlesMax      = 10000
	settleFailures  = 60
	settleWait      = 300 * time.Second
	settleTime      = 45 * time.Second
	reportTime      = 660 * time.Second
	releaseTime     = 60 * time.Second
	renewalGap      = 10 * time.Millisecond
	messageWaitMin  = 100 * time.Millisecond
	breakerFailures = 5
	doublings       = 12
	doublingsAlive  = 2
	movedPause      = 50 * time.Millisecond
	movesMax        = 10
	mapPause        = time.Minute // after a server has refused to tell its map
	lanesDefault    = 4
)

// Counts are the counters of permits, with the meanings of doorman_permit_client_info.
type Counts struct {
	Granted, Refused, RefusedLocally int
	PrefetchGranted                  int
	Prefetched, Lapsed               float64
	FallbackGranted, FallbackRefused int
	Bypassed, TimedOut               int
	Reported, Lost                   int
	Uncharged                        float64
	Settled, Unsettled               int
	Messages, Failures, Pauses       int
	HoldsLost                        int
	// Moved is how often a call was sent again, because its shard moved.
	Moved int
	// Waiting and Holds are how many calls wait, and how many holds there are, now.
	Waiting, Holds int
	// IsPausing says whether the breaker is open.
	IsPausing bool
}

// The fallbacks of permits: what a permit gets if no server decides.
const (
	Open   = "open"   // it is granted
	Closed = "closed" // it is refused
	Local  = "local"  // a Limit of this process decides
)

// PermitPolicy says how a client treats its permits. The zero value of a field is its default.
type PermitPolicy struct {
	// Fallback is Open (the default), Closed or Local.
	Fallback string
	// Local is the limit of the fallback Local, and only of it.
	Local *Limit
	// Shadow grants each permit at once, and sends a copy to count refusals.
	Shadow bool
	// Drift is at least that of the servers. The default is 0.05.
	Drift float64
	// Prefetch is how far ahead units are taken for keys that are used often; 0: never.
	Prefetch time.Duration
	// MaxPause is the longest time for which the breaker opens. The default is 30 s.
	MaxPause time.Duration
	// ReportOnce gives reports a request_id, so each counts once.
	ReportOnce bool
	// Lanes is how many holds may wait in queues of a server at the same time. The default is 4; a
	// negative number is none.
	Lanes int
}

func (p PermitPolicy) complete() (PermitPolicy, error) {
	if p.Fallback == "" {
		p.Fallback = Open
	}
	if p.Drift == 0 {
		p.Drift = 0.05
	}
	if p.MaxPause == 0 {
		p.MaxPause = 30 * time.Second
	}
	if p.Lanes == 0 {
		p.Lanes = lanesDefault
	} else if p.Lanes < 0 {
		p.Lanes = 0
	}
	err := checkOneOf("Fallback", p.Fallback, Open, Closed, Local)
	switch {
	case err != nil:
	case (p.Fallback == Local) != (p.Local != nil):
		err = errors.New("Local: is needed for the fallback local, and only there")
	case !(p.Drift > 0 && p.Drift <= 1):
		err = errors.New("Drift: must be above 0, and at most 1")
	case p.Prefetch != 0 && (p.Prefetch < time.Millisecond || p.Prefetch > time.Minute):
		err = errors.New("Prefetch: must be 0, or from 1 ms to 60 s")
	case p.MaxPause < time.Second || p.MaxPause > time.Hour:
		err = errors.New("MaxPause: must be from 1 s to 3600 s")
	case p.Lanes > 64:
		err = errors.New("Lanes: must be at most 64")
	case p.Local != nil:
		err = p.Local.check()
	}
	return p, err
}

// refusal is a refusal of a server that is still valid (P22).
type refusal struct {
	until, maxWait, retryAt time.Duration
	least                   float64
	reason, limit           string
	quota                   float64
	window                  time.Duration
}

// PermitOptions are those of a PermitCore. The zero value of a field is its default.
type PermitOptions struct {
	Policy PermitPolicy
	// RequestTimeout is how long a request may take. The default is 1 s.
	RequestTimeout time.Duration
	// FirstNumber is the first request_id. By default it is random.
	FirstNumber int64
}

// PermitCore asks servers for permits on behalf of many callers.
type PermitCore struct {
	clientID       string
	policy         PermitPolicy
	now            time.Duration
	messageTimeout time.Duration
	main           *batch
	lanes          []*batch
	nodes          []*batch // those of the map, and unused ones
	byName         map[string]*batch
	shards         *shardMap     // nil: none is known
	mapBatch       *batch        // asks for a map next, or now
	mapAskAt       time.Duration // no server is asked for a map before this time
	laneTurn       int           // the index of the batch whose permit a lane has sent last
	local          *localLimiters
	lastNumber     int64
	killed         bool
	counts         Counts
	decided        []*Call
	changes        *ordered[*hold, struct{}]
	timers         timers
	holds          *ordered[int64, *hold]
	refusals       *ordered[itemPair, *refusal]
	copies         *ordered[int64, time.Duration]
	learning       map[*Call]struct{}
	moved          *ordered[*Call, struct{}] // wait because they were refused as MOVED
	calls          *ordered[*Call, *Call]    // without a result, except renewals and releases
	settles        int
	stocks         *stocks
}

// NewPermitCore makes a core. addresses are those of all processes of a node, which are tried in
// turn.
func NewPermitCore(clientID string, addresses []string, now time.Duration,
	options PermitOptions) (*PermitCore, error) {
	if options.RequestTimeout == 0 {
		options.RequestTimeout = time.Second
	}
	if options.FirstNumber == 0 {
		options.FirstNumber = 1 + rand.Int63n(requestIDMax)
	}
	policy, err := options.Policy.complete()
	own, wrong := newAddresses(addresses)
	err = firstError(checkID("clientID", clientID, false), err, wrong,
		checkDuration("RequestTimeout", options.RequestTimeout, time.Millisecond))
	if err != nil {
		return nil, err
	}
	c := &PermitCore{clientID: clientID, policy: policy, now: now,
		messageTimeout: options.RequestTimeout, lastNumber: options.FirstNumber - 1,
		changes: newOrdered[*hold, struct{}](), holds: newOrdered[int64, *hold](),
		refusals: newOrdered[itemPair, *refusal](), copies: newOrdered[int64, time.Duration](),
		learning: map[*Call]struct{}{}, moved: newOrdered[*Call, struct{}](), calls: newOrdered[*Call, *Call]()}
	c.main = &batch{lane: -1, addresses: own, state: stateReady, kind: kindWait}
	for lane := 0; lane < policy.Lanes; lane++ {
		c.lanes = append(c.lanes, &batch{lane: lane, isLane: true, addresses: own, source: c.main,
			state: stateReady, kind: kindWait})
	}
	if policy.Local != nil {
		c.local = newLocalLimiters(*policy.Local, localKeys)
	}
	c.stocks = &stocks{newOrdered[itemPair, *stock](), 0, policy.Prefetch, &c.counts}
	return c, nil
}

// ---- the calls of the application

// Acquire asks for a permit. Decision returns the decision within the timeout. At 0 the call waits
// for no server.
func (c *PermitCore) Acquire(permit Permit, timeout time.Duration, context any,
	now time.Duration) (*Call, error) {
	c.tick(now)
	if err := firstError(permit.check(), checkDuration("timeout", timeout, 0)); err != nil {
		return nil, err
	}
	permit.Items = append([]Item{}, permit.Items...)
	call := newCall(kindPermit, &permit)
	call.context = context
	if permit.Hold && permit.MaxWait > 0 {
		call.kind, call.alone = kindWait, true
	}
	if permit.Hold {
		c.ask(call, c.newHold(&permit))
	} else if permit.SettleWithin > 0 {
		call.number = c.number()
	}
	call.deadline = c.now + c.messageTimeout
	if timeout > 0 {
		call.deadline = c.now + timeout
	}
	if c.policy.Shadow || c.killed {
		c.bypass(call)
	} else if !c.spendStock(call) && c.start(call) && timeout == 0 {
		c.counts.TimedOut++
		c.fallBack(call, "")
	}
	return call, nil
}

// Report says what an action has really cost. Negative: units come back.
func (c *PermitCore) Report(item Item, cost float64, now time.Duration) error {
	c.tick(now)
	if err := item.check(); err != nil {
		return err
	}
	if !(math.Abs(cost) <= amountMax) {
		return errors.New("cost: must be a number from -1e15 to 1e15")
	}
	call := newCall(kindReport, &Permit{Items: []Item{item.withCost(0)}})
	call.cost, call.attended = cost, false
	if c.policy.ReportOnce {
		call.number = c.number()
	}
	c.start(call)
	return nil
}

// Settle says what a reservation has really cost (P27), and releases the hold of the same permit.
// costs has one cost for each item. With a timeout of more than 0, Decision returns the result. A
// reservation of 0 has no effect.
func (c *PermitCore) Settle(reservation int64, items []Item, costs []float64,
	timeout time.Duration, context any, now time.Duration) error {
	c.tick(now)
	if err := checkDuration("timeout", timeout, 0); err != nil {
		return err
	}
	if len(costs) != len(items) {
		return errors.New("costs: must have one cost for each item")
	}
	settled := make([]Item, len(items))
	for i, item := range items {
		settled[i] = item.withCost(costs[i])
		if err := settled[i].check(); err != nil {
			return err
		}
	}
	var result *Call
	if timeout > 0 {
		result = newCall(kindSettle, &Permit{Items: settled})
		result.context, result.deadline = context, c.now+timeout
		c.calls.set(result, result)
	}
	if c.settleIsLocal(reservation, result) {
		return nil
	}
	call := c.queueSettle(settled, reservation)
	if result != nil {
		call.peer, result.peer = result, call
		result.acquired.By = ByFallback
		c.move(result, callWaiting)
		c.timers.set(result, result.deadline)
	}
	c.Release(reservation, nil, c.now)
	return nil
}

// Release releases a hold, also before the decision on its permit. keep is what is kept of each
// item; nil: nothing.
func (c *PermitCore) Release(number int64, keep []float64, now time.Duration) {
	c.tick(now)
	h, found := c.holds.get(number)
	if !found {
		return
	}
	c.setChanged(h, false)
	call := h.call
	if h.state == holdAsked {
		c.endHold(h, h.wasSent)
	} else if h.state == holdInUse {
		for i := range h.amounts {
			kept := 0.0
			if i < len(keep) && keep[i] > 0 { // it is a number
				kept = keep[i]
			}
			h.amounts[i] = math.Min(h.amounts[i], kept)
		}
		h.mustRelease = true
		if h.isEmpty() {
			c.endHold(h, true)
		}
	}
	if call != nil && h.state == holdEnding {
		c.revoke(call)
	}
	c.plan(h)
}

// TransferOptions are those of Transfer.
type TransferOptions struct {
	// Amounts are how many units of each item to move; nil: all.
	Amounts []float64
	// TimeToLive is how long the transfer can be seized; 0: that of the limits.
	TimeToLive time.Duration
}

// Transfer moves units of a hold into a transfer, which another client can seize.
func (c *PermitCore) Transfer(number int64, options TransferOptions, timeout time.Duration,
	context any, now time.Duration) error {
	c.tick(now)
	if err := firstError(checkDuration("TimeToLive", options.TimeToLive, 0),
		checkDuration("timeout", timeout, time.Millisecond)); err != nil {
		return err
	}
	for _, amount := range options.Amounts {
		if err := checkAmount("Amounts", amount); err != nil {
			return err
		}
	}
	h, _ := c.holds.get(number)
	result := newCall(kindTransfer, noPermit)
	result.context, result.deadline = context, c.now+timeout
	c.calls.set(result, result)
	moved, total := c.takeUnits(h, options.Amounts)
	if h == nil || total <= 0 {
		c.revoke(result)
		return nil
	}
	call := newCall(kindTransfer, noPermit)
	call.attended, call.hold, call.amounts = false, h, moved
	call.number, call.timeToLive, call.peer = c.number(), options.TimeToLive, result
	result.peer = call
	result.acquired.By = ByFallback
	h.transfers++
	c.calls.set(call, call)
	c.move(call, callQueued)
	c.move(result, callWaiting)
	c.timers.set(result, result.deadline)
	c.plan(h)
	return nil
}

// Seize makes the units of a transfer a hold of this client. timeToLive is that of the hold; 0:
// that of the limits.
func (c *PermitCore) Seize(transferID int64, timeToLive, timeout time.Duration, context any,
	now time.Duration) (*Call, error) {
	c.tick(now)
	if err := firstError(checkInteger("transferID", transferID, 1, requestIDMax),
		checkDuration("timeToLive", timeToLive, 0),
		checkDuration("timeout", timeout, time.Millisecond)); err != nil {
		return nil, err
	}
	call := newCall(kindSeizure, noPermit)
	call.context, call.transferID, call.timeToLive = context, transferID, timeToLive
	call.deadline = c.now + timeout
	h := c.newHold(nil)
	h.transfer = transferID
	c.ask(call, h)
	c.start(call)
	return call, nil
}

// Hold returns the state of a hold.
func (c *PermitCore) Hold(number int64) Held {
	if h, found := c.holds.get(number); found {
		return h.describe()
	}
	return Held{Hold: number, Gone: true}
}

// KillSwitch says whether each permit is granted at once, and a copy is sent (P25).
func (c *PermitCore) KillSwitch(on bool) {
	if on {
		for _, call := range c.calls.values() {
			if call.attended {
				c.endGranted(call)
			}
		}
	}
	c.killed = on
}

// Stop refuses all calls that wait, and releases all holds. Run the loop until IsIdle.
func (c *PermitCore) Stop(now time.Duration) {
	c.tick(now)
	for _, call := range c.calls.values() {
		if call.attended && call.state != callDecided {
			c.fallBack(call, Closed)
		}
	}
	for _, h := range c.holds.values() {
		c.Release(h.number, nil, c.now)
	}
}

// IsIdle returns whether nothing is left to send.
func (c *PermitCore) IsIdle() bool { return c.calls.size() == 0 && c.holds.size() == 0 }

// Read returns the counters.
func (c *PermitCore) Read() Counts {
	counts := c.counts
	for _, call := range c.calls.values() {
		if !call.prefetches {
			counts.Waiting++
		}
	}
	counts.Holds = c.holds.size()
	counts.IsPausing = c.isOpen(c.main)
	return counts
}

// ---- the loop

// Due returns when Next wants to be called, or Never.
func (c *PermitCore) Due() time.Duration {
	if len(c.decided) > 0 || c.changes.size() > 0 {
		return c.now
	}
	due := earlier(c.timers.due(), c.stocks.due())
	for _, b := range c.busy() {
		due = earlier(due, c.batchDue(b))
	}
	return due
}

// Next does what is due. It returns a request to send, or nil.
func (c *PermitCore) Next(now time.Duration) *Request {
	c.tick(now)
	c.work()
	for _, b := range c.busy() {
		if request := c.batchRequest(b); request != nil {
			return request
		}
	}
	return nil
}

// Response processes a response. It returns what is wrong with it. body is the decoded JSON, with
// numbers as float64; nil, or anything but an object, is not valid.
func (c *PermitCore) Response(request *Request, status int, body any, now time.Duration) error {
	c.tick(now)
	b := c.batchOf(request)
	if b.state != stateRequested || b.number != request.Number {
		return nil
	}
	content := readBody(body, status)
	c.accept(b, content)
	if content.fault.err != nil && b.asksMap {
		c.refuseMap(b)
	} else if content.fault.err != nil {
		c.fail(b, false, content.fault.refused)
	}
	return content.fault.err
}

// Failed says that a request got no response.
func (c *PermitCore) Failed(request *Request, now time.Duration) {
	c.tick(now)
	b := c.batchOf(request)
	if b.state == stateRequested && b.number == request.Number {
		c.fail(b, false, false)
	}
}

// RetrySoon lets the test of an open breaker come early, because a master has answered leases
// (P23). It comes at least a second after the last message.
func (c *PermitCore) RetrySoon(now time.Duration) {
	if c.main.state == stateBackingOff {
		c.main.retryAt = earlier(c.main.retryAt, later(now, c.main.sentAt+time.Second))
	}
}

// Decision returns the next decision, or nil.
func (c *PermitCore) Decision(now time.Duration) *Acquired {
	c.tick(now)
	c.work()
	if len(c.decided) == 0 {
		return nil
	}
	call := c.decided[0]
	c.decided = c.decided[1:]
	acquired := call.acquired
	acquired.Context = call.context
	for len(acquired.Units) < 1 || len(acquired.Units) < len(call.permit.Items) {
		acquired.Units = append(acquired.Units, 0)
	}
	return acquired
}

// Change returns the next hold that has become smaller, or is gone, without a call of the
// application; or nil.
func (c *PermitCore) Change(now time.Duration) *Held {
	c.tick(now)
	c.work()
	first := c.changes.first()
	if first == nil {
		return nil
	}
	c.setChanged(first.key, false)
	held := first.key.describe()
	c.plan(first.key)
	return &held
}

// ---- calls

func (c *PermitCore) tick(now time.Duration) { c.now = later(c.now, now) }

func (c *PermitCore) number() int64 {
	c.lastNumber = c.lastNumber%requestIDMax + 1
	return c.lastNumber
}

// leave takes a call out of the list of its state.
func (c *PermitCore) leave(call *Call) {
	switch {
	case call.state == callQueued:
		call.port.queues[call.kind].remove(call)
	case call.state == callWaiting:
		delete(c.learning, call)
		c.moved.remove(call)
	case call.state == callSent && call.batch != nil:
		call.batch.sent[call.position].call = nil
		call.batch = nil
	}
}

// move moves a call to another state. One whose message had no answer becomes the first one in its
// queue.
func (c *PermitCore) move(call *Call, state callState) {
	returns := call.state == callSent
	c.leave(call)
	call.state = state
	call.isMoved = false
	if state != callQueued {
		return
	}
	call.port = c.route(call)
	if returns {
		call.port.queues[call.kind].unshift(call)
	} else {
		call.port.queues[call.kind].push(call)
	}
}

// finish ends a call. If a caller waits for it, Decision returns it.
func (c *PermitCore) finish(call *Call) {
	call.timer.at = Never
	c.part(call)
	c.move(call, callDecided)
	c.calls.remove(call)
	if call.kind == kindSettle && !call.attended {
		c.settles--
	}
	if call.hold != nil && call.hold.call == call {
		call.hold.call = nil
	}
	if call.attended {
		c.decided = append(c.decided, call)
	} else if call.hold != nil && call.hold.action == call {
		call.state = callNew
	}
}

func (c *PermitCore) part(call *Call) *Call {
	peer := call.peer
	call.peer = nil
	if peer != nil {
		peer.peer = nil
	}
	return peer
}

func (c *PermitCore) finishPeer(call *Call) {
	if peer := c.part(call); peer != nil {
		c.finish(peer)
	}
}

// start queues a new call, or decides on it at once. It returns whether it is queued.
func (c *PermitCore) start(call *Call) bool {
	c.calls.set(call, call)
	port := c.route(call)
	queued, most := port.queues[call.kind].size, callsMax
	var known *refusal
	index := 0
	if call.kind == kindReport {
		queued, most = queued+len(c.learning), reportsMax
	} else {
		index, known = c.knownRefusal(call)
	}
	if known != nil && known.reason != "UNMATCHED" { // UNMATCHED is no decision
		c.refuse(call, index, known)
		return false
	}
	if known != nil {
		call.acquired.Unmatched = call.permit.Items[index].Resource
	}
	if known != nil || queued >= most || c.isOpen(port) {
		c.fallBack(call, "")
		return false
	}
	c.move(call, callQueued)
	c.timers.set(call, call.deadline)
	return true
}

// endAsk ends a call that gets no hold, and the hold that it asked for.
func (c *PermitCore) endAsk(call *Call) {
	h := call.hold
	if h != nil {
		c.endHold(h, h.wasSent)
	}
	c.finish(call)
	if h != nil {
		c.plan(h)
	}
}

// ---- decisions without a server

func (c *PermitCore) grant(call *Call, inFull bool) {
	permit, acquired := call.permit, call.acquired
	acquired.Granted = true
	c.noteReservation(call, c.now+permit.SettleWithin)
	acquired.Units = nil
	for i, item := range permit.Items {
		units := permit.least(i)
		if inFull {
			units = item.units()
		}
		acquired.Units = append(acquired.Units, units)
	}
}

func (c *PermitCore) noteReservation(call *Call, settleBy time.Duration) {
	if call.permit.SettleWithin > 0 {
		call.acquired.Reservation = call.number
		call.acquired.SettleBy = settleBy
	}
}

// fallBack decides on a call without a server (P23). A report is lost. fallback: "" is that of the
// policy.
func (c *PermitCore) fallBack(call *Call, fallback string) {
	if call.prefetches {
		c.endPrefetch(call)
		return
	}
	if fallback == "" {
		fallback = c.policy.Fallback
	}
	call.acquired.By = ByFallback
	if call.kind == kindReport {
		c.counts.Lost++
	} else if !call.kind.isPermit() {
		fallback = Closed
	}
	if call.attended {
		c.decideByFallback(call, fallback)
	}
	if fallback == Closed && c.main.state == stateBackingOff {
		call.acquired.retryIn(c.main.retryAt - c.now)
	}
	if call.kind == kindSettle || call.kind == kindTransfer {
		c.finish(call)
	} else {
		c.endAsk(call)
	}
}

func (c *PermitCore) decideByFallback(call *Call, fallback string) {
	if fallback == Open || (fallback == Local && c.isLocal(call)) {
		c.grant(call, false)
		c.counts.FallbackGranted++
	} else {
		c.giveBack(call)
		c.counts.FallbackRefused++
	}
}

// isLocal returns whether the local limiters allow all items.
func (c *PermitCore) isLocal(call *Call) bool {
	for index, item := range call.permit.Items {
		wait := c.local.take(item.pair(), call.permit.least(index), c.now)
		if wait == 0 {
			continue
		}
		call.acquired.ItemIndex = index
		call.acquired.RetryAfter, call.acquired.HasRetryAfter = 0, false
		if wait != Never {
			call.acquired.retryIn(wait)
		}
		return false
	}
	return true
}

func (c *PermitCore) refuse(call *Call, index int, known *refusal) {
	acquired := call.acquired
	acquired.By = ByRefusal
	acquired.ItemIndex = index
	acquired.Reason = known.reason
	acquired.Limit = known.limit
	if call.permit.Detail {
		acquired.Quota, acquired.Window = known.quota, known.window
	}
	if known.retryAt != Never {
		acquired.retryIn(known.retryAt - c.now)
	}
	c.counts.RefusedLocally++
	if !call.attended {
		c.refuseCopy(call)
	}
	c.endAsk(call)
}

// bypass grants a permit in full, and sends a copy that no caller waits for (P25).
func (c *PermitCore) bypass(call *Call) {
	h := call.hold
	c.calls.set(call, call)
	double := newCall(call.kind, call.permit)
	double.attended, double.alone = false, call.alone
	double.deadline, double.number = call.deadline, call.number
	c.grant(call, true)
	call.acquired.By = ByBypass
	if h != nil {
		call.acquired.Hold = h.number
		c.detach(h)
	}
	c.finish(call)
	if h != nil {
		c.ask(double, h)
	}
	c.start(double)
}

// revoke refuses a call, because its caller has released the hold.
func (c *PermitCore) revoke(call *Call) {
	c.giveBack(call)
	*call.acquired = Acquired{By: ByCaller}
	if call.state != callDecided {
		c.finish(call)
	}
}

// endGranted ends a permit because of the kill switch: it is granted in full, or as a server has
// granted it already.
func (c *PermitCore) endGranted(call *Call) {
	h, isQueued := call.hold, call.state == callQueued || call.isMoved
	if !call.kind.isPermit() {
		return
	}
	if isQueued || call.state != callWaiting {
		call.acquired.By = ByBypass
		c.grant(call, true)
	}
	if h != nil && !isQueued {
		call.acquired.Hold = h.number
		c.detach(h)
	} else if h != nil {
		c.endHold(h, h.state == holdInUse || h.wasSent)
	}
	c.finish(call)
	if h != nil {
		c.plan(h)
	}
}

// ---- refusals that are still valid (P22)

func (c *PermitCore) knownRefusal(call *Call) (int, *refusal) {
	if c.refusals.size() == 0 || !call.kind.isPermit() {
		return 0, nil
	}
	for index, item := range call.permit.Items {
		known, found := c.refusals.get(item.pair())
		if found && c.now < known.until && call.permit.MaxWait <= known.maxWait &&
			call.permit.least(index) >= known.least {
			return index, known
		}
	}
	return 0, nil
}

func (c *PermitCore) rememberRefusal(call *Call, d *decision, sentAt time.Duration) {
	until := sentAt + d.validFor
	if len(call.permit.Items) != 1 || until <= c.now {
		return
	}
	for oldest := c.refusals.first(); oldest != nil; oldest = c.refusals.first() {
		if oldest.value.until > c.now && c.refusals.size() < refusalsMax {
			break
		}
		c.refusals.remove(oldest.key)
	}
	known := &refusal{until: until, least: call.permit.least(0), maxWait: call.sentMaxWait,
		retryAt: Never, reason: d.reason, limit: d.limit}
	if d.hasRetryAfter {
		known.retryAt = c.now + d.retryAfter
	}
	if len(d.figures) > 0 {
		for _, limit := range d.figures[0] {
			if !limit.shadow && limit.name == d.limit {
				known.quota, known.window = limit.quota, limit.window
				break
			}
		}
	}
	c.refusals.renew(call.permit.Items[0].pair(), known)
}

// ---- reservations (P27)

func (c *PermitCore) queueSettle(items []Item, number int64) *Call {
	call := newCall(kindSettle, &Permit{Items: items})
	call.attended, call.number = false, number
	call.deadline = c.now + settleWait
	call.waitsUntil = call.deadline
	c.calls.set(call, call)
	c.settles++
	c.move(call, callQueued)
	c.timers.set(call, call.deadline)
	return call
}

// giveBack settles a reservation that its caller does not get, with a cost of 0.
func (c *PermitCore) giveBack(call *Call) {
	granted := call.acquired.Granted && call.acquired.By == ByServer
	if !call.attended || call.permit.SettleWithin == 0 || !(granted || call.unanswered) {
		return
	}
	call.unanswered = false
	call.acquired.Reservation = 0
	if c.settles >= settlesMax {
		return
	}
	items := make([]Item, len(call.permit.Items))
	for i, item := range call.permit.Items {
		items[i] = item.withCost(0)
	}
	c.queueSettle(items, call.number)
}

// settleIsLocal decides on a settle that needs no message. It returns false if it needs one.
func (c *PermitCore) settleIsLocal(number int64, result *Call) bool {
	isCopy := c.copies.remove(number)
	full := c.settles >= settlesMax
	if number != 0 && !isCopy && !full {
		return false
	}
	if number != 0 && !isCopy {
		c.counts.Unsettled++
	}
	if result != nil {
		result.acquired.Granted = isCopy
		result.acquired.By = ByCaller
		if isCopy {
			result.acquired.By = ByBypass
		} else if number != 0 {
			result.acquired.By = ByFallback
		}
		c.finish(result)
	}
	return true
}

// refuseCopy notes that the copy of a permit was refused: its settle has no effect.
func (c *PermitCore) refuseCopy(call *Call) {
	c.counts.Bypassed++
	if call.permit.SettleWithin == 0 {
		return
	}
	for oldest := c.copies.first(); oldest != nil; oldest = c.copies.first() {
		if oldest.value > c.now && c.copies.size() < copiesMax {
			break
		}
		c.copies.remove(oldest.key)
	}
	c.copies.set(call.number, c.now+call.permit.SettleWithin+settleWait)
}

func (c *PermitCore) loseSettle(call *Call) {
	c.counts.Unsettled++
	c.finishPeer(call)
	c.finish(call)
}

func (c *PermitCore) decideSettle(call *Call, result *settled) {
	if result.reason == "LEARNING" {
		if call.failures == 0 {
			call.deadline = call.waitsUntil
		}
		c.move(call, callWaiting)
		c.timers.set(call, earlier(c.now+time.Second, call.deadline))
		return
	}
	if result.reason != "" {
		c.counts.Unsettled++
	} else {
		c.counts.Settled++
	}
	for i, charged := range result.charged {
		missing := call.permit.Items[i].units() - charged
		if result.unknown && missing > 0 {
			c.counts.Uncharged += missing
		}
	}
	if call.peer != nil {
		out := call.peer.acquired
		out.By = ByServer
		out.Granted = result.reason == ""
		out.Reason, out.Late, out.Unknown = result.reason, result.late, result.unknown
		out.Units = nil
		for i, charged := range result.charged {
			out.Units = append(out.Units, charged-result.returned[i])
		}
	}
	c.finishPeer(call)
	c.finish(call)
}

// ---- units taken ahead (P24)

func (c *PermitCore) usesStock(call *Call) bool {
	permit := call.permit
	return c.policy.Prefetch > 0 && call.kind == kindPermit && call.attended && call.hold == nil &&
		permit.SettleWithin == 0 && len(permit.Items) == 1 && !permit.Equal &&
		permit.Items[0].units() > 0
}

// spendStock grants a permit out of the stock. It returns false if this is not possible.
func (c *PermitCore) spendStock(call *Call) bool {
	if !c.usesStock(call) {
		return false
	}
	item := call.permit.Items[0]
	cost := grainsOf(item.units()) / grainsOfUnit
	stock := c.stocks.spend(item, cost, c.now)
	if stock == nil {
		return false
	}
	c.grant(call, true)
	acquired := call.acquired
	acquired.By, acquired.Warning, acquired.Limit = ByPrefetch, stock.warning, stock.limit
	acquired.Remaining = stock.remaining
	acquired.ResetAfter = later(stock.resetAt-c.now, 0)
	c.counts.PrefetchGranted++
	c.finish(call)
	c.stocks.use(stock, cost, c.now)
	c.refillStock(item)
	return true
}

// refillStock takes units ahead, if the stock has few and the key is used often.
func (c *PermitCore) refillStock(item Item) {
	stock := c.stocks.find(item)
	if stock == nil {
		return
	}
	missing := stock.missing()
	if missing < 1 {
		return
	}
	ahead := item.withCost(missing)
	ahead.HasMin = true
	call := newCall(kindPermit, &Permit{Items: []Item{ahead}})
	call.attended, call.prefetches = false, true
	port := c.route(call)
	if port.queues[kindPermit].size >= callsMax || port.failures >= breakerFailures {
		return
	}
	stock.asking = true
	c.calls.set(call, call)
	c.move(call, callQueued)
}

func (c *PermitCore) endPrefetch(call *Call) {
	if stock := c.stocks.find(call.permit.Items[0]); stock != nil {
		stock.asking = false
	}
	c.finish(call)
}

func (c *PermitCore) learnStock(call *Call, d *decision, sentAt time.Duration) {
	if !d.granted {
		c.stocks.learnRefusal(call.permit.Items[d.itemIndex], d.reason)
		return
	}
	item, grant := call.permit.Items[0], d.grants[0]
	var stock *stock
	if call.prefetches {
		units := math.Min(d.units[0], item.units())
		stock = c.stocks.receive(item, units, d.wait, sentAt, c.now)
	} else if c.usesStock(call) {
		stock = c.stocks.open(item, c.now)
	}
	if stock == nil {
		return
	}
	stock.warning = d.warning
	stock.remaining = grant.remaining
	stock.resetAt = c.now + grant.resetAfter
	stock.limit = grant.limit
	if call.prefetches {
		return
	}
	stock.grantedMost = math.Max(stock.grantedMost, d.units[0])
	c.stocks.lapse(stock, c.now)
	c.stocks.use(stock, d.units[0], c.now)
	c.refillStock(item)
}

// ---- holds

func (c *PermitCore) newHold(permit *Permit) *hold {
	h := &hold{number: c.number(), timer: timer{at: Never}}
	h.action = newCall(kindRenewal, noPermit)
	h.action.attended, h.action.hold = false, h
	if permit != nil {
		for _, item := range permit.Items {
			h.items = append(h.items, item.pair())
		}
		h.amounts = make([]float64, len(h.items))
	}
	c.holds.set(h.number, h)
	return h
}

func (c *PermitCore) ask(call *Call, h *hold) {
	call.hold = h
	h.call = call
	call.number = h.number
}

func (c *PermitCore) detach(h *hold) {
	if h.call != nil {
		h.call.hold = nil
		h.call = nil
	}
}

func (c *PermitCore) setChanged(h *hold, changed bool) {
	if changed {
		c.changes.set(h, struct{}{})
	} else {
		c.changes.remove(h)
	}
	h.changed = changed
}

// act queues the renewal or the release of a hold.
func (c *PermitCore) act(h *hold, kind callKind) {
	h.action.kind, h.action.moves = kind, 0
	c.move(h.action, callQueued)
}

// plan does what a hold needs next, or plans when to look at it.
func (c *PermitCore) plan(h *hold) {
	action := h.action
	ending := h.state == holdEnding
	over := ending && c.now >= h.giveUpAt
	if over {
		h.mustRelease = false
	}
	obsolete := ending || h.mustRelease
	if action.kind == kindRelease && h.transfers == 0 {
		obsolete = over
	}
	if (action.state == callQueued || action.state == callWaiting) && obsolete {
		c.finish(action)
	}
	if action.state == callNew && h.mustRelease && h.transfers == 0 {
		c.act(h, kindRelease)
	}
	idle := action.state == callNew
	busy := h.mustRelease || h.asking || h.transfers > 0 || h.changed
	if ending && idle && !busy {
		c.detach(h)
		h.timer.at = Never
		c.holds.remove(h.number)
		return
	}
	at := Never
	if ending && !over {
		at = h.giveUpAt
	}
	if h.state == holdInUse {
		at = h.end
		if idle && !h.isEmpty() {
			at = earlier(h.end, h.renewAt)
		}
	}
	c.timers.set(h, at)
}

// endHold ends a hold that its application no longer uses.
func (c *PermitCore) endHold(h *hold, mustRelease bool) {
	inUse := h.state == holdInUse
	if h.state == holdEnding {
		return
	}
	c.detach(h)
	h.state = holdEnding
	h.mustRelease = mustRelease
	h.giveUpAt = c.now + releaseTime
	if inUse {
		h.giveUpAt = h.end + h.life
	}
}

// extend sets the end of a hold that a server has granted or renewed (P8).
func (c *PermitCore) extend(h *hold, begin, life time.Duration) {
	h.begin = begin
	h.life = life
	h.end = later(h.end, begin+life)
	h.renewAt = later(begin+life/3, c.now+renewalGap)
}

func (c *PermitCore) loseHold(h *hold, mustRelease bool) {
	c.endHold(h, mustRelease)
	if h.isEmpty() {
		return
	}
	c.counts.HoldsLost++
	c.setChanged(h, true)
}

// renewHolds queues the renewals of all holds that are past half of the time to their renewal.
func (c *PermitCore) renewHolds() {
	for place := c.holds.order.Front(); place != nil; place = place.Next() {
		h := place.Value.(*pair[int64, *hold]).value
		due := earlier(h.begin+h.life/6, h.renewAt) <= c.now
		if h.state == holdInUse && h.action.state == callNew && due && h.end > c.now &&
			!h.isEmpty() {
			c.act(h, kindRenewal)
			c.timers.set(h, h.end)
		}
	}
}

func (c *PermitCore) workHold(h *hold) {
	if h.state == holdInUse && h.end > c.now {
		c.renewHolds()
		return
	}
	if h.state == holdInUse {
		c.loseHold(h, true)
	}
	c.plan(h)
}

// takeUnits takes units out of a hold, for a transfer. It returns them, and their sum.
func (c *PermitCore) takeUnits(h *hold, amounts []float64) (moved []float64, total float64) {
	if h == nil || h.state != holdInUse {
		return nil, 0
	}
	moved = make([]float64, len(h.amounts))
	for i, has := range h.amounts {
		moved[i] = has
		if amounts != nil {
			moved[i] = 0
			if i < len(amounts) {
				moved[i] = math.Min(has, amounts[i])
			}
		}
		h.amounts[i] = has - moved[i]
		total += moved[i]
	}
	return moved, total
}

func (c *PermitCore) endTransfer(call *Call) {
	h := call.hold
	h.transfers--
	c.finishPeer(call)
	c.finish(call)
	if h.state == holdInUse && h.transfers == 0 && h.isEmpty() {
		c.endHold(h, h.mustRelease)
	}
	c.plan(h)
}

// ---- which node a call goes to (N9)

// route returns where a call goes: to the owner of its shard. If its node is not known or does not
// answer, or if the call has failed once, a server of the options forwards it. No call waits to find
// out whether a node answers, because this client may not reach it.
func (c *PermitCore) route(call *Call) *batch {
	if c.shards == nil || call.failures > 0 {
		return c.main
	}
	node := c.byName[c.ownerOf(call)]
	if node == nil {
		return c.main
	}
	if node.answers {
		return node
	}
	node.probes = node.probes || c.now >= node.retryAt
	return c.main
}

// ownerOf returns the name of a node. The ids of holds and transfers tell their shard. All other
// calls have items.
func (c *PermitCore) ownerOf(call *Call) string {
	h, id := call.hold, call.transferID
	acts := h != nil && h.action == call
	if acts || call.kind == kindTransfer {
		if id = h.id; id == 0 {
			id = h.transfer
		}
	}
	switch {
	case id != 0:
		return c.shards.ownerOfID(id)
	case acts:
		return c.shards.ownerOf(h.items[0])
	}
	return c.shards.ownerOf(call.permit.Items[0].pair())
}

func (c *PermitCore) isNode(b *batch) bool { return b != c.main && !b.isLane }

// useMap takes a later map, and moves the calls in the queues. A node without an address that may
// be used has no batch.
func (c *PermitCore) useMap(m *shardMap) {
	needsTLS := false
	for _, address := range c.main.addresses.own {
		needsTLS = needsTLS || isTLS(address)
	}
	last, stay, own := c.byName, map[*batch]bool{}, map[string][]string{}
	for _, node := range m.nodes {
		own[node.name] = usable(node.addresses, needsTLS)
		stay[last[node.name]] = len(own[node.name]) > 0
	}
	var idle []*batch
	for _, node := range c.nodes {
		if !stay[node] && node.state != stateRequested {
			idle = append(idle, node)
		}
	}
	c.shards, c.byName = m, map[string]*batch{}
	for _, node := range m.nodes {
		if len(own[node.name]) == 0 {
			continue
		}
		b := last[node.name]
		if b == nil && len(idle) > 0 {
			b, idle = idle[len(idle)-1], idle[:len(idle)-1]
		} else if b == nil {
			b = c.newNode()
		}
		isSame := strings.Join(b.addresses.own, " ") == strings.Join(own[node.name], " ")
		if b.node != node.name || !isSame {
			b.node, b.addresses = node.name, addresses{own: own[node.name]}
			b.answers, b.probes, b.failures, b.retryAt = false, false, 0, 0
		}
		c.byName[node.name] = b
	}
	for _, b := range c.busy() {
		c.follow(b)
	}
	for place := c.moved.order.Front(); place != nil; place = place.Next() {
		c.timers.set(place.Value.(*pair[*Call, struct{}]).key, c.now)
	}
}

func (c *PermitCore) newNode() *batch {
	b := &batch{lane: len(c.lanes) + len(c.nodes), state: stateReady, kind: kindWait}
	c.nodes = append(c.nodes, b)
	return b
}

// follow moves the calls in the queues of a batch that go elsewhere now.
func (c *PermitCore) follow(b *batch) {
	for kind := range b.queues {
		for call := b.queues[kind].first; call != nil; {
			next, port := call.after, c.route(call)
			if port != b {
				c.move(call, callQueued)
				if call.kind.hasFallback() && c.isOpen(port) {
					c.fallBack(call, "")
				}
			}
			call = next
		}
	}
}

// askMap lets a server be asked for its map, unless another one is, or was a moment ago.
func (c *PermitCore) askMap(b *batch) {
	if c.mapBatch == nil && c.now >= c.mapAskAt && !c.isOpen(b) {
		c.mapBatch = b
	}
}

// epoch returns that of the map; 0: none is known.
func (c *PermitCore) epoch() int64 {
	if c.shards == nil {
		return 0
	}
	return c.shards.epoch
}

// noteEpoch notes the epoch of a response. A server that has a later map is asked for it.
func (c *PermitCore) noteEpoch(b *batch, epoch any) {
	if number, ok := epoch.(float64); ok && number > float64(c.epoch()) {
		c.askMap(b)
	}
}

func (c *PermitCore) mapRequest(b *batch) *Request {
	b.asksMap, b.sent = true, nil
	b.timeout = c.messageTimeout
	return c.send(b, "discovery", map[string]any{"map_epoch": c.epoch()})
}

func (c *PermitCore) endMapRequest(b *batch, pause time.Duration) {
	b.asksMap, b.probes, b.state = false, false, stateReady
	if c.mapBatch == b {
		c.mapBatch, c.mapAskAt = nil, c.now+pause
	}
}

// refuseMap processes an answer without a map. The server may serve permits all the same.
func (c *PermitCore) refuseMap(b *batch) {
	c.endMapRequest(b, mapPause)
	if c.isNode(b) && !b.answers {
		c.delay(b)
	}
}

// acceptMap processes the answer to a DISCOVERY. A process that is not master tells its map too.
func (c *PermitCore) acceptMap(b *batch, body reader) {
	var m *shardMap
	if body.has("map") {
		m = readMap(body)
	}
	isMaster, probes := body.flag("is_master"), c.isNode(b) && !b.answers
	var master any
	if !isMaster && probes {
		master = body.object("mastership").value["http_address"]
	}
	if body.fault.err != nil {
		return
	}
	b.addresses.redirects = 0
	if isMaster {
		b.failures, b.answers = 0, true
	} else if probes {
		b.answers = b.addresses.follow(master)
		if !b.answers {
			c.delay(b)
		}
	}
	if m == nil || m.epoch <= c.epoch() {
		c.endMapRequest(b, movedPause)
		return
	}
	c.endMapRequest(b, 0)
	c.useMap(m)
}

// ---- messages

// busy returns all that can have a message under way, or one to send.
func (c *PermitCore) busy() []*batch {
	out := append([]*batch{c.main}, c.lanes...)
	for _, node := range c.nodes {
		if !node.isIdle() || c.wantsMap(node) {
			out = append(out, node)
		}
	}
	return out
}

func (c *PermitCore) wantsMap(b *batch) bool { return b.probes || b == c.mapBatch }

func (c *PermitCore) batchOf(request *Request) *batch {
	switch lane := request.Lane; {
	case lane < 0:
		return c.main
	case lane < len(c.lanes):
		return c.lanes[lane]
	default:
		return c.nodes[lane-len(c.lanes)]
	}
}

// isOpen returns whether no new call may wait for a message: the breaker is open. A node has none:
// while it fails, its calls go to the servers of the options.
func (c *PermitCore) isOpen(b *batch) bool {
	if b != c.main {
		return false
	}
	if c.main.state == stateBackingOff {
		return c.now < c.main.retryAt
	}
	return c.main.state == stateRequested && c.main.failures >= breakerFailures
}

// nextKind returns the kind of the next message, or -1. The kinds alternate. Permits that may wait
// travel in lanes, if there are lanes.
func (c *PermitCore) nextKind(b *batch) callKind {
	for i := callKind(1); i <= kindCount; i++ {
		kind := (b.kind + i) % kindCount
		if b.queues[kind].size > 0 && !(kind == kindWait && len(c.lanes) > 0) {
			return kind
		}
	}
	return -1
}

func (c *PermitCore) batchDue(b *batch) time.Duration {
	switch {
	case b.state == stateRequested:
		return b.sentAt + b.timeout
	case b.isLane:
		due := Never
		for _, other := range c.sources() {
			if other.queues[kindWait].size > 0 {
				due = earlier(due, c.opensAt(other))
			}
		}
		return due
	case c.wantsMap(b) || c.nextKind(b) >= 0:
		return c.opensAt(b)
	}
	return Never
}

// opensAt returns when a message may be sent.
func (c *PermitCore) opensAt(b *batch) time.Duration {
	if b.state == stateBackingOff {
		return later(b.retryAt, c.now)
	}
	if c.isOpen(b) {
		return Never
	}
	return c.now
}

// sources returns all that have permits for lanes.
func (c *PermitCore) sources() []*batch { return append([]*batch{c.main}, c.nodes...) }

// work ends the calls and holds whose time has come, and renews holds.
func (c *PermitCore) work() {
	for owner := c.timers.take(c.now); owner != nil; owner = c.timers.take(c.now) {
		switch owner := owner.(type) {
		case *hold:
			c.workHold(owner)
		case *Call:
			c.workCall(owner)
		}
	}
	c.stocks.forget(c.now)
}

func (c *PermitCore) workCall(call *Call) {
	switch {
	case call.isMoved:
		c.resume(call)
	case call.kind == kindSettle && !call.attended:
		c.workSettle(call)
	case call.kind == kindReport && call.state == callWaiting:
		c.workReport(call)
	case call.state == callWaiting:
		c.finish(call)
	default:
		c.counts.TimedOut++
		c.fallBack(call, "")
	}
}

func (c *PermitCore) workSettle(call *Call) {
	if c.now >= call.deadline {
		c.loseSettle(call)
	} else {
		c.move(call, callQueued)
		c.timers.set(call, call.deadline)
	}
}

// workReport sends a report again that waits because a server learns, or loses it.
func (c *PermitCore) workReport(call *Call) {
	if c.now >= call.waitsUntil {
		c.fallBack(call, "")
	} else if c.isOpen(c.route(call)) {
		c.timers.set(call, c.now+time.Second)
	} else {
		c.move(call, callQueued)
		c.timers.set(call, call.deadline)
	}
}

func (c *PermitCore) batchRequest(b *batch) *Request {
	if b.state == stateRequested {
		if c.now < b.sentAt+b.timeout {
			return nil
		}
		c.fail(b, false, false)
	}
	if c.wantsMap(b) && !c.isOpen(b) {
		return c.mapRequest(b)
	}
	source, kind := b, kindWait
	if b.isLane {
		source = c.findSource(b)
	} else {
		kind = c.nextKind(b)
	}
	if source == nil || kind < 0 || c.isOpen(source) {
		return nil
	}
	b.kind, b.source = kind, source
	entries := c.fill(b, &source.queues[kind])
	return c.send(b, methods[kind],
		map[string]any{"client_id": c.clientID, kind.list(): entries})
}

func (c *PermitCore) send(b *batch, method string, message map[string]any) *Request {
	b.sentAt = c.now
	b.state = stateRequested
	b.number++
	c.counts.Messages++
	return &Request{Address: b.addresses.current(), Method: method, Number: b.number,
		Lane: b.lane, Timeout: b.timeout, Message: message}
}

// findSource finds the batch whose permit a lane sends next, in turn, or nil. After a redirect a
// lane keeps its batch, unless another lane has sent the permit.
func (c *PermitCore) findSource(lane *batch) *batch {
	others := c.sources()
	isReady := func(b *batch) bool { return b.queues[kindWait].size > 0 && !c.isOpen(b) }
	keeps := lane.addresses.redirects > 0 && isReady(lane.source)
	for i := range others {
		index := (c.laneTurn + 1 + i) % len(others)
		if keeps && others[index] != lane.source || !isReady(others[index]) {
			continue
		}
		c.laneTurn = index
		if !keeps {
			beginLane(lane, others[index])
		}
		return others[index]
	}
	return nil
}

// beginLane gives the next message of a lane the address that its batch uses now, or another one if
// the permit has failed before.
func beginLane(lane, source *batch) {
	from := &source.addresses
	failed := source.queues[kindWait].first.failures % len(from.own)
	lane.addresses = addresses{own: from.own, index: (from.index + failed) % len(from.own)}
	if failed == 0 {
		lane.addresses.redirect = from.redirect
	}
}

// fill fills a message with calls of one kind (P21). It sets how long to wait for its response.
func (c *PermitCore) fill(b *batch, queue *queue) []map[string]any {
	var entries []map[string]any
	last, size, text, details := c.now, 0, 0, 0
	b.sent = nil
	for call := queue.first; call != nil; call = queue.first {
		size += call.size()
		text += call.textBytes()
		if call.permit.Detail {
			details += call.size()
		}
		isFull := size > messageItems || text > messageText || details > detailsMax
		if len(b.sent) > 0 && (call.alone || b.sent[0].call.alone || isFull) {
			break
		}
		entry, until := c.put(b, call)
		entries = append(entries, entry)
		last = later(last, until)
	}
	most := c.messageTimeout
	if b.kind == kindWait {
		most += b.sent[0].call.sentMaxWait
	}
	b.timeout = earlier(most, later(last-c.now, messageWaitMin))
	return entries
}

// put puts a call into a message. It returns the entry, and until when the message should wait.
func (c *PermitCore) put(b *batch, call *Call) (map[string]any, time.Duration) {
	var h *hold
	if call.hold != nil && call.hold.call == call {
		h = call.hold
		h.asking, h.wasSent = true, true
	}
	c.move(call, callSent)
	call.batch = b
	call.position = len(b.sent)
	call.unanswered = true
	b.sent = append(b.sent, sent{call, h})
	if call.kind.isPermit() {
		c.setMaxWait(call)
		return call.permit.message(call.sentMaxWait, call.number), call.deadline
	}
	if call.kind == kindSettle && call.deadline == call.waitsUntil {
		call.deadline = earlier(call.waitsUntil, c.now+settleTime)
		c.timers.set(call, call.deadline)
	}
	return entryOf(call), c.now + c.messageTimeout
}

// setMaxWait limits max_wait of a message to what is left of the timeout. For a permit that may
// queue, some of this time is left for the answer.
func (c *PermitCore) setMaxWait(call *Call) {
	maxWait := call.permit.MaxWait
	rest := later(call.deadline-c.now, 0)
	if call.kind == kindWait {
		rest -= earlier(rest/4, time.Second)
		if call.waitsUntil == 0 {
			call.waitsUntil = c.now + maxWait
		}
		rest = earlier(rest, later(call.waitsUntil-c.now, 0))
	}
	call.sentMaxWait = earlier(maxWait, rest)
}

// fail ends a message that has failed. The breaker counts only those to the servers of the options.
// A node that fails has a pause, and its shards may have moved. alive: a server has answered that it
// knows no master. refused: a server has refused to read the message, which does not count, unless
// the message is sent again as it is.
func (c *PermitCore) fail(b *batch, alive, refused bool) {
	isNode := c.isNode(b)
	b.addresses.redirects = 0
	if !b.isLane && !(isNode && b.asksMap) {
		c.counts.Failures++
	}
	if b.asksMap && isNode {
		c.endMapRequest(b, 0)
	} else if b.asksMap {
		c.endMapRequest(b, time.Second)
	}
	again := b.kind == kindRenewal || b.kind == kindRelease || b.kind == kindTransfer
	if refused && !again {
		b.failures = 0
	} else if b == c.main {
		most := breakerFailures + doublings
		if alive {
			most = breakerFailures + doublingsAlive
		}
		b.failures++
		if b.failures > most {
			b.failures = most
		}
		b.addresses.advance()
	} else if isNode {
		c.delay(b)
	}
	c.returnAll(b, true, refused && len(b.sent) == 1)
	b.state = stateReady
	if b == c.main && b.failures >= breakerFailures {
		c.openBreaker()
	}
	if isNode {
		c.follow(b)
	}
	if isNode || (b.source != nil && c.isNode(b.source)) {
		c.askMap(c.main)
	}
}

// delay notes that a node does not answer. It is asked again at its next address, after a pause that
// doubles each time.
func (c *PermitCore) delay(node *batch) {
	node.answers = false
	if node.failures < doublings {
		node.failures++
	}
	node.retryAt = c.now + earlier(time.Second<<(node.failures-1), c.policy.MaxPause)
	node.addresses.advance()
}

func (c *PermitCore) openBreaker() {
	main := c.main
	main.state = stateBackingOff
	main.retryAt = c.now + earlier(time.Second<<(main.failures-breakerFailures), c.policy.MaxPause)
	c.counts.Pauses++
	for _, kind := range []callKind{kindPermit, kindWait, kindReport, kindSeizure} {
		for main.queues[kind].size > 0 {
			c.fallBack(main.queues[kind].first, "")
		}
	}
	for _, kind := range []callKind{kindTransfer, kindSettle} {
		for call := main.queues[kind].first; call != nil; call = call.after {
			c.finishPeer(call)
		}
	}
}

// returnAll takes all calls out of a message that has no valid response of a master. refused: a
// server has refused to read the only call.
func (c *PermitCore) returnAll(b *batch, failed, refused bool) {
	all := b.sent
	b.sent = nil
	for i := len(all) - 1; i >= 0; i-- {
		call, h := all[i].call, all[i].hold
		if call != nil {
			call.batch = nil
			c.returnCall(call, failed, refused)
		}
		if h == nil {
			continue
		}
		h.asking = false
		if h.call == nil && h.state == holdAsked {
			c.endHold(h, h.wasSent)
		}
		if h.state == holdEnding {
			h.mustRelease = c.now < h.giveUpAt
		}
		c.plan(h)
	}
}

// returnCall puts a call back into its queue, or ends it.
func (c *PermitCore) returnCall(call *Call, failed, refused bool) {
	if call.kind == kindRenewal || call.kind == kindRelease {
		h := call.hold
		h.mustRelease = h.mustRelease || call.kind == kindRelease
		c.finish(call)
		c.plan(h)
		return
	}
	if failed && call.kind != kindTransfer && !call.prefetches {
		call.failures++
	}
	c.move(call, callQueued)
	switch {
	case call.kind == kindTransfer:
		if c.now >= call.hold.end {
			c.endTransfer(call)
		}
	case failed && call.prefetches:
		c.endPrefetch(call)
	case failed:
		call.alone = true
		if call.kind == kindSettle {
			if refused || call.failures >= settleFailures {
				c.loseSettle(call)
			}
		} else if refused || call.failures > len(c.main.addresses.own) {
			c.fallBack(call, "")
		}
	}
}

// ---- calls that were refused as MOVED (N9)

// pause lets a call wait, and then be sent again: the shard of its key moves to another node. The
// refusal has no effect. So if no answer was lost, no server has granted the call.
func (c *PermitCore) pause(call *Call) {
	c.counts.Moved++
	call.unanswered = call.unanswered && call.failures > 0
	if call.prefetches {
		c.endPrefetch(call)
		return
	}
	if call.kind.hasFallback() && call.moves >= movesMax {
		c.fallBack(call, "")
		return
	}
	pause := earlier(movedPause<<call.moves, time.Second)
	if call.moves < movesMax {
		call.moves++
	}
	if call.kind == kindSettle && call.failures == 0 {
		call.deadline = call.waitsUntil
	}
	c.move(call, callWaiting)
	call.isMoved = true
	c.moved.set(call, struct{}{})
	if call.kind == kindReport {
		c.learning[call] = struct{}{}
	}
	c.timers.set(call, earlier(c.now+pause, endOfMoved(call)))
}

// endOfMoved returns until when a call is sent again. The action of a hold ends with its hold.
func endOfMoved(call *Call) time.Duration {
	if call.kind == kindTransfer {
		return call.hold.end
	}
	return call.deadline
}

// resume sends a call again, or ends it. It waits for a map that was asked for.
func (c *PermitCore) resume(call *Call) {
	end := endOfMoved(call)
	switch {
	case c.mapBatch != nil && c.now < end:
		c.timers.set(call, earlier(c.now+movedPause, end))
	case call.kind == kindSettle:
		c.workSettle(call)
	case c.now < end:
		c.move(call, callQueued)
		c.timers.set(call, call.deadline)
		if call.kind.hasFallback() && c.isOpen(call.port) {
			c.fallBack(call, "")
		}
	case call.kind == kindTransfer:
		c.endTransfer(call)
	default:
		c.counts.TimedOut++
		c.fallBack(call, "")
	}
}

// pauseSent processes a refusal as MOVED. Both the call and the hold can be nil.
func (c *PermitCore) pauseSent(call *Call, h *hold) {
	if call != nil {
		c.pause(call)
	}
	if h == nil {
		return
	}
	h.asking = false
	if h.call == nil && h.state == holdAsked {
		c.endHold(h, h.wasSent)
	}
	c.plan(h)
}

// ---- responses

// accept reads all of a response, and then processes it if nothing is wrong.
func (c *PermitCore) accept(b *batch, body reader) {
	if b.asksMap {
		if body.fault.err == nil {
			c.acceptMap(b, body)
		}
		return
	}
	if body.has("mastership") {
		master := body.object("mastership")
		if body.fault.err != nil {
			return
		}
		if b.addresses.follow(master.value["http_address"]) {
			b.state = stateReady
			c.returnAll(b, false, false)
		} else {
			c.fail(b, true, false)
		}
		return
	}
	all, kind, sentAt := b.sent, b.kind, b.sentAt
	name := kind.list()
	var results []any
	for i, entry := range body.objects(name, len(all), name+"[]") {
		results = append(results, c.read(kind, entry, all[i]))
	}
	if body.fault.err != nil {
		return
	}
	b.failures, b.addresses.redirects = 0, 0
	b.state = stateReady
	c.noteEpoch(b.source, body.value["map_epoch"])
	b.sent = nil
	for _, sent := range all {
		if sent.call != nil {
			sent.call.batch = nil
		}
	}
	for i, result := range results {
		c.process(kind, all[i], result, sentAt)
	}
}

// read returns the result of a call, or nil if nobody wants it.
func (c *PermitCore) read(kind callKind, entry reader, s sent) any {
	switch {
	case kind.isPermit() && s.call != nil:
		return readDecision(entry, len(s.call.permit.Items))
	case kind.isPermit() && s.hold != nil:
		return readDecision(entry, len(s.hold.items))
	case kind.isPermit():
		return nil
	case kind == kindReport:
		return readReported(entry)
	case kind == kindSettle && s.call != nil:
		return readSettled(entry, len(s.call.permit.Items))
	case kind == kindSettle:
		return readSettled(entry, -1)
	}
	return readHoldResult(entry, kind, s.call)
}

func (c *PermitCore) process(kind callKind, s sent, result any, sentAt time.Duration) {
	call := s.call
	if call != nil && call.state != callSent {
		call = nil // a result before it has ended this call
	}
	switch {
	case result == nil:
	case isMoved(result):
		c.pauseSent(call, s.hold)
	case kind.isPermit():
		c.decidePermit(call, s.hold, result.(*decision), sentAt)
	case kind == kindSeizure:
		if s.hold != nil {
			c.decideSeizure(call, s.hold, result.(*holdResult), sentAt)
		}
	case call == nil:
	case kind == kindReport:
		c.decideReport(call, result.(*reported))
	case kind == kindSettle:
		c.decideSettle(call, result.(*settled))
	case kind == kindTransfer:
		c.decideTransfer(call, result.(*holdResult), sentAt)
	default:
		c.decideAction(call, result.(*holdResult), sentAt)
	}
}

// decideHold processes the decision on a hold. It returns whether the application may use it.
func (c *PermitCore) decideHold(h *hold, holdID int64, begin, life time.Duration) bool {
	h.asking = false
	if holdID != 0 {
		h.id = holdID
	}
	if holdID != 0 && h.state == holdAsked {
		c.extend(h, begin, life)
		if h.end > c.now {
			h.state = holdInUse
			return true
		}
	}
	if h.state == holdAsked {
		c.endHold(h, holdID != 0)
	}
	h.mustRelease = holdID != 0 && c.now < h.giveUpAt
	return false
}

func (c *PermitCore) decidePermit(call *Call, h *hold, d *decision, sentAt time.Duration) {
	if h != nil {
		begin := sentAt + time.Duration(float64(d.waited)/(1+c.policy.Drift))
		if c.decideHold(h, d.holdID, begin, d.expiresIn) {
			h.amounts = append([]float64{}, d.units...)
		} else if call != nil && d.holdID != 0 { // it has ended already
			c.fallBack(call, "")
			call = nil
		}
	}
	if call != nil {
		c.decideCall(call, d, sentAt)
	}
	if h != nil {
		c.plan(h)
	}
}

func (c *PermitCore) decideCall(call *Call, d *decision, sentAt time.Duration) {
	call.unanswered = false
	if !d.granted {
		c.rememberRefusal(call, d, sentAt)
	}
	if c.policy.Prefetch > 0 {
		c.learnStock(call, d, sentAt)
	}
	if call.prefetches {
		c.endPrefetch(call)
		return
	}
	if !d.granted && d.reason == "UNMATCHED" {
		call.acquired.Unmatched = call.permit.Items[d.itemIndex].Resource
		c.fallBack(call, "")
		return
	}
	call.acquired.By = ByServer
	if d.granted {
		c.noteGrant(call, d, sentAt)
	} else {
		c.noteRefusal(call, d)
	}
	if call.permit.Detail {
		noteFigures(call.acquired, d)
	}
	ready := c.now + d.wait
	end := earlier(ready, call.deadline)
	call.acquired.Wait = ready - end
	if end <= c.now || !call.attended {
		c.finish(call)
	} else {
		c.move(call, callWaiting)
		c.timers.set(call, end)
	}
}

func (c *PermitCore) noteGrant(call *Call, d *decision, sentAt time.Duration) {
	acquired := call.acquired
	c.counts.Granted++
	acquired.Granted = true
	acquired.Units = append([]float64{}, d.units...)
	acquired.Warning = d.warning
	for _, grant := range d.grants {
		if grant.limit != "" && (acquired.Limit == "" || grant.remaining < acquired.Remaining) {
			acquired.Limit, acquired.Remaining = grant.limit, grant.remaining
			acquired.ResetAfter = grant.resetAfter
		}
	}
	if call.hold != nil {
		acquired.Hold = call.hold.number
		acquired.EndsAt = call.hold.end
	}
	if d.reservation {
		c.noteReservation(call, sentAt+d.settleWithin)
	}
}

func (c *PermitCore) noteRefusal(call *Call, d *decision) {
	acquired := call.acquired
	c.counts.Refused++
	acquired.Reason, acquired.ItemIndex, acquired.Limit = d.reason, d.itemIndex, d.limit
	if d.hasRetryAfter {
		acquired.retryIn(d.retryAfter)
	}
	if !call.attended {
		c.refuseCopy(call)
	}
}

// noteFigures copies the figures of the limit that the decision names.
func noteFigures(acquired *Acquired, d *decision) {
	for index, item := range d.figures {
		if !d.granted && index != d.itemIndex {
			continue
		}
		for _, limit := range item {
			if limit.shadow || limit.name != acquired.Limit ||
				(acquired.Quota > 0 && limit.remaining >= acquired.Remaining) {
				continue
			}
			acquired.Quota, acquired.Remaining = limit.quota, limit.remaining
			acquired.Window, acquired.ResetAfter = limit.window, limit.resetAfter
		}
	}
}

// decideReport processes the answer to a report. One that a server cannot remember is sent without
// a request_id (P28).
func (c *PermitCore) decideReport(call *Call, result *reported) {
	switch {
	case result.reason == "LEARNING":
		if call.waitsUntil == 0 {
			call.waitsUntil = c.now + reportTime
		}
		c.move(call, callWaiting)
		c.learning[call] = struct{}{}
		c.timers.set(call, c.now+time.Second)
	case result.reason != "" && result.reason != "REPEATED" && call.number != 0:
		call.number = 0
		c.move(call, callQueued)
	default:
		c.counts.Uncharged += math.Max(0, call.cost-result.charged)
		c.counts.Reported++
		c.finish(call)
	}
}

// decideAction processes the answer to a renewal or a release.
func (c *PermitCore) decideAction(action *Call, result *holdResult, sentAt time.Duration) {
	h := action.hold
	releases := action.kind == kindRelease
	c.finish(action)
	renewed := !releases && h.state == holdInUse && !h.isEmpty()
	switch {
	case releases && result.gone:
		h.renewAt = c.now
	case renewed && !result.gone:
		h.claims = false
		c.extend(h, sentAt, result.expiresIn)
		for i, amount := range result.amounts {
			if amount < h.amounts[i] {
				h.amounts[i] = amount
				c.setChanged(h, true)
			}
		}
	case renewed && h.claims:
		c.loseHold(h, false)
	case renewed:
		h.claims = true
		h.renewAt = c.now
	}
	c.plan(h)
}

func (c *PermitCore) decideTransfer(call *Call, result *holdResult, sentAt time.Duration) {
	h := call.hold
	if result.reason != "" && h.state == holdInUse && call.peer != nil {
		for i := range h.amounts {
			h.amounts[i] += call.amounts[i]
		}
	} else if result.reason != "" {
		h.mustRelease = true
	}
	if call.peer != nil {
		out := call.peer.acquired
		out.By = ByServer
		out.Reason = result.reason
		out.Granted = !result.gone && result.reason == ""
		if out.Granted {
			out.TransferID = result.id
			out.EndsAt = sentAt + result.expiresIn
			out.Units = append([]float64{}, call.amounts...)
		}
	}
	c.endTransfer(call)
}

func (c *PermitCore) decideSeizure(call *Call, h *hold, result *holdResult, sentAt time.Duration) {
	granted := !result.gone && result.reason == ""
	if granted && h.state == holdAsked {
		h.items = result.items
		h.amounts = result.amounts
	}
	used := c.decideHold(h, result.id, sentAt, result.expiresIn)
	if call != nil {
		out := call.acquired
		out.By = ByServer
		out.Granted = used
		out.Reason = result.reason
		if used {
			out.Hold = h.number
			out.EndsAt = h.end
			out.Units = append([]float64{}, h.amounts...)
			c.counts.Granted++
		} else {
			c.counts.Refused++
		}
		c.finish(call)
	}
	c.plan(h)
}

// String describes a request, for messages about it.
func (r *Request) String() string { return fmt.Sprintf("%s: %s", r.Address, r.Method) }
