package kernelspecs

import (
	"path/filepath"
	"slices"
	"testing"
)

func TestFindEnvironment(t *testing.T) {
	bin := t.TempDir()
	write(t, filepath.Join(bin, "plain/bin/python3"), "#!/bin/sh\nprintf '/opt/py\\n/opt/py\\n'\n")
	write(t, filepath.Join(bin, "venv/bin/python3"), "#!/bin/sh\nprintf '/opt/venv\\n/usr\\n'\n")
	write(t, filepath.Join(bin, "debian/bin/python3"), "#!/bin/sh\nprintf '/usr\\n/usr\\n'\n")
	write(t, filepath.Join(bin, "broken/bin/python3"), "#!/bin/sh\nexit 3\n")
	tests := []struct {
		name   string
		env    map[string]string
		prefix string
		want   []string
	}{
		{"nothing at all", map[string]string{}, "", []string{"/usr/local/share/jupyter", "/usr/share/jupyter"}},
		{"user, then environment, then system", map[string]string{"HOME": "/h", "PATH": filepath.Join(bin, "plain/bin")},
			"/opt/py",
			[]string{"/h/.local/share/jupyter", "/opt/py/share/jupyter", "/usr/local/share/jupyter", "/usr/share/jupyter",
				"/h/.ipython"}},
		{"a virtual environment comes before the user",
			map[string]string{"HOME": "/h", "PATH": "rel:" + filepath.Join(bin, "venv/bin")}, "/opt/venv",
			[]string{"/opt/venv/share/jupyter", "/h/.local/share/jupyter", "/usr/local/share/jupyter", "/usr/share/jupyter",
				"/h/.ipython"}},
		{"unless the environment says otherwise",
			map[string]string{"HOME": "/h", "PATH": filepath.Join(bin, "venv/bin"), "JUPYTER_PREFER_ENV_PATH": "0"}, "/opt/venv",
			[]string{"/h/.local/share/jupyter", "/opt/venv/share/jupyter", "/usr/local/share/jupyter", "/usr/share/jupyter",
				"/h/.ipython"}},
		{"the system's python adds nothing", map[string]string{"PATH": filepath.Join(bin, "debian/bin")}, "/usr",
			[]string{"/usr/local/share/jupyter", "/usr/share/jupyter"}},
		{"a python that does not run", map[string]string{"PATH": filepath.Join(bin, "broken/bin")},
			filepath.Join(bin, "broken"),
			[]string{filepath.Join(bin, "broken/share/jupyter"), "/usr/local/share/jupyter", "/usr/share/jupyter"}},
		{"everything", map[string]string{"HOME": "/h", "JUPYTER_PATH": "/p1:/p2:", "JUPYTER_DATA_DIR": "/data",
			"VIRTUAL_ENV":  "/venv",
			"CONDA_PREFIX": "/conda", "PYTHONUSERBASE": "/base", "IPYTHONDIR": "/ipy", "PATH": filepath.Join(bin, "plain/bin")},
			"/venv",
			[]string{"/p1", "/p2", "/venv/share/jupyter", "/conda/share/jupyter", "/opt/py/share/jupyter", "/data",
				"/base/share/jupyter",
				"/usr/local/share/jupyter", "/usr/share/jupyter", "/ipy"}},
		{"XDG", map[string]string{"HOME": "/h", "XDG_DATA_HOME": "/xdg"}, "",
			[]string{"/xdg/jupyter", "/h/.local/share/jupyter", "/usr/local/share/jupyter", "/usr/share/jupyter",
				"/h/.ipython"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := FindEnvironment(t.Context(), func(name string) string { return tt.env[name] })
			if got.Prefix != tt.prefix || !slices.Equal(got.DataDirs, tt.want) {
				t.Errorf("got  %s %q\nwant %s %q", got.Prefix, got.DataDirs, tt.prefix, tt.want)
			}
		})
	}
}
