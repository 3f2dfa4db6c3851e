package doorman

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"doorman.example/doorman/cores"
)

// waiters are those that wait for units of one resource, in the order in which they have come. The
// first one tries to take units, and the others wait for their turn.
type waiters struct{ list list.List }

type waiter struct{ turn chan struct{} }

// Handle has what rates and gauges share.
type Handle struct {
	engine   *engine
	resource *cores.Resource
	waiters  *waiters
	closed   chan struct{}
	once     sync.Once
}

func (h *Handle) isUsable() bool {
	select {
	case <-h.closed:
		return false
	case <-h.engine.done:
		return false
	default:
		return true
	}
}

// TryUse takes units if they may be used now. It does not wait.
func (h *Handle) TryUse(units float64) bool {
	h.engine.mutex.Lock()
	defer h.engine.mutex.Unlock()
	if !h.isUsable() {
		return false
	}
	return h.engine.leases.Take(h.resource, units, h.engine.clock.now()) == cores.Allowed
}

// Wait takes units, and waits for them, in the order of the calls. The error is nil if the caller
// has the units. Else it is that of the context, or ErrClosed.
func (h *Handle) Wait(ctx context.Context, units float64) error {
	if !(units >= 0 && units <= 1e15) {
		return errors.New("units: must be a number from 0 to 1e15")
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	e := h.engine
	e.mutex.Lock()
	defer e.mutex.Unlock()
	place := h.waiters.list.PushBack(&waiter{make(chan struct{})})
	h.addWaiting(units)
	err := h.waitAt(ctx, place, units)
	isFirst := h.waiters.list.Front() == place
	h.waiters.list.Remove(place)
	if next := h.waiters.list.Front(); isFirst && next != nil {
		close(next.Value.(*waiter).turn)
	}
	h.addWaiting(-units)
	e.step()
	return err
}

// waitAt waits at a place of the queue. The caller has the mutex.
func (h *Handle) waitAt(ctx context.Context, place *list.Element, units float64) error {
	e := h.engine
	for h.isUsable() {
		now := e.clock.now()
		isFirst := h.waiters.list.Front() == place
		pause := pauseMax
		if isFirst {
			if delay := h.resource.Delay(units, now); delay < pause {
				pause = delay
			}
			if pause <= 0 && e.leases.Take(h.resource, units, now) == cores.Allowed {
				return nil
			}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		h.resource.ShowDemand(now)
		changed := e.changed
		e.mutex.Unlock()
		if isFirst {
			h.pause(ctx, pause, changed)
		} else {
			select {
			case <-place.Value.(*waiter).turn:
			case <-h.closed:
			case <-e.done:
			case <-ctx.Done():
			}
		}
		e.mutex.Lock()
	}
	return ErrClosed
}

// pause waits until something has changed, at most for a time.
func (h *Handle) pause(ctx context.Context, wait time.Duration, changed chan struct{}) {
	if wait < pauseMin {
		wait = pauseMin
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-changed:
	case <-h.closed:
	case <-h.engine.done:
	case <-ctx.Done():
	}
}

// addWaiting says how many units callers wait for, so that the wants rise (L4).
func (h *Handle) addWaiting(units float64) {
	waiting := h.resource.Waiting() + units
	if waiting < 0 || h.waiters.list.Len() == 0 {
		waiting = 0
	}
	h.resource.SetWaiting(waiting, h.engine.clock.now())
}

// RetryAfter returns how long after a refusal the same call can be allowed. false: never, as far as
// it is known.
func (h *Handle) RetryAfter(units float64) (time.Duration, bool) {
	h.engine.mutex.Lock()
	defer h.engine.mutex.Unlock()
	wait := h.engine.leases.RetryAfter(h.resource, units, h.engine.clock.now())
	if wait == cores.Never {
		return 0, false
	}
	return wait, true
}

// SetWants sets the wants. After this call they do not follow use.
func (h *Handle) SetWants(wants float64) error {
	h.engine.mutex.Lock()
	defer h.engine.mutex.Unlock()
	err := h.engine.leases.SetWants(h.resource, wants, h.engine.clock.now())
	h.engine.step()
	return err
}

// Info returns the state of the resource.
func (h *Handle) Info() ResourceInfo {
	h.engine.mutex.Lock()
	defer h.engine.mutex.Unlock()
	return h.engine.leases.Read(h.resource, h.engine.clock.now())
}

// Close ends this opening. The last one gives the lease back. Later calls have no effect.
func (h *Handle) Close() {
	h.once.Do(func() {
		e := h.engine
		e.mutex.Lock()
		defer e.mutex.Unlock()
		wasUsable := h.isUsable()
		close(h.closed)
		if wasUsable {
			_ = e.leases.Close(h.resource, false, e.clock.now()) // it is open
		}
		e.stepAndWake()
	})
}

// Rate has units per second.
type Rate struct{ *Handle }

// Gauge has units in use at once. What is taken must be given back.
type Gauge struct{ *Handle }

// Release gives units back. It fails if more are given back than are in use.
func (g *Gauge) Release(units float64) error {
	g.engine.mutex.Lock()
	defer g.engine.mutex.Unlock()
	err := g.resource.Release(units)
	g.engine.stepAndWake()
	return err
}

// Use takes units while a function runs. It returns the error of the function, or that of Wait.
func (g *Gauge) Use(ctx context.Context, units float64, work func() error) error {
	if err := g.Wait(ctx, units); err != nil {
		return err
	}
	defer func() { _ = g.Release(units) }() // they are in use
	return work()
}

// Hold has units that stay taken until they are released. The client renews them.
type Hold struct {
	engine *engine
	items  []Item
	// Decision says who has decided, and why. Granted is that of the decision.
	Decision *Acquired
	Granted  bool
	settled  bool // the mutex of the engine guards it
}

// Left returns the time until the units may not be used any more; 0: now. It is very long if there
// is nothing to renew, because no server has decided.
func (h *Hold) Left() time.Duration {
	if !h.Granted {
		return 0
	}
	if h.Decision.Hold == 0 {
		return cores.Never
	}
	h.engine.mutex.Lock()
	defer h.engine.mutex.Unlock()
	held := h.engine.permits.Hold(h.Decision.Hold)
	switch now := h.engine.clock.now(); {
	case held.Gone:
		return 0
	case held.EndsAt == 0:
		return cores.Never
	case held.EndsAt < now:
		return 0
	default:
		return held.EndsAt - now
	}
}

// Units returns the units of each item that are held now.
func (h *Hold) Units() []float64 {
	if h.Decision.Hold == 0 {
		return append([]float64{}, h.Decision.Units...)
	}
	h.engine.mutex.Lock()
	defer h.engine.mutex.Unlock()
	return h.engine.permits.Hold(h.Decision.Hold).Units
}

// Release gives the units back. Stop using them before. Later calls have no effect.
func (h *Hold) Release() {
	h.engine.mutex.Lock()
	defer h.engine.mutex.Unlock()
	delete(h.engine.onGone, h.Decision.Hold)
	h.engine.permits.Release(h.Decision.Hold, nil, h.engine.clock.now())
	h.engine.step()
}

// Settle says what a hold with SettleWithin has really cost, of each item, and releases it. It does
// not wait: the client repeats the settle until a server has counted it. Later calls have no
// effect. It returns ErrClosed if the client is closed.
func (h *Hold) Settle(costs ...float64) error {
	e := h.engine
	e.mutex.Lock()
	defer e.mutex.Unlock()
	if h.settled {
		return nil
	}
	if e.stopped {
		return ErrClosed
	}
	err := e.permits.Settle(h.Decision.Reservation, h.items, costs, 0, nil, e.clock.now())
	if err == nil {
		h.settled = true
		delete(e.onGone, h.Decision.Hold)
		e.permits.Release(h.Decision.Hold, nil, e.clock.now())
	}
	e.step()
	return err
}

// Keep gives units back except those that are kept, of each item.
func (h *Hold) Keep(units ...float64) {
	h.engine.mutex.Lock()
	defer h.engine.mutex.Unlock()
	h.engine.permits.Release(h.Decision.Hold, units, h.engine.clock.now())
	h.engine.step()
}

// Transfer moves units into a transfer. A client that learns its
// TransferID can seize them with Client.Seize.
func (h *Hold) Transfer(ctx context.Context, options TransferOptions) (*Acquired, error) {
	return h.engine.decision(ctx, func(s *sink) error {
		return h.engine.permits.Transfer(h.Decision.Hold, options, timeoutOf(ctx, time.Second), s,
			h.engine.clock.now())
	}, func() func(*Acquired) { return func(*Acquired) {} })
}

// Run runs a function while the units are held, and releases them. It returns the error of the
// function, or a *RefusedError if the units were refused.
func (h *Hold) Run(work func(*Hold) error) error {
	if !h.Granted {
		return &RefusedError{h.Decision}
	}
	defer h.Release()
	return work(h)
}

// timeoutOf returns the time until the deadline of a context, or what is usual without one.
func timeoutOf(ctx context.Context, usual time.Duration) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		if left := time.Until(deadline); left > time.Millisecond {
			return left
		}
		return time.Millisecond
	}
	return usual
}

// Reservation is an amount that was charged before the cost is known.
type Reservation struct {
	engine *engine
	items  []Item
	// Decision says who has decided, and why. Granted is that of the decision.
	Decision *Acquired
	Granted  bool
	reserved []float64

	mutex   sync.Mutex
	settled bool
}

// settle says once what the action has cost. It returns the result if it waits.
func (r *Reservation) settle(ctx context.Context, waits bool, costs []float64) (*Acquired, error) {
	if len(costs) != len(r.items) {
		return nil, fmt.Errorf("costs: must be %d, one for each item", len(r.items))
	}
	if !r.setSettled(true) {
		return nil, nil
	}
	e := r.engine
	ask := func(timeout time.Duration, context any) error {
		return e.permits.Settle(r.Decision.Reservation, r.items, costs, timeout, context,
			e.clock.now())
	}
	var result *Acquired
	var err error
	if waits {
		asked := false
		result, err = e.decision(ctx, func(s *sink) error {
			err := ask(timeoutOf(ctx, 10*time.Second), s)
			asked = err == nil
			return err
		}, func() func(*Acquired) { return func(*Acquired) {} })
		if !asked {
			r.setSettled(false)
		}
		return result, err
	}
	e.mutex.Lock()
	defer e.mutex.Unlock()
	err = ErrClosed
	if !e.stopped {
		err = ask(0, nil)
	}
	if err != nil {
		r.setSettled(false)
	}
	e.step()
	return nil, err
}

// setSettled returns whether this changes something.
func (r *Reservation) setSettled(settled bool) bool {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	changes := r.settled != settled
	r.settled = settled
	return changes
}

// Settle says what the action has really cost, of each item. It does not wait: the client repeats
// the settle until a server has counted it. Later calls have no effect. It returns ErrClosed if the
// client is closed.
func (r *Reservation) Settle(costs ...float64) error {
	_, err := r.settle(context.Background(), false, costs)
	return err
}

// SettleAndWait is Settle, and waits for the result. It is nil if the reservation was settled
// before.
func (r *Reservation) SettleAndWait(ctx context.Context, costs ...float64) (*Acquired, error) {
	return r.settle(ctx, true, costs)
}

// Run runs a function that returns the cost of the only item, or of each item, and settles it. If
// the function fails or panics, the action costs what was reserved. It returns the error of the
// function, or a *RefusedError if the amount was refused.
func (r *Reservation) Run(work func() ([]float64, error)) error {
	if !r.Granted {
		return &RefusedError{r.Decision}
	}
	defer func() { _ = r.Settle(r.reserved...) }() // it has no effect after a settle
	costs, err := work()
	if err != nil {
		return err
	}
	return r.Settle(costs...)
}
