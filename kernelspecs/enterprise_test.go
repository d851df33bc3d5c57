package kernelspecs

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Which command runs in the pod of a kernelspec of Enterprise Gateway, and with which variables.
func TestEnterpriseLauncher(t *testing.T) {
	const class = `"process_proxy": {"class_name": "services.processproxies.k8s.KubernetesProcessProxy"`
	script := func(program, more string) string {
		return `"argv": ["python", "/x/` + program + `", "--RemoteProcessProxy.response-address",
			"{response_address}"` + more + `]`
	}
	tests := []struct {
		name, text string
		argv       string
		env        map[string]string
		warning    string
		problem    string
	}{
		{"a pod", script("launch_kubernetes.py", "") + `, "metadata": {` + class + `}}`, enterpriseBootstrap,
			map[string]string{}, "", ""},
		{"options", script("launch_kubernetes.py", `, "--RemoteProcessProxy.spark-context-initialization-mode", "lazy",
			"--kernel-class-name=a.B"`) + `, "metadata": {` + class + `, "config": {"port_range": "40000..42000"}}}`,
			enterpriseBootstrap, map[string]string{"KERNEL_SPARK_CONTEXT_INIT_MODE": "lazy", "KERNEL_CLASS_NAME": "a.B",
				"PORT_RANGE": "40000..42000", "EG_PORT_RANGE": "40000..42000"}, "", ""},
		{"Spark", script("bin/run.sh", `, "--RemoteProcessProxy.spark-context-initialization-mode", "lazy"`) +
			`, "metadata": {` + class + `}}`, enterpriseBootstrap,
			map[string]string{"KERNEL_SPARK_CONTEXT_INIT_MODE": "none"}, "submits no Spark application", ""},
		{"by name", `"argv": ["/opt/start", "{public_key}"], "metadata": {"ekg": {"launcher": "enterprise-gateway"}}`,
			"/opt/start {public_key}", map[string]string{}, "", ""},
		{"no launcher", `"argv": ["k", "{connection_file}"], "metadata": {` + class + `}}`, "", nil, "", ""},
		{"a local class", script("launch_ipykernel.py", ""), "", nil, "", "only with the class KubernetesProcessProxy"},
		{"no range", script("launch_kubernetes.py", "") + `, "metadata": {` + class + `, "config": {"port_range": "1"}}}`,
			enterpriseBootstrap, nil, "", `is not a range of ports like "40000..42000"`},
		{"no such launcher", `"argv": ["k"], "metadata": {"ekg": {"launcher": "x"}}`, "k", nil, "",
			`is not "enterprise-gateway"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "R_k8s")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			text := `{"language": "Python", ` + tt.text + `}`
			if err := os.WriteFile(filepath.Join(dir, "kernel.json"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			spec, _, problems := readSpec("r_k8s", dir, "")
			if tt.problem != "" {
				if len(problems) != 1 || !strings.Contains(problems[0].Message, tt.problem) {
					t.Errorf("got %v", problems)
				}
				return
			}
			if len(problems) > 0 {
				t.Fatal(problems)
			}
			if tt.argv == "" {
				if spec.Launcher != nil {
					t.Errorf("got %+v", spec.Launcher)
				}
				return
			}
			maps.Copy(tt.env, map[string]string{"KERNEL_LANGUAGE": "python", "KERNEL_NAME": "R_k8s"})
			if l := spec.Launcher; l == nil || strings.Join(l.Argv, " ") != tt.argv || !maps.Equal(l.Env, tt.env) {
				t.Errorf("got %+v", l)
			}
			if (len(spec.Warnings) > 0) != (tt.warning != "") ||
				tt.warning != "" && !strings.Contains(spec.Warnings[0].Message, tt.warning) {
				t.Errorf("warnings: %v", spec.Warnings)
			}
			if checked := Check(dir, "", nil); strings.Contains(tt.name, "pod") && (len(checked) != 1 ||
				checked[0].Key != "display_name") {
				t.Errorf("check: %v", checked)
			}
		})
	}
}

func TestEnterpriseLauncher_Template(t *testing.T) {
	dir := t.TempDir()
	template := filepath.Join(dir, filepath.FromSlash(podTemplate))
	if err := os.Mkdir(filepath.Dir(template), 0o755); err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{template: "", filepath.Join(dir, "kernel.json"): `{"argv":
		["launch_kubernetes.py", "{response_address}"], "metadata": {"process_proxy":
		{"class_name": "KubernetesProcessProxy"}}}`} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	spec, _, problems := readSpec("s", dir, "")
	if len(problems) > 0 || len(spec.Warnings) != 1 || !strings.Contains(spec.Warnings[0].Message, "--keep-launcher") {
		t.Errorf("%v, %v", problems, spec.Warnings)
	}
}
