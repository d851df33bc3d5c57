package gateway

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// fixedGateways is a launcher.GatewayViewer.
type fixedGateways struct {
	all []launcher.Gateway
	err error
}

func (f *fixedGateways) ViewGateways(context.Context) ([]launcher.Gateway, error) {
	return f.all, f.err
}

// TestReplicas checks that admins see all gateways, and that each gateway knows about itself.
func TestReplicas(t *testing.T) {
	view := &fixedGateways{}
	g := startUserGateway(t, func(o *Options) { o.Gateways, o.Version = view, "1.2" })
	if body := g.do("GET", "/api/gateways", "", as("ann")).want(t, 200, "").body; strings.TrimSpace(body) != "[]" {
		t.Errorf("a user sees %s", body)
	}
	alone := decode[[]replicaModel](t, g.do("GET", "/api/gateways", "", as("root")).want(t, 200, ""))
	if len(alone) != 1 || !alone[0].Self || alone[0].Version != "1.2" || alone[0].Started == "" {
		t.Errorf("got %+v", alone)
	}
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	view.all = []launcher.Gateway{
		{Name: "a", Version: "1.1", Started: began, Ready: true},
		{Name: "b", Self: true},
		{Name: "c", Problem: "It does not answer."},
	}
	all := decode[[]replicaModel](t, g.do("GET", "/api/gateways", "", as("root")).want(t, 200, ""))
	if len(all) != 3 || all[0] != (replicaModel{Name: "a", Version: "1.1", Started: "2026-01-02T03:04:05.000000Z",
		Ready: true}) || !all[1].Self || all[1].Version != "1.2" || all[2].Problem != "It does not answer." || all[2].Ready {
		t.Errorf("got %+v", all)
	}
	view.err = errors.Join(launcher.ErrUnavailable)
	g.do("GET", "/api/gateways", "", as("root")).want(t, 503, "")
}
