package settings

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// from returns the sources for a command line and an environment.
func from(flags map[string][]string, env map[string]string) Sources {
	return Sources{
		Flags: func(name string) ([]string, bool) { v, ok := flags[name]; return v, ok },
		Getenv: func(name string) string {
			if name == "HOME" && env["HOME"] == "" {
				return "/home/u"
			}
			return env[name]
		},
	}
}

// yamlFile writes a config file.
func yamlFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ekg.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestLoad_Precedence: a flag precedes the environment, the file and the default. This holds for each shape of option,
// and each value has its place.
func TestLoad_Precedence(t *testing.T) {
	file := yamlFile(
		t,
		"# comment\nstart-wait: 3s\nallow-origin: [http://file-a, http://file-b]\nstop-kernels-on-exit: true\n",
	)
	env := map[string]string{
		"EKG_START_WAIT":           "2s",
		"EKG_ALLOW_ORIGIN":         "http://env-a, http://env-b",
		"EKG_STOP_KERNELS_ON_EXIT": "false",
	}
	flags := map[string][]string{
		"start-wait":           {"1s"},
		"allow-origin":         {"http://flag-a", "http://flag-b"},
		"stop-kernels-on-exit": {"true"},
	}
	with := func(more map[string][]string) map[string][]string {
		all := map[string][]string{"config": {file}}
		for k, v := range more {
			all[k] = v
		}
		return all
	}
	tests := []struct {
		name    string
		src     Sources
		wait    time.Duration
		origins []string
		stop    bool
		short   [3]string
	}{
		{"default", from(nil, nil), 5 * time.Second, nil, false, [3]string{"default", "default", "default"}},
		{
			"file",
			from(with(nil), nil),
			3 * time.Second,
			[]string{"http://file-a", "http://file-b"},
			true,
			[3]string{file + ":2", file + ":3", file + ":4"},
		},
		{
			"file named by the environment",
			from(nil, map[string]string{"EKG_CONFIG": file}),
			3 * time.Second,
			[]string{"http://file-a", "http://file-b"},
			true,
			[3]string{file + ":2", file + ":3", file + ":4"},
		},
		{"environment", from(with(nil), env), 2 * time.Second, []string{"http://env-a", "http://env-b"}, false,
			[3]string{"EKG_START_WAIT", "EKG_ALLOW_ORIGIN", "EKG_STOP_KERNELS_ON_EXIT"}},
		{
			"flag",
			from(with(flags), env),
			time.Second,
			[]string{"http://flag-a", "http://flag-b"},
			true,
			[3]string{"flag", "flag", "flag"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := Load(tt.src)
			if err != nil {
				t.Fatal(err)
			}
			if s.StartWait != tt.wait || !slices.Equal(s.AllowOrigins, tt.origins) || s.StopKernels != tt.stop {
				t.Errorf("got %v %v %t, want %v %v %t", s.StartWait, s.AllowOrigins, s.StopKernels, tt.wait, tt.origins, tt.stop)
			}
			got := [3]string{
				s.origins["start-wait"].short,
				s.origins["allow-origin"].short,
				s.origins["stop-kernels-on-exit"].short,
			}
			if got != tt.short {
				t.Errorf("comes from %q, want %q", got, tt.short)
			}
		})
	}
}

// TestLoad_EnterpriseGateway uses the variables that deployments of Enterprise Gateway set, and no others.
func TestLoad_EnterpriseGateway(t *testing.T) {
	s, err := Load(from(nil, map[string]string{
		"EG_IP": "0.0.0.0", "EG_PORT": "9999", "EG_BASE_URL": "/gw", "EG_AUTH_TOKEN": "secret", "EG_DEFAULT_KERNEL_NAME": "r",
		"EG_CLIENT_ENVS": "A,B", "EG_ENV_PROCESS_WHITELIST": "C", "EG_LOG_LEVEL": "10", "EG_ALLOW_ORIGIN": "",
	}))
	if err != nil {
		t.Fatal(err)
	}
	got := []any{
		s.Listen,
		s.BaseURL,
		s.Token,
		s.DefaultKernel,
		s.ClientEnv,
		s.InheritEnv,
		s.LogLevel.String(),
		s.AllowOrigins,
		s.origins["listen"].short,
	}
	want := []any{
		"0.0.0.0:9999",
		"/gw",
		"secret",
		"r",
		[]string{"A", "B"},
		[]string{"C"},
		"DEBUG",
		[]string(nil),
		"EG_IP, EG_PORT",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	for name, tt := range map[string]struct {
		env  map[string]string
		want string
	}{
		"ekg's own variable counts more": {map[string]string{"EKG_LISTEN": "127.0.0.1:1", "EG_PORT": "2"}, "127.0.0.1:1"},
		"only the port":                  {map[string]string{"EG_PORT": "2"}, "127.0.0.1:2"},
		"only the address":               {map[string]string{"EG_IP": "::1"}, "[::1]:8888"},
		"a service named eg":             {map[string]string{"EG_PORT": "tcp://10.0.0.1:80"}, "127.0.0.1:8888"},
	} {
		if s, err := Load(from(nil, tt.env)); err != nil || s.Listen != tt.want {
			t.Errorf("%s: got %v, %v, want %s", name, s, err, tt.want)
		}
	}
}

// TestLoad_Cull: the settings for culling accept Enterprise Gateway's variables and units, and ekg's own.
func TestLoad_Cull(t *testing.T) {
	always := api.Cull{Warning: 5 * time.Minute, KeepLimit: 24 * time.Hour, Interval: time.Minute}
	with := func(change func(*api.Cull)) api.Cull {
		c := always
		change(&c)
		return c
	}
	for _, tt := range []struct {
		name string
		src  Sources
		want api.Cull
	}{
		{"nothing", from(nil, nil), always},
		{"Enterprise Gateway's",
			from(nil, map[string]string{"EG_CULL_IDLE_TIMEOUT": "3600", "EG_CULL_INTERVAL": "60", "EG_CULL_CONNECTED": "False",
				"EG_CULL_BUSY": "True"}),
			with(func(c *api.Cull) { c.IdleTimeout, c.Unattended, c.Busy = time.Hour, true, true })},
		{"Enterprise Gateway's never", from(nil, map[string]string{"EG_CULL_IDLE_TIMEOUT": "-1"}), always},
		{"ekg's own count more",
			from(nil, map[string]string{"EG_CULL_IDLE_TIMEOUT": "3600", "EKG_CULL_IDLE_TIMEOUT": "2h30m",
				"EG_CULL_CONNECTED": "false", "EKG_CULL_CONNECTED": "true"}),
			with(func(c *api.Cull) { c.IdleTimeout = 150 * time.Minute })},
		{"flags", from(map[string][]string{"cull-busy-limit": {"8h"}, "cull-max-age": {"86400"}, "cull-warning": {"0"},
			"cull-keep-limit": {"0"}, "cull-cpu": {"0.5"}, "cull-gpu": {"0.05"},
			"cull-activity": {"comms", "rest"}, "cull-idle-timeout": {"1h"}, "cull-idle-max": {"4h"}}, nil),
			with(func(c *api.Cull) {
				*c = api.Cull{BusyLimit: 8 * time.Hour, MaxAge: 24 * time.Hour, CPU: 0.5, GPU: 0.05,
					Activity: []string{"comms", "rest"}, IdleTimeout: time.Hour, IdleMax: 4 * time.Hour, Interval: time.Minute}
			})},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := Load(tt.src)
			if err != nil {
				t.Fatal(err)
			}
			if got := s.Cull(); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
		})
	}
}

// TestLoad_Limits: the numbers of kernels can be set by Enterprise Gateway's variables or by ekg's own. In the former
// -1 means no limit.
func TestLoad_Limits(t *testing.T) {
	for name, tt := range map[string]struct {
		src       Sources
		all, each int
	}{
		"nothing": {from(nil, nil), 0, 0},
		"Enterprise Gateway's": {from(nil, map[string]string{"EG_MAX_KERNELS": "20", "EG_MAX_KERNELS_PER_USER": "3"}), 20,
			3},
		"no limit in its way": {from(nil, map[string]string{"EG_MAX_KERNELS": "20", "EG_MAX_KERNELS_PER_USER": "-1"}), 20,
			0},
		"ekg's own count more": {from(map[string][]string{"max-kernels": {"7"}},
			map[string]string{"EG_MAX_KERNELS": "20", "EG_MAX_KERNELS_PER_USER": "3", "EKG_MAX_KERNELS_PER_USER": "2"}), 7, 2},
		"no limit in ekg's way ": {from(map[string][]string{"max-kernels": {"0"}}, map[string]string{"EG_MAX_KERNELS": "20"}),
			0, 0},
	} {
		s, err := Load(tt.src)
		if err != nil {
			t.Fatal(err)
		}
		limits := s.KernelLimits(nil, nil)
		if limits.Kernels != tt.all || limits.PerUser != tt.each || limits.Set() != (tt.all+tt.each > 0) {
			t.Errorf("%s: %+v", name, limits)
		}
	}
}

// TestLoad_Refuses: an error names the place of the mistake, in each source.
func TestLoad_Refuses(t *testing.T) {
	flag := func(name string, texts ...string) Sources { return from(map[string][]string{name: texts}, nil) }
	tests := []struct {
		name string
		src  Sources
		want string
	}{
		{
			"environment",
			from(nil, map[string]string{"EKG_LOG_LIMIT": "much"}),
			`EKG_LOG_LIMIT: "much" is not a size like 64MiB, 1GiB or 1048576`,
		},
		{"listen", flag("listen", "8888"), `--listen: "8888" is not host:port or unix:/path`},
		{"port", flag("listen", "h:99999"), `--listen: "h:99999" has no port from 0 to 65535`},
		{
			"both of EG",
			from(nil, map[string]string{"EG_IP": "1.2.3.4", "EG_PORT": "x"}),
			`EG_IP, EG_PORT: "1.2.3.4:x" has no port from 0 to 65535`,
		},
		{"socket", flag("listen", "unix:rel"), `--listen: "unix:rel" has no absolute path`},
		{
			"long socket",
			flag("listen", "unix:/"+strings.Repeat("x", 107)),
			`--listen: "/` + strings.Repeat("x", 107) + `" is longer than the 107 bytes that a socket's path may have`,
		},
		{"launcher", flag("launcher", "yarn"), `--launcher: "yarn" is not local or kubernetes`},
		{"limit", flag("max-kernels", "many"), `--max-kernels: "many" is not a number from 0 on`},
		{
			"groups without users",
			flag("max-kernels-per-group", "3"),
			`--max-kernels-per-group: has no effect without --users-file, --oidc-issuer, --auth-token-review or --hub-api-url`,
		},
		{
			"GPUs of nobody",
			flag("max-gpus-per-user", "3"),
			`--max-gpus-per-user: has no effect without --launcher kubernetes`,
		},
		{"negative time", flag("start-wait", "-1s"), `--start-wait: "-1s" is negative`},
		{"empty token", flag("token", ""), `--token: is empty`},
		{"empty element", flag("kernelspec-dir", ""), `--kernelspec-dir: is empty`},
		{"no grace", flag("stop-grace", "0s"), `--stop-grace: must be more than 0`},
		{"no log", flag("log-limit", "0"), `--log-limit: must be more than 0`},
		{"log larger than all", flag("log-limit", "2GiB"), `--log-limit: 2GiB is more than --log-total, 1GiB`},
		{"variable name", flag("inherit-env", "A-B"), `--inherit-env: "A-B" is not the name of an environment variable`},
		{
			"origin",
			from(nil, map[string]string{"EG_ALLOW_ORIGIN": "*"}),
			`EG_ALLOW_ORIGIN: "*" is not an exact origin like https://host:port`,
		},
		{"host", flag("allow-host", "a:1"), `--allow-host: "a:1" is not a host name or address without a port`},
		{"base URL", flag("base-url", "/a?b"), `--base-url: "/a?b" is not a path of plain segments`},
		{"token with a space", flag("token", "a "), `--token: begins or ends with white space, which no client can send`},
		{"client variable", flag("client-env", "LD_PRELOAD="), `--client-env: clients may not set "LD_PRELOAD="`},
		{"half of TLS", flag("tls-key", "x"), `--tls-key: --tls-cert and --tls-key are only of use together`},
		{
			"no authentication, but a token",
			from(map[string][]string{"no-auth": {"true"}}, map[string]string{"EG_AUTH_TOKEN": "x"}),
			`EG_AUTH_TOKEN: contradicts --no-auth`,
		},
		{
			"two tokens",
			from(nil, map[string]string{"EKG_TOKEN": "x", "EKG_TOKEN_FILE": "y"}),
			`EKG_TOKEN: there is also EKG_TOKEN_FILE: give one of them`,
		},
		{"open to all", from(map[string][]string{"no-auth": {"true"}, "listen": {":8888"}}, nil),
			`--no-auth: other machines reach :8888, and anyone who reaches it could run code; --allow-unauthenticated-remote ` +
				`allows that`},
		{
			"a time in words",
			flag("cull-idle-timeout", "an hour"),
			`--cull-idle-timeout: "an hour" is neither a duration like 1h, 90m or 1h30m nor a number of seconds`,
		},
		{
			"a negative duration",
			from(nil, map[string]string{"EG_CULL_INTERVAL": "-1m"}),
			`EG_CULL_INTERVAL: "-1m" is negative`,
		},
		{
			"more seconds than there are",
			flag("cull-max-age", "9999999999999"),
			`--cull-max-age: "9999999999999" is more seconds than can be counted`,
		},
		{"an activity that is none", from(nil, map[string]string{"EKG_CULL_ACTIVITY": "comms, clicks"}),
			`EKG_CULL_ACTIVITY: "clicks" is not comms or completion or connections or debug or info or inspection or rest`},
		{"no number", flag("cull-cpu", "NaN"), `--cull-cpu: "NaN" is not a number from 0 on`},
		{
			"less than without a wish",
			from(map[string][]string{"cull-idle-max": {"30m"}}, map[string]string{"EG_CULL_IDLE_TIMEOUT": "3600"}),
			"--cull-idle-max: limits kernelspecs to an idle time of 30m0s, but --cull-idle-timeout gives other kernels 1h0m0s",
		},
		{
			"no config file",
			flag("config", "/nonexistent.yaml"),
			`--config: open /nonexistent.yaml: no such file or directory`,
		},
		{"nowhere to keep state", Sources{Flags: from(nil, nil).Flags, Getenv: func(string) string { return "" }},
			`--state-dir: neither $XDG_STATE_HOME nor $HOME is set to derive it from`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := Load(tt.src); err == nil || err.Error() != tt.want {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
		})
	}
	t.Run("open to all, and wanted so", func(t *testing.T) {
		_, err := Load(
			from(map[string][]string{"no-auth": {"true"}, "listen": {":8888"}, "allow-unauthenticated-remote": {"true"}}, nil),
		)
		if err != nil {
			t.Error(err)
		}
	})
	t.Run("a better token counts", func(t *testing.T) {
		s, err := Load(from(map[string][]string{"token-file": {"/f"}}, map[string]string{"EG_AUTH_TOKEN": "x"}))
		if err != nil || s.Token != "" || s.TokenFile != "/f" {
			t.Errorf("got %+v, %v", s, err)
		}
	})
}

func TestIsLocal(t *testing.T) {
	for listen, want := range map[string]bool{"127.0.0.1:1": true, "127.8.9.1:1": true, "[::1]:1": true,
		"localhost:1": true, "unix:/x": true,
		":1": false, "0.0.0.0:1": false, "[::]:1": false, "10.0.0.1:1": false, "myhost:1": false,
		"127.0.0.1.nip.io:1": false} {
		if got := IsLocal(listen); got != want {
			t.Errorf("%s: got %t, want %t", listen, got, want)
		}
	}
}

func TestConfigFile_Refuses(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"unknown key", "listen: 127.0.0.1:1\nlisten_: x\n", "%s:2: listen_: no such setting"},
		{"itself", "config: x\n", "%s:1: config: no such setting"},
		{"several", "a: 1\nb: 2\n", "%[1]s:1: a: no such setting\n%[1]s:2: b: no such setting"},
		{"twice", "token: a\n\ntoken: b\n", "%s:3: token: is given twice, first in line 1"},
		{"a list", "listen: [a]\n", "%s:1: listen: is not a single value"},
		{"a mapping", "allow-origin: {a: b}\n", "%s:1: allow-origin: is not a list"},
		{"a list of lists", "allow-origin: [[a]]\n", "%s:1: allow-origin: has no value"},
		{"nothing", "token:\n", "%s:1: token: has no value"},
		{"no YAML", "a: [\n", "%s: yaml: line 1: did not find expected node content"},
		{"no mapping", "- a\n", "%s:1: is not a mapping of settings"},
		{"two documents", "token: a\n---\ntoken: b\n", "%s: holds more than one document"},
		{"bad value", "# x\nstart-wait: 5\n", "%s:2: start-wait: \"5\" is not a duration like 5s, 1m30s or 500ms"},
		{"bad boolean", "no-auth: perhaps\n", "%s:1: no-auth: \"perhaps\" is not true or false"},
		{
			"gateway's own check",
			"allow-host: a/b\n",
			"%s:1: allow-host: \"a/b\" is not a host name or address without a port",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			file := yamlFile(t, tt.text)
			want := fmt.Sprintf(tt.want, file)
			if _, err := Load(from(map[string][]string{"config": {file}}, nil)); err == nil || err.Error() != want {
				t.Errorf("got  %v\nwant %s", err, want)
			}
		})
	}
	for _, text := range []string{"", "# nothing\n", "---\n"} {
		if _, err := Load(from(map[string][]string{"config": {yamlFile(t, text)}}, nil)); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
	t.Run("numbers and references as written", func(t *testing.T) {
		file := yamlFile(t, "token: 0123\nmax-body: 1048576\nallow-host: &h [a, b]\nclient-env: *h\n")
		s, err := Load(from(map[string][]string{"config": {file}}, nil))
		if err != nil || s.Token != "0123" || s.MaxBody != 1<<20 || !slices.Equal(s.ClientEnv, []string{"a", "b"}) {
			t.Errorf("got %+v, %v", s, err)
		}
	})
}

// TestPrintSettings_RoundTrip: `ekg config` prints a config file with the same meaning.
func TestPrintSettings_RoundTrip(t *testing.T) {
	flags := map[string][]string{
		"listen":         {"unix:/run/x y.sock"},
		"no-auth":        {"true"},
		"kernelspec-dir": {"/a, b", "/#c", "no"},
		"client-env":     {"TRUE", "null"},
		"start-wait": {
			"90s",
		},
		"log-limit":         {"1000"},
		"max-body":          {"1536KiB"},
		"default-kernel":    {"true"},
		"log-level":         {"WARNING"},
		"state-dir":         {"rel"},
		"cull-idle-timeout": {"90"},
		"cull-cpu":          {"0.25"},
		"cull-activity":     {"rest"},
		"cull-connected":    {"false"},
	}
	s, err := Load(from(flags, nil))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := Print(&out, s); err != nil {
		t.Fatal(err)
	}
	file := yamlFile(t, out.String())
	again, err := Load(from(map[string][]string{"config": {file}}, nil))
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	s.origins, again.origins, again.Config = nil, nil, ""
	if !reflect.DeepEqual(again, s) {
		t.Errorf("got  %+v\nwant %+v\n%s", again, s, out.String())
	}
}

func TestPrintSettings(t *testing.T) {
	s, err := Load(from(map[string][]string{"listen": {"127.0.0.1:0"}}, map[string]string{"EG_AUTH_TOKEN": "canary"}))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := Print(&out, s); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out.String(), "canary") {
		t.Error("the token is in it")
	}
	for name, source := range map[string]string{"listen: 127.0.0.1:0": "flag", `token: "********"`: "EG_AUTH_TOKEN",
		"log-limit: 64MiB": "default",
		"allow-origin: []": "default", "state-dir: /home/u/.local/state/ekg": "default"} {
		if line := fmt.Sprintf("%-40s # %s\n", name, source); !strings.Contains(out.String(), line) {
			t.Errorf("there is no line %q in\n%s", line, out.String())
		}
	}
}

func TestSize(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "17": 17, "5B": 5, "1KiB": 1024, "64MiB": 64 << 20, "2 GiB": 2 << 30,
		"3MB": 3e6, "1TiB": 1 << 40} {
		if got, err := parseSize(text); err != nil || got != want {
			t.Errorf("%s: got %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "MiB", "-1", "1.5GiB", "1 Gi", "9999999TiB", "0x10", "1_000"} {
		if got, err := parseSize(text); err == nil {
			t.Errorf("%q: got %d", text, got)
		}
	}
	for n, want := range map[int64]string{0: "0", 1000: "1000", 1024: "1KiB", 1536 << 10: "1536KiB", 1 << 30: "1GiB",
		1<<30 + 1: "1073741825"} {
		if got := formatSize(n); got != want {
			t.Errorf("%d: got %s, want %s", n, got, want)
		}
	}
}

// TestOptions: an operator finds each option in the help, can set it in three ways, and sees its real default.
func TestOptions(t *testing.T) {
	var names, variables []string
	for _, o := range Options() {
		if o.Usage == "" || o.value.set == nil || o.value.show == nil {
			t.Errorf("%s is incomplete", o.Name)
		}
		if want := "EKG_" + strings.ToUpper(strings.ReplaceAll(o.Name, "-", "_")); len(o.Env) == 0 || o.Env[0] != want {
			t.Errorf("%s: its variable is %v, not %s", o.Name, o.Env, want)
		}
		if o.def != "" {
			s := &Settings{}
			if err := o.value.set(s, []string{o.def}); err != nil {
				t.Errorf("%s: its own default: %v", o.Name, err)
			} else if got := o.value.show(s); !slices.Equal(got, []string{o.def}) {
				t.Errorf("%s: its default %q is shown as %q", o.Name, o.def, got)
			}
		}
		names = append(names, o.Name)
		variables = append(variables, o.Env...)
	}
	for _, all := range [][]string{names, variables} {
		slices.Sort(all)
		if n := len(all); len(slices.Compact(all)) != n {
			t.Errorf("some of these is there twice: %v", all)
		}
	}
}

func TestStrayVariables(t *testing.T) {
	got := StrayVariables(
		[]string{"PATH=/bin", "EKG_LISTEN=x", "EKG_LISTN=x", "EG_LIST_KERNELS=3", "EG_PORT=1", "EKG_KERNEL_ID=x",
			// Kubernetes sets these variables for a service named "ekg".
			"EKG_SERVICE_HOST=10.0.0.1", "EKG_SERVICE_PORT=8888", "EKG_SERVICE_PORT_HTTP=8888", "EKG_PORT=tcp://10.0.0.1:8888",
			"EKG_PORT_8888_TCP=tcp://10.0.0.1:8888", "EKG_PORT_8888_TCP_ADDR=10.0.0.1", "EG_PORT_RANGE=0..0"},
	)
	if want := []string{"EG_LIST_KERNELS", "EG_PORT_RANGE", "EKG_LISTN"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
