// Package logkey names the attributes of ekg's log lines. Every package that logs uses these keys and no other, so that
// one query finds all lines about a kernel, a pod or a request. The linter rejects keys that are written out.
package logkey

// Keys that more than one component uses.
const (
	At        = "at"        // a time
	Component = "component" // the part of ekg that logs
	Err       = "err"       // an error
	Kernel    = "kernel"    // id of a kernel
	Kernels   = "kernels"   // a number of kernels, or what happens to them
	Limit     = "limit"     // name of the limit that was reached
	Method    = "method"    // of an HTTP request
	Namespace = "namespace" // of an object in the cluster
	PID       = "pid"       // of a process
	Pod       = "pod"       // name of a pod
	Reason    = "reason"    // why a kernel ended or waits, as its owner reads it
	Remote    = "remote"    // address of a client
	Request   = "request"   // id of a request; the supervisor logs the same as the gateway
	Route     = "route"     // pattern of an HTTP route
	Session   = "session"   // id of a session
	Signal    = "signal"    // name of a signal
	Spec      = "spec"      // name of a kernelspec
	Status    = "status"    // of an HTTP response
	Took      = "took"      // a duration
	User      = "user"      // name of a user
	Version   = "version"   // of ekg
)

// Keys of cmd/ekg.
const (
	Cluster  = "cluster"   // host of the Kubernetes API
	File     = "file"      // path of a file
	KillMode = "kill_mode" // of the systemd unit
	Listen   = "listen"    // the setting --listen
	Names    = "names"     // of environment variables or settings
	PProf    = "pprof"     // whether profiles are served
	Rules    = "rules"     // of the policy
	StateDir = "state_dir" // the setting --state-dir
	URL      = "url"       // of a listener
)

// Keys of the gateway and its packages.
const (
	Cause      = "cause"      // why a websocket was closed
	Definition = "definition" // id of a job definition
	Dir        = "dir"        // a folder of kernelspecs
	In         = "in"         // bytes from the client
	Job        = "job"        // id of a job
	Member     = "member"     // of a request's body
	Out        = "out"        // bytes to the client
	Source     = "source"     // of users: an issuer, a cluster or a hub
	Until      = "until"      // a time
	Users      = "users"      // a number of users
)

// Keys of the launchers.
const (
	Claim     = "claim"      // name of a PersistentVolumeClaim
	ConfigMap = "configmap"  // name of a ConfigMap
	DaemonSet = "daemonset"  // name of a DaemonSet
	Deployed  = "deployment" // name of a Deployment
	Entry     = "entry"      // of the state directory
	Images    = "images"     // names of images, with spaces between them
	Key       = "key"        // in a ConfigMap
	Killed    = "killed"     // a number of processes
	Lease     = "lease"      // namespace and name of a Lease
	MasterKey = "master_key" // fingerprint of the master key of new kernels
	SecondKey = "second_key" // fingerprint of the second master key
	Nodes     = "nodes"      // a number of nodes
	Object    = "object"     // resource and name of an object of a namespace
	Pause     = "pause"      // a duration before the next attempt
	Pods      = "pods"       // a number of pods
	Replica   = "replica"    // pod of another gateway
	To        = "to"         // new name of an entry of the state directory
	Unused    = "unused"     // since a time
	Waits     = "waits"      // id of a kernel that waits
	What      = "what"       // what the cluster was asked for
)

// Keys of the supervisor.
const (
	Adopted    = "adopted"    // whether the kernel ran before its supervisor
	Answered   = "answered"   // whether the kernel answers heartbeats
	AtMost     = "at_most"    // a duration
	Attempt    = "attempt"    // number of an attempt
	Connection = "connection" // number of a websocket
	Count      = "count"      // a number of messages
	Others     = "others"     // a number of similar events before this one that have no line of their own
	Epoch      = "epoch"      // number of the kernel's process
	GPU        = "gpu"        // what has become of the kernel's GPU memory
	Line       = "line"       // type of a message between child and supervisor
	Sent       = "sent"       // bytes to the client
	Memory     = "memory"     // bytes of a GPU's memory
	Waited     = "waited"     // a duration, before something began
	UID        = "uid"        // id of a user of the machine
)
