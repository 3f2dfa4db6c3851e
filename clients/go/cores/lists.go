package cores

import (
	"container/heap"
	"container/list"
	"time"
)

// ordered is a map that keeps the order in which its keys were added.
type ordered[K comparable, V any] struct {
	places map[K]*list.Element
	order  *list.List
}

type pair[K comparable, V any] struct {
	key   K
	value V
}

func newOrdered[K comparable, V any]() *ordered[K, V] {
	return &ordered[K, V]{map[K]*list.Element{}, list.New()}
}

func (o *ordered[K, V]) size() int { return len(o.places) }

func (o *ordered[K, V]) get(key K) (value V, found bool) {
	if place := o.places[key]; place != nil {
		return place.Value.(*pair[K, V]).value, true
	}
	return value, false
}

// set adds a key at the end. A key that is known keeps its place.
func (o *ordered[K, V]) set(key K, value V) {
	if place := o.places[key]; place != nil {
		place.Value.(*pair[K, V]).value = value
		return
	}
	o.places[key] = o.order.PushBack(&pair[K, V]{key, value})
}

// renew adds a key at the end, also if it is known.
func (o *ordered[K, V]) renew(key K, value V) {
	o.remove(key)
	o.set(key, value)
}

func (o *ordered[K, V]) remove(key K) bool {
	place := o.places[key]
	if place == nil {
		return false
	}
	delete(o.places, key)
	o.order.Remove(place)
	return true
}

// first returns the oldest key, or nil.
func (o *ordered[K, V]) first() *pair[K, V] {
	if place := o.order.Front(); place != nil {
		return place.Value.(*pair[K, V])
	}
	return nil
}

// values returns a copy of all values, in order.
func (o *ordered[K, V]) values() []V {
	all := make([]V, 0, len(o.places))
	for place := o.order.Front(); place != nil; place = place.Next() {
		all = append(all, place.Value.(*pair[K, V]).value)
	}
	return all
}

// timed is an owner of a timer: a call or a hold.
type timed interface {
	timerOf() *timer
}

// timer is when an owner wants to be called; Never: it does not. order tells timers with the same
// time apart.
type timer struct {
	at    time.Duration
	order int
}

type timerEntry struct {
	at    time.Duration
	order int
	owner timed
}

type timerHeap []timerEntry

func (h timerHeap) Len() int { return len(h) }
func (h timerHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || (h[i].at == h[j].at && h[i].order < h[j].order)
}
func (h timerHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *timerHeap) Push(x any)   { *h = append(*h, x.(timerEntry)) }
func (h *timerHeap) Pop() any {
	last := len(*h) - 1
	entry := (*h)[last]
	(*h)[last] = timerEntry{}
	*h = (*h)[:last]
	return entry
}

func (e *timerEntry) isStale() bool { return *e.owner.timerOf() != timer{e.at, e.order} }

// timers are times in order. An entry is stale if the timer of its owner was set again.
type timers struct {
	heap  timerHeap
	count int
}

// set sets the timer of an owner. Never: it has none. With the same time again, it keeps its order.
func (t *timers) set(owner timed, at time.Duration) {
	if owner.timerOf().at == at {
		return
	}
	*owner.timerOf() = timer{at, t.count}
	if at == Never {
		return
	}
	heap.Push(&t.heap, timerEntry{at, t.count, owner})
	t.count++
}

// due returns the earliest valid time, or Never.
func (t *timers) due() time.Duration {
	for len(t.heap) > 0 && t.heap[0].isStale() {
		heap.Pop(&t.heap)
	}
	if len(t.heap) == 0 {
		return Never
	}
	return t.heap[0].at
}

// take takes out an owner whose time has come, and clears its timer. nil: there is none.
func (t *timers) take(now time.Duration) timed {
	if t.due() > now {
		return nil
	}
	entry := heap.Pop(&t.heap).(timerEntry)
	entry.owner.timerOf().at = Never
	return entry.owner
}

// queue is a list of calls, which can leave it at any place. A call is in one queue at a time.
type queue struct {
	first, last *Call
	size        int
}

func (q *queue) push(call *Call) {
	call.before, call.after = q.last, nil
	if q.last != nil {
		q.last.after = call
	} else {
		q.first = call
	}
	q.last = call
	q.size++
}

func (q *queue) unshift(call *Call) {
	call.before, call.after = nil, q.first
	if q.first != nil {
		q.first.before = call
	} else {
		q.last = call
	}
	q.first = call
	q.size++
}

func (q *queue) remove(call *Call) {
	if call.before != nil {
		call.before.after = call.after
	} else {
		q.first = call.after
	}
	if call.after != nil {
		call.after.before = call.before
	} else {
		q.last = call.before
	}
	call.before, call.after = nil, nil
	q.size--
}
