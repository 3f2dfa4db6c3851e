package doorman

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestALeaseThatNoServerKnowsIsWarnedOfOnce(t *testing.T) {
	s := startServer(t, testConfig)
	client, told := newTestClient(t, Options{}, s.url)
	for _, name := range []string{"dbb/orders", "login"} {
		gauge, err := client.Gauge(name, ResourceOptions{})
		succeed(t, err)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second/100)
		check(t, gauge.Wait(ctx, 1) != nil, "%s: there are units", name)
		cancel()
		eventually(t, "the server has answered",
			func() bool { return gauge.Info().Outcome == "UNMATCHED" })
		succeed(t, gauge.SetWants(5)) // it asks again
	}
	time.Sleep(time.Second)
	text := told.String()
	check(t, strings.Count(text, "\n") == 2, "%s", text)
	check(t, strings.HasPrefix(text,
		"dbb/orders: the servers have no capacity for this resource"), "%s", text)
}

func TestTokensAndHeadersThatCannotBeSentAreRefused(t *testing.T) {
	const secret = "0123456789abcdef"
	for _, options := range []Options{{Token: secret + "\n"}, {Token: secret + " x"},
		{Token: secret + "é"}, {Header: http.Header{"X-Team": {secret + "\r\nA: b"}}}} {
		_, err := New(options, far)
		check(t, err != nil && strings.Contains(err.Error(), "must be"), "%v", err)
		check(t, err == nil || !strings.Contains(err.Error(), secret), "%v", err)
	}
	client, told := newTestClient(t, Options{
		TokenSource: func() (string, error) { return secret + "\n", nil }}, far)
	_, err := client.Acquire(context.Background(), "x", "")
	succeed(t, err)
	eventually(t, "a warning", func() bool { return told.String() != "" })
	text := told.String()
	check(t, strings.Contains(text, "Token: must be ASCII") && !strings.Contains(text, secret),
		"%s", text)
}
