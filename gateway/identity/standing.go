package identity

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// Standing says whether a name is still that of a user.
type Standing int

// The standings.
const (
	Undecided Standing = iota // a source could not say so now
	Known                     // a source has the user
	Gone                      // no source has the user
	// Unlisted says that no source has the user, and that at least one knows users only by their tokens. The token that
	// was verified last decides; see Verifier.Seen.
	Unlisted
)

// ErrUnlisted says that a source knows users by their tokens only, and not by their names.
var ErrUnlisted = errors.New("the source knows users by their tokens only")

// errRefused says that a source which lists its users does not do so for this gateway.
var errRefused = fmt.Errorf("%w for this gateway", ErrUnlisted)

// Times for which a source is not asked about names after it did not answer. So one that does not answer holds up who
// asks about many names only once.
const (
	awayTime    = 5 * time.Second
	refusedTime = time.Minute // after it has refused to
)

// away is why a source is not asked about names.
type away struct {
	err   error
	until time.Time
}

// Standing asks the sources for a user by name. An error beside Unlisted is that of another source, which may have the
// user.
func (v *Verifier) Standing(ctx context.Context, name string) (Standing, error) {
	if v.opts.File != nil && v.opts.File.has(name) {
		return Known, nil
	}
	standing, failed := Gone, error(nil)
	for i := range v.sources {
		has, err := v.has(ctx, i, name)
		switch {
		case errors.Is(err, ErrUnlisted):
			standing = Unlisted
		case err != nil:
			failed = err
		case has:
			return Known, nil
		}
	}
	if failed != nil && standing == Gone {
		standing = Undecided
	}
	return standing, failed
}

// has asks one source for a user by name, unless it did not answer just now.
func (v *Verifier) has(ctx context.Context, i int, name string) (bool, error) {
	v.mu.Lock()
	last := v.away[i]
	v.mu.Unlock()
	if time.Now().Before(last.until) {
		return false, last.err
	}
	has, err := v.sources[i].Has(ctx, name)
	now := away{ErrUnavailable, time.Now().Add(awayTime)}
	switch {
	case errors.Is(err, errRefused):
		now = away{ErrUnlisted, time.Now().Add(refusedTime)}
	case err == nil, errors.Is(err, ErrUnlisted):
		return has, err
	}
	v.log.Warn("a source of users cannot say whether a user exists", logkey.Source, v.sources[i].String(),
		logkey.Err, err)
	v.mu.Lock()
	v.away[i] = now
	v.mu.Unlock()
	return false, now.err
}

// saw notes that a source has verified a token of a user.
func (v *Verifier) saw(name string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.seen) < remembered {
		v.seen[name] = true
	}
}

// Seen returns the users whose tokens a source has verified since the last call, in any order. Those of the users file
// are not among them.
func (v *Verifier) Seen() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	names := slices.Collect(maps.Keys(v.seen))
	clear(v.seen)
	return names
}
