package cores

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// This file has what the core of permits works with: calls, holds, and what it writes into
// messages. The rules (P, H) are those of the section >>permit_client of doorman_permits.h.

const (
	permitItemsMax = 100
	requestIDMax   = 1<<53 - 1
)

// callKind is what a call asks. The kinds alternate in the messages of a client, in this order.
type callKind int

const (
	kindPermit callKind = iota
	kindReport
	kindRenewal
	kindRelease
	kindTransfer
	kindSeizure
	kindSettle
	kindWait // a permit that may wait in the queue of a server
	kindCount
)

var methods = [kindCount]string{
	"acquire", "report", "renew", "release", "transfer", "seize", "settle", "acquire"}

func (k callKind) isPermit() bool { return k == kindPermit || k == kindWait }

// hasFallback returns whether the fallback decides on a call while the breaker is open.
func (k callKind) hasFallback() bool { return k.isPermit() || k == kindReport || k == kindSeizure }

// list returns the name that a message, or its response, has for the list of what it asks.
func (k callKind) list() string {
	if k.isPermit() {
		return "permit"
	}
	return "entry"
}

// callState is the state of a call: see the table in >>permit_client.
type callState int

const (
	callNew callState = iota
	callQueued
	callSent
	callWaiting
	callDecided
)

// Item is one item of a permit: units of one resource for one key.
type Item struct {
	// Resource is the resource_id.
	Resource string
	// Key says on whose behalf. It may be empty.
	Key string
	// Cost is how many units. The default is 1.
	Cost float64
	// Look makes the cost 0: the permit only looks.
	Look bool
	// Min lets the item accept this many units or more. The default is the cost.
	Min float64
	// HasMin says that a Min of 0 is meant.
	HasMin bool
}

func (i Item) check() error {
	err := firstError(checkID("Resource", i.Resource, false), checkID("Key", i.Key, true),
		checkAmount("Cost", i.Cost), checkAmount("Min", i.Min))
	if err == nil && i.Look && i.Cost != 0 {
		err = errors.New("Look: needs a cost of 0")
	}
	if err == nil && i.least() > i.units() {
		err = errors.New("Min: must be at most the cost")
	}
	return err
}

func (i Item) units() float64 {
	if i.Cost == 0 && !i.Look {
		return 1
	}
	return i.Cost
}

// Units returns the cost, which is 1 if neither Cost nor Look is set.
func (i Item) Units() float64 { return i.units() }

func (i Item) hasMin() bool { return i.HasMin || i.Min != 0 }

func (i Item) least() float64 {
	if i.hasMin() {
		return i.Min
	}
	return i.units()
}

func (i Item) pair() itemPair { return itemPair{i.Resource, i.Key} }

// withCost returns the same item with another cost.
func (i Item) withCost(cost float64) Item {
	return Item{Resource: i.Resource, Key: i.Key, Cost: cost, Look: cost == 0}
}

func (i Item) message() map[string]any {
	out := map[string]any{"resource_id": i.Resource, "cost": i.units()}
	if i.Key != "" {
		out["key"] = i.Key
	}
	if i.hasMin() {
		out["min"] = i.Min
	}
	return out
}

// itemPair is a resource and a key.
type itemPair struct{ resource, key string }

// Permit is what a permit asks. The zero value of a field is its default.
type Permit struct {
	Items []Item
	// MaxWait is how long the caller can wait until it uses the units.
	MaxWait time.Duration
	// Equal gives all items the same whole number of units.
	Equal bool
	// Detail gives the decision the figures of its limit.
	Detail bool
	// Hold says that the permit may hold units of CONCURRENCY, which must be released.
	Hold bool
	// TimeToLive is that of the hold; 0: that of the limits.
	TimeToLive time.Duration
	// Priority is from 0 to 15; the default is 1.
	Priority int
	// HasPriority says that a Priority of 0 is meant.
	HasPriority bool
	// Share ends the wait as SHARED when a hold of the same resource and key is released.
	Share bool
	// SettleWithin makes it a reservation, which must be settled within this time.
	SettleWithin time.Duration
}

func (p *Permit) check() error {
	if len(p.Items) < 1 || len(p.Items) > permitItemsMax {
		return fmt.Errorf("items: must be 1 to %d", permitItemsMax)
	}
	for _, item := range p.Items {
		if err := item.check(); err != nil {
			return err
		}
	}
	if err := firstError(checkDuration("MaxWait", p.MaxWait, 0),
		checkDuration("TimeToLive", p.TimeToLive, 0),
		checkInteger("Priority", int64(p.Priority), 0, 15)); err != nil {
		return err
	}
	if p.SettleWithin < 0 || p.SettleWithin > time.Hour {
		return errors.New("SettleWithin: must be from 0 to an hour")
	}
	if p.Share && len(p.Items) != 1 {
		return errors.New("Share: only for one item")
	}
	for _, item := range p.Items {
		if p.Equal && item.units() < p.least(0) {
			return errors.New("Equal: no whole number is between Min and Cost of all items")
		}
	}
	return nil
}

func (p *Permit) priority() int {
	if p.Priority == 0 && !p.HasPriority {
		return 1
	}
	return p.Priority
}

// least returns the least number of units that an item accepts.
func (p *Permit) least(index int) float64 {
	if !p.Equal {
		return p.Items[index].least()
	}
	most := 0.0
	for _, item := range p.Items {
		most = math.Max(most, item.least())
	}
	return math.Ceil(most)
}

func (p *Permit) message(maxWait time.Duration, number int64) map[string]any {
	out := map[string]any{"item": itemMessages(p.Items)}
	if number != 0 {
		out["request_id"] = number
	}
	if p.Equal {
		out["equal"] = true
	}
	if p.Detail {
		out["detail"] = true
	}
	if p.Share {
		out["share"] = true
	}
	if p.TimeToLive > 0 {
		out["time_to_live"] = secondsOf(p.TimeToLive)
	}
	if p.SettleWithin > 0 {
		out["settle_within"] = secondsOf(p.SettleWithin)
	}
	if maxWait > 0 {
		out["max_wait"] = secondsOf(maxWait)
	}
	if p.priority() != 1 {
		out["priority"] = p.priority()
	}
	return out
}

func itemMessages(items []Item) []map[string]any {
	out := make([]map[string]any, len(items))
	for i, item := range items {
		out[i] = item.message()
	}
	return out
}

// Acquired is a decision, or the result of a settle, transfer or seizure.
type Acquired struct {
	Granted bool
	// By is who has decided: one of the By constants.
	By string
	// Units are those of each item. Of a settle: what was charged in addition, or, if negative, what
	// came back.
	Units []float64
	// Limit is the limit with the fewest units left, or the one that refuses. Remaining and
	// ResetAfter are its figures.
	Limit      string
	Remaining  float64
	ResetAfter time.Duration
	// Quota and Window are, with Detail, further figures of this limit; 0: not known.
	Quota  float64
	Window time.Duration
	// Warning says that a limit has few units left.
	Warning bool
	// Wait is how much longer a grant whose caller timed out must wait before it uses the units.
	Wait time.Duration
	// Reason is that of a refusal; "": not known. Of a Client it is UNMATCHED, also of a grant, if
	// Unmatched is not "".
	Reason string
	// Unmatched is the resource for which the servers have no limits. The fallback has decided.
	Unmatched string
	// RetryAfter is how long to wait after a refusal, if HasRetryAfter. Else waiting does not help,
	// or it is not known.
	RetryAfter    time.Duration
	HasRetryAfter bool
	// ItemIndex is the item that was refused.
	ItemIndex int
	// Late and Unknown are those of a settle: it came after its time; the server did not know the
	// reservation.
	Late    bool
	Unknown bool
	// Hold is the number of the hold; 0: nothing is held.
	Hold int64
	// Reservation is the number of the reservation; 0: there is nothing to settle.
	Reservation int64
	// TransferID names a transfer, for the client that seizes it.
	TransferID int64
	// EndsAt is the end of the hold, and SettleBy that of the reservation, as times of the clock of
	// the core; 0: there is none.
	EndsAt   time.Duration
	SettleBy time.Duration
	// Context is what the caller has passed.
	Context any
}

// Who has decided on a call.
const (
	ByServer = "server"
	// ByRefusal: a server has refused the same a short time ago.
	ByRefusal = "refusal"
	// ByFallback: no server has decided.
	ByFallback = "fallback"
	// ByBypass: the kill switch or shadow.
	ByBypass = "bypass"
	// ByCaller: the hold was released before the decision.
	ByCaller = "caller"
	// ByPrefetch: it was granted out of units that were taken ahead.
	ByPrefetch = "prefetch"
)

func (a *Acquired) retryIn(wait time.Duration) {
	a.RetryAfter, a.HasRetryAfter = later(wait, 0), true
}

// Call is a permit, report, settle or request about a hold, from its beginning to its result.
type Call struct {
	kind       callKind
	permit     *Permit
	context    any
	state      callState
	number     int64 // the request_id
	deadline   time.Duration
	timer      timer
	attended   bool // a caller wants the result
	alone      bool // it is in a message of its own
	prefetches bool
	unanswered bool // a server may have granted it
	isMoved    bool // it is waiting because it was refused as MOVED (N9)
	moves      int  // how often it was, up to movesMax
	failures   int

	sentMaxWait, waitsUntil time.Duration

	hold       *hold
	peer       *Call // of a transfer or settle: the call that has its result
	cost       float64
	amounts    []float64 // of a transfer
	transferID int64     // of a seizure
	timeToLive time.Duration
	port       *batch // while queued: in whose queue it is
	batch      *batch
	position   int
	acquired   *Acquired

	before, after *Call // in a queue
}

var noPermit = &Permit{}

func newCall(kind callKind, permit *Permit) *Call {
	return &Call{kind: kind, permit: permit, attended: true, deadline: Never, timer: timer{at: Never},
		acquired: &Acquired{By: ByServer}}
}

func (c *Call) timerOf() *timer { return &c.timer }

// HoldNumber returns the number of the hold that the call asks for, or has got; 0: none.
func (c *Call) HoldNumber() int64 {
	if c.hold != nil {
		return c.hold.number
	}
	return c.acquired.Hold
}

// Number returns the request_id of the call; 0: it has none.
func (c *Call) Number() int64 { return c.number }

// size returns how many items the message, or its response, has for the call.
func (c *Call) size() int {
	if c.kind == kindSeizure {
		return permitItemsMax
	}
	if c.hold != nil && len(c.permit.Items) == 0 {
		return len(c.hold.items)
	}
	if len(c.permit.Items) == 0 {
		return 1
	}
	return len(c.permit.Items)
}

func (c *Call) textBytes() int {
	sum := 0
	for _, item := range c.permit.Items {
		sum += len(item.Resource) + len(item.Key) + 2
	}
	return sum
}

type holdState int

const (
	holdAsked holdState = iota
	holdInUse
	holdEnding
)

// hold is a hold of the application.
type hold struct {
	number   int64
	action   *Call // renews or releases it
	items    []itemPair
	amounts  []float64
	state    holdState
	id       int64 // chosen by the server; 0: not known
	transfer int64 // the id of the transfer that is seized
	call     *Call // asks for the hold
	begin    time.Duration
	life     time.Duration
	end      time.Duration
	renewAt  time.Duration
	giveUpAt time.Duration
	timer    timer

	transfers   int // how many have no answer yet
	wasSent     bool
	asking      bool // a message that asks for the hold is under way
	mustRelease bool
	claims      bool // the next renewal says what is held
	changed     bool
}

func (h *hold) timerOf() *timer { return &h.timer }

func (h *hold) isEmpty() bool {
	for _, amount := range h.amounts {
		if amount > 0 {
			return false
		}
	}
	return true
}

// Held is a hold, as its application may use it, until EndsAt.
type Held struct {
	Hold int64
	Gone bool
	// Units has the units of each item. If the hold is gone, they are what it had, and must not be
	// used any more.
	Units []float64
	// EndsAt is a time of the clock of the core; 0: there is none. Hold.Left has the time left.
	EndsAt time.Duration
}

func (h *hold) describe() Held {
	return Held{h.number, h.state == holdEnding, append([]float64{}, h.amounts...), h.end}
}

// sent is a call of a message that is under way, with the hold that it asks for. A call that has
// its result already is nil there.
type sent struct {
	call *Call
	hold *hold
}

// batch has the messages to the servers of the options, to a node of the map, or of a lane. One
// message at a time is under way. Its state: ready, requested, or, only for the options, backing_off.
type batch struct {
	lane      int // of its requests; -1: they are those of the options
	node      string
	isLane    bool
	queues    [kindCount]queue // a lane has no calls in them: it takes those of others in turn
	source    *batch           // of a lane: whose call is in its message
	asksMap   bool             // the message under way is a DISCOVERY
	answers   bool             // a node: it has answered since its last failure
	probes    bool             // a node: a DISCOVERY comes next, which says whether it answers
	addresses addresses
	state     string
	sent      []sent
	kind      callKind
	sentAt    time.Duration
	timeout   time.Duration
	retryAt   time.Duration
	number    int
	failures  int
}

func (b *batch) isIdle() bool {
	for kind := range b.queues {
		if b.queues[kind].size > 0 {
			return false
		}
	}
	return b.state != stateRequested
}

// ---- what a message has for a call

func withLife(entry map[string]any, timeToLive time.Duration) map[string]any {
	if timeToLive > 0 {
		entry["time_to_live"] = secondsOf(timeToLive)
	}
	return entry
}

// entryOf returns what a message has for a call that is not a permit.
func entryOf(call *Call) map[string]any {
	h := call.hold
	switch call.kind {
	case kindReport:
		entry := call.permit.Items[0].message()
		entry["cost"] = call.cost
		if call.number != 0 {
			entry["request_id"] = call.number
		}
		return entry
	case kindSettle:
		return map[string]any{"request_id": call.number, "item": itemMessages(call.permit.Items)}
	case kindSeizure:
		return withLife(map[string]any{"transfer_id": call.transferID, "request_id": call.number},
			call.timeToLive)
	case kindTransfer:
		return withLife(map[string]any{"id": h.id, "request_id": call.number,
			"amount": call.amounts}, call.timeToLive)
	case kindRelease:
		h.mustRelease = false
		entry := map[string]any{"id": h.id}
		if h.id == 0 {
			entry = map[string]any{"request_id": h.number}
		}
		if h.state == holdInUse {
			entry["keep"] = append([]float64{}, h.amounts...)
		}
		return entry
	}
	entry := map[string]any{"id": h.id}
	if h.claims {
		items := make([]map[string]any, len(h.items))
		for i, item := range h.items {
			items[i] = map[string]any{"resource_id": item.resource, "key": item.key,
				"amount": h.amounts[i]}
		}
		entry["item"] = items
	}
	return entry
}

// ---- what a response has for a call

// figures are the details of one limit, which a permit with Detail gets.
type figures struct {
	name       string
	shadow     bool
	quota      float64
	remaining  float64
	window     time.Duration
	resetAfter time.Duration
}

type grant struct {
	granted    float64
	limit      string
	remaining  float64
	resetAfter time.Duration
}

// decision is the decision of a server on a permit. figures has those of each item.
type decision struct {
	granted       bool
	figures       [][]figures
	grants        []grant
	units         []float64
	holdID        int64
	waited        time.Duration
	expiresIn     time.Duration
	reservation   bool
	settleWithin  time.Duration
	wait          time.Duration
	warning       bool
	itemIndex     int
	reason, limit string
	validFor      time.Duration
	retryAfter    time.Duration
	hasRetryAfter bool
}

func readFigures(item reader) []figures {
	var all []figures
	if !item.has("limits") {
		return nil
	}
	for _, limit := range item.objects("limits", -1, "limits[]") {
		all = append(all, figures{name: limit.text("name", true), shadow: limit.flag("shadow"),
			quota: limit.amount("limit", true), remaining: limit.amount("remaining", true),
			window: limit.duration("window", true), resetAfter: limit.duration("reset_after", true)})
	}
	return all
}

// readDecision reads the decision on a permit of `count` items.
func readDecision(entry reader, count int) *decision {
	d := &decision{granted: entry.text("decision", false) == outcomeGranted}
	var items []reader
	if d.granted {
		items = entry.objects("item", count, "item[]")
	} else if entry.has("item") {
		items = entry.objects("item", -1, "item[]")
	}
	for _, item := range items {
		d.figures = append(d.figures, readFigures(item))
	}
	if !d.granted {
		if entry.has("item_index") {
			d.itemIndex = int(entry.integer("item_index", int64(count-1)))
		}
		if entry.has("retry_after") {
			d.retryAfter, d.hasRetryAfter = entry.duration("retry_after", false), true
		}
		d.reason = entry.text("reason", true)
		d.limit = entry.text("limit", true)
		d.validFor = entry.duration("valid_for", true)
		return d
	}
	for _, item := range items {
		d.grants = append(d.grants, grant{granted: item.amount("granted", false),
			limit: item.text("limit", true), remaining: item.amount("remaining", true),
			resetAfter: item.duration("reset_after", true)})
		d.units = append(d.units, d.grants[len(d.grants)-1].granted)
	}
	d.wait = entry.duration("wait", true)
	d.warning = entry.flag("warning")
	if entry.has("hold") {
		hold := entry.object("hold")
		d.holdID = hold.integer("id", integerMax)
		d.waited = hold.duration("waited", true)
		d.expiresIn = hold.duration("expires_in", false)
	}
	if entry.has("reservation") {
		d.reservation = true
		d.settleWithin = entry.object("reservation").duration("settle_within", false)
	}
	return d
}

// holdResult is the result of a renew, release, transfer or seize.
type holdResult struct {
	gone      bool
	reason    string
	id        int64
	expiresIn time.Duration
	amounts   []float64
	items     []itemPair
}

func readAmounts(entry reader, key string) []float64 {
	var all []float64
	if !entry.has(key) {
		return nil
	}
	for _, value := range entry.list(key, -1) {
		amount, ok := value.(float64)
		if !ok || !isAmount(amount) {
			entry.fail(key, "must be amounts")
		}
		all = append(all, amount)
	}
	return all
}

func readHoldResult(entry reader, kind callKind, call *Call) *holdResult {
	result := &holdResult{gone: entry.flag("gone"), reason: entry.text("reason", true)}
	if result.gone || result.reason != "" {
		return result
	}
	result.amounts = readAmounts(entry, "amount")
	switch kind {
	case kindRenewal:
		result.expiresIn = entry.duration("expires_in", false)
		if call != nil && call.hold != nil && len(result.amounts) != len(call.hold.items) {
			entry.fail("amount", "must have an amount for each item")
		}
	case kindTransfer, kindSeizure:
		name := "id"
		if kind == kindTransfer {
			name = "transfer_id"
		}
		result.expiresIn = entry.duration("expires_in", false)
		result.id = entry.integer(name, integerMax)
		if result.id == 0 {
			entry.fail(name, "must not be 0")
		}
	}
	if kind == kindSeizure {
		items := entry.objects("item", -1, "item[]")
		if len(items) < 1 || len(items) > permitItemsMax {
			entry.fail("item", "must be a list of 1 to 100")
		}
		result.amounts = nil
		for _, item := range items {
			result.items = append(result.items,
				itemPair{item.text("resource_id", false), item.text("key", true)})
			result.amounts = append(result.amounts, item.amount("amount", false))
		}
	}
	return result
}

// settled is the answer to a settle: what each item was charged in addition, and what came back.
type settled struct {
	reason            string
	late, unknown     bool
	charged, returned []float64
}

// readSettled reads the answer to a settle. count: how many items it must have; -1: nobody reads
// them.
func readSettled(entry reader, count int) *settled {
	s := &settled{reason: entry.text("reason", true), late: entry.flag("late"),
		unknown: entry.flag("unknown")}
	if s.reason != "" || count < 0 {
		return s
	}
	for _, item := range entry.objects("item", count, "item[]") {
		s.charged = append(s.charged, item.amount("charged", true))
		s.returned = append(s.returned, item.amount("returned", true))
	}
	return s
}

// reported is the answer to a report.
type reported struct {
	charged float64
	reason  string
}

// isMoved returns whether another node owns the shard of a call.
func isMoved(result any) bool {
	reason := ""
	switch result := result.(type) {
	case *decision:
		reason = result.reason
	case *reported:
		reason = result.reason
	case *settled:
		reason = result.reason
	case *holdResult:
		reason = result.reason
	}
	return reason == "MOVED"
}

func readReported(entry reader) *reported {
	return &reported{entry.number("charged", -amountMax, amountMax, true, "must be an amount"),
		entry.text("reason", true)}
}
