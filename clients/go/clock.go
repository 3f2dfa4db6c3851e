package doorman

import (
	"sync"
	"time"
)

const suspendedMin = time.Second // by which the clocks differ when the machine was suspended

// machineClock returns the time since its start, in which the machine may have been suspended. The
// monotonic clock of Go stands still then. Where sinceBoot has no clock that goes on, what the time
// of day has gained is added.
type machineClock struct {
	start time.Time
	boot  time.Duration

	mutex     sync.Mutex
	ahead     time.Duration // by which the time of day has gained
	behind    time.Duration // by which it was set back
	suspended time.Duration
}

func newClock() *machineClock {
	boot, _ := sinceBoot()
	return &machineClock{start: time.Now(), boot: boot}
}

func (c *machineClock) now() time.Duration {
	if boot, ok := sinceBoot(); ok {
		return boot - c.boot
	}
	now := time.Now()
	return c.at(now.Round(0).Sub(c.start.Round(0)), now.Sub(c.start))
}

// at returns the time out of how far the time of day and the monotonic clock have come. A step of
// the time of day forward may be a suspension, except for what it corrects of steps back.
func (c *machineClock) at(wall, mono time.Duration) time.Duration {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	gained := wall - mono - c.ahead
	c.ahead += gained
	if gained > suspendedMin {
		if gained > c.behind {
			c.suspended += gained - c.behind
			gained = c.behind
		}
		c.behind -= gained
	} else if gained < -suspendedMin {
		c.behind -= gained
	}
	return mono + c.suspended
}
