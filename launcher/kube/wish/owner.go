package wish

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
)

// OwnerMark stands for the kernel's owner: in the volumes and mounts of kernelspecs, and in the patterns of a policy
// that ownerLists returns. OwnerNames says how the owner's name is written there.
const OwnerMark = "{owner}"

const (
	// MaxOwnerPart bounds, in bytes, each part of a path that has an owner's name: 253 is the longest name of an
	// object, and a name in a file system has at most 255.
	MaxOwnerPart = 253
	// ExampleOwner is the owner for checks of a kernelspec that has no owner yet.
	ExampleOwner = "owner"

	noUsers = OwnerMark + " stands for the name of the kernel's owner, and the gateway has no users"
)

// escapeOwner returns a user's name with each byte besides a-z and 0-9 replaced by '-' and two hexadecimal digits.
// Different names have different results. The result is part of a DNS label, but may begin with '-'. KubeSpawner's
// slug scheme "escape" is the same.
func escapeOwner(name string) string {
	var b strings.Builder
	for _, c := range []byte(name) {
		if 'a' <= c && c <= 'z' || '0' <= c && c <= '9' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "-%02x", c)
		}
	}
	return b.String()
}

// joinsOwner reports whether OwnerMark may follow this text in the name of an object. No label of a name may begin
// with '-'.
func joinsOwner(before string) bool {
	return before != "" && strings.Contains("-0123456789abcdefghijklmnopqrstuvwxyz", before[len(before)-1:])
}

// OwnerNames says how a user's name is written in the names of objects and folders. Different users have different
// texts, all of which have only a-z, 0-9 and '-'.
type OwnerNames string

// The values of OwnerNames, named as KubeSpawner's slug_scheme.
const (
	NamesEscaped OwnerNames = "escape" // each byte besides a-z and 0-9 becomes '-' and two hexadecimal digits
	NamesSafe    OwnerNames = "safe"   // a name that Kubernetes takes stays. Others become a word, "---" and a hash
)

// of returns a user's name as it is written.
func (n OwnerNames) of(owner string) string {
	if n == NamesSafe {
		return safeOwner(owner)
	}
	return escapeOwner(owner)
}

const (
	safeLength = 48 // bytes that a part of a name may have, for a user's and a server's name with "--" between them
	safeDigits = 8  // of the SHA-256 in a changed name
)

var (
	safeName   = regexp.MustCompile(`^[a-z]([a-z0-9-]*[a-z0-9])?$`)
	unsafeRuns = regexp.MustCompile(`[^a-z0-9]+`)
)

// safeOwner returns a user's name as KubeSpawner 7 writes the name of the user's server without a name: {user_server}
// of its slug scheme "safe". Two names have the same result only if they begin alike and 32 bits of their SHA-256 are
// equal.
func safeOwner(name string) string {
	const changed, most = len("---") + safeDigits, safeLength - len("--")
	valid := safeName.MatchString(name) && !strings.Contains(name, "--")
	if name == "" || valid && len(name) <= most {
		return name
	}
	if word := safeWord(name, safeLength-changed); !valid && len(word)+changed <= most {
		return word + "---" + safeSum(name)
	}
	// Half of it is for the name of the server, which is empty here. An empty word is x.
	return safeWord(name, (safeLength-safeDigits-1)/2-len("--")) + "--x---" + safeSum(name+"\xff")
}

// safeWord returns the letters and digits of a name, with at most so many bytes. It begins with a letter.
func safeWord(name string, most int) string {
	// Python makes two characters of this one.
	word := strings.ToLower(strings.ReplaceAll(name, "İ", "i\u0307"))
	word = strings.TrimLeft(unsafeRuns.ReplaceAllString(word, "-"), "-")
	word = strings.TrimRight(word[:min(len(word), most)], "-")
	switch {
	case word == "":
		return "x"
	case word[0] < 'a':
		return "x-" + word[:min(len(word), most-len("x-"))]
	}
	return word
}

func safeSum(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])[:safeDigits]
}

// forOwner returns the patterns with OwnerMark replaced. Without an owner it drops the patterns that need one.
func (p Patterns) forOwner(owner string, names OwnerNames) Patterns {
	if !slices.ContainsFunc(p, hasOwnerMark) {
		return p
	}
	replaced := Patterns{}
	for _, pattern := range p {
		if owner != "" || !hasOwnerMark(pattern) {
			replaced = append(replaced, strings.ReplaceAll(pattern, OwnerMark, names.of(owner)))
		}
	}
	return replaced
}

func hasOwnerMark(text string) bool { return strings.Contains(text, OwnerMark) }

// forOwner returns the bounds of one owner's kernels.
func (b *Bounds) forOwner(owner string, names OwnerNames) *Bounds {
	own := *b
	own.ConfigMaps = b.ConfigMaps.forOwner(owner, names)
	own.PersistentVolumeClaims = b.PersistentVolumeClaims.forOwner(owner, names)
	own.Secrets = b.Secrets.forOwner(owner, names)
	own.ServiceAccounts = b.ServiceAccounts.forOwner(owner, names)
	return &own
}

// ruleList is a list of patterns in a policy.
type ruleList struct {
	under, key string
	patterns   Patterns
}

func (l ruleList) path() string { return l.under + "." + l.key }

// ownerLists returns the lists of patterns in which OwnerMark has a meaning.
func (b *Bounds) ownerLists(under string) []ruleList {
	return []ruleList{
		{under, "configMaps", b.ConfigMaps},
		{under, "persistentVolumeClaims", b.PersistentVolumeClaims},
		{under, "secrets", b.Secrets},
		{under, "serviceAccounts", b.ServiceAccounts},
	}
}

// ownerLists returns the lists of patterns in which OwnerMark has a meaning.
func (p *Policy) ownerLists() []ruleList {
	return slices.Concat(p.Kernelspecs.ownerLists("kernelspecs"), p.Clients.ownerLists("clients"),
		[]ruleList{{"kernelspecs", "serviceAccountTokens", p.Kernelspecs.ServiceAccountTokens}})
}

// otherLists returns the lists of patterns in which OwnerMark has no meaning.
func (p *Policy) otherLists() []ruleList {
	const under = "kernelspecs"
	return []ruleList{
		{under, "images", p.Kernelspecs.Images},
		{under, "imagePullSecrets", p.Kernelspecs.ImagePullSecrets},
		{under, "nodeSelectorKeys", p.Kernelspecs.NodeSelectorKeys},
		{under, "priorityClasses", p.Kernelspecs.PriorityClasses},
		{under, "runtimeClasses", p.Kernelspecs.RuntimeClasses},
		{under, "schedulers", p.Kernelspecs.Schedulers},
		{under, "storageClasses", p.Kernelspecs.StorageClasses},
		{"clients", "images", p.Clients.Images},
	}
}

// ownerProblems calls report for each pattern of a policy by which a user could get what belongs to another user. It
// also reports each OwnerMark that has no meaning where it is.
func (p *Policy) ownerProblems(report func(l ruleList, i int, text string)) {
	for _, l := range p.otherLists() {
		for i, pattern := range l.patterns {
			if hasOwnerMark(pattern) {
				report(l, i, OwnerMark+" has a meaning only in configMaps, persistentVolumeClaims, secrets, serviceAccounts "+
					"and serviceAccountTokens")
			}
		}
	}
	for _, l := range p.ownerLists() {
		for i, pattern := range l.patterns {
			if !hasOwnerMark(pattern) {
				continue
			}
			if text := ownerProblem(pattern); text != "" {
				report(l, i, text)
				continue
			}
			for _, earlier := range l.patterns[:i] {
				if overlap(pattern, earlier) {
					report(l, i, fmt.Sprintf("one user's name may equal another user's name in %q; let their first words differ",
						earlier))
					break
				}
			}
		}
	}
}

// ownerProblem returns what is wrong with a pattern that has OwnerMark, or "". In a valid pattern the text before
// OwnerMark is fixed, and no written name has a '.'. So no name of an object matches for two owners.
func ownerProblem(pattern string) string {
	before, after, _ := strings.Cut(pattern, OwnerMark)
	upToStar, _, star := strings.Cut(after, "*")
	switch {
	case hasOwnerMark(after):
		return "has " + OwnerMark + " twice"
	case strings.Contains(before, "*"):
		return "has a * before " + OwnerMark + ", which would match names of other users"
	case star && !strings.Contains(upToStar, "."):
		return "has no '.' between " + OwnerMark + " and *, so one user's pattern would match names of other users"
	case !joinsOwner(before):
		return "needs a small letter, a digit or '-' right before " + OwnerMark +
			", because a user's name may begin with '-' there"
	}
	return ""
}

// overlap reports whether two patterns with OwnerMark may match the same name for different owners.
func overlap(a, b string) bool {
	beforeA, afterA, _ := strings.Cut(a, OwnerMark)
	beforeB, afterB, marked := strings.Cut(b, OwnerMark)
	ends := func(after string) bool { return after == "" || after[0] == '.' } // where the owner's part ends
	switch {
	case !marked || a == b || !strings.HasPrefix(beforeA, beforeB) && !strings.HasPrefix(beforeB, beforeA):
		return false
	default:
		return beforeA != beforeB || !ends(afterA) || !ends(afterB)
	}
}

// OwnerRules returns the policy's names and patterns with {owner}, each as "key: pattern". A gateway without users
// cannot apply them.
func (p *Policy) OwnerRules() []string {
	var found []string
	for _, l := range p.ownerLists() {
		for _, pattern := range l.patterns {
			if hasOwnerMark(pattern) {
				found = append(found, fmt.Sprintf("%s: %q", l.path(), pattern))
			}
		}
	}
	if p.Home != nil {
		found = append(found, fmt.Sprintf("home.claim: %q", p.Home.Claim))
	}
	if p.OwnerNamespace != nil {
		found = append(found, fmt.Sprintf("ownerNamespace.name: %q", p.OwnerNamespace.Name))
	}
	return found
}

// CommonRules returns the rules of the policy that let every client use objects that may belong to another user, each
// as "key: value". These are patterns with * and without {owner}, and names that a pattern with {owner} may also match.
// Others are kinds of volumes that the policy cannot restrict to some names.
func (p *Policy) CommonRules() []string {
	var found []string
	c := &p.Clients
	mounts := func(kinds ...string) bool {
		return slices.Contains(c.Allow, "KERNEL_VOLUMES") &&
			slices.ContainsFunc(kinds, func(kind string) bool { return slices.Contains(c.Volumes, kind) })
	}
	reachable := map[string]bool{
		"configMaps":             mounts("configMap", "projected"),
		"persistentVolumeClaims": mounts("persistentVolumeClaim"),
		"secrets":                mounts("secret", "projected", "csi"),
		"serviceAccounts":        slices.Contains(c.Allow, "KERNEL_SERVICE_ACCOUNT_NAME"),
	}
	for _, l := range c.ownerLists("clients") {
		for _, pattern := range l.patterns {
			if reachable[l.key] && !hasOwnerMark(pattern) && (strings.Contains(pattern, "*") || l.mayBeUsers(pattern)) {
				found = append(found, fmt.Sprintf("%s: %q", l.path(), pattern))
			}
		}
	}
	for _, kind := range []string{"csi", "nfs"} {
		if mounts(kind) {
			found = append(found, fmt.Sprintf("clients.volumes: %q", kind))
		}
	}
	return found
}

// mayBeUsers reports whether a pattern with OwnerMark in the list may match this name too.
func (l ruleList) mayBeUsers(name string) bool {
	return slices.ContainsFunc(l.patterns, func(pattern string) bool {
		before, _, marked := strings.Cut(pattern, OwnerMark)
		return marked && strings.HasPrefix(name, before)
	})
}

// ownerTexts calls do with each text of the extension in which OwnerMark has a meaning, and with its key. The text is
// set to the result.
func (e *Extension) ownerTexts(do func(key, text string) string) {
	for _, part := range []struct {
		overlay Overlay
		at      func(string) string
	}{{e.AsOverlay(), ShortPath}, {e.Pod, podPath}} {
		for i := range part.overlay.Spec.Volumes { // the elements are those of the extension
			source := &part.overlay.Spec.Volumes[i].VolumeSource
			eachText(reflect.ValueOf(source).Elem(), fmt.Sprintf("%s[%d]", part.at("volumes"), i), do)
		}
		mountTexts(part.overlay.Kernel().VolumeMounts, part.at("volumeMounts"), do)
	}
	e.ExtraLists(func(key string, list []ExtraContainer) {
		for i := range list {
			mountTexts(list[i].VolumeMounts, fmt.Sprintf("%s[%d].volumeMounts", ShortPath(key), i), do)
		}
	})
	e.objectTexts(do)
	e.ServiceAccountName = do(ShortPath("serviceAccountName"), e.ServiceAccountName)
	e.Pod.Spec.ServiceAccountName = do(podPath("serviceAccountName"), e.Pod.Spec.ServiceAccountName)
}

// mountTexts calls do with each path of the mounts at a key, and sets the path to the result.
func mountTexts(mounts []corev1.VolumeMount, at string, do func(key, text string) string) {
	for i := range mounts {
		where, m := fmt.Sprintf("%s[%d]", at, i), &mounts[i]
		m.MountPath = do(where+".mountPath", m.MountPath)
		m.SubPath = do(where+".subPath", m.SubPath)
		m.SubPathExpr = do(where+".subPathExpr", m.SubPathExpr)
	}
}

// eachText calls do with each text in a settable value of Kubernetes' types, and with its path. It sets the text to the
// result. Keys of maps stay.
func eachText(v reflect.Value, path string, do func(path, text string) string) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(do(path, v.String()))
	case reflect.Pointer:
		if !v.IsNil() {
			eachText(v.Elem(), path, do)
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return
		}
		for i := range v.Len() {
			eachText(v.Index(i), fmt.Sprintf("%s[%d]", path, i), do)
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			value := reflect.New(v.Type().Elem()).Elem()
			value.Set(v.MapIndex(key))
			eachText(value, path+"."+key.String(), do)
			v.SetMapIndex(key, value)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			switch {
			case !f.IsExported():
			case name == "":
				eachText(v.Field(i), path, do)
			default:
				eachText(v.Field(i), path+"."+name, do)
			}
		}
	}
}

// fillOwner replaces OwnerMark in the extension by the owner's name, and returns the texts where that is impossible.
func (e *Extension) fillOwner(owner string, names OwnerNames) []refusal {
	var found []refusal
	written := names.of(owner)
	e.ownerTexts(func(key, text string) string {
		if !hasOwnerMark(text) {
			return text
		}
		filled := strings.ReplaceAll(text, OwnerMark, written)
		before, _, _ := strings.Cut(text, OwnerMark)
		tooLong := func(part string) bool { return len(part) > MaxOwnerPart }
		switch {
		case owner == "":
			found = append(found, refusal{key, noUsers})
		case namesObject(key) && !joinsOwner(before):
			found = append(found, refusal{key, fmt.Sprintf("%s needs a small letter, a digit or '-' right before %s, "+
				"because a user's name may begin with '-' there", Quoted(text), OwnerMark)})
		case !isObjectText(key) && slices.ContainsFunc(strings.Split(filled, "/"), tooLong):
			found = append(found, refusal{key, fmt.Sprintf("%s is longer than %d bytes with this owner's name", Quoted(text),
				MaxOwnerPart)})
		}
		return filled
	})
	return found
}

// namesObject reports whether the text at a key is the name of an object of Kubernetes.
func namesObject(key string) bool {
	if strings.HasPrefix(key, ShortPath(ObjectsKey)) {
		return strings.HasSuffix(key, ".spec.dataSource.name") || strings.HasSuffix(key, ".spec.dataSourceRef.name")
	}
	last := key[strings.LastIndex(key, ".")+1:]
	return slices.Contains([]string{"claimName", "secretName", "name", "serviceAccountName"}, last)
}

// CheckNoOwner returns a problem for each {owner} of a kernelspec. It is for kernelspecs.Options of a gateway without
// users. It may be called concurrently.
func CheckNoOwner(spec kernelspecs.Spec) []kernelspecs.Problem {
	var e Extension
	places, problems := spec.DecodeExtension(&e)
	if len(problems) > 0 {
		return nil // Policy.Read reports them
	}
	for _, r := range e.fillOwner("", NamesEscaped) {
		problems = append(problems, places.Problem(r.path, r.text))
	}
	return problems
}
