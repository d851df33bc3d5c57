package podbuild

import (
	"bytes"
	"fmt"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// redacted replaces the values of a secret.
const redacted = "<redacted>"

// Render returns, as YAML, the pod, the secret and the objects that a request would create, without values of secrets.
// The error is the one that Launcher.Start would return for the request.
func Render(o Options, req launcher.Request, created time.Time) ([]byte, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	rec := podspec.Record{ID: req.ID, Generation: 1, Owner: req.Owner, SpecName: req.Spec.Name, Created: created,
		Protocol: api.ProtocolVersion}
	pod, err := Build(o, req, rec)
	if err != nil {
		return nil, err
	}
	pod.UID = "<of the pod>"
	secret := podspec.BuildSecret(pod, podspec.Keys{})
	secret.StringData = map[string]string{}
	for name := range secret.Data {
		secret.StringData[name] = redacted
	}
	secret.Data = nil
	made, err := Objects(o, pod)
	if err != nil {
		return nil, err
	}
	if len(made) > 0 {
		pod.Annotations[podspec.AnnotationKernelObjects] = redacted
	}
	pod.UID = ""
	all := []any{pod, secret}
	for _, object := range made {
		content := object.Object.Object
		for _, key := range []string{"data", "stringData"} {
			if values, ok := content[key].(map[string]any); ok && !object.Kept() {
				for name := range values {
					values[name] = redacted
				}
			}
		}
		all = append(all, content)
	}
	var out bytes.Buffer
	for i, object := range all {
		text, err := yaml.Marshal(object)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			fmt.Fprintln(&out, "---")
		}
		out.Write(text)
	}
	return out.Bytes(), nil
}
