// Package wake wakes a goroutine that reads a channel of capacity 1. The channel holds at most one value, so a reader
// that is busy looks once more, however often it was woken meanwhile.
package wake

// Reader sends to c unless c is full. It never blocks, and may be called concurrently. c must have a capacity of 1:
// without one, a reader that is busy would miss the value.
func Reader(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
