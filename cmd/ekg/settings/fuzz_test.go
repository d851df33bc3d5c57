package settings

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
)

// FuzzSettings puts any text into a flag, a variable or the settings file. The text is rejected with its place, or `ekg
// config` prints settings with the same meaning. Printed text is printable: no value breaks a line or controls the
// terminal.
func FuzzSettings(f *testing.F) {
	texts := []string{
		"0",
		"-1",
		"true",
		"x",
		"1e999",
		"NaN",
		"99999999999999999999",
		"5s",
		"-5s",
		"1GiB",
		"9999999TiB",
		"unix:/x",
		"127.0.0.1:0",
		"host:99999",
		"[::1]:x",
		"a,b",
		"\x1b[31m\nekg: x",
		"\r",
		"\xff",
		"https://x",
		"https://x@y/?#",
		"/a/../b",
		"*",
		"",
	}
	for i := range options {
		f.Add(uint8(i), texts[i%len(texts)], "", "")
		f.Add(uint8(i), "", texts[(i+7)%len(texts)], "")
		f.Add(uint8(i), "\xff", "", "")
		f.Add(uint8(i), "a\nb: c", "", "")
	}
	for _, text := range texts {
		f.Add(uint8(0), text, "", "")
	}
	for _, text := range []string{
		"listen: 127.0.0.1:1", "listen: [", "- a", "listen: {a: b}", "listen: ~", "listen: 1\nlisten: 2",
		"a: &a [*a]\nallow-origin: *a", "\"a\\n\\e[31m\": 1", "token: \"\\e[31m\"", "---\n---\n", "\xff", "\x00",
		"config: x", "no-auth: yes", "allow-host: [a, [b]]", "? [x]\n: y", "!!binary x: y", "&a a: *a",
		"default-kernel: !!binary /w==",
	} {
		f.Add(uint8(0), "", "", text)
	}
	dir := f.TempDir()
	f.Setenv("HOME", dir)
	file := filepath.Join(dir, "settings.yaml")
	f.Fuzz(func(t *testing.T, i uint8, flag, variable, yaml string) {
		o := options[int(i)%len(options)]
		flags, env := map[string][]string{"state-dir": {dir}}, map[string]string{"HOME": dir}
		if flag != "" {
			flags[o.Name] = []string{flag}
		}
		if variable != "" && len(o.Env) > 0 {
			env[o.Env[0]] = variable
		}
		if yaml != "" {
			if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
				t.Fatal(err)
			}
			flags["config"] = []string{file}
		}
		s, err := Load(from(flags, env))
		var out bytes.Buffer
		if err != nil {
			printError(&out, err)
		} else if err := Print(&out, s); err != nil {
			t.Errorf("%s: it cannot be printed: %v", o.Name, err)
		}
		for line := range strings.Lines(out.String()) {
			line = strings.TrimSuffix(line, "\n")
			if strings.ContainsFunc(line, unicode.IsControl) || err != nil && !strings.HasPrefix(line, "ekg: ") {
				t.Errorf("printed %q", line)
			}
		}
		if err != nil || s.Config != "" {
			return
		}
		// The output lacks the secrets, so another source must provide them.
		if err := os.WriteFile(file, out.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		again := map[string][]string{"config": {file}}
		if s.Gateway.Token != "" {
			again["token"] = []string{s.Gateway.Token}
		}
		if s.HubToken != "" {
			again["hub-token"] = []string{s.HubToken}
		}
		s2, err := Load(from(again, map[string]string{"HOME": dir}))
		if err != nil {
			t.Errorf("%s: what was printed is refused: %v\n%s", o.Name, err, out.String())
			return
		}
		for _, o := range options {
			if got, want := strings.Join(o.value.show(s2), "\x00"), strings.Join(o.value.show(s), "\x00"); got != want {
				t.Errorf("%s: got %q, want %q", o.Name, got, want)
			}
		}
	})
}

// printError writes an error as the program reports it.
func printError(w *bytes.Buffer, err error) {
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintf(w, "ekg: %s\n", kernelspecs.Printable(strings.TrimSuffix(line, "\n")))
	}
}
