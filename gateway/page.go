package gateway

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"io/fs"
	"net/http"
	"strings"
	"time"
)

// pageFiles is the operator's page as `make page` has built it from the sources in page.
//
//go:embed page/built
var pageFiles embed.FS

// pageTypes are the files that can be asked for by name, with their types.
var pageTypes = map[string]string{
	"page.js":  "text/javascript; charset=utf-8",
	"page.css": "text/css; charset=utf-8",
}

// pagePolicy is the Content-Security-Policy of the page: its own script and style sheet, requests to this gateway, and
// nothing else. There is no inline script or style. No other page may show it in a frame, or send a form from it.
func pagePolicy(base string) string {
	return "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; " +
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; report-uri " + base + reportPath
}

// getPage answers a browser with the operator's page. For other clients there is nothing at the base URL. The page has
// no secret: it asks its viewer for a token, and then uses the routes of the API.
func (g *Gateway) getPage(w http.ResponseWriter, r *call) error {
	w.Header().Add("Vary", "Accept")
	if !strings.Contains(lower(strings.Join(r.Header.Values("Accept"), ",")), "text/html") {
		return refuse(http.StatusNotFound, "There is no such route.")
	}
	if !strings.HasSuffix(r.URL.EscapedPath(), "/") {
		w.Header().Set("Location", g.base+"/") // the page's links are relative
		w.WriteHeader(http.StatusPermanentRedirect)
		return nil
	}
	return g.servePage(w, r, "index.html", "text/html; charset=utf-8")
}

// getPageFile answers with the page's script or style sheet.
func (g *Gateway) getPageFile(w http.ResponseWriter, r *call) error {
	name := r.PathValue("file")
	contentType, ok := pageTypes[name]
	if !ok {
		return refuse(http.StatusNotFound, "There is no such route.")
	}
	return g.servePage(w, r, name, contentType)
}

// servePage serves a file of the page. A browser keeps it, and asks each time whether it has changed.
func (g *Gateway) servePage(w http.ResponseWriter, r *call, name, contentType string) error {
	b, err := fs.ReadFile(pageFiles, "page/built/"+name)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(b)
	h := w.Header()
	h.Set("Content-Security-Policy", pagePolicy(g.base))
	h.Set("Content-Type", contentType)
	h.Set("Cache-Control", "no-cache")
	h.Set("ETag", `"`+hex.EncodeToString(sum[:8])+`"`)
	h.Set("Referrer-Policy", "no-referrer")
	http.ServeContent(w, r.Request, "", time.Time{}, bytes.NewReader(b))
	if err := http.NewResponseController(w).Flush(); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return &unwritten{err}
	}
	return nil
}
