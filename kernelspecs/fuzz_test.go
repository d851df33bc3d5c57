package kernelspecs

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// Any kernel.json gives printable problems or a usable spec.
func FuzzSpec(f *testing.F) {
	for _, text := range []string{
		plain, "", "{", "[]", "null", "{}", "\xff", "\xef\xbb\xbf{}", `{"argv": []}`, `{"argv": [""]}`,
		`{"argv": ["x", 5, null]}`, `{"argv": ["\u0000"]}`, `{"argv": "x"}`, `{"argv": ["x"], "argv": ["y"]}`,
		`{"argv": ["{connection_file}", "{a}{resource_dir}{prefix}{kernel_id}", "{{}}"], "env": {"A": "${B}$$${A}$C$"}}`,
		`{"argv": ["x"], "env": {"": "x"}}`, `{"argv": ["x"], "env": {"A=B": "x"}}`,
		`{"argv": ["x"], "env": {"A\u001b[31m\nekg: B": 5}}`,
		`{"argv": ["x"], "interrupt_mode": "kill"}`, `{"argv": ["x"], "metadata": []}`,
		`{"argv": ["x"], "metadata": {"ekg": null}}`,
		`{"argv": ["x"], "metadata": {"ekg": {"transport": "udp", "tr\u0000": 1}}}`,
		`{"argv": ["x"], "metadata": {"ekg": {"cull": {"idleTimeout": "9999999h"}}}}`,
		`{"argv": ["x"], "metadata": {"ekg": {"cull": {"idleTimeout": "-1s", "x": 1}}}}`,
		`{"argv": ["x"], "metadata": {"ekg": {"image": "x", "imageKernelspec": "../y", "pod": {"spec": {}}}}}`,
		`{"display_name": "\u202e\u0007", "language": "\n", "argv": ["x"]}`,
		`{"argv": ["x"], "metadata": ` + strings.Repeat(`{"a":`, 200) + "1" + strings.Repeat("}", 200) + "}",
		`{"argv": ["x"], "metadata": {"a": 1e999999999}}`, `{"argv": ["x"],}`, `{"argv": ["x"]} x`,
	} {
		f.Add(text)
	}
	dir := filepath.Join(f.TempDir(), "spec")
	if err := os.Mkdir(dir, 0o700); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if err := os.WriteFile(filepath.Join(dir, "kernel.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		spec, _, problems := readSpec("spec", dir, "")
		for _, p := range append(Check(dir, "", nil), problems...) {
			if line := p.String(); p.Message == "" ||
				strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("the problem %q", line)
			}
		}
		if len(problems) > 0 {
			return
		}
		if _, err := spec.Extension(); err != nil {
			t.Errorf("nothing is wrong, but: %v", err)
		}
		if _, err := spec.Transport(); err != nil || !json.Valid(spec.Metadata) {
			t.Errorf("nothing is wrong, but: %v, metadata %s", err, spec.Metadata)
		}
		texts := spec.Command(map[string]string{"connection_file": "/c", "kernel_id": "id"})
		for name, value := range spec.ExpandEnv(map[string]string{"B": "$A ${A} $$"}) {
			if name == "" || strings.ContainsAny(name, "=\x00") {
				t.Errorf("the variable %q", name)
			}
			texts = append(texts, value)
		}
		if slices.ContainsFunc(texts, func(s string) bool { return strings.ContainsRune(s, 0) }) {
			t.Errorf("no process can be started with %q", texts)
		}
	})
}

// Any name of a resource opens only files of the spec's directory.
func FuzzResource(f *testing.F) {
	for _, file := range []string{
		"logo-svg.svg", "sub/a.txt", "", ".", "..", "../secret.txt", "sub/../../secret.txt", "/etc/passwd",
		"\\..\\secret.txt", "a\x00", "\xff", "sub", "sub/", "./logo-svg.svg", "out", "out/secret.txt", "up",
		"up/secret.txt", "in", "loop", "fifo", "kernel.json/x", strings.Repeat("x", 300),
		strings.Repeat("x/", 3000) + "x", "C:x", "sub//a.txt",
	} {
		f.Add(file)
	}
	root := f.TempDir()
	dir := filepath.Join(root, "spec")
	inside := map[string]string{"logo-svg.svg": "<svg/>", "sub/a.txt": "a", "kernel.json": plain}
	for name, text := range inside {
		write(f, filepath.Join(dir, name), text)
	}
	write(f, filepath.Join(root, "secret.txt"), "secret")
	for name, to := range map[string]string{
		"out": filepath.Join(root, "secret.txt"), "up": "..", "in": "logo-svg.svg", "loop": "loop",
		"sub/out": "../../secret.txt",
	} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			f.Fatal(err)
		}
	}
	makeFIFO(f, filepath.Join(dir, "fifo"))
	inside["in"] = inside["logo-svg.svg"]
	spec := Spec{Name: "spec", Dir: dir}
	f.Fuzz(func(t *testing.T, file string) {
		opened, err := spec.OpenResource(file)
		if want, ok := inside[file]; (err == nil) != ok {
			t.Errorf("%q: %v, want %q", file, err, want)
		} else if ok {
			b := make([]byte, 1000)
			n, err := opened.Read(b)
			if string(b[:n]) != want || err != nil {
				t.Errorf("%q holds %q, want %q; %v", file, b[:n], want, err)
			}
			_ = opened.Close() // it was only read
		}
	})
}

func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "a ü ✓": "a ü ✓", "a\nb\t": `a\nb\t`, "\x1b[31m": `\x1b[31m`, "\xff": `\xff`,
		"a\u202eb": `a\u202eb`, "it's \"x\"\\": "it's \"x\"\\", "'\n": `'\n`, "\x7f\x00": `\x7f\x00`,
		"\ufffd": "\ufffd", "\u0085\u2028": `\u0085\u2028`,
	} {
		if got := Printable(text); got != want {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
	}
}
