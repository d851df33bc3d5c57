package supervisor

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/child"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/listener"
)

// Environment variables that make this test's program run as something else.
const (
	fakeKernelVariable = "EKG_TEST_FAKE_KERNEL" // the fake kernel
	podVariable        = "EKG_TEST_POD"         // a supervisor, with this configuration
	childVariable      = "EKG_TEST_CHILD"       // a child, which dials this socket
	homeVariable       = "EKG_TEST_CHILD_HOME"  // its child.Options.Home
)

func TestMain(m *testing.M) {
	if os.Getenv(launcherVariable) != "" {
		os.Exit(launcherMain())
	}
	if os.Getenv(fakeKernelVariable) != "" {
		os.Exit(launchertest.FakeKernelMain(os.Args[1:]))
	}
	if os.Getenv(podVariable) != "" {
		os.Exit(podMain(os.Getenv(podVariable)))
	}
	if os.Getenv(childVariable) != "" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		os.Exit(child.Run(ctx, child.Options{
			Socket: os.Getenv(childVariable), Home: os.Getenv(homeVariable), Stdout: os.Stdout, Stderr: os.Stderr,
			Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		}))
	}
	os.Exit(m.Run())
}

// podMain is a supervisor as a program.
func podMain(config string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	cfg, err := api.ParseConfig([]byte(config))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	l, err := listener.Open(&cfg)
	if err == nil {
		err = Serve(ctx, New(cfg, "test", slog.New(slog.NewTextHandler(os.Stderr, nil))), l)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// fakeKernelArgv runs the fake kernel with further flags.
func fakeKernelArgv(flags ...string) []string {
	return append([]string{os.Args[0], "-f", "{connection_file}"}, flags...)
}
