package goroutines

// Wake wakes the goroutine that reads c: it sends to c unless c is full. c must have a capacity of 1. It then holds at
// most one value, so a reader that is busy looks once more, however often it was woken meanwhile. Wake never blocks. It
// may be called concurrently.
func Wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
