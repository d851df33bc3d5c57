package goroutines_test

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
)

func fails() error { panic("what a user has sent") }

func TestContain(t *testing.T) {
	err := goroutines.Contain(fails)
	var caught *goroutines.PanicError
	if !errors.As(err, &caught) {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{"panic: what a user has sent", "goroutines_test.fails"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %s", want, err)
		}
	}
	if err := goroutines.Contain(func() error { return io.EOF }); !errors.Is(err, io.EOF) {
		t.Errorf("without a panic: %v", err)
	}
}
