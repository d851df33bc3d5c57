package gpu

// Held is a GPU of a machine, or an instance of one, with the kernels that hold it.
type Held struct {
	UUID        string   `json:"uuid"`
	Model       string   `json:"model,omitempty"`
	Profile     string   `json:"profile,omitempty"`      // of an instance (MIG); "": it is a whole GPU
	MemoryTotal int64    `json:"memory_total,omitempty"` // bytes; 0: unknown
	Healthy     bool     `json:"healthy"`
	Error       string   `json:"error,omitempty"` // why it is not healthy
	Holders     []Holder `json:"holders"`
	Pinned      []string `json:"-"` // ids of kernels that take it when they need it, whether they hold it now or not
}

// Holder is a kernel that holds a GPU.
type Holder struct {
	Kernel string `json:"kernel"` // id; "" if it is not known
	Share  Amount `json:"share"`  // of the GPU; One: it has the GPU for itself
}
