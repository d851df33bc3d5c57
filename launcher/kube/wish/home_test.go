package wish

import (
	"strings"
	"testing"
)

const homePolicy = `home:
  claim: home-{owner}
  mountPath: /home/jovyan
  size: 10Gi
  storageClass: fast
  accessModes: [ReadWriteMany]
  fsGroup: 100
`

// TestPolicy_Home: each bad value is reported with its line.
func TestPolicy_Home(t *testing.T) {
	for replaced, want := range map[string]string{
		"claim: home-{owner}>claim: home":              `2: home.claim: "home" needs {owner} once`,
		"claim: home-{owner}>claim: '{owner}'":         `2: home.claim: "{owner}" needs a small letter`,
		"claim: home-{owner}>claim: Home-{owner}":      `2: home.claim: "Home-{owner}" makes no valid name`,
		"mountPath: /home/jovyan>mountPath: home":      `3: home.mountPath: "home" is not the path of a folder`,
		"mountPath: /home/jovyan>mountPath: /":         `3: home.mountPath: "/" is not the path of a folder`,
		"mountPath: /home/jovyan>mountPath: /proc/x":   `3: home.mountPath: "/proc/x" is ekg's own or the system's`,
		"size: 10Gi>size: much":                        `4: home.size: "much" is not an amount like 10Gi`,
		"storageClass: fast>storageClass: 'Very fast'": `5: home.storageClass: "Very fast" is not the name of a storage class`,
		"ReadWriteMany>ReadOnlyMany":                   `6: home.accessModes: "ReadOnlyMany" is not a mode`,
		"fsGroup: 100>fsGroup: -1":                     `7: home.fsGroup: -1 is not a group id`,
		"fsGroup: 100>deleteAfter: 23h":                `7: home.deleteAfter: 23h0m0s is too short; the least is 24h0m0s`,
		"fsGroup: 100>deleteAfter: soon":               `7: `,
		"fsGroup: 100>group: 100":                      "7: ",
	} {
		from, to, _ := strings.Cut(replaced, ">")
		_, problems := parsePolicy([]byte(strings.Replace(homePolicy, from, to, 1)))
		if len(problems) != 1 || !strings.HasPrefix(problems[0], want) {
			t.Errorf("%s: got %q, want %q", to, problems, want)
		}
	}
}
