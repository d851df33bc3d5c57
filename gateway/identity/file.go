package identity

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"
)

// A users file is YAML:
//
//	users:
//	- name: ann
//	  tokens: ["sha256:..."]
//	  groups: [vision]
//	- name: root
//	  tokens: ["sha256:..."]
//	  admin: true
//	  limits: {max-kernels: unlimited}
//	groups:
//	- name: vision
//	  limits: {max-kernels: 10, max-gpus: 4}
//	  cull: {idle-timeout: 8h}
//
// Package gateway/limits knows what limits and cull mean. Users of other sources may have an entry for their limits,
// without tokens.
//
// A token's hash identifies the token and is useless to readers of the file. It needs no salt and no slow hash, since
// tokens are random: they cannot be guessed.
const hashPrefix = "sha256:"

const maxFile = 16 << 20 // bytes

// Hash returns the entry of a token in a users file.
func Hash(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hashPrefix + hex.EncodeToString(sum[:])
}

// File is a users file. It may be used concurrently.
type File struct {
	path string

	mu     sync.Mutex
	read   []byte          // guarded by mu; the last content, valid or not
	broken bool            // guarded by mu; the last content is missing or invalid
	users  map[key]User    // guarded by mu; by token, of the last valid version; replaced, never changed
	named  map[string]bool // guarded by mu; names of users with a token; replaced, never changed
	count  int             // guarded by mu; number of users

	userLimits  map[string]Limits    // guarded by mu; by name; replaced, never changed
	groupLimits map[string]Limits    // guarded by mu; by name; replaced, never changed
	groupCull   map[string]CullTimes // guarded by mu; by name of all groups with an entry; replaced, never changed
}

// Limits bounds what a user or a group may use at one time; nil means that the file sets no limit.
type Limits struct {
	MaxKernels *int64 // Unlimited, or 0 and more
	MaxGPUs    *int64
}

// Unlimited means that there is no limit.
const Unlimited = -1

// CullTimes says when the kernels of a group's users are culled; nil means that the file sets no time.
type CullTimes struct {
	IdleTimeout *time.Duration // 0: idle kernels are not culled
	BusyLimit   *time.Duration // of one request; 0: no limit
	MaxAge      *time.Duration // 0: no limit
	Warning     *time.Duration // before the end; 0: no warning
}

// GroupCull returns when the kernels of a group's users are culled, and whether the file has an entry for the group.
func (f *File) GroupCull(name string) (c CullTimes, known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, known = f.groupCull[name]
	return c, known
}

// UserLimits returns the limits of one user.
func (f *File) UserLimits(name string) Limits {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.userLimits[name]
}

// GroupLimits returns the limits of all users of a group together.
func (f *File) GroupLimits(name string) Limits {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.groupLimits[name]
}

// Limited reports whether the file sets any limit.
func (f *File) Limited() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.userLimits)+len(f.groupLimits) > 0
}

// OpenFile reads a users file. The error lists all mistakes, each as "path:line: text".
func OpenFile(path string) (*File, error) {
	f := &File{path: path}
	_, err := f.Reload()
	return f, err
}

// Reload reads the file again. An invalid version is reported once and changes nothing: the last valid version still
// counts.
func (f *File) Reload() (changed bool, err error) {
	b, err := readBounded(f.path) // read on each call, so that every way of replacing it is noticed
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		reported := f.broken && f.read == nil
		f.read, f.broken = nil, true
		if reported {
			return false, nil
		}
		return false, err
	}
	if f.read != nil && bytes.Equal(b, f.read) {
		return false, nil
	}
	f.read = b
	p := parse(b)
	if f.broken = len(p.problems) > 0; f.broken {
		errs := make([]error, len(p.problems))
		for i, p := range p.problems {
			errs[i] = fmt.Errorf("%s:%s", f.path, p)
		}
		return false, errors.Join(errs...)
	}
	f.users, f.count, f.userLimits, f.groupLimits, f.groupCull = p.users, len(p.names), p.userLimits, p.groupLimits,
		p.groupCull
	f.named = map[string]bool{}
	for _, u := range p.users {
		f.named[u.Name] = true
	}
	return true, nil
}

// has reports whether a user has a token in the file. An entry without one is for the limits of a user of another
// source.
func (f *File) has(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.named[name]
}

// readBounded reads a file of at most maxFile bytes.
func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	switch {
	case err != nil:
		return nil, err
	case len(b) > maxFile:
		return nil, fmt.Errorf("%s: has more than %d bytes", path, maxFile)
	case b == nil:
		b = []byte{}
	}
	return b, nil
}

// Len returns the number of users.
func (f *File) Len() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count
}

// user returns the user of a token's hash. Its duration reveals something about hashes, and nothing about tokens.
func (f *File) user(k key) (User, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	u, ok := f.users[k]
	return u, ok
}

// parser reads a file's nodes and collects all mistakes.
type parser struct {
	users    map[key]User
	names    map[string]int // lines
	groups   map[string]int // lines
	problems []string       // each as "line: text"

	userLimits, groupLimits map[string]Limits
	groupCull               map[string]CullTimes
}

// fail adds a mistake at a node.
func (p *parser) fail(n *yaml.Node, format string, args ...any) {
	p.problems = append(p.problems, strconv.Itoa(n.Line)+": "+fmt.Sprintf(format, args...))
}

// parse reads a file's content.
func parse(b []byte) *parser {
	p := &parser{users: map[key]User{}, names: map[string]int{}, groups: map[string]int{}, userLimits: map[string]Limits{},
		groupLimits: map[string]Limits{},
		groupCull:   map[string]CullTimes{}}
	dec := yaml.NewDecoder(bytes.NewReader(b))
	var doc yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		p.problems = []string{"1: it is empty; a file without users has the line users: []"}
		return p
	} else if err != nil {
		p.problems = []string{" " + strings.TrimPrefix(err.Error(), "yaml: ")}
		return p
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		p.problems = []string{" it has more than one document"}
		return p
	}
	there := false
	p.members(doc.Content[0], "the file", func(key string, value *yaml.Node) bool {
		switch key {
		case "users":
			there = true
			p.each(value, "users", p.user)
		case "groups":
			p.each(value, "groups", p.group)
		default:
			return false
		}
		return true
	})
	if !there && len(p.problems) == 0 {
		p.fail(doc.Content[0], "the key users is missing")
	}
	return p
}

// members calls take with each member of a mapping. take returns false for an unknown key.
func (p *parser) members(n *yaml.Node, what string, take func(key string, value *yaml.Node) bool) {
	n = resolved(n)
	if n.Kind != yaml.MappingNode {
		p.fail(n, "%s is not a mapping", what)
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		switch {
		case seen[key.Value]:
			p.fail(key, "%s is given twice", shown(key.Value))
		case !take(key.Value, n.Content[i+1]):
			p.fail(key, "%s: unknown key", shown(key.Value))
		}
		seen[key.Value] = true
	}
}

// shown returns a key for a message: a key that is not a valid name is shortened and quoted.
func shown(key string) string {
	if CheckName(key) == nil {
		return key
	}
	return strconv.Quote(key[:min(len(key), maxName)])
}

// each calls take with each item of a list.
func (p *parser) each(n *yaml.Node, what string, take func(*yaml.Node)) {
	n = resolved(n)
	if n.Kind != yaml.SequenceNode {
		p.fail(n, "%s is not a list", what)
		return
	}
	for _, item := range n.Content {
		take(resolved(item))
	}
}

// text returns the value of a string. It rejects other scalars, which could be strings in quotes.
func (p *parser) text(n *yaml.Node, what string) string {
	n = resolved(n)
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str" {
		p.fail(n, "%s is not a string; put it in quotes", what)
		return ""
	}
	return n.Value
}

// resolved returns the node that an alias refers to.
func resolved(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// user reads one item of users.
func (p *parser) user(n *yaml.Node) {
	u := User{fromFile: true}
	var hashes []*yaml.Node
	limits := Limits{}
	before := len(p.problems)
	p.members(n, "a user", func(key string, value *yaml.Node) bool {
		switch key {
		case "name":
			if u.Name = p.text(value, "name"); u.Name != "" {
				p.name(value, "name", u.Name)
			}
		case "limits":
			limits = p.limits(value)
		case "tokens":
			p.each(value, "tokens", func(t *yaml.Node) { hashes = append(hashes, t) })
		case "admin":
			if err := resolved(value).Decode(&u.Admin); err != nil || resolved(value).ShortTag() != "!!bool" {
				p.fail(value, "admin is not true or false")
			}
		case "groups":
			p.each(value, "groups", func(g *yaml.Node) {
				if name := p.text(g, "a group"); name != "" {
					p.name(g, "a group", name)
					u.Groups = append(u.Groups, name)
				}
			})
		default:
			return false
		}
		return true
	})
	if u.Name == "" {
		if len(p.problems) == before {
			p.fail(n, "a user has no name")
		}
		return
	}
	if line, twice := p.names[u.Name]; twice {
		p.fail(n, "line %d already has the user %q", line, u.Name)
	}
	p.names[u.Name] = n.Line
	if limits != (Limits{}) {
		p.userLimits[u.Name] = limits
	}
	slices.Sort(u.Groups)
	u.Groups = slices.Compact(u.Groups)
	if len(u.Groups) > maxGroups {
		p.fail(n, "%q is in more than %d groups", u.Name, maxGroups)
	}
	for _, h := range hashes {
		p.token(h, u)
	}
}

// group reads one item of groups.
func (p *parser) group(n *yaml.Node) {
	name, limits, cull := "", Limits{}, CullTimes{}
	before := len(p.problems)
	p.members(n, "a group", func(key string, value *yaml.Node) bool {
		switch key {
		case "name":
			if name = p.text(value, "name"); name != "" {
				p.name(value, "name", name)
			}
		case "limits":
			limits = p.limits(value)
		case "cull":
			cull = p.cull(value)
		default:
			return false
		}
		return true
	})
	line, twice := p.groups[name]
	switch {
	case name == "" && len(p.problems) == before:
		p.fail(n, "a group has no name")
	case twice:
		p.fail(n, "line %d already has the group %q", line, name)
	}
	p.groups[name] = n.Line
	if limits != (Limits{}) {
		p.groupLimits[name] = limits
	}
	p.groupCull[name] = cull
}

// cull reads when kernels are culled.
func (p *parser) cull(n *yaml.Node) (c CullTimes) {
	p.members(n, "cull", func(key string, value *yaml.Node) bool {
		to := map[string]**time.Duration{"idle-timeout": &c.IdleTimeout, "busy-limit": &c.BusyLimit, "max-age": &c.MaxAge,
			"warning": &c.Warning}[key]
		if to == nil {
			return false
		}
		d, err := time.ParseDuration(resolved(value).Value) // accepts 0, too, which is a number in YAML
		if err != nil || d < 0 || resolved(value).Kind != yaml.ScalarNode {
			p.fail(value, `%s is not a duration like 2h, 30m or 0`, key)
		}
		*to = &d
		return true
	})
	return c
}

// limits reads the limits of a user or a group.
func (p *parser) limits(n *yaml.Node) (l Limits) {
	p.members(n, "limits", func(key string, value *yaml.Node) bool {
		switch key {
		case "max-kernels":
			l.MaxKernels = p.limit(value, key)
		case "max-gpus":
			l.MaxGPUs = p.limit(value, key)
		default:
			return false
		}
		return true
	})
	return l
}

func (p *parser) limit(n *yaml.Node, what string) *int64 {
	n = resolved(n)
	limit := int64(Unlimited)
	if n.Value == "unlimited" && n.Kind == yaml.ScalarNode {
		return &limit
	}
	if err := n.Decode(&limit); err != nil || n.ShortTag() != "!!int" || limit < 0 {
		p.fail(n, "%s is neither a number from 0 on nor unlimited", what)
	}
	return &limit
}

func (p *parser) name(n *yaml.Node, what, name string) {
	if err := CheckName(name); err != nil {
		p.fail(n, "%s %v", what, err)
	}
}

// token adds a token of a user. Its messages never repeat the value, which may be a token.
func (p *parser) token(n *yaml.Node, u User) {
	digits, ok := strings.CutPrefix(p.text(n, "a token's hash"), hashPrefix)
	sum, err := hex.DecodeString(digits)
	var k key
	if !ok || err != nil || len(sum) != len(k) {
		p.fail(n, "a token's hash is not %s and 64 hexadecimal digits, as `ekg token` prints it", hashPrefix)
		return
	}
	copy(k[:], sum)
	if other, twice := p.users[k]; twice {
		p.fail(n, "%q already has the same token", other.Name)
		return
	}
	p.users[k] = u
}
