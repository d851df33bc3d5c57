package main

import "time"

// reserve gives each session a GPU of its own from its start on.
func reserve(trace []session) (o outcome) {
	for i := range trace {
		o.held += horizon - trace[i].start
		trace[i].undelayed(func(_, _ time.Duration) { o.waits = append(o.waits, 0) })
	}
	return o
}

// cull ends a kernel that has used its GPU for no cell for some time. Its next cell starts another one.
func cull(trace []session, after time.Duration) (o outcome) {
	for i := range trace {
		from, idle := trace[i].start, trace[i].start // of the present kernel, and of its idle time
		trace[i].undelayed(func(begin, end time.Duration) {
			o.waits = append(o.waits, 0)
			if begin-idle > after {
				o.held += idle + after - from
				o.lost++
				from = begin
			}
			idle = end
		})
		o.held += min(idle+after, horizon) - from
	}
	return o
}

// best is the least that is possible: a GPU is used while a cell computes, and no cell waits.
func best(trace []session) (o outcome) {
	for i := range trace {
		trace[i].undelayed(func(from, to time.Duration) {
			o.held += to - from
			o.waits = append(o.waits, 0)
		})
	}
	return o
}
