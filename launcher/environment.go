package launcher

import "strings"

// ReservedVariable reports whether a variable is never part of a kernel's environment, even if a client, a kernelspec
// or the gateway's own environment sets it. These are the settings of ekg and of Enterprise Gateway, which include the
// gateway's token, and JPY_PARENT_PID. The latter makes ipykernel exit when the process with that id ends.
func ReservedVariable(name string) bool {
	return name == "JPY_PARENT_PID" || strings.HasPrefix(name, "EKG_") || strings.HasPrefix(name, "EG_")
}
