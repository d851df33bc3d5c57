package settings

import (
	"strings"
	"testing"
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

// TestLoad_Refuses: an error names the place of the mistake, in each source.
func TestLoad_Refuses(t *testing.T) {
	flag := func(name string, texts ...string) Sources { return from(map[string][]string{name: texts}, nil) }
	tests := []struct {
		name string
		src  Sources
		want string
	}{
		{"environment", from(nil, map[string]string{"EKG_LOG_LIMIT": "much"}),
			`EKG_LOG_LIMIT: "much" is not a size like 64MiB, 1GiB or 1048576`},
		{"listen", flag("listen", "8888"), `--listen: "8888" is not host:port or unix:/path`},
		{"port", flag("listen", "h:99999"), `--listen: "h:99999" has no port from 0 to 65535`},
		{"both of EG", from(nil, map[string]string{"EG_IP": "1.2.3.4", "EG_PORT": "x"}),
			`EG_IP, EG_PORT: "1.2.3.4:x" has no port from 0 to 65535`},
		{"socket", flag("listen", "unix:rel"), `--listen: "unix:rel" has no absolute path`},
		{"long socket", flag("listen", "unix:/"+strings.Repeat("x", 107)),
			`--listen: "/` + strings.Repeat("x", 107) + `" is longer than the 107 bytes that a socket's path may have`},
		{"launcher", flag("launcher", "yarn"), `--launcher: "yarn" is not local or kubernetes`},
		{"limit", flag("max-kernels", "many"), `--max-kernels: "many" is not a number from 0 on`},
		{"groups without users", flag("max-kernels-per-group", "3"),
			`--max-kernels-per-group: has no effect without --users-file, --oidc-issuer, --auth-token-review or --hub-api-url`},
		{"negative time", flag("start-wait", "-1s"), `--start-wait: "-1s" is negative`},
		{"empty token", flag("token", ""), `--token: is empty`},
		{"empty element", flag("kernelspec-dir", ""), `--kernelspec-dir: is empty`},
		{"no grace", flag("stop-grace", "0s"), `--stop-grace: must be more than 0`},
		{"no log", flag("log-limit", "0"), `--log-limit: must be more than 0`},
		{"log larger than all", from(map[string][]string{"log-limit": {"2GiB"}, "log-total": {"1GiB"}}, nil),
			`--log-limit: 2GiB is more than --log-total, 1GiB`},
		{"park-memory alone", flag("park-memory", "1GiB"), `--park-memory: it needs --park-idle`},
		{"park-after alone", flag("park-after", "1h"), `--park-after: it needs --park-idle`},
		{"no total", flag("log-total", "0"), `--log-total: must be more than 0`},
		{"variable name", flag("inherit-env", "A-B"), `--inherit-env: "A-B" is not the name of an environment variable`},
		{"origin", from(nil, map[string]string{"EG_ALLOW_ORIGIN": "https://a.example/b"}),
			`EG_ALLOW_ORIGIN: "https://a.example/b" is neither an exact origin like https://host:port nor *`},
		{"any origin without a token", from(nil, map[string]string{"EG_ALLOW_ORIGIN": "*", "EKG_NO_AUTH": "true"}),
			`EG_ALLOW_ORIGIN: "*" needs a token: without one, any page could run code`},
		{"host", flag("allow-host", "a:1"), `--allow-host: "a:1" is not a host name or address without a port`},
		{"base URL", flag("base-url", "/a?b"), `--base-url: "/a?b" is not a path of plain segments`},
		{"token with a space", flag("token", "a "), `--token: begins or ends with white space, which no client can send`},
		{"client variable", flag("client-env", "LD_PRELOAD="), `--client-env: clients may not set "LD_PRELOAD="`},
		{"half of TLS", flag("tls-key", "x"), `--tls-key: --tls-cert and --tls-key must be given together`},
		{"no authentication, but a token",
			from(map[string][]string{"no-auth": {"true"}}, map[string]string{"EG_AUTH_TOKEN": "x"}),
			`EG_AUTH_TOKEN: contradicts --no-auth`},
		{"authentication in words", flag("no-auth", "wrong"), `--no-auth: "wrong" is not true, false or remote`},
		{"two tokens", from(nil, map[string]string{"EKG_TOKEN": "x", "EKG_TOKEN_FILE": "y"}),
			`EKG_TOKEN: there is also EKG_TOKEN_FILE: give one of them`},
		{"open to all", from(map[string][]string{"no-auth": {"true"}, "listen": {":8888"}}, nil),
			`--no-auth: other machines reach :8888, and anyone who reaches it could run code; --no-auth=remote allows that`},
		{"a time in words", flag("cull-idle-timeout", "an hour"),
			`--cull-idle-timeout: "an hour" is neither a duration like 1h, 90m or 1h30m nor a number of seconds`},
		{"a negative duration", from(nil, map[string]string{"EG_CULL_INTERVAL": "-1m"}),
			`EG_CULL_INTERVAL: "-1m" is negative`},
		{"more seconds than there are", flag("cull-max-age", "9999999999999"),
			`--cull-max-age: "9999999999999" is more seconds than can be counted`},
		{"no number", flag("cull-gpu", "NaN"), `--cull-gpu: "NaN" is not a number from 0 on`},
		{"no config file", flag("config", "/nonexistent.yaml"),
			`--config: open /nonexistent.yaml: no such file or directory`},
		{"no directory for state", Sources{Flags: from(nil, nil).Flags, Getenv: func(string) string { return "" }},
			`--state-dir is missing: neither $XDG_STATE_HOME nor $HOME gives a default`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := Load(tt.src); err == nil || err.Error() != tt.want {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
		})
	}
	t.Run("open to all, and allowed", func(t *testing.T) {
		flags := map[string][]string{"no-auth": {"remote"}, "listen": {":8888"}}
		if _, err := Load(from(flags, nil)); err != nil {
			t.Error(err)
		}
	})
	t.Run("a token of a higher source counts", func(t *testing.T) {
		s, err := Load(from(map[string][]string{"token-file": {"/f"}}, map[string]string{"EG_AUTH_TOKEN": "x"}))
		if err != nil || s.Gateway.Token != "" || s.TokenFile != "/f" {
			t.Errorf("got %+v, %v", s, err)
		}
	})
}

func TestIsLocal(t *testing.T) {
	for listen, want := range map[string]bool{
		"127.0.0.1:1": true, "127.8.9.1:1": true, "[::1]:1": true, "localhost:1": true, "unix:/x": true,
		":1": false, "0.0.0.0:1": false, "[::]:1": false, "10.0.0.1:1": false, "myhost:1": false,
		"127.0.0.1.nip.io:1": false,
	} {
		if got := IsLocal(listen); got != want {
			t.Errorf("%s: got %t, want %t", listen, got, want)
		}
	}
}
