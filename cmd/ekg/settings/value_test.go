package settings

import (
	"testing"
)

func TestSize(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "17": 17, "5B": 5, "1KiB": 1024, "64MiB": 64 << 20, "2 GiB": 2 << 30, "3MB": 3e6, "1TiB": 1 << 40,
	} {
		if got, err := parseSize(text); err != nil || got != want {
			t.Errorf("%s: got %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "MiB", "-1", "1.5GiB", "1 Gi", "9999999TiB", "0x10", "1_000"} {
		if got, err := parseSize(text); err == nil {
			t.Errorf("%q: got %d", text, got)
		}
	}
	for n, want := range map[int64]string{
		0: "0", 1000: "1000", 1024: "1KiB", 1536 << 10: "1536KiB", 1 << 30: "1GiB", 1<<30 + 1: "1073741825",
	} {
		if got := formatSize(n); got != want {
			t.Errorf("%d: got %s, want %s", n, got, want)
		}
	}
}
