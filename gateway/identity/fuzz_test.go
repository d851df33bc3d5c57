package identity

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
)

// Whatever is in a file of users, it is refused with places that can be printed, or all users in it have names that can
// be used; and a token of no user never becomes a user's.
func FuzzFile(f *testing.F) {
	h := `"` + Hash("one") + `"`
	for _, text := range []string{
		"", "users: []", "users: [", "[]", "{}", "users: &a [*a]", "users: &a {name: x, tokens: *a}",
		"a: &a [*a, *a]\nusers: *a", "<<: {users: []}", "users: []\nusers: []", "? [a, b]\n: c", "--- \n...\n---\n",
		"users:\n- name: ann\n  tokens: [" + h + "]\n  groups: [a, b]\n  admin: true\n- name: bob",
		"users:\n- name: ann\n  tokens: [" + h + "]\n- name: bob\n  tokens: [" + h + "]",
		"users:\n- name: \"a\\nb\"", "users:\n- name: \"\\e[31m\"", "users:\n- \"na\\nme\": x", "\"us\\ners\\e[31m\": []",
		"users:\n- name: !!binary aGk=", "users:\n- name: 0x10", "users:\n- name: ~", "users:\n- name: \"\\u202e\"",
		"users:\n- name: " + strings.Repeat("x", maxName+1), "users:\n- {name: a, tokens: [canary], admin: 1}",
		"%YAML 9.9\n---\nusers: []", "\x00", "\xff\xfe", "users: !<tag:x> []", "users:\n- name: root\n  admin: !!bool yes",
		"users: []\ngroups:\n- {name: g, limits: {max-kernels: 3, max-gpus: unlimited}}\n- {name: h, limits: {max-gpus: " +
			"0x1p4}}", "users: []\ngroups: [{name: &a g, limits: *a}]",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		read := parse([]byte(text))
		for _, p := range read.problems {
			if p == "" || strings.ContainsFunc(p, unicode.IsControl) {
				t.Errorf("the problem %q", p)
			}
		}
		if len(read.problems) > 0 {
			return
		}
		for _, u := range read.users {
			if err := CheckName(u.Name); err != nil {
				t.Errorf("the user %q: the name %v", u.Name, err)
			}
		}
		for name := range read.groups {
			if err := CheckName(name); err != nil {
				t.Errorf("the group %q: the name %v", name, err)
			}
		}
	})
}

// Any client may send a token. Its claims only decide which source verifies it.
func FuzzToken(f *testing.F) {
	for _, token := range []string{
		"", "x", "..", "a.e30.c", "a.eyJpc3MiOiJ4In0.c", "a.eyJpc3MiOjF9.c", "a.bnVsbA.c", "a.W10.c",
		"a.eyJpc3MiOiJodHRwczovL2lzc3Vlci5leGFtcGxlIn0.c", "\x00.\xff.\n", strings.Repeat("a", maxToken+1),
	} {
		f.Add(token)
	}
	file := filepath.Join(f.TempDir(), "users.yaml")
	if err := os.WriteFile(file, []byte("users:\n- {name: ann, tokens: ['"+Hash("one")+"']}\n"), 0o600); err != nil {
		f.Fatal(err)
	}
	known, err := OpenFile(file)
	if err != nil {
		f.Fatal(err)
	}
	v, err := New(Options{File: known, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		f.Fatal(err)
	}
	issuer, err := NewOIDC(OIDCOptions{Issuer: "https://issuer.example", Audience: "ekg"})
	if err != nil {
		f.Fatal(err)
	}
	hub, err := NewJupyterHub("http://hub.example/hub/api", "ekg", "")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, token string) {
		if u, err := v.Identify(t.Context(), token); (err == nil) != (token == "one") {
			t.Errorf("%q is %+v, %v", token, u, err)
		}
		if hub.Takes(token) && issuer.Takes(token) || hub.Takes(token) == (&TokenReview{}).Takes(token) {
			t.Errorf("%q has two judges, or none", token)
		}
	})
}
