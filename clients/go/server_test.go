package doorman

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// This file has helpers of the tests: a real server, and a server whose answers a test writes.

const (
	patience = time.Minute          // for something to happen on a busy machine
	far      = "http://127.0.0.1:1" // nothing listens there
)

const testConfig = `{"unmatched": "reject", "resources": [
  {"identifier_glob": "db/*", "capacity": 100, "safe_capacity": 10, "algorithm": {
    "kind": "FAIR_SHARE", "lease_length": 60, "refresh_interval": 1, "learning_mode_duration": 0}},
  {"identifier_glob": "conn", "capacity": 3, "algorithm": {
    "kind": "FAIR_SHARE", "lease_length": 60, "refresh_interval": 15,
    "learning_mode_duration": 0}},
  {"identifier_glob": "login", "limits": [
    {"name": "per-user", "kind": "TOKEN_BUCKET", "rate": 0.001, "size": 5}]},
  {"identifier_glob": "llm", "limits": [
    {"name": "tokens", "kind": "FIXED_WINDOW", "limit": 10, "window": 100000000}]},
  {"identifier_glob": "transcode", "limits": [
    {"name": "slots", "kind": "CONCURRENCY", "per": "resource", "limit": 2, "time_to_live": 30,
     "queue": 100, "max_wait": 60, "on_restart": "full"}]}]}`

// program returns the path of doorman_server. A test without one is skipped.
func program(t *testing.T) string {
	path := os.Getenv("DOORMAN_SERVER")
	if path == "" {
		path = "../../build/doorman_server"
	}
	path, err := filepath.Abs(path)
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		t.Skipf("there is no doorman_server: %v", err)
	}
	return path
}

// eventually waits until a condition is true.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if condition() {
			return
		}
	}
	t.Fatalf("this did not happen within %v: %s", patience, what)
}

// server is a process of doorman_server in a temporary folder.
type server struct {
	t       *testing.T
	folder  string
	flags   []string
	process *exec.Cmd
	url     string
}

func startServer(t *testing.T, config string, flags ...string) *server {
	s := &server{t: t, folder: t.TempDir(), flags: flags}
	s.write("config.json", config)
	s.startAt("127.0.0.1:0")
	t.Cleanup(s.crash)
	form := regexp.MustCompile(`http=(https?://[^\s/]+:\d+)`)
	eventually(t, "the server listens", func() bool {
		log, err := os.ReadFile(filepath.Join(s.folder, "log"))
		found := form.FindSubmatch(log)
		if err != nil || found == nil {
			return false
		}
		s.url = string(found[1])
		return true
	})
	return s
}

func (s *server) write(name, text string) {
	if err := os.WriteFile(filepath.Join(s.folder, name), []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// startAt starts the process. After crash it can start again at the address that it had.
func (s *server) startAt(address string) {
	log, err := os.OpenFile(filepath.Join(s.folder, "log"),
		os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	s.process = exec.Command(program(s.t), append([]string{"--config", "config.json", "--listen",
		"tcp://127.0.0.1:0", "--http", address, "--node", "eu"}, s.flags...)...)
	s.process.Dir, s.process.Stdout, s.process.Stderr = s.folder, log, log
	if err := s.process.Start(); err != nil {
		s.t.Fatal(err)
	}
}

// crash kills the process.
func (s *server) crash() {
	_ = s.process.Process.Kill() // it may have ended
	_ = s.process.Wait()
}

// seenRequest is what a fakeServer has got.
type seenRequest struct {
	method  string
	message map[string]any
	header  http.Header
}

// fakeServer answers with a status and a body. Status 0: the connection is closed.
type fakeServer struct {
	*httptest.Server
	mutex sync.Mutex
	seen  []seenRequest
}

func startFake(t *testing.T,
	answer func(method string, message map[string]any) (int, string)) *fakeServer {
	fake := &fakeServer{}
	fake.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		var message map[string]any
		if err := json.Unmarshal(text, &message); err != nil {
			t.Errorf("%s is not JSON: %v", text, err)
		}
		method := strings.TrimPrefix(r.URL.Path, "/v1/")
		fake.mutex.Lock()
		fake.seen = append(fake.seen, seenRequest{method, message, r.Header.Clone()})
		fake.mutex.Unlock()
		status, body := answer(method, message)
		if status == 0 {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(fake.Close)
	return fake
}

func (f *fakeServer) all() []seenRequest {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	return append([]seenRequest{}, f.seen...)
}

// warnings keeps what a client has warned of.
type warnings struct {
	mutex sync.Mutex
	text  bytes.Buffer
}

func (w *warnings) add(text string) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.text.WriteString(text + "\n")
}

func (w *warnings) String() string {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.text.String()
}

// newTestClient returns a client, which ends with the test, and its warnings.
func newTestClient(t *testing.T, options Options, addresses ...string) (*Client, *warnings) {
	t.Helper()
	seen := &warnings{}
	options.OnWarning = seen.add
	client, err := New(options, addresses...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		defer cancel()
		_ = client.Shutdown(ctx)
	})
	return client, seen
}
