package devices

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
)

// listLimit bounds ekg-gpu list. A driver that nothing keeps awake takes seconds.
const listLimit = 30 * time.Second

// List asks ekg-gpu for the GPUs of this machine. Without the program, or if it fails, the list is empty and has a
// reason.
func List(ctx context.Context, program string, env []string) gpu.List {
	if program == "" {
		return gpu.List{Reason: "the program ekg-gpu is not beside ekg-supervisor"}
	}
	ctx, cancel := context.WithTimeout(ctx, listLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "list")
	cmd.Env, cmd.WaitDelay = env, time.Second
	out, err := cmd.Output()
	var l gpu.List
	if err == nil {
		l, err = gpu.ParseList(out)
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		err = errors.New(strings.ToValidUTF8(strings.TrimSpace(string(exit.Stderr)), ""))
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("no answer within %s", listLimit)
	}
	if err != nil {
		return gpu.List{Reason: fmt.Sprintf("ekg-gpu cannot list them: %v", err)}
	}
	return l
}
