package enterprise

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// golden compares a text with its file. The flag -update, which another file of the tests has, rewrites the file.
func golden(t *testing.T, file, got string) {
	t.Helper()
	if f := flag.Lookup("update"); f != nil && f.Value.String() == "true" {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs; run with -update and read the difference. got:\n%s", file, got)
	}
}

// The kernelspecs of testdata, whose templates operators have edited, are converted as the reviewed files say. The end
// to end tests compare the pods with those of Enterprise Gateway.
func TestConvertSpec_Golden(t *testing.T) {
	for _, name := range []string{"gpu", "homes", "older", "strict", "r", "objects"} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join("testdata", "convert", name)
			done, err := ConvertSpec(dir, SpecOptions{})
			if err != nil {
				t.Fatal(err)
			}
			golden(t, filepath.Join(dir, "want.json"), string(done.KernelJSON))
			var report strings.Builder
			for _, f := range done.LeftOut {
				report.WriteString(strings.TrimPrefix(filepath.ToSlash(f.String()), filepath.ToSlash(dir)+"/") + "\n")
			}
			for _, note := range done.Notes {
				report.WriteString("note: " + note + "\n")
			}
			golden(t, filepath.Join(dir, "want.txt"), report.String())
		})
	}
}

// writeConvertible writes a kernelspec of Enterprise Gateway whose pod's spec is text.
func writeConvertible(t testing.TB, kernelJSON, template string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "scripts"), 0o755); err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{"kernel.json": kernelJSON, templateFile: template} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const (
	convertibleJSON = `{"argv": ["python", "launch_kubernetes.py", "--response-address", "{response_address}"],
"display_name": "x", "language": "python", "metadata": {"process_proxy": {"class_name": "x.KubernetesProcessProxy"}}}`
	podHead = "apiVersion: v1\nkind: Pod\nspec:\n" // three lines
)

// serviceNamed is a Service in a template.
func serviceNamed(name string) string {
	return "---\napiVersion: v1\nkind: Service\nmetadata: {name: \"" + name + "\"}\nspec: {ports: [{port: 80}]}\n"
}

// needsService is the rest of a template in which everything needs the Service, the volume by a config map. more is
// further metadata of the Service.
func needsService(more string) string {
	return "  containers:\n  - env: [{name: A, value: \"{{ kernel_pod_name }}-driver:80\"}]\n" +
		"  volumes:\n  - {name: a, configMap: {name: \"c-{{ kernel_id }}\"}}\n" +
		"---\napiVersion: v1\nkind: Service\nmetadata: {name: \"{{ kernel_pod_name }}-driver\", " + more + "}\n" +
		"---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"c-{{ kernel_id }}\"}\n" +
		"data: {driver: \"{{ kernel_pod_name }}-driver\"}\n"
}

// A line without a counterpart is reported once. All other lines are converted.
func TestConvertSpec_LeftOut(t *testing.T) {
	tests := []struct{ name, spec, ekg, leftOut string }{
		{"a value with an unknown part", "  nodeSelector: {a: x, b: \"{{ kernel_id }}-b\"}\n", `{"nodeSelector":{"a":"x"}}`,
			"4: spec.nodeSelector.b: has {{ kernel_id }}, which a kernelspec cannot have there"},
		{"a key that no kernelspec has", "  shareProcessNamespace: true\n  schedulerName: s\n", `{"schedulerName":"s"}`,
			"4: spec.shareProcessNamespace: has no counterpart in metadata.ekg"},
		{"a variable without a default", "  schedulerName: \"{{ kernel_scheduler }}\"\n", `{}`,
			"4: spec.schedulerName: depends on KERNEL_SCHEDULER of the client, which ekg does not apply here"},
		{"two variables at once", "  {% if kernel_a and kernel_b %}\n  schedulerName: s\n  {% endif %}\n", `{}`,
			"5: schedulerName: s: needs several variables of the client at once"},
		{"a branch without the variable", "  {% if not kernel_a %}\n  schedulerName: s\n  {% endif %}\n",
			`{"schedulerName":"s"}`,
			"5: spec.schedulerName: does not hold if the client sends KERNEL_A; here it always holds"},
		{"an expression", "  schedulerName: {{ 'a' ~ 'b' }}\n", `{}`,
			"4: spec.schedulerName: {{ 'a' ~ 'b' }} is an expression that ekg does not read"},
		{"a macro", "  {% macro m() %}\n  hidden: 1\n  {% endmacro %}\n  schedulerName: s\n", `{"schedulerName":"s"}`,
			"4: {% macro m() %} is a tag that ekg does not read\n5: hidden: 1: depends on line 4"},
		{"a nested value that does not exist", "  tolerations:\n  - {key: a, effects: x}\n  - {key: b, operator: Exists}\n",
			`{"tolerations":[{"key":"b","operator":"Exists"}]}`,
			"5: spec.tolerations a: effects: cannot be set; valid keys: effect, key, operator, tolerationSeconds, value"},
		{"what ekg refuses", "  containers:\n  - securityContext: {privileged: true, readOnlyRootFilesystem: true}\n",
			`{"securityContext":{"readOnlyRootFilesystem":true}}`,
			"5: spec.containers[0].securityContext.privileged: a kernel cannot be privileged"},
		{"another namespace", "  x: {{ 1 }}\n---\napiVersion: v1\nkind: Service\n", `{}`,
			"4: spec.x: has no counterpart in metadata.ekg\n6: an object Service: has no name"},
		{"an object that kernels do not have",
			"  x: {{ 1 }}\n---\napiVersion: apps/v1\nkind: Deployment\n---\nkind: {}\n", `{}`,
			"4: spec.x: has no counterpart in metadata.ekg\n6: an object Deployment: ekg creates none with a kernel; create " +
				"it once, or for each user beforehand\n9: an object without a kind"},
		{"an object that ekg refuses", "  volumes:\n  - {name: a, configMap: {name: \"a-{{ kernel_id }}\"}}\n---\n" +
			"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"a-{{ kernel_id }}\", finalizers: [x/y]}\n", `{}`,
			"5: spec.volumes a: needs the ConfigMap a, which is left out\n7: an object ConfigMap: metadata.finalizers: cannot " +
				"be set: the object would stay after its kernel"},
		{"an object of the client", "  volumes:\n  - {name: a, secret: {secretName: s}}\n---\napiVersion: v1\n" +
			"kind: Secret\nmetadata: {name: s}\nstringData: {a: \"{{ kernel_team }}\"}\n", `{}`,
			"5: spec.volumes a: needs the Secret s, which is left out\n7: an object Secret: depends on KERNEL_TEAM of the " +
				"client, which ekg does not apply here"},
		{"an object named as one that exists", "  volumes:\n  - {name: a, persistentVolumeClaim: {claimName: data}}\n" +
			"  - {name: b, persistentVolumeClaim: {claimName: \"{{ kernel_id }}-data\"}}\n---\napiVersion: v1\n" +
			"kind: PersistentVolumeClaim\nmetadata: {name: \"{{ kernel_id }}-data\"}\n" +
			"spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}\n",
			`{"objects":[{"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"name":"data2"},"spec":{` +
				`"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}],"volumes":[` +
				`{"name":"a","persistentVolumeClaim":{"claimName":"data"}},` +
				`{"name":"b","persistentVolumeClaim":{"claimName":"data2"}}]}`, ""},
		{"an object with an unknown part", "  volumes:\n  - {name: a, persistentVolumeClaim: " +
			"{claimName: \"data-{{ kernel_id }}\"}}\n---\napiVersion: v1\nkind: PersistentVolumeClaim\n" +
			"metadata: {name: \"data-{{ kernel_id }}\", annotations: {a: \"{{ kernel_pod_name }}\"}}\n", `{}`,
			"5: spec.volumes a: needs the PersistentVolumeClaim data-{{ kernel_id }}, which is left out\n7: an object " +
				"PersistentVolumeClaim: has {{ kernel_pod_name }}, which a kernelspec cannot have there"},
		{"a Service with an unknown part", needsService(`annotations: {a: "{{ kernel_pod_name }}"}`), `{}`,
			"5: spec.containers[0].env A: needs the Service {{ kernel_pod_name }}-driver, which is left out\n" +
				"7: spec.volumes a: needs the ConfigMap c-{{ kernel_id }}, which is left out\n" +
				"9: an object Service: has {{ kernel_pod_name }}, which a kernelspec cannot have there\n" +
				"13: an object ConfigMap: needs the Service {{ kernel_pod_name }}-driver, which is left out"},
		{"a Service alone with an unknown part", "  containers:\n" +
			"  - env: [{name: A, value: \"{{ kernel_pod_name }}-driver\"}, {name: B, value: \"{service.b}\"}]\n" +
			strings.Replace(serviceNamed("{{ kernel_pod_name }}-driver"), "spec: {", "spec: {a: \"{{ kernel_pod_name }}\", ", 1),
			`{"env":[{"name":"B","value":"{service.b}"}]}`,
			"5: spec.containers[0].env A: needs the Service {{ kernel_pod_name }}-driver, which is left out\n" +
				"7: an object Service: has {{ kernel_pod_name }}, which a kernelspec cannot have there"},
		{"a Service that ekg refuses", needsService("finalizers: [x/y]"), `{}`,
			"5: spec.containers[0].env A: needs the Service driver, which is left out\n" +
				"7: spec.volumes a: needs the ConfigMap c, which is left out\n" +
				"9: an object Service: metadata.finalizers: cannot be set: the object would stay after its kernel\n" +
				"13: an object ConfigMap: needs the Service driver, which is left out"},
		{"a Service whose name begins with another's", "  containers:\n" +
			"  - env: [{name: A, value: \"{{ kernel_pod_name }}-driver-ui:4040\"}, " +
			"{name: B, value: \"http://{{ kernel_pod_name }}-driver/x\"}, " +
			"{name: C, value: \"{{ kernel_pod_name }}-drivers\"}]\n" +
			serviceNamed("{{ kernel_pod_name }}-driver") + serviceNamed("{{ kernel_pod_name }}-driver-ui"),
			`{"env":[{"name":"A","value":"{service.driver-ui}:4040"},{"name":"B","value":"http://{service.driver}/x"}],` +
				`"objects":[`,
			"5: spec.containers[0].env C: has {{ kernel_pod_name }}, which a kernelspec cannot have there"},
		{"a Service named as the kernel", "  containers:\n  - env: [{name: ID, value: \"{{ kernel_id }}\"}, " +
			"{name: URL, value: \"http://{{ kernel_id }}:80\"}]\n" + serviceNamed("{{ kernel_id }}") +
			"---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n" +
			"data: {id: \"{{ kernel_id }}\", host: \"{{ kernel_id }}.{{ kernel_namespace }}\"}\n",
			`{"env":[{"name":"ID","valueFrom":{"fieldRef":{"fieldPath":"metadata.labels['kernel_id']"}}},` +
				`{"name":"URL","value":"http://{service.service}:80"}],"objects":[{"apiVersion":"v1","kind":"Service",` +
				`"metadata":{"name":"service"},"spec":{"ports":[{"port":80}]}},{"apiVersion":"v1",` +
				`"data":{"host":"{service.service}.{namespace}","id":"{kernel_id}"},`, ""},
		{"a container beside the kernel's", "  securityContext: {runAsUser: {{ kernel_uid | int }}, runAsNonRoot: true}\n" +
			"  initContainers:\n  - {name: a, image: x, securityContext: {runAsUser: 5}}\n  - {name: b, image: x}\n",
			`{"initContainers":[{"image":"x","name":"a","securityContext":{"runAsNonRoot":true,"runAsUser":5}},{"image":"x",` +
				`"name":"b","securityContext":{"runAsNonRoot":true,"runAsUser":1000}}],"securityContext":`,
			"7: spec.initContainers b: has the pod's runAsUser, 1000: KERNEL_UID of the client does not change it here"},
		{"a container that ekg refuses", "  containers:\n  - {}\n" +
			"  - {name: a, image: x, securityContext: {privileged: true}}\n  - {name: b, image: x, tty: true}\n" +
			"  - {name: c, image: x, env: [{name: A, value: \"{{ kernel_id }}x\"}]}\n",
			`{"containers":[{"env":[],"image":"x","name":"c"}]}`,
			"6: spec.containers a: securityContext.privileged: a kernel cannot be privileged\n" +
				"7: spec.containers b: tty: cannot be set; valid keys: args, command, env, envFrom, image, imagePullPolicy, " +
				"livenessProbe, name, resources, restartPolicy, securityContext, startupProbe, volumeMounts, workingDir\n" +
				"8: spec.containers c.env A: has {{ kernel_id }}, which a kernelspec cannot have there"},
		{"no container", "  initContainers: [a]\n", `{}`, "4: spec.initContainers: is not a container"},
		{"a hook", "  containers:\n  - lifecycle: {preStop: {sleep: {seconds: 1}}}\n",
			`{"lifecycle":{"preStop":{"sleep":{"seconds":1}}}}`, ""},
		{"a device of another vendor", "  containers:\n  - resources:\n      limits: {amd.com/gpu: {{ kernel_gpus }}}\n", `{}`,
			"6: spec.containers[0].resources.limits.amd.com/gpu: depends on KERNEL_GPUS of the client, which ekg does not " +
				"apply here"},
		{"yes and no as in YAML 1.1", "  hostUsers: no\n", `{"pod":{"spec":{"hostUsers":false}}}`, ""},
		{"an anchor", "  nodeSelector: &a {x: y}\n  x: *a\n", `{"nodeSelector":{"x":"y"}}`,
			"5: spec.x: has no counterpart in metadata.ekg"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := writeConvertible(t, convertibleJSON, podHead+tt.spec)
			done, err := ConvertSpec(dir, SpecOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var lines []string
			for _, f := range done.LeftOut {
				lines = append(lines, strings.TrimPrefix(f.String(), filepath.Join(dir, templateFile)+":"))
			}
			if got := strings.Join(lines, "\n"); got != tt.leftOut {
				t.Errorf("left out: got  %s\nwant %s", got, tt.leftOut)
			}
			flat := strings.NewReplacer("\n", "", " ", "").Replace(string(done.KernelJSON))
			if !strings.Contains(flat, `"ekg":`+tt.ekg) {
				t.Errorf("got %s, want %s", flat, tt.ekg)
			}
		})
	}
}

// A kernelspec that keeps the launcher keeps its argv, in every language.
func TestConvertSpec_KeepLauncher(t *testing.T) {
	dir := writeConvertible(t, strings.Replace(convertibleJSON, `"language": "python"`, `"language": "scala"`, 1), podHead)
	done, err := ConvertSpec(dir, SpecOptions{Launcher: true})
	if err != nil || !strings.Contains(string(done.KernelJSON), "{response_address}") || len(done.LeftOut) > 0 {
		t.Fatalf("%+v, %v", done, err)
	}
}

// Kernelspecs that cannot be converted at all have an error that says why.
func TestConvertSpec_Errors(t *testing.T) {
	replace := func(old, with string) string { return strings.Replace(convertibleJSON, old, with, 1) }
	tests := []struct{ name, kernelJSON, template, want string }{
		{"not JSON", "{", podHead, "kernel.json: unexpected end of JSON input"},
		{"an array", "[]", podHead, "cannot unmarshal array"},
		{"converted before", replace(`"metadata": {`, `"metadata": {"ekg": {}, `), podHead, "it has metadata.ekg already"},
		{"a local kernel", replace("{response_address}", "{connection_file}"), podHead, ErrNothingToConvert.Error()},
		{"Docker", replace("KubernetesProcessProxy", "DockerProcessProxy"), podHead, "starts no pod from a template"},
		{"Spark", replace("launch_kubernetes.py", "/k/bin/run.sh"), podHead, "submits a Spark application"},
		{"another language", replace(`"python", "meta`, `"scala", "meta`), podHead,
			`"scala"; give it with --command, or use --keep-launcher`},
		{"no pod", convertibleJSON, "kind: Service\n", "it gives no object of the kind Pod"},
		{"no YAML", convertibleJSON, podHead + "  a: b\n  c: d: e\n", "what it gives is not YAML: line 5: "},
		{"no end", convertibleJSON, podHead + "{% if a %}\n", "kernel-pod.yaml.j2: line 4: {% if a %} has no end"},
		{"no beginning", convertibleJSON, podHead + "\n{% endfor %}\n", "line 5: {% endfor %} ends no block"},
		{"half a tag", convertibleJSON, podHead + "{{ a\n", "line 4: {{ has no }}"},
		{"many loops", convertibleJSON, strings.Repeat("{% for a in [1,2,3,4,5,6,7,8,9,10] %}", 6) + "x" +
			strings.Repeat("{% endfor %}", 6), "loops over too many elements"},
		{"many aliases", convertibleJSON, podHead + "  a: &a [x,x,x,x,x,x,x,x,x,x]\n  b: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\n" +
			"  c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n  d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\n  e: [*d,*d,*d,*d,*d,*d,*d]\n",
			"it gives more than 20000 values"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			kernelJSON := tt.kernelJSON
			if tt.name == "another language" {
				kernelJSON = strings.Replace(kernelJSON, `"language": "python"`, `"language": "scala"`, 1)
			}
			_, err := ConvertSpec(writeConvertible(t, kernelJSON, tt.template), SpecOptions{})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
	dir := writeConvertible(t, convertibleJSON, podHead)
	if err := os.Remove(filepath.Join(dir, templateFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := ConvertSpec(dir, SpecOptions{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a template: got %v", err)
	}
}

// Expressions have the values that Jinja2 gives them.
func TestEvaluate(t *testing.T) {
	vars := map[string]tval{"text": constant("b"), "empty": constant(""), "run": {kind: tRuntime, name: "run"}}
	tests := []struct{ expression, want string }{
		{"text", "b"}, {"missing", "undefined"}, {"run", "runtime"}, {"'x' | upper", "X"}, {"text == 'b'", "True"},
		{"text != 'b'", "False"}, {"missing == 'b'", "False"}, {"run == 'b'", "opaque"}, {"not empty", "True"},
		{"missing is defined", "False"}, {"run is defined and text", "b"}, {"missing or 'y'", "y"},
		{"missing is not defined or run", "True"}, {"empty | default('d')", ""}, {"empty | default('d', true)", "d"},
		{"missing | d(1.5)", "1.5"}, {"' 7 ' | int", "7"}, {"missing | int", "0"}, {"text | yaml_safe", `"b"`},
		{"['a', 'b']", `["a","b"]`}, {"(text)", "b"}, {"none", "None"}, {"not (missing is defined)", "True"},
		{"text + 'x'", "error"}, {"text.upper()", "error"}, {"x[0]", "error"}, {"'a' in text", "error"}, {"", "error"},
		{"run | lower", "error"}, {"text | sort", "error"}, {"text is odd", "error"}, {"(text", "error"},
		{strings.Repeat("(", 1000) + "text" + strings.Repeat(")", 1000), "error"}, {"[text", "error"},
	}
	for _, tt := range tests {
		v, err := evaluate(tt.expression, vars)
		got := map[tkind]string{tUndefined: "undefined", tRuntime: "runtime", tOpaque: "opaque"}[v.kind]
		if v.kind == tConstant {
			got = v.text()
		}
		if err != nil {
			got = "error"
		}
		if got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.expression, got, tt.want)
		}
	}
}

// No template makes the command panic or run without end, and every finding is on a line of the template.
func FuzzConvertSpec(f *testing.F) {
	for _, name := range []string{"gpu", "homes", "older", "strict", "r", "objects"} {
		text, err := os.ReadFile(filepath.Join("testdata", "convert", name, templateFile))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	f.Add("{%- for a in kernel_volumes -%}{{ a }}{%- endfor -%}{# x #}{% raw %}{{{% endraw %}")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := readPodTemplate("t", text, map[string]string{"kernel_language": "python"})
		if err != nil {
			return
		}
		if _, err := p.units(); err != nil {
			return
		}
		last := strings.Count(text, "\n") + 1
		if i := slices.IndexFunc(p.findings, func(f Finding) bool { return f.Line < 1 || f.Line > last }); i >= 0 {
			t.Errorf("%v of %d lines", p.findings[i], last)
		}
	})
}

// White space around tags is kept or taken away as Jinja2 does it with trim_blocks and lstrip_blocks.
func TestRendering_WhiteSpace(t *testing.T) {
	tests := []struct{ template, want string }{
		{"a\n  {% if t %}\n  b\n  {% endif %}\nc", "a\n  b\nc"},
		{"a: {% if t %}b{% endif %}\nc", "a: bc"},
		{"a\n  {{ t }}\n", "a\n  T\n"},
		{"a\n  {%- if t %} b{% endif %}", "a b"},
		{"a\n  {%+ if t %}b{% endif %}", "a\n  b"},
		{"{% if t +%}\nb{% endif %}", "\nb"},
		{"{% if t -%}\n\n  b{% endif %}", "b"},
		{"x\n  {# a\n '}} #}\n  y", "x\n  y"},
		{"x {#- a -#}\n  y", "xy"},
		{"x {{- t -}}\n  y", "xTy"},
		{"# c\n{% for v in l %}\t{% for w in m or [] %}{{ w }}\n{% endfor %}# d\n{% endfor %}", "# c\n\t# d\n\t# d\n"},
		{"{{ '}}' }}{{ \"{%\" }}", "}}{%"},
		{"{% if u %}1{% elif t %}2{% else %}3{% endif %}", "2"},
	}
	for _, tt := range tests {
		nodes, err := parseTemplate(tt.template)
		if err != nil {
			t.Errorf("%q: %v", tt.template, err)
			continue
		}
		r := rendering{
			vars:  map[string]tval{"t": constant("T"), "l": constant([]any{"x", "y"})},
			marks: &marks{prefix: "zq"},
			note: func(line int, format string, args ...any) {
				t.Errorf("line %d: "+format, append([]any{line}, args...)...)
			},
		}
		r.render(nodes)
		if got := r.text.String(); got != tt.want {
			t.Errorf("%q: got %q, want %q", tt.template, got, tt.want)
		}
	}
}
