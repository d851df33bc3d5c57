package kube

import "github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"

// Annotations of a kernel's pod that gateways change while the pod lives. Those of podspec are written when the pod is
// built.
const (
	annotationSessions = podspec.Domain + "sessions"    // []launcher.Session in JSON
	annotationShared   = podspec.Domain + "shared-with" // []launcher.Grant in JSON
	// "true": launcher.Notes.SharedToUse; else it is missing or empty
	annotationSharedToUse = podspec.Domain + "shared-to-use"
)

const (
	annotationClaimed = podspec.AnnotationClaimed
	unclaimed         = podspec.Unclaimed
	claimed           = podspec.Claimed
)
