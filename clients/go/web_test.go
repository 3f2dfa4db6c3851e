package doorman

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// This file tests the middleware, with a server whose answers are known.

const webGranted = `{"permit": [{"decision": "GRANTED", "item": [{"granted": 1, "limit": "per-user",
	"remaining": 4.5, "reset_after": 9.2, "limits": [{"name": "per-user", "limit": 5, "used": 0.5,
	"remaining": 4.5, "reset_after": 9.2, "window": 50}]}]}]}`
const webRefused = `{"permit": [{"decision": "REFUSED", "resource_id": "login", "limit": "per-user",
	"reason": "RATE", "retry_after": 3.1, "item": [{"limits": [{"name": "per-user", "limit": 5,
	"used": 5, "remaining": 0, "reset_after": 50, "window": 50, "refused": true}]}]}]}`

func TestRequestsAreLimitedAndResponsesHaveTheHeaders(t *testing.T) {
	fake := startFake(t, func(_ string, message map[string]any) (int, string) {
		if strings.Contains(fmt.Sprint(message), "key:bob") {
			return 200, webRefused
		}
		return 200, webGranted
	})
	client, _ := newTestClient(t, Options{}, fake.URL)
	limit := Middleware{Client: client, Timeout: patience,
		ResourceOf: func(r *http.Request) string {
			if r.URL.Path == "/free" {
				return ""
			}
			return "login"
		},
		Key:  func(r *http.Request) string { return r.URL.RawQuery },
		Cost: func(*http.Request) float64 { return 2 }}
	web := httptest.NewServer(limit.Wrap(http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			by := "nobody"
			if decision := DecisionOf(r); decision != nil {
				by = decision.By
			}
			_, _ = io.WriteString(w, by)
		})))
	defer web.Close()
	ask := func(path string) (int, string, http.Header) {
		response, err := http.Get(web.URL + path)
		succeed(t, err)
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		succeed(t, err)
		return response.StatusCode, string(text), response.Header
	}

	_, text, header := ask("/?alice")
	check(t, text == "server" && header.Get("RateLimit-Policy") == `"per-user";q=5;w=50` &&
		header.Get("RateLimit") == `"per-user";r=4;t=10`, "%s %v", text, header)
	permit := fake.all()[0].message["permit"].([]any)[0].(map[string]any)
	check(t, permit["item"].([]any)[0].(map[string]any)["cost"] == 2.0, "%v", permit)
	status, text, header := ask("/?bob")
	check(t, status == 429 && header.Get("Retry-After") == "4" &&
		header.Get("RateLimit") == `"per-user";r=0;t=4` &&
		header.Get("Cache-Control") == "no-store", "%d %v", status, header)
	check(t, text == `{"decision":"REFUSED","limit":"per-user","reason":"RATE"}`, "%s", text)
	_, text, header = ask("/free")
	check(t, text == "nobody" && header.Get("RateLimit") == "", "%s %v", text, header)
}

// askWithKeys returns the status of a request with each key, and the keys that the server of Doorman
// was asked for. The server refuses those that begin with sha256:.
func askWithKeys(t *testing.T, keys ...string) (statuses []int, asked []string) {
	fake := startFake(t, func(_ string, message map[string]any) (int, string) {
		if strings.HasPrefix(keyIn(message), "sha256:") {
			return 200, webRefused
		}
		return 200, webGranted
	})
	client, _ := newTestClient(t, Options{}, fake.URL)
	for _, key := range keys {
		key := key
		limit := Middleware{Client: client, Resource: "login", Timeout: patience,
			Key: func(*http.Request) string { return key }}
		recorder := httptest.NewRecorder()
		handler := limit.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		handler.ServeHTTP(recorder, httptest.NewRequest("GET", "/", nil))
		statuses = append(statuses, recorder.Code)
	}
	for _, request := range fake.all() {
		asked = append(asked, keyIn(request.message))
	}
	return statuses, asked
}

// keyIn returns the key of the first item of a message.
func keyIn(message map[string]any) string {
	permit := message["permit"].([]any)[0].(map[string]any)
	key, _ := permit["item"].([]any)[0].(map[string]any)["key"].(string)
	return key
}

func TestAKeyThatAPermitCannotHaveIsLimitedToo(t *testing.T) {
	statuses, _ := askWithKeys(t, strings.Repeat("x", 257), "a\nb", "\xff")
	check(t, fmt.Sprint(statuses) == "[429 429 429]", "%v", statuses)
}

func TestKeysThatAPermitCannotHaveStayDifferent(t *testing.T) {
	_, asked := askWithKeys(t, strings.Repeat("x", 257), strings.Repeat("x", 258), "\xfe", "\xff")
	seen := map[string]bool{}
	for _, key := range asked {
		seen[key] = true
	}
	check(t, len(seen) == 4, "%v", asked)
}

func TestTheLongestKeyThatAPermitCanHaveStaysAsItIs(t *testing.T) {
	longest := strings.Repeat("é", 128)
	_, asked := askWithKeys(t, longest)
	check(t, len(asked) == 1 && asked[0] == longest, "%v", asked)
}

func TestAKeyHasTheSameHashAsInTheOtherPackages(t *testing.T) {
	_, asked := askWithKeys(t, "a\tb\xed\xa0\x80c\U0001f600")
	const hash = "e0030ff6a4bf6f8b788e9e7459b0fd956eeb6776873d5c78f9158fcd8c178071"
	check(t, len(asked) == 1 && asked[0] == "sha256:"+hash, "%v", asked)
}

func TestARequestWhoseTimeIsOverIsNotAnsweredAsServed(t *testing.T) {
	done := make(chan struct{})
	defer close(done)
	fake := startFake(t, func(string, map[string]any) (int, string) {
		<-done
		return 0, ""
	})
	client, _ := newTestClient(t, Options{}, fake.URL)
	limit := Middleware{Client: client, Resource: "login", Timeout: patience}
	handler := limit.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("nobody has decided on the request")
	}))
	recorder := httptest.NewRecorder()
	request := httptest.NewRequest("GET", "/", nil)
	handler.ServeHTTP(recorder, request.WithContext(within(t, 50*time.Millisecond)))
	check(t, recorder.Code == 503, "%d", recorder.Code)
}

func TestARequestOfCostZeroOnlyLooks(t *testing.T) {
	fake := startFake(t, func(string, map[string]any) (int, string) {
		return 200, `{"permit": [{"decision": "GRANTED", "item": [{"granted": 0}]}]}`
	})
	client, _ := newTestClient(t, Options{}, fake.URL)
	limit := Middleware{Client: client, Resource: "login", Timeout: patience,
		Cost: func(*http.Request) float64 { return 0 }}
	limit.Wrap(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(),
		httptest.NewRequest("GET", "/", nil))
	permit := fake.all()[0].message["permit"].([]any)[0].(map[string]any)
	cost := permit["item"].([]any)[0].(map[string]any)["cost"]
	check(t, cost == 0.0, "%v", cost)
}

func TestNamesOfLimitsAreEscaped(t *testing.T) {
	header := http.Header{}
	SetHeaders(header, &Acquired{Granted: true, Limit: "a\"\\é", Quota: 5, Remaining: 2})
	check(t, header.Get("RateLimit-Policy") == `"a\"\\%C3%A9";q=5`, "%v", header)
	header = http.Header{}
	SetHeaders(header, &Acquired{Granted: true, By: ByFallback})
	check(t, len(header) == 0, "%v", header)
	for wait, seconds := range map[time.Duration]string{0: "1", 1500 * time.Millisecond: "2"} {
		SetHeaders(header, &Acquired{HasRetryAfter: true, RetryAfter: wait})
		check(t, header.Get("Retry-After") == seconds, "%v", header)
	}
	request := httptest.NewRequest("GET", "/", nil)
	request.RemoteAddr = "[::1]:80"
	check(t, KeyByAddress(request) == "::1", "%s", KeyByAddress(request))
	defer func() { check(t, recover() != nil, "a wrong status is taken") }()
	Middleware{RefuseStatus: 200}.Wrap(http.NotFoundHandler())
}

func TestMetricsAreServed(t *testing.T) {
	client, _ := newTestClient(t, Options{}, far)
	rateOf(t, client, `a"b\c`, ResourceOptions{Wants: 1})
	recorder := httptest.NewRecorder()
	client.MetricsHandler().ServeHTTP(recorder, httptest.NewRequest("GET", "/metrics", nil))
	check(t, strings.Contains(recorder.Body.String(), `resource_wants{resource="a\"b\\c"} 1`),
		"%s", recorder.Body)
}
