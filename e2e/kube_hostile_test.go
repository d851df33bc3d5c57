//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// hostileValues are variables that would mean something to a shell, a template, a kubelet or a terminal. They must
// arrive unchanged.
var hostileValues = map[string]string{
	"KERNEL_REFERENCE": "$(KERNEL_LONG) $(HOME) $$(HOME) $$ $ ${HOME} $HOME \\$(HOME)",
	"KERNEL_QUOTES":    "a'b\"c`id`\\ \\n \\\" '\"'\"'",
	"KERNEL_LINES":     "one\ntwo\r\nthree\tfour\n",
	"KERNEL_SHELL":     "; touch /tmp/hostile; $(touch /tmp/hostile) | `touch /tmp/hostile` && exit 1 #",
	"KERNEL_TEMPLATE":  "{{ 7*7 }} {{.Values}} {% raw %} <%= 7 %> ${{ x }} {connection_file} {resource_dir} %s%n",
	"KERNEL_TERMINAL":  "\x1b[31mred\x1b[0m\x07\x7f",
	"KERNEL_UNICODE":   "ünï ✓ \u202e\u2028 \U0001F600",
	"KERNEL_YAML":      "---\n- x: &a [*a]\nenv: null\n",
	"KERNEL_LONG":      strings.Repeat("$(A)", 7500),
	"KERNEL_SPACE":     "  ",
	"KERNEL_NOTHING":   "",
}

// startWith starts a kernel with variables and returns its id.
func (g *gateway) startWith(spec, id string, env map[string]string) string {
	g.t.Helper()
	body, err := json.Marshal(map[string]any{"name": spec, "kernel_id": id, "env": env})
	if err != nil {
		g.t.Fatal(err)
	}
	var m model
	g.want(http.StatusCreated, "POST", "/api/kernels", string(body), &m)
	return m.ID
}

// finds checks that the kernel has these variables in its environment, unchanged.
func (c *client) finds(env map[string]string) {
	c.t.Helper()
	r := c.execute("import os, json\nprint(json.dumps({k: v for k, v in os.environ.items() if k.startswith('KERNEL_')}))",
		60*time.Second)
	var got map[string]string
	if err := json.Unmarshal([]byte(r.stdout), &got); err != nil {
		c.t.Fatalf("%v in %.500q, reply %.500s", err, r.stdout, r.reply.Content)
	}
	for name, value := range env {
		if found, there := got[name]; !there || found != value {
			c.t.Errorf("%s: got %.200q, want %.200q", name, found, value)
		}
	}
}

// TestE2E_KubeHostile: values of a client or a kernelspec arrive in the pod unchanged, or are rejected by name. They
// create no other pod, and reach no secret of another kernel.
func TestE2E_KubeHostile(t *testing.T) {
	const id = "5ec2e700-0000-4000-8000-000000000001"
	secret := "ekg-" + id + "-1"
	k := newKubeGateway(t, "--start-wait", "60s")
	type object = map[string]any
	named := object{"name": secret}
	fromSecret := object{"name": "kernel", "envFrom": []any{object{"secretRef": named}}}
	stealing := map[string]object{
		"volume":    {"volumes": []any{object{"name": "v", "secret": object{"secretName": secret}}}},
		"projected": {"volumes": []any{object{"name": "v", "projected": object{"sources": []any{object{"secret": named}}}}}},
		"variable": {"env": []any{
			object{"name": "A", "valueFrom": object{"secretKeyRef": object{"name": secret, "key": "token"}}},
		}},
		"all":  {"pod": object{"spec": object{"containers": []any{fromSecret}}}},
		"pull": {"imagePullSecrets": []any{named}},
	}
	for name, ekg := range stealing {
		ekg["image"] = "localhost/kernel-py:dev"
		k.podSpec(name, ekg)
	}
	k.start()
	began := time.Now()
	k.startWith("pod", id, hostileValues)
	c := k.dial(t, id, "s", true)
	c.finds(hostileValues)
	c.says(`import os
paths = '/tmp/hostile', '/ekg-secret', '/var/run/secrets/kubernetes.io'
print([os.path.exists(path) for path in paths], any('EKG' in v and 'TOKEN' in v for v in os.environ))`,
		"[False, False, False] False\n")

	refused := func(body, reason string) {
		t.Helper()
		status, b := k.ask("POST", "/api/kernels", body)
		var answer struct{ Reason, Message string }
		if err := json.Unmarshal(b, &answer); err != nil || status != http.StatusForbidden ||
			!strings.Contains(answer.Message, reason) ||
			answer.Reason == "" {
			t.Errorf("%s: got %d %s, want 403 with %s", body, status, b, reason)
		}
	}
	for name := range stealing {
		refused(fmt.Sprintf(`{"name": %q}`, name), fmt.Sprintf("%q is one of ekg's own secrets", secret))
	}
	for name, values := range map[string][]string{
		"KERNEL_UID":                  {"0", "00", "+0", "0x0", " 0", "-0", "4294967296", "\u0660", "65532"},
		"KERNEL_GID":                  {"0", "00"},
		"KERNEL_VOLUMES":              {fmt.Sprintf("- {name: v, secret: {secretName: %s}}", secret)},
		"KERNEL_NAMESPACE":            {"kube-system"},
		"KERNEL_SERVICE_ACCOUNT_NAME": {"admin"},
		"KERNEL_IMAGE":                {"evil.example/x"},
		"KERNEL_POD_NAME":             {"x"},
		"KERNEL_CPUS":                 {"1e999999999"},
	} {
		for _, value := range values {
			body, err := json.Marshal(map[string]any{"name": "pod", "env": map[string]string{name: value}})
			if err != nil {
				t.Fatal(err)
			}
			refused(string(body), name)
		}
	}
	if pods := k.pods(); len(pods) != 1 || pods[0].Metadata.Name != id+"-1" {
		t.Errorf("pods: %+v", pods)
	}
	c.says("print('unharmed')", "unharmed\n")
	k.want(http.StatusNoContent, "DELETE", "/api/kernels/"+id, "", nil)
	k.nothingLeft()
	t.Logf("it took %v", time.Since(began).Round(time.Second))
}
