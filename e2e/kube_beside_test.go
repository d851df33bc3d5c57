//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// beacon is a program beside the kernel. It notes each of its starts, and crashes or uses too much memory on request.
const beacon = `
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
with open('/work/starts', 'a') as f: f.write('started\n')
while True:
    for wish in 'crash', 'eat':
        if os.path.exists('/work/' + wish):
            os.remove('/work/' + wish)
            if wish == 'crash': sys.exit(3)
            all = [b'x' * 2**20 for _ in range(10**6)]
    time.sleep(0.1)
`

// TestE2E_KubeBeside: an init container, a hook and a container beside the kernel's run. Whatever happens to them, the
// kernel runs on, and they do not outlive it.
func TestE2E_KubeBeside(t *testing.T) {
	t.Parallel() // it mostly waits
	k := newKubeGateway(t, "--start-wait", "2s")
	const image = "localhost/kernel-py:dev"
	mounts := []any{map[string]any{"name": "work", "mountPath": "/work"}}
	with := func(init string) map[string]any {
		return map[string]any{
			"image":        image,
			"volumes":      []any{map[string]any{"name": "work", "emptyDir": map[string]any{}}},
			"volumeMounts": mounts,
			"initContainers": []any{map[string]any{
				"name": "clone", "image": image, "command": []string{"/bin/sh", "-c", init}, "volumeMounts": mounts,
			}},
			"containers": []any{map[string]any{
				"name": "beacon", "image": image, "command": []string{"python3", "-c", beacon}, "volumeMounts": mounts,
				"resources": map[string]any{"limits": map[string]any{"memory": "64Mi"}},
			}},
			"lifecycle": map[string]any{"postStart": map[string]any{
				"exec": map[string]any{"command": []string{"/bin/sh", "-c", "echo hook > /work/hook"}}}},
		}
	}
	k.podSpec("beside", with("echo cloned > /work/clone"))
	k.podSpec("fails", with("echo no such branch >&2; exit 3"))
	k.start()

	id := k.kernel("beside")
	k.state(id, "idle", time.Minute)
	c := k.dial(t, id, "s", true)
	c.says("print(open('/work/clone').read() + open('/work/hook').read()); x = 1", "cloned\nhook\n\n")
	const restarted = `import os, time
open('/work/%s', 'w').close()
for _ in range(300):
    starts = open('/work/starts').read().count('started')
    if starts == %d: break
    time.sleep(0.1)
print(starts)`
	for i, wish := range []string{"crash", "eat"} {
		r := c.execute(fmt.Sprintf(restarted, wish, i+2), time.Minute)
		if want := fmt.Sprintln(i + 2); r.stdout != want {
			t.Fatalf("after %s the beacon was started %q times, want %q", wish, r.stdout, want)
		}
		if m := k.state(id, "idle", 10*time.Second); m.Reason != "" {
			t.Errorf("after %s the kernel's reason is %q", wish, m.Reason)
		}
	}
	c.says("print(x)", "1\n")
	k.want(200, "POST", "/api/kernels/"+id+"/restart", "", nil)
	k.state(id, "idle", time.Minute)
	k.dial(t, id, "again", true).says("print('x' in globals())", "False\n")
	if pods := k.podsOf(id); len(pods) != 1 {
		t.Errorf("the kernel has %d pods", len(pods))
	}

	failing := k.kernel("fails")
	k.waits(failing, `container "clone" ended with exit code 3: no such branch`)
	if m := k.state(failing, "starting", time.Second); strings.Contains(m.Reason, "kernel's container") {
		t.Errorf("the reason is %q", m.Reason)
	}
	for _, id := range []string{id, failing} {
		began := time.Now()
		k.want(204, "DELETE", "/api/kernels/"+id, "", nil)
		t.Logf("DELETE: %v", time.Since(began).Round(10*time.Millisecond))
		k.podsGone(id)
	}
	k.nothingLeft()
}
