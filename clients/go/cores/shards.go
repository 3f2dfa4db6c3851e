package cores

import (
	"encoding/binary"
	"math/bits"
	"regexp"
	"strconv"
	"strings"
)

// The map of shards: which node decides for a key. The rules (N) are those of doorman_permits.h.

const (
	resourcesMax = 10000 // whose rule is remembered
	shardsMax    = 1024
	nodesMax     = 256
	addressesMax = 16
)

// sipHash returns SipHash-1-3 of a text.
func sipHash(key [2]uint64, text string) uint64 {
	a, b := key[0]^0x736f6d6570736575, key[1]^0x646f72616e646f6d
	c, d := key[0]^0x6c7967656e657261, key[1]^0x7465646279746573
	round := func() {
		a += b
		b = bits.RotateLeft64(b, 13) ^ a
		a = bits.RotateLeft64(a, 32)
		c += d
		d = bits.RotateLeft64(d, 16) ^ c
		a += d
		d = bits.RotateLeft64(d, 21) ^ a
		c += b
		b = bits.RotateLeft64(b, 17) ^ c
		c = bits.RotateLeft64(c, 32)
	}
	data := make([]byte, len(text)/8*8+8)
	copy(data, text)
	data[len(data)-1] = byte(len(text))
	for ; len(data) > 0; data = data[8:] {
		word := binary.LittleEndian.Uint64(data)
		d ^= word
		round()
		a ^= word
	}
	c ^= 0xff
	for i := 0; i < 3; i++ {
		round()
	}
	return a ^ b ^ c ^ d
}

// hashedText returns what is hashed of a text: what its first braces enclose, or all of it (N1).
func hashedText(text string) string {
	if open := strings.IndexByte(text, '{'); open >= 0 {
		if length := strings.IndexByte(text[open+1:], '}'); length > 0 {
			return text[open+1 : open+1+length]
		}
	}
	return text
}

// ---- globs

// globPart is what one character of a text must be, or any text.
type globPart struct {
	isStar, negated bool
	ranges          [][2]rune
}

func (p *globPart) matches(character rune) bool {
	for _, bounds := range p.ranges {
		if bounds[0] <= character && character <= bounds[1] {
			return !p.negated
		}
	}
	return p.negated
}

// readBracket reads what follows a `[`. It returns nil if there is no `]`.
func readBracket(glob []rune) (*globPart, []rune) {
	part := &globPart{negated: len(glob) > 0 && (glob[0] == '!' || glob[0] == '^')}
	if part.negated {
		glob = glob[1:]
	}
	next := func() rune {
		if glob[0] == '\\' && len(glob) > 1 {
			glob = glob[1:]
		}
		character := glob[0]
		glob = glob[1:]
		return character
	}
	for first := true; len(glob) > 0 && (first || glob[0] != ']'); first = false {
		low := next()
		high := low
		if len(glob) > 1 && glob[0] == '-' && glob[1] != ']' {
			glob = glob[1:]
			high = next()
		}
		part.ranges = append(part.ranges, [2]rune{low, high})
	}
	if len(glob) == 0 {
		return nil, nil
	}
	return part, glob[1:]
}

// readGlob reads a glob as the shell does. `*` matches `/` too.
func readGlob(text string) []globPart {
	var out []globPart
	for glob := []rune(text); len(glob) > 0; {
		character := glob[0]
		glob = glob[1:]
		if character == '[' {
			if part, rest := readBracket(glob); part != nil {
				out, glob = append(out, *part), rest
				continue
			}
		}
		switch {
		case character == '*':
			out = append(out, globPart{isStar: true})
			continue
		case character == '?':
			out = append(out, globPart{negated: true})
			continue
		case character == '\\' && len(glob) > 0:
			character = glob[0]
			glob = glob[1:]
		}
		out = append(out, globPart{ranges: [][2]rune{{character, character}}})
	}
	return out
}

// globMatches returns whether a glob matches a whole text. After a failure the last `*` takes more.
func globMatches(glob []globPart, whole string) bool {
	text := []rune(whole)
	at, place, star, resume := 0, 0, -1, 0
	for at < len(glob) || place < len(text) {
		switch {
		case at < len(glob) && glob[at].isStar:
			at++
			star, resume = at, place
		case at < len(glob) && place < len(text) && glob[at].matches(text[place]):
			at++
			place++
		case star < 0 || resume == len(text):
			return false
		default:
			resume++
			at, place = star, resume
		}
	}
	return true
}

// ---- the map

type shardNode struct {
	name      string
	addresses []string // over HTTP
}

type shardRule struct {
	glob       string
	parts      []globPart
	byResource bool // the resource is hashed
}

// shardMap says which node decides for each shard.
type shardMap struct {
	epoch      int64
	seed       [2]uint64
	owners     []string // the name of a node for each shard
	nodes      []shardNode
	rules      []shardRule
	byResource map[string]bool
}

// ownerOf returns the node that decides for a key.
func (m *shardMap) ownerOf(item itemPair) string { return m.owners[m.shardOf(item)] }

// ownerOfID returns the node that has a hold or a transfer (N4).
func (m *shardMap) ownerOfID(id int64) string { return m.owners[id%int64(len(m.owners))] }

// shardOf returns the shard of a key (N1).
func (m *shardMap) shardOf(item itemPair) int {
	text := item.key
	if text == "" || m.isByResource(item.resource) {
		text = item.resource
	}
	return int(sipHash(m.seed, hashedText(text)) % uint64(len(m.owners)))
}

func (m *shardMap) isByResource(resource string) bool {
	if known, found := m.byResource[resource]; found {
		return known
	}
	by, isEqual := false, false
	for _, rule := range m.rules {
		if rule.glob == resource {
			by, isEqual = rule.byResource, true
			break
		}
	}
	for i := 0; i < len(m.rules) && !isEqual; i++ {
		if globMatches(m.rules[i].parts, resource) {
			by = m.rules[i].byResource
			break
		}
	}
	if len(m.byResource) < resourcesMax {
		m.byResource[resource] = by
	}
	return by
}

var seedForm = regexp.MustCompile(`^[0-9a-f]{32}$`)

// readMap reads the map of a response.
func readMap(body reader) *shardMap {
	value := body.object("map")
	seed := value.text("seed", false)
	m := &shardMap{epoch: value.integer("epoch", 1<<53), byResource: map[string]bool{}}
	if !seedForm.MatchString(seed) {
		value.fail("seed", "must have 32 hexadecimal digits")
		return m
	}
	m.seed[0], _ = strconv.ParseUint(seed[:16], 16, 64)
	m.seed[1], _ = strconv.ParseUint(seed[16:], 16, 64)
	names := map[string]bool{}
	for _, node := range value.objects("nodes", -1, "map.nodes[]") {
		read := shardNode{name: node.text("name", false)}
		if node.has("http_addresses") {
			for _, address := range node.list("http_addresses", -1) {
				text, _ := address.(string) // another type is no address that may be used
				read.addresses = append(read.addresses, text)
			}
		}
		names[read.name] = true
		m.nodes = append(m.nodes, read)
	}
	isValid := len(names) == len(m.nodes) && len(names) <= nodesMax
	for _, shard := range value.objects("shards", -1, "map.shards[]") {
		m.owners = append(m.owners, shard.text("owner", false))
		isValid = isValid && names[m.owners[len(m.owners)-1]]
	}
	if !isValid || len(m.owners) < 1 || len(m.owners) > shardsMax {
		value.fail("shards", "each must have one of the nodes as its owner")
	}
	if value.has("rules") {
		for _, rule := range value.objects("rules", -1, "map.rules[]") {
			glob := rule.text("glob", false)
			m.rules = append(m.rules,
				shardRule{glob, readGlob(glob), rule.text("by", true) == "resource"})
		}
	}
	return m
}

// usable returns the addresses that a client may ask. A map leads as little from TLS to plain text
// as a redirect does (K3).
func usable(given []string, needsTLS bool) []string {
	var out []string
	for _, address := range given {
		isAllowed := checkAddress(address) == nil && (isTLS(address) || !needsTLS)
		if isAllowed && len(out) < addressesMax {
			out = append(out, strings.TrimRight(address, "/"))
		}
	}
	return out
}
