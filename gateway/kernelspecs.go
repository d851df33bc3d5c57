package gateway

import (
	"encoding/json"
	"errors"
	"io/fs"
	"mime"
	"net/http"
	"net/url"
	"path"
	"strings"

	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
)

// specModel is Jupyter's model of a kernelspec.
type specModel struct {
	Name      string            `json:"name"`
	Spec      specFile          `json:"spec"`
	Resources map[string]string `json:"resources"` // never null: Jupyter Server's gateway client fails on that
}

// specFile has the members of a kernel.json that Jupyter Server shows to front ends.
type specFile struct {
	Argv          []string          `json:"argv"`
	Env           map[string]string `json:"env"`
	DisplayName   string            `json:"display_name"`
	Language      string            `json:"language"`
	InterruptMode string            `json:"interrupt_mode"`
	Metadata      json.RawMessage   `json:"metadata"`
}

func (g *Gateway) specModel(s kernelspecs.Spec) specModel {
	m := specModel{
		Name: s.Name,
		Spec: specFile{Argv: s.Argv, Env: s.Env, DisplayName: s.DisplayName, Language: s.Language,
			InterruptMode: s.InterruptMode, Metadata: s.Metadata},
		Resources: map[string]string{},
	}
	if m.Spec.Argv == nil {
		m.Spec.Argv = []string{}
	}
	if m.Spec.Env == nil {
		m.Spec.Env = map[string]string{}
	}
	if len(m.Spec.Metadata) == 0 {
		m.Spec.Metadata = json.RawMessage("{}")
	}
	for key, file := range s.Resources() {
		// Clients search for the last "/kernelspecs/" in it, so the segment is part of the protocol.
		m.Resources[key] = g.base + "/kernelspecs/" + url.PathEscape(s.Name) + "/" + url.PathEscape(file)
	}
	return m
}

// listKernelspecs answers with all specs. It ignores the user that Jupyter Server adds to the query. A Jupyter Server
// with such a user asks for a single spec as ?user=NAME/SPEC, with the spec appended to the query.
func (g *Gateway) listKernelspecs(w http.ResponseWriter, r *call) error {
	if user := r.URL.Query().Get("user"); strings.Contains(user, "/") {
		return g.writeKernelspec(w, r.Who, path.Base(user))
	}
	models := map[string]specModel{}
	for name, s := range g.kernels.StartableSpecs(r.Who) {
		models[name] = g.specModel(s)
	}
	return writeJSON(w, http.StatusOK, map[string]any{"default": g.kernels.DefaultSpec(r.Who), "kernelspecs": models})
}

func (g *Gateway) getKernelspec(w http.ResponseWriter, r *call) error {
	return g.writeKernelspec(w, r.Who, r.PathValue("name"))
}

func (g *Gateway) writeKernelspec(w http.ResponseWriter, who kernels.Caller, name string) error {
	s, err := g.kernels.ReadableSpec(who, name)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, g.specModel(s))
}

// getKernelspecFile serves a file of a spec's directory. OpenResource opens no file outside of it.
func (g *Gateway) getKernelspecFile(w http.ResponseWriter, r *call) error {
	name, file := r.PathValue("name"), r.PathValue("file")
	s, err := g.kernels.ReadableSpec(r.Who, name)
	if err != nil {
		return err
	}
	f, err := s.OpenResource(file)
	if errors.Is(err, fs.ErrNotExist) {
		return refuse(http.StatusNotFound, "Kernel spec %s has no such file.", name)
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was only read
	info, err := f.Stat()
	if err != nil {
		return err
	}
	kind := mime.TypeByExtension(path.Ext(file))
	if kind == "" {
		kind = "application/octet-stream" // or net/http would guess from the content
	}
	w.Header().Set("Content-Type", kind)
	http.ServeContent(w, r.Request, "", info.ModTime(), f)
	return nil
}
