package main

import (
	"bytes"
	"context"
	"go/parser"
	"go/token"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/settings"
)

// init turns the test binary into the program if a test starts it as such. The process then has the same build as the
// tests, including the race detector.
func init() {
	if os.Getenv("RUN_AS_EKG") == "1" {
		main()
	}
}

// clearEnvironment hides the variables of the user that runs the tests, and sets another home.
func clearEnvironment(t *testing.T) {
	t.Helper()
	for _, e := range os.Environ() {
		if name, _, _ := strings.Cut(e, "="); strings.HasPrefix(name, "EKG_") ||
			strings.HasPrefix(name, "JUPYTER_GATEWAY_") ||
			strings.HasPrefix(name, "EG_") ||
			strings.HasPrefix(name, "XDG_") {
			t.Setenv(name, "")
		}
	}
	t.Setenv("HOME", "/home/u")
}

// ekg runs a command line in this process.
func ekg(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errOut bytes.Buffer
	code = program().Run(context.Background(), append([]string{"ekg"}, args...), &out, &errOut)
	return code, out.String(), errOut.String()
}

func TestRun_ExitStatus(t *testing.T) {
	clearEnvironment(t)
	tests := []struct {
		name   string
		args   []string
		code   int
		stderr string
	}{
		{"version", []string{"version"}, 0, ""},
		{"version as a flag", []string{"--version"}, 0, ""},
		{"version and a command", []string{"--version", "serve"}, 2, "ekg: --version: unexpected argument \"serve\"\n"},
		{"help", []string{"--help"}, 0, ""},
		{"help of a command", []string{"serve", "--help"}, 0, ""},
		{"unknown command", []string{"server"}, 2, "ekg: no command \"server\"; see ekg --help\n"},
		{"unknown subcommand", []string{"kernelspec", "lst"}, 2, "ekg: no command \"lst\"; see ekg --help\n"},
		{"unknown flag", []string{"serve", "--lisen", "x"}, 2, "ekg: flag provided but not defined: -lisen\n"},
		{"import of settings", []string{"config", "import", "--chart", "f.py"}, 2,
			"ekg: ekg config import was removed: use ekg-migrate config of the Python package ekg-migrate\n"},
		{"conversion", []string{"kernelspec", "convert", "--dry-run", "dir"}, 2, "ekg: ekg kernelspec convert was " +
			"removed: use ekg-migrate kernelspec of the Python package ekg-migrate\n"},
		{"argument too many", []string{"config", "x"}, 2, "ekg: ekg config: unexpected argument \"x\"\n"},
		{
			"argument missing",
			[]string{"kernelspec", "check"},
			2,
			"ekg: ekg kernelspec check: an argument is missing; see ekg kernelspec check --help\n",
		},
		{
			"bad boolean",
			[]string{"config", "--no-auth=perhaps"},
			2,
			"ekg: --no-auth: \"perhaps\" is not true, false or remote\n",
		},
		{"several bad values", []string{"config", "--start-wait", "5", "--log-level", "loud"}, 2,
			"ekg: --start-wait: \"5\" is not a duration like 5s, 1m30s or 500ms\nekg: --log-level: \"loud\" is not debug, " +
				"info, warn or error\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			code, stdout, stderr := ekg(t, tt.args...)
			if code != tt.code || stderr != tt.stderr {
				t.Errorf("got %d %q, want %d %q", code, stderr, tt.code, tt.stderr)
			}
			if tt.code == 0 && stdout == "" {
				t.Error("nothing was printed")
			}
		})
	}
}

func TestKernelspec(t *testing.T) {
	clearEnvironment(t)
	dir := t.TempDir()
	for name, text := range map[string]string{
		"good": `{"argv": ["/bin/true", "{connection_file}"], "display_name": "Good one", "language": "none"}`,
		"bad":  "{\n\"argv\": 3}",
	} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "kernel.json"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("list", func(t *testing.T) {
		code, stdout, stderr := ekg(t, "kernelspec", "list", "--kernelspec-dir", dir)
		if code != 0 || !strings.HasPrefix(stdout, "NAME") || !strings.Contains(stdout, "Good one") ||
			strings.Contains(stdout, dir+"/bad") {
			t.Errorf("got %d:\n%s", code, stdout)
		}
		if want := "ekg: " + dir + "/bad/kernel.json:2: argv: is a number, not an array\n"; !strings.Contains(stderr, want) {
			t.Errorf("got %q, want %q", stderr, want)
		}
	})
	t.Run("list of the allowed ones", func(t *testing.T) {
		code, stdout, stderr := ekg(t, "kernelspec", "list", "--kernelspec-dir", dir, "--allowed-kernelspec", "other")
		const unknown = "ekg: the kernelspec \"other\" of --allowed-kernelspec does not exist\n"
		if code != 0 || strings.Contains(stdout, "Good one") || stderr != unknown {
			t.Errorf("got %d:\n%s%s", code, stdout, stderr)
		}
		t.Setenv("EG_ALLOWED_KERNELS", `["Good"]`)
		if code, stdout, stderr = ekg(t, "kernelspec", "list", "--kernelspec-dir", dir); code != 0 || stderr != "" ||
			!strings.Contains(stdout, "Good one") || strings.Count(stdout, "\n") != 2 {
			t.Errorf("got %d:\n%s%s", code, stdout, stderr)
		}
	})
	t.Run("warnings", func(t *testing.T) {
		other := t.TempDir()
		file := filepath.Join(other, "eg", "kernel.json")
		if err := os.Mkdir(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(`{"argv": ["/bin/true", "{connection_file}"], "display_name": "x",
"language": "x", "metadata": {"process_proxy": {"config": {"port_range": "0..0"}}}}`), 0o644); err != nil {
			t.Fatal(err)
		}
		want := file + ":2: warning: metadata.process_proxy.config.port_range: is ignored: "
		code, stdout, stderr := ekg(t, "kernelspec", "list", "--kernelspec-dir", other)
		if code != 0 || !strings.Contains(stdout, "eg  ") || !strings.HasPrefix(stderr, "ekg: "+want) {
			t.Errorf("list: got %d %q %q", code, stdout, stderr)
		}
		code, stdout, _ = ekg(t, "kernelspec", "check", other)
		if code != 0 || !strings.HasPrefix(stdout, want) {
			t.Errorf("check: got %d %q", code, stdout)
		}
	})
	t.Run("check", func(t *testing.T) {
		code, stdout, stderr := ekg(t, "kernelspec", "check", filepath.Join(dir, "good"))
		if code != 0 || stdout != dir+"/good: nothing wrong\n" || stderr != "" {
			t.Errorf("good: got %d %q %q", code, stdout, stderr)
		}
		code, stdout, stderr = ekg(t, "kernelspec", "check", dir)
		if code != 1 || !strings.Contains(stdout, "/bad/kernel.json:2: argv: is a number, not an array\n") ||
			!strings.HasSuffix(stderr, " problems\n") {
			t.Errorf("bad: got %d %q %q", code, stdout, stderr)
		}
	})
	t.Run("check in JSON", func(t *testing.T) {
		code, stdout, stderr := ekg(t, "kernelspec", "check", "-o", "json", filepath.Join(dir, "good"))
		if code != 0 || stdout != "[]\n" || stderr != "" {
			t.Errorf("good: got %d %q %q", code, stdout, stderr)
		}
		code, stdout, _ = ekg(t, "kernelspec", "check", "-o", "json", filepath.Join(dir, "bad"))
		want := `{"file":"` + dir + `/bad/kernel.json","line":2,"key":"argv","message":"is a number, not an array","warning":false}`
		if code != 1 || !strings.Contains(stdout, want) {
			t.Errorf("bad: got %d %q, want %s", code, stdout, want)
		}
		if code, _, stderr = ekg(t, "kernelspec", "check", "-o", "yaml", dir); code != 2 ||
			stderr != "ekg: --output \"yaml\" is not json\n" {
			t.Errorf("another format: got %d %q", code, stderr)
		}
	})
}

// TestKernelspec_Render: render prints the pod that a client would get, or the reason for a rejection.
func TestKernelspec_Render(t *testing.T) {
	clearEnvironment(t)
	dir := t.TempDir()
	for name, text := range map[string]string{
		"gpu": `{"argv": ["prog", "{connection_file}"], "display_name": "GPU", "language": "none", "metadata": ` +
			`{"ekg": {"image": "registry.example/gpu"}}}`,
		"own": `{"argv": ["prog", "{connection_file}"], "display_name": "x", "language": "x", "metadata": ` +
			`{"ekg": {"image": "x", "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "v-{owner}"}}]}}}`,
		"unsound": "{\"argv\": [\"prog\", \"{connection_file}\"], \"display_name\": \"x\", \"language\": \"x\", " +
			"\"metadata\": {\"ekg\": {\"image\": \"x\",\n\"securityContext\": {\"privileged\": true}}}}",
	} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "kernel.json"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	policy := filepath.Join(dir, "policy.yaml")
	if err := os.WriteFile(policy, []byte("clients:\n  allow: []\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	flavored, flavors := t.TempDir(), filepath.Join(dir, "flavors.yaml")
	const both = "flavors: [{name: t4, gpu: {count: 2}}, {name: cpu, none: true}]\n"
	if err := os.WriteFile(flavors, []byte(both), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, ekg := range map[string]string{
		"with": `{"image": "x", "flavor": "t4"}`, "without": `{"image": "x", "flavor": "t5"}`,
	} {
		text := "{\"argv\": [\"prog\", \"{connection_file}\"], \"display_name\": \"x\", \"language\": \"x\",\n" +
			`"metadata": {"ekg": ` + ekg + "}}"
		if err := os.Mkdir(filepath.Join(flavored, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(flavored, name, "kernel.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("with flavors", func(t *testing.T) {
		for _, tt := range []struct {
			name, args     string
			code           int
			stdout, stderr string // contained
		}{
			{"check", "check", 1, flavored + `/without/kernel.json:2: metadata.ekg.flavor: "t5" is not in the file of ` +
				"flavors, which has: cpu, t4\n", "ekg: 1 problem\n"},
			{"check of a good one", "check with", 0, "nothing wrong", ""},
			{"render", "render with", 0, `nvidia.com/gpu: "2"`, ""},
			{"render another", "render with --env KERNEL_FLAVOR=cpu", 0, "/flavor: cpu\n", ""},
			{"render an unknown one", "render without", 1, "", `ekg: the flavor "t5" is not in ` + flavors},
		} {
			args := strings.Fields(tt.args)
			if args[0] == "check" {
				args = append(args[:1], filepath.Join(append([]string{flavored}, args[1:]...)...))
			} else {
				args = append(args, "--kernelspec-dir", flavored)
			}
			code, stdout, stderr := ekg(t, append(append([]string{"kernelspec"}, args...), "--flavors", flavors)...)
			if code != tt.code || !strings.Contains(stdout, tt.stdout) || !strings.Contains(stderr, tt.stderr) ||
				(stderr == "") != (tt.stderr == "") {
				t.Errorf("%s: got %d %q %q", tt.name, code, stdout, stderr)
			}
		}
		for args, want := range map[string]string{
			"check " + flavored:                             "",
			"check " + flavored + " --flavors /nonexistent": "ekg: --flavors: stat /nonexistent: no such file",

			"render with --kernelspec-dir " + flavored + " --flavors " + policy: "ekg: --flavors: " + policy + ":1: ",
		} {
			code, _, stderr := ekg(t, append([]string{"kernelspec"}, strings.Fields(args)...)...)
			if code != map[bool]int{true: 0, false: 2}[want == ""] || !strings.Contains(stderr, want) {
				t.Errorf("%s: got %d %q", args, code, stderr)
			}
		}
	})
	t.Run("pod and secret", func(t *testing.T) {
		code, stdout, stderr := ekg(t, "kernelspec", "render", "gpu", "--kernelspec-dir", dir,
			"--env", "KERNEL_GPUS=1", "--env", "KERNEL_A=b=$(c),d",
			"--supervisor-image", "registry.example/ekg", "--kube-namespace", "kernels")
		for _, want := range []string{
			"kind: Pod\n", "\n---\n", "kind: Secret\n", "image: registry.example/gpu\n",
			"image: registry.example/ekg\n", `nvidia.com/gpu: "1"`, "value: b=$$(c),d\n", "namespace: kernels\n",
			"token: <redacted>\n",
		} {
			if !strings.Contains(stdout, want) {
				t.Errorf("%q is not in it", want)
			}
		}
		if code != 0 || stderr != "" {
			t.Errorf("got %d %q:\n%s", code, stderr, stdout)
		}
	})
	t.Run("of a user", func(t *testing.T) {
		code, stdout, stderr := ekg(t, "kernelspec", "render", "own", "--kernelspec-dir", dir, "--user", "ann@x")
		for _, want := range []string{"claimName: v-ann-40x\n", "/owner: ann@x\n",
			"name: KERNEL_USERNAME\n      value: ann@x\n"} {
			if !strings.Contains(stdout, want) {
				t.Errorf("%q is not in it", want)
			}
		}
		if code != 0 || stderr != "" {
			t.Errorf("got %d %q:\n%s", code, stderr, stdout)
		}
	})
	for _, tt := range []struct {
		name   string
		args   []string
		code   int
		stderr string
	}{
		{"no user", []string{"own"}, 1, "ekg: kernelspec own: metadata.ekg.volumes[0].persistentVolumeClaim.claimName: " +
			"{owner} stands for the name of the kernel's owner, and the gateway has no users\n"},
		{"no name of a user", []string{"own", "--user", " "}, 2, "ekg: --user: the name begins or ends with white space\n"},
		{"no launch timeout", []string{"gpu", "--env", "KERNEL_LAUNCH_TIMEOUT=NaN"}, 1,
			"ekg: --env: KERNEL_LAUNCH_TIMEOUT is not a number of seconds up to 86400\n"},
		{"refused", []string{"gpu", "--env", "KERNEL_UID=0"}, 1,
			"ekg: KERNEL_UID: 0 is not allowed; allowed: 1-2147483647\n"},
		{"refused by a policy", []string{"gpu", "--env", "KERNEL_UID=7", "--kube-policy", policy}, 1,
			"ekg: KERNEL_UID: the policy does not let clients set this (\"7\"); of the variables that change a pod it " +
				"allows: nothing\n"},
		{"no such kernelspec", []string{"nope"}, 1, "ekg: no kernelspec nope\n"},
		{"unsound", []string{"unsound"}, 1,
			"ekg: kernelspec unsound: metadata.ekg.securityContext.privileged: a kernel cannot be privileged\n"},
		{"no variable", []string{"gpu", "--env", "A B=c"}, 2, "ekg: --env: \"A B=c\" is not NAME=VALUE\n"},
		{"no policy", []string{"gpu", "--kube-policy", "/nonexistent"}, 2,
			"ekg: --kube-policy: open /nonexistent: no such file or directory\n"},
		{"no name", nil, 2, "ekg: ekg kernelspec render: an argument is missing; see ekg kernelspec render --help\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, stdout, stderr := ekg(t, append([]string{"kernelspec", "render", "--kernelspec-dir", dir}, tt.args...)...)
			if code != tt.code || stderr != tt.stderr || stdout != "" {
				t.Errorf("got %d %q %q, want %d %q", code, stdout, stderr, tt.code, tt.stderr)
			}
		})
	}
	t.Run("check says where", func(t *testing.T) {
		code, stdout, _ := ekg(t, "kernelspec", "check", dir)
		want := dir + "/unsound/kernel.json:2: metadata.ekg.securityContext.privileged: a kernel cannot be privileged\n"
		if code != 1 || stdout != want {
			t.Errorf("got %d %q, want %q", code, stdout, want)
		}
	})
}

// sourcesOf returns the sources of a command line and an environment.
func sourcesOf(flags map[string][]string, env map[string]string) settings.Sources {
	return settings.Sources{
		Flags: func(name string) ([]string, bool) { v, ok := flags[name]; return v, ok },
		Getenv: func(name string) string {
			if name == "HOME" && env["HOME"] == "" {
				return "/home/u"
			}
			return env[name]
		},
	}
}

// The comment of package main lists all commands: those with subcommands name each of them.
func TestMain_CommentListsCommands(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "main.go", nil, parser.ParseComments|parser.PackageClauseOnly)
	if err != nil {
		t.Fatal(err)
	}
	comment := file.Doc.Text()
	var check func(before string, commands []*cli.Command)
	check = func(before string, commands []*cli.Command) {
		for _, c := range commands {
			line := regexp.MustCompile(`(?m)^\t` + before + c.Name + `( .*)?$`)
			parent := regexp.MustCompile(`(?m)^\t` + strings.TrimSuffix(before, " ") + ` .*subcommands: (.*, )?` + c.Name + `(,|$)`)
			if !c.Hidden && !line.MatchString(comment) && !parent.MatchString(comment) {
				t.Errorf("the comment of main.go does not list %s%s", before, c.Name)
			}
			check(before+c.Name+" ", c.Subcommands)
		}
	}
	check("ekg ", program().App(io.Discard, io.Discard).Commands)
}

// TestServe_Help: --help shows the 25 settings that people use first. --help-all shows all of them, in the order and
// under the headings of docs/configuration.md.
func TestServe_Help(t *testing.T) {
	doc, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	_, tables, _ := strings.Cut(string(doc), "\n## All settings\n")
	var headings, names []string
	for _, m := range regexp.MustCompile("(?m)^(?:### (.+)|\\| `--([a-z-]+)` .*)$").FindAllStringSubmatch(tables, -1) {
		if m[1] != "" {
			headings = append(headings, strings.ToUpper(m[1])+":")
		} else {
			names = append(names, m[2])
		}
	}
	shown := func(help string) (names []string) {
		for _, m := range regexp.MustCompile(`(?m)^   --([a-z-]+)`).FindAllStringSubmatch(help, -1) {
			if m[1] != "help" && m[1] != "help-all" {
				names = append(names, m[1])
			}
		}
		return names
	}
	code, all, stderr := ekg(t, "serve", "--help-all")
	if got := shown(all); code != 0 || stderr != "" || len(names) < 60 || !slices.Equal(got, names) {
		t.Errorf("--help-all: %d %q, it shows %q, want %q", code, stderr, got, names)
	}
	if got := regexp.MustCompile(`(?m)^[A-Z].*:$`).FindAllString(all, -1); !slices.Equal(got, headings) {
		t.Errorf("--help-all has the headings %q, want %q", got, headings)
	}
	code, first, _ := ekg(t, "serve", "--help")
	got := shown(first)
	if code != 0 || len(got) != 25 || slices.ContainsFunc(got, func(n string) bool { return !slices.Contains(names, n) }) {
		t.Errorf("--help: %d, it shows %d settings: %q", code, len(got), got)
	}
}
