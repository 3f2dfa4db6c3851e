package cores

import (
	"math"
	"time"
)

// This file has units that are taken ahead for keys that are used often (P24).

const (
	stocksMax   = 10000
	stockSlices = 4
)

// lot has the units of one time, which are lost at `until`.
type lot struct {
	units float64
	until time.Duration
}

// stock is the use of a resource and key, and the units that were taken ahead for it.
type stock struct {
	pair        itemPair
	until       time.Duration
	asking      bool // a call that takes units ahead is queued or under way
	warning     bool
	slice       int64
	unitsUsed   [stockSlices]float64
	timesUsed   [stockSlices]int
	lots        [2]lot
	grantedMost float64 // the most units that a server has granted to one permit
	remaining   float64
	resetAt     time.Duration
	limit       string
}

func (s *stock) units() float64 { return s.lots[0].units + s.lots[1].units }

// missing returns how many units to take ahead now: whole units, or 0.
func (s *stock) missing() float64 {
	used, times := 0.0, 0
	for i := range s.unitsUsed {
		used += s.unitsUsed[i]
		times += s.timesUsed[i]
	}
	stored := s.units()
	if s.asking || times < 2 || stored > used/2 {
		return 0
	}
	return math.Trunc(math.Min(used-stored, s.remaining/2))
}

// stocks are those of a client. prefetch is how far ahead units are taken; 0: never.
type stocks struct {
	all      *ordered[itemPair, *stock]
	end      time.Duration
	prefetch time.Duration
	counts   *Counts
}

func (s *stocks) find(item Item) *stock {
	found, _ := s.all.get(item.pair())
	return found
}

// due returns when all stocks can be forgotten.
func (s *stocks) due() time.Duration {
	if s.all.size() == 0 {
		return Never
	}
	return s.end
}

// forget forgets all stocks when the time of the last one has passed.
func (s *stocks) forget(now time.Duration) {
	if s.all.size() > 0 && s.end <= now {
		s.forgetOldest(now)
	}
}

func (s *stocks) forgetOldest(now time.Duration) {
	for oldest := s.all.first(); oldest != nil; oldest = s.all.first() {
		if oldest.value.until > now && s.all.size() < stocksMax {
			return
		}
		s.all.remove(oldest.key)
		s.counts.Lapsed += oldest.value.units()
	}
}

func (s *stocks) open(item Item, now time.Duration) *stock {
	found := s.find(item)
	if found == nil {
		s.forgetOldest(now)
		found = &stock{pair: item.pair(), until: now}
		s.all.set(found.pair, found)
	}
	return found
}

func (s *stocks) keep(stock *stock, now time.Duration) {
	stock.until = now + 2*s.prefetch
	s.end = later(s.end, stock.until)
	if s.all.remove(stock.pair) {
		s.all.set(stock.pair, stock)
	}
}

// lapse loses the units whose time has passed.
func (s *stocks) lapse(stock *stock, now time.Duration) {
	for i := range stock.lots {
		if stock.lots[i].until <= now {
			s.counts.Lapsed += stock.lots[i].units
			stock.lots[i].units = 0
		}
	}
}

// spend takes units out of the stock of an item. It returns nil if it has not enough.
func (s *stocks) spend(item Item, cost float64, now time.Duration) *stock {
	found := s.find(item)
	if found == nil {
		return nil
	}
	s.lapse(found, now)
	if cost > found.units() || item.units() > found.grantedMost {
		return nil
	}
	first := math.Min(cost, found.lots[0].units)
	found.lots[0].units -= first
	found.lots[1].units -= cost - first
	return found
}

// use counts units that were used.
func (s *stocks) use(stock *stock, units float64, now time.Duration) {
	number := int64(now / (s.prefetch / stockSlices))
	for i := int64(1); i <= number-stock.slice && i <= stockSlices; i++ {
		stock.unitsUsed[(stock.slice+i)%stockSlices] = 0
		stock.timesUsed[(stock.slice+i)%stockSlices] = 0
	}
	stock.slice = number
	stock.unitsUsed[number%stockSlices] += units
	stock.timesUsed[number%stockSlices]++
	s.keep(stock, now)
}

// receive stores units that a server has granted ahead, for a message that was sent at sentAt. With
// a wait, nobody waits for them.
func (s *stocks) receive(item Item, units float64, wait, sentAt, now time.Duration) *stock {
	found := s.find(item)
	s.counts.Prefetched += units
	if found == nil || wait > 0 {
		s.counts.Lapsed += units
		return found
	}
	s.lapse(found, now)
	if found.lots[0].units == 0 {
		found.lots[0], found.lots[1] = found.lots[1], found.lots[0]
		found.lots[1].units = 0
	}
	last := &found.lots[0]
	if last.units != 0 {
		last = &found.lots[1]
	}
	if last.units == 0 {
		last.until = sentAt + 2*s.prefetch
	}
	last.units += units
	s.lapse(found, now)
	s.keep(found, now)
	return found
}

func (s *stocks) learnRefusal(item Item, reason string) {
	found := s.find(item)
	if found == nil {
		return
	}
	found.remaining = 0
	if reason == "BANNED" {
		s.counts.Lapsed += found.units()
		s.all.remove(found.pair)
	}
}
