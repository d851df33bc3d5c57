package launcher

import (
	"slices"
	"testing"
)

// TestGiveWay: as few kernels as possible end, those that go first before others, and none for nothing.
func TestGiveWay(t *testing.T) {
	// A kernel's letter is followed by the GPUs that its end gives back: "w1".
	place := func(name string, want, free int, ends ...string) Place {
		return Place{Name: name, Ends: ends, Fits: func(ended []string) bool {
			room := free
			for _, e := range ended {
				room += int(e[1] - '0')
			}
			return room >= want
		}}
	}
	for name, c := range map[string]struct {
		places []Place
		at     string
		ends   []string
	}{
		"no place":              {nil, "", nil},
		"there is room":         {[]Place{place("m", 1, 1, "w1")}, "", nil},
		"room at another place": {[]Place{place("m", 1, 0, "w1"), place("n", 1, 1, "v1")}, "", nil},
		"no kernel may end":     {[]Place{place("m", 1, 0)}, "", nil},
		"all are not enough":    {[]Place{place("m", 3, 0, "w1", "v1")}, "", nil},
		"the first":             {[]Place{place("m", 1, 0, "w1", "v1")}, "m", []string{"w1"}},
		"two":                   {[]Place{place("m", 2, 0, "w1", "v1", "u1")}, "m", []string{"w1", "v1"}},
		"a part is free":        {[]Place{place("m", 2, 1, "w1", "v1")}, "m", []string{"w1"}},
		"the fewest":            {[]Place{place("m", 2, 0, "w1", "v1"), place("n", 2, 0, "u2")}, "n", []string{"u2"}},
		"equal places":          {[]Place{place("m", 1, 0, "w1"), place("n", 1, 0, "u1")}, "m", []string{"w1"}},
		"one that helps alone":  {[]Place{place("m", 2, 0, "w1", "v2")}, "m", []string{"v2"}},
		"one that holds none":   {[]Place{place("m", 1, 0, "w0", "v1")}, "m", []string{"v1"}},
		"only another place": {[]Place{place("m", 2, 0, "w1"), place("n", 2, 0, "v1", "u1", "t1")}, "n",
			[]string{"v1", "u1"}},
	} {
		t.Run(name, func(t *testing.T) {
			if at, ends := GiveWay(c.places); at != c.at || !slices.Equal(ends, c.ends) {
				t.Errorf("%s: %q, want %s: %q", at, ends, c.at, c.ends)
			}
		})
	}
}
