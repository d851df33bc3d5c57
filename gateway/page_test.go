package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func accept(types string) func(*http.Request) {
	return func(r *http.Request) {
		r.Header.Del("Authorization")
		r.Header.Set("Accept", types)
	}
}

func TestPage_Served(t *testing.T) {
	const browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
	for _, base := range []string{"", "/gw/a"} {
		g := startGateway(t, func(o *Options) { o.BaseURL = base })
		page := g.do("GET", base+"/", "", accept(browser)).want(t, 200, "page/page.js")
		for name, want := range map[string]string{
			"Content-Type": "text/html; charset=utf-8", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff",
			"Cache-Control": "no-cache", "Content-Security-Policy": pagePolicy(base),
		} {
			if got := page.Header.Get(name); got != want {
				t.Errorf("%s is %q, want %q", name, got, want)
			}
		}
		if strings.Contains(page.Header.Get("Content-Security-Policy"), "unsafe") || len(page.Cookies()) > 0 {
			t.Errorf("the page has the header %v", page.Header)
		}
		for _, bad := range []string{"<style", "style=", "onload", "<script>", "http:", "https:", "//"} {
			if strings.Contains(page.body, bad) {
				t.Errorf("the page has %s, which its policy forbids", bad)
			}
		}
		for _, types := range []string{"application/json", "*/*", ""} {
			g.do("GET", base+"/", "", accept(types)).want(t, 404, "no such route")
		}
		for _, file := range []string{"page.js", "page.css"} {
			answer := g.do("GET", base+"/page/"+file, "", accept("*/*")).want(t, 200, "")
			again := g.do("GET", base+"/page/"+file, "", func(r *http.Request) {
				r.Header.Set("If-None-Match", answer.Header.Get("ETag"))
			})
			if len(answer.body) < 1000 || again.StatusCode != http.StatusNotModified || again.body != "" {
				t.Errorf("%s: %d bytes, then %d", file, len(answer.body), again.StatusCode)
			}
		}
		for _, file := range []string{"index.html", "..%2Fpage.sha256", "page.js%00", "src"} {
			g.do("GET", base+"/page/"+file, "", accept(browser)).want(t, 404, "")
		}
		if base != "" {
			if got := g.do("GET", base, "", accept(browser)); got.StatusCode != 308 || got.Header.Get("Location") != base+"/" {
				t.Errorf("%s: got %d %v", base, got.StatusCode, got.Header)
			}
			g.do("GET", "/", "", accept(browser)).want(t, 404, "")
		}
	}
}

// The committed build belongs to the committed sources.
func TestPage_Build(t *testing.T) {
	recorded, err := os.ReadFile("page/page.sha256")
	if err != nil {
		t.Fatal(err)
	}
	files := []string{"page/../../hack/env/package-lock.json"}
	err = filepath.WalkDir("page", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && path != "page/page.sha256" {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(b)
		lines = append(lines, hex.EncodeToString(sum[:])+"  "+strings.TrimPrefix(file, "page/"))
	}
	want := strings.Split(strings.TrimSpace(string(recorded)), "\n")
	slices.Sort(lines)
	slices.Sort(want)
	if !slices.Equal(lines, want) {
		t.Errorf("the build is not that of the sources; run make page.\ngot  %s\nwant %s", strings.Join(lines, "\n     "),
			strings.Join(want, "\n     "))
	}
}
