package gateway

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"

	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// Bounds of sessions, which are stored with their kernel. A cluster keeps 64 KiB of them, as JSON. The users with whom
// a kernel is shared leave most of that to its owner.
const (
	maxSessionText   = 4 << 10  // bytes of one member
	maxSessions      = 64       // of one kernel, created by its owner
	maxUserSessions  = 16       // of one kernel, created by one other user
	maxUserBytes     = 8 << 10  // of these, as JSON
	maxOtherSessions = 64       // of one kernel, created by all other users together
	maxOtherBytes    = 24 << 10 // of these, as JSON
)

// creator returns the user who has created a session that is stored with a kernel of owner. A gateway without users
// stores none.
func creator(s launcher.Session, owner string) string { return cmp.Or(s.User, owner) }

// offers reports whether a user may be given the session as the one of its path: the user or the kernel's owner has
// created it. Otherwise anyone who may use a shared kernel could make its owner's notebooks open in it.
func (f found) offers(who kernels.Caller) bool {
	by := creator(f.session, f.kernel.Owner)
	return who.Sole || by == f.kernel.Owner || by == who.Owner()
}

// shows reports whether a user sees the session in lists.
func (f found) shows(who kernels.Caller) bool { return who.Admin || f.offers(who) }

// needed reports whether other sessions of the same kernel keep it when the session ends. The sessions of users with
// whom it is shared do not: they cannot make it outlive its owner's work.
func (f found) needed(who kernels.Caller, others []launcher.Session) bool {
	return slices.ContainsFunc(others, func(s launcher.Session) bool {
		return who.Sole || creator(s, f.kernel.Owner) == f.kernel.Owner
	})
}

// withSession returns the sessions of a kernel of owner with s, which replaces one of the same id. The error says which
// bound is exceeded.
func withSession(all []launcher.Session, s launcher.Session, owner string) ([]launcher.Session, error) {
	all = append(without(all, s.ID), s)
	by := creator(s, owner)
	var owners, users, others, userBytes, otherBytes int
	for _, other := range all {
		user := creator(other, owner)
		if user == owner {
			owners++
			continue
		}
		text, err := json.Marshal(other)
		if err != nil {
			return nil, err
		}
		others++
		otherBytes += len(text)
		if user == by {
			users++
			userBytes += len(text)
		}
	}
	switch {
	case by == owner && owners > maxSessions:
		return nil, refuse(http.StatusConflict, "The kernel has %d sessions already.", maxSessions)
	case by == owner:
	case users > maxUserSessions || others > maxOtherSessions:
		return nil, refuse(http.StatusConflict, "The kernel has too many sessions of users who do not own it.")
	case userBytes > maxUserBytes || otherBytes > maxOtherBytes:
		return nil, refuse(http.StatusConflict, "The kernel's sessions of users who do not own it are too long.")
	}
	return all, nil
}
