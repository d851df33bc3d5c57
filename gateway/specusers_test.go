package gateway

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// withLimitedSpec adds a kernelspec that ann may start, and bob may not.
func withLimitedSpec(o *Options) {
	o.Specs = &specDir{specs: append(o.Specs.List(), kernelspecs.Spec{Name: "limited", DisplayName: "L",
		Language: "python", InterruptMode: "signal", Metadata: json.RawMessage("{}"),
		Users: kernelspecs.Users{Authorized: []string{"ann"}}})}
}

func TestKernelspecs_Users(t *testing.T) {
	for _, tt := range []struct {
		user   string
		status int
	}{{"ann", 201}, {"bob", 403}, {"root", 201}} {
		t.Run(tt.user, func(t *testing.T) {
			g := startUserGateway(t, withLimitedSpec)
			// The name of the variable is the client's, and counts for nothing.
			body := `{"name": "limited", "env": {"KERNEL_USERNAME": "ann"}}`
			g.do("POST", "/api/kernels", body, as(tt.user)).want(t, tt.status, "")
			if tt.status == 403 && len(g.fake.reqs) > 0 {
				t.Error("a kernel was started")
			}
			list := g.do("GET", "/api/kernelspecs", "", as(tt.user)).want(t, 200, "").body
			if got := strings.Contains(list, `"limited"`); got != (tt.status == 201) {
				t.Errorf("listed: %v", got)
			}
			read := 200
			if tt.status == 403 {
				read = 403
			}
			for _, path := range []string{"/api/kernelspecs/limited", "/api/kernelspecs?user=ann/limited"} {
				g.do("GET", path, "", as(tt.user)).want(t, read, "")
			}
			if got := g.do("GET", "/kernelspecs/limited/x.png", "", as(tt.user)); (got.StatusCode == 403) != (read == 403) {
				t.Errorf("a file: %d", got.StatusCode)
			}
		})
	}
	g := startGateway(t, withLimitedSpec)
	g.do("POST", "/api/kernels", `{"name": "limited"}`).want(t, 403, "this gateway has no users")
}

// The default is never a kernelspec that the user may not start, and a POST without a name starts the default.
func TestKernelspecs_DefaultOfUser(t *testing.T) {
	for _, tt := range []struct{ user, configured, want string }{
		{"ann", "limited", "limited"},
		{"bob", "limited", "python3"},
		{"bob", "", "python3"},
		{"bob", "nowhere", "nowhere"}, // requests say that it does not exist
	} {
		g := startUserGateway(t, func(o *Options) {
			withLimitedSpec(o)
			o.DefaultKernel = tt.configured
		})
		g.do("GET", "/api/kernelspecs", "", as(tt.user)).want(t, 200, `"default":"`+tt.want+`"`)
		if tt.want == "nowhere" {
			g.do("POST", "/api/kernels", "", as(tt.user)).want(t, 404, "nowhere")
			continue
		}
		g.do("POST", "/api/kernels", "", as(tt.user)).want(t, 201, `"name":"`+tt.want+`"`)
	}
	g := startUserGateway(t, func(o *Options) {
		withLimitedSpec(o)
		o.Specs = &specDir{specs: o.Specs.List()[len(o.Specs.List())-1:]}
	})
	g.do("GET", "/api/kernelspecs", "", as("bob")).want(t, 200, `"default":""`)
}

// A user who may no longer start a kernelspec does not restart its kernel either, alive or dead. Admins do.
func TestKernels_RestartOfLimited(t *testing.T) {
	for _, tt := range []struct {
		user   string
		status int
	}{{"ann", 200}, {"bob", 403}, {"root", 200}} {
		g := startUserGateway(t, withLimitedSpec)
		owner := tt.user
		if owner == "root" {
			owner = "bob"
		}
		g.fake.add(idA, "limited", api.Idle)
		g.fake.change(func() { g.fake.kernels[idA].Owner = owner })
		g.do("POST", "/api/kernels/"+idA+"/restart", "", as(tt.user)).want(t, tt.status, "")
	}
	// The kernelspec has gone: the gateway's own lists hold.
	for _, tt := range []struct {
		user   string
		status int
	}{{"ann", 200}, {"bob", 403}} {
		g := startUserGateway(t, func(o *Options) {
			o.Specs = &specDir{specs: o.Specs.List(), users: kernelspecs.Users{Unauthorized: []string{"bob"}}}
		})
		g.fake.add(idA, "gone", api.Idle)
		g.fake.change(func() { g.fake.kernels[idA].Owner = tt.user })
		g.do("POST", "/api/kernels/"+idA+"/restart", "", as(tt.user)).want(t, tt.status, "")
	}
}

// The user lists of a hidden kernelspec hold for restarts of its kernels.
func TestKernels_RestartOfHidden(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "Hidden"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "Hidden", "kernel.json"), []byte(`{"argv": ["x", "{connection_file}"],
		"display_name": "X", "language": "x", "metadata": {"process_proxy": {"config": {"authorized_users": "ann"}}}}`),
		0o600); err != nil {
		t.Fatal(err)
	}
	finder, err := kernelspecs.Open(kernelspecs.Options{Dirs: []string{dir}, Allowed: []string{"another"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = finder.Close() })
	for _, tt := range []struct {
		user   string
		status int
	}{{"ann", 200}, {"bob", 403}} {
		g := startUserGateway(t, func(o *Options) { o.Specs = finder })
		g.fake.add(idA, "hidden", api.Idle)
		g.fake.change(func() { g.fake.kernels[idA].Owner = tt.user })
		g.do("POST", "/api/kernels/"+idA+"/restart", "", as(tt.user)).want(t, tt.status, "")
		g.do("POST", "/api/kernels", `{"name": "hidden"}`, as(tt.user)).want(t, 404, "")
	}
}
