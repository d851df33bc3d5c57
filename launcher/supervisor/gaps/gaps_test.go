package gaps

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func numberedID(n int) []byte { return fmt.Appendf(nil, "6f1c-aa_77_%d", n) }

// TestTracker_Model carries a kernel's numbered messages in two queues and loses some. Each queue keeps its order, but
// one may overtake the other. In the end the lost messages are missing. Before that, no more are missing than are lost
// or on their way.
func TestTracker_Model(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const warm = sendLimit + 2
		var g Tracker
		now := time.Unix(1e9, 0)
		for n := range warm {
			if n == 2 {
				now = now.Add(time.Hour) // the kernel was there before
			}
			if g.Observe(numberedID(n), now) {
				t.Fatal("a gap where nothing is missing")
			}
		}
		var queues [2][]int
		lost, next := 0, warm
		for range rapid.IntRange(1, 200).Draw(t, "runs") {
			size := rapid.IntRange(1, 30).Draw(t, "size")
			to := rapid.IntRange(0, 5).Draw(t, "to")
			for range size {
				switch {
				case to == 5:
					lost++
				case to == 4:
					queues[1] = append(queues[1], next)
				default:
					queues[0] = append(queues[0], next)
				}
				next++
			}
		}
		queues[0] = append(queues[0], next) // these show that something before them is missing
		for len(queues[0])+len(queues[1]) > 0 {
			q := rapid.IntRange(0, 1).Draw(t, "queue")
			if len(queues[q]) == 0 {
				q = 1 - q
			}
			if g.Observe(numberedID(queues[q][0]), now) {
				g.Attribute("cell", nil)
			}
			queues[q] = queues[q][1:]
			if missing := total(g.open); missing > lost+len(queues[0])+len(queues[1]) {
				t.Fatalf("%d are said to be missing, %d are lost and %d on the way", missing, lost, len(queues[0])+len(queues[1]))
			}
		}
		if missing := total(g.open); missing != lost {
			t.Fatalf("%d are said to be missing, %d are", missing, lost)
		}
		if len(g.open) > maxGaps {
			t.Fatalf("%d gaps", len(g.open))
		}
		if late := g.Overdue(now.Add(grace - 1)); late != nil {
			t.Fatalf("%v is overdue too early", late)
		}
		if late := total(g.Overdue(now.Add(grace))); late != lost {
			t.Fatalf("%d of %d are overdue", late, lost)
		}
	})
}

func total(open []Gap) int {
	n := 0
	for _, o := range open {
		n += int(o.Missing)
	}
	return n
}

// TestTracker_Patience: messages behind one that has just come late may come late too. Messages before it may not.
func TestTracker_Patience(t *testing.T) {
	var g Tracker
	now := time.Unix(1e9, 0)
	for _, n := range []int{0, 2000, 2010, 2020} {
		g.Observe(numberedID(n), now)
	}
	g.Observe(numberedID(2005), now.Add(grace-1))
	late := g.Overdue(now.Add(grace))
	if len(late) != 1 || late[0].last != 1999 || total(g.open) != 8+9 {
		t.Errorf("overdue is %+v, still awaited %+v", late, g.open)
	}
}

func TestTracker_OnlyInBursts(t *testing.T) {
	for name, c := range map[string]struct {
		ids  []string
		step time.Duration
		want int
	}{
		"few":                     {[]string{"s_1_0", "s_1_500"}, 0, 0},
		"many at once":            {[]string{"s_1_0", "s_1_1001"}, 0, 1000},
		"many, but slowly":        {[]string{"s_1_0", "s_1_400", "s_1_800", "s_1_1200", "s_1_1600"}, burstWindow, 0},
		"many, long ago":          {[]string{"s_1_0", "s_1_1", "s_1_900", "s_1_901", "s_1_1200"}, 3 * burstWindow, 0},
		"many over two windows":   {[]string{"s_1_0", "s_1_400", "s_1_1000"}, burstWindow * 3 / 4, 599},
		"another process":         {[]string{"s_1_0", "s_2_5000", "s_2_5001"}, 0, 0},
		"no counter":              {[]string{"a-b", "a-f", "x_y"}, 0, 0},
		"a counter of who knows":  {[]string{"6ba7b810_1", "6ba7b810_5000"}, 0, 0},
		"a counter out of bounds": {[]string{"s_1_0", "s_1_99999999999999999999999"}, 0, 0},
	} {
		var g Tracker
		now := time.Unix(1e9, 0)
		for _, id := range c.ids {
			g.Observe([]byte(id), now)
			now = now.Add(c.step)
		}
		if got := total(g.open); got != c.want {
			t.Errorf("%s: %d are said to be missing, want %d", name, got, c.want)
		}
	}
}

// TestTracker_Overtaken: replies of later cells come on a channel of their own. They can look like gaps when an earlier
// cell ends. Messages numbered above its idle are behind it.
func TestTracker_Overtaken(t *testing.T) {
	for _, lost := range []int{0, 200} {
		var g Tracker
		now := time.Unix(1e9, 0)
		n := 0
		come := func(numbers ...int) {
			for _, n := range numbers {
				g.Observe(numberedID(n), now)
			}
		}
		for ; n < sendLimit+2; n++ {
			come(n)
		}
		n += lost
		idle := n + 1
		come(n) // the cell's reply, before its idle
		var iopub []int
		for first := idle + 1; first < idle+1+40*4; first += 4 { // busy, input, reply, idle of each cell behind it
			come(first + 2)
			iopub = append(iopub, first, first+1, first+3)
		}
		come(idle)
		if got := g.Settle(numberedID(idle), 0); got != uint64(lost) {
			t.Errorf("%d are said to be lost, want %d", got, lost)
		}
		if total(g.open) > len(iopub) {
			t.Errorf("%d are awaited, %d are behind", total(g.open), len(iopub))
		}
		come(iopub...)
		if missing := total(g.open); missing != 0 {
			t.Errorf("%d are said to be missing when all have come", missing)
		}
	}
}
