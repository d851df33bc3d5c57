package listener

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// panicVariable makes the test's program serve one request whose handler panics.
const panicVariable = "EKG_TEST_PANIC"

func TestMain(m *testing.M) {
	if os.Getenv(panicVariable) != "" {
		s := httptest.NewServer(EndOnPanic(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { faulty() })))
		_, _ = http.Get(s.URL) // it has no answer
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func faulty() { panic("out of cheese") }

func TestEndOnPanic(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), panicVariable+"=1")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != panicCode {
		t.Errorf("it ends with %v", err)
	}
	if got := stderr.String(); !strings.HasPrefix(got, "panic: out of cheese\n") || !strings.Contains(got, "faulty(") {
		t.Errorf("it writes %s", got)
	}
}

func TestEndOnPanic_Abort(t *testing.T) {
	s := httptest.NewServer(EndOnPanic(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		panic(http.ErrAbortHandler)
	})))
	defer s.Close()
	if resp, err := http.Get(s.URL); err == nil {
		_ = resp.Body.Close()
		t.Errorf("the aborted request has an answer: %s", resp.Status)
	}
}
