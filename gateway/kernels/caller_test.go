package kernels

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// listerForUsers lists too many kernels for a user, and refuses to list all.
type listerForUsers struct {
	launcher.Launcher
	kernels []launcher.Kernel
	asked   []string
}

var errAllListed = errors.New("all kernels are listed")

func (l *listerForUsers) Kernels(context.Context) ([]launcher.Kernel, error) {
	return nil, errAllListed
}

func (l *listerForUsers) KernelsFor(_ context.Context, user string, groups []string) ([]launcher.Kernel, error) {
	l.asked = append(l.asked, append([]string{user}, groups...)...)
	return l.kernels, nil
}

// All kernels are listed only for callers who may see them.
func TestService_List(t *testing.T) {
	l := &listerForUsers{kernels: []launcher.Kernel{{ID: "1", Owner: "ann"}, {ID: "2", Owner: "bob"}}}
	s := New(Options{Launcher: l}, nil)
	all, err := s.List(t.Context(), Caller{User: identity.User{Name: "ann", Groups: []string{"team"}}})
	if err != nil || len(all) != 1 || all[0].ID != "1" || !slices.Equal(l.asked, []string{"ann", "team"}) {
		t.Errorf("%+v, %v, asked for %v", all, err, l.asked)
	}
	for _, who := range []Caller{SoleOwner(), {User: identity.User{Name: "root", Admin: true}}} {
		if _, err := s.List(t.Context(), who); !errors.Is(err, errAllListed) {
			t.Errorf("%s: %v", who.Name, err)
		}
	}
}
