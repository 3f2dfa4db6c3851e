package doorman

import (
	"bytes"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// The examples of the README compile, and run with a real server. Its links lead to files.

const snippetHead = `package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"doorman.example/doorman"
)

var (
	ctx = context.Background()
	_   = []any{fmt.Println, log.Print, os.ReadFile, strings.TrimSpace, time.Second}
)

func main() {
`

const snippetClient = `client, err := doorman.New(doorman.Options{}, "http://127.0.0.1:15050")
if err != nil {
	log.Fatal(err)
}
defer client.Close()
{
`

// complete returns an example as a program.
func complete(block string) string {
	switch {
	case strings.Contains(block, "package main"):
		return block
	case strings.Contains(block, "doorman.New("):
		return snippetHead + block + "_, _ = client, err\n}\n"
	}
	return snippetHead + snippetClient + block + "_ = err\n}\n}\n"
}

func readmeBlocks(t *testing.T) []string {
	text, err := os.ReadFile("README.md")
	succeed(t, err)
	var blocks []string
	for _, found := range regexp.MustCompile("(?s)```go\n(.*?)```").FindAllSubmatch(text, -1) {
		blocks = append(blocks, string(found[1]))
	}
	return blocks
}

func TestLinksOfTheReadmeLeadToFiles(t *testing.T) {
	text, err := os.ReadFile("README.md")
	succeed(t, err)
	links := regexp.MustCompile(`\]\(([^)#]+)\)`).FindAllSubmatch(text, -1)
	check(t, len(links) > 1, "%d links", len(links))
	for _, link := range links {
		_, err := os.Stat(string(link[1]))
		succeed(t, err)
	}
}

// lockedBuffer has what a process has written so far.
type lockedBuffer struct {
	mutex sync.Mutex
	text  bytes.Buffer
}

func (b *lockedBuffer) Write(text []byte) (int, error) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.text.Write(text)
}

func (b *lockedBuffer) String() string {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.text.String()
}

// buildExamples compiles all examples. It returns the folder of the programs.
func buildExamples(t *testing.T, blocks []string, url string) string {
	folder, err := filepath.Abs(".")
	succeed(t, err)
	work := t.TempDir()
	write := func(name, text string) {
		succeed(t, os.MkdirAll(filepath.Dir(filepath.Join(work, name)), 0o700))
		succeed(t, os.WriteFile(filepath.Join(work, name), []byte(text), 0o600))
	}
	write("go.mod", "module examples\n\ngo 1.18\n\nrequire doorman.example/doorman v"+Version+
		"\n\nreplace doorman.example/doorman => "+folder+"\n")
	const listen = "server.ListenAndServe()"
	for i, block := range blocks {
		text := strings.ReplaceAll(complete(block), "http://127.0.0.1:15050", url)
		if strings.Contains(text, listen) { // so that the test learns the port
			text = strings.Replace(text, listen, "func() error {\n"+
				"listener, _ := net.Listen(\"tcp\", \"127.0.0.1:0\")\n"+
				"os.Stdout.WriteString(listener.Addr().String() + \"\\n\")\n"+
				"return server.Serve(listener)\n}()", 1)
			text = strings.Replace(text, "\"net/http\"", "\"net\"\n\t\"net/http\"", 1)
		}
		write(filepath.Join("example"+string(rune('0'+i)), "main.go"), text)
	}
	build := exec.Command("go", "build", "-o", work+"/bin/", "./...")
	build.Dir = work
	build.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOPROXY=off")
	output, err := build.CombinedOutput()
	check(t, err == nil, "%v: %s", err, output)
	return filepath.Join(work, "bin")
}

func TestExamplesOfTheReadmeRun(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("there is no go")
	}
	config, err := os.ReadFile("demo.json")
	succeed(t, err)
	s := startServer(t, string(config))
	blocks := readmeBlocks(t)
	check(t, len(blocks) == 8, "%d examples", len(blocks))
	work := buildExamples(t, blocks, s.url)
	run := func(name string) string {
		output, err := exec.Command(filepath.Join(work, name)).CombinedOutput()
		check(t, err == nil, "%s: %v: %s", name, err, output)
		return string(output)
	}
	first := run("example0")
	check(t, strings.Count(first, "true") == 5 && strings.Count(first, "false") == 2, "%s", first)
	for name, text := range map[string]string{"example1": "one query to the database",
		"example2": "a connection of", "example3": "true [1 3]", "example4": "ends in"} {
		output := run(name)
		check(t, strings.Contains(output, text), "%s: %s", name, output)
	}
	run("example5")

	web := exec.Command(filepath.Join(work, "example6"))
	output := &lockedBuffer{}
	web.Stdout, web.Stderr = output, output
	succeed(t, web.Start())
	defer func() { _ = web.Process.Kill(); _ = web.Wait() }()
	eventually(t, "the example listens",
		func() bool { return strings.Contains(output.String(), "\n") })
	address := strings.TrimSpace(output.String())
	form := regexp.MustCompile(`^"per-user";r=\d;t=\d+$`)
	for i := 0; i < 7; i++ {
		response, err := http.Get("http://" + address)
		succeed(t, err)
		response.Body.Close()
		good := response.StatusCode == 200
		check(t, good == (i < 5), "%d: %d", i, response.StatusCode)
		check(t, form.MatchString(response.Header.Get("RateLimit")), "%v", response.Header)
	}
	succeed(t, web.Process.Signal(os.Interrupt))
	err = web.Wait()
	check(t, err == nil, "%v: %s", err, output) // and not killed by the signal
}
