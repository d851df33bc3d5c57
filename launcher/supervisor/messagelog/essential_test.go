package messagelog

import (
	"testing"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
)

// TestEssential_Large: a large reply survives in short, and costs no other reply. This holds when the disk is too slow,
// when memory is full, and when segments on disk are evicted.
func TestEssential_Large(t *testing.T) {
	const least = 1 << 20
	small := func(m *jupyter.Message, _ int64) jupyter.Message {
		return jupyter.New(m.Channel, "stream", "s", nil, map[string]string{"n": jupyter.StringField(m.Content, "n")})
	}
	for name, o := range map[string]Options{
		"the disk is slow": {Limit: 64 << 20, Dir: t.TempDir(), KeepFree: 1, Least: least, Shorten: small},
		"all in memory":    {Limit: least, Shorten: small},
		"on disk":          {Limit: 4 * least, Dir: t.TempDir(), Shorten: small},
	} {
		t.Run(name, func(t *testing.T) {
			l := New(o)
			defer l.Close()
			for n := range 8000 {
				size, essential := 1000, n%100 == 0 && n < 2000
				if essential && n%200 == 0 {
					size = least / 4
				}
				l.Append(0, numbered(n, size), essential)
				if name == "on disk" && n%50 == 0 {
					spillAll(t, l)
				}
			}
			if l.keptBytes > l.memory/keptShare || o.Least > 0 && l.bytes > o.Least {
				t.Errorf("%d bytes are kept, %d are in memory", l.keptBytes, l.bytes)
			}
			seen, ends := 0, 0
			lost := 0
			for at := (Position{}); at.Seq < l.Tail().Seq; {
				got, now, missing := l.Read(at, 1, 1<<20, nil)
				for _, e := range got {
					if number(t, &e.Message) != int(e.At.Seq)-1 {
						t.Fatalf("entry %d is %s", e.At.Seq, e.Message.Content)
					}
					if e.Essential {
						ends++
					}
				}
				seen, lost, at = seen+len(got), lost+int(missing.Total()), now
			}
			if ends != 20 || seen+lost != 8000 || lost == 0 {
				t.Errorf("of 20 replies %d are left; %d read and %d lost of 8000", ends, seen, lost)
			}
		})
	}
}
