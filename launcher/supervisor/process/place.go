package process

// Place is where a kernel's process runs, as its supervisor sees it. It chooses the words of sentences for the owner.
type Place int

// The places. A container is another one than the supervisor's, in the same pod.
const (
	OnMachine Place = iota
	InContainer
)

// Kernel names what ends when the kernel does.
func (p Place) Kernel() string {
	if p == InContainer {
		return "the kernel's container"
	}
	return "the kernel's process"
}

// Starter names what starts the kernel's process.
func (p Place) Starter() string {
	if p == InContainer {
		return "the kernel's container"
	}
	return "the program that starts the kernel's process"
}

// lost says that the kernel has ended and its exit status is not known.
func (p Place) lost() string {
	s := p.Kernel() + " ended without a known reason"
	if p == InContainer {
		s += "; that happens when it runs out of memory"
	}
	return s
}

// outOfMemory says what ran out of memory if the kernel's own control group has no limit.
func (p Place) outOfMemory() string {
	if p == InContainer {
		return "the memory of the machine or of its container ran out"
	}
	return "the memory of the machine ran out, or the part of it that ekg may use"
}
