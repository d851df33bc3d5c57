package gpu

import (
	"encoding/json"
	"math"
	"testing"
)

func TestAmount(t *testing.T) {
	for _, tt := range []struct {
		text string
		want Amount
		back string // "" if the text is rejected
	}{
		{"0", 0, "0"}, {"1", One, "1"}, {"2.0", 2 * One, "2"}, {"0.25", 250, "0.25"}, {"0.001", 1, "0.001"},
		{"1000000", maxAmount, "1000000"},
		{"", 0, ""}, {"-1", 0, ""}, {"+1", 0, ""}, {"1.", 0, ""}, {".5", 0, ""}, {"0.0001", 0, ""}, {"1e3", 0, ""},
		{"1000001", 0, ""}, {"0.-5", 0, ""}, {"0x1", 0, ""}, {"NaN", 0, ""}, {"1.2.3", 0, ""},
	} {
		got, err := ParseAmount(tt.text)
		if (err == nil) != (tt.back != "") || err == nil && (got != tt.want || got.String() != tt.back) {
			t.Errorf("%q is %d, %q, %v; want %d, %q", tt.text, got, got, err, tt.want, tt.back)
		}
	}
}

// Amounts stay between zero and a million GPUs, so that sums of them do not overflow.
func TestAmount_Bounds(t *testing.T) {
	for _, tt := range []struct{ got, want Amount }{
		{Whole(3), 3 * One}, {Whole(1 << 62), maxAmount}, {Whole(math.MaxInt64), maxAmount},
		{Amount(250).Times(2, 1), 500}, {Amount(2000).Times(1, 3), 666}, {Amount(0).Times(1<<62, 1), 0},
		{One.Times(1_000_000, 1), maxAmount}, {One.Times(1_000_001, 1), maxAmount}, {One.Times(2_000_000, 2), maxAmount},
		{(2 * One).Times(math.MaxInt64/1000, 1), maxAmount}, {maxAmount.Times(1, 1), maxAmount},
		{Amount(1).Times(math.MaxInt64, 1<<20), maxAmount},
	} {
		if tt.got != tt.want {
			t.Errorf("%d, want %d", tt.got, tt.want)
		}
	}
}

func TestAmount_JSON(t *testing.T) {
	b, err := json.Marshal([]Amount{0, 2 * One, 333})
	if err != nil || string(b) != "[0,2,0.333]" {
		t.Errorf("%s, %v", b, err)
	}
	var back []Amount
	if err := json.Unmarshal(b, &back); err != nil || back[1] != 2*One || back[2] != 333 {
		t.Errorf("%v, %v", back, err)
	}
	for _, text := range []string{"-1", `"1"`, "1e30", "{}"} {
		if err := json.Unmarshal([]byte(text), new(Amount)); err == nil {
			t.Errorf("%s is accepted", text)
		}
	}
}
