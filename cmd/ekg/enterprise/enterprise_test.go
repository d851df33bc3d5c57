package enterprise_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/enterprise"
	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/settings"
)

var update = flag.Bool("update", false, "write the golden files")

// translate imports the arguments and returns the file.
func translate(t *testing.T, tokenFile string, args ...string) string {
	t.Helper()
	var im enterprise.Import
	if err := im.Arguments(args, strings.NewReader("")); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := im.Write(&b, tokenFile); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// Values for the chart. A test of the chart renders it with them.
func TestImport_Chart(t *testing.T) {
	t.Chdir("testdata")
	for golden, args := range map[string][]string{
		"values.yaml":         {"chart.env", "EG_CERTFILE=/a.pem", "EG_KEYFILE=/a.key"},
		"values-nothing.yaml": {"HOME=/root", "EG_PORT=http"},
	} {
		var im enterprise.Import
		if err := im.Arguments(args, strings.NewReader("")); err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if _, err := im.WriteChart(&b, ""); err != nil {
			t.Fatal(err)
		}
		if *update {
			if err := os.WriteFile(golden, b.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil || b.String() != string(want) || strings.Contains(b.String(), "hunter") {
			t.Errorf("%s: %v: got:\n%s", golden, err, &b)
		}
	}
}

func TestImport_Golden(t *testing.T) {
	t.Chdir("testdata")
	tests := []struct {
		golden    string
		tokenFile string
		args      []string
	}{
		{"python.yaml", "", []string{"config.py"}},
		{"json.yaml", "/etc/ekg/token", []string{"config.json"}},
		{"chart.yaml", "", []string{"chart.env"}},
		{"precedence.yaml", "", []string{"--ip=10.0.0.1", "--config", "config.py", "EG_IP=10.0.0.2", "EG_KERNEL_IMAGE=k:1",
			"--EnterpriseGatewayApp.inherited_envs=A", "--EnterpriseGatewayApp.inherited_envs=B",
			"--EnterpriseGatewayApp.client_envs=['C', 'D']", "--debug", "--RemoteMappingKernelManager.cull_interval", "5"}},
		{"nothing.yaml", "", []string{"HOME=/root"}},
	}
	for _, tt := range tests {
		t.Run(tt.golden, func(t *testing.T) {
			got := translate(t, tt.tokenFile, tt.args...)
			if *update {
				if err := os.WriteFile(tt.golden, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(tt.golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
			if strings.Contains(got, "hunter") {
				t.Errorf("a secret is written:\n%s", got)
			}
			loads(t, got)
		})
	}
}

// loads fails if ekg rejects the file. Files of certificates and users need not exist.
func loads(t *testing.T, text string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ekg.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := settings.Load(settings.Sources{
		Flags: func(name string) ([]string, bool) {
			// An installation of Enterprise Gateway has no source of users.
			users := strings.Contains(text, "\nauthorized-user:") || strings.Contains(text, "\nunauthorized-user:")
			return []string{path}, name == "config" || name == "users-file" && users
		},
		Getenv: func(name string) string {
			return map[string]string{"HOME": "/home/u"}[name]
		},
	})
	if err != nil {
		t.Errorf("ekg rejects the file: %v", err)
	}
}

// Each option of Enterprise Gateway 3.3.0 is translated, or has a reason. The list is from its --help-all, its classes
// and the variables in its sources.
func TestImport_KnowsAllOptions(t *testing.T) {
	names, args := optionNames(t)
	if len(names) < 280 {
		t.Fatalf("the list has %d names", len(names))
	}
	for i, name := range names {
		got := translate(t, "", args[i])
		if strings.Contains(got, "# Not read:") || !strings.Contains(got, name) {
			t.Errorf("%s:\n%s", name, got)
		}
	}
}

// optionNames returns the names of testdata/options.txt, and arguments that set all of them but the names of files.
func optionNames(t *testing.T) (names, args []string) {
	t.Helper()
	data, err := os.ReadFile("testdata/options.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range strings.Fields(string(data)) {
		if strings.HasSuffix(name, ".config_file") {
			continue // it names a file that is read
		}
		names = append(names, name)
		if strings.Contains(name, ".") {
			args = append(args, "--"+name+"=1")
		} else {
			args = append(args, name+"=1")
		}
	}
	return names, args
}

// otherNames are names of one setting that do not follow from each other.
var otherNames = map[string]string{
	"env_whitelist": "client_envs", "env_process_whitelist": "inherited_envs", "ws_ping_interval_secs": "ws_ping_interval",
	"allowed_kernels": "whitelist", "kernel_whitelist": "whitelist",
	"kernel_session_persistence": "enable_persistence", "kernelspec_cache_enabled": "cache_enabled",
}

// setting returns what all names of one setting have in common: the trait in most cases.
func setting(name string) string {
	_, trait, ok := strings.Cut(name, ".")
	if !ok {
		trait = strings.ToLower(name[len("EG_"):])
	}
	if other := otherNames[trait]; other != "" {
		return other
	}
	return trait
}

// merged has the lists, to which each option of a command line adds an entry. Only the first one is named.
var merged = map[string]bool{"client_envs": true, "inherited_envs": true, "authorized_users": true,
	"unauthorized_users": true, "whitelist": true}

// One file with all options of Enterprise Gateway says of each whether it counts. A name is overridden only if another
// name of the same setting counts, so each setting without a counterpart has its reason.
func TestImport_AllAtOnce(t *testing.T) {
	names, args := optionNames(t)
	got := translate(t, "", args...)
	head, rest, _ := strings.Cut(got, "# Overridden in Enterprise Gateway, too:\n")
	overridden, without, ok := strings.Cut(rest, "# Without a counterpart:\n")
	if !ok {
		t.Fatalf("no list of names without a counterpart:\n%s", got)
	}
	has := func(section, name string) bool {
		return regexp.MustCompile(`(?m): ` + name + `($|[:,;]| is a secret)`).MatchString(section)
	}
	counts := map[string]bool{}
	for _, name := range names {
		if has(head, name) || has(without, name) {
			counts[setting(name)] = true
		}
	}
	for _, name := range names {
		listed := has(head, name) || has(without, name)
		if has(overridden, name) == listed && !merged[setting(name)] {
			t.Errorf("%s: counts: %v; overridden: %v", name, listed, listed)
		}
		if !counts[setting(name)] {
			t.Errorf("%s does not count, and no other name of its setting does", name)
		}
	}
}

// The reason of prohibited ids has the ranges that the policy needs. EG_PROHIBITED_UIDS=0 is ekg's default.
func TestImport_Prohibited(t *testing.T) {
	for value, want := range map[string]string{
		"0":                "policy.clients.userIDs of the chart, is [1-2147483647] unless it is set",
		"0,500":            "policy.clients.userIDs of the chart, must be [1-499, 501-2147483647].",
		" 500, 0,2,2":      "must be [1, 3-499, 501-2147483647].",
		"1000":             "must be [0-999, 1001-2147483647].",
		"0,2147483647":     "must be [1-2147483646].",
		"root":             "the prohibited ones are not a list of numbers here",
		"0,99999999999,-1": "is [1-2147483647] unless it is set",
	} {
		if got := translate(t, "", "EG_PROHIBITED_UIDS="+value); !strings.Contains(got, want) ||
			strings.Contains(got, "root") {
			t.Errorf("%s: %q is missing in:\n%s", value, want, got)
		}
	}
	got := translate(t, "", "EG_PROHIBITED_UIDS=0,500", "EG_PROHIBITED_GIDS=0", "EG_ALLOWED_KERNELS=null",
		"EG_DEFAULT_KERNEL_SERVICE_ACCOUNT_NAME=team")
	for _, want := range []string{"clients.groupIDs", "clients.userIDs", "kernels have the account default unless"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in:\n%s", want, got)
		}
	}
	if strings.Contains(got, "allowed-kernelspec") || strings.Contains(got, "Overridden") {
		t.Errorf("got:\n%s", got)
	}
}

func TestImport_Python(t *testing.T) {
	tests := []struct {
		name, text, want string
	}{
		{"joined texts", "c.EnterpriseGatewayApp.base_url = ('/a'\n  \"/b\")", "base-url: /a/b "},
		{"escapes", `c.EnterpriseGatewayApp.base_url = '\x2fa\'b'`, `base-url: /a'b `},
		{"raw text", `c.EnterpriseGatewayApp.base_url = r'/a\b'`, `base-url: /a\b `},
		{"tuple", "c.EnterpriseGatewayApp.client_envs = ('A',)", "client-env: [A] "},
		{"the last one counts", "c.EnterpriseGatewayApp.port = 1\nc.EnterpriseGatewayApp.port = 2",
			"listen: 127.0.0.1:2 "},
		{"f-string", "c.EnterpriseGatewayApp.base_url = f'/{x}'", "f.py:1: EnterpriseGatewayApp.base_url: the value is not"},
		{"operator", "c.EnterpriseGatewayApp.port = 1 + 1", "f.py:1: EnterpriseGatewayApp.port: the value is not"},
		{"two statements", "c.EnterpriseGatewayApp.port = 1; x()", "f.py:1: EnterpriseGatewayApp.port: the value is not"},
		{"open bracket", "\nc.EnterpriseGatewayApp.client_envs = ['A'",
			"f.py:2: EnterpriseGatewayApp.client_envs: a bracket"},
		{"open text", "c.EnterpriseGatewayApp.base_url = 'a", "f.py:1: EnterpriseGatewayApp.base_url: a text is not closed"},
		{"mapping", "c.EnterpriseGatewayApp.client_envs = {'a': 1}", "f.py:1: EnterpriseGatewayApp.client_envs: the value"},
		{"comparison", "c.EnterpriseGatewayApp.port == 1", "f.py:1: EnterpriseGatewayApp.port is changed"},
		{"in a text", "x = '''\nc.EnterpriseGatewayApp.port = 1\n'''", "f.py:1: is not an assignment"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			if err := os.WriteFile("f.py", []byte(tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if got := translate(t, "", "f.py"); !strings.Contains(got, tt.want) {
				t.Errorf("%q is missing in:\n%s", tt.want, got)
			}
			if got := translate(t, "", "f.py"); tt.name == "in a text" && strings.Contains(got, "listen:") {
				t.Errorf("a text is read as an assignment:\n%s", got)
			}
		})
	}
}

func FuzzImport(f *testing.F) {
	for _, name := range []string{"config.py", "config.json", "chart.env"} {
		data, err := os.ReadFile("testdata/" + name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(filepath.Ext(name), data)
	}
	f.Fuzz(func(t *testing.T, ext string, data []byte) {
		if ext != ".py" && ext != ".json" {
			ext = ".env"
		}
		path := filepath.Join(t.TempDir(), "f"+ext)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		var im enterprise.Import
		if im.Arguments([]string{path}, nil) != nil {
			return
		}
		var b bytes.Buffer
		if _, err := im.Write(&b, ""); err != nil {
			t.Fatal(err)
		}
	})
}
