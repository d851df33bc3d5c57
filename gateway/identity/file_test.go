package identity

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestFile_SaysWhatIsWrongAndWhere(t *testing.T) {
	h := func(token string) string { return `"` + Hash(token) + `"` }
	for text, want := range map[string][]string{
		"":                        {":1: it is empty"},
		"users: [":                {"line 1"},
		"[]":                      {":1: the file is not a mapping"},
		"a: 1\nb: 2":              {":1: a: unknown key", ":2: b: unknown key"},
		"{}":                      {":1: the key users is missing"},
		"users: {}":               {":1: users is not a list"},
		"users: []\nusers: []":    {":2: users is given twice"},
		"users: []\n---\na: 1":    {": it has more than one document"},
		"users:\n- ann":           {":2: a user is not a mapping"},
		"users:\n- tokens: []":    {":2: a user has no name"},
		"users:\n- name: 7":       {":2: name is not a string; put it in quotes"},
		"users:\n- name: ' a'":    {":2: name begins or ends with white space"},
		"users:\n- name: \"\\n\"": {":2: name has characters that cannot be printed"},
		"users:\n- name: a\n  admin: yes please\n  groups: team\n  token: x": {
			":3: admin is not true or false", ":4: groups is not a list", ":5: token: unknown key"},
		"users:\n- name: a\n- name: b\n- name: a": {":4: line 2 already has the " +
			"user \"a\""},
		"users:\n- name: a\n  groups: [5]": {":3: a group is not a string"},
		"users:\n- name: a\n  limits: {max-kernels: -1, max-gpu: 3}": {":3: max-kernels is neither a " +
			"number from 0 on nor unlimited", ":3: max-gpu: unknown key"},
		"users:\n- name: a\n  limits: {max-gpus: '4', max-kernels: none}": {":3: max-gpus is neither",
			":3: max-kernels is neither"},
		"users: []\ngroups:\n- limits: {max-gpus: 3}": {":3: a group has no name"},
		"users: []\ngroups:\n- name: g\n- name: g\n  limits: 3\n- name: 4\n  users: []": {":4: line 3 already has the " +
			"group \"g\"", ":5: limits is not a mapping", ":6: name is not a string", ":7: users: unknown key"},
		"users: []\ngroups:\n- name: g\n  cull: {idle-timeout: 8, max-age: -1h, busy: 2h, warning: [5m]}": {
			":4: idle-timeout is not a duration like 2h, 30m or 0",
			":4: max-age is not", ":4: busy: unknown key", ":4: warning is not"},
		"users:\n- name: a\n  tokens: [canary-secret]": {":3: a token's hash is " +
			"not sha256: and 64 hexadecimal digits"},
		"users:\n- name: a\n  tokens: ['sha256:00']": {":3: a token's hash is not"},
		"users:\n- name: a\n  tokens:\n  - " + h("x") + "\n- name: b\n  tokens:\n  - " +
			h("x"): {":7: \"a\" already has the same token"},
	} {
		path := filepath.Join(t.TempDir(), "users.yaml")
		writeFile(t, path, text)
		_, err := OpenFile(path)
		if err == nil {
			t.Errorf("%q: nothing is wrong", text)
			continue
		}
		if strings.Contains(err.Error(), "canary") {
			t.Errorf("a token that was entered instead of its hash is repeated: %v", err)
		}
		for _, w := range want {
			if strings.HasPrefix(w, ":") {
				w = path + w
			}
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%q: got %v, want %s", text, err, w)
			}
		}
		if n := strings.Count(err.Error(), "\n") + 1; n != len(want) {
			t.Errorf("%q: %d problems, want %d: %v", text, n, len(want), err)
		}
	}
}

func TestFile_Reload(t *testing.T) {
	path := filepath.Join(t.TempDir(), "users.yaml")
	writeFile(t, path, "users:\n- name: ann\n  tokens: ['"+Hash("one")+"', '"+Hash("two")+
		"']\n  groups: [z, y, z]\n  admin: true\n- name: stranger\n")
	f, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	v, logged := verifierOf(t, Options{File: f})
	knows := func(token string, want bool) User {
		t.Helper()
		u, err := v.Identify(t.Context(), token)
		if (err == nil) != want || err != nil && !errors.Is(err, ErrUnknown) {
			t.Errorf("%s: %+v, %v", token, u, err)
		}
		return u
	}
	if u := knows("two", true); u.Name != "ann" || !u.Admin || !slices.Equal(u.Groups, []string{"y", "z"}) ||
		f.Len() != 2 {
		t.Errorf("got %+v of %d", u, f.Len())
	}
	knows("three", false)
	v.Refresh()
	if logged.Len() > 0 {
		t.Errorf("nothing has changed, but: %s", logged)
	}
	writeFile(t, path, "users:\n- name: bob\n  tokens: ['"+Hash("three")+"']\n")
	v.Refresh()
	knows("one", false)
	knows("three", true)

	t.Run("a broken version is reported once and changes nothing", func(t *testing.T) {
		logged.Reset()
		for range 3 {
			writeFile(t, path, "users:\n- nam: bob\n")
			v.Refresh()
		}
		knows("three", true)
		if n := strings.Count(logged.String(), path+":2: nam: unknown key"); n != 1 {
			t.Errorf("reported %d times: %s", n, logged)
		}
	})
	t.Run("so is a file that has gone", func(t *testing.T) {
		logged.Reset()
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		v.Refresh()
		v.Refresh()
		knows("three", true)
		if n := strings.Count(logged.String(), "no such file"); n != 1 {
			t.Errorf("reported %d times: %s", n, logged)
		}
	})
	t.Run("the same version as before is good again", func(t *testing.T) {
		writeFile(t, path, "users: []\n")
		v.Refresh()
		knows("three", false)
	})
	if _, err := OpenFile(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

func TestFile_Cull(t *testing.T) {
	path := filepath.Join(t.TempDir(), "users.yaml")
	writeFile(t, path, `{users: [], groups: [{name: vision, cull: {idle-timeout: 8h30m, busy-limit: 0}}, {name: sound}]}`)
	f, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if c, known := f.GroupCull("vision"); !known || *c.IdleTimeout != 8*time.Hour+30*time.Minute || *c.BusyLimit != 0 ||
		c.MaxAge != nil || c.Warning != nil {
		t.Errorf("%v, %+v", known, c)
	}
	if c, known := f.GroupCull("sound"); !known || c != (CullTimes{}) {
		t.Errorf("%v, %+v", known, c)
	}
	if _, known := f.GroupCull("smell"); known || f.Limited() {
		t.Error("there is more in it than was written")
	}
}

func TestFile_Limits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "users.yaml")
	writeFile(t, path, `{users: [{name: ann, limits: {max-kernels: 3, max-gpus: 0}}, {name: bob}], groups: [{name: `+
		`vision, limits: {max-kernels: unlimited}}]}`)
	f, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	ann, vision := f.UserLimits("ann"), f.GroupLimits("vision")
	if *ann.MaxKernels != 3 || *ann.MaxGPUs != 0 || *vision.MaxKernels != Unlimited || vision.MaxGPUs != nil {
		t.Errorf("%+v, %+v", ann, vision)
	}
	if f.UserLimits("bob") != (Limits{}) || f.GroupLimits("ann") != (Limits{}) || !f.Limited() {
		t.Error("those that have no limits have some")
	}
	writeFile(t, path, "users: [{name: ann}]")
	if changed, err := f.Reload(); err != nil || !changed || f.Limited() || f.UserLimits("ann") != (Limits{}) {
		t.Errorf("after a change: %v, %v, %+v", changed, err, f.UserLimits("ann"))
	}
}
