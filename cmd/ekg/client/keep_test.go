package client

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// TestKeep_GPU: --gpu keeps the GPU of a kernel, and not the kernel. 0 ends that.
func TestKeep_GPU(t *testing.T) {
	var body string
	g := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kernel := fmt.Sprintf(`{"id": %q, "name": "python3", "execution_state": "idle"`, kernelA)
		if r.Method != http.MethodPatch {
			_, _ = fmt.Fprintf(w, "[%s}]", kernel)
			return
		}
		b, _ := io.ReadAll(r.Body)
		body = string(b)
		if strings.Contains(body, "null") {
			_, _ = fmt.Fprint(w, kernel, `, "parked": {"state": "held"}}`)
			return
		}
		_, _ = fmt.Fprint(w, kernel, `, "parked": {"state": "held", "keep_gpu_until": "2026-11-21T20:00:00Z"}}`)
	}))
	defer g.Close()
	code, out, errs := ekg(t, "keep", "--gateway-url", g.URL, "--gpu", "2h", kernelA)
	at := time.Date(2026, 11, 21, 20, 0, 0, 0, time.UTC).Local().Format(time.DateTime)
	if code != 0 || out != "the GPU of "+kernelA+" is kept until "+at+"\n" ||
		!strings.HasPrefix(body, `{"keep_gpu_until":"`) {
		t.Errorf("%d %q %q, and sent %s", code, out, errs, body)
	}
	code, out, errs = ekg(t, "keep", "--gateway-url", g.URL, "--gpu", "0", kernelA)
	if code != 0 || out != "the GPU of "+kernelA+" is kept no longer\n" || body != `{"keep_gpu_until":null}` {
		t.Errorf("%d %q %q, and sent %s", code, out, errs, body)
	}
	body = ""
	for _, args := range [][]string{{"--gpu", "2h", "--off"}, {"--gpu", "2h", "--for", "1h"}, {"--gpu", "-2h"}} {
		args = append(append([]string{"keep", "--gateway-url", g.URL}, args...), kernelA)
		if code, _, errs = ekg(t, args...); code == 0 || body != "" || !strings.Contains(errs, "--gpu") {
			t.Errorf("%s: %d %q, and sent %s", args, code, errs, body)
		}
	}
	args := []string{"keep", "--gateway-url", g.URL, "--for", "-1h", kernelA}
	if _, _, errs = ekg(t, args...); !strings.Contains(errs, "--for -1h0m0s is not a positive duration") {
		t.Errorf("%q does not name the flag", errs)
	}
}
