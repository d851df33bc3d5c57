// Package identity finds out whose token a request carries: from a file of users, from an OpenID Connect issuer, from
// Kubernetes, from JupyterHub, or from several of them. It knows nothing of kernels and of what a user may do with
// them; that is for package gateway.
//
// Every token has at most one judge: the file if the token is one of the file's, else the first source that takes tokens
// of its kind. So a token is shown to nobody whom it does not concern, and a judge that is away harms only its own
// users. Names are the same in all sources: whoever has the name ann in two of them is one user.
//
// What a judge has said is remembered for a bounded time, by the token's hash; what stands in the file counts at once.
// Tokens are in no log and in no error.
//
// The package starts no goroutine. Verifications run in that of the first request that needs one; others with the same
// token wait for it.
package identity

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/singleflight"
)

// Bounds of what is remembered and asked.
const (
	// DefaultKeep is how long an answer counts unless told otherwise.
	DefaultKeep = time.Minute

	keepUnknown = 5 * time.Second  // how long a token counts as nobody's, after its judge has said so
	remembered  = 1 << 14          // tokens of users, and as many that are nobody's
	verifyTime  = 10 * time.Second // for a judge to answer
	atOnce      = 32               // questions to one judge
	maxToken    = 16 << 10         // bytes; nobody's are longer

	maxName   = 200  // bytes of the name of a user or a group
	maxGroups = 1000 // of one user
)

// User is who a request is made for.
type User struct {
	Name   string
	Groups []string // in order, each once
	Admin  bool     // may see and do everything

	fromFile bool // by a token of the file
}

// In reports whether the user belongs to a group.
func (u User) In(group string) bool {
	_, found := slices.BinarySearch(u.Groups, group)
	return found
}

// Errors of Identify and of sources, tested with errors.Is.
var (
	// ErrUnknown says that a token is nobody's, for sure.
	ErrUnknown = errors.New("the token is nobody's")
	// ErrUnavailable says that the judge of a token cannot be asked at this moment.
	ErrUnavailable = errors.New("whose token it is cannot be told at this moment")
)

// Source is a judge of tokens. It may be asked concurrently.
type Source interface {
	// String names the source to the operator.
	String() string
	// Takes reports whether the token is of the source's kind, without asking anybody.
	Takes(token string) bool
	// Verify returns whose token it is and when the token ends, the zero time if that is not known. The error is ErrUnknown, with
	// the reason for the operator in it; every other error means that the source cannot tell now.
	Verify(ctx context.Context, token string) (User, time.Time, error)
}

// Options says where users come from.
type Options struct {
	File        *File         // nil: there is none
	Sources     []Source      // in the order in which they are asked whether they take a token
	Keep        time.Duration // how long a source's answer counts; 0 for DefaultKeep
	AdminUsers  []string      // names of admins, besides those of File
	AdminGroups []string      // groups whose users are admins
	Log         *slog.Logger
}

// Verifier tells whose a token is. It may be asked concurrently.
type Verifier struct {
	// Fixed.
	opts   Options
	log    *slog.Logger
	judges []judge

	// Safe for concurrent use by themselves.
	known   *lru.Cache[key, verdict]
	unknown *lru.Cache[key, time.Time] // until when
	asking  singleflight.Group         // by key
}

// judge is a source with the places for those that ask it.
type judge struct {
	Source
	places chan struct{} // capacity atOnce
}

// key stands for a token: its hash, so that tokens are not kept.
type key = [sha256.Size]byte

type verdict struct {
	user  User
	until time.Time
}

// New makes a verifier. An error names the bad option.
func New(o Options) (*Verifier, error) {
	switch {
	case o.File == nil && len(o.Sources) == 0:
		return nil, errors.New("identity: File, Sources: there is no user at all")
	case o.Keep < 0:
		return nil, errors.New("identity: Keep is negative")
	case o.Log == nil:
		return nil, errors.New("identity: Log is missing")
	}
	if o.Keep == 0 {
		o.Keep = DefaultKeep
	}
	v := &Verifier{opts: o, log: o.Log.With("component", "identity")}
	for _, s := range o.Sources {
		v.judges = append(v.judges, judge{s, make(chan struct{}, atOnce)})
	}
	var err, err2 error
	v.known, err = lru.New[key, verdict](remembered)
	v.unknown, err2 = lru.New[key, time.Time](remembered)
	return v, errors.Join(err, err2)
}

// Identify returns whose token it is. The error is ErrUnknown or ErrUnavailable. While a source is asked it does not
// return before verifyTime or the answer, even if ctx ends: others may wait for the same answer.
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
	i := slices.IndexFunc(v.judges, func(j judge) bool { return j.Takes(token) })
	if i < 0 {
		return User{}, ErrUnknown
	}
	answer, err, _ := v.asking.Do(string(k[:]), func() (any, error) {
		if user, err, ok := v.remembers(k); ok { // it came while this request was on its way here
			return user, err
		}
		return v.ask(context.WithoutCancel(ctx), v.judges[i], k, token)
	})
	user, _ := answer.(User)
	return user, err
}

// remembers returns what was said of a token, if that still counts.
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

// ask has a source judge a token, and remembers what it says.
func (v *Verifier) ask(ctx context.Context, j judge, k key, token string) (User, error) {
	ctx, cancel := context.WithTimeout(ctx, verifyTime)
	defer cancel()
	select {
	case j.places <- struct{}{}:
		defer func() { <-j.places }()
	case <-ctx.Done():
		v.log.Warn("too many tokens wait to be verified", "source", j.String())
		return User{}, ErrUnavailable
	}
	user, ends, err := j.Verify(ctx, token)
	if err == nil {
		user, err = clean(user)
	}
	now := time.Now()
	switch {
	case errors.Is(err, ErrUnknown):
		v.log.Info("a token was refused", "source", j.String(), "err", err)
		v.known.Remove(k)
		v.unknown.Add(k, now.Add(min(keepUnknown, v.opts.Keep)))
		return User{}, ErrUnknown
	case err != nil:
		v.log.Warn("tokens cannot be verified", "source", j.String(), "err", err)
		return User{}, ErrUnavailable
	}
	user = v.rank(user)
	until := now.Add(v.opts.Keep)
	if !ends.IsZero() && ends.Before(until) {
		until = ends
	}
	v.known.Add(k, verdict{user, until})
	return user, nil
}

// rank makes those admins whom the operator has named.
func (v *Verifier) rank(u User) User {
	u.Admin = u.Admin || slices.Contains(v.opts.AdminUsers, u.Name) || slices.ContainsFunc(v.opts.AdminGroups, u.In)
	return u
}

// Refresh reads the file of users again if it has changed. It is to be called now and then.
func (v *Verifier) Refresh() {
	if v.opts.File == nil {
		return
	}
	changed, err := v.opts.File.Reload()
	switch {
	case err != nil:
		for line := range strings.Lines(err.Error()) {
			v.log.Error("the file of users is as it should not be; what it said before still counts", "err", strings.TrimSpace(line))
		}
	case changed:
		v.log.Info("the file of users was read again", "users", v.opts.File.Len())
	}
}

// clean checks what a source says of a user: its name becomes a header, a variable and an annotation. Groups that cannot
// be named are left out.
func clean(u User) (User, error) {
	if err := CheckName(u.Name); err != nil {
		return User{}, fmt.Errorf("%w: its user's name %w", ErrUnknown, err)
	}
	u.Groups = slices.DeleteFunc(slices.Clone(u.Groups), func(g string) bool { return CheckName(g) != nil })
	slices.Sort(u.Groups)
	u.Groups = slices.Compact(u.Groups)
	u.Groups = u.Groups[:min(len(u.Groups), maxGroups)]
	return u, nil
}

// CheckName says what is wrong with the name of a user or a group, to be read behind "the name".
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

// Recall returns whose a token is that was a user's before, from what stands in the file and what is remembered. Known is
// false if its judge would have to be asked. A token of the file that is no longer there counts no longer, whoever else
// might know it.
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
