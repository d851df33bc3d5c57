package kernelspecs

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	tests := []struct {
		name  string
		files map[string]string
		want  []string
	}{
		{"nothing wrong", map[string]string{"kernel.json": plain}, nil},
		{"nothing wrong in a folder", map[string]string{"a/kernel.json": plain, "kernels/b/kernel.json": plain}, nil},
		{"nothing there", map[string]string{"a/readme": ""}, []string{
			": holds no kernelspec: it has neither a kernel.json nor a directory with one"}},
		{"keys", map[string]string{"kernel.json": "{\"argv\": [\"/bin/true\", \"{connection_file}\"],\n\"Env\": " +
			"{},\n\"language\": \"\",\n\"language\": \"\"}"}, []string{
			"/kernel.json:2: Env: is not a key of kernel.json", "/kernel.json:4: language: is given twice",
			"/kernel.json:1: display_name: is missing", "/kernel.json:4: language: is empty"}},
		{"placeholders", map[string]string{"kernel.json": strings.Replace(plain, "{connection_file}", "{conection_file}", 1)},
			[]string{
				"/kernel.json:1: argv[1]: {conection_file} is not a known placeholder",
				"/kernel.json:1: argv: has no {connection_file}: the kernel would not know where to listen"}},
		{"program", map[string]string{"kernel.json": strings.Replace(plain, "/bin/true", "no-such-program", 1)}, []string{
			`/kernel.json:1: argv[0]: "no-such-program" cannot be run: executable file not found in $PATH`}},
		{"relative program", map[string]string{"kernel.json": strings.Replace(plain, "/bin/true", "./run", 1)}, []string{
			`/kernel.json:1: argv[0]: "./run" depends on the working directory of the kernel; write {resource_dir}/./run`}},
		{"program beside the spec",
			map[string]string{"kernel.json": strings.Replace(plain, "/bin/true", "{resource_dir}/run", 1),
				"run": "#!/bin/sh\n"}, nil},
		{"every spec of a folder",
			map[string]string{"a/kernel.json": `{`, "B c/kernel.json": plain, "d/kernel.json": plain, "D/kernel.json": plain},
			[]string{
				"/B c: cannot be the name of a kernelspec: only letters, digits, '.', '_' and '-' can be in a URL of Jupyter",
				"/a/kernel.json:1: not valid JSON: unexpected end of JSON input",
				"/d: is hidden by D beside it: names must differ in more than case"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "spec")
			for file, text := range tt.files {
				write(t, filepath.Join(dir, file), text)
			}
			var got []string
			for _, p := range Check(dir, "", nil) {
				got = append(got, strings.TrimPrefix(p.String(), dir))
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
		})
	}
	t.Run("no directory", func(t *testing.T) {
		got := Check("/nonexistent/dir", "", nil)
		if len(got) != 1 || got[0].String() != "/nonexistent/dir: cannot be read: no such file or directory" {
			t.Errorf("got %v", got)
		}
	})
}
