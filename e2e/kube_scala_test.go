//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestE2E_KubeEnterpriseScala: an image with the launcher for Scala of Enterprise Gateway runs unchanged, with Apache
// Toree and Spark in one process. Its kernelspec is Enterprise Gateway's own, converted with --keep-launcher.
func TestE2E_KubeEnterpriseScala(t *testing.T) {
	t.Parallel() // it mostly waits
	k, peers := enterpriseGateway(t, "kernel-spark")
	k.convertedScala(filepath.Join(peers, "eg-source", "etc"))
	k.start()
	k.token = "token-bob"

	const limit = 3 * time.Minute // Java starts slowly on a busy machine
	id := k.kernel("scala_kubernetes")
	k.state(id, "idle", limit)
	s := k.dial(t, id, "s", true)
	s.showsInScala("val x = 41 + 1; println(x)", "stream", `42\n`)
	s.showsInScala(`println(sys.env("RESPONSE_ADDRESS") + " " + sys.env("KERNEL_USERNAME"))`, "stream", "127.0.0.1:8877 bob")
	s.showsInScala("x", "execute_result", "42")
	s.showsInScala(`kernel.display.html("<b>bold</b>")`, "display_data", "<b>bold</b>")
	s.showsInScala("1 / 0", "error", "/ by zero")
	// Toree interrupts a cell only if there is a Spark context.
	s.showsInScala("kernel.sparkContext.parallelize(1 to 10).map(_ * 2).sum", "execute_result", "110.0")
	cell := s.begin("println(\"begun 1\")\nThread.sleep(600000)")
	s.begun(cell)
	k.want(204, "POST", "/api/kernels/"+id+"/interrupt", "", nil)
	if r := s.finish(cell, time.Minute); r.reply.field("ename") != "java.lang.InterruptedException" {
		t.Errorf("the cell ended with %s", r.reply.Content)
	}
	s.showsInScala("println(x)", "stream", `42\n`)
	k.want(200, "POST", "/api/kernels/"+id+"/restart", "", nil)
	k.state(id, "idle", limit)
	k.dial(t, id, "again", true).showsInScala("x", "error", "not found: value x")
	if pods := k.podsOf(id); len(pods) != 1 || pods[0].Metadata.Name != id+"-1" {
		t.Errorf("it is not the same pod: %+v", pods)
	}
	k.want(204, "DELETE", "/api/kernels/"+id, "", nil)
	k.podsGone(id)
	k.nothingLeft()
}

// showsInScala runs a cell until its reply has come, and a message of this type with this text. Toree sends results and
// errors before its idle status or after it.
func (c *client) showsInScala(code, msgType, text string) {
	c.t.Helper()
	id := c.begin(code)
	replied, shown := false, false
	c.until(time.Minute, fmt.Sprintf("reply to %q and %s with %q", code, msgType, text), func(m message) bool {
		if m.Parent.MsgID == id {
			replied = replied || m.Channel == "shell"
			shown = shown || m.Header.MsgType == msgType && strings.Contains(string(m.Content), text)
		}
		return replied && shown
	})
}

// convertedScala converts Enterprise Gateway's kernelspec for Scala. Only the image has another name.
func (k *inCluster) convertedScala(source string) {
	k.t.Helper()
	dir := filepath.Join(k.t.TempDir(), "scala_kubernetes")
	spec, err := os.ReadFile(filepath.Join(source, "kernelspecs", "scala_kubernetes", "kernel.json"))
	text := strings.Replace(string(spec), "elyra/kernel-scala:VERSION", "localhost/kernel-spark:dev", 1)
	err = errors.Join(err, os.CopyFS(dir, os.DirFS(filepath.Join(source, "kernel-launchers", "kubernetes"))),
		os.WriteFile(filepath.Join(dir, "kernel.json"), []byte(text), 0o644))
	if err != nil {
		k.t.Fatal(err)
	}
	out, err := migrateCommand(k.t, k.gateway.in, "kernelspec", "--keep-launcher", "--output",
		filepath.Join(k.dir, "specs"), dir).CombinedOutput()
	k.t.Logf("%s", out)
	if exit := (*exec.ExitError)(nil); err != nil && !(errors.As(err, &exit) && exit.ExitCode() == 3) {
		k.t.Fatal(err)
	}
}
