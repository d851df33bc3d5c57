package gateway

import (
	"context"
	_ "embed" // for the description of the API
	"encoding/json"
	"io"
	"net/http"
	"strings"
)

// apiDescription is what /api/spec.yaml serves. A test holds it against the table of routes.
//
//go:embed openapi.yaml
var apiDescription []byte

func (g *Gateway) getHealth(w http.ResponseWriter, _ *http.Request) error { return writeOK(w) }

func (g *Gateway) getReady(w http.ResponseWriter, _ *http.Request) error {
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

// getVersion answers without a credential, as Jupyter Server does. Enterprise Gateway's member is there for its clients.
func (g *Gateway) getVersion(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, map[string]string{"version": g.opts.Version, "gateway_version": g.opts.Version})
}

func (g *Gateway) getStatus(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := context.WithTimeout(r.Context(), readTime)
	defer cancel()
	kernels, err := g.opts.Launcher.Kernels(ctx)
	if err != nil {
		return err
	}
	kernels = visible(ctx, kernels)
	last, connections := g.started, 0
	for _, k := range kernels {
		connections += k.Connections
		if k.LastActivity.After(last) {
			last = k.LastActivity
		}
	}
	return writeJSON(w, http.StatusOK, map[string]any{
		"started": timestamp(g.started), "last_activity": timestamp(last),
		"kernels": len(kernels), "connections": connections,
	})
}

// permitted is what the one user may do with what the gateway has.
var permitted = map[string]map[string]bool{
	"api":         {"read": true},
	"kernels":     {"read": true, "write": true, "execute": true},
	"kernelspecs": {"read": true},
	"sessions":    {"read": true, "write": true},
}

// getIdentity answers who the client is: with one shared token, always anonymous. Permissions are those of the query
// ?permissions={"kernels": ["execute"]} that it has.
func (g *Gateway) getIdentity(w http.ResponseWriter, r *http.Request) error {
	asked := map[string][]string{}
	if text := r.URL.Query().Get("permissions"); text != "" {
		if err := json.Unmarshal([]byte(text), &asked); err != nil {
			return refuse(http.StatusBadRequest, "permissions is not an object of lists of strings.")
		}
	}
	granted := map[string][]string{}
	for resource, actions := range asked {
		granted[resource] = []string{}
		for _, action := range actions {
			if permitted[resource][action] {
				granted[resource] = append(granted[resource], action)
			}
		}
	}
	user := callerOf(r.Context()).Name
	name, initials := user, string([]rune(strings.ToUpper(user))[:1])
	if callerOf(r.Context()).one {
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

func (g *Gateway) getSpec(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "text/x-yaml")
	if _, err := w.Write(apiDescription); err != nil {
		return &unwritten{err}
	}
	return nil
}
