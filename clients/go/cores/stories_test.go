package cores

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"time"
)

// This file runs the stories of clients/stories with the cores. The README of that folder has the
// form of a story.

const (
	storyStart = 1000 * time.Second
	turnsMax   = 20000
	tolerance  = time.Microsecond
)

type object = map[string]any

// storyFailed is a panic: something was not as the story says.
type storyFailed string

func failStory(format string, values ...any) { panic(storyFailed(fmt.Sprintf(format, values...))) }

func loadStories(t *testing.T) []object {
	folder := os.Getenv("STORIES")
	if folder == "" {
		folder = "../../stories"
	}
	files, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("there are no stories in %s", folder)
	}
	further, _ := filepath.Glob(filepath.Join(folder, "http", "*.json"))
	files = append(files, further...)
	sort.Strings(files)
	var all []object
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var content struct{ Stories []object }
		if err := json.Unmarshal(text, &content); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, story := range content.Stories {
			story["story"] = fmt.Sprintf("%s: %s", filepath.Base(file), story["story"])
			all = append(all, story)
		}
	}
	return all
}

func asJSON(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value)
	}
	return string(text)
}

// plain returns a value as JSON has it.
func plain(value any) (out any) {
	if err := json.Unmarshal([]byte(asJSON(value)), &out); err != nil {
		panic(err)
	}
	return out
}

// match compares a value with what the story expects. nil is an absent value.
func match(path string, actual, expected any) {
	good := false
	switch want := expected.(type) {
	case object:
		if bounds, ok := want["between"].([]any); ok {
			number, isNumber := actual.(float64)
			good = isNumber && number >= bounds[0].(float64)-1e-6 &&
				number <= bounds[1].(float64)+1e-6
		} else if has, ok := actual.(object); ok {
			for key, value := range want {
				match(path+"."+key, has[key], value)
			}
			return
		}
	case []any:
		has, ok := actual.([]any)
		good = ok && len(has) == len(want)
		for i := 0; good && i < len(want); i++ {
			match(fmt.Sprintf("%s[%d]", path, i), has[i], want[i])
		}
	case float64:
		number, ok := actual.(float64)
		good = ok && math.Abs(number-want) <= 1e-6+1e-9*math.Abs(want)
	default:
		good = actual == expected
	}
	if !good {
		failStory("%s is %s, expected %s", path, asJSON(actual), asJSON(expected))
	}
}

// checkKeys fails if the story has a key that the form does not know.
func checkKeys(given object, known string) object {
	for key := range given {
		if !strings.Contains(" "+known+" ", " "+key+" ") {
			failStory("the story has an unknown key: %s", key)
		}
	}
	return given
}

func without(given object, names string) object {
	out := object{}
	for key, value := range given {
		if !strings.Contains(" "+names+" ", " "+key+" ") {
			out[key] = value
		}
	}
	return out
}

// fields reads the values of a story.
type fields object

func (f fields) text(key string) string {
	text, _ := f[key].(string)
	return text
}

func (f fields) number(key string, absent float64) float64 {
	if number, ok := f[key].(float64); ok {
		return number
	}
	return absent
}

func (f fields) time(key string, absent float64) time.Duration {
	return durationOf(f.number(key, absent))
}

func (f fields) has(key string) bool {
	_, ok := f[key]
	return ok
}

func (f fields) flag(key string) bool {
	flag, _ := f[key].(bool)
	return flag
}

func (f fields) numbers(key string) []float64 {
	list, ok := f[key].([]any)
	if !ok {
		return nil
	}
	out := []float64{}
	for _, value := range list {
		out = append(out, value.(float64))
	}
	return out
}

func (f fields) addresses() []string {
	list, ok := f["addresses"].([]any)
	if !ok {
		return []string{"http://a:1"}
	}
	var out []string
	for _, value := range list {
		out = append(out, value.(string))
	}
	return out
}

func (f fields) clientID() string {
	if f.has("client_id") {
		return f.text("client_id")
	}
	return "me"
}

func resourceOf(entry any) any {
	if object, ok := entry.(object); ok {
		return object["resource_id"]
	}
	return nil
}

// reorder returns entries in the order of another list, by their resource_id.
func reorder(entries, order any) any {
	list, ok := entries.([]any)
	names, isList := order.([]any)
	if !ok || !isList {
		return entries
	}
	place := func(entry any) int {
		for i, name := range names {
			if resourceOf(name) == resourceOf(entry) {
				return i
			}
		}
		return len(names)
	}
	sorted := append([]any{}, list...)
	sort.SliceStable(sorted, func(i, j int) bool { return place(sorted[i]) < place(sorted[j]) })
	return sorted
}

// since returns a time of the core in seconds of the story; nil: there is none.
func since(at time.Duration) any {
	if at == 0 {
		return nil
	}
	return secondsOf(at - storyStart)
}

func orNil(text string) any {
	if text == "" {
		return nil
	}
	return text
}

func must(err error) {
	if err != nil {
		failStory("%v", err)
	}
}

type storyCore interface {
	Due() time.Duration
	Next(now time.Duration) *Request
	Response(request *Request, status int, body any, now time.Duration) error
	Failed(request *Request, now time.Duration)
	KillSwitch(on bool)
	RetrySoon(now time.Duration)
}

type sentRequest struct {
	request  *Request
	message  object
	at       time.Duration
	name     string
	answered bool
}

// world is a core, a clock, and what the core has sent.
type world struct {
	core    storyCore
	now     time.Duration
	sent    []*sentRequest
	seen    int
	step    object
	verbs   map[string]func(value any)
	looks   string
	expects string
	collect func()
	atEnd   func()
}

func newWorld(core storyCore) *world {
	w := &world{core: core, now: storyStart, looks: " counts ", expects: " sends "}
	w.collect = w.collectRequests
	w.atEnd = w.checkAllIsSeen
	w.verbs = map[string]func(any){
		"sends":       func(value any) { w.sends(value.(object)) },
		"answers":     func(value any) { w.answers(value.(object)) },
		"breaks":      func(value any) { w.breaks(value.(object)) },
		"waits":       func(value any) { checkKeys(value.(object), "") },
		"kill_switch": func(value any) { w.core.KillSwitch(value.(bool)) },
		"hears_master": func(value any) {
			checkKeys(value.(object), "")
			w.core.RetrySoon(w.now)
		},
	}
	return w
}

func (w *world) collectRequests() {
	for turn := 0; turn < turnsMax; turn++ {
		request := w.core.Next(w.now)
		if request == nil {
			return
		}
		message := plain(request.Message).(object) // as a server reads it
		w.sent = append(w.sent, &sentRequest{request: request, message: message, at: w.now})
	}
	failStory("the client never stops sending")
}

func never() bool { return false }

func (w *world) advance(until time.Duration, isOver func() bool) {
	for turn := 0; turn < turnsMax; turn++ {
		if isOver() {
			return
		}
		due := w.core.Due()
		w.now = later(w.now, earlier(due, until))
		if due > until {
			return
		}
		w.collect()
	}
	failStory("the client stays due, and does nothing")
}

// advanceFor lets time pass until a step. It returns the first time at which the step may be.
func (w *world) advanceFor(isOver func() bool, extra time.Duration) time.Duration {
	start := w.now
	first, until := start, start
	switch at := w.step["at"].(type) {
	case float64:
		first = storyStart + durationOf(at)
		until = first
	case []any:
		first = storyStart + durationOf(at[0].(float64))
		until = storyStart + durationOf(at[1].(float64))
	}
	if until < w.now-tolerance {
		failStory("the story goes back in time")
	}
	w.advance(until+extra, isOver)
	return first
}

func (w *world) checkTime(what string, at, first time.Duration) {
	if at < first-tolerance {
		failStory("%s came at %v s, expected at %v s", what, since(at), since(first))
	}
}

func (w *world) run(steps []any) {
	w.collect()
	for i, step := range steps {
		w.runStep(i, step.(object))
	}
	w.atEnd()
}

func (w *world) runStep(index int, step object) {
	defer func() {
		if failure := recover(); failure != nil {
			text, ok := failure.(storyFailed)
			if !ok {
				panic(failure)
			}
			failStory("step %d: %s", index+1, string(text))
		}
	}()
	w.step = step
	verb := ""
	for key := range without(step, "at") {
		verb = key
	}
	if w.verbs[verb] == nil || len(without(step, "at")) != 1 {
		failStory("the story has an unknown step: %s", asJSON(step))
	}
	if !strings.Contains(w.expects, " "+verb+" ") {
		w.advanceFor(never, 0)
		if !strings.Contains(w.looks, " "+verb+" ") {
			w.checkAllIsSeen()
		}
	}
	w.verbs[verb](step[verb])
	w.collect()
}

func (w *world) checkAllIsSeen() {
	if w.seen < len(w.sent) {
		sent := w.sent[w.seen]
		failStory("the story does not tell that the client sends %s at %v s: %s",
			sent.request.Method, since(sent.at), asJSON(sent.message))
	}
}

func (w *world) sends(expected object) {
	checkKeys(expected, "address method message as")
	first := w.advanceFor(func() bool { return w.seen < len(w.sent) }, tolerance)
	if w.seen == len(w.sent) {
		failStory("the client sends nothing until %v s", since(w.now))
	}
	sent := w.sent[w.seen]
	if message, ok := expected["message"].(object); ok && sent.message["resource"] != nil {
		sent.message["resource"] = reorder(sent.message["resource"], message["resource"])
	}
	match("the request", object{"address": sent.request.Address, "method": sent.request.Method,
		"message": sent.message}, without(expected, "as"))
	w.checkTime("the request", sent.at, first)
	sent.name = fields(expected).text("as")
	w.seen++
}

func (w *world) requestOf(what object) *sentRequest {
	to := fields(what).text("to")
	for i := w.seen - 1; i >= 0; i-- {
		sent := w.sent[i]
		if (to != "" && sent.name == to) || (to == "" && !sent.answered) {
			sent.answered = true
			return sent
		}
	}
	failStory("there is no request to answer")
	return nil
}

func (w *world) answers(answer object) {
	checkKeys(answer, "to status body text")
	sent := w.requestOf(answer)
	body := answer["body"]
	if content, ok := body.(object); ok && content["response"] != nil {
		content = without(content, "")
		content["response"] = reorder(content["response"], sent.message["resource"])
		body = content
	}
	if text, ok := answer["text"].(string); ok {
		body = nil
		if json.Unmarshal([]byte(text), &body) != nil {
			body = nil
		}
	}
	_ = w.core.Response(sent.request, int(fields(answer).number("status", 200)), body, w.now)
}

func (w *world) breaks(what object) {
	w.core.Failed(w.requestOf(checkKeys(what, "to")).request, w.now)
}

// ---- stories of leases

type leaseWorld struct {
	*world
	core      *LeaseCore
	resources map[string]*Resource
}

func newLeaseWorld(client object) *world {
	given := fields(checkKeys(client, "kind client_id addresses request_timeout release_delay"))
	options := LeaseOptions{RequestTimeout: given.time("request_timeout", 5),
		ReleaseDelay: given.time("release_delay", -1), Random: func() float64 { return 0 }}
	if options.ReleaseDelay == 0 {
		options.ReleaseDelay = -1
	}
	core, err := NewLeaseCore(given.clientID(), given.addresses(), storyStart, options)
	must(err)
	w := &leaseWorld{newWorld(core), core, map[string]*Resource{}}
	w.looks = " reads "
	w.verbs["opens"] = func(value any) { w.opens(value.(object)) }
	w.verbs["closes"] = func(value any) {
		must(core.Close(w.resource(checkKeys(value.(object), "resource_id")), false, w.now))
	}
	w.verbs["wants"] = func(value any) {
		what := checkKeys(value.(object), "resource_id amount")
		must(core.SetWants(w.resource(what), fields(what).number("amount", 0), w.now))
	}
	w.verbs["tries"] = func(value any) { w.tries(value.(object)) }
	w.verbs["returns"] = func(value any) {
		what := checkKeys(value.(object), "resource_id units")
		must(w.resource(what).Release(fields(what).number("units", 1)))
	}
	w.verbs["repeats"] = func(value any) { w.repeats(value.(object)) }
	w.verbs["reads"] = func(value any) { w.reads(value.(object)) }
	return w.world
}

func (w *leaseWorld) resource(what object) *Resource {
	return w.resources[fields(what).text("resource_id")]
}

func (w *leaseWorld) opens(what object) {
	given := fields(checkKeys(what, "resource_id kind wants wants_minimum wants_maximum "+
		"wants_initial window priority burst fallback safe_capacity shadow"))
	resource, err := w.core.Open(given.text("resource_id"), ResourceOptions{
		Kind: given.text("kind"), Wants: given.number("wants", 0), HasWants: given.has("wants"),
		WantsMinimum:    given.number("wants_minimum", 0),
		HasWantsMinimum: given.has("wants_minimum"),
		WantsMaximum:    given.number("wants_maximum", 0),
		WantsInitial:    given.number("wants_initial", 0), Window: given.time("window", 0),
		Priority: int(given.number("priority", 0)), HasPriority: given.has("priority"),
		Burst: given.time("burst", 0), Fallback: given.text("fallback"),
		SafeCapacity: given.number("safe_capacity", 0), Shadow: given.flag("shadow")}, w.now)
	must(err)
	w.resources[given.text("resource_id")] = resource
}

func (w *leaseWorld) tries(what object) {
	checkKeys(what, "resource_id units times allowed impossible retry_after")
	given := fields(what)
	resource, units := w.resource(what), given.number("units", 1)
	allowed := 0
	outcome := Allowed
	for i := 0; i < int(given.number("times", 1)); i++ {
		outcome = w.core.Take(resource, units, w.now)
		if outcome == Allowed {
			allowed++
		}
	}
	seen := object{"allowed": float64(allowed), "impossible": outcome == Impossible}
	if outcome == Refused {
		if wait := w.core.RetryAfter(resource, units, w.now); wait != Never {
			seen["retry_after"] = secondsOf(wait)
		}
	}
	match("the try", seen, without(what, "resource_id units times"))
}

func (w *leaseWorld) repeats(what object) {
	given := fields(checkKeys(what, "every times tries ignores_requests"))
	start := w.now
	for i := 1; i <= int(given.number("times", 1)); i++ {
		w.advance(start+time.Duration(i)*given.time("every", 0), never)
		if given.flag("ignores_requests") {
			w.seen = len(w.sent)
		}
		w.checkAllIsSeen()
		w.tries(what["tries"].(object))
	}
}

func (w *leaseWorld) reads(what object) {
	info := w.core.Read(w.resource(what), w.now)
	seen := object{"leased": info.Leased, "capacity": info.Capacity, "wants": info.Wants,
		"in_use": info.InUse, "outcome": orNil(info.Outcome), "reason": orNil(info.Reason),
		"learning": info.Learning, "allowed": info.Allowed, "refused": info.Refused,
		"excess": info.Excess, "failures": float64(info.Failures)}
	if info.Leased {
		seen["expires_at"] = since(w.now + info.ExpiresIn)
	}
	if info.HasSafeCapacity {
		seen["safe_capacity"] = info.SafeCapacity
	}
	match("the resource", seen, without(what, "resource_id"))
}

// ---- stories of permits, holds and reservations

type seenDecision struct {
	acquired *Acquired
	at       time.Duration
}

type seenChange struct {
	held Held
	at   time.Duration
}

type permitWorld struct {
	*world
	core        *PermitCore
	calls       map[string]*Call
	items       map[string][]Item
	decisions   map[string]seenDecision
	told        map[string]bool
	changes     []seenChange
	changesSeen int
}

func newPermitWorld(client object) *world {
	given := fields(checkKeys(client, "kind client_id addresses request_timeout fallback local "+
		"shadow prefetch max_pause report_once lanes"))
	policy := PermitPolicy{Fallback: given.text("fallback"), Shadow: given.flag("shadow"),
		Prefetch: given.time("prefetch", 0), MaxPause: given.time("max_pause", 0),
		ReportOnce: given.flag("report_once"), Lanes: int(given.number("lanes", -1))}
	if policy.Lanes == 0 {
		policy.Lanes = -1
	}
	if local, ok := client["local"].(object); ok {
		limit := fields(checkKeys(local, "kind rate size limit window"))
		policy.Local = &Limit{Kind: limit.text("kind"), Rate: limit.number("rate", 0),
			Size: limit.number("size", 0), Limit: limit.number("limit", 0),
			Window: limit.time("window", 0)}
	}
	core, err := NewPermitCore(given.clientID(), given.addresses(), storyStart,
		PermitOptions{policy, given.time("request_timeout", 1), 1})
	must(err)
	w := &permitWorld{world: newWorld(core), core: core, calls: map[string]*Call{},
		items: map[string][]Item{}, decisions: map[string]seenDecision{}, told: map[string]bool{}}
	w.looks = " holds counts "
	w.expects = " sends decides changes "
	w.collect = w.collectAll
	w.atEnd = w.checkEnd
	for verb, step := range map[string]func(object){"acquires": w.acquires, "decides": w.decides,
		"reports": w.reports, "settles": w.settles, "releases": w.releases,
		"transfers": w.transfers, "seizes": w.seizes, "changes": w.changesStep,
		"holds": w.holds, "counts": w.countsStep} {
		step := step
		w.verbs[verb] = func(value any) { step(value.(object)) }
	}
	return w.world
}

func (w *permitWorld) collectAll() {
	for more := true; more; {
		w.collectRequests()
		acquired := w.core.Decision(w.now)
		held := w.core.Change(w.now)
		if acquired != nil {
			w.decisions[acquired.Context.(string)] = seenDecision{acquired, w.now}
		}
		if held != nil {
			w.changes = append(w.changes, seenChange{*held, w.now})
		}
		more = acquired != nil || held != nil
	}
}

func (w *permitWorld) checkEnd() {
	w.checkAllIsSeen()
	for name := range w.decisions {
		if !w.told[name] {
			failStory("the story does not tell the decision on %s", name)
		}
	}
	if w.changesSeen < len(w.changes) {
		failStory("the story does not tell a change")
	}
}

func (w *permitWorld) numberOf(name string) int64 {
	if decided, ok := w.decisions[name]; ok {
		return decided.acquired.Hold
	}
	if call := w.calls[name]; call != nil && call.hold != nil {
		return call.hold.number
	}
	return 0
}

func (w *permitWorld) acquires(what object) {
	given := fields(checkKeys(what, "call item max_wait equal detail timeout hold time_to_live "+
		"priority share settle_within"))
	var items []Item
	for _, value := range what["item"].([]any) {
		item := fields(checkKeys(value.(object), "resource_id key cost min"))
		cost := item.number("cost", 1)
		items = append(items, Item{Resource: item.text("resource_id"), Key: item.text("key"),
			Cost: cost, Look: cost == 0, Min: item.number("min", 0), HasMin: item.has("min")})
	}
	name := given.text("call")
	call, err := w.core.Acquire(Permit{Items: items, MaxWait: given.time("max_wait", 0),
		Equal: given.flag("equal"), Detail: given.flag("detail"), Hold: given.flag("hold"),
		TimeToLive: given.time("time_to_live", 0), Priority: int(given.number("priority", 0)),
		HasPriority: given.has("priority"), Share: given.flag("share"),
		SettleWithin: given.time("settle_within", 0)}, given.time("timeout", 1), name, w.now)
	must(err)
	w.items[name], w.calls[name] = items, call
}

func (w *permitWorld) decides(what object) {
	name := fields(what).text("call")
	isDecided := func() bool { _, ok := w.decisions[name]; return ok }
	first := w.advanceFor(isDecided, tolerance)
	if !isDecided() {
		failStory("%s has no decision at %v s", name, since(w.now))
	}
	decided := w.decisions[name]
	a := decided.acquired
	seen := object{"granted": a.Granted, "by": a.By, "units": plain(a.Units),
		"limit": orNil(a.Limit), "remaining": a.Remaining, "reset_after": secondsOf(a.ResetAfter),
		"quota": a.Quota, "window": secondsOf(a.Window), "warning": a.Warning,
		"wait": secondsOf(a.Wait), "reason": orNil(a.Reason), "item_index": float64(a.ItemIndex),
		"late": a.Late, "unknown": a.Unknown, "hold": a.Granted && a.Hold > 0,
		"reservation": a.Reservation > 0, "ends_at": since(a.EndsAt),
		"settle_by": since(a.SettleBy)}
	if a.HasRetryAfter {
		seen["retry_after"] = secondsOf(a.RetryAfter)
	}
	if a.TransferID != 0 {
		seen["transfer_id"] = float64(a.TransferID)
	}
	match(name, seen, without(what, "call"))
	w.checkTime("the decision", decided.at, first)
	w.told[name] = true
}

func (w *permitWorld) reports(what object) {
	given := fields(checkKeys(what, "resource_id key cost"))
	must(w.core.Report(Item{Resource: given.text("resource_id"), Key: given.text("key")},
		given.number("cost", 1), w.now))
}

func (w *permitWorld) settles(what object) {
	given := fields(checkKeys(what, "call reservation cost timeout"))
	reserved := given.text("reservation")
	must(w.core.Settle(w.decisions[reserved].acquired.Reservation, w.items[reserved],
		given.numbers("cost"), given.time("timeout", 0), given.text("call"), w.now))
}

func (w *permitWorld) releases(what object) {
	given := fields(checkKeys(what, "call keep"))
	w.core.Release(w.numberOf(given.text("call")), given.numbers("keep"), w.now)
}

func (w *permitWorld) transfers(what object) {
	given := fields(checkKeys(what, "call hold amount time_to_live timeout"))
	must(w.core.Transfer(w.numberOf(given.text("hold")),
		TransferOptions{given.numbers("amount"), given.time("time_to_live", 0)},
		given.time("timeout", 1), given.text("call"), w.now))
}

func (w *permitWorld) seizes(what object) {
	given := fields(checkKeys(what, "call transfer_id time_to_live timeout"))
	call, err := w.core.Seize(int64(given.number("transfer_id", 0)), given.time("time_to_live", 0),
		given.time("timeout", 1), given.text("call"), w.now)
	must(err)
	w.calls[given.text("call")] = call
}

func (w *permitWorld) matchHold(held Held, what object) {
	checkKeys(what, "call gone ends_at units")
	match("the hold", object{"gone": held.Gone, "units": plain(held.Units),
		"ends_at": since(held.EndsAt)}, without(what, "call"))
}

func (w *permitWorld) changesStep(what object) {
	first := w.advanceFor(func() bool { return w.changesSeen < len(w.changes) }, tolerance)
	if w.changesSeen == len(w.changes) {
		failStory("no hold has changed at %v s", since(w.now))
	}
	change := w.changes[w.changesSeen]
	w.changesSeen++
	if change.held.Hold != w.numberOf(fields(what).text("call")) {
		failStory("another hold has changed")
	}
	w.matchHold(change.held, what)
	w.checkTime("the change", change.at, first)
}

func (w *permitWorld) holds(what object) {
	w.matchHold(w.core.Hold(w.numberOf(fields(what).text("call"))), what)
}

func (w *permitWorld) countsStep(what object) {
	c := w.core.Read()
	seen := plain(object{"granted": c.Granted, "refused": c.Refused,
		"refused_locally": c.RefusedLocally, "prefetch_granted": c.PrefetchGranted,
		"prefetched": c.Prefetched, "lapsed": c.Lapsed, "fallback_granted": c.FallbackGranted,
		"fallback_refused": c.FallbackRefused, "bypassed": c.Bypassed, "timed_out": c.TimedOut,
		"reported": c.Reported, "lost": c.Lost, "uncharged": c.Uncharged, "settled": c.Settled,
		"unsettled": c.Unsettled, "messages": c.Messages, "failures": c.Failures,
		"pauses": c.Pauses, "holds_lost": c.HoldsLost, "moved": c.Moved, "waiting": c.Waiting,
		"holds": c.Holds})
	match("the counts", seen, what)
}

// runStory runs a story. It returns how it failed, or "".
func runStory(story object) (failure string) {
	defer func() {
		if problem := recover(); problem != nil {
			text, ok := problem.(storyFailed)
			if !ok {
				panic(problem)
			}
			failure = string(text)
		}
	}()
	checkKeys(story, "story why client steps")
	client := story["client"].(object)
	w := newLeaseWorld
	if client["kind"] == "permits" {
		w = newPermitWorld
	}
	w(client).run(story["steps"].([]any))
	return ""
}

func TestStories(t *testing.T) {
	stories := loadStories(t)
	if len(stories) <= 60 {
		t.Fatalf("there are only %d stories", len(stories))
	}
	for _, story := range stories {
		t.Run(story["story"].(string), func(t *testing.T) {
			if failure := runStory(story); failure != "" {
				t.Error(failure)
			}
		})
	}
}

func TestAWrongStoryFails(t *testing.T) {
	opens := `{"opens": {"resource_id": "a", "wants": 5}}`
	asks := `{"acquires": {"call": "p", "item": [{"resource_id": "a"}]}}`
	for _, wrong := range []string{
		`{"client": {}, "steps": [` + opens + `,
			{"sends": {"message": {"resource": [{"wants": 6}]}}}]}`,
		`{"client": {}, "steps": [` + opens + `,
			{"sends": {}}, {"breaks": {}}, {"at": [1.5, 2], "sends": {}}]}`,
		`{"client": {}, "steps": [` + opens + `, {"at": 1, "waits": {}}]}`,
		`{"client": {}, "steps": [` + opens + `,
			{"sends": {"message": {"client_id": null}}}]}`,
		`{"client": {}, "steps": [` + opens + `,
			{"sends": {}}, {"reads": {"resource_id": "a", "capacity": 5}}]}`,
		`{"client": {"kind": "permits"}, "steps": [` + asks + `,
			{"sends": {}}, {"at": 0.5, "decides": {"call": "p"}}]}`,
		`{"client": {"kind": "permits"}, "steps": [` + asks + `,
			{"sends": {}}, {"at": 2, "waits": {}}]}`,
		`{"client": {}, "steps": [{"sings": {}}]}`,
		`{"client": {}, "steps": [{"waits": {"long": true}}]}`,
	} {
		var story object
		if err := json.Unmarshal([]byte(wrong), &story); err != nil {
			t.Fatal(err)
		}
		if runStory(story) == "" {
			t.Errorf("this story does not fail: %s", wrong)
		}
	}
}
