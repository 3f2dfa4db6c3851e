package cores

import (
	"math"
	"testing"
	"time"
)

// This file tests what the stories cannot show, because they have no jitter and few details; and
// limiters, lists and names.

const hour = time.Hour

func check(t *testing.T, good bool, format string, values ...any) {
	t.Helper()
	if !good {
		t.Fatalf(format, values...)
	}
}

func leaseCore(t *testing.T, random float64) *LeaseCore {
	t.Helper()
	core, err := NewLeaseCore("me", []string{"http://a:1"}, 0,
		LeaseOptions{Random: func() float64 { return random }})
	check(t, err == nil, "%v", err)
	return core
}

func openRate(t *testing.T, core *LeaseCore, options ResourceOptions) *Resource {
	t.Helper()
	resource, err := core.Open("db", options, 0)
	check(t, err == nil, "%v", err)
	return resource
}

// answer answers the next request of a core of leases with one lease.
func answer(t *testing.T, core *LeaseCore, now time.Duration,
	capacity, expiresIn, interval float64) {
	t.Helper()
	request := core.Next(now)
	err := core.Response(request, 200, plain(object{"response": []any{object{"resource_id": "db",
		"gets": object{"id": 1, "node": "eu", "capacity": capacity, "expires_in": expiresIn,
			"refresh_interval": interval}}}}), now)
	check(t, err == nil, "%v", err)
}

// failUntil lets requests fail until a time. It returns the times at which they were sent.
func failUntil(core *LeaseCore, from, until time.Duration) (times []time.Duration) {
	for now := from; now <= until && len(times) < 1000; now = core.Due() {
		if request := core.Next(now); request != nil {
			times = append(times, now)
			core.Failed(request, now)
		}
	}
	return times
}

func TestPausesAfterFailuresGrowAndAreAtMostAQuarterOfWhatIsLeftOfALease(t *testing.T) { // K2
	core := leaseCore(t, 1-1e-9)
	openRate(t, core, ResourceOptions{Wants: 5})
	times := failUntil(core, 0, 300*time.Second)
	for i, want := range []time.Duration{2, 4, 8} {
		pause := (times[i+1] - times[i]).Round(time.Second)
		check(t, pause == want*time.Second, "pause %d is %v", i, pause)
	}
	leased := leaseCore(t, 1-1e-9)
	openRate(t, leased, ResourceOptions{Wants: 5})
	answer(t, leased, 0, 5, 60, 30)
	times = failUntil(leased, leased.Due(), 58*time.Second)
	check(t, len(times) > 4, "%v", times)
	for i := 1; i < len(times); i++ {
		left := 60*time.Second - times[i-1]
		check(t, times[i]-times[i-1] <= later(time.Second, left/4), "%v", times)
	}
}

func TestRenewalsOfManyClientsSpreadByATwentiethOfTheInterval(t *testing.T) {
	for random, late := range map[float64]float64{0: 0, 0.999: 0.5} {
		core := leaseCore(t, random)
		openRate(t, core, ResourceOptions{Wants: 5})
		answer(t, core, 0, 5, 60, 10)
		check(t, math.Abs(secondsOf(core.Due())-10-late) < 0.01, "%v", core.Due())
	}
}

func TestALeaseThatLacksAThousandthMeetsTheWants(t *testing.T) {
	for capacity, grows := range map[float64]bool{99.95: true, 99.5: false} {
		core := leaseCore(t, 0)
		resource := openRate(t, core, ResourceOptions{WantsInitial: 100})
		answer(t, core, 0, capacity, 600, 100)
		for i := 0; i < 1000; i++ {
			core.Take(resource, 1, time.Second/2)
		}
		var request *Request
		for now := time.Second / 2; now < 3*time.Second && request == nil; now += time.Second / 10 {
			request = core.Next(now)
		}
		check(t, (request != nil) == grows, "%v: %v", capacity, request)
	}
}

func permitCore(t *testing.T) *PermitCore {
	t.Helper()
	core, err := NewPermitCore("me", []string{"http://a:1"}, 0,
		PermitOptions{Policy: PermitPolicy{Lanes: -1}})
	check(t, err == nil, "%v", err)
	return core
}

func askFor(t *testing.T, core *PermitCore, name string) {
	t.Helper()
	_, err := core.Acquire(Permit{Items: []Item{{Resource: name}}, Detail: true}, time.Second, name, 0)
	check(t, err == nil, "%v", err)
}

func TestARefusalThatIsStillValidHasTheFiguresOfItsLimit(t *testing.T) {
	core := permitCore(t)
	askFor(t, core, "login")
	err := core.Response(core.Next(0), 200, plain(object{"permit": []any{object{
		"decision": "REFUSED", "reason": "RATE", "valid_for": 2, "limit": "per-user",
		"item": []any{object{"limits": []any{object{"name": "other", "limit": 9},
			object{"name": "per-user", "limit": 5, "window": 50}}}}}}}), 0)
	check(t, err == nil, "%v", err)
	askFor(t, core, "login")
	for _, by := range []string{ByServer, ByRefusal} {
		a := core.Decision(0)
		check(t, a.By == by && a.Quota == 5 && a.Window == 50*time.Second, "%+v", a)
	}
	check(t, core.Next(0) == nil, "a known refusal needs no request")
}

func TestAMessageWithInvalidDetailsDecidesNothingAndIsRepeated(t *testing.T) {
	for _, wrong := range []object{{"item": []any{object{"granted": 1, "limits": 7}}},
		{"item": []any{object{"granted": 1, "limits": []any{7}}}},
		{"item": []any{object{"granted": 1, "limits": []any{object{"window": -1}}}}},
		{"item": []any{object{"granted": 1, "limit": 7}}},
		{"item": []any{object{"granted": 1}}, "warning": "yes"}, {"item": []any{7}},
		{"item": []any{object{"granted": 1}}, "hold": object{"id": 1.5, "expires_in": 1}},
		{"item": []any{object{"granted": -1}}}, {"item": []any{}}} {
		core := permitCore(t)
		askFor(t, core, "a")
		askFor(t, core, "b")
		wrong["decision"] = "GRANTED"
		good := object{"decision": "GRANTED", "item": []any{object{"granted": 1}}}
		err := core.Response(core.Next(0), 200, plain(object{"permit": []any{good, wrong}}), 0)
		check(t, err != nil && core.Decision(0) == nil, "%v is valid", wrong)
		counts := core.Read()
		check(t, counts.Granted == 0 && counts.Failures == 1, "%+v", counts)
		again := plain(core.Next(0).Message).(object)["permit"].([]any)[0].(object)
		check(t, again["item"].([]any)[0].(object)["resource_id"] == "a", "%v", again)
	}
}

func fixedRate(amount, burstUnits float64, now time.Duration) *rateLimiter {
	rate := newRate(time.Second/10, burstUnits, now)
	rate.set(schedule{amount: amount, until: Never}, 0, now)
	rate.usage.ceiling = amount
	return rate
}

func taken(rate *rateLimiter, now time.Duration) int {
	count := 0
	for count < 10000 && rate.take(1, now) == Allowed {
		count++
	}
	return count
}

func TestARateNeverAllowsMoreThanRateTimesTimeAndBurst(t *testing.T) {
	for _, start := range []time.Duration{0, hour, 365 * 24 * hour} {
		rate := fixedRate(100, 0, start)
		allowed := 0
		for step := 1; step <= 1000; step++ {
			allowed += taken(rate, start+time.Duration(step)*10*time.Millisecond)
		}
		check(t, allowed >= 999 && allowed <= 1010, "%d", allowed)
	}
	rate := fixedRate(100, 0, 0)
	check(t, rate.take(20, time.Second/10) == Refused, "20 units are not saved")
	check(t, rate.delay(20, time.Second/10) == time.Second/10, "%v", rate.delay(20, time.Second/10))
	check(t, rate.take(20, time.Second/5) == Allowed, "20 units are saved")
	check(t, rate.take(math.NaN(), hour) == Impossible && rate.take(-1, hour) == Impossible, "amounts")
	bound := fixedRate(10, 4, 0)
	check(t, taken(bound, hour) == 4 && bound.take(5, hour) == Impossible, "a burst is a hard bound")
}

func TestAChangeOfTheRateGainsNoUnits(t *testing.T) {
	for _, amounts := range [][2]float64{{10, 1000}, {1000, 10}, {10, 0.1}, {0.1, 10}} {
		saved := taken(fixedRate(amounts[0], 0, 0), hour)
		rate := fixedRate(amounts[0], 0, 0)
		rate.set(schedule{amount: amounts[1], until: Never}, 0, hour)
		got := taken(rate, hour)
		check(t, got <= saved || got <= 1, "%v: %d", amounts, got)
	}
	rate := fixedRate(0, 0, 0)
	rate.set(schedule{1000, 10 * time.Second, 0}, 0, 0)
	check(t, taken(rate, 10*time.Second-1) == 100, "the lease is in force")
	check(t, taken(rate, 10*time.Second) == 0 && taken(rate, hour) == 0, "the lease has ended")
}

func TestAGaugeFollowsItsLease(t *testing.T) {
	gauge := newGauge()
	gauge.set(schedule{2, time.Second, 1}, 0, 0)
	for _, want := range []Outcome{Allowed, Allowed, Refused} {
		check(t, gauge.take(1, 0) == want, "%v", want)
	}
	check(t, gauge.release(1) == nil && gauge.take(1, time.Second) == Refused, "one may be used")
	check(t, gauge.release(1) == nil && gauge.take(1, time.Second) == Allowed, "one may be used")
	check(t, gauge.release(2) != nil, "more are released than are in use")
}

func TestLocalLimits(t *testing.T) {
	key := itemPair{"a", "k"}
	bucket := newLocalLimiters(Limit{Kind: TokenBucket, Rate: 1, Size: 3}, 10)
	for i, want := range []time.Duration{0, 0, 0, time.Second} {
		check(t, bucket.take(key, 1, 0) == want, "token %d", i)
	}
	check(t, bucket.take(key, 4, hour) == Never, "4 never fit")
	two := newLocalLimiters(Limit{Kind: FixedWindow, Limit: 1, Window: 100 * time.Second}, 2)
	for _, name := range []string{"a", "b", "c"} {
		check(t, two.take(itemPair{name, ""}, 1, 0) == 0, "%s", name)
	}
	check(t, two.take(itemPair{"c", ""}, 1, 0) > 0 && two.take(itemPair{"a", ""}, 1, 0) == 0,
		"the key that was used the longest time ago is forgotten")
	for _, limit := range []Limit{{Kind: "TIERS"}, {Kind: TokenBucket, Rate: 1},
		{Kind: FixedWindow, Limit: 1}, {Kind: FixedWindow, Limit: -1, Window: 1}} {
		check(t, limit.check() != nil, "%+v", limit)
	}
}

func TestAWaitOfAWindowIsExact(t *testing.T) {
	for _, limit := range []Limit{{Kind: SlidingWindow, Limit: 7, Window: 3 * time.Second},
		{Kind: FixedWindow, Limit: 7, Window: 3 * time.Second},
		{Kind: SlidingWindow, Limit: 1e8, Window: 3 * time.Second}} {
		limiters := newLocalLimiters(limit, 10)
		now := time.Duration(0)
		for step := 0; step < 200; step++ {
			units := float64(1+step%3) * limit.Limit / 7
			wait := limiters.take(itemPair{}, units, now)
			if wait == 0 {
				now += time.Duration(step) * time.Second / 50
				continue
			}
			check(t, limiters.take(itemPair{}, units, now+wait-time.Millisecond) > 0, "step %d", step)
			now += wait
			check(t, limiters.take(itemPair{}, units, now) == 0, "step %d", step)
		}
	}
}

func TestTimersComeInOrderAndOnlyTheLastOneOfAnOwnerCounts(t *testing.T) {
	var list timers
	owners := make([]*hold, 200)
	at := func(i int) time.Duration { return time.Duration(1 + i*37%100) }
	for i := range owners {
		owners[i] = &hold{number: int64(i), timer: timer{at: Never}}
		list.set(owners[i], 5)
		list.set(owners[i], at(i))
	}
	list.set(owners[0], Never)
	last, count := time.Duration(0), 0
	for owner := list.take(100); owner != nil; owner = list.take(100) {
		now := at(int(owner.(*hold).number))
		check(t, now >= last, "%v after %v", now, last)
		last = now
		count++
	}
	check(t, count == 199 && list.due() == Never, "%d", count)
}

func TestNamesAndAddressesHaveBounds(t *testing.T) {
	long := ""
	for i := 0; i < 128; i++ {
		long += "é"
	}
	check(t, checkID("id", long, false) == nil, "256 bytes")
	for _, wrong := range []string{"", long + "é", "a\nb", "\x7f", "\xff"} {
		check(t, checkID("id", wrong, false) != nil, "%q", wrong)
	}
	for _, good := range []string{"http://a", "https://a:1", "http://[::1]:5000", "http://a:1/path",
		"http://[::1]"} {
		check(t, checkAddress(good) == nil, "%s", good)
	}
	for _, wrong := range []string{"a:1", "ftp://a", "http://", "http://a:0", "http://a:99999",
		"http://a b", "http://[::1]:x", "http://[::1", "http://:15050", "http://a:1/%"} {
		check(t, checkAddress(wrong) != nil, "%s", wrong)
	}
	node, err := newAddresses([]string{"HTTPS://a:1/"})
	check(t, err == nil && node.current() == "HTTPS://a:1", "%v", node)
	check(t, !node.follow("http://b:1") && !node.follow("nonsense") && !node.follow(nil), "%v", node)
	check(t, node.follow("https://b:1") && node.current() == "https://b:1", "%v", node)
}
