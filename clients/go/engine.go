package doorman

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"sync"
	"time"

	"doorman.example/doorman/cores"
)

const (
	sleepMax     = time.Minute
	pauseMax     = 200 * time.Millisecond // between two looks at a limiter
	pauseMin     = 100 * time.Microsecond
	unmatchedMax = 1000 // resources; applications may ask for names that others choose
)

// NewClientID returns a name that no other client has, and that nobody can guess.
func NewClientID() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	var bytes [8]byte
	if _, err := rand.Read(bytes[:]); err != nil {
		panic(err) // the system has no random numbers
	}
	return fmt.Sprintf("%s:%d:%s", host, os.Getpid(), hex.EncodeToString(bytes[:]))
}

// core is what both cores have.
type core interface {
	Due() time.Duration
	Next(now time.Duration) *cores.Request
	Response(request *cores.Request, status int, body any, now time.Duration) error
	Failed(request *cores.Request, now time.Duration)
	RetrySoon(now time.Duration)
}

// sink gets the decision on a call.
type sink struct {
	result chan *Acquired
	number int64 // of the hold that is watched; 0: none
	// abandoned gets the decision if no caller waits for it any more.
	abandoned func(*Acquired)
}

// engine has both cores of a client, and what they need of the world. The mutex guards the cores
// and all fields below it.
type engine struct {
	clientID    string
	clock       *machineClock
	connections *connections
	warn        func(string)
	done        chan struct{} // is closed when the client closes

	mutex    sync.Mutex
	leases   *cores.LeaseCore
	permits  *cores.PermitCore
	onGone   map[int64]func(Held) // by the number of a hold
	stopping bool
	stopped  bool
	timer    *time.Timer
	underWay map[string]*sending
	changed  chan struct{} // is closed when something may have changed
	told     []func()      // calls of the application that wait
	telling  bool
	// unmatched has what is missing of which resources, as far as it was warned of.
	unmatched map[string]bool
}

// sending is a request that is under way.
type sending struct{ cancel context.CancelFunc }

func newEngine(addresses []string, options *Options) (*engine, error) {
	e := &engine{clientID: options.ClientID, clock: newClock(), warn: options.OnWarning,
		done: make(chan struct{}), changed: make(chan struct{}), onGone: map[int64]func(Held){},
		underWay: map[string]*sending{}, unmatched: map[string]bool{}}
	if e.clientID == "" {
		e.clientID = NewClientID()
	}
	var err error
	if e.connections, err = newConnections(options); err != nil {
		return nil, err
	}
	now := e.clock.now()
	e.leases, err = cores.NewLeaseCore(e.clientID, addresses, now,
		cores.LeaseOptions{RequestTimeout: options.LeaseTimeout})
	if err != nil {
		return nil, err
	}
	e.permits, err = cores.NewPermitCore(e.clientID, addresses, now,
		cores.PermitOptions{Policy: options.Permits, RequestTimeout: options.PermitTimeout})
	if err != nil {
		return nil, err
	}
	e.timer = time.AfterFunc(sleepMax, e.work)
	return e, nil
}

// ---- the loop

// step does what is due, sends requests, and plans when to do it again. The caller has the mutex.
func (e *engine) step() {
	if e.stopped {
		return
	}
	now := e.clock.now()
	for _, core := range []core{e.leases, e.permits} {
		for request := core.Next(now); request != nil; request = core.Next(now) {
			e.send(core, request)
		}
	}
	for acquired := e.permits.Decision(now); acquired != nil; acquired = e.permits.Decision(now) {
		e.resolve(acquired)
	}
	for held := e.permits.Change(now); held != nil; held = e.permits.Change(now) {
		e.tell(*held)
	}
	due := e.leases.Due()
	if at := e.permits.Due(); at < due {
		due = at
	}
	wait := due - e.clock.now()
	if wait > sleepMax {
		wait = sleepMax
	} else if wait < 0 {
		wait = 0
	}
	e.timer.Reset(wait)
}

// work does a step, and wakes those that wait for units.
func (e *engine) work() {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.stepAndWake()
}

func (e *engine) stepAndWake() {
	e.step()
	close(e.changed)
	e.changed = make(chan struct{})
}

func (e *engine) resolve(acquired *Acquired) {
	s, ok := acquired.Context.(*sink)
	acquired.Context = nil
	if acquired.Unmatched != "" {
		e.noteUnmatched(acquired)
	}
	if !ok {
		return
	}
	if acquired.Hold == 0 && s.number != 0 {
		delete(e.onGone, s.number)
	}
	if s.abandoned != nil {
		s.abandoned(acquired)
		return
	}
	s.result <- acquired // it has room for one
}

// noteUnmatched notes that the fallback has decided, because the servers have no limits for a
// resource (P23). Its name may be a typing error, so this is warned of once.
func (e *engine) noteUnmatched(acquired *Acquired) {
	acquired.Reason = "UNMATCHED"
	e.warnOfUnmatched(acquired.Unmatched, "limits", "the fallback decides")
}

// noteUnmatchedLeases does the same for leases, whose callers could wait for ever.
func (e *engine) noteUnmatchedLeases() {
	for _, resource := range e.leases.Resources() {
		if info := e.leases.Read(resource, e.clock.now()); info.Outcome == "UNMATCHED" {
			e.warnOfUnmatched(info.ResourceID, "capacity", "the fallback is in force")
		}
	}
}

func (e *engine) warnOfUnmatched(name, missing, result string) {
	key := missing + " " + name
	if e.unmatched[key] || len(e.unmatched) >= unmatchedMax {
		return
	}
	e.unmatched[key] = true
	e.callLater(func() {
		e.warn(name + ": the servers have no " + missing + " for this resource, so " + result +
			". Correct the name, or add " + missing + " to the configuration of the servers")
	})
}

// tell lets the application know that a hold has changed.
func (e *engine) tell(held Held) {
	onGone := e.onGone[held.Hold]
	if held.Gone {
		delete(e.onGone, held.Hold)
	}
	if onGone == nil {
		return
	}
	e.callLater(func() { onGone(held) })
}

// callLater calls functions of the application, one after the other, without the mutex.
func (e *engine) callLater(work func()) {
	e.told = append(e.told, work)
	if !e.telling {
		e.telling = true
		go e.runTold()
	}
}

func (e *engine) runTold() {
	for {
		e.mutex.Lock()
		if len(e.told) == 0 {
			e.telling = false
			e.mutex.Unlock()
			return
		}
		next := e.told[0]
		e.told = e.told[1:]
		e.mutex.Unlock()
		next()
	}
}

// send sends a request. A request before it, which the core has given up, is cancelled.
func (e *engine) send(core core, request *cores.Request) {
	name := fmt.Sprintf("permits %d", request.Lane)
	if core == e.leases {
		name = "leases"
	}
	if before := e.underWay[name]; before != nil {
		before.cancel()
	}
	ctx, cancel := context.WithTimeout(context.Background(), request.Timeout)
	this := &sending{cancel}
	e.underWay[name] = this
	go func() {
		defer cancel()
		status, body, err := e.connections.post(ctx, request)
		e.mutex.Lock()
		wasStopped := e.stopped
		if err != nil {
			core.Failed(request, e.clock.now())
		} else {
			err = e.answer(core, request, status, body)
		}
		if e.underWay[name] == this {
			delete(e.underWay, name)
		}
		e.stepAndWake()
		e.mutex.Unlock()
		if err != nil && !wasStopped {
			e.warn(fmt.Sprintf("%v: %v", request, err))
		}
	}()
}

func (e *engine) answer(core core, request *cores.Request, status int, body any) error {
	if err := core.Response(request, status, body, e.clock.now()); err != nil {
		return err
	}
	if content, ok := body.(map[string]any); ok && content["mastership"] == nil {
		if core == e.leases {
			e.permits.RetrySoon(e.clock.now())
		} else {
			e.leases.RetrySoon(e.clock.now())
		}
	}
	if core == e.leases {
		e.noteUnmatchedLeases()
	}
	return nil
}

// ---- the calls

// decision calls ask with what gets the decision on its call, and waits for it. abandon: what to do
// if the context ends before; it has the mutex, and returns what gets the decision then.
func (e *engine) decision(ctx context.Context, ask func(*sink) error,
	abandon func() func(*Acquired)) (*Acquired, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s := &sink{result: make(chan *Acquired, 1)}
	e.mutex.Lock()
	if e.stopping {
		e.mutex.Unlock()
		return nil, ErrClosed
	}
	err := ask(s)
	if err == nil {
		e.step()
	}
	e.mutex.Unlock()
	if err != nil {
		return nil, err
	}
	select {
	case acquired := <-s.result:
		return acquired, nil
	case <-ctx.Done():
	}
	e.mutex.Lock()
	defer e.mutex.Unlock()
	select {
	case acquired := <-s.result: // it came at the same time
		return acquired, nil
	default:
	}
	s.abandoned = abandon()
	e.step()
	return nil, ctx.Err()
}

// watch lets a function be called if the hold that a call asks for changes. The caller has the
// mutex.
func (e *engine) watch(s *sink, call *cores.Call, onGone func(Held)) {
	if onGone != nil && call.Number() != 0 {
		s.number = call.Number()
		e.onGone[s.number] = onGone
	}
}

// ---- the end

// stop gives everything back, and waits until the servers know it, or the context ends.
func (e *engine) stop(ctx context.Context) error {
	e.mutex.Lock()
	if !e.stopping {
		e.stopping = true
		close(e.done)
		now := e.clock.now()
		e.leases.Stop(now)
		e.permits.Stop(now)
		e.stepAndWake()
	}
	var err error
	for err == nil && !e.stopped && !(e.leases.IsIdle() && e.permits.IsIdle()) {
		changed := e.changed
		e.mutex.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			err = ctx.Err()
		}
		e.mutex.Lock()
	}
	e.stopped = true
	e.timer.Stop()
	for _, sending := range e.underWay {
		sending.cancel()
	}
	e.stepAndWake()
	e.mutex.Unlock()
	e.connections.close()
	return err
}
