package settings

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// TestLoad_Precedence: a flag precedes the environment, the file and the default. This holds for each shape of option,
// and each value has its place.
func TestLoad_Precedence(t *testing.T) {
	file := yamlFile(t,
		"# comment\nstart-wait: 3s\nallow-origin: [http://file-a, http://file-b]\nstop-kernels-on-exit: true\n")
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
		{"file", from(with(nil), nil), 3 * time.Second, []string{"http://file-a", "http://file-b"}, true,
			[3]string{file + ":2", file + ":3", file + ":4"}},
		{"file named by the environment", from(nil, map[string]string{"EKG_CONFIG": file}),
			3 * time.Second, []string{"http://file-a", "http://file-b"}, true,
			[3]string{file + ":2", file + ":3", file + ":4"}},
		{"environment", from(with(nil), env), 2 * time.Second, []string{"http://env-a", "http://env-b"}, false,
			[3]string{"EKG_START_WAIT", "EKG_ALLOW_ORIGIN", "EKG_STOP_KERNELS_ON_EXIT"}},
		{"flag", from(with(flags), env), time.Second, []string{"http://flag-a", "http://flag-b"}, true,
			[3]string{"flag", "flag", "flag"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := Load(tt.src)
			if err != nil {
				t.Fatal(err)
			}
			if s.Gateway.StartWait != tt.wait || !slices.Equal(s.Gateway.AllowOrigins, tt.origins) || s.StopKernels != tt.stop {
				t.Errorf("got %v %v %t, want %v %v %t", s.Gateway.StartWait, s.Gateway.AllowOrigins, s.StopKernels,
					tt.wait, tt.origins, tt.stop)
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
	got := []any{s.Listen, s.Gateway.BaseURL, s.Gateway.Token, s.Gateway.DefaultKernel, s.Gateway.ClientEnv,
		s.Local.InheritEnv, s.LogLevel.String(),
		s.Gateway.AllowOrigins, s.origins["listen"].short}
	want := []any{"0.0.0.0:9999", "/gw", "secret", "r", []string{"A", "B"}, []string{"C"}, "DEBUG",
		[]string(nil), "EG_IP, EG_PORT"}
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
		{"flags", from(map[string][]string{"cull-max-age": {"86400"}, "cull-warning": {"0"},
			"cull-keep-limit": {"0"}, "cull-gpu": {"0.05"},
			"cull-idle-timeout": {"1h"}}, nil),
			with(func(c *api.Cull) {
				*c = api.Cull{MaxAge: 24 * time.Hour, GPU: 0.05,
					IdleTimeout: time.Hour, Interval: time.Minute}
			})},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := Load(tt.src)
			if err != nil {
				t.Fatal(err)
			}
			if got := s.Local.Cull; !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
		})
	}
}

// TestLoad_Limits: the numbers of kernels can be set by Enterprise Gateway's variables or by ekg's own. In the former
// -1 means no limit.
func TestLoad_Limits(t *testing.T) {
	for name, tt := range map[string]struct {
		flags     map[string][]string
		env       map[string]string
		all, each int
	}{
		"nothing":              {nil, nil, 0, 0},
		"Enterprise Gateway's": {nil, map[string]string{"EG_MAX_KERNELS": "20", "EG_MAX_KERNELS_PER_USER": "3"}, 20, 3},
		"no limit in its way":  {nil, map[string]string{"EG_MAX_KERNELS": "20", "EG_MAX_KERNELS_PER_USER": "-1"}, 20, 0},
		"ekg's own count more": {map[string][]string{"max-kernels": {"7"}}, map[string]string{
			"EG_MAX_KERNELS": "20", "EG_MAX_KERNELS_PER_USER": "3", "EKG_MAX_KERNELS_PER_USER": "2"}, 7, 2},
		"no limit in ekg's way": {map[string][]string{"max-kernels": {"0"}}, map[string]string{"EG_MAX_KERNELS": "20"}, 0, 0},
	} {
		s, err := Load(from(tt.flags, tt.env))
		if err != nil {
			t.Fatal(err)
		}
		limits := &s.Limits
		if limits.Kernels != tt.all || limits.PerUser != tt.each || limits.Set() != (tt.all+tt.each > 0) {
			t.Errorf("%s: %+v", name, limits)
		}
	}
}

func TestStrayVariables(t *testing.T) {
	got := StrayVariables([]string{
		"PATH=/bin", "EKG_LISTEN=x", "EKG_LISTN=x", "EG_LIST_KERNELS=3", "EG_PORT=1", "EKG_KERNEL_ID=x",
		// Kubernetes sets these variables for a service named "ekg".
		"EKG_SERVICE_HOST=10.0.0.1", "EKG_SERVICE_PORT=8888", "EKG_SERVICE_PORT_HTTP=8888", "EKG_PORT=tcp://10.0.0.1:8888",
		"EKG_PORT_8888_TCP=tcp://10.0.0.1:8888", "EKG_PORT_8888_TCP_ADDR=10.0.0.1", "EG_PORT_RANGE=0..0",
	})
	if want := []string{"EG_LIST_KERNELS", "EG_PORT_RANGE", "EKG_LISTN"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
