package doorman

import (
	"context"
	"errors"
	"math"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// This file tests the client, with a real server and with a server that lies.

var background = context.Background()

func within(t *testing.T, limit time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(background, limit)
	t.Cleanup(cancel)
	return ctx
}

func check(t *testing.T, good bool, format string, values ...any) {
	t.Helper()
	if !good {
		t.Fatalf(format, values...)
	}
}

func succeed(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// acquire asks for a permit of one item, and has patience.
func acquire(t *testing.T, client *Client, items ...Item) *Acquired {
	t.Helper()
	decision, err := client.AcquireItems(background, AcquireOptions{Timeout: patience, Detail: true},
		items...)
	succeed(t, err)
	return decision
}

func rateOf(t *testing.T, client *Client, name string, options ResourceOptions) *Rate {
	t.Helper()
	rate, err := client.Rate(name, options)
	succeed(t, err)
	return rate
}

func holdOf(t *testing.T, client *Client, options HoldOptions, item Item) *Hold {
	t.Helper()
	if options.Timeout == 0 {
		options.Timeout = patience
	}
	hold, err := client.Hold(background, options, item)
	succeed(t, err)
	return hold
}

func TestARateGetsALeaseAndGivesItBack(t *testing.T) {
	s := startServer(t, testConfig)
	client, _ := newTestClient(t, Options{}, far, s.url)
	rate := rateOf(t, client, "db/orders", ResourceOptions{Wants: 50})
	succeed(t, rate.Wait(within(t, patience), 5))
	eventually(t, "there is a lease", func() bool { return rate.Info().Leased })
	check(t, rate.Info().Capacity == 50 && rate.Info().Allowed >= 5, "%+v", rate.Info())
	other, _ := newTestClient(t, Options{}, s.url)
	rest := rateOf(t, other, "db/orders", ResourceOptions{Wants: 100})
	eventually(t, "there is another lease", func() bool { return rest.Info().Leased })
	check(t, rest.Info().Capacity <= 50, "%+v", rest.Info())
	rate.Close()
	rate.Close()
	check(t, !rate.TryUse(1), "a closed rate has units")
	check(t, errors.Is(rate.Wait(background, 1), ErrClosed), "a closed rate can wait")
	eventually(t, "the other client gets the rest", func() bool { return rest.Info().Capacity == 100 })
}

func TestTheWantsOfARateFollowItsUse(t *testing.T) {
	s := startServer(t, testConfig)
	client, _ := newTestClient(t, Options{}, s.url)
	rate := rateOf(t, client, "db/follows", ResourceOptions{})
	eventually(t, "the lease grows", func() bool {
		for rate.TryUse(1) {
		}
		return rate.Info().Capacity > 2
	})
	wait, known := rate.RetryAfter(1)
	check(t, known && wait > 0, "%v", wait)
}

func TestManyGoroutinesWaitForARate(t *testing.T) {
	s := startServer(t, testConfig)
	client, _ := newTestClient(t, Options{}, s.url)
	rate := rateOf(t, client, "db/many", ResourceOptions{Wants: 100})
	var all sync.WaitGroup
	for i := 0; i < 40; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			if err := rate.Wait(within(t, patience), 1); err != nil {
				t.Error(err)
			}
		}()
	}
	all.Wait()
	check(t, rate.Info().Allowed == 40, "%+v", rate.Info())
}

func TestAGaugeLimitsWhatIsInUse(t *testing.T) {
	s := startServer(t, testConfig)
	client, _ := newTestClient(t, Options{}, s.url)
	gauge, err := client.Gauge("conn", ResourceOptions{})
	succeed(t, err)
	ran := false
	succeed(t, gauge.Use(within(t, patience), 2, func() error {
		ran = true
		check(t, gauge.Info().InUse == 2, "%+v", gauge.Info())
		succeed(t, gauge.Wait(within(t, patience), 1))
		err := gauge.Use(within(t, 50*time.Millisecond), 1, func() error { return nil })
		check(t, errors.Is(err, context.DeadlineExceeded), "%v", err)
		return gauge.Release(1)
	}))
	check(t, ran && gauge.Info().InUse == 0, "%+v", gauge.Info())
	check(t, gauge.Release(1) != nil, "more was released than is in use")
}

func TestPermitsAreGrantedAndRefused(t *testing.T) {
	s := startServer(t, testConfig)
	client, _ := newTestClient(t, Options{}, s.url)
	alice := Item{Resource: "login", Key: "alice", Cost: 4}
	first := acquire(t, client, alice)
	check(t, first.Granted && first.By == ByServer && first.Limit == "per-user" && first.Quota == 5,
		"%+v", first)
	second := acquire(t, client, alice)
	check(t, !second.Granted && second.Reason == "RATE" && second.RetryAfter > time.Second,
		"%+v", second)
	both := acquire(t, client, Item{Resource: "login", Key: "alice", Cost: 3, Min: 1},
		Item{Resource: "llm"})
	check(t, reflect.DeepEqual(both.Units, []float64{1, 1}), "%+v", both)
	look := acquire(t, client, Item{Resource: "login", Key: "eve", Look: true})
	check(t, look.Granted && look.Remaining == 5, "%+v", look)
	check(t, strings.Contains(client.Metrics(), "\ndoorman_client_permits_granted_total 3\n"),
		"%s", client.Metrics())
}

func TestManyCallersShareAClient(t *testing.T) {
	s := startServer(t, testConfig)
	client, _ := newTestClient(t, Options{}, s.url)
	granted := make(chan bool, 20)
	for i := 0; i < 20; i++ {
		go func() {
			decision, err := client.AcquireItems(background, AcquireOptions{Timeout: patience},
				Item{Resource: "login", Key: "crowd"})
			granted <- err == nil && decision.Granted
		}()
	}
	count := 0
	for i := 0; i < 20; i++ {
		if <-granted {
			count++
		}
	}
	check(t, count == 5, "%d", count)
	check(t, client.Counts().Messages <= 20, "%+v", client.Counts())
}

func TestAHoldIsReleasedWaitedForAndTransferred(t *testing.T) {
	s := startServer(t, testConfig)
	client, _ := newTestClient(t, Options{}, s.url)
	slot := Item{Resource: "transcode", Key: "b"}
	waited := make(chan *Hold, 1)
	first := holdOf(t, client, HoldOptions{}, Item{Resource: "transcode", Key: "acme", Cost: 2})
	succeed(t, first.Run(func(hold *Hold) error {
		check(t, hold.Left() > time.Second, "%v", hold.Left())
		check(t, reflect.DeepEqual(hold.Units(), []float64{2}), "%v", hold.Units())
		var refused *RefusedError
		err := holdOf(t, client, HoldOptions{}, slot).Run(func(*Hold) error { return nil })
		check(t, errors.As(err, &refused) && refused.Decision.Reason == "CONCURRENCY", "%v", err)
		go func() {
			hold, err := client.Hold(background, HoldOptions{MaxWait: 50 * time.Second}, slot)
			if err != nil {
				t.Error(err)
			}
			waited <- hold
		}()
		time.Sleep(50 * time.Millisecond)
		dave := acquire(t, client, Item{Resource: "login", Key: "dave"})
		check(t, dave.By == ByServer, "%+v", dave)
		return nil
	}))
	hold := <-waited
	check(t, hold.Granted, "%+v", hold.Decision)
	moved, err := hold.Transfer(within(t, patience), TransferOptions{})
	succeed(t, err)
	check(t, moved.Granted, "%+v", moved)
	seized, err := client.Seize(within(t, patience), moved.TransferID, SeizeOptions{})
	succeed(t, err)
	check(t, reflect.DeepEqual(seized.Units(), []float64{1}), "%v", seized.Units())
	check(t, hold.Left() == 0, "%v", hold.Left())
	seized.Release()
	eventually(t, "all holds are released", func() bool { return client.Counts().Holds == 0 })
}

func TestAWaitForAHoldThatIsCancelledGivesUpItsPlace(t *testing.T) {
	s := startServer(t, testConfig)
	client, _ := newTestClient(t, Options{}, s.url)
	first := holdOf(t, client, HoldOptions{}, Item{Resource: "transcode", Key: "acme", Cost: 2})
	ctx, cancel := context.WithCancel(background)
	time.AfterFunc(50*time.Millisecond, cancel)
	_, err := client.Hold(ctx, HoldOptions{MaxWait: 50 * time.Second},
		Item{Resource: "transcode", Key: "c"})
	check(t, errors.Is(err, context.Canceled), "%v", err)
	first.Release()
	second := holdOf(t, client, HoldOptions{MaxWait: 50 * time.Second},
		Item{Resource: "transcode", Key: "d", Cost: 2})
	check(t, second.Granted, "%+v", second.Decision) // what was cancelled does not stay taken
	second.Release()
}

func TestAReservationIsSettled(t *testing.T) {
	s := startServer(t, testConfig)
	client, _ := newTestClient(t, Options{}, s.url)
	reserve := func(key string, cost float64) *Reservation {
		r, err := client.Reserve(background, ReserveOptions{Timeout: patience},
			Item{Resource: "llm", Key: key, Cost: cost})
		succeed(t, err)
		return r
	}
	succeed(t, reserve("acme", 6).Run(func() ([]float64, error) { return []float64{1}, nil }))
	problem := errors.New("of the application")
	err := reserve("acme", 3).Run(func() ([]float64, error) { return []float64{0}, problem })
	check(t, errors.Is(err, problem), "%v", err)
	eventually(t, "both are settled", func() bool { return client.Counts().Settled == 2 })
	check(t, acquire(t, client, Item{Resource: "llm", Key: "acme", Cost: 6}).Granted, "6 are left")
	check(t, !acquire(t, client, Item{Resource: "llm", Key: "acme"}).Granted, "none is left")
	succeed(t, client.Report("llm", "acme", 1))
	eventually(t, "the report is answered", func() bool { return client.Counts().Reported == 1 })
	third := reserve("other", 6)
	check(t, third.Settle(1, 2) != nil, "two costs for one item")
	check(t, third.Settle(math.NaN()) != nil, "a cost that is no number")
	settled, err := third.SettleAndWait(within(t, patience), 2)
	succeed(t, err)
	check(t, settled.Granted && reflect.DeepEqual(settled.Units, []float64{-4}), "%+v", settled)
	again, err := third.SettleAndWait(background, 5)
	check(t, again == nil && err == nil, "a second settle has an effect")
}

func TestAClientOutlivesACrashOfTheServer(t *testing.T) {
	s := startServer(t, testConfig)
	client, seen := newTestClient(t, Options{Permits: PermitPolicy{Fallback: Closed}}, s.url)
	rate := rateOf(t, client, "db/crash", ResourceOptions{Wants: 10})
	eventually(t, "there is a lease", func() bool { return rate.Info().Leased })
	a := Item{Resource: "login", Key: "a"}
	check(t, acquire(t, client, a).By == ByServer, "the server decides")
	s.crash()
	check(t, acquire(t, client, a).By == ByFallback, "the fallback decides")
	check(t, seen.String() != "", "there is no warning")
	check(t, rate.Info().Leased, "the lease stays")
	address, err := url.Parse(s.url)
	succeed(t, err)
	s.startAt(address.Host)
	eventually(t, "the server decides again", func() bool {
		decision, err := client.Acquire(background, "login", "b")
		return err == nil && decision.By == ByServer
	})
	hold := holdOf(t, client, HoldOptions{}, Item{Resource: "transcode"})
	check(t, hold.Left() > time.Second, "%v", hold.Left())
	hold.Release()
}

func TestATokenIsSentAndAWrongOneIsRefused(t *testing.T) {
	const token = "0123456789abcdef0123456789abcdef"
	file := filepath.Join(t.TempDir(), "tokens")
	succeed(t, os.WriteFile(file, []byte("write me "+token+"\n"), 0o600))
	s := startServer(t, testConfig, "--http-token", file)
	right, _ := newTestClient(t, Options{TokenSource: func() (string, error) { return token, nil }},
		s.url)
	item := Item{Resource: "login", Key: "a"}
	check(t, acquire(t, right, item).By == ByServer, "the token is right")
	wrong, seen := newTestClient(t, Options{Token: "wrong" + token}, s.url)
	check(t, acquire(t, wrong, item).By == ByFallback, "the token is wrong")
	eventually(t, "there is a warning",
		func() bool { return strings.Contains(seen.String(), "UNAUTHENTICATED") })
}

// makeCertificate makes a key and a certificate, and returns their paths.
func makeCertificate(t *testing.T) (string, string) {
	folder := t.TempDir()
	key, certificate := filepath.Join(folder, "key.pem"), filepath.Join(folder, "certificate.pem")
	succeed(t, exec.Command("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
		"ec_paramgen_curve:P-256", "-nodes", "-keyout", key, "-out", certificate, "-days", "2",
		"-subj", "/CN=doorman", "-addext", "subjectAltName=IP:127.0.0.1").Run())
	return key, certificate
}

func TestOnlyAServerWithAKnownCertificateIsAsked(t *testing.T) {
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("there is no openssl")
	}
	key, certificate := makeCertificate(t)
	_, other := makeCertificate(t)
	s := startServer(t, testConfig, "--tls-cert", certificate, "--tls-key", key)
	check(t, strings.HasPrefix(s.url, "https:"), "%s", s.url)
	item := Item{Resource: "login", Key: "tls"}
	known, _ := newTestClient(t, Options{CAFile: certificate}, s.url)
	check(t, acquire(t, known, item).By == ByServer, "the certificate is known")
	named := strings.Replace(s.url, "127.0.0.1", "localhost", 1) // which the certificate lacks
	for _, wrong := range [][2]string{{s.url, ""}, {s.url, other}, {named, certificate}} {
		unknown, seen := newTestClient(t, Options{CAFile: wrong[1]}, wrong[0])
		check(t, acquire(t, unknown, item).By == ByFallback, "the certificate is not known")
		eventually(t, "there is a warning",
			func() bool { return strings.Contains(seen.String(), "certificate") })
	}
}

func TestTheFallbackDecidesWithoutAServer(t *testing.T) {
	for fallback, granted := range map[string]bool{Open: true, Closed: false} {
		client, seen := newTestClient(t, Options{Permits: PermitPolicy{Fallback: fallback}}, far)
		decision := acquire(t, client, Item{Resource: "login", Key: "a"})
		check(t, decision.Granted == granted && decision.By == ByFallback, "%+v", decision)
		eventually(t, "there is a warning",
			func() bool { return strings.Contains(seen.String(), "refused") })
	}
	local, _ := newTestClient(t, Options{Permits: PermitPolicy{Fallback: Local,
		Local: &LocalLimit{Kind: FixedWindow, Limit: 2, Window: 1e6 * time.Second}}}, far)
	for i := 0; i < 3; i++ {
		decision, err := local.AcquireItems(background, AcquireOptions{Timeout: -1}, Item{Resource: "x"})
		succeed(t, err)
		check(t, decision.Granted == (i < 2), "%d: %+v", i, decision)
	}
}

func TestTheSafeCapacityIsUsedWithoutALease(t *testing.T) {
	client, _ := newTestClient(t, Options{}, far)
	rate := rateOf(t, client, "db", ResourceOptions{Wants: 100, SafeCapacity: 1000})
	succeed(t, rate.Wait(within(t, patience), 1))
	check(t, !rate.Info().Leased, "%+v", rate.Info())
}

func TestTheKillSwitchGrantsEverything(t *testing.T) {
	client, _ := newTestClient(t, Options{Permits: PermitPolicy{Fallback: Closed}}, far)
	rate := rateOf(t, client, "db", ResourceOptions{Wants: 100})
	check(t, !rate.TryUse(1), "there is no lease")
	client.KillSwitch(true)
	check(t, rate.TryUse(1), "the kill switch is on")
	check(t, acquire(t, client, Item{Resource: "x"}).By == ByBypass, "the kill switch is on")
}

const grants = `{"permit": [{"decision": "GRANTED", "item": [{"granted": 1}]}]}`

func TestAnswersThatAreNotValidAreFailures(t *testing.T) {
	for _, answer := range []struct {
		status int
		body   string
	}{
		{200, "<html>"}, {200, "{}"}, {200, `{"permit": [{}, {}]}`}, {500, "{}"},
		{200, strings.Repeat("[", 100000)}, {302, "{}"}, {200, `{"permit": [{"decision": 7}]}`},
		{0, ""}, {200, `{"permit": [{"decision": "GRANTED", "item": [{"granted": 1, "limits": 7}]}]}`},
		{200, strings.Repeat("x", 5<<20)}, {200, `{"mastership": 7}`}, {200, `null`},
		{401, `{"error": {"code": "UNAUTHENTICATED", "message": "no"}}`},
	} {
		answer := answer
		fake := startFake(t, func(string, map[string]any) (int, string) {
			return answer.status, answer.body
		})
		client, seen := newTestClient(t, Options{}, fake.URL)
		decision := acquire(t, client, Item{Resource: "login", Key: "a"})
		check(t, decision.By == ByFallback, "%.60s: %+v", answer.body, decision)
		eventually(t, "there is a warning", func() bool { return seen.String() != "" })
	}
}

func TestARedirectIsFollowedWithTheToken(t *testing.T) {
	master := startFake(t, func(string, map[string]any) (int, string) { return 200, grants })
	other := startFake(t, func(string, map[string]any) (int, string) {
		return 200, `{"mastership": {"http_address": "` + master.URL + `"}}`
	})
	client, _ := newTestClient(t, Options{Token: "t", Header: map[string][]string{"X-Team": {"a"}}},
		other.URL)
	for i := 0; i < 2; i++ {
		check(t, acquire(t, client, Item{Resource: "login"}).By == ByServer, "the master decides")
	}
	header := master.all()[0].header
	check(t, len(other.all()) == 1 && header.Get("Authorization") == "Bearer t" &&
		header.Get("X-Team") == "a", "%v", header)
}

func TestAConnectionThatTheServerHasClosedIsNoFailure(t *testing.T) {
	fake := startFake(t, func(string, map[string]any) (int, string) { return 200, grants })
	client, seen := newTestClient(t, Options{}, fake.URL)
	for i := 0; i < 5; i++ {
		check(t, acquire(t, client, Item{Resource: "login"}).By == ByServer, "%s", seen)
		fake.CloseClientConnections()
	}
	check(t, seen.String() == "", "%s", seen)
}

func TestAServerThatHangsDelaysNoLaterCall(t *testing.T) {
	goOn := make(chan struct{})
	fake := startFake(t, func(_ string, message map[string]any) (int, string) {
		item := message["permit"].([]any)[0].(map[string]any)["item"].([]any)[0]
		if item.(map[string]any)["resource_id"] == "slow" {
			<-goOn
		}
		return 200, grants
	})
	defer close(goOn)
	client, _ := newTestClient(t, Options{PermitTimeout: 100 * time.Millisecond}, fake.URL)
	slow, err := client.AcquireItems(background, AcquireOptions{Timeout: 100 * time.Millisecond},
		Item{Resource: "slow"})
	succeed(t, err)
	check(t, slow.By == ByFallback, "%+v", slow)
	eventually(t, "another call is decided",
		func() bool { return acquire(t, client, Item{Resource: "x"}).By == ByServer })
}

func TestAResourceWithoutLimitsIsNamedOnceAndTheFallbackDecides(t *testing.T) {
	fake := startFake(t, func(string, map[string]any) (int, string) {
		return 200, `{"permit": [{"decision": "REFUSED", "reason": "UNMATCHED", "item_index": 0,
			"valid_for": 1}]}`
	})
	for fallback, granted := range map[string]bool{Open: true, Closed: false} {
		client, seen := newTestClient(t, Options{Permits: PermitPolicy{Fallback: fallback}}, fake.URL)
		for i := 0; i < 3; i++ {
			decision := acquire(t, client, Item{Resource: "logn", Key: "a"})
			check(t, decision.Granted == granted && decision.By == ByFallback &&
				decision.Reason == "UNMATCHED" && decision.Unmatched == "logn", "%+v", decision)
		}
		acquire(t, client, Item{Resource: "other"})
		eventually(t, "another resource is named",
			func() bool { return strings.Contains(seen.String(), "other: the servers have no limits") })
		check(t, strings.Count(seen.String(), "logn: the servers have no limits") == 1, "%v", seen)
	}
}

func TestAWarningNamesTheStatusOfWhatIsNoServerOfDoorman(t *testing.T) {
	proxy := startFake(t, func(string, map[string]any) (int, string) { return 502, "<html>" })
	client, seen := newTestClient(t, Options{}, proxy.URL)
	acquire(t, client, Item{Resource: "login"})
	eventually(t, "there is a warning",
		func() bool { return strings.Contains(seen.String(), "the status is 502") })
}

// grantTwo answers acquire with a hold of two units.
func grantTwo(string, map[string]any) (int, string) {
	return 200, `{"permit": [{"decision": "GRANTED", "item": [{"granted": 2}],
		"hold": {"id": 7, "node": "eu", "expires_in": 3000}}]}`
}

func TestAmountsThatAreNotValidLeaveAHoldAsItWas(t *testing.T) {
	client, _ := newTestClient(t, Options{}, startFake(t, grantTwo).URL)
	hold := holdOf(t, client, HoldOptions{}, Item{Resource: "t", Key: "k", Cost: 2})
	for _, amount := range []float64{-1, math.NaN(), math.Inf(1)} {
		_, err := hold.Transfer(background, TransferOptions{Amounts: []float64{amount}})
		check(t, err != nil && strings.Contains(err.Error(), "Amounts: must be"), "%v: %v", amount, err)
	}
	check(t, reflect.DeepEqual(hold.Units(), []float64{2}), "%v", hold.Units())
}

func TestWhatIsKeptIsNoLessThanNothing(t *testing.T) {
	for _, kept := range []float64{-1, math.NaN()} {
		fake := startFake(t, func(string, map[string]any) (int, string) {
			return 200, `{"permit": [{"decision": "GRANTED", "item": [{"granted": 1}, {"granted": 2}],
				"hold": {"id": 7, "node": "eu", "expires_in": 3000}}]}`
		})
		client, _ := newTestClient(t, Options{}, fake.URL)
		hold, err := client.Hold(background, HoldOptions{Timeout: patience}, Item{Resource: "t"},
			Item{Resource: "u", Cost: 2})
		succeed(t, err)
		hold.Keep(kept, 1)
		check(t, reflect.DeepEqual(hold.Units(), []float64{0, 1}), "%v of %v", hold.Units(), kept)
	}
}

func TestASettleThatNobodyCanSendAnyMoreIsAnError(t *testing.T) {
	fake := startFake(t, func(string, map[string]any) (int, string) {
		return 200, `{"permit": [{"decision": "GRANTED", "item": [{"granted": 5}],
			"hold": {"id": 7, "node": "eu", "expires_in": 3000},
			"reservation": {"settle_within": 60}}]}`
	})
	client, _ := newTestClient(t, Options{}, fake.URL)
	item := Item{Resource: "llm", Key: "a", Cost: 5}
	reservation, err := client.Reserve(background, ReserveOptions{Timeout: patience}, item)
	succeed(t, err)
	hold := holdOf(t, client, HoldOptions{SettleWithin: time.Minute}, item)
	ctx, cancel := context.WithCancel(background)
	cancel()
	_ = client.Shutdown(ctx)
	_, err = reservation.SettleAndWait(background, 1)
	check(t, errors.Is(err, ErrClosed), "%v", err)
	err = reservation.Settle(1)
	check(t, errors.Is(err, ErrClosed), "%v", err)
	err = hold.Settle(1)
	check(t, errors.Is(err, ErrClosed), "%v", err)
	waiting := client.Counts().Waiting
	check(t, waiting == 0, "%d settles wait for a client that is closed", waiting)
}

func TestAHoldThatIsGoneIsTold(t *testing.T) {
	fake := startFake(t, func(method string, _ map[string]any) (int, string) {
		if method != "acquire" {
			return 200, `{"entry": [{"gone": true}]}`
		}
		return 200, `{"permit": [{"decision": "GRANTED", "item": [{"granted": 1}],
			"hold": {"id": 7, "node": "eu", "waited": 0, "expires_in": 0.3}}]}`
	})
	client, _ := newTestClient(t, Options{}, fake.URL)
	gone := make(chan Held, 1)
	hold := holdOf(t, client, HoldOptions{OnGone: func(held Held) { gone <- held }},
		Item{Resource: "t", Key: "k"})
	check(t, (<-gone).Gone, "it is gone")
	eventually(t, "the hold ends", func() bool { return hold.Left() == 0 })
	check(t, client.Counts().HoldsLost == 1, "%+v", client.Counts())
}

func TestAReservationThatIsCancelledIsSettledWithACostOfZero(t *testing.T) {
	answer := make(chan struct{})
	fake := startFake(t, func(method string, _ map[string]any) (int, string) {
		if method == "settle" {
			return 200, `{"entry": [{"item": [{"charged": 0, "returned": 5}]}]}`
		}
		<-answer
		return 200, `{"permit": [{"decision": "GRANTED", "reservation": {"settle_within": 60},
			"item": [{"granted": 5}]}]}`
	})
	client, _ := newTestClient(t, Options{PermitTimeout: patience}, fake.URL)
	ctx, cancel := context.WithCancel(background)
	go func() {
		for len(fake.all()) == 0 {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	_, err := client.Reserve(ctx, ReserveOptions{Timeout: patience},
		Item{Resource: "llm", Key: "a", Cost: 5})
	check(t, errors.Is(err, context.Canceled), "%v", err)
	close(answer)
	eventually(t, "it is settled", func() bool { return client.Counts().Settled == 1 })
	entry := fake.all()[1].message["entry"].([]any)[0].(map[string]any)
	item := entry["item"].([]any)[0].(map[string]any)
	check(t, item["cost"] == 0.0, "%v", item)
}

func TestAHoldThatIsAReservationIsSettledAndReleased(t *testing.T) {
	fake := startFake(t, func(method string, _ map[string]any) (int, string) {
		switch method {
		case "settle":
			return 200, `{"entry": [{"item": [{"charged": 0, "returned": 3}]}]}`
		case "release":
			return 200, `{"entry": [{}]}`
		}
		return 200, `{"permit": [{"decision": "GRANTED", "item": [{"granted": 5}],
			"hold": {"id": 7, "expires_in": 30}, "reservation": {"settle_within": 60}}]}`
	})
	client, _ := newTestClient(t, Options{}, fake.URL)
	hold := holdOf(t, client, HoldOptions{SettleWithin: time.Minute},
		Item{Resource: "llm", Key: "a", Cost: 5})
	check(t, hold.Decision.Reservation != 0 && hold.Left() > 0, "%+v", hold.Decision)
	check(t, hold.Settle(1, 2) != nil, "two costs for one item")
	succeed(t, hold.Settle(2))
	succeed(t, hold.Settle(3))
	check(t, hold.Left() == 0, "%v", hold.Left())
	eventually(t, "it is settled and released", func() bool {
		counts := client.Counts()
		return counts.Settled == 1 && counts.Holds == 0 && counts.Waiting == 0
	})
	settles := 0
	for _, request := range fake.all() {
		if request.method == "settle" {
			settles++
			entry := request.message["entry"].([]any)[0].(map[string]any)
			check(t, entry["item"].([]any)[0].(map[string]any)["cost"] == 2.0, "%v", entry)
		}
	}
	check(t, settles == 1, "%d settles", settles)
}

func TestAServerSettlesAHoldThatIsAReservation(t *testing.T) {
	s := startServer(t, `{"unmatched": "reject", "resources": [{"identifier_glob": "job", "limits": [
		{"name": "tokens", "kind": "FIXED_WINDOW", "limit": 10, "window": 100000000},
		{"name": "slots", "kind": "CONCURRENCY", "limit": 8, "time_to_live": 30,
		 "on_restart": "full"}]}]}`)
	client, _ := newTestClient(t, Options{}, s.url)
	job := Item{Resource: "job", Key: "a", Cost: 8}
	hold := holdOf(t, client, HoldOptions{SettleWithin: time.Minute}, job)
	check(t, hold.Granted && hold.Decision.Reservation != 0, "%+v", hold.Decision)
	succeed(t, hold.Settle(2))
	eventually(t, "it is settled and released", func() bool {
		counts := client.Counts()
		return counts.Settled == 1 && counts.Holds == 0
	})
	next := holdOf(t, client, HoldOptions{}, job)
	check(t, next.Granted, "%+v", next.Decision) // 6 tokens and 8 slots came back
	next.Release()
}

func TestOptionsOfASecondOpeningThatAreNotInForceAreWarnedOf(t *testing.T) {
	client, seen := newTestClient(t, Options{}, far)
	rateOf(t, client, "db", ResourceOptions{Wants: 5})
	rateOf(t, client, "db", ResourceOptions{Wants: 5})
	check(t, !strings.Contains(seen.String(), "first opening"), "%s", seen)
	second := rateOf(t, client, "db", ResourceOptions{Wants: 7})
	check(t, strings.Contains(seen.String(), "db: Wants: not as in the first opening"), "%s", seen)
	check(t, second.Info().Wants == 5 && second.Info().OptionsDiffer == "Wants", "%+v", second.Info())
	_, err := client.Gauge("db", ResourceOptions{})
	check(t, err != nil && strings.Contains(err.Error(), "Kind: db is open as a rate"), "%v", err)
}

func TestAClientClosesWhileManyGoroutinesUseIt(t *testing.T) {
	s := startServer(t, testConfig)
	client, _ := newTestClient(t, Options{}, s.url)
	rate := rateOf(t, client, "db/stress", ResourceOptions{})
	gauge, err := client.Gauge("conn", ResourceOptions{})
	succeed(t, err)
	ignore := func(any, error) {}
	work := func(i int) {
		ctx, cancel := context.WithTimeout(background, time.Duration(1+i%7)*time.Millisecond)
		defer cancel()
		key := string(rune('a' + i%5))
		ignore(client.Acquire(ctx, "login", key))
		ignore(nil, rate.Wait(ctx, 1))
		ignore(nil, gauge.Use(ctx, 1, func() error { return nil }))
		ignore(client.Metrics(), client.Report("llm", key, 0))
		if r, err := client.Reserve(ctx, ReserveOptions{}, Item{Resource: "llm", Key: key}); err == nil {
			ignore(nil, r.Run(func() ([]float64, error) { return []float64{0}, nil }))
		}
		slot := Item{Resource: "transcode", Key: key}
		hold, err := client.Hold(ctx, HoldOptions{MaxWait: time.Second, OnGone: func(Held) {}}, slot)
		if err == nil {
			ignore(hold.Transfer(ctx, TransferOptions{}))
			hold.Release()
		}
	}
	var all sync.WaitGroup
	closed := make(chan struct{})
	for i := 0; i < 16; i++ {
		i := i
		all.Add(1)
		go func() {
			defer all.Done()
			for ; ; i++ {
				select {
				case <-closed:
					return
				default:
					work(i)
				}
			}
		}()
	}
	eventually(t, "there are permits and settles", func() bool {
		counts := client.Counts()
		return counts.Granted > 10 && counts.Settled > 0
	})
	client.Close()
	close(closed)
	all.Wait()
	check(t, client.Counts().Waiting == 0, "%+v", client.Counts())
}

func TestTheMetricsAreThoseOfAllPackages(t *testing.T) {
	names, err := os.ReadFile("../stories/metrics.txt")
	succeed(t, err)
	client, _ := newTestClient(t, Options{}, far)
	rateOf(t, client, "db", ResourceOptions{Wants: 1})
	failed := regexp.MustCompile("lease_failures_total [1-9]")
	eventually(t, "a request has failed", func() bool { return failed.MatchString(client.Metrics()) })
	var seen []string
	for _, line := range strings.Split(client.Metrics(), "\n") {
		if strings.HasPrefix(line, "#") {
			seen = append(seen, line)
		}
	}
	wanted := strings.Split(strings.TrimSpace(string(names)), "\n")
	sort.Strings(seen)
	sort.Strings(wanted)
	check(t, strings.Join(seen, "\n") == strings.Join(wanted, "\n"), "%v", seen)
}

func TestUnitsComeInTheOrderOfTheCalls(t *testing.T) {
	client, _ := newTestClient(t, Options{}, far)
	gauge, err := client.Gauge("g", ResourceOptions{SafeCapacity: 2})
	succeed(t, err)
	check(t, gauge.TryUse(2), "there are units")
	order := make(chan float64, 2)
	wait := func(units float64) {
		before := gauge.waiters.list.Len()
		go func() {
			if gauge.Wait(within(t, patience), units) == nil {
				order <- units
			}
		}()
		eventually(t, "it waits", func() bool {
			client.engine.mutex.Lock()
			defer client.engine.mutex.Unlock()
			return gauge.waiters.list.Len() > before
		})
	}
	wait(2)
	wait(1)
	succeed(t, gauge.Release(1))
	time.Sleep(500 * time.Millisecond) // the second call must not overtake the first one
	succeed(t, gauge.Release(1))
	check(t, <-order == 2, "the first call comes first")
	succeed(t, gauge.Release(2))
	check(t, <-order == 1, "then the second")
}

func TestUnitsThatNobodyWaitsForAnyMoreAreNotWanted(t *testing.T) {
	client, _ := newTestClient(t, Options{}, far)
	gauge, err := client.Gauge("g", ResourceOptions{Window: time.Second})
	succeed(t, err)
	waits := make(chan error, 1)
	go func() { waits <- gauge.Wait(within(t, 500*time.Millisecond), 5) }()
	eventually(t, "they are wanted", func() bool { return gauge.Info().Wants == 5 })
	check(t, <-waits != nil, "there are no units")
	eventually(t, "they are not wanted any more", func() bool { return gauge.Info().Wants == 0 })
}

// leap lets time pass for a client.
func leap(client *Client, by time.Duration) {
	client.engine.mutex.Lock()
	defer client.engine.mutex.Unlock()
	client.engine.clock.boot -= by
	client.engine.clock.start = client.engine.clock.start.Add(-by)
}

func TestAMasterThatAnswersLeasesBringsTheTestOfTheBreakerForward(t *testing.T) {
	var works int32
	fake := startFake(t, func(method string, _ map[string]any) (int, string) {
		if method == "get_capacity" {
			atomic.StoreInt32(&works, 1)
			return 200, `{"response": [{"resource_id": "db", "gets": {"id": 5, "node": "eu",
				"capacity": 5, "expires_in": 60, "refresh_interval": 15}}]}`
		}
		if atomic.LoadInt32(&works) == 0 {
			return 503, `{}`
		}
		return 200, `{"permit": [{"decision": "GRANTED", "item": [{"granted": 1}]}]}`
	})
	client, _ := newTestClient(t, Options{Permits: PermitPolicy{Fallback: Closed,
		MaxPause: time.Hour}}, fake.URL)
	isGranted := func() bool { return acquire(t, client, Item{Resource: "x"}).Granted }
	for isGranted(); client.Counts().Pauses < 9; isGranted() {
		leap(client, 300*time.Second)
	}
	rateOf(t, client, "db", ResourceOptions{Wants: 5}) // the breaker is open for 256 s
	eventually(t, "a master decides", isGranted)
}

func TestCloseGivesBackLeasesAndHolds(t *testing.T) {
	fake := startFake(t, func(method string, _ map[string]any) (int, string) {
		return 200, map[string]string{
			"get_capacity": `{"response": [{"resource_id": "db", "gets": {"id": 5, "node": "eu",
				"capacity": 5, "expires_in": 60, "refresh_interval": 15}}]}`,
			"release_capacity": `{}`,
			"acquire": `{"permit": [{"decision": "GRANTED", "item": [{"granted": 1}],
				"hold": {"id": 7, "node": "eu", "waited": 0, "expires_in": 60}}]}`,
			"release": `{"entry": [{"amount": []}]}`}[method]
	})
	client, _ := newTestClient(t, Options{}, fake.URL)
	rate := rateOf(t, client, "db", ResourceOptions{Wants: 5})
	eventually(t, "there is a lease", func() bool { return rate.Info().Leased })
	hold, err := client.Hold(within(t, patience), HoldOptions{}, Item{Resource: "t"})
	succeed(t, err)
	check(t, hold.Granted, "%+v", hold)
	succeed(t, client.Shutdown(within(t, patience)))
	ids := map[string]any{}
	for _, request := range fake.all() {
		for list, method := range map[string]string{"resource": "release_capacity", "entry": "release"} {
			if request.method == method {
				ids[method] = request.message[list].([]any)[0].(map[string]any)["id"]
			}
		}
	}
	check(t, ids["release_capacity"] == 5.0 && ids["release"] == 7.0, "%v", ids)
}

func TestCloseRefusesAPermitThatWaitsForAServer(t *testing.T) {
	answers := make(chan struct{})
	fake := startFake(t, func(string, map[string]any) (int, string) {
		<-answers
		return 0, ""
	})
	t.Cleanup(func() { close(answers) })
	client, _ := newTestClient(t, Options{}, fake.URL)
	decisions := make(chan *Acquired, 1)
	go func() { decisions <- acquire(t, client, Item{Resource: "x"}) }()
	eventually(t, "the request is sent", func() bool { return len(fake.all()) > 0 })
	ctx, cancel := context.WithCancel(background)
	cancel()
	_ = client.Shutdown(ctx)
	decision := <-decisions
	check(t, !decision.Granted && decision.By == ByFallback, "%+v", decision)
}

func TestAResponseThatIsTooLargeIsAFailure(t *testing.T) {
	body := `{"permit": [{"decision": "GRANTED", "item": [{"granted": 1}], "more": "` +
		strings.Repeat("x", 5<<20) + `"}]}`
	fake := startFake(t, func(string, map[string]any) (int, string) { return 200, body })
	client, _ := newTestClient(t, Options{}, fake.URL)
	check(t, acquire(t, client, Item{Resource: "x"}).By == ByFallback, "it is not read")
}

func TestAClientThatIsClosedSaysSo(t *testing.T) {
	client, _ := newTestClient(t, Options{}, far)
	rate := rateOf(t, client, "db", ResourceOptions{Wants: 1})
	waits := make(chan error, 2)
	for i := 0; i < 2; i++ {
		go func() { waits <- rate.Wait(background, 1) }()
	}
	time.Sleep(10 * time.Millisecond)
	ctx, cancel := context.WithCancel(background)
	cancel()
	_ = client.Shutdown(ctx)
	client.Close()
	for i := 0; i < 2; i++ {
		check(t, errors.Is(<-waits, ErrClosed), "who waits learns it")
	}
	check(t, !rate.TryUse(1), "a closed client has units")
	_, err := client.Acquire(background, "x", "")
	check(t, errors.Is(err, ErrClosed), "%v", err)
	check(t, errors.Is(client.Report("x", "", 1), ErrClosed), "a closed client reports")
	_, err = client.Rate("y", ResourceOptions{})
	check(t, errors.Is(err, ErrClosed), "%v", err)
}

func TestWrongArgumentsNameWhatIsWrong(t *testing.T) {
	fails := func(err error, text string) {
		t.Helper()
		check(t, err != nil && strings.Contains(err.Error(), text), "%v, expected %s", err, text)
	}
	open := func(options Options, addresses ...string) error {
		_, err := New(options, addresses...)
		return err
	}
	fails(open(Options{}), "addresses: must be 1 to 16")
	fails(open(Options{}, "tcp://127.0.0.1:15000"), "address: must be like http://")
	fails(open(Options{}, "http://127.0.0.1:99999"), "the port must be a number")
	fails(open(Options{Permits: PermitPolicy{Fallback: Local}}, far), "Local: is needed")
	fails(open(Options{CAFile: "none"}, far), "CAFile")
	client, _ := newTestClient(t, Options{}, far)
	_, err := client.Rate("db", ResourceOptions{Wants: -1})
	fails(err, "Wants: must be a number from 0")
	fails(rateOf(t, client, "db", ResourceOptions{}).Wait(background, math.NaN()), "units: must be")
	_, err = client.Acquire(background, "", "")
	fails(err, "Resource: must be 1 to 256 bytes")
	_, err = client.AcquireItems(background, AcquireOptions{}, Item{Resource: "x", Min: 2})
	fails(err, "Min: must be at most the cost")
	_, err = client.AcquireItems(background, AcquireOptions{})
	fails(err, "items: must be 1 to 100")
	_, err = client.Reserve(background, ReserveOptions{SettleWithin: 2 * time.Hour},
		Item{Resource: "x"})
	fails(err, "SettleWithin: must be")
	_, err = client.Seize(background, 0, SeizeOptions{})
	fails(err, "transferID: must be")
}
