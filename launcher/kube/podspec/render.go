package podspec

import (
	"bytes"
	"fmt"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// redacted replaces the values of a secret.
const redacted = "<redacted>"

// Render returns, as YAML, the pod and the secret that a request would create, without the secret's values. The error
// is the one that Launcher.Start would return for the request.
func Render(o Options, req launcher.Request, created time.Time) ([]byte, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	rec := Record{ID: req.ID, Generation: 1, Owner: req.Owner, SpecName: req.Spec.Name, Created: created,
		Protocol: api.ProtocolVersion}
	pod, err := Build(o, req, rec)
	if err != nil {
		return nil, err
	}
	secret := BuildSecret(pod, Keys{})
	secret.OwnerReferences[0].UID = "<of the pod>"
	secret.StringData = map[string]string{}
	for name := range secret.Data {
		secret.StringData[name] = redacted
	}
	secret.Data = nil
	var out bytes.Buffer
	for i, object := range []any{pod, secret} {
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
