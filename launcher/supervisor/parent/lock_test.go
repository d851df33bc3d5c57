package parent

import (
	"errors"
	"path/filepath"
	"testing"
)

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	f, err := Lock(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(path); !errors.Is(err, ErrTaken) {
		t.Errorf("second lock: %v", err)
	}
	_ = f.Close()
	f, err = Lock(path)
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
}
