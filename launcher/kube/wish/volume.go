package wish

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// volume checks the source of a volume.
func (c *checker) volume(where string, v *corev1.Volume) {
	kind, n := volumeKind(v.VolumeSource)
	if n != 1 {
		c.refuse(where, "%s has %d kinds of source; it must have exactly one (an empty volume is written as emptyDir)",
			Quoted(v.Name), n)
		return
	}
	if !slices.Contains(c.bounds.Volumes, kind) || !slices.Contains(volumeKinds, kind) {
		c.refuse(where+"."+kind, "volumes of this kind are not allowed; allowed: %s", listOrNothing(c.bounds.Volumes))
		return
	}
	where += "." + kind
	switch kind {
	case "secret":
		c.secret(where+".secretName", v.Secret.SecretName, c.bounds.Secrets)
	case "configMap":
		c.configMap(where+".name", v.ConfigMap.Name)
	case "persistentVolumeClaim":
		c.claim(where+".claimName", v.PersistentVolumeClaim.ClaimName)
	case "ephemeral":
		if t := v.Ephemeral.VolumeClaimTemplate; t != nil {
			where += ".volumeClaimTemplate"
			c.claimAnnotations(where+".metadata.annotations", t.Annotations)
			c.claimSources(where+".spec", &t.Spec, c.spec != nil)
		}
	case "image":
		c.image(where+".reference", v.Image.Reference)
	case "csi":
		if ref := v.CSI.NodePublishSecretRef; ref != nil {
			c.secret(where+".nodePublishSecretRef.name", ref.Name, c.bounds.Secrets)
		}
	case "projected":
		for i, s := range v.Projected.Sources {
			c.projection(fmt.Sprintf("%s.sources[%d]", where, i), &s)
		}
	}
}

// projection checks one source of a projected volume.
func (c *checker) projection(where string, s *corev1.VolumeProjection) {
	switch {
	case s.ServiceAccountToken != nil:
		c.refuse(where+".serviceAccountToken", "cannot be projected; %s mounts the token of the pod's own account",
			ShortPath("serviceAccountToken"))
	case s.ClusterTrustBundle != nil || s.PodCertificate != nil:
		c.refuse(where, "only secret, configMap and downwardAPI can be projected")
	case s.Secret != nil && s.ConfigMap != nil:
		c.refuse(where, "has more than one source")
	case s.Secret != nil:
		c.secret(where+".secret.name", s.Secret.Name, c.bounds.Secrets)
	case s.ConfigMap != nil:
		c.configMap(where+".configMap.name", s.ConfigMap.Name)
	}
}

// mount checks where a volume is mounted.
func (c *checker) mount(where string, m *corev1.VolumeMount) {
	c.volumeName(where+".name", m.Name)
	c.containerPath(where+".mountPath", m.MountPath)
	if m.MountPropagation != nil && *m.MountPropagation == corev1.MountPropagationBidirectional {
		c.refuse(where+".mountPropagation", "Bidirectional is never allowed: it changes the node's mounts")
	}
}

// volumeName checks that a volume is declared and is not one of ekg's own.
func (c *checker) volumeName(path, name string) {
	switch {
	case podspec.ReservedVolume(name):
		c.refuse(path, "%q is one of ekg's own volumes", name)
	case !slices.Contains(c.volumes, name):
		c.refuse(path, "no volume is named %s", Quoted(name))
	}
}

// containerPath refuses a mount path over files that ekg or the kernel needs.
func (c *checker) containerPath(where, value string) {
	clean := path.Clean(value)
	switch {
	case !path.IsAbs(value) || strings.Contains(value, ":") || slices.Contains(strings.Split(value, "/"), ".."):
		c.refuse(where, "%s is not an absolute path without '..' and ':'", Quoted(value))
	case clean == "/" || clean == "/dev":
		c.refuse(where, "%s would hide files that the kernel needs", Quoted(value))
	case clean == podspec.ShmDir:
		c.refuse(where, "%s cannot be mounted; %s sets its size", podspec.ShmDir, ShortPath("shmSize"))
	case slices.ContainsFunc(podspec.ReservedPaths, func(reserved string) bool { return within(clean, reserved) }):
		c.refuse(where, "%s is reserved for ekg", Quoted(value))
	}
}

// volumeKind returns the kind of a volume's source, and how many kinds it has, of which only one is valid.
func volumeKind(s corev1.VolumeSource) (kind string, n int) {
	b, err := json.Marshal(s)
	if err != nil {
		return "", 0
	}
	var kinds map[string]json.RawMessage
	if err := json.Unmarshal(b, &kinds); err != nil {
		return "", 0
	}
	names := slices.Sorted(maps.Keys(kinds))
	return strings.Join(names, " and "), len(names)
}
