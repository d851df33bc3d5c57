// Package identity finds the user of a token: in a users file, or by asking an OpenID Connect issuer, Kubernetes or
// JupyterHub. Package gateway asks a Verifier for the token of each request. Rights to kernels are decided there, not
// here. Begin with Verifier.Identify; each Source is in a file of its own. Verifier.Standing says whether a name is
// still that of a user, for what goes on without requests of that user.
//
// One source at most verifies a token: the users file if it has the token, else the first source that accepts tokens of
// its kind. So no other source sees the token, and a source that is down affects only its own users. Names are shared
// by all sources: ann of the users file and ann of the issuer are one user.
//
// A source's answer is kept for a bounded time, by the token's hash. A change of the users file counts at once. Tokens
// are in no log and in no error.
//
// The package starts no goroutine. The first request with a token runs its verification; others with the same token
// wait.
package identity

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/singleflight"

	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// Bounds.
const (
	// DefaultKeep is how long a source's answer counts where Options.Keep is 0.
	DefaultKeep = time.Minute

	keepUnknown = 5 * time.Second  // how long a token that its source does not know counts as unknown
	remembered  = 1 << 14          // known tokens, and as many unknown ones
	verifyTime  = 10 * time.Second // for a source to answer
	atOnce      = 32               // verifications by one source, of known tokens and of others each
	perAddress  = 16               // verifications of tokens that are not known, from one address
	maxToken    = 16 << 10         // bytes; longer tokens are unknown

	maxName   = 200  // bytes of the name of a user or a group
	maxGroups = 1000 // of one user
)

// User is a user of the gateway.
type User struct {
	Name   string
	Groups []string // sorted, without repetition
	Admin  bool     // may see and do everything

	fromFile bool // identified by a token of the users file
}

// In reports whether the user belongs to a group.
func (u User) In(group string) bool {
	_, found := slices.BinarySearch(u.Groups, group)
	return found
}

// Errors of Identify and of sources, tested with errors.Is.
var (
	// ErrUnknown says that no user has the token.
	ErrUnknown = errors.New("no user has the token")
	// ErrUnavailable says that a token cannot be verified at the moment.
	ErrUnavailable = errors.New("the token cannot be verified at the moment")
	// ErrTooMany says that too many unknown tokens of the request's address are being verified.
	ErrTooMany = errors.New("too many tokens of this address are being verified")
)

// Source verifies tokens of one kind. Its methods may be called concurrently.
type Source interface {
	// String names the source to the operator.
	String() string
	// Takes reports whether the token is of the source's kind, by its form only.
	Takes(token string) bool
	// Verify returns the token's user and when the token expires, the zero time if that is unknown. The error wraps
	// ErrUnknown, with a reason for the operator; any other error means that the source cannot verify tokens now.
	Verify(ctx context.Context, token string) (User, time.Time, error)
	// Has reports whether the source has a user of a name, with which it would verify a token. The error wraps ErrUnlisted
	// if the source never knows that; any other error means that the source cannot say so now.
	Has(ctx context.Context, name string) (bool, error)
}

// Options configures a Verifier.
type Options struct {
	File        *File         // nil: no users file
	Sources     []Source      // the first one that takes a token verifies it
	Keep        time.Duration // how long a source's answer counts; 0 for DefaultKeep
	AdminUsers  []string      // names of admins, besides those of File
	AdminGroups []string      // groups whose users are admins
	Log         *slog.Logger
}

// Verifier identifies users by their tokens. It may be used concurrently.
type Verifier struct {
	// Fixed.
	opts    Options
	log     *slog.Logger
	sources []limitedSource

	// Safe for concurrent use by themselves.
	known   *lru.Cache[key, verdict]
	unknown *lru.Cache[key, time.Time] // until when the token counts as unknown
	asking  singleflight.Group         // by key
	refused Ration                     // of log lines about refused tokens
	waiting Ration                     // of log lines about tokens that wait too long

	mu        sync.Mutex
	byAddress map[string]int  // guarded by mu; verifications of tokens that are not known
	away      []away          // guarded by mu; by source
	seen      map[string]bool // guarded by mu; see Seen
}

// limitedSource is a source whose verifications are limited. Tokens that were a user's before have their own limit, so
// that no number of invented tokens delays them.
type limitedSource struct {
	Source
	running chan struct{} // capacity atOnce; holds one value for each verification
	again   chan struct{} // the same for known tokens
}

// addressKey is the key of a context's value that From sets.
type addressKey struct{}

// From returns a context for Identify that names the address which a request has come from, without a port. Without an
// address, there is no limit for one address.
func From(ctx context.Context, address string) context.Context {
	return context.WithValue(ctx, addressKey{}, address)
}

// key is the hash of a token, so that tokens themselves are not kept.
type key = [sha256.Size]byte

// verdict is a source's answer.
type verdict struct {
	user  User
	until time.Time
}

// New makes a verifier. An error names the bad option.
func New(o Options) (*Verifier, error) {
	switch {
	case o.File == nil && len(o.Sources) == 0:
		return nil, errors.New("identity: File, Sources: both are missing, so there are no users")
	case o.Keep < 0:
		return nil, errors.New("identity: Keep is negative")
	case o.Log == nil:
		return nil, errors.New("identity: Log is missing")
	}
	if o.Keep == 0 {
		o.Keep = DefaultKeep
	}
	v := &Verifier{opts: o, log: o.Log.With(logkey.Component, "identity"), byAddress: map[string]int{},
		away: make([]away, len(o.Sources)), seen: map[string]bool{}}
	for _, s := range o.Sources {
		v.sources = append(v.sources, limitedSource{s, make(chan struct{}, atOnce), make(chan struct{}, atOnce)})
	}
	var err, err2 error
	v.known, err = lru.New[key, verdict](remembered)
	v.unknown, err2 = lru.New[key, time.Time](remembered)
	return v, errors.Join(err, err2)
}

// Identify returns the user of a token. The error is ErrUnknown, ErrUnavailable or ErrTooMany; see From. A verification
// goes on when ctx ends, since other requests may wait for it; Identify returns after verifyTime at the latest.
func (v *Verifier) Identify(ctx context.Context, token string) (User, error) {
	if token == "" || len(token) > maxToken {
		return User{}, ErrUnknown
	}
	k := sha256.Sum256([]byte(token))
	if v.opts.File != nil {
		if user, ok := v.opts.File.user(k); ok {
			return v.rank(user), nil
		}
	}
	if user, err, ok := v.remembers(k); ok {
		return user, err
	}
	i := slices.IndexFunc(v.sources, func(s limitedSource) bool { return s.Takes(token) })
	if i < 0 {
		return User{}, ErrUnknown
	}
	answer, err, _ := v.asking.Do(string(k[:]), func() (any, error) {
		if user, err, ok := v.remembers(k); ok { // answered since the check above
			return user, err
		}
		lane := v.sources[i].again
		if !v.known.Contains(k) { // which it does long after its answer has expired
			leave, err := v.enter(ctx)
			if err != nil {
				return User{}, err
			}
			defer leave()
			lane = v.sources[i].running
		}
		return v.verify(context.WithoutCancel(ctx), v.sources[i], lane, k, token)
	})
	user, _ := answer.(User)
	return user, err
}

// enter counts a verification of a token that is not known. The caller must call leave.
func (v *Verifier) enter(ctx context.Context) (leave func(), err error) {
	address, _ := ctx.Value(addressKey{}).(string)
	if address == "" {
		return func() {}, nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.byAddress[address] >= perAddress {
		return nil, ErrTooMany
	}
	v.byAddress[address]++
	return func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		if v.byAddress[address]--; v.byAddress[address] == 0 {
			delete(v.byAddress, address)
		}
	}, nil
}

// remembers returns the last answer about a token; ok is false if there is none that still counts.
func (v *Verifier) remembers(k key) (User, error, bool) {
	now := time.Now()
	if said, ok := v.known.Get(k); ok && now.Before(said.until) {
		return said.user, nil, true
	}
	if until, ok := v.unknown.Get(k); ok && now.Before(until) {
		return User{}, ErrUnknown, true
	}
	return User{}, nil, false
}

// verify sends a token to a source when the lane is not full, and remembers the answer.
func (v *Verifier) verify(
	ctx context.Context, s limitedSource, lane chan struct{}, k key, token string,
) (User, error) {
	ctx, cancel := context.WithTimeout(ctx, verifyTime)
	defer cancel()
	select {
	case lane <- struct{}{}:
		defer func() { <-lane }()
	case <-ctx.Done():
		if others, ok := v.waiting.Take(time.Now()); ok {
			v.log.Warn("too many tokens wait to be verified", logkey.Source, s.String(), logkey.Others, others)
		}
		return User{}, ErrUnavailable
	}
	user, ends, err := s.Verify(ctx, token)
	if err == nil {
		user, err = clean(user)
	}
	now := time.Now()
	switch {
	case errors.Is(err, ErrUnknown):
		if others, ok := v.refused.Take(now); ok {
			v.log.Info("a token was refused", logkey.Source, s.String(), logkey.Err, err, logkey.Others, others)
		}
		v.known.Remove(k)
		v.unknown.Add(k, now.Add(min(keepUnknown, v.opts.Keep)))
		return User{}, ErrUnknown
	case err != nil:
		v.log.Warn("tokens cannot be verified", logkey.Source, s.String(), logkey.Err, err)
		return User{}, ErrUnavailable
	}
	user = v.rank(user)
	until := now.Add(v.opts.Keep)
	if !ends.IsZero() && ends.Before(until) {
		until = ends
	}
	v.known.Add(k, verdict{user, until})
	v.saw(user.Name)
	return user, nil
}

// rank adds the admin right that Options gives to a user.
func (v *Verifier) rank(u User) User {
	u.Admin = u.Admin || slices.Contains(v.opts.AdminUsers, u.Name) || slices.ContainsFunc(v.opts.AdminGroups, u.In)
	return u
}

// Refresh reads the users file again if it has changed. Its caller calls it every few seconds.
func (v *Verifier) Refresh() {
	if v.opts.File == nil {
		return
	}
	changed, err := v.opts.File.Reload()
	switch {
	case err != nil:
		for line := range strings.Lines(err.Error()) {
			v.log.Error("the users file is invalid; its last valid version still counts", logkey.Err, strings.TrimSpace(line))
		}
	case changed:
		v.log.Info("the users file was read again", logkey.Users, v.opts.File.Len())
	}
}

// clean checks a source's user, whose name becomes a header, a variable and an annotation. It drops groups with invalid
// names.
func clean(u User) (User, error) {
	if err := CheckName(u.Name); err != nil {
		return User{}, fmt.Errorf("%w: the name of its user %w", ErrUnknown, err)
	}
	u.Groups = slices.DeleteFunc(slices.Clone(u.Groups), func(g string) bool { return CheckName(g) != nil })
	slices.Sort(u.Groups)
	u.Groups = slices.Compact(u.Groups)
	u.Groups = u.Groups[:min(len(u.Groups), maxGroups)]
	return u, nil
}

// CheckName checks the name of a user or a group. The error reads on from "the name".
func CheckName(name string) error {
	switch {
	case name == "":
		return errors.New("is empty")
	case len(name) > maxName:
		return fmt.Errorf("is longer than %d bytes", maxName)
	case !utf8.ValidString(name), strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }):
		return errors.New("has characters that cannot be printed")
	case strings.TrimSpace(name) != name:
		return errors.New("begins or ends with white space")
	}
	return nil
}

// Recall returns the user of a token that was a user's before, from the users file and remembered answers. Known is
// false if only its source could answer. A token that was removed from the users file is unknown, even if a source
// would accept it.
func (v *Verifier) Recall(token string, was User) (user User, known bool, err error) {
	k := sha256.Sum256([]byte(token))
	if v.opts.File != nil {
		if user, ok := v.opts.File.user(k); ok {
			return v.rank(user), true, nil
		}
	}
	if was.fromFile {
		return User{}, true, ErrUnknown
	}
	user, err, known = v.remembers(k)
	return user, known, err
}
