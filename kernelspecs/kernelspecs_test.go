package kernelspecs

import (
	"encoding/json"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// plain is a usable spec.
const plain = `{"argv": ["/bin/true", "{connection_file}"], "display_name": "Plain", "language": "none"}`

// write writes a file and creates the directories above it.
func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	mode := fs.FileMode(0o644)
	if strings.HasPrefix(text, "#!") {
		mode = 0o755
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// The Spec has all values of kernel.json, and Jupyter's defaults for absent ones.
func TestSpec_Read(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "full")
	write(t, filepath.Join(dir, "kernel.json"), `{
		"argv": ["prog", "{connection_file}"], "env": {"A": "1"}, "display_name": "Full", "language": "klingon",
		"interrupt_mode": "Message", "kernel_protocol_version": "5.4", `+
		`"metadata": {"debugger": true, "ekg": {"transport": "ipc"}}}`)
	got, _, problems := readSpec("full", dir, "/some/prefix")
	want := Spec{Name: "full", Dir: dir, Argv: []string{"prog", "{connection_file}"}, Env: map[string]string{"A": "1"},
		DisplayName: "Full", Language: "klingon", InterruptMode: "message", Prefix: "/some/prefix",
		Metadata:  json.RawMessage(`{"debugger": true, "ekg": {"transport": "ipc"}}`),
		resources: map[string]string{}, metadataLine: 3}
	if len(problems) != 0 || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v\nwant %+v", got, problems, want)
	}

	write(t, filepath.Join(dir, "kernel.json"), `{"argv": ["prog"]}`)
	got, _, problems = readSpec("full", dir, "")
	want = Spec{Name: "full", Dir: dir, Argv: []string{"prog"}, Env: map[string]string{}, DisplayName: "full",
		InterruptMode: "signal", Metadata: json.RawMessage(`{}`), resources: map[string]string{}}
	if len(problems) != 0 || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v\nwant %+v", got, problems, want)
	}
}

// All problems of a kernel.json are reported at once, each with its key and line.
func TestSpec_ReadBroken(t *testing.T) {
	tests := []struct {
		name, text string
		want       []string // line: key: message
	}{
		{"bad JSON", "{\n \"argv\": [\"a\",],\n}",
			[]string{`2: not valid JSON: invalid character ']' looking for beginning of value`}},
		{"cut off", "{\n\n\"argv\"", []string{`3: not valid JSON: unexpected end of JSON input`}},
		{"two documents", "{}\n{}", []string{`2: not valid JSON: invalid character '{' after top-level value`}},
		{"an array", `[]`, []string{`1: is an array, not an object`}},
		{"no argv", `{"display_name": "X"}`, []string{`1: argv: is missing`}},
		{"argv is text", "{\n\"argv\": \"python\"}", []string{`2: argv: is a string, not an array`}},
		{"argv is empty", `{"argv": []}`, []string{`1: argv: is empty`}},
		{"argv of other things", "{\"argv\": [\"\",\n1,\n[\"x\"],\nnull, \"a\\u0000b\"]}", []string{
			`1: argv[0]: is empty: it names the program`, `2: argv[1]: is a number, not a string`,
			`3: argv[2]: is an array, not a string`, `4: argv[3]: is null, not a string`,
			`4: argv[4]: contains a NUL, which no argument can hold`}},
		{"env is a list", `{"argv": ["x"], "env": []}`, []string{`1: env: is an array, not an object`}},
		{"env of numbers", "{\"argv\": [\"x\"], \"env\": {\n\"A\": 1, \"B=\": \"\"}}", []string{
			`2: env.A: is a number, not a string`, `2: env: "B=" cannot be the name of an environment variable`}},
		{"several at once", "{\"argv\": [\"x\"],\n\"interrupt_mode\": \"sms\",\n\"metadata\": 3,\n\"display_name\": true}",
			[]string{
				`4: display_name: is a boolean, not a string`, `2: interrupt_mode: is "sms", not "signal" or "message"`,
				`3: metadata: is a number, not an object`}},
		{"our own metadata", "{\"argv\": [\"x\"], \"metadata\": {\"ekg\": {\n\"transport\": \"udp\",\n\"transprot\": " +
			"\"tcp\"}}}", []string{
			`2: metadata.ekg.transport: is not "ipc" or "tcp"`, `3: metadata.ekg.transprot: is not a known key; valid keys: ` +
				strings.Join(slices.Sorted(slices.Values(append([]string{"cull", "flavor", "launcher", "limits",
					"park", "profiles", "transport", "warm"}, PodKeys...))), ", ")}},
		{"warm kernels", "{\"argv\": [\"x\"], \"metadata\": {\"ekg\": {\n\"warm\": 101}}}",
			[]string{`2: metadata.ekg.warm: is not a number from 0 to 100`}},
		{"parking", "{\"argv\": [\"x\"], \"metadata\": {\"ekg\": {\n\"park\": \"no\"}}}",
			[]string{`2: metadata.ekg.park: is a string, not a boolean`}},
		{"placeholders", "{\"argv\": [\"x\"], \"metadata\": {\"ekg\": {\n\"placeholders\": 1}}}",
			[]string{`2: metadata.ekg.placeholders: was removed; use the component placeholders of deploy/kubernetes, or ` +
				`the chart's placeholders`}},
		{"when kernels are ended",
			"{\"argv\": [\"x\"], \"metadata\": {\"ekg\": {\"cull\": {\n\"idleTimeout\": \"2 hours\",\n\"maxAge\": \"-1h\", " +
				"\"busyLimit\": 3,\n\"idle\": \"2h\", \"warning\": null}}}}", []string{
				`2: metadata.ekg.cull.idleTimeout: "2 hours" is not a duration like "2h", "30m" or "0"`,
				`3: metadata.ekg.cull.maxAge: "-1h" is not a duration like "2h", "30m" or "0"`,
				`3: metadata.ekg.cull.busyLimit: 3 is not a duration like "2h", "30m" or "0"`,
				`4: metadata.ekg.cull.idle: cannot be set; valid keys: busyLimit, cpu, idleTimeout, maxAge, warning`,
				`4: metadata.ekg.cull.warning: is null; leave the key out instead`}},
		{"how many kernels", "{\"argv\": [\"x\"], \"metadata\": {\"ekg\": {\"limits\": {\n\"maxKernels\": " +
			"0,\n\"maxGpus\": 1}}}}", []string{
			`2: metadata.ekg.limits.maxKernels: 0 is not a number from 1 to 1000000`,
			`3: metadata.ekg.limits.maxGpus: cannot be set; valid keys: maxKernels`}},
		{"how many kernels, in a word", `{"argv": ["x"], "metadata": {"ekg": {"limits": {"maxKernels": "3"}}}}`,
			[]string{`1: metadata.ekg.limits.maxKernels: "3" is not a number from 1 to 1000000`}},
		{"less than no processor", "{\"argv\": [\"x\"], \"metadata\": {\"ekg\": {\"cull\": {\n\"cpu\": -1}}}}",
			[]string{`2: metadata.ekg.cull.cpu: is not a number from 0 on`}},
		{"when kernels are ended, in a word", `{"argv": ["x"], "metadata": {"ekg": {"cull": "never"}}}`,
			[]string{`1: metadata.ekg.cull: is a string, not an object`}},
		{"our metadata is text", `{"argv": ["x"], "metadata": {"ekg": "x"}}`,
			[]string{`1: metadata.ekg: is a string, not an object`}},
		{"nested too deep", `{"argv": ["x"], "metadata": {"a": ` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}}`,
			[]string{`1: nested more than 100 levels deep`}},
		{"too large", `{"argv": ["` + strings.Repeat("x", maxFileSize) + `"]}`, []string{`larger than 1048576 bytes`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "broken")
			file := filepath.Join(dir, "kernel.json")
			write(t, file, tt.text)
			_, _, problems := readSpec("broken", dir, "")
			var got []string
			for _, p := range problems {
				got = append(got, strings.TrimLeft(strings.TrimPrefix(p.String(), file), ": "))
				if p.Spec != "broken" {
					t.Errorf("problem of spec %q", p.Spec)
				}
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
		})
	}
	t.Run("a fifo does not block", func(t *testing.T) {
		dir := t.TempDir()
		makeFIFO(t, filepath.Join(dir, "kernel.json"))
		if _, _, problems := readSpec("x", dir, ""); len(problems) != 1 || problems[0].Message != "not a regular file" {
			t.Errorf("got %v", problems)
		}
	})
}

// The expected values are those of jupyter_client 8's format_kernel_cmd.
func TestSpec_Command(t *testing.T) {
	prefix := t.TempDir()
	write(t, filepath.Join(prefix, "bin/python3"), "#!/bin/sh\n")
	write(t, filepath.Join(prefix, "bin/python3.11"), "#!/bin/sh\n")
	python3 := filepath.Join(prefix, "bin/python3")
	tests := []struct {
		name, prefix string
		argv         []string
		vars         map[string]string
		want         []string
	}{
		{"placeholders", prefix, []string{"x", "-f={connection_file}", "{resource_dir}/a", "{prefix}{prefix}"},
			map[string]string{"connection_file": "/c.json"}, []string{"x", "-f=/c.json", "/res/a", prefix + prefix}},
		{"unknown ones stay", "", []string{"R", "--args", "{connection_file}", "{ x }", "{nope}", "{}", "{prefix}"},
			nil, []string{"R", "--args", "{connection_file}", "{ x }", "{nope}", "{}", "{prefix}"}},
		{"once only", "", []string{"x", "{a}"}, map[string]string{"a": "{b}", "b": "c"}, []string{"x", "{b}"}},
		{"python3 of the prefix", prefix, []string{"python3", "python3"}, nil, []string{python3, "python3"}},
		{"python where only python3 is", prefix, []string{"python"}, nil, []string{python3}},
		{"minor version", prefix, []string{"python3.11"}, nil, []string{python3 + ".11"}},
		{"another minor version", prefix, []string{"python3.12"}, nil, []string{"python3.12"}},
		{"a path is left alone", prefix, []string{"/usr/bin/python3"}, nil, []string{"/usr/bin/python3"}},
		{"another program", prefix, []string{"python3-config"}, nil, []string{"python3-config"}},
		{"no such prefix", "/nonexistent", []string{"python3"}, nil, []string{"python3"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := Spec{Dir: "/res", Prefix: tt.prefix, Argv: tt.argv}
			before := slices.Clone(tt.argv)
			if got := s.Command(tt.vars); !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			if !slices.Equal(s.Argv, before) {
				t.Errorf("Argv was changed to %q", s.Argv)
			}
		})
	}
}

// A spec in a Python environment uses the python of that environment, and other specs the default's, independent of
// PATH.
func TestSpec_Prefix(t *testing.T) {
	env := t.TempDir()
	write(t, filepath.Join(env, "bin/python3"), "#!/bin/sh\n")
	kernel := filepath.Join(env, "share/jupyter/kernels/k")
	for dir, want := range map[string]string{
		kernel:                                   env,
		"/home/u/.local/share/jupyter/kernels/k": "/default", // no python there
		"/srv/kernels/k":                         "/default",
	} {
		if got := prefixOf(dir, "/default"); got != want {
			t.Errorf("%s: got %s, want %s", dir, got, want)
		}
	}
}

// The expected values are those of Python's string.Template.safe_substitute.
func TestSpec_ExpandEnv(t *testing.T) {
	s := Spec{Env: map[string]string{
		"both": "$A and ${A}", "path": "/x:${PATH}", "dollar": "$$A ${A}$$", "unknown": "$NOPE ${NOPE} ${A:-x} $1 $",
		"once": "${B}", "longest": "$AB", "braces": "{A} }",
	}}
	got := s.ExpandEnv(map[string]string{"A": "a", "B": "${A}", "PATH": "/bin"})
	want := map[string]string{
		"both": "a and a", "path": "/x:/bin", "dollar": "$A a$", "unknown": "$NOPE ${NOPE} ${A:-x} $1 $",
		"once": "${A}", "longest": "$AB", "braces": "{A} }",
	}
	if !maps.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestSpec_Transport(t *testing.T) {
	tests := []struct {
		name, metadata string
		argv           []string
		want, wantErr  string
	}{
		{"ipykernel", `{}`, []string{"python3", "-m", "ipykernel_launcher", "-f", "x"}, "ipc", ""},
		{"ipykernel as a module", ``, []string{"python3", "-m", "ipykernel", "-f", "x"}, "ipc", ""},
		{"ipykernel that declares encryption", `{"debugger": true, "supported_encryption": ["curve"]}`,
			[]string{"python", "-m", "ipykernel_launcher", "-f", "x"}, "ipc", ""},
		{"IRkernel", ``, []string{"R", "--slave", "-e", "IRkernel::main()", "--args", "x"}, "ipc", ""},
		{"xeus-python", ``, []string{"python3", "-m", "xpython_launcher", "-f", "x"}, "tcp", ""},
		{"another kernel", `{}`, []string{"ark", "--ipykernel_launcher=no"}, "tcp", ""},
		{"another in the spec", `{"ekg": {"transport": "tcp"}}`, []string{"python3", "-m", "ipykernel_launcher"}, "tcp", ""},
		{"set in the spec", `{"ekg": {"transport": "ipc"}}`, []string{"ark"}, "ipc", ""},
		{"not set", `{"ekg": {}}`, []string{"ark"}, "tcp", ""},
		{"invalid", `{"ekg": {"transport": 3}}`, []string{"ark"}, "",
			`kernelspec x: metadata.ekg.transport: is not "ipc" or "tcp"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := Spec{Name: "x", Argv: tt.argv, Metadata: json.RawMessage(tt.metadata)}
			got, err := s.Transport()
			gotErr := ""
			if err != nil {
				gotErr = err.Error()
			}
			if got != tt.want || gotErr != tt.wantErr {
				t.Errorf("got %q, %q, want %q, %q", got, gotErr, tt.want, tt.wantErr)
			}
		})
	}
}

func TestSpec_Resources(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "k")
	for _, f := range []string{
		"kernel.json", "kernel.js", "kernel.css", "logo-64x64.png", "logo-svg.svg", "logo.png", "secret",
		"sub/file.js",
	} {
		write(t, filepath.Join(dir, f), plain+f)
	}
	write(t, filepath.Join(dir, "kernel.json"), plain)
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "logo-link.png")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("logo.png", filepath.Join(dir, "logo-inside.png")); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(filepath.Dir(dir), "k-evil/file"), "stolen")
	makeFIFO(t, filepath.Join(dir, "fifo"))
	s, _, problems := readSpec("k", dir, "")
	if len(problems) != 0 {
		t.Fatal(problems)
	}
	want := map[string]string{"kernel.js": "kernel.js", "kernel.css": "kernel.css", "logo-64x64": "logo-64x64.png",
		"logo-svg": "logo-svg.svg", "logo-link": "logo-link.png", "logo-inside": "logo-inside.png"}
	if got := s.Resources(); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := (Spec{}).Resources(); got == nil {
		t.Error("a spec without resources has nil")
	}

	for file, want := range map[string]string{
		"kernel.js": plain + "kernel.js", "sub/file.js": plain + "sub/file.js",
		"logo-inside.png": plain + "logo.png",
	} {
		f, err := s.OpenResource(file)
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		got, err := io.ReadAll(f)
		if err != nil || string(got) != want {
			t.Errorf("%s: got %q, %v", file, got, err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, file := range []string{
		"", ".", "..", "sub", "fifo", "nope", "../k-evil/file", "sub/../../k-evil/file", "/etc/passwd",
		"logo-link.png", "sub/", "kernel.js/", "a\x00b", strings.Repeat("x", 5000),
	} {
		f, err := s.OpenResource(file)
		if err == nil {
			t.Errorf("%q was opened", file)
			_ = f.Close()
		} else if !os.IsNotExist(err) {
			t.Errorf("%q: got %v, want not exist", file, err)
		}
	}
}

// No regular expression is compiled when a program starts, since the supervisor imports the package.
func TestLazily(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if regexp.MustCompile(`(?m)^(var |\t)\w+ += regexp\.`).Match(text) {
			t.Errorf("%s compiles a regular expression at its start; see lazily", file)
		}
	}
}
