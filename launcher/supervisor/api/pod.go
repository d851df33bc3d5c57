package api

// What a pod's specification and the programs in its two containers agree on. Pods live for weeks, so a value that is
// changed here must still work with running pods.
const (
	PodConfigVariable = "EKG_SUPERVISOR_CONFIG" // environment variable of the supervisor's container; a Config in JSON
	PodSharedDir      = "/ekg"                  // in both containers; the kernel's cannot write to it
	PodChildSocket    = PodSharedDir + "/run/child.sock"
	PodHomeDir        = "/ekg-home"            // replaces folders of the kernel's container that its user cannot write to
	PodTerminationLog = "/dev/termination-log" // of each container; holds an Ending in JSON
)
