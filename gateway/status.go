package gateway

import (
	"context"
	_ "embed" // for the description of the API
	"encoding/json"
	"io"
	"net/http"
	"strings"

	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// apiDescription is served as /api/spec.yaml. A test compares it with the table of routes.
//
//go:embed openapi.yaml
var apiDescription []byte

func getHealth(w http.ResponseWriter, _ *call) error { return writeOK(w) }

func (g *Gateway) getReady(w http.ResponseWriter, _ *call) error {
	if !g.ready.Load() {
		return refuse(http.StatusServiceUnavailable, "The gateway is starting or stopping.")
	}
	return writeOK(w)
}

func writeOK(w http.ResponseWriter) error {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, err := io.WriteString(w, "ok\n")
	if err != nil {
		return &unwritten{err}
	}
	return nil
}

// getVersion answers without a credential, as Jupyter Server does. gateway_version is for Enterprise Gateway's clients.
func (g *Gateway) getVersion(w http.ResponseWriter, _ *call) error {
	return writeJSON(w, http.StatusOK, map[string]string{"version": g.opts.Version, "gateway_version": g.opts.Version})
}

func (g *Gateway) getStatus(w http.ResponseWriter, r *call) error {
	ctx, cancel := context.WithTimeout(r.Context(), kernels.ReadTime)
	defer cancel()
	kernels, err := g.kernels.List(ctx, r.Who)
	if err != nil {
		return err
	}
	last, connections := g.started, 0
	for _, k := range kernels {
		connections += k.Connections
		if k.LastActivity.After(last) {
			last = k.LastActivity
		}
	}
	return writeJSON(w, http.StatusOK, map[string]any{
		"started": api.Timestamp(g.started), "last_activity": api.Timestamp(last),
		"kernels": len(kernels), "connections": connections,
	})
}

// permitted lists the actions that every user has, by resource.
var permitted = map[string]map[string]bool{
	"api":         {"read": true},
	"kernels":     {"read": true, "write": true, "execute": true},
	"kernelspecs": {"read": true},
	"sessions":    {"read": true, "write": true},
}

// getIdentity answers with the caller's name and permissions. Where there are no users, the name is anonymous. Of the
// query's ?permissions={"kernels": ["execute"]} it returns those that the caller has.
func (g *Gateway) getIdentity(w http.ResponseWriter, r *call) error {
	requested := map[string][]string{}
	if text := r.URL.Query().Get("permissions"); text != "" {
		if err := json.Unmarshal([]byte(text), &requested); err != nil {
			return refuse(http.StatusBadRequest,
				`permissions should be a JSON dict of {"resource": ["action",]}.`)
		}
	}
	granted := map[string][]string{}
	for resource, actions := range requested {
		granted[resource] = []string{}
		for _, action := range actions {
			if permitted[resource][action] {
				granted[resource] = append(granted[resource], action)
			}
		}
	}
	user := r.Who.Name
	name, initials := user, string([]rune(strings.ToUpper(user))[:1])
	if r.Who.Sole {
		name = "Anonymous"
	}
	return writeJSON(w, http.StatusOK, map[string]any{
		"identity": map[string]any{
			"username": user, "name": name, "display_name": name, "initials": initials,
			"avatar_url": nil, "color": nil,
		},
		"permissions": granted,
	})
}

func getSpec(w http.ResponseWriter, _ *call) error {
	w.Header().Set("Content-Type", "text/x-yaml")
	if _, err := w.Write(apiDescription); err != nil {
		return &unwritten{err}
	}
	return nil
}
