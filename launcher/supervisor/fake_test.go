package supervisor

import (
	"os"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest"
)

// fakeKernelVariable makes this test's program run as the fake kernel.
const fakeKernelVariable = "EKG_TEST_FAKE_KERNEL"

func TestMain(m *testing.M) {
	if os.Getenv(fakeKernelVariable) != "" {
		os.Exit(launchertest.FakeKernelMain(os.Args[1:]))
	}
	os.Exit(m.Run())
}

// fakeKernelArgv runs the fake kernel with further flags.
func fakeKernelArgv(flags ...string) []string {
	return append([]string{os.Args[0], "-f", "{connection_file}"}, flags...)
}
