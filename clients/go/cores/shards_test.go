package cores

import (
	"encoding/json"
	"os"
	"testing"
)

func mapOf(fields map[string]any) (*shardMap, error) {
	found := map[string]any{"epoch": 1.0, "seed": "00000000000000000000000000000000",
		"nodes":  []any{map[string]any{"name": "a"}},
		"shards": []any{map[string]any{"owner": "a"}}}
	for key, value := range fields {
		found[key] = value
	}
	body := newReader(map[string]any{"map": found}, "response", &fault{})
	return readMap(body), body.fault.err
}

// Each key is in the same shard as for the servers.
func TestVectorsOfShards(t *testing.T) {
	text, err := os.ReadFile("../../stories/vectors/shards.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors struct {
		Shards int
		Map    map[string]any
		Items  []struct {
			Resource string `json:"resource_id"`
			Key      string
			Shard    int
		}
	}
	if err := json.Unmarshal(text, &vectors); err != nil {
		t.Fatal(err)
	}
	var shards []any
	for i := 0; i < vectors.Shards; i++ {
		shards = append(shards, map[string]any{"owner": "a"})
	}
	vectors.Map["shards"] = shards
	m, err := mapOf(vectors.Map)
	if err != nil || len(vectors.Items) < 40 {
		t.Fatal(err, len(vectors.Items))
	}
	for _, item := range vectors.Items {
		if found := m.shardOf(itemPair{item.Resource, item.Key}); found != item.Shard {
			t.Errorf("%s %s: %d, not %d", item.Resource, item.Key, found, item.Shard)
		}
	}
}

func TestGlobsAreThoseOfTheShell(t *testing.T) {
	for _, row := range []struct {
		glob, text string
		expected   bool
	}{{"*", "", true}, {"a*c", "abbc", true}, {"a*c", "abcd", false}, {"?", "", false},
		{"[a-c]", "b", true}, {"[^a-c]", "b", false}, {`\*`, "*", true}, {`a\`, `a\`, true},
		{"[a", "[a", true}, {`[\]]`, "]", true}, {"*b*c", "abxbyc", true}} {
		if globMatches(readGlob(row.glob), row.text) != row.expected {
			t.Errorf("%s %s", row.glob, row.text)
		}
	}
}

func TestWrongMapsAreNotTaken(t *testing.T) {
	node := func(name string) any { return map[string]any{"name": name} }
	for _, wrong := range []map[string]any{{"seed": "0"}, {"shards": []any{}}, {"epoch": "x"},
		{"shards": []any{map[string]any{"owner": "b"}}}, {"nodes": []any{node("a"), node("a")}},
		{"rules": []any{map[string]any{"by": "key"}}}} {
		if _, err := mapOf(wrong); err == nil {
			t.Errorf("%v: is taken", wrong)
		}
	}
}

func TestAMapLeadsAsLittleToPlainTextAsARedirect(t *testing.T) {
	given := []string{"http://a", "https://b/", "ftp://c", ""}
	if all := usable(given, true); len(all) != 1 || all[0] != "https://b" {
		t.Error(all)
	}
	if all := usable(given, false); len(all) != 2 || all[0] != "http://a" {
		t.Error(all)
	}
}
